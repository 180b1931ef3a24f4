//! Agents that root starts and that give up its rights: a helper keeps them.

use std::fs;

use rustix::process::Signal;

use crate::cluster::{AGENT, ALICE, BOB, Cluster, SEPARATED, is_helper};
use crate::common::{Output, eventually, field, pmix, program};
use crate::users::of;

/// On two hosts, a rank each.
const TWO: [&str; 4] = ["--hosts", "node01:1,node02:1", "-n", "2"];

/// With what other nodes bring of root's.
const ROOTS_TOO: [&str; 3] = ["--user", "agent", "--root-launches"];

/// A line of `/proc/PID/status`.
fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap().split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn unprivileged_agent_starts_launches_of_users_on_all_hosts() {
    let Some(cluster) = Cluster::builder(3).options(&SEPARATED).start() else {
        return;
    };
    for host in 0..3 {
        let agent = cluster.agent(host).pid;
        assert_eq!(
            status(agent, "Uid:"),
            [AGENT; 4].map(|id| id.to_string()).join(" ")
        );
        assert_eq!(
            status(agent, "Gid:"),
            [AGENT; 4].map(|id| id.to_string()).join(" ")
        );
        assert_eq!(status(agent, "Groups:"), AGENT.to_string());
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(status(agent, set), "0000000000000000");
        }
        assert_eq!(status(agent, "NoNewPrivs:"), "1");
        // No other process of its user may inspect it.
        let own = fs::metadata(format!("/proc/{agent}/fd")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&own), 0);
    }
    let hosts = [
        "--hosts",
        "node01:2,node02:2,node03:2",
        "-n",
        "6",
        "--oversubscribe",
    ];
    let script = "echo $(uname -n) $(id -u) $(id -G) $(grep NoNewPrivs /proc/self/status)";
    for user in [ALICE, BOB] {
        let run = cluster.run(0, hosts).more(["sh", "-c", script]);
        let lines = of(user, run).run().expect_quiet_success().sorted_lines();
        assert_eq!(lines.len(), 6);
        let groups = match user {
            ALICE => "54321 54400",
            _ => "54322",
        };
        for line in lines {
            assert!(
                line.ends_with(&format!(" {user} {groups} NoNewPrivs: 0")),
                "{line}"
            );
        }
    }
    for name in ["pmi_wireup", "pmi2_wireup"] {
        let Some(program) = program(name) else {
            return;
        };
        let program = cluster.copy(&program);
        let run = cluster
            .run(0, hosts)
            .more([program.to_str().unwrap(), "64"]);
        let lines = of(ALICE, run).run().expect_quiet_success().by_rank(name, 6);
        assert!(
            lines.iter().all(|line| field(line, "gets").is_some()),
            "{lines:?}"
        );
    }
    let Some(pmix) = pmix("pmix5") else {
        return;
    };
    let client = cluster.copy(&pmix.dir.join("pmix_wireup"));
    let run = cluster.run(0, hosts).more(["--libpmix", pmix.path()]);
    let run = run.more([client.to_str().unwrap()]);
    of(BOB, run).run().expect(0).by_rank("pmix_wireup", 6);
}

#[test]
fn root_launches_locally_and_on_permitted_hosts() {
    let Some(cluster) = Cluster::builder(2).options(&SEPARATED).start() else {
        return;
    };
    let here = cluster.run(0, ["--hosts", "node01:2", "-n", "2", "id", "-u"]);
    assert_eq!(here.run().expect_quiet_success().sorted_lines(), ["0", "0"]);
    let outcome = cluster.run(0, TWO).more(["id", "-u"]).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.out(), "");
    outcome.expect_one_line(&["node02", "runuser -u USER", "--root-launches", "agent.toml"]);
    // Jobs of all users are listed by a launch of root.
    let wireup = cluster.wireup().to_str().unwrap();
    let ps = [wireup, "ps", "--all-users", "--hosts", "node01,node02"];
    let outcome = cluster.command(0, ps).run().expect(125);
    assert_eq!(outcome.out(), "");
    outcome.expect_one_line(&["node02", "--root-launches", "agent.toml"]);
    // Doctor runs as another user then: the one that called sudo, if any.
    let doctor = [wireup, "doctor", "--json", "--hosts", "node01,node02"];
    let alice = ALICE.to_string();
    for user in [65_534, ALICE] {
        let mut run = cluster.command(0, doctor);
        if user == ALICE {
            run = run.env("SUDO_UID", &alice).env("SUDO_GID", &alice);
        }
        let outcome = run.run();
        let words = format!("checked as user id {user}");
        assert!(outcome.err().contains(&words), "{outcome:?}");
        let report: serde_json::Value = serde_json::from_str(&outcome.out()).unwrap();
        for host in report["hosts"].as_array().unwrap() {
            assert_eq!(host["problem"], serde_json::Value::Null, "{outcome:?}");
        }
    }
    // Accounts of the system belong to no user.
    let run = cluster.run(0, ["--hosts", "node01:1", "-n", "1", "id", "-u"]);
    let outcome = of(2, run).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["user id 2", "UID_MIN"]);

    let allowed = Cluster::builder(2).options(&ROOTS_TOO).start().unwrap();
    let outcome = allowed.run(0, TWO).more(["id", "-u"]).run();
    assert_eq!(outcome.expect_quiet_success().sorted_lines(), ["0", "0"]);
    allowed.kill_agent(1);
    let ps = [
        allowed.wireup().to_str().unwrap(),
        "ps",
        "--all-users",
        "--hosts",
        "node01,node02",
    ];
    let outcome = allowed.command(0, ps).run().expect(1);
    outcome.expect_one_line(&["no jobs of host node02: "]);
    assert!(outcome.out().starts_with("HOST "), "{outcome:?}");
}

