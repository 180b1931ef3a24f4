//! Nodes that join a running launch.

use super::cluster::Cluster;
use super::launcher::{Launcher, LauncherEvent, gone};
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{
    AgentReport, AgentRequest, NodeAddress, NodeLoss, VERSION,
};
use wireup_core::link::frame::BODY_MAX;

fn grow(members: Vec<NodeAddress>) -> AgentRequest {
    AgentRequest::Grow {
        members,
        description: vec![2; 3 * BODY_MAX],
    }
}

#[test]
fn nodes_join_are_reached_from_everywhere_and_end_with_launch() {
    let cluster = Cluster::start(7, &[]);
    let member = |at: usize| cluster.agents[at].member();
    // At the root, and at an agent that is no node of the launch until it joins.
    for entry in [0, 6] {
        let mut launcher = Launcher::open(&cluster.agents[entry], cluster.spread(4, 2));
        let mut pids = launcher.begun(4);
        launcher.ask(&grow(vec![member(4), member(6)]));
        pids.extend(launcher.begun_from(4, 2));
        launcher.ask(&grow(vec![member(5)]));
        pids.extend(launcher.begun_from(6, 1));
        launcher.reaches(&[(4, 5), (5, 4), (6, 3), (3, 6), (2, 4), (0, 5), (6, 6)], 7);
        drop(launcher);
        gone(&pids);
        cluster.agents.iter().for_each(|agent| agent.idle());
    }
}

#[test]
fn nodes_that_cannot_join_are_reported_and_launch_continues() {
    let mut cluster = Cluster::start(3, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let mut pids = launcher.begun(1);
    let nobody = NodeAddress {
        name: "n9".to_owned(),
        address: "127.0.0.1:1".to_owned(),
    };
    launcher.ask(&grow(vec![nobody.clone()]));
    let (nodes, reason, _) = launcher.lost();
    assert_eq!(nodes, [1]);
    assert!(reason.contains("Connection refused"), "{reason}");
    // A name that is none, one that is in the launch already, and again.
    let bad = NodeAddress {
        name: "n 9".to_owned(),
        ..nobody.clone()
    };
    launcher.ask(&grow(vec![bad]));
    let (nodes, reason, _) = launcher.lost();
    assert_eq!(nodes, [2]);
    assert!(reason.contains("\"n 9\""), "{reason}");
    let first = cluster.agents[0].member();
    launcher.ask(&grow(vec![first]));
    let (nodes, reason, _) = launcher.lost();
    assert_eq!(nodes, [3]);
    assert!(reason.contains("already exists"), "{reason}");
    let stopping = cluster.agents[2].member();
    cluster.agents[2].signal(rustix::process::Signal::TERM);
    cluster.agents[2].ended();
    launcher.ask(&grow(vec![stopping, cluster.agents[1].member()]));
    // The node that begins may be faster than the attempts to reach the other.
    let mut answers = [launcher.next_event(), launcher.next_event()];
    answers.sort_by_key(|answer| matches!(answer, LauncherEvent::Step(..)));
    let [lost, begun] = answers;
    let LauncherEvent::Agent(AgentReport::Unreachable(NodeLoss { nodes, .. })) = lost else {
        panic!("{lost:?}");
    };
    assert_eq!(nodes, [NodeId(4)]);
    let LauncherEvent::Step(5, text) = begun else {
        panic!("{begun:?}");
    };
    pids.push(text.split(' ').nth(4).unwrap().parse().unwrap());
    launcher.send_text(5, "send 0 me");
    assert_eq!(launcher.next_text(), (0, "got 5 me".to_owned()));
    drop(launcher);
    gone(&pids);
    cluster.agents.truncate(2);
}

#[test]
fn only_launcher_of_launch_can_join_nodes() {
    let cluster = Cluster::start(2, &[]);
    let mut stranger = Launcher::connect(&cluster.agents[0]);
    stranger.ask(&grow(vec![cluster.agents[1].member()]));
    let reason = stranger.refused();
    assert!(reason.contains("without an open launch"), "{reason}");
    // A launcher that asks for something else ends its launch.
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.ask(&AgentRequest::Nodes {
        version: VERSION,
        members: Vec::new(),
    });
    gone(&pids);
    cluster.agents[0].logged(&["the launcher sent a second request"]);
}
