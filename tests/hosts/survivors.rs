//! `--on-failure continue` when a whole host is lost: the ranks of the others go on without those there.

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, field, mpi, number};

/// PMI-1 by hand: the ranks of one host say that they are ready and wait to be lost; the others are in a barrier
/// then, meet once more, and print what the server tells of the dead.
const PMI: &str = r#"
say() { echo "$1" >&"$PMI_FD" && read -r line <&"$PMI_FD"; }
say "cmd=init pmi_version=1 pmi_subversion=1"
say "cmd=barrier_in"
[ "$(hostname)" = "$1" ] && { echo ready; exec sleep 1000; }
say "cmd=barrier_in"
say "cmd=barrier_in"
say "cmd=get kvsname=$PMI_JOBID key=PMI_dead_processes"
echo "pmi rank=$WIREUP_RANK dead=\"$line\""
say "cmd=finalize"
"#;

/// The ranks that came to the end.
fn survivors(outcome: &Outcome, word: &str) -> Vec<u32> {
    let lines = outcome.sorted_lines();
    let lines = lines.iter().filter(|line| line.starts_with(word));
    lines.map(|line| number(line, "rank")).collect()
}

/// Two ranks on each of three hosts, of which the second crashes.
fn options(hosts: &str) -> [&str; 7] {
    [
        "--oversubscribe",
        "--on-failure",
        "continue",
        "--hosts",
        hosts,
        "-n",
        "6",
    ]
}

#[test]
fn survivors_of_a_crashed_host_meet_over_pmi_and_are_told_who_died() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
    let running = run.more(["bash", "-c", PMI, "pmi", "node02"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(125);
    let word = "pmi rank";
    assert_eq!(survivors(&outcome, word), [0, 1, 4, 5], "{outcome:?}");
    let lines = outcome.sorted_lines();
    for line in lines.iter().filter(|line| line.starts_with(word)) {
        let told = field(line, "dead").unwrap();
        assert!(told.ends_with("value=2,3"), "{told}; {outcome:?}");
    }
    let err = outcome.err();
    let noted = err.contains("node02") && err.contains("; the others continue");
    assert!(noted, "{outcome:?}");
}

#[test]
fn ranks_end_with_the_first_host_through_which_all_others_are_reached() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(0, options("node02:2,node01:2,node03:2"));
    let running = run.more(["bash", "-c", PMI, "pmi", "node02"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(125);
    assert!(outcome.err().contains("6 of 6 ranks failed"), "{outcome:?}");
}

#[test]
fn open_mpi_shrinks_and_goes_on_after_the_crash_of_a_host() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
    let run = run.more([mpi.program("ulfm").to_str().unwrap(), "-w"]);
    let running = run.env("OMPI_MCA_mpi_ft_enable", "1").start();
    running.wait_for_many(Output::Stdout, " ready", 6);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(125);
    let word = "ulfm rank";
    let lines = outcome.sorted_lines();
    let shrunk: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with(word) && line.contains("sum="))
        .collect();
    let ranks: Vec<u32> = shrunk.iter().map(|line| number(line, "rank")).collect();
    assert_eq!(ranks, [0, 1, 4, 5], "{outcome:?}");
    for line in shrunk {
        assert_eq!(
            (number(line, "new_size"), number(line, "sum")),
            (4, 10),
            "{outcome:?}"
        );
    }
}
