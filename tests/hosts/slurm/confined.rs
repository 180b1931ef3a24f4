//! Ranks have the CPUs, the memory and the control groups of their job, and no others; they are bound within what Slurm has
//! bound the step to.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use crate::cluster::{ALICE, BOB};
use crate::common::{Outcome, Output, Running, field};
use crate::slurm_cluster::{Slurm, With};

/// Each rank's host, CPUs and groups.
const PLACE: &str = r#"
group() { grep ":$1:" /proc/self/cgroup | cut -d : -f 3; }
echo "host=$(hostname) cpus=$(awk '/Cpus_allowed_list/ { print $2 }' /proc/self/status) cpuset=$(group cpuset)" \
    "freezer=$(group freezer) memory=$(group memory)"
[ -z "$STAY" ] || exec sleep 1000
"#;

/// The CPUs of a job's ranks on each host; all groups must be those of a step of the user's.
fn cpus(lines: &str, user: u32) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for line in lines.lines().filter(|line| line.starts_with("host=")) {
        let of = |name: &str| field(line, name).unwrap_or_else(|| panic!("no {name}: {line}"));
        let start = format!("/slurm_{}/uid_{user}/job_", of("host"));
        for group in ["cpuset", "freezer", "memory"] {
            assert!(
                of(group).starts_with(&start) && of(group).contains("/step_0"),
                "{line}"
            );
        }
        let old = all.insert(of("host").to_owned(), of("cpus").to_owned());
        assert!(old.is_none_or(|old| old == of("cpus")), "{lines}");
    }
    all
}

#[test]
fn ranks_stay_in_limits_of_their_job() {
    // One cluster for both: the groups have the names of nodes.
    let Some(slurm) = Slurm::with(2, With::Groups) else {
        return;
    };
    jobs_of_two_users_share_nodes_and_no_cpus(&slurm);
    a_rank_that_takes_more_memory_than_its_job_has_is_killed(&slurm);
    // Slurm signals the agents alone.
    super::expect_signals(&slurm, "-N 2 -n 2 --mem=200");
    ranks_are_bound_within_the_cpus_of_their_job(&slurm);
    ranks_are_bound_within_the_binding_of_their_step(&slurm);
}

fn jobs_of_two_users_share_nodes_and_no_cpus(slurm: &Slurm) {
    let start = |user: u32| {
        let run = slurm.salloc_of(user, "-N 2 --ntasks-per-node=1 --mem=200");
        let running = run.env("STAY", "1").more(["sh", "-c", PLACE]).start();
        running.wait_for_many(Output::Stdout, "host=", 2);
        running
    };
    let (alices, bobs) = (start(ALICE), start(BOB));
    let look = |user: u32, running: &Running| {
        let lines = running.so_far(Output::Stdout);
        let found = cpus(&String::from_utf8_lossy(&lines), user);
        assert_eq!(found.len(), 2, "{found:?}");
        found
    };
    let (of_alice, of_bob) = (look(ALICE, &alices), look(BOB, &bobs));
    for (host, cpus) in &of_alice {
        assert_ne!(cpus, &of_bob[host], "both on {host}");
        assert!(cpus.parse::<u32>().is_ok(), "one CPU was asked for: {cpus}");
    }
    // Slurm ends one, and the other has its own.
    slurm.ask(&["scancel", "--user=alice"]);
    let outcome = alices.finish();
    outcome.expect_one_line(&[": cancelled"]);
    slurm.ask(&["scancel", "--user=bob"]);
    bobs.finish().expect_one_line(&[": cancelled"]);

    // All CPUs where all were asked for.
    let whole = slurm.salloc("-N 2 --exclusive --mem=200");
    let outcome = whole.more(["sh", "-c", PLACE]).run().expect(0);
    let whole = cpus(&outcome.out(), ALICE);
    assert_eq!(whole.len(), 2, "{outcome:?}");
    for cpus in whole.values() {
        assert!(cpus.parse::<u32>().is_err(), "only one: {outcome:?}");
    }
}

fn a_rank_that_takes_more_memory_than_its_job_has_is_killed(slurm: &Slurm) {
    let take = |mebibytes: u32| -> Outcome {
        let take = format!(
            "import os; os.environ['WIREUP_RANK'] == '1' and print(len(b'x' * ({mebibytes} << 20)))"
        );
        let run = slurm.salloc("-N 2 -n 2 --mem=300");
        run.more(["python3", "-c", &take]).run()
    };
    assert_eq!(take(100).expect(0).out(), format!("{}\n", 100 << 20));
    let outcome = take(600).expect(137);
    outcome.expect_one_line(&["rank 1", "node02", "killed by signal 9"]);
}

fn ranks_are_bound_within_the_cpus_of_their_job(slurm: &Slurm) {
    let salloc = |options: &[&str]| {
        let run = slurm.salloc("-N 2 --ntasks-per-node=1 --mem=200");
        run.more(options).more(["sh", "-c", PLACE]).run()
    };
    let outcome = salloc(&["--bind-to", "core"]).expect(0);
    let bound = cpus(&outcome.out(), ALICE);
    assert_eq!(bound.len(), 2, "{outcome:?}");
    for cpus in bound.values() {
        assert!(cpus.parse::<u32>().is_ok(), "one CPU was asked for: {cpus}");
    }
    let refused = salloc(&["--bind-to", "cpu-list:0-1"]).expect(125);
    refused.expect_one_line(&[
        "on all 2 hosts",
        "is not in the affinity mask or the control group",
    ]);
    assert_eq!(refused.out(), "");
}

/// The step has all CPUs, and Slurm binds its task, which is `wireup run`, to one of them or to none.
fn ranks_are_bound_within_the_binding_of_their_step(slurm: &Slurm) {
    let all = std::thread::available_parallelism().unwrap().to_string();
    let srun = |bind: &str, options: &[&str]| {
        let bind = format!("--cpu-bind={bind}");
        let run = slurm.command(["srun", "-N", "1", "-n", "1", "-c", &all, "--mem=200", &bind]);
        let run = run.more([slurm.wireup().as_os_str(), OsStr::new("run")]);
        run.more(options).more(["sh", "-c", PLACE]).run()
    };
    for (cpu, other, mask) in [("0", "1", "0x1"), ("1", "0", "0x2")] {
        for bind in [format!("map_cpu:{cpu}"), format!("mask_cpu:{mask}")] {
            let outcome = srun(&bind, &["-n", "1", "--bind-to", "core"]).expect(0);
            let bound = cpus(&outcome.out(), ALICE);
            assert_eq!(bound["node01"], cpu, "{outcome:?}");
        }
        let list = format!("cpu-list:{other}");
        let refused = srun(&format!("map_cpu:{cpu}"), &["-n", "1", "--bind-to", &list]);
        refused.expect(125).expect_one_line(&[
            &format!("CPU {other} is not in the affinity mask or the control group"),
            &format!("ranks may use the CPUs {cpu}"),
        ]);
        let more = ["-n", "1", "--bind-to", "hwthread", "--cpus-per-rank", "2"];
        let refused = srun(&format!("map_cpu:{cpu}"), &more);
        refused
            .expect(125)
            .expect_one_line(&["needs 2, but only 1 may be used"]);
    }
    let more = ["-n", "1", "--bind-to", "hwthread", "--cpus-per-rank", "2"];
    srun("none", &more).expect(0);
}
