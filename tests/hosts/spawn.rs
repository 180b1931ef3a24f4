//! Processes that start others across the hosts of a cluster, and what becomes of them when a host
//! is lost meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{
    Mpi, Outcome, Output, Pmix, Run, descriptors, eventually, field, mpi, mpi4py, number, pmix,
    settled,
};
use crate::lost;
use crate::pmix::versions;

for_each_mpi!(openmpi4 mpich5 openmpi5 impi: {
    children_on_all_hosts_merge_with_parents => |mpi| merge(&mpi.with_dynamic_processes()),
    programs_levels_and_ranks_spawn_across_hosts => |mpi| forms(&mpi.with_dynamic_processes()),
    info_keys_set_hosts_and_number_of_children => |mpi| infos(&mpi.with_dynamic_processes()),
    apps_of_one_spawn_are_placed_one_after_other => |mpi| one_behind_the_other(&mpi.with_dynamic_processes()),
    ended_children_free_their_slots => |mpi| slots_again(&mpi.with_dynamic_processes()),
    program_is_staged_to_host_without_it => |mpi| program_along(&mpi.with_dynamic_processes()),
    halves_of_job_on_different_hosts_connect => |mpi| halves(&mpi.with_dynamic_processes()),
    parent_killed_during_remote_spawn_ends_launch
        => |mpi| parent_killed(&mpi.with_dynamic_processes()),
    host_lost_during_spawn_ends_launch
        => |mpi| lost(&mpi.with_dynamic_processes(), "spawn", &["times=100000"], "spawned rank="),
    host_lost_during_connect_ends_launch
        => |mpi| lost(&mpi.with_dynamic_processes(), "meet", &["halves", "a name", "1000000"], "met rank="),
});

/// The MPI of that name, over networks with which it can spawn.
pub(crate) fn able(name: &str) -> Option<Mpi> {
    mpi(name).map(Mpi::with_dynamic_processes)
}

/// `wireup run` of an MPI's program on the first host of a cluster.
pub(crate) fn run(
    cluster: &Cluster,
    mpi: &Mpi,
    options: &[&str],
    ranks: u32,
    program: &str,
) -> Run {
    let ranks = ranks.to_string();
    let run = cluster
        .run(0, options)
        .more(["--oversubscribe", "-n", &ranks]);
    let run = run.more([mpi.program(program)]);
    let env = mpi.env.iter();
    env.fold(run, |run, (name, value)| run.env(name, value))
        .deadline(Duration::from_secs(120))
}

/// Returns the lines of the children of one level, by rank.
#[track_caller]
pub(crate) fn children(outcome: &Outcome, level: u32, count: u32) -> Vec<String> {
    let text = outcome.out();
    let ours = |line: &&str| line.starts_with("spawned ") && number(line, "level") == level;
    let mut lines: Vec<String> = text.lines().filter(ours).map(str::to_owned).collect();
    lines.sort_by_key(|line| number(line, "rank"));
    let ranks: Vec<u32> = lines.iter().map(|line| number(line, "rank")).collect();
    let expected: Vec<u32> = (0..count).collect();
    assert_eq!(ranks, expected, "children of level {level}; {outcome:?}");
    lines
}

/// The hosts in the lines of the children.
pub(crate) fn hosts(lines: &[String]) -> Vec<&str> {
    let hosts = lines.iter().map(|line| field(line, "host").unwrap());
    hosts.collect()
}

fn merge(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let list = "node01:2,node02:2,node03:2,node04:2";
    // Parents fill the first two hosts, children the others.
    let parents = run(&cluster, mpi, &["--hosts", list], 4, "spawn");
    let outcome = parents.more(["children=4"]).run().expect_success();
    for line in outcome.by_rank("spawn", 4) {
        assert_eq!(number(&line, "merged"), 8, "{line}");
        let universe = match mpi.name.starts_with("openmpi") {
            true => "8",
            false => "none",
        };
        assert_eq!(field(&line, "universe"), Some(universe), "{line}");
    }
    let lines = children(&outcome, 1, 4);
    assert_eq!(
        hosts(&lines),
        ["node03", "node03", "node04", "node04"],
        "{outcome:?}"
    );
    let limited = cluster.run(0, ["--hosts", list]).more(["-n", "4"]);
    let limited = limited.more([mpi.program("spawn")]).more(["levels=0"]);
    let env = mpi.env.iter();
    let limited = env.fold(limited, |run, (name, value)| run.env(name, value));
    for line in limited.run().expect_success().by_rank("spawn", 4) {
        assert_eq!(field(&line, "universe"), Some("8"), "{line}");
    }
    // More than there are slots.
    let parents = run(&cluster, mpi, &["--hosts", list], 4, "spawn");
    let outcome = parents.more(["children=8"]).run().expect_success();
    let lines = children(&outcome, 1, 8);
    let names: BTreeSet<&str> = hosts(&lines).into_iter().collect();
    assert!(names.len() > 1, "{outcome:?}");
}

