//! Ranks whose root directory is an image, on one machine. The image is the machine's own root directory.

use rustix::process::Signal;

use crate::common::{DEADLINE, Output, Run, mpi};

/// Two virtual nodes with two ranks each, in the image.
fn run() -> Run {
    Run::ranks(4, ["--virtual-nodes", "2", "--image", "/"])
}

#[test]
fn virtual_nodes_share_one_container() {
    let script =
        "uname -n; readlink /proc/self/ns/mnt; touch /usr/new 2>/dev/null && echo written; true";
    let outcome = run()
        .more(["sh", "-c", script])
        .run()
        .expect_quiet_success();
    let mut lines = outcome.sorted_lines();
    lines.dedup();
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    // A name for each node and mounts for both, which are not this machine's, and nothing written.
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[0].starts_with("mnt:") && *lines[0] != *own.to_string_lossy(),
        "{lines:?}"
    );
}

#[test]
fn mpis_run_in_it() {
    for name in ["mpich5", "openmpi4"] {
        let Some(mpi) = mpi(name) else { continue };
        let mut run = run();
        for (name, value) in &mpi.env {
            run = run.env(name, value).more(["-x", name]);
        }
        let outcome = run.more([mpi.program("ring")]).run().expect_success();
        outcome.by_rank("ring", 4);
    }
}

#[test]
fn a_launcher_that_is_killed_leaves_nothing_of_it() {
    let run = run().more(["sh", "-c", "echo ready; exec sleep 1000"]);
    let running = run.clean_within(DEADLINE).start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    running.signal(Signal::KILL);
    running.finish().expect(137);
}
