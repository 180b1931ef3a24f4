//! `--mpi` and `wireup mpis`: one program under several MPIs of its binary interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Mpi, Run, field, mpi, mpi4py, number, skip, standard_abi, wireup};

/// One node, and two virtual ones.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Beginning of the library version of an MPI.
fn library(name: &str) -> &'static str {
    match name {
        "mpich4" => "MPICH Version:\t4.0",
        "mpich5" => "MPICH Version:      5.0.2",
        "openmpi5" => "Open MPI v5.0.11",
        "impi" => "Intel(R) MPI Library 2021.19",
        other => panic!("no expectations of {other}"),
    }
}

/// `wireup run` of two ranks with this MPI.
fn run(mpi: &Mpi, options: &[&str], words: &[&Path]) -> Run {
    let run = Run::ranks(2, ["--define-mpi", &mpi.definition(), "--mpi", &mpi.name]);
    run.more(options).more(words)
}

/// Runs a build of `hello`: both ranks load this MPI.
#[track_caller]
fn expect_hello(mpi: &Mpi, program: &Path) {
    for nodes in NODES {
        let outcome = run(mpi, nodes, &[program]).run().expect_success();
        for line in outcome.by_rank("hello", 2) {
            let found = field(&line, "library").unwrap();
            assert!(found.starts_with(library(&mpi.name)), "{outcome:?}");
        }
    }
}

for_each_mpi!(mpich5 impi: {
    standard_abi_program_runs_with_named_mpi => |mpi| standard(&mpi),
    spawned_job_has_mpi_of_parent => |mpi| spawned(&mpi.with_dynamic_processes()),
    spawned_job_passes_on_mpi_of_info_key => |mpi| passed_on(&mpi.with_dynamic_processes()),
});

fn standard(mpi: &Mpi) {
    let Some(dir) = standard_abi() else { return };
    expect_hello(mpi, &dir.join("hello"));
    for nodes in NODES {
        let outcome = run(mpi, nodes, &[&dir.join("allreduce")]).run();
        for line in outcome.expect_success().by_rank("allreduce", 2) {
            assert_eq!(number(&line, "sum"), 3, "{line}");
        }
    }
}

/// Children would find no library by themselves, or another MPI's: libmpi_abi of Intel MPI 2021.19 does not know MPI_APPNUM,
/// which children check.
fn spawned(mpi: &Mpi) {
    let Some(program) = spawn_program(mpi) else {
        return;
    };
    for nodes in NODES {
        let run = run(mpi, nodes, &[&program]).more(["levels=2"]);
        let outcome = run.run().expect_success();
        for line in outcome.by_rank("spawn", 2) {
            assert_eq!(number(&line, "merged"), 4, "{line}");
        }
    }
}

fn spawn_program(mpi: &Mpi) -> Option<PathBuf> {
    match mpi.name.as_str() {
        "impi" => crate::common::mpi("mpich5").map(|mpich| mpich.program("spawn")),
        _ => standard_abi().map(|dir| dir.join("spawn")),
    }
}

/// The info key of the first spawn names a definition, whose variable shows which jobs use it.
fn passed_on(mpi: &Mpi) {
    let Some(program) = spawn_program(mpi) else {
        return;
    };
    let definition = mpi.definition().replacen(&mpi.name, "marked", 1) + " SPAWN_WORD=marked";
    let definition = format!("top.define_mpi={definition}");
    for nodes in NODES {
        let run = run(mpi, nodes, &[&program]).more(["levels=2", "children=1"]);
        let run = run.more(["top.mpi=marked", &definition]);
        let text = run.run().expect_success().out();
        let children = text.lines().filter(|line| line.starts_with("spawned "));
        let children: Vec<&str> = children.collect();
        assert_eq!(children.len(), 2, "{text}");
        for line in children {
            assert_eq!(field(line, "word"), Some("marked"), "{text}");
        }
    }
}

/// Programs of MPICH's family run with each other's libraries, also if these have another name.
#[test]
fn mpich_abi_program_runs_with_other_mpis_of_family() {
    for built_with in ["mpich4", "mpich5"] {
        let Some(built_with) = mpi(built_with) else {
            return;
        };
        for name in ["mpich5", "impi"] {
            let Some(mpi) = mpi(name) else { return };
            expect_hello(&mpi, &built_with.program("hello"));
        }
    }
}