fn forms(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // On a busy machine the last children come to their end long after their parents.
    let list = [
        "--hosts",
        "node01:2,node02:2,node03:2",
        "--children",
        "independent",
    ];
    for (args, count) in [
        (&["apps=2", "children=2"][..], 5),
        (&["levels=3", "children=2"], 6),
        (&["from=self", "children=1"], 3),
        (&["times=5", "children=2"], 10),
    ] {
        let outcome = run(&cluster, mpi, &list, 3, "spawn").more(args).run();
        let outcome = outcome.expect_success();
        outcome.by_rank("spawn", 3);
        let spawned = outcome.out().matches("spawned rank=").count();
        assert_eq!(spawned, count, "{args:?}; {outcome:?}");
    }
    let labelled = [&list[..], &["-l"]].concat();
    let outcome = run(&cluster, mpi, &labelled, 2, "spawn").more(["times=2"]);
    outcome.run().expect_success().expect_labels_of_jobs();
    // A program that is nowhere. Each rank by itself: Open MPI 4 does not tell those that wait.
    let args = ["from=self", "bad=/no/such/program"];
    let outcome = run(&cluster, mpi, &list, 2, "spawn").more(args).run();
    let outcome = outcome.expect(0);
    assert!(outcome.err().contains("/no/such/program"), "{outcome:?}");
    // A program without MPI, on the other host.
    let args = ["from=self", "bad=/bin/true", "info.host=node02"];
    let outcome = run(&cluster, mpi, &list, 1, "spawn").more(args).run();
    let outcome = outcome.expect(0);
    let why = "all processes of /bin/true ended without contacting PMI";
    assert!(outcome.err().contains(why), "{outcome:?}");
    // The info keys name host and directory.
    let args = ["info.host=node02", "info.wdir=/usr"];
    let outcome = run(&cluster, mpi, &list, 2, "spawn").more(args).run();
    let outcome = outcome.expect_success();
    for line in children(&outcome, 1, 2) {
        assert_eq!(field(&line, "host"), Some("node02"), "{outcome:?}");
        assert_eq!(field(&line, "dir"), Some("/usr"), "{outcome:?}");
    }
}

fn infos(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let file = cluster.dir().join("hosts");
    fs::write(&file, "node03 slots=2\nnode02 slots=2\n").unwrap();
    let file = file.display();
    let start = |list: &str, infos: &str, count: &str| {
        let run = cluster.run(0, ["--hosts", list, "-n", "1"]);
        let run = run.more([mpi.program("spawn")]).more(["fewer=1"]);
        let run = run.more([&format!("info.{infos}"), &format!("children={count}")]);
        let env = mpi.env.iter();
        env.fold(run, |run, (name, value)| run.env(name, value))
            .run()
    };
    let [one, two, three] = ["node01", "node02", "node03"];
    let all = "node01:2,node02:2,node03:2";
    // Without any of them three are on the first host and twice on the second.
    let mut table = vec![
        (
            all,
            format!("hostfile={file}"),
            "3",
            vec![three, three, two],
        ),
        (all, "map_by=node".into(), "3", vec![one, two, three]),
        (all, "npernode=1".into(), "3", vec![one, two, three]),
        (
            "node01:1",
            format!("add-hostfile={file}"),
            "2",
            vec![three, three],
        ),
    ];
    // Open MPI keeps these to itself.
    let passes_on = !mpi.name.starts_with("openmpi");
    if passes_on {
        table.push((all, "soft=1:3".into(), "8", vec![one, two, two]));
        let outcome = start(all, "arch=vax", "2").expect(1);
        let message = "info key arch: no nodes with \"vax\"";
        assert!(outcome.err().contains(message), "{outcome:?}");
    }
    for (list, info, count, expected) in table {
        let outcome = start(list, &info, count).expect_success();
        let lines = children(&outcome, 1, expected.len() as u32);
        assert_eq!(hosts(&lines), expected, "{info}; {outcome:?}");
    }
}

