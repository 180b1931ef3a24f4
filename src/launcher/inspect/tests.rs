use std::fs;

use super::super::elf::sample::Sample;
use super::super::ldso::System;
use super::*;

/// A directory tree with a `lib` that the dynamic loader knows.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Puts a library into `lib`.
    fn lib(&self, name: &str, needed: &[&str]) {
        Sample {
            needed,
            ..Sample::default()
        }
        .write(self.path("lib").join(name));
    }

    fn inspect(&self, name: &str) -> Finding {
        let system = System {
            cache: self.path("none"),
            config: self.path("none"),
            directories: vec![self.path("lib")],
        };
        let loader = Loader::new(&[], self.0.path(), system);
        let program = Program::find(self.path(name).as_os_str(), None, self.0.path()).unwrap();
        inspect(&program, &loader)
    }

    /// What a program with these needs wants.
    fn program(&self, needed: &[&str]) -> Finding {
        Sample {
            needed,
            ..Sample::default()
        }
        .write(self.path("app"));
        self.inspect("app")
    }
}

#[test]
fn open_mpi_is_seen_through_any_number_of_libraries() {
    let tree = Tree::new();
    tree.lib("libsolver.so", &["libcomm.so", "libsolver.so"]);
    tree.lib("libcomm.so", &["libmpi.so.40", "libsolver.so"]);
    tree.lib("libmpi.so.40", &["libopen-pal.so.80"]);
    tree.lib("libopen-pal.so.80", &["libpmix.so.2"]);
    tree.lib("libpmix.so.2", &[]);
    let finding = tree.program(&["libc.so.6", "libsolver.so"]);
    assert_eq!(finding.wants, Wants::Pmix);
    assert_eq!(finding.openmpi, Some(tree.path("lib/libmpi.so.40")));
    assert_eq!(finding.libpmix, Some(tree.path("lib/libpmix.so.2")));
    assert!(
        finding.why.contains("libcomm.so needs libmpi.so.40"),
        "{}",
        finding.why
    );
}

#[test]
fn the_same_name_of_libmpi_is_told_apart_by_what_it_needs() {
    let tree = Tree::new();
    tree.lib("libmpi.so.12", &["libfabric.so.1"]);
    assert_eq!(tree.program(&["libmpi.so.12"]).wants, Wants::Pmi, "MPICH");
    tree.lib("libmpi.so.12", &["libopen-rte.so.12"]);
    assert_eq!(
        tree.program(&["libmpi.so.12"]).wants,
        Wants::Pmix,
        "Open MPI 1.10"
    );
    tree.lib("libpmix.so.2", &[]);
    tree.lib("libmpi.so.12", &["libpmix.so.2"]);
    assert_eq!(
        tree.program(&["libmpi.so.12"]).wants,
        Wants::Pmix,
        "MPICH on PMIx"
    );
    tree.lib("libmpi_gnu_123.so.12", &["libpmi.so.0"]);
    assert_eq!(
        tree.program(&["libmpi_gnu_123.so.12"]).wants,
        Wants::Pmi,
        "Cray MPICH"
    );
}

#[test]
fn the_common_abi_library_is_judged_by_its_needs_and_its_neighbours() {
    let tree = Tree::new();
    tree.lib("libmpi_abi.so.1", &[]);
    let finding = tree.program(&["libmpi_abi.so.1"]);
    assert_eq!(finding.wants, Wants::Unknown);
    assert!(finding.why.contains("libmpi_abi.so.1"), "{}", finding.why);
    tree.lib("libmpi.so.12", &[]);
    assert_eq!(tree.program(&["libmpi_abi.so.1"]).wants, Wants::Pmi);
    tree.lib("libmpi.so.40", &[]);
    assert_eq!(tree.program(&["libmpi_abi.so.1"]).wants, Wants::Pmix);
    fs::remove_file(tree.path("lib/libmpi.so.40")).unwrap();
    tree.lib("libmpi_abi.so.1", &["libopen-pal.so.90"]);
    assert_eq!(tree.program(&["libmpi_abi.so.1"]).wants, Wants::Pmix);
}

#[test]
fn a_name_decides_even_if_the_library_is_not_found_and_that_is_said() {
    let tree = Tree::new();
    let finding = tree.program(&["libmpi.so.40"]);
    assert_eq!((finding.wants, &finding.openmpi), (Wants::Pmix, &None));
    assert!(
        finding.why.contains("not found: libmpi.so.40"),
        "{}",
        finding.why
    );
    assert_eq!(tree.program(&["libmpich.so.12"]).wants, Wants::Pmi);
    assert_eq!(tree.program(&["/opt/x/libpmi2.so.0"]).wants, Wants::Pmi);
    assert_eq!(tree.program(&["libmpi.so.120"]).wants, Wants::Unknown);
    assert_eq!(tree.program(&["libmpifoo.so"]).wants, Wants::Unknown);
}

#[test]
fn a_real_program_without_mpi_is_plain_and_one_under_a_wrappers_name_is_not() {
    let tree = Tree::new();
    for (name, wants) in [
        ("app", Wants::Plain),
        ("envoy", Wants::Plain),
        ("gdb2x", Wants::Plain),
        ("env", Wants::Unknown),
        ("python3.11", Wants::Unknown),
        ("tclsh8.6", Wants::Unknown),
        ("ld-linux-x86-64.so.2", Wants::Unknown),
    ] {
        fs::copy("/bin/true", tree.path(name)).unwrap();
        assert_eq!(tree.inspect(name).wants, wants, "{name}");
    }
    std::os::unix::fs::symlink("python3.11", tree.path("venv-link")).unwrap();
    assert_eq!(tree.inspect("venv-link").wants, Wants::Unknown);
}

#[test]
fn a_wrapper_that_itself_needs_an_mpi_is_no_riddle() {
    let tree = Tree::new();
    tree.lib("libmpi.so.40", &[]);
    Sample {
        needed: &["libmpi.so.40"],
        ..Sample::default()
    }
    .write(tree.path("python3"));
    assert_eq!(tree.inspect("python3").wants, Wants::Pmix);
}

#[test]
fn scripts_and_texts_may_start_anything() {
    let tree = Tree::new();
    Sample::default().write(tree.path("app"));
    for text in ["#!/bin/sh\nexec mpi-app\n", "exec mpi-app\n"] {
        fs::write(tree.path("app"), text).unwrap();
        let finding = tree.inspect("app");
        assert_eq!(finding.wants, Wants::Unknown);
        assert!(finding.why.contains("script"), "{}", finding.why);
    }
}

#[test]
fn names_match_with_any_version_but_not_as_a_part_of_a_number() {
    let name = |text: &str, list: &[&str]| matches(text.as_ref(), list);
    assert!(name("libmpi.so.40.30.4", OPEN_MPI));
    assert!(!name("libmpi.so.401", OPEN_MPI));
    assert!(name("libmpichcxx.so.12", MPICH));
    assert!(name("libc.so.6", LEAVES));
    assert!(!name("libcomm.so", LEAVES));
}
