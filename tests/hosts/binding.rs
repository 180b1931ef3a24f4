//! Binding of ranks on several hosts: each binds its own, by its topology and its limits. All hosts of these tests have
//! the CPUs of this machine.

use crate::cluster::{ALICE, Cluster};
use crate::common::topology::{AMD, sys_with_gpus};
use crate::common::{Outcome, Run, mpi, wireup};
use crate::users::of;

/// Prints the rank, its host and the CPUs that it may use.
const SHOW: [&str; 3] = [
    "sh",
    "-c",
    "echo $WIREUP_RANK $(uname -n) $(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)",
];

/// The CPUs of each core, as `wireup topo` shows them.
fn cores() -> Vec<String> {
    let program = wireup();
    let words = [program.as_os_str(), "topo".as_ref(), "--json".as_ref()];
    let shown = Run::command(words).run().expect_quiet_success().out();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let cores = shown["parts"]["core"].as_array().unwrap().iter();
    cores
        .map(|core| core["cpus"].as_str().unwrap().to_owned())
        .collect()
}

/// The hosts and ranks whose bindings are in the status stream.
fn recorded(outcome: &Outcome) -> Vec<(String, u64)> {
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let events = stream
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let bindings = events.filter(|event| event["event"] == "bindings");
    bindings
        .flat_map(|event| {
            let host = event["host"].as_str().unwrap().to_owned();
            let ranks = event["ranks"].as_array().unwrap().clone().into_iter();
            ranks.map(move |rank| (host.clone(), rank["rank"].as_u64().unwrap()))
        })
        .collect()
}

#[test]
fn each_host_binds_its_own_ranks() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let cores = cores();
    let core = |local: usize| &cores[local % cores.len()];
    let bind = ["--oversubscribe", "--bind-to", "core"];
    let list = ["--hosts", "node01:2,node02:1,node03:2", "-n", "5"];
    let run = cluster.run(0, list).more(bind);
    let run = run.more(["--report-bindings", "--json", "status"]);
    let outcome = run.more(SHOW).run().expect(0);
    let places = [
        ("node01", 0),
        ("node01", 1),
        ("node02", 0),
        ("node03", 0),
        ("node03", 1),
    ];
    let line =
        |(rank, (host, local)): (usize, &(&str, usize))| format!("{rank} {host} {}", core(*local));
    let expected: Vec<String> = places.iter().enumerate().map(line).collect();
    assert_eq!(outcome.sorted_lines(), expected);
    let recorded = recorded(&outcome);
    for (rank, (host, local)) in places.iter().enumerate() {
        let text = format!("{host}: rank {rank}: core {}", local % cores.len());
        assert!(outcome.err().contains(&text), "{outcome:?}");
        assert!(
            recorded.contains(&(host.to_string(), rank as u64)),
            "{recorded:?}"
        );
    }
}

#[test]
fn hosts_that_cannot_bind_are_named_once() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let list = [
        "--hosts",
        "node01:1,node02:2",
        "-n",
        "3",
        "--bind-to",
        "cpu-list:60000",
    ];
    let outcome = cluster.run(0, list).more(["true"]).run().expect(125);
    let err = outcome.err();
    let line = "on all 2 hosts: --bind-to cpu-list: CPU 60000 is offline on this host";
    assert!(err.contains(line), "{err}");
}

#[test]
fn spawned_ranks_are_bound_on_their_hosts() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(2), mpi("mpich5")) else {
        return;
    };
    let mpi = mpi.with_dynamic_processes();
    let cores = cores();
    let list = [
        "--hosts",
        "node01:2,node02:2",
        "-n",
        "2",
        "--map-by",
        "node",
    ];
    let run = cluster
        .run(0, list)
        .more(["--bind-to", "core", "--report-bindings"]);
    let run = run
        .more([mpi.program("spawn")])
        .more(["children=1", "from=self"]);
    let env = mpi.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.run().expect(0);
    for (host, rank) in [("node01", 0), ("node02", 1)] {
        let first = format!("{host}: rank {rank}: core 0 ");
        assert!(outcome.err().contains(&first), "{outcome:?}");
    }
    // The children of the two come behind them, wherever they are.
    let second = format!(": core {} ", 1 % cores.len());
    assert!(outcome.err().contains(&second), "{outcome:?}");
}

