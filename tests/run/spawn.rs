//! Processes that start others: spawns of real MPIs, of PMIx clients and of Python, on one node and
//! on several.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    Mpi, Outcome, Output, Pmix, Process, Run, Running, combinations, descriptors, eventually,
    field, mpi, mpi4py, node_name, number, pmix, sample, settled, wireup,
};
use crate::pmix::{SERVERS, pairs};
use crate::virtual_nodes::node;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// An MPI that can spawn, and its server.
#[derive(Clone)]
struct Stage {
    mpi: Mpi,
    options: Vec<String>,
}

/// Servers with the Open MPIs, and the others; two of them in the short size.
fn stages() -> Vec<Stage> {
    sample(all_stages(), 2)
}

fn all_stages() -> Vec<Stage> {
    let served = pairs().into_iter().map(|(server, _, mpi, _)| Stage {
        mpi,
        options: vec!["--libpmix".to_owned(), server.path().to_owned()],
    });
    let others = ["mpich5", "impi"].into_iter().filter_map(mpi);
    let others = others.map(|mpi| Stage {
        mpi: mpi.with_dynamic_processes(),
        options: Vec::new(),
    });
    served.chain(others).collect()
}

impl Stage {
    fn run(&self, ranks: u32, options: &[&str], program: &str, args: &[&str]) -> Run {
        let own = self.options.iter().map(String::as_str);
        let options: Vec<&str> = own.chain(options.iter().copied()).collect();
        let run = self.mpi.run(ranks, &options, program, args);
        run.deadline(Duration::from_secs(120))
    }
}

/// Returns the output of the children of one spawn, by rank.
#[track_caller]
fn children(outcome: &Outcome, level: u32, count: u32) -> Vec<String> {
    let text = outcome.out();
    let ours = |line: &&str| line.starts_with("spawned ") && number(line, "level") == level;
    let mut lines: Vec<String> = text.lines().filter(ours).map(str::to_owned).collect();
    lines.sort_by_key(|line| number(line, "rank"));
    let ranks: Vec<u32> = lines.iter().map(|line| number(line, "rank")).collect();
    let expected: Vec<u32> = (0..count).collect();
    assert_eq!(ranks, expected, "children of level {level}; {outcome:?}");
    lines
}

/// All parents saw `merged` children merge.
#[track_caller]
fn expect_merged(outcome: &Outcome, parents: u32, merged: u32) {
    for line in outcome.by_rank("spawn", parents) {
        assert_eq!(number(&line, "merged"), merged, "{line}; {outcome:?}");
    }
}

/// Returns the host of each of these lines.
fn hosts(lines: &[String]) -> Vec<&str> {
    let hosts = lines.iter().map(|line| field(line, "host").unwrap());
    hosts.collect()
}

#[test]
fn children_merge_with_their_parents() {
    for stage in stages() {
        for nodes in [NODES[0], NODES[1], &["--virtual-nodes", "3"]] {
            let outcome = stage.run(3, nodes, "spawn", &["children=4"]).run();
            let outcome = outcome.expect_success();
            expect_merged(&outcome, 3, 7);
            let lines = children(&outcome, 1, 4);
            for line in &lines {
                assert_eq!(number(line, "parents"), 3, "{line}");
            }
            let nodes_of_children: Vec<u32> = hosts(&lines).into_iter().map(place).collect();
            let count = nodes.last().map_or(1, |count| count.parse().unwrap());
            assert!(
                nodes_of_children.iter().all(|node| *node < count),
                "{outcome:?}"
            );
            assert!(
                nodes_of_children.is_sorted(),
                "children are laid out by node; {nodes_of_children:?}"
            );
        }
    }
}

/// The number of the node of that name; 0 for this machine itself.
fn place(host: &str) -> u32 {
    let number = (0..8).find(|number| node(*number) == host);
    number.unwrap_or_else(|| {
        assert_eq!(host, node_name());
        0
    })
}

