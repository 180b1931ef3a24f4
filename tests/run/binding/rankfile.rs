//! `--rankfile`, in the forms of Open MPI and Slurm.

use std::path::PathBuf;
use std::process::Command;

use super::{SHOW, machine, parts, planned};
use crate::common::{Run, mpi, skip, wireup};

/// A file in a directory that goes with the guard.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ranks");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

#[test]
fn ranks_run_on_cores_of_rankfile() {
    let cores = parts("core");
    let last = cores.len() - 1;
    let text =
        format!("rank 1=localhost slot=0\nrank 0=localhost slot=0:{last}  # the last core\n");
    let (_dir, path) = file(&text);
    let path = path.to_str().unwrap();
    let options = ["--oversubscribe", "--rankfile", path];
    // Without -n there are as many ranks as lines.
    let outcome = Run::new([&options[..], &SHOW].concat()).run().expect(0);
    let package = &parts("package")[0];
    let of_package = cores.iter().filter(|core| {
        let first = core.split([',', '-']).next().unwrap();
        package.split(',').any(|range| {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u32>().unwrap();
            (number(low)..=number(high)).contains(&number(first))
        })
    });
    let own = of_package.collect::<Vec<_>>();
    if own.len() != cores.len() {
        return skip("the first package has not all cores");
    }
    let lines = [format!("0 {}", cores[last]), format!("1 {}", cores[0])];
    assert_eq!(outcome.sorted_lines(), lines);
    let unbound = ["--bind-to", "none"];
    let words = [&options[..], &unbound, &SHOW].concat();
    let here = Command::new("sh").args(["-c", SHOW[2]]).output().unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    let lines = Run::new(words).run().expect(0).sorted_lines();
    assert_eq!(lines, [0, 1].map(|rank| format!("{rank} {}", here.trim())));
}

#[test]
fn ranks_run_on_hosts_of_rankfile() {
    let where_ = ["sh", "-c", "echo $WIREUP_RANK $WIREUP_LOCAL_RANK"];
    let lines = |text: &str, more: &[&str]| {
        let (_dir, path) = file(text);
        let path = path.to_str().unwrap();
        let options = [
            "--virtual-nodes",
            "2",
            "--oversubscribe",
            "--rankfile",
            path,
        ];
        let words = [&options[..], more, &where_].concat();
        Run::new(words).run().expect(0).sorted_lines()
    };
    let slots = "rank 0=+n1 slot=0\nrank 1=+n0 slot=0\nrank 2=+n1 slot=0\n";
    assert_eq!(lines(slots, &[]), ["0 0", "1 0", "2 1"]);
    let own = crate::virtual_nodes::node(1);
    let first = crate::virtual_nodes::node(0);
    let text = format!("{own}\n{first}*2\n{own}\n");
    assert_eq!(lines(&text, &[]), ["0 0", "1 0", "2 1", "3 1"]);
    assert_eq!(lines(&text, &["-n", "2"]), ["0 0", "1 0"]);
}

#[test]
fn mismatched_rankfiles_are_refused() {
    let refused = |text: &str, options: &[&str], needed: &[&str]| {
        let (_dir, path) = file(text);
        let path = path.to_str().unwrap();
        let words = [&["--rankfile", path], options, &["true"]].concat();
        Run::new(words).run().expect_one_line(needed);
    };
    let one = "rank 0=localhost slot=0\n";
    refused(
        "rank 0=localhost\n",
        &[],
        &["line 1: rank 0 has no cores", "slot=CORES"],
    );
    refused(
        one,
        &["-n", "2"],
        &["1 rank in the file, but the programs have 2"],
    );
    refused(
        "rank 0=localhost slot=4000\n",
        &[],
        &["--rankfile: no core 4000"],
    );
    refused(
        one,
        &["--bind-to", "package"],
        &["--bind-to: ", "omit the binding"],
    );
    let both = "rank 0=localhost slot=0\nrank 1=localhost slot=0\n";
    refused(both, &[], &["ranks 0 and 1 have a CPU in common"]);
    let other = "rank 0=+n3 slot=0\n";
    refused(other, &[], &["rank 0: host +n3 is not in the launch"]);
    refused("n1 slots=4\n", &[], &["line 1: "]);
    Run::new(["--rankfile", "/nonexistent/ranks", "true"])
        .run()
        .expect_one_line(&["--rankfile /nonexistent/ranks: No such file"]);
}

#[test]
fn mpirun_and_srun_take_their_files() {
    let (_dir, path) = file("rank 0=localhost slot=0\n");
    let path = path.to_str().unwrap();
    let (_hosts, names) = file("localhost\nlocalhost\n");
    let link = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(wireup(), &link).unwrap();
        (dir, link)
    };
    let (_dir, mpirun) = link("mpirun");
    let line = [
        mpirun.to_str().unwrap(),
        "--map-by",
        &format!("rankfile:file={path}"),
        "-np",
        "1",
        "true",
    ]
    .map(str::to_owned);
    Run::command(line).run().expect(0);
    let (_dir, srun) = link("srun");
    let line = [
        srun.to_str().unwrap(),
        "-n",
        "2",
        "--oversubscribe",
        "-m",
        "arbitrary",
        "printenv",
        "WIREUP_RANK",
    ]
    .map(str::to_owned);
    let outcome = Run::command(line)
        .env("SLURM_HOSTFILE", &names)
        .run()
        .expect(0);
    assert_eq!(outcome.sorted_lines(), ["0", "1"]);
}

#[test]
fn plans_equal_those_of_prterun_with_same_rankfile() {
    let Some(open) = mpi("openmpi5") else { return };
    let prterun = open.launcher.with_file_name("prterun");
    if !prterun.is_file() {
        return skip("prterun is not beside mpirun of Open MPI 5");
    }
    for (name, lists) in [
        ("gpu8", ["0-3", "64", "1:2-3", "0:8,10"]),
        ("hybrid", ["0", "6-7", "2-3,9", "0:4"]),
        ("gracehopper", ["1:0-71", "0:5", "3:1-2", "150"]),
        ("numa4", ["1:31", "0:*", "33-34", "1:0"]),
    ] {
        let lines = lists.iter().enumerate();
        let lines = lines.map(|(rank, list)| format!("rank {rank}=localhost slot={list}\n"));
        let (_dir, path) = file(&lines.collect::<String>());
        let output = Command::new(&prterun)
            .args(["--allow-run-as-root", "--prtemca", "hwloc_use_topo_file"])
            .arg(machine(name))
            .args(["--host", "localhost:512", "-n", "4", "--map-by"])
            .arg(format!("rankfile:file={}", path.display()))
            .args(["--display", "map", "--do-not-launch", "true"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let theirs = super::bindings(&text);
        let options = ["--rankfile", path.to_str().unwrap()];
        let ours = planned(name, (Some(4), 4), &options);
        let ours: Vec<String> = ours.into_iter().map(|(units, _)| units).collect();
        assert_eq!(ours, theirs, "{name}: {text}");
    }
}
