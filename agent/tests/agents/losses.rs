//! Launches in which something ends that should not.

use rustix::process::Signal;

use super::cluster::Cluster;
use super::launcher::{Heard, Launcher, gone};
use wireup_core::link::agent_protocol::VERSION;
use wireup_core::link::frame::FrameAddress;

#[test]
fn a_killed_agent_is_reported_once_with_all_behind_it_and_the_steps_there_end() {
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
    // The others go on, without another word about the lost.
    launcher.send(FrameAddress::EveryNode, "hello");
    let mut heard: Vec<_> = (0..4).map(|_| launcher.said().0).collect();
    heard.sort_unstable();
    assert_eq!(heard, [0, 2, 5, 6]);
    launcher.tell(1, "nobody");
    launcher.tell(2, "somebody");
    assert_eq!(launcher.said(), (2, "heard somebody".into()));
}

#[test]
fn the_end_of_the_root_is_the_end_for_an_entry_elsewhere() {
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
fn a_frozen_agent_is_noticed_by_its_silence_and_ends_its_part_when_it_wakes() {
    let cluster = Cluster::start(3, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(3, 2));
    let pids = launcher.begun(3);
    cluster.agents[2].signal(Signal::STOP);
    let (lost, reason, step) = launcher.lost();
    assert_eq!((&lost[..], step), (&[2][..], false), "{reason}");
    cluster.agents[2].signal(Signal::CONT);
    gone(&pids[2..]);
    cluster.agents[2].idle();
    launcher.tell(1, "go on");
    assert_eq!(launcher.said(), (1, "heard go on".into()));
}

#[test]
fn a_frozen_parent_is_noticed_by_the_child() {
    let cluster = Cluster::start(2, &["--heartbeat", "1"]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    cluster.agents[0].signal(Signal::STOP);
    gone(&pids[1..]);
    cluster.agents[1].idle();
    cluster.agents[0].signal(Signal::CONT);
    assert_eq!(launcher.lost().0, [1]);
}

#[test]
fn agents_that_cannot_be_reached_are_each_reported_once_with_what_is_behind_them() {
    let cluster = Cluster::start(7, &[]);
    let mut spread = cluster.spread(7, 2);
    // No process listens; another program answers.
    spread.nodes[1].address = "127.0.0.1:1".into();
    spread.nodes[6].address = cluster.agents[5].address.clone();
    let mut launcher = Launcher::open(&cluster.agents[0], spread);
    let (mut begun, mut lost) = (Vec::new(), Vec::new());
    while begun.len() + lost.len() < 7 {
        match launcher.hear() {
            Heard::Said(node, _) => begun.push(node),
            Heard::Agent(wireup_core::link::agent_protocol::AgentReport::Unreachable {
                nodes,
                reason,
                step: false,
            }) => match nodes[0].0 {
                1 => {
                    assert!(
                        reason.contains("n1 at 127.0.0.1:1 cannot be reached"),
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
fn the_end_of_a_step_is_told_with_how_it_ended_and_its_agent_goes_on_carrying() {
    let cluster = Cluster::start(4, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(4, 2));
    let pids = launcher.begun(4);
    launcher.tell(1, "exit 3");
    assert_eq!(
        launcher.lost(),
        (vec![1], "its step exited with code 3".into(), true)
    );
    launcher.tell(2, "die");
    assert_eq!(
        launcher.lost(),
        (vec![2], "its step was ended by signal 9".into(), true)
    );
    gone(&pids[1..3]);
    // Behind node 1.
    launcher.tell(3, "send 0 x");
    assert_eq!(launcher.said(), (0, "got 3 x".into()));
    launcher.tell(0, "exit 0");
    assert_eq!(
        launcher.lost(),
        (vec![0], "its step exited with code 0".into(), true)
    );
    drop(launcher);
    gone(&pids);
    cluster.agents.iter().for_each(|agent| agent.idle());
}

#[test]
fn a_step_of_another_version_is_named_with_both_versions() {
    let cluster = Cluster::start(2, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    launcher.tell(1, "other-version 9");
    let (lost, reason, step) = launcher.lost();
    assert_eq!((lost, step), (vec![1], true));
    for version in [9, VERSION] {
        assert!(reason.contains(&format!("version {version}")), "{reason}");
    }
    drop(launcher);
    gone(&pids);
}

#[test]
fn everything_a_step_said_before_its_end_arrives_before_the_news_of_it() {
    let cluster = Cluster::start(2, &[]);
    for node in [0, 1] {
        let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
        launcher.begun(2);
        launcher.tell(node, "say-and-exit now");
        for count in 0..100 {
            assert_eq!(launcher.said(), (node, format!("last {count}")));
        }
        assert_eq!(launcher.lost().0, [node]);
    }
}

#[test]
fn a_step_that_closes_its_link_and_stays_is_killed() {
    let cluster = Cluster::start(1, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.tell(0, "close");
    assert_eq!(
        launcher.lost(),
        (vec![0], "its step was ended by signal 9".into(), true)
    );
    gone(&pids);
}

#[test]
fn a_launcher_that_is_gone_takes_the_whole_launch_with_it() {
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
fn an_agent_that_was_started_again_takes_the_next_launch() {
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
fn a_connection_is_shared_and_kept_for_the_next_launch() {
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
fn a_stopped_step_is_killed_and_named_after_twice_the_heartbeat() {
    let cluster = Cluster::start(1, &["--heartbeat", "1"]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.tell(0, "stop");
    let (lost, reason, step) = launcher.lost();
    let words = format!(
        "its step (pid {}) did not answer within 2 s and was killed",
        pids[0]
    );
    assert!(reason.contains(&words), "{reason}");
    assert_eq!((&lost[..], step), (&[0][..], true), "{reason}");
    gone(&pids);
}
