//! The agents themselves: how they start, refuse and stop.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Cluster, is_helper};
use crate::common::{Output, eventually, mpi, program};
use wireup_core::job::hosts::PORT;

#[test]
fn idle_agent_stops_at_once_without_leftovers() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT] {
        cluster.agent(1).signal(signal);
        assert!(cluster.agent_ended(1).success());
        assert!(cluster.host(1).processes().is_empty());
        let files = cluster.host(1).files();
        assert_eq!(files, [Path::new("/run/wireup")]);
        cluster.start_agent(1);
    }
}

#[test]
fn agent_replaces_killed_agent_but_not_running_one() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    cluster.kill_agent(0);
    cluster.start_agent(0);
    let second = cluster.agent_command(0).output().unwrap();
    let stderr = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success(), "{stderr}");
    assert!(stderr.contains("perhaps another agent"), "{stderr}");
}

#[test]
fn strangers_are_refused_and_agent_survives() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let address = SocketAddr::new(cluster.host(1).address(), PORT);
    for words in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 999],
    ] {
        let stranger = cluster.host(0).on_network(|| TcpStream::connect(address));
        let mut stranger = stranger.unwrap().unwrap();
        let known = cluster.log(1).len();
        stranger.write_all(words).unwrap();
        eventually("a line in the log", || {
            let log = cluster.log(1);
            log[known..]
                .contains("refused a connection from 10.99.0.1:")
                .then_some(())
        });
    }
    cluster.agent(1);
}

#[test]
fn ps_shows_status_of_nodes_and_reason_for_missing_ones() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    cluster.kill_agent(2);
    let hosts = cluster.names(3);
    let wireup = cluster.wireup().to_str().unwrap();
    let command = [wireup, "ps", "--nodes", "--hosts", &hosts];
    let outcome = cluster.command(0, command).run().expect(1);
    let table = outcome.out();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    for (line, host) in lines[1..].iter().zip(cluster.lab().hosts()) {
        assert!(line.starts_with(host.name()), "{table}");
    }
    for (line, host) in lines[1..3].iter().zip(cluster.lab().hosts()) {
        // The one at which it was reached: names have both here.
        let advertised =
            [host.ipv4().into(), host.ipv6().into()].map(|ip| SocketAddr::new(ip, PORT));
        let reached = |at: &SocketAddr| line.contains(&format!(" {at} "));
        assert!(advertised.iter().any(reached), "{table}");
        assert!(line.ends_with("ready"), "{table}");
        assert!(line.contains(" pmi1,pmi2,pmix="), "{table}");
    }
    assert!(lines[3].contains("Connection refused"), "{table}");

    let own = [wireup, "ps", "--nodes", "--json"];
    let outcome = cluster.command(1, own).run().expect(0);
    let nodes: serde_json::Value = serde_json::from_str(&outcome.out()).unwrap();
    assert_eq!(nodes[0]["name"], cluster.host(1).name());
    assert_eq!(nodes[0]["problem"], serde_json::Value::Null);
    let interfaces = &nodes[0]["capabilities"]["interfaces"];
    assert_eq!(*interfaces, serde_json::json!(["pmi1", "pmi2", "pmix"]));
    cluster.start_agent(2);
}

#[test]
fn stopping_agent_finishes_its_launch_and_refuses_others() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let both = ["--hosts", "node01:1,node02:1", "-n", "2"];
    let wait = ["sh", "-c", "echo up; read line; true"];
    let running = cluster.run(0, both).more(wait).stdin_held().start();
    running.wait_for_many(Output::Stdout, "up", 2);
    cluster.agent(1).signal(Signal::TERM);
    eventually("it knows", || {
        cluster
            .log(1)
            .contains("accepts no new launch")
            .then_some(())
    });
    let outcome = cluster.run(0, both).more(["true"]).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["node02", "draining"]);
    cluster.agent(1);
    running.finish().expect_quiet_success();
    assert!(cluster.agent_ended(1).success());
}

#[test]
fn steps_come_from_replaceable_helper() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let helper = || {
        let mut all = cluster.host(1).processes().into_iter();
        all.find(is_helper)
    };
    let both = ["--hosts", "node01:1,node02:1", "-n", "2"];
    let wait = ["sh", "-c", "echo up; read line; true"];
    for signal in [Signal::KILL, Signal::STOP] {
        let running = cluster.run(0, both).more(wait).stdin_held().start();
        running.wait_for_many(Output::Stdout, "up", 2);
        let lost = helper().expect("an agent has one");
        let agent = cluster.agent(1).pid;
        let steps = cluster.host(1).processes().into_iter();
        let mut steps = steps.filter(|process| process.name == "wireup-step");
        assert_eq!(steps.next().unwrap().parent, agent);
        lost.signal(signal);
        // Neither the launch that runs nor the next one, which finds it lost, is harmed.
        let next = || cluster.run(0, both).more(["uname", "-n"]).run();
        for _ in 0..2 {
            let outcome = next().expect_quiet_success();
            assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
        }
        running.finish().expect_quiet_success();
        let replaced = helper().expect("it is replaced");
        assert_ne!(replaced.pid, lost.pid);
        assert!(cluster.log(1).contains("replacing the privileged helper"));
    }
}