#[test]
fn rpath_of_program_yields_to_named_mpi() {
    let (Some(built_with), Some(mpi)) = (mpi("mpich5"), mpi("impi")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("hello");
    fs::copy(built_with.program("hello"), &program).unwrap();
    let mut patchelf = Command::new("patchelf");
    patchelf.args(["--force-rpath", "--set-rpath"]);
    patchelf.arg(built_with.prefix().join("lib")).arg(&program);
    if !patchelf.status().is_ok_and(|status| status.success()) {
        skip("no patchelf: run scripts/setup");
        return;
    }
    expect_hello(&mpi, &program);
    let outcome = run(&mpi, &["-v"], &[&program]).run().expect(0);
    let explained = outcome.err().contains("by LD_PRELOAD, because");
    assert!(explained, "{outcome:?}");
}

/// The name is that of an installation whose programs are in PATH.
#[test]
fn mpi_is_found_by_family_name_or_path() {
    let (Some(mpi), Some(dir)) = (mpi("mpich5"), standard_abi()) else {
        return;
    };
    let prefix = mpi.prefix();
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", prefix.join("bin").display());
    for choice in ["mpich5", "mpich", prefix.to_str().unwrap()] {
        let run = Run::ranks(2, ["-v", "--mpi", choice]).env("PATH", &path);
        let outcome = run.more([dir.join("hello")]).run().expect(0);
        for line in outcome.by_rank("hello", 2) {
            let found = field(&line, "library").unwrap();
            assert!(found.starts_with(library("mpich5")), "{outcome:?}");
        }
        let lib = prefix.join("lib");
        let lib = lib.display();
        let expected = format!("MPI: {lib}/libmpi_abi.so.1 (MPICH 5.0.2 in {lib}, found by ");
        assert!(outcome.err().contains(&expected), "{expected}: {outcome:?}");
    }
}

#[test]
fn program_of_other_abi_is_refused_with_fitting_mpis() {
    let (Some(openmpi), Some(mpich), Some(dir)) = (mpi("openmpi5"), mpi("mpich5"), standard_abi())
    else {
        return;
    };
    let path = format!("{}:/usr/bin:/bin", mpich.prefix().join("bin").display());
    let refused = |options: &[&str], program: PathBuf, words: &[&str]| {
        let run = Run::ranks(2, options).env("PATH", &path).more([&program]);
        run.run().expect(125).expect_one_line(words);
    };
    let hello = || dir.join("hello");
    refused(
        &["--define-mpi", &openmpi.definition(), "--mpi", "openmpi5"],
        hello(),
        &[
            "hello is built for the standard ABI (libmpi_abi.so.1), which Open MPI 5.0.11 in ",
            " does not have; choose mpich5 (MPICH 5.0.2 in ",
        ],
    );
    refused(
        &["--mpi", "mpich5"],
        openmpi.program("hello"),
        &["hello is built for Open MPI's ABI (libmpi.so.40), which MPICH 5.0.2 in "],
    );
    for (choice, words) in [
        ("mpich17", "--mpi mpich17: no such MPI on this host; use "),
        ("lam", "--mpi lam: unknown name; "),
        (
            "pmix",
            "write --pmi pmix for the interface that srun's --mpi chooses; ",
        ),
        (
            "/usr/share",
            "--mpi /usr/share: /usr/share has no MPI library ",
        ),
    ] {
        refused(&["--mpi", choice], hello(), &[words]);
    }
}

/// The wheel of mpi4py has modules for each binary interface.
#[test]
fn mpi4py_loads_named_mpi() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/allreduce.py");
    for name in ["mpich5", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { return };
        let Some(with) = mpi4py(&mpi) else { return };
        for nodes in NODES {
            let outcome = run(&mpi, nodes, &[&with.python, Path::new(source)]).run();
            let outcome = outcome.expect_success();
            for line in outcome.by_rank("mpi4py", 2) {
                assert_eq!(number(&line, "sum"), 3, "{outcome:?}");
                let found = field(&line, "library").unwrap();
                assert!(found.starts_with(library(name)), "{outcome:?}");
            }
        }
    }
}

/// A site names an MPI in its defaults file, for launches and lists.
#[test]
fn defaults_file_defines_mpi() {
    let (Some(mpi), Some(dir)) = (mpi("impi"), standard_abi()) else {
        return;
    };
    let definition = mpi.definition().replacen("impi=", "ours=", 1);
    let files = tempfile::tempdir().unwrap();
    let site = files.path().join("site.toml");
    fs::write(&site, format!("[run]\ndefine-mpi = [{definition:?}]\n")).unwrap();
    let run = Run::ranks(2, ["--mpi", "ours"]).env("WIREUP_SITE_CONFIG", &site);
    let outcome = run.more([dir.join("hello")]).run().expect_success();
    for line in outcome.by_rank("hello", 2) {
        let found = field(&line, "library").unwrap();
        assert!(found.starts_with(library("impi")), "{outcome:?}");
    }
    let wireup = wireup();
    let list = Run::command([wireup.to_str().unwrap(), "mpis", "--json"]);
    let outcome = list.env("WIREUP_SITE_CONFIG", &site).run().expect_success();
    let records: Value = serde_json::from_str(&outcome.out()).unwrap();
    let first = &records[0];
    assert_eq!(first["name"], "ours", "{records}");
    assert_eq!(first["family"], "impi", "{records}");
    assert_eq!(first["version"], "2021.19.0", "{records}");
    assert_eq!(first["interface"], "pmi", "{records}");
    assert!(first["abis"]["standard"].is_string(), "{records}");
    assert_eq!(first["variables"]["FI_PROVIDER"], "tcp", "{records}");
}

#[test]
fn mpis_lists_open_mpi_of_path_with_libpmix() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let path = format!("{}:/usr/bin:/bin", mpi.prefix().join("bin").display());
    let wireup = wireup();
    let list = |options: &[&str]| {
        let run = Run::command([wireup.to_str().unwrap(), "mpis"]).more(options);
        run.env("PATH", &path).run().expect_success().out()
    };
    let records: Vec<Value> = serde_json::from_str(&list(&["--json"])).unwrap();
    let found = records.iter().find(|it| it["found_by"] == "PATH");
    let found = found.unwrap_or_else(|| panic!("{records:?}"));
    assert_eq!(found["name"], "openmpi5");
    assert_eq!(found["version"], "5.0.11");
    assert_eq!(found["interface"], "pmix");
    let libpmix = Path::new(found["libpmix"].as_str().unwrap());
    assert_eq!(Some(libpmix), mpi.libpmix.as_deref());
    assert!(list(&[]).contains("openmpi5 "), "{records:?}");
}
