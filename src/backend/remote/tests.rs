use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;
use crate::plan::tests::{plan, spec};
use wireup_core::link::frame::{Frame, FrameReader};
use wireup_core::link::reassembly::Reassembly;
use wireup_core::node_tracker::TrackerAction;
use wireup_core::output_credit::window;
use wireup_core::record::Stream;

const NODES: u32 = 4096;

/// A remote backend of `NODES` nodes with 24 ranks each, and its agent's end of the link.
fn remote() -> (RemoteBackend, UnixStream, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("app");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut spec = spec(&format!("n[1-{NODES}]:24"), &program);
    spec.layout.spread.agent = Some(socket);
    let remote = {
        let poll = Poll::new().unwrap();
        let wake = poll.add_wake().unwrap();
        RemoteBackend::connect(&Arc::new(plan(spec)), Instant::now(), poll, wake).unwrap()
    };
    let (agent, _) = listener.accept().unwrap();
    agent.set_nonblocking(true).unwrap();
    (remote, agent, dir)
}

fn report_of_node(remote: &mut RemoteBackend, node: NodeId, report: StepToLauncher) {
    let node = remote.fleet.look_up(node).unwrap();
    remote.on_node_report(node, report);
}

/// What has come at the agent, and how many bytes that were.
fn sent(agent: &mut UnixStream) -> (Vec<(FrameAddress, LauncherToStep)>, usize) {
    let mut bytes = Vec::new();
    let end = agent.read_to_end(&mut bytes);
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let (mut reader, mut parts) = (FrameReader::default(), Reassembly::default());
    reader.push(&bytes);
    let mut messages = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        if let Some((envelope, body)) = parts.take(frame).unwrap() {
            messages.push((envelope.to, decode(&body).unwrap()));
        }
    }
    (messages, bytes.len())
}

#[test]
fn last_ready_node_is_reported_once() {
    let (mut remote, mut agent, _dir) = remote();
    let mut reports = Vec::new();
    let job = JobIndex(0);
    for report in [
        StepToLauncher::Ready,
        StepToLauncher::AllStarted { job },
        StepToLauncher::Over,
    ] {
        for node in (0..NODES).map(NodeId) {
            assert!(remote.next_report().is_none());
            report_of_node(&mut remote, node, report.clone());
            if report == StepToLauncher::Ready {
                let own = remote.next_report();
                assert_eq!(own, Some(LinkReport::NodeReady { node }.into()));
            }
            // A repeated report counts once.
            if node == NodeId(7) {
                report_of_node(&mut remote, node, report.clone());
            }
        }
        reports.extend(std::iter::from_fn(|| remote.next_report()));
        if report == StepToLauncher::Ready {
            report_of_node(&mut remote, NodeId(0), StepToLauncher::Ready);
        }
    }
    assert_eq!(
        reports,
        [
            StepToLauncher::Ready,
            StepToLauncher::AllStarted { job },
            StepToLauncher::Over
        ]
        .map(LauncherReport::Step)
    );
    assert!(sent(&mut agent).0.is_empty());
}

#[test]
fn output_gives_credit_to_its_node_only() {
    let (mut remote, mut agent, _dir) = remote();
    let bytes = window(NODES);
    let output = |rank| StepToLauncher::Output {
        rank: GlobalRank(rank),
        stream: Stream::Stdout,
        bytes: vec![0; bytes as usize / 2],
    };
    report_of_node(&mut remote, NodeId(5), output(5 * 24));
    let credit = |messages: &[(FrameAddress, LauncherToStep)]| match messages {
        [(FrameAddress::Node(NodeId(node)), LauncherToStep::Credit { bytes, .. })] => {
            Some((*node, *bytes))
        }
        _ => None,
    };
    assert_eq!(credit(&sent(&mut agent).0), Some((5, bytes / 2)));
    let stream = Stream::Stdout;
    let pause = |paused| LauncherToStep::Pause { stream, paused };
    remote.order(pause(true));
    report_of_node(&mut remote, NodeId(6), output(6 * 24));
    assert!(sent(&mut agent).0.is_empty());
    remote.order(pause(false));
    assert_eq!(credit(&sent(&mut agent).0), Some((6, bytes / 2)));
}

#[test]
fn partial_message_of_lost_node_is_dropped() {
    let (mut remote, mut agent, _dir) = remote();
    let mut sends = |node: u32, more: bool, body: &[u8]| {
        let frame = Frame {
            to: FrameAddress::Launcher,
            from: FrameAddress::Node(NodeId(node)),
            class: FrameClass::Carried,
            more,
            body: body.to_vec(),
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        agent.write_all(&bytes).unwrap();
    };
    let received = |remote: &mut RemoteBackend| {
        let mut messages = Vec::new();
        let result = remote.link.receive(&remote.poll, &mut messages);
        result.unwrap();
        let bodies = messages.into_iter().map(|(_, body)| body);
        bodies.collect::<Vec<_>>()
    };
    sends(5, true, b"of a lost node, ");
    sends(6, true, b"of one that lives, ");
    assert!(received(&mut remote).is_empty());
    let reason = "the connection broke".to_owned();
    remote.conclude(|_, _, out| out.push(TrackerAction::NodesLost(vec![NodeId(5)], reason)));
    sends(5, false, b"the end");
    sends(6, false, b"the end");
    assert_eq!(
        received(&mut remote),
        [&b"the end"[..], b"of one that lives, the end"]
    );
}