#[test]
fn universe_size_is_number_of_spawnable_ranks() {
    for mpi in crate::common::mpis() {
        let universe = |options: &[&str]| {
            let run = mpi.run(2, options, "spawn", &["levels=0"]);
            let lines = run.run().expect_success().by_rank("spawn", 2);
            field(&lines[0], "universe").unwrap().to_owned()
        };
        let limited = ["--nooversubscribe", "--hosts", "localhost:8"];
        assert_eq!(universe(&limited), "8", "{}", mpi.name);
        for nodes in NODES {
            let universe = universe(nodes);
            // As under their own launchers.
            match mpi.name.starts_with("openmpi") {
                true => assert!(universe.parse::<u32>().unwrap() >= 2),
                false => assert_eq!(universe, "none", "{}", mpi.name),
            }
        }
    }
}

#[test]
fn several_programs_are_spawned_as_one_job() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let outcome = stage.run(2, nodes, "spawn", &["apps=3", "children=1"]);
        let outcome = outcome.run().expect_success();
        expect_merged(&outcome, 2, 8);
        let apps = children(&outcome, 1, 6);
        let apps = apps.iter().map(|line| number(line, "app"));
        assert_eq!(apps.collect::<Vec<_>>(), [0, 1, 1, 2, 2, 2], "{outcome:?}");
    }
}

#[test]
fn grandchildren_spawn_children() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        // On a busy machine the last ones come to their end long after the first ones.
        let options = [nodes, &["--children", "independent"]].concat();
        let outcome = stage.run(2, &options, "spawn", &["levels=3"]).run();
        let outcome = outcome.expect_success();
        expect_merged(&outcome, 2, 4);
        for level in 1..=3 {
            children(&outcome, level, 2);
        }
    }
}

#[test]
fn ranks_spawn_concurrently() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let outcome = stage.run(3, nodes, "spawn", &["from=self"]).run();
        let outcome = outcome.expect_success();
        expect_merged(&outcome, 3, 3);
        let count = outcome.out().matches("spawned rank=").count();
        assert_eq!(count, 6, "{outcome:?}");
    }
}

#[test]
fn missing_program_fails_only_its_spawn() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        for apps in ["apps=1", "apps=2"] {
            // Each by itself: Open MPI 4 does not tell the ranks that wait for the one that
            // spawns.
            let args = [apps, "from=self", "bad=/no/such/program", "quiet=1"];
            let outcome = stage.run(2, nodes, "spawn", &args).run().expect(0);
            // Only Open MPI 4 has a word for it; 5 passes codes of its own on, and MPICH and Intel
            // tell nothing of each process.
            let (class, each) = match &*stage.mpi.name {
                "openmpi4" => ("spawn", "spawn"),
                "openmpi5" => ("other", "odd"),
                _ => ("other", "ok"),
            };
            for line in outcome.by_rank("spawn", 2) {
                let (all, codes) = field(&line, "refused").unwrap().split_once(':').unwrap();
                assert_eq!(all, class, "{outcome:?}");
                assert!(codes.split(',').all(|code| code == each), "{outcome:?}");
            }
            let err = outcome.err();
            for rank in ["rank 0 ", "rank 1 "] {
                let is_reason = |line: &str| {
                    line.starts_with("wireup: ")
                        && line.contains(rank)
                        && line.contains("\"/no/such/program\" not found")
                };
                assert!(
                    err.lines().any(is_reason),
                    "{rank}: the reason; {outcome:?}"
                );
            }
            // What works afterwards.
            expect_merged(&outcome, 2, if apps == "apps=1" { 3 } else { 6 });
        }
    }
}

#[test]
fn mpi_spawn_fails_when_children_end_without_mpi() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let args = ["from=self", "bad=/bin/true", "quiet=1"];
        let run = stage.run(2, nodes, "spawn", &args);
        let outcome = run.run().expect(0);
        let why = "rank 0 cannot spawn: all processes of /bin/true ended without contacting PMI";
        assert!(outcome.err().contains(why), "{outcome:?}");
        expect_merged(&outcome, 2, 3);
    }
}

