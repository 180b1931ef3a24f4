//! Several users of one cluster: each is himself everywhere, and none meets another.

use crate::cluster::{ALICE, BOB, Cluster, GROUP};
use crate::common::{Output, Run, pmix};

/// On two hosts, a rank each.
const TWO: [&str; 4] = ["--hosts", "node01:1,node02:1", "-n", "2"];

/// Makes a run a user's, with all groups of the account.
pub(crate) fn of(user: u32, run: Run) -> Run {
    let user = user.to_string();
    run.under([
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &user,
        "--init-groups",
    ])
}

#[test]
fn ranks_run_as_launching_user_on_every_host() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = "echo $(uname -n) $(id -u) $(id -g) $(id -G) $(grep NoNewPrivs /proc/self/status) \
                  $(grep CapEff /proc/self/status); read line; true";
    let runs = [ALICE, BOB].map(|user| {
        let run = cluster.run(0, TWO).more(["sh", "-c", script]);
        of(user, run).stdin_held().start()
    });
    for running in &runs {
        running.wait_for_many(Output::Stdout, "CapEff:", 2);
    }
    // Both were there at once.
    for (user, running) in [ALICE, BOB].into_iter().zip(runs) {
        let outcome = running.finish().expect_quiet_success();
        let groups = match user {
            ALICE => format!("{ALICE} {GROUP}"),
            _ => user.to_string(),
        };
        let line = |host: &str| format!("{host} {user} {user} {groups} ");
        let lines = outcome.sorted_lines();
        assert_eq!(lines.len(), 2, "{outcome:?}");
        for (got, expected) in lines.iter().zip([line("node01"), line("node02")]) {
            assert!(got.starts_with(&expected), "{got:?}, not {expected:?}");
            assert!(got.ends_with("CapEff: 0000000000000000"), "{got:?}");
        }
    }
}

#[test]
fn launch_is_isolated_from_other_users() {
    let (Some(cluster), Some(pmix)) = (Cluster::new(2), pmix("pmix4")) else {
        return;
    };
    let client = cluster.copy(&pmix.dir.join("pmix_wireup"));
    let client = client.to_str().unwrap();
    let bobs = of(BOB, cluster.run(0, TWO).more([client, "-w"])).start();
    bobs.wait_for_many(Output::Stdout, "pmix_wireup rank=", 2);

    for host in [0, 1] {
        // No file that is not a directory opens to others.
        let find = "find /run /tmp /dev/shm -user bob ! -type d -readable 2>/dev/null; true";
        let found = of(ALICE, cluster.command(host, ["sh", "-c", find])).start();
        let found = found.finish();
        assert_eq!(found.out(), "", "{found:?}");
        let ps = [cluster.wireup().to_str().unwrap(), "ps", "--json"];
        let listing = of(ALICE, cluster.command(host, ps)).run();
        assert!(!listing.out().contains("pmix_wireup"), "{listing:?}");
    }

    // With all that a rank of Bob's was given, and in its place.
    let mut ranks = cluster.host(1).processes().into_iter();
    let rank = ranks.find(|process| process.name == "pmix_wireup").unwrap();
    let environ = std::fs::read(format!("/proc/{}/environ", rank.pid)).unwrap();
    let stolen = environ.split(|byte| *byte == 0).filter(|v| !v.is_empty());
    let mut thief = of(ALICE, cluster.command(1, [client]));
    for variable in stolen {
        let variable = std::str::from_utf8(variable).unwrap();
        let (name, value) = variable.split_once('=').unwrap();
        if !name.starts_with("WIREUP_TEST") {
            thief = thief.env(name, value);
        }
    }
    let outcome = thief.run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(!outcome.out().contains("rank="), "{outcome:?}");
    let noticed = format!("a process of user {ALICE} connected from ");
    let err = bobs.wait_for(Output::Stderr, &noticed);
    assert!(err.contains(" and was refused"), "{err}");

    bobs.signal(rustix::process::Signal::TERM);
    bobs.finish().expect(143);
}

#[test]
fn job_cannot_be_signalled_by_other_users_on_any_host() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = "trap 'echo heard' USR1 TERM; echo up; while :; do sleep 0.1; done";
    let bobs = of(BOB, cluster.run(0, TWO).more(["sh", "-c", script])).start();
    bobs.wait_for_many(Output::Stdout, "up", 2);
    let wireup = cluster.wireup().to_str().unwrap();
    for host in [0, 1] {
        let ps = cluster.command(host, [wireup, "ps", "--json"]);
        let jobs = of(BOB, ps).run().expect_quiet_success();
        let jobs: serde_json::Value = serde_json::from_str(&jobs.out()).unwrap();
        let name = jobs[0]["job"].as_str().unwrap();
        // What leads it here: the launcher, or the step.
        let leader = jobs[0]["part"]["nodes"][0]["pid"].to_string();
        for job in [name, &leader] {
            for signal in ["TERM", "USR1"] {
                let kill = cluster.command(host, [wireup, "kill", "-s", signal, job]);
                let outcome = of(ALICE, kill).run();
                assert_ne!(outcome.code, 0, "{outcome:?}");
                outcome.expect_one_line(&[job]);
            }
        }
        let all = cluster.command(host, [wireup, "kill", "--all"]);
        let outcome = of(ALICE, all).run().expect(0);
        outcome.expect_one_line(&["no jobs to signal"]);
    }
    // Bob's own signal comes through, and is the first.
    let kill = [wireup, "kill", "-s", "USR1", "--all"];
    of(BOB, cluster.command(0, kill)).run().expect(0);
    let output = bobs.wait_for_many(Output::Stdout, "heard", 2);
    assert_eq!(output.matches("heard").count(), 2, "{output}");
    bobs.signal(rustix::process::Signal::KILL);
    bobs.finish().expect(137);
}

#[test]
fn agent_of_ordinary_user_serves_only_that_user() {
    let Some(cluster) = Cluster::builder(2).agents_of(ALICE).start() else {
        return;
    };
    let run = cluster.run(0, TWO).more(["id", "-u"]);
    let outcome = of(ALICE, run).run().expect_quiet_success();
    assert_eq!(
        outcome.sorted_lines(),
        [ALICE.to_string(), ALICE.to_string()]
    );
    let socket = format!("/tmp/wireup-{ALICE}/agent.sock");
    for user in [BOB, 0] {
        let run = cluster
            .run(0, ["--agent", &socket])
            .more(TWO)
            .more(["id", "-u"]);
        let outcome = of(user, run).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert_eq!(outcome.out(), "");
        outcome.expect_one_line(&["agent"]);
    }
}

#[test]
fn user_without_account_is_refused_by_root_agent() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let run = cluster.run(0, TWO).more(["true"]);
    let run = run.under([
        "setpriv",
        "--reuid",
        "54999",
        "--regid",
        "54999",
        "--clear-groups",
    ]);
    let outcome = run.run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    outcome.expect_one_line(&["54999"]);
}