fn one_behind_the_other(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let [one, two, three] = ["node01", "node02", "node03"];
    // Programs of one, two and three ranks, the parent on the first host.
    for (list, info, expected) in [
        (
            "node01:4,node02:4,node03:4",
            Some("info.map_by=node"),
            [one, two, three, one, two, three],
        ),
        // One slot is free on each of the others.
        (
            "node01:1,node02:1,node03:1",
            None,
            [two, three, one, two, two, three],
        ),
    ] {
        let run = run(&cluster, mpi, &["--hosts", list], 1, "spawn");
        let run = run.more(["apps=3", "children=1"]).more(info);
        let outcome = run.run().expect_success();
        let lines = children(&outcome, 1, 6);
        assert_eq!(hosts(&lines), expected, "{list}; {outcome:?}");
    }
}

fn slots_again(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let list = "node01:1,node02:1,node03:1";
    let run = cluster.run(0, ["--hosts", list, "-n", "1"]);
    let run = run.more([mpi.program("spawn")]);
    let env = mpi.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    // The last children have disconnected when the next are asked for, and are still about to end.
    let outcome = run.more(["children=2", "times=10"]).run().expect_success();
    let all: Vec<_> = outcome.out().lines().map(str::to_owned).collect();
    let spawned = all.iter().filter(|line| line.starts_with("spawned "));
    let spawned: Vec<_> = spawned.cloned().collect();
    let on = |host| hosts(&spawned).into_iter().filter(|at| *at == host).count();
    assert_eq!((on("node02"), on("node03")), (10, 10), "{outcome:?}");
}

fn halves(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let list = ["--hosts", "node01:2,node02:2"];
    let halves = run(&cluster, mpi, &list, 4, "meet").more(["halves", "a name", "5"]);
    let outcome = halves.run().expect_success();
    for line in outcome.by_rank("meet", 4) {
        assert_eq!(number(&line, "merged"), 4, "{line}");
    }
}

fn lost(mpi: &Mpi, program: &str, args: &[&str], sign: &str) {
    lost::everywhere(|cluster, list, ranks| {
        let running = run(cluster, mpi, &["--hosts", list], ranks, program);
        let running = running.more(args).start();
        running.wait_for_many(Output::Stdout, sign, ranks as usize);
        running
    });
}

#[test]
fn mpi4py_pool_spawns_workers_on_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/pool.py");
    // With Intel MPI mpi4py crashes when its threads use it.
    for mpi in ["openmpi4", "openmpi5", "mpich5"]
        .into_iter()
        .filter_map(able)
    {
        let Some(with) = mpi4py(&mpi) else {
            return;
        };
        let list = ["--hosts", "node01:3,node02:2", "-n", "1"];
        let run = cluster.run(0, list).more([&*with.python]).more([source]);
        let env = with.env.iter();
        let run = env.fold(run, |run, (name, value)| run.env(name, value));
        let outcome = run.deadline(Duration::from_secs(120)).run();
        let outcome = outcome.expect_success();
        let lines = outcome.by_rank("pool", 1);
        assert_eq!(number(&lines[0], "sum"), 85344, "{outcome:?}");
        assert_eq!(number(&lines[0], "workers"), 4, "{outcome:?}");
        let hosts = field(&lines[0], "hosts");
        assert_eq!(hosts, Some("node01,node02"), "{outcome:?}");
    }
}

/// Returns the resources of wireup's own processes on each host: descriptors of each, and files. The
/// guard drops those of exited ranks only when it has many.
fn held(cluster: &Cluster) -> Vec<(Vec<(String, usize)>, usize)> {
    let hosts = cluster.lab().hosts().iter();
    hosts
        .map(|host| {
            let ours = host.processes().into_iter();
            let ours = ours.filter(|p| !["spawn", "wireup-guard"].contains(&&*p.name));
            let mut ours: Vec<_> = ours.map(|p| (p.name, descriptors(p.pid))).collect();
            ours.sort();
            (ours, host.files().len())
        })
        .collect()
}

