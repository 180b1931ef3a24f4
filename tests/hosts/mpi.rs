//! Real MPIs over the network of a cluster.

use crate::cluster::Cluster;
use crate::common::{Mpi, Run, field, mpi, number, pmix};

for_each_mpi!(openmpi4 mpich5 openmpi5 impi: {
    programs_run_on_2_3_and_8_hosts => |mpi| programs(&mpi),
    ranks_may_be_placed_in_any_layout => |mpi| layouts(&mpi),
    programs_of_one_job_communicate_across_hosts => |mpi| two_programs(&mpi),
    mpi_abort_on_other_host_ends_job => |mpi| abort(&mpi),
});

/// `wireup run` of an MPI's program on the first host of a cluster.
fn run(cluster: &Cluster, mpi: &Mpi, options: &[&str], ranks: u32, program: &str) -> Run {
    let ranks = ranks.to_string();
    let run = cluster
        .run(0, options)
        .more(["--oversubscribe", "-n", &ranks]);
    let run = run.more([mpi.program(program)]);
    mpi.env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value))
}

/// The first hosts of a cluster, each with `slots` slots.
fn hosts(count: u32, slots: u32) -> String {
    let names: Vec<String> = (1..=count).map(|i| format!("node{i:02}:{slots}")).collect();
    names.join(",")
}

/// Numbers of hosts, and of ranks on each.
const SIZES: [(u32, u32); 3] = [(2, 2), (3, 2), (8, 1)];

/// Ranks on the first hosts know where they are.
fn hello(cluster: &Cluster, mpi: &Mpi, count: u32, slots: u32) {
    let (list, ranks) = (hosts(count, slots), count * slots);
    let outcome = run(cluster, mpi, &["--hosts", &list], ranks, "hello").run();
    let lines = outcome.expect_success().by_rank("hello", ranks);
    for (rank, line) in (0..).zip(lines) {
        let host = format!("node{:02}", rank / slots + 1);
        assert_eq!(field(&line, "host"), Some(&*host), "{line}");
    }
}

fn programs(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(8) else {
        return;
    };
    for (count, slots) in SIZES {
        hello(&cluster, mpi, count, slots);
        let (list, ranks) = (hosts(count, slots), count * slots);
        let run = |program| run(&cluster, mpi, &["--hosts", &list], ranks, program).run();
        for line in run("allreduce")
            .expect_success()
            .by_rank("allreduce", ranks)
        {
            assert_eq!(number(&line, "sum"), ranks * (ranks + 1) / 2, "{line}");
        }
        for line in run("modex").expect_success().by_rank("modex", ranks) {
            assert_eq!(number(&line, "peers"), ranks - 1, "{line}");
        }
        let before = cluster.received(1);
        for line in run("ring").expect_success().by_rank("ring", ranks) {
            assert_eq!(number(&line, "bytes"), ranks << 20, "{line}");
        }
        // Every message has crossed to the next host once for each round.
        let crossed = cluster.received(1) - before;
        assert!(crossed >= u64::from(ranks) << 20, "{crossed} bytes");
    }
}

fn layouts(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (options, expected) in [
        // Cyclic.
        (
            &["--hosts", "node01:2,node02:2", "--map-by", "node"][..],
            &[1, 2, 1, 2][..],
        ),
        // Uneven, and not in the order of names.
        (&["--hosts", "node02:1,node01:3"], &[2, 1, 1, 1]),
        // The last host has no rank.
        (&["--hosts", "node01:2,node02:2,node03:2"], &[1, 1, 2]),
        (
            &["--hosts", "node01,node02,node03", "--ppn", "1"],
            &[1, 2, 3],
        ),
        // Blocks, of which a host has two.
        (
            &[
                "--hosts",
                "node01:2,node02:1,node03:2",
                "--layout",
                "2*1,0*2,1*1,2*1",
            ],
            &[3, 1, 1, 2, 3],
        ),
    ] {
        let ranks = expected.len() as u32;
        let outcome = run(&cluster, mpi, options, ranks, "hello").run();
        let lines = outcome.expect_success().by_rank("hello", ranks);
        let names = expected.iter().map(|host| format!("node{host:02}"));
        for (line, name) in lines.iter().zip(names) {
            assert_eq!(field(line, "host"), Some(&*name), "{options:?}: {line}");
        }
        let outcome = run(&cluster, mpi, options, ranks, "allreduce").run();
        outcome.expect_success().by_rank("allreduce", ranks);
    }
}

fn two_programs(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let options = ["--hosts", "node01:1,node02:3"];
    let first = run(&cluster, mpi, &options, 2, "allreduce");
    let both = first.more([":", "-n", "2"]).more([mpi.program("partner")]);
    let outcome = both.run().expect_success();
    let expected = [
        "allreduce rank=0 size=4 sum=10",
        "allreduce rank=1 size=4 sum=10",
        "partner rank=2 size=4 app=1 sum=10",
        "partner rank=3 size=4 app=1 sum=10",
    ];
    assert_eq!(outcome.sorted_lines(), expected, "{outcome:?}");
}

fn abort(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let options = ["--hosts", "node01:1,node02:2"];
    let run = run(&cluster, mpi, &options, 3, "abort").more(["2", "7"]);
    let outcome = run.run().expect(7);
    let ours: Vec<String> = outcome
        .err()
        .lines()
        .filter(|line| line.starts_with("wireup: "))
        .map(str::to_owned)
        .collect();
    assert!(
        ours.iter().any(|line| line.contains("rank 2")),
        "{outcome:?}"
    );
}

#[test]
fn hosts_may_have_different_versions_of_libpmix() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(2), mpi("openmpi4")) else {
        return;
    };
    let (Some(old), Some(new)) = (pmix("pmix4"), pmix("pmix5")) else {
        return;
    };
    let old = old.library.canonicalize().unwrap();
    let mut mount = cluster.host(1).command("mount");
    let status = mount
        .args(["--no-mtab", "--bind"])
        .args([new.library, old])
        .status();
    assert!(status.unwrap().success());
    let options = ["--hosts", "node01:2,node02:2"];
    let outcome = run(&cluster, &mpi, &options, 4, "hello").run();
    let lines = outcome.expect_success().by_rank("hello", 4);
    let versions: Vec<&str> = lines
        .iter()
        .map(|line| &field(line, "pmix").unwrap()[..10])
        .collect();
    let [old, new] = ["OpenPMIx 4", "OpenPMIx 5"];
    assert_eq!(versions, [old, old, new, new]);
    for program in ["modex", "allreduce"] {
        let outcome = run(&cluster, &mpi, &options, 4, program).run();
        outcome.expect_success().by_rank(program, 4);
    }
}

#[test]
fn mpich_4_is_launched_across_hosts() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(8), mpi("mpich4")) else {
        return;
    };
    // Messages between hosts: its UCX may hang when it finalizes after large ones, under
    // any launcher. These are small.
    for (count, slots) in SIZES {
        hello(&cluster, &mpi, count, slots);
    }
}
