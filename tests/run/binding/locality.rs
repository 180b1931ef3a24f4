//! Locality information in the ranks, compared with that of other launchers.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::parts;
use crate::common::topology::{AMD, with_gpus};
use crate::common::{Mpi, Output, Pmix, Run, field, mpi, pmix, program};

/// Returns the output of two ranks of a job, without the job's name.
fn lines(output: &str) -> Vec<String> {
    let mut lines: Vec<String> = output
        .lines()
        .filter(|line| line.starts_with("pmix_locality ") || line.starts_with("split_parts "))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// The launcher of Open MPI 5, which runs this program on two ranks.
fn under_prterun(open: &Mpi, to: &str, program: &Path) -> Vec<String> {
    under_launcher(Command::new(&open.launcher), open, to, program)
}

fn under_launcher(mut command: Command, open: &Mpi, to: &str, program: &Path) -> Vec<String> {
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        "--bind-to",
        to,
    ]);
    if to == "core" {
        command.args(["--map-by", "core"]);
    }
    let output = command
        .arg(program)
        .envs(open.env.iter().cloned())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines(&text);
    assert_eq!(lines.len(), 2, "{output:?}");
    lines
}

#[test]
fn locality_equals_that_of_prterun() {
    let (Some(open), Some(client)) = (mpi("openmpi5"), pmix("pmix5")) else {
        return;
    };
    for to in ["core", "package", "none"] {
        let theirs = under_prterun(&open, to, &client.dir.join("pmix_locality"));
        // With the devices that the server leaves out on a host where none matters (docs/pmix-server.md#server).
        let outcome = client
            .run(2, &["--bind-to", to], "pmix_locality", &[])
            .env("HWLOC_COMPONENTS", "-x86")
            .run();
        assert_eq!(lines(&outcome.expect(0).out()), theirs, "{to}");
    }
}

