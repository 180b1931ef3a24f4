//! Tools of other users.

use super::{Job, versions};
use crate::common::{Output, Run};
use crate::strangers::{STRANGER, as_root, liar, readable};
use rustix::process::Signal;

#[test]
fn tool_of_other_user_claiming_to_be_owner_is_refused() {
    if !as_root() {
        return;
    }
    let Some((dir, preload)) = liar() else {
        return;
    };
    let tmp = format!("TMPDIR={}", dir.path().display());
    for library in versions() {
        let tool = dir.path().join("pmix_tool");
        std::fs::copy(library.dir.join("pmix_tool"), &tool).unwrap();
        let tool = readable(tool);
        // With a server from the beginning, and with one that the stranger makes start.
        for pmi in ["pmix", "pmi1"] {
            let options = ["--pmi", pmi, "--libpmix", library.path()];
            let run = Run::ranks(2, options).more(["sleep", "1000"]);
            let job = Job::from(library.clone(), run);
            let uri = job.uri();
            for lie in [&[][..], &[&*preload]] {
                // libpmix tries again for ever where it is shut out.
                let words = ["timeout", "10", "setpriv", "--reuid", STRANGER];
                let run = Run::command(words).more(["--regid", STRANGER, "--clear-groups", "env"]);
                let run = run.more([&tmp]).more(lie);
                let outcome = run.more([tool.to_str().unwrap(), "uri", &uri]).run();
                assert_ne!(outcome.code, 0, "{outcome:?}");
                assert!(!outcome.out().contains("attached"), "{outcome:?}");
            }
            let warning = format!("a process of user {STRANGER} connected from 127.0.0.1:");
            job.running.wait_for(Output::Stderr, &warning);
            let pid = job.running.pid().to_string();
            job.tool("pid", &pid, &["look"]).run().expect(0);
            job.running.signal(Signal::TERM);
            job.running.finish().expect(143);
        }
    }
}
