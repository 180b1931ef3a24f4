//! Binding of ranks to CPUs: what ranks find in `/proc/self/status`, and plans for other machines, which are compared
//! with those of other launchers.

mod gpus;
mod limits;
mod locality;
mod memory;
mod rankfile;
mod spawned;

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::common::{Outcome, Run, mpi, node_name, skip, wireup};
use wireup_core::topology::ranges;

/// Prints the rank and the CPUs that it may use.
const SHOW: [&str; 3] = [
    "sh",
    "-c",
    "echo $WIREUP_RANK $(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)",
];

/// This machine, as `wireup topo` shows it: the CPUs of each part of a level that ranks may use.
fn parts(level: &str) -> Vec<String> {
    let shown = Run::command([wireup().as_os_str(), "topo".as_ref(), "--json".as_ref()]).run();
    let shown: Value = serde_json::from_str(&shown.expect_quiet_success().out()).unwrap();
    let parts = shown["parts"][level].as_array().unwrap().iter();
    parts
        .map(|part| part["cpus"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the output of two ranks with these options; they may share CPUs where there are not
/// enough.
fn shown(options: &[&str]) -> Outcome {
    let words = [&["--oversubscribe"], options, &SHOW].concat();
    Run::ranks(2, words).run().expect(0)
}

#[test]
fn ranks_are_bound_as_planned() {
    let cores = parts("core");
    let second = &cores[1 % cores.len()];
    for (options, expected) in [
        (&["--bind-to", "core"][..], [&cores[0], second]),
        (&["--map-by", "core"], [&cores[0], second]),
        (
            &["--map-by", "ppr:2:package", "--bind-to", "core"],
            [&cores[0], second],
        ),
    ] {
        let outcome = shown(options);
        let lines = [format!("0 {}", expected[0]), format!("1 {}", expected[1])];
        assert_eq!(outcome.sorted_lines(), lines, "{options:?}");
    }
    let package = &parts("package")[0];
    let outcome = shown(&["--bind-to", "package", "--report-bindings"]);
    let lines = outcome.sorted_lines();
    assert_eq!(lines, [format!("0 {package}"), format!("1 {package}")]);
    let host = node_name();
    for rank in 0..2 {
        let line = format!("wireup: {host}: rank {rank}: core");
        assert!(outcome.err().contains(&line), "{}", outcome.err());
    }
    let first = cores[0].split(['-', ',']).next().unwrap();
    let list = format!("cpu-list:{first}");
    let outcome = shown(&["--bind-to", &list]);
    assert_eq!(
        outcome.sorted_lines(),
        [format!("0 {first}"), format!("1 {first}")]
    );
}

#[test]
fn default_is_no_binding() {
    let here = Command::new("sh").args(["-c", SHOW[2]]).output().unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    for options in [&[][..], &["--bind-to", "none", "--map-by", "core"]] {
        let lines = shown(options).sorted_lines();
        assert_eq!(lines[1], format!("1 {}", here.trim()), "{options:?}");
    }
    let outcome = Run::new(["-n", "1", "--report-bindings", "true"]).run();
    let line = "ranks are not bound (--bind-to binds them)";
    outcome.expect(0).expect_one_line(&[line]);
}

#[test]
fn affinity_mask_limits_binding() {
    let last = parts("hwthread").pop().unwrap();
    let limited = |words: &[&str]| Run::new(words).under(["taskset", "-c", &last]).run();
    let words = [&["-n", "1", "--bind-to", "core"], &SHOW[..]].concat();
    let outcome = limited(&words).expect_quiet_success();
    assert_eq!(outcome.out(), format!("0 {last}\n"));
    let words = ["-n", "1", "--bind-to", "cpu-list:60000", "true"];
    limited(&words).expect_one_line(&["CPU 60000 is offline on this host", &last]);
}

#[test]
fn virtual_nodes_share_machine() {
    let cores = parts("core");
    let second = &cores[1 % cores.len()];
    let outcome = shown(&["--virtual-nodes", "2", "--bind-to", "core"]);
    let lines = [format!("0 {}", cores[0]), format!("1 {second}")];
    assert_eq!(outcome.sorted_lines(), lines);
}

#[test]
fn spawned_ranks_are_bound_after_earlier_ones() {
    let cores = parts("core");
    let Some(mpi) = mpi("mpich5") else { return };
    let options = ["--oversubscribe", "--bind-to", "core", "--report-bindings"];
    let run = mpi
        .with_dynamic_processes()
        .run(1, &options, "spawn", &["children=1"]);
    let err = run.run().expect(0).err();
    let host = node_name();
    let bound = |core: usize| format!("{host}: rank 0: core {}", core % cores.len());
    for core in [0, 1] {
        assert!(err.contains(&bound(core)), "{err}");
    }
}

#[test]
fn hosts_that_cannot_bind_refuse_in_one_line() {
    let refused = |words: &[&str], needed: &[&str]| {
        let words = [&["-n", "1"], words, &["true"]].concat();
        Run::new(words).run().expect_one_line(needed);
    };
    refused(&["--bind-to", "board"], &["give none, hwthread, core"]);
    refused(
        &["--bind-to", "cpu-list:0", "--map-by", "numa"],
        &["leave --map-by out"],
    );
    refused(
        &["--map-by", "ppr:1:node", "--ppn", "1"],
        &["write one of them"],
    );
    Run::new([
        "--hosts",
        "elsewhere:8",
        "--map-by",
        "ppr:2:package",
        "true",
    ])
    .run()
    .expect_one_line(&[
        "--map-by ppr:2:package",
        "give the number of ranks too (-n)",
    ]);
    let library = "/nonexistent/libhwloc.so";
    // A launch that binds nothing does not look for it.
    Run::new(["-n", "1", "true"])
        .env("WIREUP_LIBHWLOC", library)
        .run()
        .expect_quiet_success();
    Run::new(["-n", "1", "--bind-to", "core", "true"])
        .env("WIREUP_LIBHWLOC", library)
        .run()
        .expect_one_line(&["cannot load hwloc", library, "install it"]);
    Run::new(["-n", "1", "--bind-to", "core", "true"])
        .env("HWLOC_XMLFILE", machine("numa4"))
        .run()
        .expect_one_line(&["another host's topology", "--dry-run"]);
    Run::new(["-n", "1", "--bind-to", "core", "true"])
        .env("HWLOC_XMLFILE", machine("none"))
        .run()
        .expect(125)
        .expect_one_line(&["cannot read HWLOC_XMLFILE /", "/none.xml: No such file"]);
    let described = |name: &str, value: &str| {
        let run = Run::command([wireup().as_os_str(), "topo".as_ref()]);
        run.env(name, value).run()
    };
    described("HWLOC_FSROOT", "/none")
        .expect(125)
        .expect_one_line(&[
            "cannot read HWLOC_FSROOT /none: No such file",
            "name an existing directory",
        ]);
    described("HWLOC_SYNTHETIC", "garbage")
        .expect(125)
        .expect_one_line(&[
            "invalid HWLOC_SYNTHETIC garbage: write",
            "pack:2 core:4 pu:2",
        ]);
    let other = described("HWLOC_SYNTHETIC", "pack:2 core:3 pu:1").expect(0);
    assert!(other.out().contains("2 packages, "), "{other:?}");
    assert!(other.out().contains(" 6 cores"), "{other:?}");
}

/// A machine that hwloc has described.
fn machine(name: &str) -> PathBuf {
    let root = env!("CARGO_MANIFEST_DIR");
    PathBuf::from(format!("{root}/core/topologies/{name}.xml"))
}

/// The plan for `ranks` ranks on a machine: of each rank its cores or hardware threads, and its CPUs. Without a number of
/// ranks the options decide it.
fn planned(
    name: &str,
    (ranks, slots): (Option<u32>, u32),
    options: &[&str],
) -> Vec<(String, String)> {
    let (hosts, ranks) = (
        format!("localhost:{slots}"),
        ranks.map(|ranks| ranks.to_string()),
    );
    let mut words = vec!["--hosts", &hosts, "--dry-run"];
    words.extend(ranks.iter().flat_map(|ranks| ["-n", ranks]));
    words.extend(options);
    words.push("true");
    let run = Run::new(words).env("HWLOC_XMLFILE", machine(name));
    let out = run.run().expect(0).out();
    // `rank 3: cores 6-7 of NUMA node 0, package 0 (CPUs 12-15)`.
    let of_rank = |line: &str| {
        let (_, place) = line.trim().strip_prefix("rank ")?.split_once(": ")?;
        let (place, cpus) = place.split_once(" (CPU")?;
        let (cpus, _devices) = cpus.split_once(')')?;
        let units = place.split(" of ").next()?.split(' ').next_back()?;
        Some((
            units.to_owned(),
            cpus.trim_start_matches(['s', ' ']).to_owned(),
        ))
    };
    out.lines().filter_map(of_rank).collect()
}

/// The cores of each rank that a map of prterun's shows.
fn bindings(map: &str) -> Vec<String> {
    let numbers = map.lines().filter_map(|line| {
        let (_, set) = line.split_once("Binding: ")?;
        let (_, numbers) = set.rsplit_once(":L")?;
        Some(numbers.trim_end_matches(']').to_owned())
    });
    numbers.collect()
}

#[test]
fn plans_equal_those_of_prterun_on_same_topology() {
    let Some(open) = mpi("openmpi5") else { return };
    let prterun = open.launcher.with_file_name("prterun");
    if !prterun.is_file() {
        return skip("prterun is not beside mpirun of Open MPI 5");
    }
    for (name, ranks, map, to, modifier) in [
        ("gpu8", "5", "core", "core", ""),
        ("gpu8", "6", "numa", "core", ""),
        ("gpu8", "6", "l3", "l3", ""),
        ("gpu8", "4", "ppr:2:package", "core", ""),
        ("gpu8", "", "ppr:1:package", "core", ""),
        ("numa4", "", "ppr:2:numa", "core", ""),
        ("hybrid", "", "ppr:1:core", "core", ""),
        ("gpu8", "3", "slot", "core", ":pe=4"),
        ("hybrid", "9", "core", "core", ""),
        ("gracehopper", "5", "package", "core", ""),
        ("numa4", "10", "numa", "core", ""),
        ("numa4", "10", "numa", "numa", ""),
        ("numa4", "6", "package", "package", ""),
        ("numa4", "4", "numa", "core", ":pe=2"),
        ("numa4", "4", "ppr:2:package", "l3", ""),
    ] {
        let theirs = |unit: &str| unit.replace("l3", "l3cache");
        let output = Command::new(&prterun)
            .args(["--allow-run-as-root", "--prtemca", "hwloc_use_topo_file"])
            .arg(machine(name))
            .args(["--host", "localhost:512"])
            .args(["-n", ranks].iter().filter(|_| !ranks.is_empty()))
            .args([
                "--map-by",
                &(theirs(map) + modifier),
                "--bind-to",
                &theirs(to),
            ])
            .args(["--display", "map", "--do-not-launch", "true"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let theirs = bindings(&text);
        let each = modifier.strip_prefix(":pe=").unwrap_or("1");
        let ours = ["--map-by", map, "--bind-to", to, "--cpus-per-rank", each];
        let count = theirs.len() as u32;
        let slots = count * each.parse::<u32>().unwrap();
        let count = Some(count).filter(|_| !ranks.is_empty());
        let ours = planned(name, (count, slots), &ours);
        let ours: Vec<String> = ours.into_iter().map(|(units, _)| units).collect();
        assert!(!theirs.is_empty(), "{text}");
        assert_eq!(ours, theirs, "{name} {map} {to}");
    }
}

#[test]
fn plans_equal_those_of_hydra_on_same_topology() {
    let Some(mpich) = mpi("mpich5") else { return };
    for (name, to) in [
        ("gpu8", "core"),
        ("hybrid", "core"),
        ("numa4", "core"),
        ("numa4", "hwthread"),
        ("gracehopper", "hwthread"),
    ] {
        let output = Command::new(mpich.launcher.with_file_name("mpiexec.hydra"))
            .args(["-n", "5", "-bind-to", to, "true"])
            .env("HYDRA_TOPO_DEBUG", "1")
            .env("HWLOC_XMLFILE", machine(name))
            .output()
            .unwrap();
        let output = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&output);
        // A digit for each CPU, in the system's order.
        let theirs = text.lines().filter_map(|line| {
            let (rank, bits) = line.strip_prefix("process ")?.split_once(" binding: ")?;
            let bound = bits.char_indices().filter(|(_, bit)| *bit == '1');
            let cpus = bound.map(|(cpu, _)| cpu as u32).collect::<Vec<_>>();
            Some((rank.parse::<usize>().ok()?, ranges(cpus)))
        });
        let mut theirs: Vec<_> = theirs.collect();
        theirs.sort();
        let ours = planned(name, (Some(5), 5), &["--bind-to", to]);
        let ours: Vec<_> = ours.into_iter().map(|(_, cpus)| cpus).enumerate().collect();
        assert_eq!(ours, theirs, "{name} {to}: {text}");
    }
}

#[test]
fn openmp_threads_follow_bound_cores() {
    let cores = parts("core");
    let show = [
        "sh",
        "-c",
        "echo $OMP_NUM_THREADS $OMP_PLACES $OMP_PROC_BIND",
    ];
    let options = ["--bind-to", "package", "--openmp"];
    let shown = |more: &[&str]| {
        Run::ranks(1, [&options, more, &show].concat())
            .run()
            .expect(0)
            .out()
    };
    let out = shown(&[]);
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[0], cores.len().to_string());
    assert_eq!(words[1].matches('{').count(), cores.len(), "{out}");
    assert_eq!(words[2], "close");
    // What the user has set stays, also for one program of several.
    assert_eq!(shown(&["-x", "OMP_NUM_THREADS=7"]), "7\n");
    let last = [
        ":",
        "-n",
        "1",
        "-x",
        "OMP_NUM_THREADS=9",
        "printenv",
        "OMP_NUM_THREADS",
    ];
    let words = [&options[..], &["printenv", "OMP_NUM_THREADS"], &last].concat();
    let outcome = Run::ranks(1, words).run().expect(0);
    let mut expected = vec![cores.len().to_string(), "9".to_owned()];
    expected.sort();
    assert_eq!(outcome.sorted_lines(), expected);
}

#[test]
fn gpus_near_ranks_are_assigned() {
    let plan = |name: &str, ranks: &str, options: &[&str]| {
        let words = [
            &["--hosts", "localhost:64", "-n", ranks, "--dry-run"],
            options,
            &["true"],
        ];
        Run::new(words.concat())
            .env("HWLOC_XMLFILE", machine(name))
            .run()
    };
    let options = [
        "--map-by",
        "package",
        "--bind-to",
        "core",
        "--gpus-per-rank",
        "2",
    ];
    let out = plan("gpu8", "4", &options).expect(0).out();
    let line = "rank 2: core 64 of NUMA node 1, package 1 (CPUs 64,192), \
                NVIDIA GPU 0000:90:00.0 (renderD132), NVIDIA GPU 0000:a0:00.0 (renderD133)";
    assert!(out.contains(line), "{out}");
    let set = "CUDA_DEVICE_ORDER=PCI_BUS_ID\n  CUDA_VISIBLE_DEVICES=0,1\n";
    assert!(out.contains(set), "{out}");
    let words = [&options[..], &["-x", "CUDA_VISIBLE_DEVICES=MIG-1"]].concat();
    let out = plan("gpu8", "4", &words).expect(0).out();
    assert!(out.contains("CUDA_VISIBLE_DEVICES=MIG-1\n"), "{out}");
    assert!(!out.contains("CUDA_DEVICE_ORDER"), "{out}");
    let refused = plan("numa4", "2", &["--gpus-per-rank", "1"]);
    refused.expect_one_line(&["2 GPUs are needed", "this host has only 0"]);
}