#[test]
fn agent_with_certificate_of_other_authority_is_refused() {
    let (Some(cluster), Some(other)) = (Cluster::new(3), Cluster::new(2)) else {
        return;
    };
    cluster.kill_agent(1);
    for file in ["ca.pem", "cert.pem", "key.pem"] {
        let [from, to] = [&other, &cluster].map(|cluster| cluster.certificates(1).join(file));
        fs::copy(from, to).unwrap();
    }
    cluster.start_agent(1);
    let all = ["--hosts", "node01:1,node02:1,node03:1", "-n", "3", "true"];
    let outcome = cluster.run(0, all).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["node02", "certificate"]);
    // Nor does it begin something with the others.
    let outcome = cluster.run(1, all).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    for host in [0, 2] {
        assert!(!cluster.log(host).contains("brought by node02"));
    }
    let rest = ["--hosts", "node01:1,node03:1", "-n", "2", "true"];
    cluster.run(0, rest).run().expect_quiet_success();
}

#[test]
fn agents_reach_each_other_over_ipv6_and_by_address() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let [one, two] = [0, 1].map(|host| cluster.host(host));
    for [first, second] in [
        [one.ipv6().to_string(), two.ipv6().to_string()].map(|address| format!("[{address}]")),
        [one.ipv4().to_string(), two.ipv4().to_string()],
    ] {
        let hosts = format!("node01:1@{first},node02:1@{second}");
        let run = cluster.run(0, ["--hosts", &hosts, "-n", "2", "uname", "-n"]);
        let outcome = run.run().expect_quiet_success();
        assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
    }
}

#[test]
fn agents_with_only_loopback_serve_launch_over_both_families() {
    let (Some(cluster), Some(pmi)) = (Cluster::new(2), program("pmi_wireup")) else {
        return;
    };
    // Two agents of one machine whose network is `lo` alone.
    let script = "ip link set lo up; cd $(dirname $1)
        serve() { \"$wireup\" agent --tls $1 --listen $2 --socket $PWD/$3 2>$3.log & }
        serve $1 127.0.0.1:7001 first; first=$!
        serve $2 '[::1]:7002' second; second=$!
        timeout 30 sh -c 'until [ -S first ] && [ -S second ]; do sleep 0.05; done'
        shift 2
        \"$wireup\" run --agent $PWD/first --oversubscribe -n 4 \
            --hosts 'node01:2@127.0.0.1:7001,node02:2@[::1]:7002' \"$@\"; code=$?
        kill $first $second; wait $first && wait $second && exit $code";
    let certificates = [0, 1].map(|host| cluster.certificates(host));
    let of_mpi = |name| Some(("allreduce", mpi(name)?.program("allreduce")));
    let programs = [
        Some(("pmi_wireup", pmi)),
        of_mpi("mpich5"),
        of_mpi("openmpi5"),
    ];
    for (word, program) in programs.into_iter().flatten() {
        let run = cluster.command(0, ["unshare", "-n", "sh", "-c", script, "sh"]);
        let run = run.more(&certificates).more([program]);
        let run = run.env("wireup", cluster.wireup().to_str().unwrap());
        run.run().expect_success().by_rank(word, 4);
    }
}

#[test]
fn agent_refuses_configuration_writable_by_others() {
    let Some(cluster) = Cluster::builder(1).without_agents().start() else {
        return;
    };
    let file = cluster.dir().join("agent.toml");
    fs::write(&file, "log = \"info\"\n").unwrap();
    for (owner, mode, reason) in [
        (
            0,
            0o666,
            "every user may write to it; check its contents, then use chmod o-w",
        ),
        (
            4711,
            0o644,
            "it belongs to user id 4711, not to root or user id 0",
        ),
    ] {
        chown(&file, Some(owner), None).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let wireup = cluster.wireup().to_str().unwrap();
        let words = [wireup, "agent", "--config", file.to_str().unwrap()];
        let outcome = cluster.command(0, words).run().expect(125);
        outcome.expect_one_line(&[file.to_str().unwrap(), reason]);
    }
}