#[test]
fn hundred_spawns_across_hosts_leave_nothing_behind() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(2), able("openmpi4")) else {
        return;
    };
    let after = |times: &str| {
        let list = ["--hosts", "node01:2,node02:2", "--map-by", "node"];
        let args = ["from=self", times, "children=1", "linger=1"];
        let running = run(&cluster, &mpi, &list, 2, "spawn").more(args).start();
        running.wait_for_many(Output::Stdout, "lingers rank=", 2);
        eventually("all children have ended", || {
            let hosts = cluster.lab().hosts().iter();
            let mut all = hosts.flat_map(|host| host.processes());
            (!all.any(|process| process.words.contains(" level="))).then_some(())
        });
        let held = settled(|| held(&cluster));
        running.signal(Signal::TERM);
        let outcome = running.finish().expect(143);
        (held, outcome)
    };
    let ((few, _), (many, outcome)) = (after("times=2"), after("times=50"));
    for ((before, files), (then, more)) in few.into_iter().zip(many) {
        for ((name, before), (also, then)) in before.iter().zip(&then) {
            // The thread of a sidecar that waits for clients' first messages has a pipe, from its first use on.
            let pipe = if name == "wireup-pmix-hos" { 2 } else { 0 };
            let grown = then.saturating_sub(*before);
            assert!(name == also && grown <= pipe, "{before:?} to {then:?}");
        }
        assert_eq!(before.len(), then.len());
        // libpmix 4.2 makes one for every thirty jobs or so that it has known.
        assert!(more <= files + 4, "{files} to {more}");
    }
    for host in ["node01", "node02"] {
        let host_field = format!(" host={host} ");
        assert!(outcome.out().contains(&host_field), "{host}; {outcome:?}");
    }
}

fn parent_killed(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let list = ["--hosts", "node02:1,node03:1"];
    let running = run(&cluster, mpi, &list, 2, "spawn");
    let running = running.more(["times=10000", "children=2"]).start();
    running.wait_for_many(Output::Stdout, "spawned rank=", 3);
    let mut there = cluster.host(1).processes().into_iter();
    // The arguments of children have their level.
    let parent = there.find(|p| p.name == "spawn" && !p.words.contains(" level="));
    parent.unwrap().signal(Signal::KILL);
    let outcome = running.finish().expect(137);
    let err = outcome.err();
    let names_kill = |line: &str| line.contains("node02") && line.contains("signal 9");
    assert!(err.lines().any(names_kill), "{outcome:?}");
}

#[test]
fn children_merge_with_server_of_other_version() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for (server, client) in [("pmix4", "openmpi5"), ("pmix5", "openmpi4")] {
        let (Some(server), Some(mpi)) = (pmix(server), able(client)) else {
            continue;
        };
        let list = ["--libpmix", server.path(), "--hosts", "node01:2,node02:2"];
        let outcome = run(&cluster, &mpi, &list, 2, "spawn").more(["children=2"]);
        let outcome = outcome.run().expect_success();
        for line in outcome.by_rank("spawn", 2) {
            assert_eq!(number(&line, "merged"), 4, "{line}");
        }
        let lines = children(&outcome, 1, 2);
        assert_eq!(hosts(&lines), ["node02"; 2], "{outcome:?}");
    }
}

#[test]
fn killed_remote_children_end_launch() {
    for name in ["openmpi4", "openmpi5", "mpich5", "impi"] {
        let (Some(cluster), Some(mpi)) = (Cluster::new(2), able(name)) else {
            return;
        };
        let list = ["--hosts", "node01:2,node02:2"];
        let running = run(&cluster, &mpi, &list, 2, "spawn")
            .more(["child=hang"])
            .start();
        running.wait_for_many(Output::Stdout, "hangs rank=", 2);
        let mut there = cluster.host(1).processes().into_iter();
        let child = there.find(|process| process.name == "spawn").unwrap();
        child.signal(Signal::KILL);
        let outcome = running.finish().expect(137);
        assert!(outcome.err().contains("node02"), "{outcome:?}");
    }
}

#[test]
fn pmix_parents_and_children_connect_across_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for server in versions() {
        for client in versions() {
            let list = ["--hosts", "node01:2,node02:2,node03:2", "-n", "3"];
            let run = cluster.run(0, list).more(["--libpmix", server.path()]);
            let run = run.more([client.dir.join("pmix_spawn")]);
            let outcome = run.more(["family", "2"]).run().expect(0);
            outcome.expect_offsets(3, 2);
            for line in outcome.by_rank("pmix_spawn", 3) {
                let hosts = field(&line, "value").unwrap();
                // A client of 5.0 on a node without any of that job learns with its first question
                // what answers the others, once that has come; others there learn nothing:
                // docs/pmix-server.md#job-description.
                let hosts: Vec<&str> = hosts.split(',').collect();
                let unknown = hosts.iter().take_while(|host| **host == "?").count();
                let right = ["node02", "node03", "node03"];
                assert_eq!(hosts[unknown..], right[unknown..], "{outcome:?}");
            }
        }
    }
}

