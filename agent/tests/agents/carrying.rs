//! Launches that go well.

use wireup::link::frame::Address;

use super::cluster::Cluster;
use super::launcher::{Launcher, gone};

#[test]
fn a_launch_on_this_node_alone() {
    let cluster = Cluster::start(1, &[]);
    let agent = &cluster.agents[0];
    let mut launcher = Launcher::open(agent, cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.tell(0, "hello");
    assert_eq!(launcher.said(), (0, "heard hello".into()));
    drop(launcher);
    gone(&pids);
    agent.idle();
    agent.logged(&["ended after", "the launcher has ended"]);
}

#[test]
fn a_root_and_a_child() {
    let cluster = Cluster::start(2, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    launcher.tell(1, "send 0 from one");
    assert_eq!(launcher.said(), (0, "got 1 from one".into()));
    launcher.send(Address::EveryNode, "hello");
    let mut heard = [launcher.said(), launcher.said()];
    heard.sort();
    assert_eq!(heard, [0, 1].map(|node| (node, "heard hello".into())));
    drop(launcher);
    gone(&pids);
    for agent in &cluster.agents {
        agent.idle();
    }
}
