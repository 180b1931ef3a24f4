//! `--on-failure continue` when a whole host is lost: the ranks of the others go on without those there.

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Run, field, mpi, mpi4py, number, repository};

/// Script that speaks PMI-1: the ranks of one host print that they are ready and wait to be lost; the others
/// enter a barrier, then another, and print the dead ranks that the server reports.
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
fn survivors_of_crashed_host_complete_pmi_fence_and_get_dead() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
    let running = run.more(["bash", "-c", PMI, "pmi", "node02"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(122);
    let word = "pmi rank";
    assert_eq!(survivors(&outcome, word), [0, 1, 4, 5], "{outcome:?}");
    let lines = outcome.sorted_lines();
    for line in lines.iter().filter(|line| line.starts_with(word)) {
        let dead = field(line, "dead").unwrap();
        assert!(dead.ends_with("value=2,3"), "{dead}; {outcome:?}");
    }
    let err = outcome.err();
    let noted = err.contains("node02") && err.contains("; the others continue");
    assert!(noted, "{outcome:?}");
}

/// The others meet while a host is away; when it is back, what was there of the launch ends, and the launch goes on.
fn return_of(away: impl Fn(&Cluster), back: impl Fn(&Cluster)) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let script = format!("{PMI}while [ ! -e \"$2\" ]; do sleep 0.1; done\n");
    let over = cluster.dir().join("over");
    let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
    let run = run.more(["bash", "-c", &*script, "pmi", "node02"]);
    let running = run.more([&over]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    cluster.excuse(1);
    away(&cluster);
    running.wait_for_many(Output::Stdout, "pmi rank", 4);
    back(&cluster);
    cluster.expect_clean(1);
    std::fs::write(over, "").unwrap();
    let outcome = running.finish().expect(122);
    assert_eq!(survivors(&outcome, "pmi rank"), [0, 1, 4, 5], "{outcome:?}");
    let next = cluster.run(0, ["--hosts", "node01:1,node02:1", "-n", "2", "true"]);
    next.run().expect_quiet_success();
}

#[test]
fn survivors_continue_after_agent_kill_ends_its_ranks() {
    return_of(
        |cluster| cluster.kill_agent(1),
        |cluster| cluster.start_agent(1),
    );
}

#[test]
fn survivors_continue_after_pause_and_paused_ranks_end_later() {
    return_of(
        |cluster| cluster.host(1).pause().unwrap(),
        |cluster| cluster.host(1).resume().unwrap(),
    );
}

#[test]
fn hosts_below_crashed_tree_host_are_lost_and_others_continue() {
    let Some(cluster) = Cluster::new(5) else {
        return;
    };
    let hosts = "node01:1,node02:1,node03:1,node04:1,node05:1";
    let tree = ["--tree-width", "2"];
    let run = cluster.run(0, ["--on-failure", "continue", "--hosts", hosts, "-n", "5"]);
    // The second leads to the fourth and the fifth.
    let script = PMI.replace("[ \"$(hostname)\" = \"$1\" ]", "[[ $(hostname) =~ $1 ]]");
    let run = run
        .more(tree)
        .more(["bash", "-c", &*script, "pmi", "node0[245]"]);
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(122);
    assert_eq!(survivors(&outcome, "pmi rank"), [0, 2], "{outcome:?}");
    let err = outcome.err();
    assert!(
        err.contains("node02") && err.contains("3 of 5 ranks failed"),
        "{err}"
    );
}

#[test]
fn ranks_end_with_first_host_of_routing_tree() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(0, options("node02:2,node01:2,node03:2"));
    let running = run.more(["bash", "-c", PMI, "pmi", "node02"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish().expect(122);
    assert!(outcome.err().contains("6 of 6 ranks failed"), "{outcome:?}");
}

/// Checks that the ranks that came to the end have shrunk to themselves.
#[track_caller]
fn expect_shrunk(outcome: &Outcome, word: &str, rest: &[u32]) {
    let lines = outcome.sorted_lines();
    let shrunk = lines.iter().filter(|line| line.starts_with(word));
    let shrunk: Vec<_> = shrunk.filter(|line| line.contains("sum=")).collect();
    let ranks: Vec<u32> = shrunk.iter().map(|line| number(line, "rank")).collect();
    assert_eq!(ranks, rest, "{outcome:?}");
    for line in shrunk {
        let result = (number(line, "new_size"), number(line, "sum"));
        assert_eq!(
            result,
            (rest.len() as u32, rest.iter().sum()),
            "{outcome:?}"
        );
    }
}

/// Process or host that is lost while all ranks work.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Rank,
    Host,
}

/// Loses a rank of the second host, or that host, while the ranks of Open MPI on three hosts work, which they show by
/// printing this word.
#[track_caller]
fn lose(loss: Loss, cluster: &Cluster, run: Run, (process, word): (&str, &str)) -> Outcome {
    let running = run.env("OMPI_MCA_mpi_ft_enable", "1").start();
    running.wait_for_many(Output::Stdout, word, 6);
    match loss {
        Loss::Host => cluster.lab().crash(cluster.host(1)).unwrap(),
        Loss::Rank => {
            let all = cluster.host(1).processes().into_iter();
            let mut ranks = all.filter(|one| one.name.starts_with(process));
            ranks.next().unwrap().signal(Signal::KILL);
        }
    }
    running.finish()
}

#[test]
fn open_mpi_shrinks_after_loss_of_rank_and_host() {
    let Some(mpi) = mpi("openmpi5") else { return };
    for loss in [Loss::Rank, Loss::Host] {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
        let run = run.more([mpi.program("ulfm").to_str().unwrap(), "-w"]);
        let outcome = lose(loss, &cluster, run, ("ulfm", " ready"));
        expect_survivors(loss, outcome, "ulfm rank");
    }
}

#[test]
fn python_example_continues_after_loss_of_rank_and_host() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let Some(with) = mpi4py(&mpi) else { return };
    let source = repository().join("examples/survive.py");
    for loss in [Loss::Rank, Loss::Host] {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let run = cluster.run(0, options("node01:2,node02:2,node03:2"));
        let run = run.more([&with.python, &source]);
        let variables = with.env.iter();
        let run = variables.fold(run, |run, (name, value)| run.env(name, value));
        let outcome = lose(loss, &cluster, run, ("python", " works"));
        expect_survivors(loss, outcome, "survive rank");
    }
}

/// The exit code and the survivors after a loss.
#[track_caller]
fn expect_survivors(loss: Loss, outcome: Outcome, word: &str) {
    match loss {
        Loss::Host => expect_shrunk(&outcome.expect(122), word, &[0, 1, 4, 5]),
        Loss::Rank => {
            let outcome = outcome.expect(137);
            let err = outcome.err();
            let lost = [2, 3].into_iter().find(|rank| {
                let prefix = format!("wireup: rank {rank} ");
                err.lines().any(|line| line.starts_with(&prefix))
            });
            let lost = lost.unwrap_or_else(|| panic!("{outcome:?}"));
            let rest: Vec<u32> = (0..6).filter(|rank| *rank != lost).collect();
            expect_shrunk(&outcome, word, &rest);
        }
    }
}
