//! Failures of the sidecar: one clear line, and an end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use wireup_core::pmix::sidecar_protocol::{ControlReply, SidecarCommand, StartupStage};
use wireup_core::pmix::value::Status;

use wireup_test_support::eventually;

use crate::agent::{Node, libpmix_libraries, shim, system_libpmix};
use crate::cluster::Cluster;

/// Starts a sidecar that must fail, and returns where and why.
fn failure(libpmix: &Path, shim: &Path) -> (StartupStage, String) {
    let mut node = Node::start_with("solo", libpmix, shim);
    let failed = node.failed();
    assert_eq!(node.end().code(), Some(1));
    let text = failed.text.to_string();
    assert!(!text.contains('\n'), "{text}");
    (failed.stage, text)
}

/// A shared library made from a line of C.
fn library(dir: &Path, name: &str, code: &str) -> PathBuf {
    let (source, library) = (
        dir.join(format!("{name}.c")),
        dir.join(format!("{name}.so")),
    );
    std::fs::write(&source, code).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(status.unwrap().success());
    library
}

#[test]
fn each_unusable_library_is_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Path::new("/nonexistent/libpmix.so.2");
    let (stage, text) = failure(missing, &shim());
    assert_eq!(stage, StartupStage::Load);
    assert!(
        text.starts_with("cannot load /nonexistent/libpmix.so.2: "),
        "{text}"
    );

    let other = library(dir.path(), "other", "int other;");
    let (stage, text) = failure(&other, &shim());
    assert_eq!(stage, StartupStage::Pmix);
    assert!(
        text.contains("other.so: not a libpmix: no function PMIx_Get_version; "),
        "{text}"
    );

    let old = "const char *PMIx_Get_version(void) { return \"OpenPMIx 4.1.2, x\"; }";
    let (stage, text) = failure(&library(dir.path(), "old", old), &shim());
    assert_eq!(stage, StartupStage::Pmix);
    assert!(
        text.contains("old.so: version 4.1.2 is too old, 4.2.2 or later is needed; "),
        "{text}"
    );

    let empty = "const char *PMIx_Get_version(void) { return \"OpenPMIx 9.0.0, x\"; }";
    let (stage, text) = failure(&library(dir.path(), "empty", empty), &shim());
    assert_eq!(stage, StartupStage::Pmix);
    assert!(text.contains("empty.so: undefined symbol"), "{text}");
    assert!(
        text.ends_with("; name a libpmix of version 4.2.2 or later with --libpmix"),
        "{text}"
    );
}

#[test]
fn each_unusable_shim_is_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let libpmix = system_libpmix();
    let (stage, text) = failure(&libpmix, Path::new("/nonexistent/shim.so"));
    assert_eq!(stage, StartupStage::Load);
    assert!(
        text.starts_with("cannot load /nonexistent/shim.so: "),
        "{text}"
    );

    let (stage, text) = failure(&libpmix, &library(dir.path(), "other", "int other;"));
    assert_eq!(stage, StartupStage::Abi);
    assert!(
        text.contains("other.so: not a wireup shim: no function wireup_shim_abi; "),
        "{text}"
    );

    let future = "unsigned wireup_shim_abi(void) { return 999; }";
    let (stage, text) = failure(&libpmix, &library(dir.path(), "future", future));
    assert_eq!(stage, StartupStage::Abi);
    assert!(
        text.contains("future.so: shim of version 999, this wireup needs version "),
        "{text}"
    );
    assert!(
        text.ends_with(", or name it with --libpmix shim="),
        "{text}"
    );
}

#[test]
fn hello_names_version() {
    let mut node = Node::start("solo", &system_libpmix());
    let hello = node.hello();
    let version = hello.libpmix.to_string();
    assert!(version.starts_with("OpenPMIx "), "{version}");
    node.finalize();
}

#[test]
fn requests_out_of_order_are_refused_and_do_no_harm() {
    let mut node = Node::start("solo", &system_libpmix());
    let early = node.send(&SidecarCommand::RegisterJob {
        nspace: wireup_core::job::ids::Nspace::new("early").unwrap(),
        infos: Vec::new(),
        clients: Vec::new(),
    });
    match node.reply(early) {
        ControlReply::RegisterJob(Err(refusal)) => {
            assert_eq!(refusal.status, Status::ERR_INIT);
            assert_eq!(refusal.text, "the PMIx server is not running");
        }
        other => panic!("{other:?}"),
    }
    let init = node.send_init(0);
    assert_eq!(node.reply(init), ControlReply::Init(Ok(())));
    node.finalize();
}

#[test]
fn garbage_on_control_socket_ends_sidecar_with_message() {
    let mut node = Node::start("solo", &system_libpmix());
    node.hello();
    node.control.write_all(&[0xff; 64]).unwrap();
    let failed = node.failed();
    assert_eq!(failed.stage, StartupStage::Link);
    let text = failed.text.to_string();
    assert!(
        text.starts_with("the agent's request is malformed: payload of "),
        "{text}"
    );
    assert_eq!(node.end().code(), Some(1));
}

#[test]
fn garbage_on_upcall_socket_ends_sidecar_with_message() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 1, &libpmix);
        let node = &mut cluster.nodes[0];
        node.upcall.write_all(&[0xff; 64]).unwrap();
        let failed = node.failed();
        assert_eq!(failed.stage, StartupStage::Link);
        assert_eq!(
            failed.text,
            "the agent's answer on the upcall socket is malformed"
        );
        assert_eq!(node.end().code(), Some(1));
    }
}

#[test]
fn sidecar_ends_soon_after_agent_and_removes_its_files() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["alpha", "beta"], 1, &libpmix);
        cluster.launch(&["linger"]);
        // Both clients are inside the fence that only the agent could complete.
        let fences = |cluster: &Cluster| {
            let waiting = |node: &Node| node.link.outstanding_upcalls().count() == 1;
            cluster.nodes.iter().all(waiting)
        };
        hold_fences(&mut cluster, fences);
        for node in &mut cluster.nodes {
            node.hang_up();
            let ended = eventually("the sidecar ends", || node.child.try_wait().unwrap());
            assert_eq!(ended.code(), Some(1));
        }
        for node in &cluster.nodes {
            let left: Vec<_> = std::fs::read_dir(node.dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .filter(|name| !name.as_encoded_bytes().starts_with(b".tmp"))
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

#[test]
fn kill_of_sidecar_closes_both_sockets_cleanly() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["alpha", "beta"], 1, &libpmix);
        cluster.launch(&["linger"]);
        hold_fences(&mut cluster, |cluster| {
            cluster
                .nodes
                .iter()
                .all(|node| node.link.outstanding_upcalls().count() == 1)
        });
        for node in &mut cluster.nodes {
            node.child.kill().unwrap();
            assert_eq!(node.end().code(), None, "ended by a signal");
            assert!(node.link.is_idle());
            assert_eq!(
                node.link.outstanding_upcalls().count(),
                1,
                "for the agent to report"
            );
        }
    }
}

/// Reads, without answering, until `done`.
fn hold_fences(cluster: &mut Cluster, done: impl Fn(&Cluster) -> bool) {
    let end = Instant::now() + crate::agent::DEADLINE;
    while !done(cluster) {
        crate::agent::poll_nodes(&mut cluster.nodes, end);
    }
}