#[test]
fn spawn_timeout_ends_children_that_never_contact_pmi() {
    let why = "rank 0 cannot spawn: no process contacted PMI or PMIx within the 6 s allowed";
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let options = [&["--spawn-timeout", "6"], nodes].concat();
        let args = ["from=self", "bad=./waits", "quiet=1", "linger=1"];
        let run = stage.run(2, &options, "spawn", &args);
        let waits = run.dir().join("waits");
        fs::write(&waits, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        fs::set_permissions(&waits, PermissionsExt::from_mode(0o755)).unwrap();
        let running = run.start();
        running.wait_for_many(Output::Stdout, "lingers rank=", 2);
        eventually("no such child is left", || {
            let processes = running.processes();
            let is_left = processes.iter().any(|process| process.name == "sleep");
            (!is_left).then_some(())
        });
        running.signal(Signal::TERM);
        let outcome = running.finish().expect(143);
        expect_merged(&outcome, 2, 3);
        assert!(outcome.err().contains(why), "{outcome:?}");
    }
}

#[test]
fn child_exit_code_becomes_launch_exit_code() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        for (how, code) in [("exit", 3), ("quit", 3), ("abort", 3), ("die", 137)] {
            let args = [&*format!("child={how}"), "code=3", "quiet=1"];
            let outcome = stage.run(2, nodes, "spawn", &args).run();
            assert_eq!(outcome.code, code, "{how}; {outcome:?}");
        }
    }
}

/// A run whose parents have a name of their own among the processes.
fn with_parents_called(name: &str, stage: &Stage, nodes: &[&str], args: &[&str]) -> Run {
    let program = stage.mpi.program("spawn");
    let run = stage.run(2, nodes, "hello", &[]);
    let copy = run.dir().join(name);
    fs::hard_link(&program, &copy)
        .or_else(|_| fs::copy(&program, &copy).map(|_| ()))
        .unwrap();
    let program = format!("program={}", program.display());
    let own = stage.options.iter().map(String::as_str);
    let words = own.chain(nodes.iter().copied()).map(Path::new);
    let words = words.chain([&*copy]).chain(args.iter().map(Path::new));
    let run = Run::ranks(2, words.chain([Path::new(&program)])).beside(&run);
    let env = stage.mpi.env.iter();
    env.fold(run, |run, (name, value)| run.env(name, value))
        .deadline(Duration::from_secs(120))
}

fn kill(process: &Process) {
    kill_process(Pid::from_raw(process.pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn parent_killed_during_spawn_ends_launch() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let args = ["times=10000", "children=2"];
        let run = with_parents_called("begetter", &stage, nodes, &args).start();
        run.wait_for_many(Output::Stdout, "spawned rank=", 3);
        let parents = run.processes();
        kill(parents.iter().find(|p| p.name == "begetter").unwrap());
        let outcome = run.finish().expect(137);
        assert!(outcome.err().contains("signal 9"), "{outcome:?}");
    }
}

#[test]
fn killed_child_ends_launch() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let run = with_parents_called("begetter", &stage, nodes, &["child=hang"]).start();
        run.wait_for_many(Output::Stdout, "hangs rank=", 2);
        kill(run.processes().iter().find(|p| p.name == "spawn").unwrap());
        let outcome = run.finish().expect(137);
        assert!(outcome.err().contains("signal 9"), "{outcome:?}");
    }
}

#[test]
fn interrupt_ends_children() {
    for stage in stages() {
        let run = stage.run(2, NODES[1], "spawn", &["child=hang"]).start();
        run.wait_for_many(Output::Stdout, "hangs rank=", 2);
        run.signal(Signal::INT);
        run.finish().expect(130);
    }
}