#[test]
fn rankfile_sets_host_of_each_rank() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let cores = cores();
    let last = cores.len() - 1;
    let path = cluster.dir().join("ranks");
    let lines = format!(
        "rank 0=node03 slot=0\nrank 1=node01 slot={last}\nrank 2=+n1 slot=0:0\nrank 3=node01 slot=0\n"
    );
    std::fs::write(&path, lines).unwrap();
    let file = path.to_str().unwrap();
    let list = ["--hosts", "node01:2,node02:1,node03:1", "--rankfile", file];
    let run = cluster.run(0, list).more(["--oversubscribe"]).more(SHOW);
    let expected = [
        format!("0 node03 {}", cores[0]),
        format!("1 node01 {}", cores[last]),
        format!("2 node02 {}", cores[0]),
        format!("3 node01 {}", cores[0]),
    ];
    assert_eq!(run.run().expect(0).sorted_lines(), expected);
    // Slurm's form, whose hosts are those of the launch if no others are named.
    std::fs::write(&path, "node02\nnode01*2\nnode02\n").unwrap();
    let run = cluster.run(0, ["--rankfile", file]).more(SHOW);
    let outcome = run.run().expect(0);
    let hosts: Vec<String> = outcome
        .sorted_lines()
        .iter()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(hosts, ["0 node02", "1 node01", "2 node01", "3 node02"]);
    std::fs::write(&path, "node09\n").unwrap();
    let run = cluster.run(0, ["--hosts", "node01", "--rankfile", file]);
    let outcome = run.more(["true"]).run().expect(125);
    let err = outcome.err();
    let line = "rank 0: host node09 is not in the launch (node01)";
    assert!(err.contains(line), "{err}");
}

/// Hosts with two GPUs on the bus; the modes of their device files on each host.
fn with_gpus(modes: &[[u32; 2]]) -> Option<Cluster> {
    let cluster = Cluster::new(modes.len())?;
    for (host, [first, second]) in modes.iter().enumerate() {
        let script = format!(
            "rm -rf dri; mkdir -m 755 dri; mknod -m {first} dri/renderD128 c 1 3; mknod -m {second} dri/renderD129 c 1 3"
        );
        cluster.change_dev(host, &script);
        let dir = cluster.dir().join(format!("sys-{host}"));
        let script = format!("set -e\n{}", sys_with_gpus(&dir, AMD, &[128, 129]));
        let mut command = cluster.host(host).command("sh");
        let output = command.args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    Some(cluster)
}

#[test]
fn hosts_with_refused_device_files_are_listed_in_one_message() {
    let Some(cluster) = with_gpus(&[[666, 666], [600, 666], [600, 666]]) else {
        return;
    };
    let started = cluster.dir().join("started");
    std::fs::create_dir(&started).unwrap();
    std::fs::set_permissions(
        &started,
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let show = "echo $(uname -n) $ROCR_VISIBLE_DEVICES; touch $0/$(id -u).$WIREUP_RANK";
    let show = ["sh", "-c", show, started.to_str().unwrap()];
    let run = |slots: u32| {
        let hosts = format!("node01:{slots},node02:{slots},node03:{slots}");
        let ranks = (3 * slots).to_string();
        let words = ["--hosts", &hosts, "-n", &ranks, "--gpus-per-rank", "1"];
        cluster.run(0, words).more(show)
    };
    let open = |host: usize| {
        let mut command = cluster.host(host).command("chmod");
        let command = command.args(["666", "/dev/dri/renderD128"]);
        assert!(command.status().unwrap().success());
    };
    for named in ["node[02-03]", "node03"] {
        let refused = of(ALICE, run(1)).run().expect(125);
        refused.expect_one_line(&[&format!(
            "on {named}: --gpus-per-rank: cannot open the device files of GPUs: permission denied for \
             /dev/dri/renderD128; add the user to the groups video and render"
        )]);
        // No rank was started, also where its GPU can be opened.
        assert_eq!(started.read_dir().unwrap().count(), 0);
        open(1);
    }
    // It is the user's rights that count.
    let each = |numbers: &[&str]| -> Vec<String> {
        let hosts = ["node01", "node02", "node03"].iter();
        let lines = hosts.flat_map(|host| numbers.iter().map(move |gpu| format!("{host} {gpu}")));
        lines.collect()
    };
    assert_eq!(run(1).run().expect(0).sorted_lines(), each(&["0"]));
    open(2);
    let opened = of(ALICE, run(2)).run().expect(0);
    assert_eq!(opened.sorted_lines(), each(&["0", "1"]));
}
