//! Launches in which something ends that should not.

use rustix::process::Signal;

use super::cluster::Cluster;
use super::launcher::{Launcher, LauncherEvent, gone};
use wireup_core::link::agent_protocol::{AgentReport, NodeLoss, VERSION};
use wireup_core::link::frame::FrameAddress;

#[test]
fn killed_agent_is_reported_once_with_subtree_and_steps_end() {
    let cluster = Cluster::start(7, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(7, 2));
    let pids = launcher.begun(7);
    cluster.agents[1].signal(Signal::KILL);
    let (mut lost, reason, step) = launcher.lost();
    assert_eq!(lost[0], 1);
    lost.sort_unstable();
    assert_eq!((&lost[..], step), (&[1, 3, 4][..], false));
    assert!(
        reason.contains("the connection to the agent of n1 at 127.0.0.1:"),
        "{reason}"
    );
    gone(&[pids[1], pids[3], pids[4]]);
    cluster.agents[3].idle();
    cluster.agents[3].logged(&["ended after", "the agent of n1 is lost"]);
    // The other nodes continue, without another report of the loss.
    launcher.send(FrameAddress::EveryNode, "hello");
    let mut nodes: Vec<_> = (0..4).map(|_| launcher.next_text().0).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 2, 5, 6]);
    launcher.send_text(1, "nobody");
    launcher.send_text(2, "somebody");
    assert_eq!(launcher.next_text(), (2, "heard somebody".into()));
}

#[test]
fn end_of_root_ends_entry_agent_elsewhere() {
    let cluster = Cluster::start(4, &[]);
    let mut launcher = Launcher::open(&cluster.agents[3], cluster.spread(3, 2));
    let pids = launcher.begun(3);
    cluster.agents[0].signal(Signal::KILL);
    let (mut lost, _, step) = launcher.lost();
    assert_eq!(lost[0], 0);
    lost.sort_unstable();
    assert_eq!((&lost[..], step), (&[0, 1, 2][..], false));
    gone(&pids);
}

#[test]
fn frozen_agent_is_detected_and_cleans_up_after_resume() {
    let cluster = Cluster::start(3, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(3, 2));
    let pids = launcher.begun(3);
    cluster.agents[2].signal(Signal::STOP);
    let (lost, reason, step) = launcher.lost();
    assert_eq!((&lost[..], step), (&[2][..], false), "{reason}");
    cluster.agents[2].signal(Signal::CONT);
    gone(&pids[2..]);
    cluster.agents[2].idle();
    launcher.send_text(1, "go on");
    assert_eq!(launcher.next_text(), (1, "heard go on".into()));
}