/// Returns the resources of wireup's own processes: descriptors of the launcher and of each
/// sidecar, and files.
fn held(run: &Running) -> (usize, Vec<usize>, usize) {
    let all = run.processes();
    let sidecars = all.iter().filter(|p| p.name == "wireup-pmix-hos");
    let sidecars = sidecars.map(|p| descriptors(p.pid)).collect();
    let files = walk(run.work().parent().unwrap());
    (descriptors(run.pid()), sidecars, files)
}

fn walk(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).map(|entries| entries.flatten().collect());
    let entries: Vec<fs::DirEntry> = entries.unwrap_or_default();
    let below = entries.iter().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => 1 + walk(&entry.path()),
        _ => 1,
    });
    below.sum()
}

/// Resident memory of the sidecars, in KiB.
fn memory_of_sidecars(run: &Running) -> u64 {
    let all = run.processes().into_iter();
    let sidecars = all.filter(|p| p.name == "wireup-pmix-hos");
    let resident = sidecars.map(|process| {
        let path = format!("/proc/{}/status", process.pid);
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_ascii_whitespace().next());
        number.and_then(|n| n.parse::<u64>().ok()).unwrap()
    });
    resident.sum()
}

#[test]
fn hundred_spawns_leave_nothing_behind() {
    for stage in sample(all_stages(), 1) {
        // Of each of two ranks, at the same time.
        let (few_times, many_times) = (2, 50);
        let after = |times: u64| {
            let times = format!("times={times}");
            let args = ["from=self", &times, "children=1", "linger=1", "quiet=1"];
            let run = with_parents_called("begetter", &stage, NODES[1], &args).start();
            run.wait_for_many(Output::Stdout, "lingers rank=", 2);
            let what = format!("all children have ended, {} {times}", stage.mpi.name);
            eventually(&what, || {
                let all = run.processes();
                (!all.iter().any(|p| p.name == "spawn")).then_some(())
            });
            let held = settled(|| held(&run));
            let usage = (held, memory_of_sidecars(&run));
            run.signal(Signal::TERM);
            run.finish().expect(143);
            usage
        };
        let ((few, before), (many, then)) = (after(few_times), after(many_times));
        assert_eq!(few.0, many.0, "{}", stage.mpi.name);
        // A sidecar makes one pipe more when a client's first message is late for the first time.
        let grown = few
            .1
            .iter()
            .zip(&many.1)
            .find(|(few, many)| **many > **few + 2);
        assert_eq!(grown, None, "{}: {few:?} to {many:?}", stage.mpi.name);
        assert_eq!(few.1.len(), many.1.len());
        // libpmix 4.2 makes a file for every thirty jobs or so that it has known, on each node.
        assert!(many.2 <= few.2 + 8, "{few:?} to {many:?}");
        // libpmix 5.0 keeps some 10 KiB for each job that it has known, and 4.2 some 35.
        let (nodes, jobs) = (2, 2 * (many_times - few_times));
        assert!(
            then < before + 1024 + nodes * jobs * 48,
            "{before} to {then} KiB"
        );
    }
}

#[test]
fn info_keys_of_mpi_are_honoured() {
    for stage in stages() {
        let host = format!("info.host={}", node(1));
        let args = ["info.wdir=/usr", &*host, "children=2"];
        let outcome = stage.run(2, NODES[1], "spawn", &args).run();
        let outcome = outcome.expect_success();
        for line in children(&outcome, 1, 2) {
            assert_eq!(field(&line, "dir"), Some("/usr"), "{outcome:?}");
            assert_eq!(field(&line, "host"), Some(&*node(1)), "{outcome:?}");
        }
    }
}

