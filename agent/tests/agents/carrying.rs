//! Launches that go well.

use std::process::Command;
use std::time::{Duration, Instant};

use wireup_test_support::skip;

use super::cluster::Cluster;
use super::launcher::{Launcher, LauncherEvent, gone, nodes};
use wireup_core::link::agent_protocol::{AgentRequest, VERSION};
use wireup_core::link::frame::FrameAddress;

#[test]
fn launch_on_one_node_leaves_nothing() {
    let cluster = Cluster::start(1, &[]);
    let agent = &cluster.agents[0];
    let mut launcher = Launcher::open(agent, cluster.spread(1, 2));
    let pids = launcher.begun(1);
    launcher.send_text(0, "hello");
    assert_eq!(launcher.next_text(), (0, "heard hello".into()));
    // The agent may have many files open, its users' programs as many as always.
    let soft = |pid: u32| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let numbers: Vec<&str> = line.unwrap().split_whitespace().skip(3).collect();
        (numbers[0].to_owned(), numbers[1].to_owned())
    };
    let (agents, own) = (soft(agent.pid()), soft(std::process::id()));
    assert_eq!(agents.0, own.1);
    assert_eq!(soft(pids[0]), own);
    drop(launcher);
    gone(&pids);
    agent.idle();
    agent.logged(&["ended after", "the launcher has ended"]);
}

#[test]
fn steps_reach_each_other_and_launcher_on_any_host() {
    let cluster = Cluster::start(8, &[]);
    // At the root, at a leaf of the tree, and at an agent that is no node of the launch.
    for entry in [0, 6, 7] {
        let mut launcher = Launcher::open(&cluster.agents[entry], cluster.spread(7, 2));
        let pids = launcher.begun(7);
        launcher.reaches(&[(0, 6), (6, 0), (5, 3), (3, 4), (1, 1), (4, 1)], 7);
        // The frame goes to every node but the sender.
        launcher.send_text(4, "send every one");
        let mut texts: Vec<_> = (0..6).map(|_| launcher.next_text()).collect();
        texts.sort();
        let others = (0..7).filter(|n| *n != 4);
        let all: Vec<_> = others.map(|n| (n, "got 4 one".to_owned())).collect();
        assert_eq!(texts, all);
        drop(launcher);
        gone(&pids);
        cluster.agents.iter().for_each(|agent| agent.idle());
    }
}

#[test]
fn forty_agents_form_tree() {
    let cluster = Cluster::start(40, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(40, 3));
    let pids = launcher.begun(40);
    for (from, to) in [(39, 38), (14, 39), (0, 22), (27, 0)] {
        launcher.send_text(from, &format!("send {to} x"));
        assert_eq!(launcher.next_text(), (to, format!("got {from} x")));
    }
    drop(launcher);
    gone(&pids);
    cluster.agents.iter().for_each(|agent| agent.idle());
}

#[test]
fn much_data_passes_tree_completely_in_both_directions() {
    let cluster = Cluster::start(4, &[]);
    let mut launcher = Launcher::connect(&cluster.agents[0]);
    // Too long for one frame or one gRPC message.
    let description = vec![7; 9_000_000];
    launcher.ask(&AgentRequest::Open {
        version: VERSION,
        launch: "large".into(),
        scheduled: String::new(),
        spread: cluster.spread(4, 2),
        description,
    });
    for _ in 0..4 {
        let (node, text) = launcher.next_text();
        assert!(
            text.starts_with(&format!("begun {node} 4 9000000 ")),
            "{text}"
        );
    }
    // The frames go from a leaf over two agents to another node, which reports to the launcher.
    launcher.send_text(3, "flood 2 400");
    for _ in 0..400 {
        assert_eq!(launcher.next_text(), (2, "got 3 262144 bytes".into()));
    }
}