#[test]
fn agent_without_helper_ends_with_launches_and_is_replaced() {
    let Some(cluster) = Cluster::builder(2).options(&SEPARATED).start() else {
        return;
    };
    let run = cluster
        .run(0, TWO)
        .more(["sh", "-c", "echo up; exec sleep 1000"]);
    let run = of(ALICE, run).start();
    run.wait_for_many(Output::Stdout, "up", 2);
    let processes = cluster.host(1).processes();
    for process in processes.iter().filter(|process| is_helper(process)) {
        process.signal(Signal::KILL);
    }
    assert!(!cluster.agent_ended(1).success());
    let log = cluster.log(1);
    assert!(
        log.contains("its privileged helper (wireup steps)"),
        "{log}"
    );
    cluster.start_agent(1);
    let outcome = run.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.err().contains("node02"), "{outcome:?}");
    let run = cluster.run(0, TWO).more(["id", "-u"]);
    of(ALICE, run).run().expect_quiet_success();
}

#[test]
fn unprivileged_agent_loads_renewed_certificate() {
    let Some(cluster) = Cluster::builder(2).options(&SEPARATED).start() else {
        return;
    };
    let pki = cluster.certificates(1).parent().unwrap().to_owned();
    let renewed = std::process::Command::new(cluster.wireup())
        .arg("pki")
        .arg("--dir")
        .arg(pki)
        .args(["renew", "--name", cluster.host(1).name()])
        .output()
        .unwrap();
    assert!(renewed.status.success(), "{renewed:?}");
    cluster.agent(1).signal(Signal::HUP);
    eventually("a line in the log", || {
        cluster
            .log(1)
            .contains("was renewed; it is valid until")
            .then_some(())
    });
    let run = cluster.run(0, TWO).more(["id", "-u"]);
    of(ALICE, run).run().expect_quiet_success();
}

#[test]
fn revoked_certificate_excludes_node_from_launches() {
    for options in [&SEPARATED[..], &[]] {
        let Some(cluster) = Cluster::builder(3).options(options).start() else {
            return;
        };
        let through = of(ALICE, cluster.run(0, TWO).more(["sleep", "600"])).start();
        eventually("it runs on both", || {
            let begun = cluster.log(1).contains("begins as node 1");
            begun.then_some(())
        });
        let pki = cluster.certificates(1).parent().unwrap().to_owned();
        let revoked = std::process::Command::new(cluster.wireup())
            .args(["pki", "--dir"])
            .arg(&pki)
            .args(["revoke", "--name", cluster.host(1).name()])
            .output()
            .unwrap();
        assert!(revoked.status.success(), "{revoked:?}");
        for host in [0, 2] {
            let list = cluster.certificates(host).join("crl.pem");
            fs::copy(pki.join("crl.pem"), list).unwrap();
            cluster.agent(host).signal(Signal::HUP);
        }
        // The launch that goes through it ends, and no other can.
        let outcome = through.finish();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.err().contains("node02"), "{outcome:?}");
        let outcome = of(ALICE, cluster.run(0, TWO).more(["true"])).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.err().contains("revoked"), "{outcome:?}");
        // The agent is not trusted as a caller either.
        let outcome = of(ALICE, cluster.run(1, TWO).more(["true"])).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert!(cluster.log(0).contains("revoked"), "{}", cluster.log(0));
        let rest = ["--hosts", "node01,node03", "-n", "2"];
        let run = cluster.run(0, rest).more(["true"]);
        of(ALICE, run).run().expect_quiet_success();
    }
}

/// Number of launches that exceeds the agent's threads for waiting.
const STOPPED: usize = 10;

#[test]
fn user_who_stops_starting_processes_delays_no_others() {
    for options in [&SEPARATED[..], &[]] {
        let Some(cluster) = Cluster::builder(2).options(options).start() else {
            return;
        };
        let stopper = cluster.command(1, ["sh", "-c", "echo up; while :; do kill -STOP -1; done"]);
        let stopper = of(ALICE, stopper).start();
        stopper.wait_for(Output::Stdout, "up");
        let stopped: Vec<_> = (0..STOPPED)
            .map(|_| of(ALICE, cluster.run(0, TWO).more(["true"])).start())
            .collect();
        eventually("all are there", || {
            let begun = cluster.log(1).matches("begins as node 1").count();
            (begun == STOPPED).then_some(())
        });
        let run = cluster.run(0, TWO).more(["id", "-u"]);
        let outcome = of(BOB, run).run().expect_quiet_success();
        assert_eq!(outcome.sorted_lines(), [BOB.to_string(), BOB.to_string()]);
        stopper.signal(Signal::KILL);
        for launch in &stopped {
            launch.signal(Signal::KILL);
        }
        // What was stopped goes on to its end.
        for process in cluster.host(1).processes() {
            process.signal(Signal::CONT);
        }
        stopper.finish().expect(137);
        // Some may have been quicker than the loop.
        for launch in stopped {
            let code = launch.finish().code;
            assert!([0, 137].contains(&code), "{code}");
        }
    }
}