#[test]
fn programs_and_variables_may_come_from_mpi_info() {
    for stage in stages() {
        let program = stage.mpi.program("spawn");
        let path = format!("info.path={}", program.parent().unwrap().display());
        // Open MPI passes on no path, and only a bare name is looked for.
        let program = match stage.mpi.name.starts_with("openmpi") {
            true => format!("program={}", program.display()),
            false => "program=spawn".to_owned(),
        };
        let args = [&*program, &*path, "info.env=SPAWN_WORD=said", "children=2"];
        let outcome = stage.run(2, NODES[1], "spawn", &args).run();
        for line in children(&outcome.expect_success(), 1, 2) {
            assert_eq!(field(&line, "word"), Some("said"), "{line}");
        }
    }
}

#[test]
fn labels_distinguish_jobs() {
    for stage in stages() {
        let args = ["times=2", "children=2"];
        let outcome = stage.run(2, &["-l", "--virtual-nodes", "2"], "spawn", &args);
        outcome.run().expect_success().expect_labels_of_jobs();
    }
}

#[test]
fn two_halves_of_job_connect() {
    for (stage, nodes) in combinations(&stages(), &NODES) {
        let outcome = stage.run(4, nodes, "meet", &["halves", "a name", "3"]);
        let outcome = outcome.run().expect_success();
        for (rank, line) in (0..).zip(outcome.by_rank("meet", 4)) {
            assert_eq!(number(&line, "merged"), 4, "{line}");
            let side = if rank < 2 { "accept" } else { "connect" };
            assert_eq!(field(&line, "side"), Some(side), "{line}");
        }
    }
}

/// Runs a mode of `pmix_spawn` with every server and client, on one node and on two.
fn pmix_everywhere(args: &[&str], check: impl Fn(&Outcome, u32)) {
    let all = || SERVERS.iter().filter_map(|(name, _)| pmix(name));
    for server in all() {
        for client in all() {
            for nodes in NODES {
                let options = [&["--libpmix", server.path()], nodes].concat();
                let outcome = Pmix::run(&client, 2, &options, "pmix_spawn", args).run();
                check(&outcome.expect(0), 1 + u32::from(!nodes.is_empty()));
            }
        }
    }
}

/// Returns the output of `count` children of PMIx programs.
#[track_caller]
fn pmix_children(outcome: &Outcome, count: usize) -> Vec<String> {
    let lines = outcome.sorted_lines().into_iter();
    let lines: Vec<String> = lines.filter(|l| l.starts_with("pmix_spawned ")).collect();
    assert_eq!(lines.len(), count, "{outcome:?}");
    lines
}

#[test]
fn pmix_parents_and_children_connect_and_get_end_events() {
    pmix_everywhere(&["family", "3"], |outcome, _| {
        let children = pmix_children(outcome, 9);
        outcome.expect_offsets(2, 3);
        for line in outcome.by_rank("pmix_spawn", 2) {
            assert_eq!(number(&line, "status"), 0, "{line}");
            let hosts = field(&line, "value").unwrap();
            // With shared data the client of 5.0 has no hosts of other jobs.
            let known = |child: &String| hosts.contains(field(child, "host").unwrap());
            assert!(
                hosts == "?,?,?" || children.iter().all(known),
                "{outcome:?}"
            );
        }
    });
}

#[test]
fn pmix_spawns_run_concurrently() {
    pmix_everywhere(&["nb", "4"], |outcome, _| {
        pmix_children(outcome, 8);
        for line in outcome.by_rank("pmix_spawn", 2) {
            assert_eq!(field(&line, "value"), Some("4"), "{line}");
        }
    });
}

#[test]
fn pmix_infos_are_honoured_or_ignored_when_optional() {
    let wishes = ["with", "!pmix.wdir=/usr", "pmix.of.another.world=7"];
    pmix_everywhere(&wishes, |outcome, _| {
        for line in pmix_children(outcome, 2) {
            assert_eq!(field(&line, "dir"), Some("/usr"), "{outcome:?}");
        }
    });
}

