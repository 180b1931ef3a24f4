//! Ranks whose root directory is an image, on one machine. The image is the machine's own root directory.

use rustix::process::Signal;

use crate::common::{DEADLINE, Output, Run, mpi, pmix};

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

#[test]
fn an_image_s_open_mpi_brings_another_libpmix_than_the_server_has() {
    let (Some(mpi), Some(server)) = (mpi("openmpi5"), pmix("pmix4")) else {
        return;
    };
    let run = run().more(["-v", "--libpmix"]).more([&server.library]);
    let outcome = run.more([mpi.program("hello")]).run().expect(0);
    let version = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before).expect(before);
        rest.split(' ').next().map(str::to_owned)
    };
    outcome.by_rank("hello", 4);
    let served = version(&outcome.err(), ": OpenPMIx ");
    let loaded = version(&outcome.out(), "pmix=\"OpenPMIx ");
    assert_ne!(served, loaded, "{outcome:?}");
}