#[test]
fn ranks_get_device_distances() {
    let (Some(open), Some(client)) = (mpi("openmpi5"), pmix("pmix5")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let topology = with_gpus(dir.path(), AMD, &[128, 129]);
    let mut prterun = Command::new(&open.launcher);
    prterun.env("HWLOC_XMLFILE", &topology);
    prterun.env("HWLOC_THISSYSTEM", "1");
    let program = client.dir.join("pmix_locality");
    let theirs = under_launcher(prterun, &open, "core", &program);
    let distances = field(&theirs[0], "told").unwrap();
    assert_eq!(distances.matches("gpu:").count(), 2, "{distances}");
    let run = |options: &[&str]| {
        let options = [&["--bind-to", "core"], options].concat();
        let run = client.run(2, &options, "pmix_locality", &[]);
        let run = run
            .env("HWLOC_XMLFILE", &topology)
            .env("HWLOC_THISSYSTEM", "1");
        lines(&run.run().expect(0).out())
    };
    assert_eq!(run(&[]), theirs);
    for line in run(&["--virtual-nodes", "2"]) {
        assert_eq!(
            field(&line, "told").unwrap().matches("gpu:").count(),
            2,
            "{line}"
        );
    }
}

#[test]
fn open_mpi_ranks_split_as_under_prterun() {
    let Some(open) = mpi("openmpi5") else { return };
    for to in ["core", "package"] {
        let theirs = under_prterun(&open, to, &open.program("split_parts"));
        let outcome = open.run(2, &["--bind-to", to], "split_parts", &[]).run();
        assert_eq!(lines(&outcome.expect(0).out()), theirs, "{to}");
    }
}

#[test]
fn every_libpmix_gets_cpus_of_its_ranks() {
    let cores = parts("core");
    for (server, client) in [("pmix4", "pmix4"), ("pmix5", "pmix4"), ("pmix4", "pmix5")] {
        let (Some(server), Some(client)) = (pmix(server), pmix(client)) else {
            continue;
        };
        expect_cpus(&server, &client, &cores);
    }
}

/// Ranks on two nodes: each knows where those of its own node are, and nothing of the others.
fn expect_cpus(server: &Pmix, client: &Pmix, cores: &[String]) {
    let options = [
        "--virtual-nodes",
        "2",
        "--bind-to",
        "core",
        "--libpmix",
        server.path(),
    ];
    let outcome = client
        .run(4, &options, "pmix_locality", &[])
        .run()
        .expect(0);
    let ranks = outcome.by_rank("pmix_locality", 4);
    for (rank, line) in ranks.iter().enumerate() {
        let core = &cores[rank % cores.len()];
        assert_eq!(field(line, "cpuset"), Some(core.as_str()), "{line}");
        let locality = field(line, "locality").unwrap();
        assert!(locality.contains("CR") && locality.contains("HT"), "{line}");
        let shares = field(line, "shares").unwrap().split(',');
        let shares: Vec<&str> = shares.filter_map(|one| one.split(':').nth(1)).collect();
        for (other, bits) in shares.iter().enumerate() {
            let bits = u16::from_str_radix(bits, 16).unwrap();
            let (together, same) = (
                rank / 2 == other / 2,
                other % cores.len() == rank % cores.len(),
            );
            // PMIX_LOCALITY_SHARE_NODE and _SHARE_CORE.
            assert_eq!(bits & 0x4000 != 0, together, "{line}");
            assert_eq!(bits & 0x2 != 0, together && same, "{line}");
        }
    }
}

/// The answer to a PMI-1 client that asks for the topology's file.
fn topology_file(options: &[&str]) -> Option<String> {
    let program = program("pmi_raw")?;
    let asks = r"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get kvsname=$PMI_JOBID key=PMI_hwloc_xmlfile\n";
    let script = format!("exec {} all send \"{asks}\" --then read", program.display());
    let words = ["--pmi", "pmi1"].into_iter().chain(options.iter().copied());
    let words = words.chain(["sh", "-c", &script]);
    let running = Run::ranks(1, words).start();
    let output = running.wait_for(Output::Stdout, "reply=cmd=get_result");
    // The file is there as long as the job is.
    let (_, path) = output.split_once("value=").unwrap();
    let path = path.split_whitespace().next().unwrap().to_owned();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("<topology version=\"2."), "{output}");
    running.signal(Signal::TERM);
    running.finish().expect(143);
    Some(path)
}

#[test]
fn mpich_ranks_read_topology_of_launcher() {
    for options in [&[][..], &["--bind-to", "core"]] {
        let Some(path) = topology_file(options) else {
            return;
        };
        assert!(path.ends_with("/hwloc.xml"), "{path}");
        assert!(!Path::new(&path).exists(), "{path}");
        mpich_opens_topology_file(options);
    }
}

#[test]
fn mpich_ranks_discover_topology_without_hwloc_in_launcher() {
    let Some(mpich) = mpi("mpich5") else { return };
    let run = Run::ranks(2, [mpich.program("hello")]);
    let run = mpich
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.env("WIREUP_LIBHWLOC", "/nonexistent")
        .run()
        .expect_quiet_success();
}

/// Checks that MPICH itself opens the file, on each rank.
fn mpich_opens_topology_file(options: &[&str]) {
    let Some(mpich) = mpi("mpich5") else { return };
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let trace_options = ["strace", "-f", "-ff", "-e", "trace=openat", "-o"];
    let words = options.iter().chain(&trace_options).map(OsString::from);
    let run = Run::ranks(
        2,
        words.chain([trace.into(), mpich.program("hello").into()]),
    );
    let run = mpich
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    run.run().expect(0);
    let traces = std::fs::read_dir(dir.path()).unwrap().flatten();
    let traces = traces.map(|trace| std::fs::read_to_string(trace.path()).unwrap());
    let reads = |trace: &String| {
        let mut lines = trace.lines();
        lines.any(|line| line.contains("/hwloc.xml\"") && !line.contains(" = -1"))
    };
    assert_eq!(traces.filter(reads).count(), 2);
}