#[test]
fn spawned_programs_are_in_requested_psets() {
    for (server, _) in SERVERS {
        let Some(server) = pmix(server) else { continue };
        for (client, _) in SERVERS {
            let Some(client) = pmix(client) else { continue };
            let run = |set: &str, args: &[&str]| {
                let set = format!("SPAWN_SET={set}");
                let options = [
                    "--virtual-nodes",
                    "2",
                    "--libpmix",
                    server.path(),
                    "-x",
                    &set,
                ];
                client.run(2, &options, "pmix_spawn", args).run().expect(0)
            };
            for infos in [
                &["with", "!pmix.pset.nm=workers"][..],
                &["with", "job.!pmix.pset.nm=workers"],
            ] {
                for line in pmix_children(&run("workers", infos), 2) {
                    assert_eq!(field(&line, "set"), Some("0,1"), "{line}");
                }
            }
            for line in pmix_children(&run("others", &["with", "pmix.pset.nm=workers"]), 2) {
                assert_eq!(field(&line, "set"), Some("-"), "{line}");
            }
            let refused = run("app0", &["with", "pmix.pset.nm=a,b"]);
            pmix_children(&refused, 0);
            assert!(refused.err().contains("without commas"), "{refused:?}");
        }
    }
}

#[test]
fn unknown_required_pmix_infos_refuse_spawn() {
    pmix_everywhere(&["with", "!pmix.of.another.world=7"], |outcome, _| {
        pmix_children(outcome, 0);
        let lines = outcome.by_rank("pmix_spawn", 2);
        // PMIX_ERR_NOT_SUPPORTED.
        assert_eq!(field(&lines[0], "status"), Some("-47"), "{outcome:?}");
        assert!(
            outcome.err().contains("pmix.of.another.world"),
            "{outcome:?}"
        );
    });
}

#[test]
fn pmix_spawns_of_missing_files_fail_with_status() {
    pmix_everywhere(&["run", "/no/such/program"], |outcome, _| {
        let lines = outcome.by_rank("pmix_spawn", 2);
        assert_ne!(field(&lines[0], "status"), Some("0"), "{outcome:?}");
        assert!(outcome.err().contains("/no/such/program"), "{outcome:?}");
    });
}

/// Runs a program of Python, with mpi4py on every MPI that can spawn.
fn python(program: &str, ranks: u32, nodes: &[&str], check: impl Fn(&Outcome)) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    for stage in stages() {
        // mpi4py crashes when its threads use it, under its own launcher too.
        if stage.mpi.name == "impi" && program == "pool.py" {
            continue;
        }
        let Some(with) = mpi4py(&stage.mpi) else {
            return;
        };
        let own = stage.options.iter().map(String::as_str);
        let options = own.chain(nodes.iter().copied()).map(Path::new);
        let words = options.chain([&*with.python]);
        let run = Run::ranks(ranks, words).more([source.join(program)]);
        let env = with.env.iter();
        let run = env.fold(run, |run, (name, value)| run.env(name, value));
        check(
            &run.deadline(Duration::from_secs(120))
                .run()
                .expect_success(),
        );
    }
}

#[test]
fn python_program_spawns_python_programs() {
    python("spawn.py", 2, &[], |outcome| {
        let lines_of = |word| outcome.by_rank(word, if word == "child" { 3 } else { 2 });
        for line in lines_of("parent").into_iter().chain(lines_of("child")) {
            assert_eq!(number(&line, "sum"), 15, "{outcome:?}");
        }
        for line in lines_of("child") {
            assert_eq!(field(&line, "words"), Some("an argument"), "{outcome:?}");
        }
    });
}