fn program_along(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    // Of the first host alone. Open MPI knows the key under a name of its own.
    let key = match mpi.name.as_str() {
        "openmpi4" | "openmpi5" => "ompi_preload_binary",
        _ => "preload_binary",
    };
    let script = |words: &str| {
        format!(
            "cp {} /tmp/only; /tmp/only children=2 {words}; code=$?; rm /tmp/only; exit $code",
            mpi.program("spawn").display()
        )
    };
    let start = |words: &str| {
        let list = ["--hosts", "node01:1,node02:2", "-n", "1"];
        let pmi = match mpi.name.starts_with("openmpi") {
            true => "pmix",
            false => "pmi1",
        };
        let run = cluster.run(0, list).more(["--pmi", pmi]);
        let run = run.more(["sh", "-c", &script(words)]);
        let env = mpi.env.iter();
        env.fold(run, |run, (name, value)| run.env(name, value))
            .deadline(Duration::from_secs(120))
            .run()
    };
    let outcome = start(&format!("info.{key}=true")).expect_success();
    let lines = children(&outcome, 1, 2);
    assert_eq!(hosts(&lines), ["node02"; 2], "{outcome:?}");
    let outcome = start("");
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.err().contains("on node02"), "{outcome:?}");
}

/// One rank on the first host, which spawns two of a script that only that host has; they have room
/// on the second. `words` are infos.
fn along(cluster: &Cluster, client: &Pmix, body: &str, words: &[&str]) -> Run {
    let spawn = client.dir.join("pmix_spawn");
    let script = format!(
        "printf '#!/bin/sh\n{body}\n' > /tmp/child; chmod +x /tmp/child; echo contents > /tmp/data.txt
         {} run /tmp/child wdir=/dev/shm {}; code=$?; rm /tmp/child /tmp/data.txt; exit $code",
        spawn.display(),
        words.join(" ")
    );
    let list = ["--pmi", "pmix", "--hosts", "node01:1,node02:2", "-n", "1"];
    let run = cluster.run(0, list).more(["--libpmix", client.path()]);
    run.more(["sh", "-c", &script])
}

#[test]
fn programs_and_files_are_staged_to_hosts_without_them() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let child = "echo child $(uname -n) $(cat data.txt) $(pwd)";
    for client in versions() {
        let both = ["preload_binary=true", "'!preload_files=/tmp/data.txt'"];
        let outcome = along(&cluster, &client, child, &both).run().expect(0);
        let text = outcome.out();
        let children = text.lines().filter(|line| line.starts_with("child "));
        let children: Vec<_> = children.collect();
        assert_eq!(
            children, ["child node02 contents /dev/shm"; 2],
            "{outcome:?}"
        );
        assert!(text.contains(" status=0 "), "{outcome:?}");

        // Each is left out.
        let outcome = along(&cluster, &client, child, &both[1..]).run().expect(0);
        assert!(!outcome.out().contains(" status=0 "), "{outcome:?}");
        outcome.expect_one_line(&["on node02", "/tmp/child"]);
        let lost = ["preload_binary=true", "'!preload_files=/tmp/lost'"];
        let outcome = along(&cluster, &client, child, &lost).run().expect(0);
        assert!(!outcome.out().contains(" status=0 "), "{outcome:?}");
        outcome.expect_one_line(&["on node02", "/tmp/lost exists neither on"]);
        let directory = ["preload_files=/tmp"];
        let outcome = along(&cluster, &client, child, &directory).run().expect(0);
        assert!(!outcome.out().contains(" status=0 "), "{outcome:?}");
        outcome.expect_one_line(&["/tmp must be copied", "not a regular file"]);
    }
}

/// Files that go along: options of the initial job, and infos of a spawn that ask for the same.
const ALONG: [(&[&str], &[&str]); 3] = [
    (&["--stage"], &["stage=true"]),
    (&["--stage=program"], &["preload_binary=true"]),
    (
        &["--stage=all,/tmp/data.txt"],
        &["stage=true", "preload_files=/tmp/data.txt"],
    ),
];