/// Prints what a message of them costs the first agent, which gets them from four others: with more messages
/// (`WIREUP_BURST`), a number of docs/scale.md.
#[test]
fn bursts_of_short_messages_arrive_complete_and_in_order() {
    let number = std::env::var("WIREUP_BURST").ok();
    let count: u32 = number.map_or(2_000, |number| number.parse().unwrap());
    let cluster = Cluster::start(5, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(5, 4));
    launcher.begun(5);
    let (begun, used) = (Instant::now(), processor_time(cluster.agents[0].pid()));
    for node in 1..5 {
        launcher.send_text(node, &format!("burst {count} 400"));
    }
    let mut next = [0; 5];
    for _ in 0..4 * count {
        let (node, text) = launcher.next_text();
        let (number, _) = text.split_once(' ').unwrap();
        assert_eq!((number.parse(), text.len()), (Ok(next[node as usize]), 400));
        next[node as usize] += 1;
    }
    assert_eq!(next, [0, count, count, count, count]);
    let used = processor_time(cluster.agents[0].pid()) - used;
    let each = |time: Duration| time / (4 * count);
    println!(
        "a message of a burst takes {:?} of the first agent's processors, and {:?} until it is there",
        each(used),
        each(begun.elapsed())
    );
}

/// Returns the processor time of a process and its children.
fn processor_time(pid: u32) -> Duration {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let children = read(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let ticks = |pid: u32| -> u64 {
        let stat = read(format!("/proc/{pid}/stat"));
        let behind_name = stat.rsplit(')').next().unwrap();
        let fields = behind_name.split_whitespace().skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    };
    let all: u64 = children.chain([pid]).map(ticks).sum();
    // Of 10 ms each.
    Duration::from_millis(10 * all)
}

#[test]
fn concurrent_launches_are_isolated() {
    let cluster = Cluster::start(3, &[]);
    let mut first = Launcher::open(&cluster.agents[0], cluster.spread(3, 2));
    let mut second = Launcher::open(&cluster.agents[1], cluster.spread(3, 2));
    let (pids, others) = (first.begun(3), second.begun(3));
    first.send(FrameAddress::EveryNode, "one");
    second.send(FrameAddress::EveryNode, "two");
    for (launcher, text) in [(&mut first, "heard one"), (&mut second, "heard two")] {
        for _ in 0..3 {
            assert_eq!(launcher.next_text().1, text);
        }
    }
    drop(first);
    gone(&pids);
    second.send_text(2, "still here");
    assert_eq!(second.next_text(), (2, "heard still here".into()));
    drop(second);
    gone(&others);
}

#[test]
fn stopping_agent_refuses_launches_and_exits_with_last() {
    use rustix::process::Signal;
    let mut cluster = Cluster::start(3, &[]);
    let mut running = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = running.begun(2);
    cluster.agents[1].signal(Signal::TERM);
    cluster.agents[1].logged(&["accepts no new launch and ends with the last of 1"]);
    let members = cluster.spread(3, 2).nodes;
    let status = nodes(&cluster.agents[0], members);
    let draining: Vec<_> = status
        .iter()
        .map(|node| (node.draining, node.launches))
        .collect();
    assert_eq!(draining, [(false, 1), (true, 1), (false, 0)]);

    // Neither from its own node's users nor from other agents.
    let mut launcher = Launcher::open(&cluster.agents[1], cluster.spread(2, 2));
    let reason = launcher.refused();
    assert!(reason.contains("n1: the agent is draining"), "{reason}");
    let mut launcher = Launcher::open(&cluster.agents[2], cluster.spread(2, 2));
    let begun = |event: &LauncherEvent| matches!(event, LauncherEvent::Step(0, text) if text.starts_with("begun"));
    let mut events = [launcher.next_event(), launcher.next_event()];
    events.sort_by_key(|event| !begun(event));
    assert!(begun(&events[0]), "{events:?}");
    let loss = format!("{:?}", events[1]);
    assert!(
        loss.contains("the agent of n1 refused the request: the agent is draining"),
        "{loss}"
    );

    running.send_text(1, "go on");
    assert_eq!(running.next_text(), (1, "heard go on".into()));
    drop(running);
    gone(&pids);
    assert_eq!(cluster.agents[1].ended(), Some(0));
    assert!(!cluster.agents[1].socket.exists());
}

#[test]
fn second_stop_ends_agent_and_its_steps_at_once() {
    use rustix::process::Signal;
    let mut cluster = Cluster::start(2, &[]);
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    cluster.agents[1].signal(Signal::TERM);
    cluster.agents[1].logged(&["accepts no new launch"]);
    cluster.agents[1].signal(Signal::TERM);
    assert_eq!(cluster.agents[1].ended(), Some(0));
    gone(&pids[1..]);
    let (lost, reason, step) = launcher.lost();
    assert_eq!((&lost[..], step), (&[1][..], false), "{reason}");
}

#[test]
fn status_of_nodes_is_queried() {
    let cluster = Cluster::start(2, &["--heartbeat", "2"]);
    let mut members = cluster.spread(2, 2).nodes;
    // An address where no process listens, and the address of another node.
    members.push(wireup_core::link::agent_protocol::NodeAddress {
        name: "n9".into(),
        address: "127.0.0.1:1".into(),
    });
    members.push(wireup_core::link::agent_protocol::NodeAddress {
        name: "n8".into(),
        address: members[1].address.clone(),
    });
    let status = nodes(&cluster.agents[0], members.clone());
    for (status, member) in status.iter().zip(&members).take(2) {
        assert_eq!(
            (&status.name, &status.advertised, &status.queried_address),
            (&member.name, &member.address, &member.address)
        );
        assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
        assert_eq!((status.launches, status.problem.as_deref()), (0, None));
    }
    let problem = |n: usize| status[n].problem.clone().unwrap();
    assert!(problem(2).contains("Connection refused"), "{}", problem(2));
    assert!(
        problem(3).contains("its certificate is not for n8, but for n1"),
        "{}",
        problem(3)
    );
    // A request that names no agent gets the name of this one.
    let own = nodes(&cluster.agents[1], Vec::new());
    assert_eq!((own.len(), own[0].name.as_str()), (1, "n1"));
}

#[test]
fn agent_listening_everywhere_advertises_requested_address() {
    const NETWORK: &str = "WIREUP_TEST_NETWORK";
    if std::env::var_os(NETWORK).is_none() {
        let name = "carrying::agent_listening_everywhere_advertises_requested_address";
        // A bridge that exists everywhere comes first, and there is no default route.
        let script = "ip link set lo up && ip link add docker0 type bridge &&
            ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up &&
            ip link add eth0 type veth peer name eth1 && ip addr add 10.7.0.1/24 dev eth0 &&
            ip addr add fd07::1/64 dev eth0 nodad && ip link set eth0 up && ip link set eth1 up || exit 77
            exec \"$0\" --exact \"$1\"";
        let output = Command::new("unshare")
            .args(["-n", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(NETWORK, "")
            .output();
        return match output {
            Ok(output) if output.status.success() => {
                assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
            }
            Ok(output) if output.status.code() == Some(101) => panic!("{output:?}"),
            other => skip(&format!("no network of its own: {other:?}")),
        };
    }
    let cluster = Cluster::start(1, &[]);
    for (listen, host, advertises) in [
        ("0.0.0.0:0", "10.7.0.1", "10.7.0.1"),
        ("[::]:0", "10.7.0.1", "10.7.0.1"),
        ("[::]:0", "[fd07::1]", "[fd07::1]"),
        // That leads others to themselves.
        ("[::]:0", "127.0.0.1", "172.17.0.1"),
    ] {
        for requested in [None, Some("elsewhere:7")] {
            let mut options = Vec::new();
            options.extend(
                requested
                    .map(|requested| ["--advertise", requested])
                    .into_iter()
                    .flatten(),
            );
            let agent = cluster.start_at(listen, &options);
            let port = agent.address.rsplit_once(':').unwrap().1;
            let mut member = agent.member();
            member.address = format!("{host}:{port}");
            let status = nodes(&cluster.agents[0], vec![member]);
            assert_eq!(status[0].problem, None);
            let here = format!("{advertises}:{port}");
            assert_eq!(status[0].advertised, requested.unwrap_or(&here));
        }
    }
}

#[test]
fn service_manager_is_notified_of_start_and_stop() {
    use std::os::unix::net::UnixDatagram;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(super::cluster::DEADLINE))
        .unwrap();
    let next_notice = || {
        let mut bytes = [0; 64];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let mut cluster = Cluster::start_under(1, &path);
    assert_eq!(next_notice(), "READY=1\n");
    cluster.agents[0].signal(rustix::process::Signal::TERM);
    assert_eq!(next_notice(), "STOPPING=1\n");
    assert_eq!(cluster.agents[0].ended(), Some(0));
}