#[test]
fn mpi4py_pool_gets_requested_workers() {
    // On two nodes there are two ranks at least, each with a pool of its own.
    for (nodes, ranks) in [(NODES[0], 1), (NODES[1], 2)] {
        python("pool.py", ranks, nodes, |outcome| {
            let mut nodes_of_workers = BTreeSet::new();
            for line in outcome.by_rank("pool", ranks) {
                assert_eq!(number(&line, "sum"), 85344, "{outcome:?}");
                assert_eq!(number(&line, "workers"), 4, "{outcome:?}");
                let hosts = field(&line, "hosts").unwrap().split(',');
                nodes_of_workers.extend(hosts.map(place));
            }
            assert_eq!(nodes_of_workers, (0..ranks).collect(), "{outcome:?}");
        });
    }
}

/// Shows the settings of a rank, in lines that begin with `rank`.
const SETTINGS: &str = "#!/bin/sh
tmpdir=none; [ -d \"$WIREUP_TMPDIR\" ] && [ -w \"$WIREUP_TMPDIR\" ] && tmpdir=own
echo rank umask=$(umask) files=$(ulimit -Sn):$(ulimit -Hn) core=$(ulimit -Sc) a=$A b=$B home=${HOME-unset} tmpdir=$tmpdir wrapped=$WRAPPED cwd=$(pwd) usr=$([ -w /usr ] && echo written) mnt=$(ls -d /mnt/bin)
";

/// Settings of ranks: options of the initial job, and infos of a spawn that ask for the same.
const BOTH_WAYS: [(&str, &[&str]); 10] = [
    ("--umask 027", &["umask=027"]),
    (
        "--rlimit nofile=100:200 --rlimit core=0",
        &["rlimit=nofile=100:200\ncore=0"],
    ),
    ("-x A=1 -x B=2", &["env=A=1\nB=2"]),
    ("--env none -x A -x PATH", &["env=none\nA\nPATH"]),
    ("--env-file variables", &["env_file=variables"]),
    ("--rank-tmpdir", &["rank_tmpdir=true"]),
    ("--wrap 'env WRAPPED=yes'", &["wrap=env WRAPPED=yes"]),
    ("--image /", &["image=/"]),
    (
        "--image bwrap:/ --image-mount /usr:/mnt:ro",
        &["image=/", "runtime=bwrap", "image_mount=/usr:/mnt:ro"],
    ),
    (
        "--wrap 'env WRAPPED=yes' --wrap-ranks 1 --wdir /",
        &["wrap=env WRAPPED=yes", "wrap_ranks=1", "wdir=/"],
    ),
];

#[test]
fn spawned_ranks_have_settings_like_initial_job() {
    let Some(client) = pmix("pmix5") else { return };
    for nodes in NODES {
        for (options, infos) in BOTH_WAYS {
            let infos: Vec<String> = infos.iter().map(|info| format!("'{info}'")).collect();
            let spawn = client.dir.join("pmix_spawn");
            let wireup = format!(
                "{} run --oversubscribe {}",
                wireup().display(),
                nodes.join(" ")
            );
            let spawner = format!("--libpmix {} -n 2 {}", client.path(), spawn.display());
            let script = format!(
                "printf 'A=7\\nB\\n' > variables; printf '%s' \"$SETTINGS\" > settings; chmod +x settings
                 export A=inherited B=here
                 {wireup} -n 2 {options} \"$PWD\"/settings > initial || exit
                 {wireup} {spawner} run \"$PWD\"/settings {} > spawned || exit
                 grep -h ^rank initial | sort; echo and; grep -h ^rank spawned | sort",
                infos.join(" ")
            );
            let run = Run::command(["sh", "-c", &script]).env("SETTINGS", SETTINGS);
            let outcome = run.run().expect(0);
            let text = outcome.out();
            let (initial, spawned) = text.split_once("and\n").unwrap();
            assert_eq!(initial.lines().count(), 2, "{options}: {outcome:?}");
            assert_eq!(initial, spawned, "{options}: {outcome:?}");
        }
    }
}

#[test]
fn spawn_with_missing_image_fails_alone() {
    let Some(client) = pmix("pmix5") else { return };
    for (info, problem) in [
        (
            "image=/no/such/root",
            "--image /no/such/root: directory not found",
        ),
        (
            "uenv=/no/such.squashfs",
            "--uenv /no/such.squashfs: file not found",
        ),
    ] {
        let run = client.run(2, &["--oversubscribe"], "pmix_spawn", &["with", info]);
        let outcome = run.run().expect(0);
        pmix_children(&outcome, 0);
        assert!(outcome.err().contains(problem), "{outcome:?}");
    }
}

#[test]
fn container_of_spawned_job_ends_with_job() {
    let Some(client) = pmix("pmix5") else { return };
    let script = format!(
        "{} with image=/; n=0
         while ls -d $TMPDIR/wireup-*.image; do
             sleep 0.1; n=$((n + 1)); [ $n -lt 600 ] || exit 9
         done; echo gone",
        client.dir.join("pmix_spawn").display()
    );
    let options = [
        "--oversubscribe",
        "--pmi",
        "pmix",
        "--libpmix",
        client.path(),
    ];
    let dir = tempfile::tempdir().unwrap();
    let run = Run::ranks(1, options).env("TMPDIR", dir.path());
    let run = run.more(["sh", "-c", &script]);
    let outcome = run.run().expect(0);
    pmix_children(&outcome, 2);
    assert!(outcome.out().contains("gone"), "{outcome:?}");
}

#[test]
fn spawned_ranks_get_layout_like_initial_job() {
    let Some(client) = pmix("pmix5") else { return };
    let (one, two) = (["0", "0"], ["1", "0"]);
    let cases = [
        (1, "--layout 0*2", "layout=0*2", one),
        (2, "--layout 1*1,0*1", "layout=1*1,0*1", two),
        (1, "--rankfile ranks", "rankfile=ranks", one),
        (2, "--rankfile ranks", "rankfile=ranks", two),
    ];
    for (count, option, info, nodes) in cases {
        let wireup = format!(
            "{} run --oversubscribe --virtual-nodes {count}",
            wireup().display()
        );
        let last = count - 1;
        let spawner = format!(
            "--libpmix {} -n 2 {}",
            client.path(),
            client.dir.join("pmix_spawn").display()
        );
        let script = format!(
            "printf '%s\\n' 'rank 0=+n{last} slot=0' 'rank 1=+n0 slot=0' > ranks
             printf '#!/bin/sh\\necho rank $WIREUP_RANK on $WIREUP_NODE\\n' > place; chmod +x place
             {wireup} -n 2 {option} --bind-to none \"$PWD\"/place | sort || exit
             {wireup} {spawner} run \"$PWD\"/place '{info}' bind_to=none | grep ^rank | sort"
        );
        let outcome = Run::command(["sh", "-c", &script]).run().expect(0);
        let line = |(rank, node): (usize, &&str)| format!("rank {rank} on {node}");
        let expected: Vec<String> = nodes.iter().enumerate().map(line).collect();
        let text = outcome.out();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [&expected[..], &expected[..]].concat(),
            "{outcome:?}"
        );
    }
    let options = [
        "--libpmix",
        client.path(),
        "--virtual-nodes",
        "2",
        "--oversubscribe",
    ];
    for (info, needed) in [
        ("layout=2*2", "node 2"),
        ("layout=0*3", "has 3 ranks"),
        ("pset=some=2", "the job has ranks 0 to 1"),
    ] {
        let outcome = client
            .run(2, &options, "pmix_spawn", &["with", info])
            .run()
            .expect(0);
        assert!(outcome.err().contains(needed), "{outcome:?}");
    }
    let run = client.run(2, &options, "pmix_spawn", &["with", "pset=some=1"]);
    let outcome = run.env("SPAWN_SET", "some").run().expect(0);
    let children = pmix_children(&outcome, 2);
    assert!(
        children.iter().all(|line| field(line, "set") == Some("1")),
        "{outcome:?}"
    );
}