/// The sorted lines of children, with `initial` ranks of a program as these options place and start them, and spawned ones
/// with infos that ask for the same. `script` runs a command on the first host.
fn both_ways(
    cluster: &Cluster,
    script: &str,
    (hosts, options): (&str, &[&str]),
    infos: &[&str],
    program: &str,
) -> Option<[Vec<String>; 2]> {
    let client = pmix("pmix5")?;
    let initial = cluster.run(0, ["--hosts", hosts, "-n", "2"]).more(options);
    let list = format!("node01:1,{hosts}");
    let spawner = cluster.run(0, ["--pmi", "pmix", "--hosts", &list, "-n", "1"]);
    let spawner = spawner.more(["--libpmix", client.path()]);
    let spawner = spawner.more([client.dir.join("pmix_spawn")]).more(["run"]);
    let runs = [initial.more([program]), spawner.more([program]).more(infos)];
    let lines = runs.map(|run| {
        let outcome = run.under(["sh", "-c", script, "sh"]).run().expect(0);
        let lines = outcome.sorted_lines().into_iter();
        let lines: Vec<_> = lines.filter(|line| line.starts_with("child ")).collect();
        assert_eq!(lines.len(), 2, "{outcome:?}");
        lines
    });
    Some(lines)
}

#[test]
fn spawned_ranks_get_files_staged_by_options() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = r#"printf '#!/bin/sh
            echo child $(uname -n) $(cat data.txt) in $(pwd) by ${0##*.files}\n' > /tmp/child; chmod +x /tmp/child
        echo contents > /tmp/data.txt; "$@"; code=$?; rm /tmp/child /tmp/data.txt; exit $code"#;
    for (options, infos) in ALONG {
        let (options, infos) = (
            [&["--wdir", "/dev/shm"], options].concat(),
            [&["wdir=/dev/shm"], infos].concat(),
        );
        let placement = ("node02:2", &options[..]);
        let Some([initial, spawned]) = both_ways(&cluster, script, placement, &infos, "/tmp/child")
        else {
            return;
        };
        assert_eq!(initial, spawned, "{options:?}");
        let has_data = options.iter().any(|option| option.contains("data"));
        let data = if has_data { "contents " } else { "" };
        let line = format!("child node02 {data}in /dev/shm by /0/child");
        assert_eq!(initial, [line.clone(), line], "{options:?}");
    }
}

#[test]
fn spawned_ranks_get_layout_of_options_across_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let (child, ranks) = (cluster.dir().join("child"), cluster.dir().join("ranks"));
    fs::write(&child, "#!/bin/sh\necho child $WIREUP_RANK $(uname -n)\n").unwrap();
    fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&ranks, "rank 0=node02 slot=0\nrank 1=node01 slot=0\n").unwrap();
    let (child, ranks) = (child.display().to_string(), ranks.display().to_string());
    let rankfile = format!("rankfile={ranks}");
    for (options, infos) in [
        (["--layout", "1*1,0*1"], ["layout=1*1,0*1", "umask=022"]),
        (["--rankfile", &ranks], [&rankfile, "bind_to=none"]),
    ] {
        let options = [&options[..], &["--bind-to", "none"]].concat();
        let placement = ("node01:2,node02:2", &options[..]);
        let Some(both) = both_ways(&cluster, "\"$@\"", placement, &infos, &child) else {
            return;
        };
        for lines in both {
            assert_eq!(lines, ["child 0 node02", "child 1 node01"], "{options:?}");
        }
    }
}

#[test]
fn staged_files_do_not_outlive_killed_step() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), pmix("pmix4")) else {
        return;
    };
    // Everybody sees them, but they are asked to be elsewhere.
    let (child, data) = (cluster.dir().join("child"), cluster.dir().join("data.txt"));
    fs::write(&child, "#!/bin/sh\necho child up\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&data, "contents").unwrap();
    let files = format!("preload_files={}", data.display());
    let list = ["--hosts", "node01:1,node02:2", "-n", "1"];
    let run = cluster.run(0, list).more([client.dir.join("pmix_spawn")]);
    let run = run.more(["run"]).more([&child]);
    let running = run
        .more(["wdir=/tmp", "preload_binary=true", &files])
        .start();
    running.wait_for_many(Output::Stdout, "child up", 2);
    let files = cluster.host(1).files();
    assert!(
        files.iter().any(|file| file.ends_with("tmp/data.txt")),
        "{files:?}"
    );
    let steps = cluster.host(1).processes().into_iter();
    let mut steps = steps.filter(|process| process.name == "wireup-step");
    steps.next().unwrap().signal(Signal::KILL);
    // Whatever is left is found where every launch is looked after.
    assert_ne!(running.finish().code, 0);
}
