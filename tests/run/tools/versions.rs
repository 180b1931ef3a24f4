//! Tools whose libpmix is not the one of the server.

use super::{Job, NODES, versions};
use crate::common::{Output, Run, eventually};

/// Whether a server with the first of these libpmix knows how the second one packs data.
fn understands(server: &str, tool: &str) -> bool {
    server == "pmix7" || tool != "pmix7"
}

#[test]
fn tools_of_other_versions_see_job_and_too_new_ones_do_no_harm() {
    for server in versions() {
        for client in versions().filter(|client| client.dir != server.dir) {
            let name = |pmix: &crate::common::Pmix| {
                pmix.dir.file_name().unwrap().to_str().unwrap().to_owned()
            };
            let options = ["--pmi", "pmix", "--libpmix", server.path()];
            for nodes in NODES {
                let run = Run::ranks(4, [&options[..], nodes].concat());
                let job = Job::from(server.clone(), run.more(["sleep", "1000"]));
                let tool = client.dir.join("pmix_tool");
                let look = || {
                    let words = [tool.to_str().unwrap(), "uri", &job.uri(), "look"];
                    Run::command(words).beside(&job.place).run()
                };
                let outcome = look();
                if understands(&name(&server), &name(&client)) {
                    let outcome = outcome.expect(0);
                    let rows = outcome.out().matches(" proc=").count();
                    assert_eq!(rows, 4, "{outcome:?}");
                } else {
                    outcome.expect(3);
                    look().expect(3);
                    let text = "connected and was refused: this libpmix is too old for it";
                    let err = job.running.wait_for(Output::Stderr, text);
                    assert_eq!(err.matches(text).count(), 1, "{err}");
                    let pid = job.running.pid().to_string();
                    job.tool("pid", &pid, &["look"]).run().expect(0);
                }
                eventually("all ranks run", || {
                    let processes = job.running.processes();
                    let ranks = processes.iter().filter(|one| one.name == "sleep");
                    (ranks.count() == 4).then_some(())
                });
                job.running.signal(rustix::process::Signal::TERM);
                job.running.finish().expect(143);
            }
        }
    }
}