#[test]
fn frozen_parent_is_detected_by_child() {
    let cluster = Cluster::start(2, &["--heartbeat", "3"]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    cluster.agents[0].signal(Signal::STOP);
    gone(&pids[1..]);
    cluster.agents[1].idle();
    cluster.agents[0].signal(Signal::CONT);
    assert_eq!(launcher.lost().0, [1]);
}

#[test]
fn unreachable_agents_are_reported_once_with_subtree() {
    let cluster = Cluster::start(7, &[]);
    let mut spread = cluster.spread(7, 2);
    // No process listens; another program answers.
    spread.nodes[1].address = "127.0.0.1:1".into();
    spread.nodes[6].address = cluster.agents[5].address.clone();
    let mut launcher = Launcher::open(&cluster.agents[0], spread);
    let (mut begun, mut lost) = (Vec::new(), Vec::new());
    while begun.len() + lost.len() < 7 {
        match launcher.next_event() {
            LauncherEvent::Step(node, _) => begun.push(node),
            LauncherEvent::Agent(AgentReport::Unreachable(NodeLoss {
                nodes,
                reason,
                step: false,
            })) => match nodes[0].0 {
                1 => {
                    assert!(
                        reason.contains("cannot reach the agent of n1 at 127.0.0.1:1"),
                        "{reason}"
                    );
                    assert!(reason.contains("Connection refused"), "{reason}");
                    lost.extend(nodes.iter().map(|node| node.0));
                }
                6 => {
                    assert!(
                        reason.contains("its certificate is not for n6, but for n5"),
                        "{reason}"
                    );
                    lost.extend(nodes.iter().map(|node| node.0));
                }
                other => panic!("{other}: {reason}"),
            },
            other => panic!("{other:?}"),
        }
    }
    begun.sort_unstable();
    lost.sort_unstable();
    assert_eq!((&begun[..], &lost[..]), (&[0, 2, 5][..], &[1, 3, 4, 6][..]));
}

#[test]
fn end_of_step_is_reported_and_its_agent_keeps_routing() {
    let cluster = Cluster::start(4, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(4, 2));
    let pids = launcher.begun(4);
    launcher.send_text(1, "exit 3");
    assert_eq!(
        launcher.lost(),
        (vec![1], "its step exited with code 3".into(), true)
    );
    launcher.send_text(2, "die");
    assert_eq!(
        launcher.lost(),
        (vec![2], "its step was ended by signal 9".into(), true)
    );
    gone(&pids[1..3]);
    // Behind node 1.
    launcher.send_text(3, "send 0 x");
    assert_eq!(launcher.next_text(), (0, "got 3 x".into()));
    launcher.send_text(0, "exit 0");
    assert_eq!(
        launcher.lost(),
        (vec![0], "its step exited with code 0".into(), true)
    );
    drop(launcher);
    gone(&pids);
    cluster.agents.iter().for_each(|agent| agent.idle());
}

#[test]
fn step_of_other_version_is_named_with_both_versions() {
    let cluster = Cluster::start(2, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    launcher.send_text(1, "other-version 9");
    let (lost, reason, step) = launcher.lost();
    assert_eq!((lost, step), (vec![1], true));
    for version in [9, VERSION] {
        assert!(reason.contains(&format!("version {version}")), "{reason}");
    }
    drop(launcher);
    gone(&pids);
}

#[test]
fn messages_of_step_arrive_before_report_of_its_end() {
    let cluster = Cluster::start(2, &[]);
    for node in [0, 1] {
        let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
        launcher.begun(2);
        launcher.send_text(node, "say-and-exit now");
        for count in 0..100 {
            assert_eq!(launcher.next_text(), (node, format!("last {count}")));
        }
        assert_eq!(launcher.lost().0, [node]);
    }
}

#[test]
fn step_that_closes_its_link_and_stays_is_killed() {
    let cluster = Cluster::start(1, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.send_text(0, "close");
    assert_eq!(
        launcher.lost(),
        (vec![0], "its step was ended by signal 9".into(), true)
    );
    gone(&pids);
}

#[test]
fn end_of_launcher_ends_whole_launch() {
    let cluster = Cluster::start(7, &[]);
    for entry in [0, 4] {
        let mut launcher = Launcher::open(&cluster.agents[entry], cluster.spread(7, 2));
        let pids = launcher.begun(7);
        drop(launcher);
        gone(&pids);
        cluster.agents.iter().for_each(|agent| agent.idle());
    }
    // Also one that goes before anything has begun.
    for _ in 0..5 {
        drop(Launcher::open(&cluster.agents[0], cluster.spread(7, 2)));
    }
    cluster.agents.iter().for_each(|agent| agent.idle());
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(7, 2));
    launcher.begun(7);
}

#[test]
fn restarted_agent_takes_next_launch() {
    let mut cluster = Cluster::start(2, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    drop(launcher);
    gone(&pids);
    // The connection between them is kept for a while; it is not used when it is none any more.
    for _ in 0..3 {
        cluster.restart(1);
        let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
        launcher.begun(2);
    }
}

#[test]
fn connection_is_shared_and_kept_for_next_launch() {
    let cluster = Cluster::start(2, &[]);
    let connections = || {
        let own = format!("/proc/{}/fd", cluster.agents[0].pid());
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", cluster.agents[0].pid()));
        let table = table.unwrap();
        // Established ones by inode, of which this agent has a descriptor.
        let inodes: Vec<String> = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.get(3) == Some(&"01"))
            .map(|words| format!("socket:[{}]", words[9]))
            .collect();
        let held = std::fs::read_dir(own).unwrap().filter_map(|entry| {
            let target = std::fs::read_link(entry.unwrap().path()).ok()?;
            let target = target.to_str()?.to_owned();
            inodes.contains(&target).then_some(target)
        });
        held.collect::<Vec<_>>()
    };
    let mut first = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    first.begun(2);
    let one = connections();
    assert_eq!(one.len(), 1);
    let mut second = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    second.begun(2);
    drop((first, second));
    cluster.agents.iter().for_each(|agent| agent.idle());
    let mut third = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    third.begun(2);
    assert_eq!(connections(), one);
}

#[test]
fn step_that_reads_slowly_is_alive() {
    let cluster = Cluster::start(1, &["--heartbeat", "1"]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    launcher.begun(1);
    launcher.send_text(0, "slow");
    // The step needs some 6 s for them, three times the silence for which it is killed. The agent's probe comes after them.
    let text = format!("ignore {}", "x".repeat(200_000));
    for _ in 0..20 {
        launcher.send_text(0, &text);
    }
    launcher.send_text(0, "hello");
    assert_eq!(launcher.next_text(), (0, "heard hello".to_owned()));
}

#[test]
fn stopped_step_is_killed_and_named_after_two_heartbeats() {
    let cluster = Cluster::start(1, &["--heartbeat", "1"]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.send_text(0, "stop");
    let (lost, reason, step) = launcher.lost();
    let words = format!(
        "its step (pid {}) did not answer within 2 s and was killed",
        pids[0]
    );
    assert!(reason.contains(&words), "{reason}");
    assert_eq!((&lost[..], step), (&[0][..], true), "{reason}");
    gone(&pids);
}
