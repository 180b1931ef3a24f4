use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::library_names::{LEAVES, MPICH, OPEN_MPI, matches};
use super::*;
use crate::inspect::elf::sample::Sample;
use crate::inspect::ldso::LoaderFiles;

/// Directory tree with a `lib` in which the dynamic loader searches.
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

    fn inspect(&self, name: &str) -> DetectionResult {
        let system = LoaderFiles {
            cache: self.path("none"),
            config: self.path("none"),
            directories: vec![self.path("lib")],
        };
        let argv = [self.path(name).into_os_string()];
        let program = Program::find(&argv[0], None, self.0.path()).unwrap();
        inspect(&program, &argv, &[], self.0.path(), &system).detected
    }

    /// Returns the interface of a program that needs these libraries.
    fn program(&self, needed: &[&str]) -> DetectionResult {
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
    let detected = tree.program(&["libc.so.6", "libsolver.so"]);
    assert_eq!(detected.wants, DetectedInterface::Pmix);
    assert_eq!(detected.openmpi, Some(tree.path("lib/libmpi.so.40")));
    assert_eq!(detected.libpmix, Some(tree.path("lib/libpmix.so.2")));
    assert!(
        detected
            .to_string()
            .contains("libcomm.so needs libmpi.so.40"),
        "{}",
        detected
    );
}

#[test]
fn libmpi_of_same_name_is_distinguished_by_its_needs() {
    let tree = Tree::new();
    tree.lib("libmpi.so.12", &["libfabric.so.1"]);
    assert_eq!(
        tree.program(&["libmpi.so.12"]).wants,
        DetectedInterface::Pmi,
        "MPICH"
    );
    tree.lib("libmpi.so.12", &["libopen-rte.so.12"]);
    assert_eq!(
        tree.program(&["libmpi.so.12"]).wants,
        DetectedInterface::Pmix,
        "Open MPI 1.10"
    );
    tree.lib("libpmix.so.2", &[]);
    tree.lib("libmpi.so.12", &["libpmix.so.2"]);
    assert_eq!(
        tree.program(&["libmpi.so.12"]).wants,
        DetectedInterface::Pmix,
        "MPICH on PMIx"
    );
    tree.lib("libmpi_gnu_123.so.12", &["libpmi.so.0"]);
    assert_eq!(
        tree.program(&["libmpi_gnu_123.so.12"]).wants,
        DetectedInterface::Pmi,
        "Cray MPICH"
    );
}

#[test]
fn mpi_abi_library_is_identified_by_needs_and_neighbours() {
    let tree = Tree::new();
    tree.lib("libmpi_abi.so.1", &[]);
    let detected = tree.program(&["libmpi_abi.so.1"]);
    assert_eq!(detected.wants, DetectedInterface::Unknown);
    assert!(
        detected.to_string().contains("libmpi_abi.so.1"),
        "{detected}"
    );
    tree.lib("libmpi.so.12", &[]);
    assert_eq!(
        tree.program(&["libmpi_abi.so.1"]).wants,
        DetectedInterface::Pmi
    );
    tree.lib("libmpi.so.40", &[]);
    assert_eq!(
        tree.program(&["libmpi_abi.so.1"]).wants,
        DetectedInterface::Unknown
    );
    let link = tree.path("lib/libmpi_abi.so.1");
    for (file, wants) in [
        ("libmpi_abi_mpich.so.1.0.0", DetectedInterface::Pmi),
        ("libmpi_abi_openmpi.so.1.0.0", DetectedInterface::Pmix),
    ] {
        tree.lib(file, &[]);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(file, &link).unwrap();
        assert_eq!(tree.program(&["libmpi_abi.so.1"]).wants, wants, "{file}");
    }
    fs::remove_file(&link).unwrap();
    fs::remove_file(tree.path("lib/libmpi.so.12")).unwrap();
    tree.lib("libmpi_abi.so.1", &[]);
    assert_eq!(
        tree.program(&["libmpi_abi.so.1"]).wants,
        DetectedInterface::Pmix
    );
    fs::remove_file(tree.path("lib/libmpi.so.40")).unwrap();
    tree.lib("libmpi_abi.so.1", &["libopen-pal.so.90"]);
    assert_eq!(
        tree.program(&["libmpi_abi.so.1"]).wants,
        DetectedInterface::Pmix
    );
}

#[test]
fn library_name_decides_although_file_is_missing() {
    let tree = Tree::new();
    let detected = tree.program(&["libmpi.so.40"]);
    assert_eq!(
        (detected.wants, &detected.openmpi),
        (DetectedInterface::Pmix, &None)
    );
    assert!(
        detected.to_string().contains("not found: libmpi.so.40"),
        "{}",
        detected
    );
    assert_eq!(
        tree.program(&["libmpich.so.12"]).wants,
        DetectedInterface::Pmi
    );
    assert_eq!(
        tree.program(&["/opt/x/libpmi2.so.0"]).wants,
        DetectedInterface::Pmi
    );
    assert_eq!(
        tree.program(&["libmpi.so.120"]).wants,
        DetectedInterface::Unknown
    );
    assert_eq!(
        tree.program(&["libmpifoo.so"]).wants,
        DetectedInterface::Unknown
    );
}

#[test]
fn program_without_mpi_is_plain_unless_named_like_wrapper() {
    let tree = Tree::new();
    for (name, wants) in [
        ("app", DetectedInterface::Plain),
        ("envoy", DetectedInterface::Plain),
        ("gdb2x", DetectedInterface::Plain),
        ("env", DetectedInterface::Plain),
        ("bash", DetectedInterface::Unknown),
        ("python3.11", DetectedInterface::Unknown),
        ("tclsh8.6", DetectedInterface::Unknown),
        ("ld-linux-x86-64.so.2", DetectedInterface::Unknown),
    ] {
        fs::copy("/bin/true", tree.path(name)).unwrap();
        assert_eq!(tree.inspect(name).wants, wants, "{name}");
    }
    std::os::unix::fs::symlink("python3.11", tree.path("venv-link")).unwrap();
    assert_eq!(tree.inspect("venv-link").wants, DetectedInterface::Unknown);
}

#[test]
fn static_program_is_identified_by_its_contents() {
    let tree = Tree::new();
    let wants = |name: &str, constants: &str| {
        Sample {
            constants,
            ..Sample::default()
        }
        .write(tree.path(name));
        tree.inspect(name).wants
    };
    for (constants, expected) in [
        ("PMI_PORT PMIX_ID", DetectedInterface::Plain),
        ("PMI_FD", DetectedInterface::Pmi),
        ("xPMIX_NAMESPACE", DetectedInterface::Pmix),
        ("PMIX_NAMESPACE PMI_F PMI_FD", DetectedInterface::Unknown),
    ] {
        assert_eq!(wants("app", constants), expected, "{constants}");
    }
    assert_eq!(wants("docker", ""), DetectedInterface::Unknown);
    // Of a file that is too large, the rest is not read.
    wants("app", "");
    let large = fs::OpenOptions::new().write(true).open(tree.path("app"));
    let mut bytes = fs::read(tree.path("app")).unwrap();
    let size: u64 = 1 << 29;
    // Size of the first segment in the file, and in memory.
    for at in [96, 104] {
        bytes[at..at + 8].copy_from_slice(&size.to_ne_bytes());
    }
    let large = large.unwrap();
    large.write_all_at(&bytes, 0).unwrap();
    large.set_len(size).unwrap();
    let detected = tree.inspect("app");
    assert_eq!(detected.wants, DetectedInterface::Unknown);
    assert!(detected.to_string().contains("cannot be searched"));
}

#[test]
fn wrapper_that_needs_mpi_is_identified_by_it() {
    let tree = Tree::new();
    tree.lib("libmpi.so.40", &[]);
    Sample {
        needed: &["libmpi.so.40"],
        ..Sample::default()
    }
    .write(tree.path("python3"));
    assert_eq!(tree.inspect("python3").wants, DetectedInterface::Pmix);
}

#[test]
fn scripts_and_texts_may_start_anything() {
    let tree = Tree::new();
    Sample::default().write(tree.path("app"));
    for text in ["#!/bin/sh\nexec mpi-app\n", "exec mpi-app\n"] {
        fs::write(tree.path("app"), text).unwrap();
        let detected = tree.inspect("app");
        assert_eq!(detected.wants, DetectedInterface::Unknown);
        assert!(detected.to_string().contains("script"), "{detected}");
    }
}

#[test]
fn names_match_with_any_version_but_no_partial_number() {
    let name = |text: &str, list: &[&str]| matches(text.as_ref(), list);
    assert!(name("libmpi.so.40.30.4", OPEN_MPI));
    assert!(!name("libmpi.so.401", OPEN_MPI));
    assert!(name("libmpichcxx.so.12", MPICH));
    assert!(name("libc.so.6", LEAVES));
    assert!(!name("libcomm.so", LEAVES));
}

/// Returns the interface of a command line in an environment, with the tree's `bin` in PATH.
impl Tree {
    fn command(&self, env: &[(&str, String)], words: &[&str]) -> ProgramInspection {
        let system = LoaderFiles {
            cache: self.path("none"),
            config: self.path("none"),
            directories: vec![self.path("lib")],
        };
        let path = ("PATH", format!("{}:/usr/bin:/bin", self.text("bin")));
        let env: Vec<(OsString, OsString)> = std::iter::once(&path)
            .chain(env)
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
        let cwd = self.path("");
        let search = env.first().map(|(_, path)| path.as_os_str());
        let program = Program::find(&argv[0], search, &cwd).unwrap();
        inspect(&program, &argv, &env, &cwd, &system)
    }

    fn wants(&self, words: &[&str]) -> DetectedInterface {
        self.command(&[], words).detected.wants
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Creates a program in `bin`.
    fn bin(&self, name: &str, needed: &[&str]) {
        Sample {
            needed,
            ..Sample::default()
        }
        .write(self.path("bin").join(name));
    }
}

/// Programs for Open MPI, for MPICH, and without MPI; with the libraries.
fn programs() -> Tree {
    let tree = Tree::new();
    tree.lib("libmpi.so.40", &["libpmix.so.2"]);
    tree.lib("libpmix.so.2", &[]);
    tree.lib("libmpi.so.12", &[]);
    tree.bin("ompi", &["libmpi.so.40"]);
    tree.bin("mpich", &["libmpi.so.12"]);
    tree.bin("plain", &["libm.so.6"]);
    tree
}

#[test]
fn programs_are_seen_behind_wrappers_and_wrappers_of_wrappers() {
    let tree = programs();
    let command = tree.command(
        &[],
        &["env", "A=1", "nice", "-n", "3", "timeout", "9", "ompi"],
    );
    assert_eq!(command.detected.wants, DetectedInterface::Pmix);
    assert_eq!(command.detected.behind, ["env", "nice", "timeout"]);
    assert_eq!(command.detected.program, tree.path("bin/ompi"));
    assert_eq!(
        command.detected.openmpi,
        Some(tree.path("lib/libmpi.so.40"))
    );
    assert_eq!(
        command.detected.libpmix,
        Some(tree.path("lib/libpmix.so.2"))
    );
    for (words, wants) in [
        (&["nice", "mpich"][..], DetectedInterface::Pmi),
        (&["nice", "plain"], DetectedInterface::Plain),
        (&["nice"], DetectedInterface::Plain),
        (&["nice", "absent"], DetectedInterface::Unknown),
        (&["nice", "--absent", "plain"], DetectedInterface::Unknown),
        // The programs that a shell starts are unknown.
        (&["sh", "-c", "exec plain"], DetectedInterface::Unknown),
        (&["nice", "bash", "script"], DetectedInterface::Unknown),
    ] {
        assert_eq!(tree.wants(words), wants, "{words:?}");
    }
}

#[test]
fn libraries_are_searched_as_by_wrapped_program() {
    let tree = programs();
    Sample::default().write(tree.path("other/libmpi.so.40"));
    Sample {
        needed: &["libmpi.so.40"],
        ..Sample::default()
    }
    .write(tree.path("other/app"));
    let other = format!("LD_LIBRARY_PATH={}", tree.text("other"));
    let found = |env: &[(&str, String)], words: &[&str]| {
        let command = tree.command(env, words);
        (
            command.detected.openmpi.unwrap(),
            command.loader.library_path().to_vec(),
        )
    };
    let there = (tree.path("other/libmpi.so.40"), vec![tree.path("other")]);
    let here = (tree.path("lib/libmpi.so.40"), Vec::new());
    let outer = [("LD_LIBRARY_PATH", tree.text("other"))];
    assert_eq!(found(&[], &["env", &other, "ompi"]), there);
    assert_eq!(found(&outer, &["ompi"]), there);
    let removed = ["env", "-u", "LD_LIBRARY_PATH", "ompi"];
    assert_eq!(found(&outer, &removed), here);
    // Without PATH only the system's directories are searched.
    assert_eq!(
        tree.wants(&["env", "-i", "ompi"]),
        DetectedInterface::Unknown
    );
    let bin = format!("PATH={}", tree.text("bin"));
    assert_eq!(found(&outer, &["env", "-i", &bin, "ompi"]), here);
    assert_eq!(
        tree.wants(&["env", "-C", "other", "./app"]),
        DetectedInterface::Pmix
    );
}

#[test]
fn preloaded_mpi_counts_in_every_place_of_command() {
    let tree = programs();
    let preload = format!("LD_PRELOAD={}", tree.text("lib/libmpi.so.12"));
    assert_eq!(
        tree.wants(&["env", &preload, "plain"]),
        DetectedInterface::Pmi
    );
    let outer = [("LD_PRELOAD", tree.text("lib/libmpi.so.40"))];
    let wants = |words: &[&str]| tree.command(&outer, words).detected.wants;
    assert_eq!(wants(&["plain"]), DetectedInterface::Pmix);
    assert_eq!(wants(&["nice", "plain"]), DetectedInterface::Pmix);
    assert_eq!(
        wants(&["env", "-u", "LD_PRELOAD", "plain"]),
        DetectedInterface::Plain
    );
}

#[test]
fn wrapper_may_be_script_and_interpreter_mpi_program() {
    let tree = programs();
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = tree.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("valgrind", "#!/bin/sh\nexec \"$@\"\n");
    let detected = tree.command(&[], &["valgrind", "-q", "ompi"]).detected;
    assert_eq!(
        (detected.wants, detected.behind),
        (DetectedInterface::Pmix, vec!["valgrind".into()])
    );
    script(
        "input",
        &format!("#!{} -in\nrun 100\n", tree.text("bin/mpich")),
    );
    assert_eq!(tree.wants(&["input"]), DetectedInterface::Pmi);
    script(
        "envy",
        &format!("#!/usr/bin/env -S {}\n", tree.text("bin/ompi")),
    );
    assert_eq!(tree.wants(&["envy"]), DetectedInterface::Pmix);
    script("other", &format!("#!{}\n", tree.text("bin/plain")));
    assert_eq!(tree.wants(&["other"]), DetectedInterface::Unknown);
    script("job.sh", "#!/bin/sh\nexec \"$@\"\n");
    assert_eq!(tree.wants(&["job.sh", "ompi"]), DetectedInterface::Unknown);
}

#[test]
fn python_that_names_mpi4py_needs_pmi_with_mpich() {
    let tree = programs();
    tree.lib("pmix/libmpi.so.12", &["libpmix.so.2"]);
    tree.bin("python3.11", &[]);
    let text = ["python3.11", "-X", "dev", "-c", "import mpi4py.MPI"];
    let wants = |library: &str, words: &[&str]| {
        let env = [(mpi4py::LIBRARY, tree.text(library))];
        tree.command(&env, words).detected.wants
    };
    for (library, words, interface) in [
        ("lib/libmpi.so.12", &text[..], DetectedInterface::Pmi),
        (
            "lib/libmpi.so.12",
            &["nice", "python3.11", "-m", "mpi4py.run", "script.py"],
            DetectedInterface::Pmi,
        ),
        ("lib/libmpi.so.40", &text, DetectedInterface::Unknown),
        ("lib/pmix/libmpi.so.12", &text, DetectedInterface::Unknown),
        ("lib/absent/libmpi.so.12", &text, DetectedInterface::Unknown),
        (
            "lib/libmpi.so.12",
            &["python3.11", "script.py", "-m", "mpi4py"],
            DetectedInterface::Unknown,
        ),
        (
            "lib/libmpi.so.12",
            &["python3.11", "-m", "timeit"],
            DetectedInterface::Unknown,
        ),
    ] {
        assert_eq!(wants(library, words), interface, "{library} {words:?}");
    }
    // The tree's `lib` is beside the interpreter's `bin`.
    assert_eq!(tree.wants(&text), DetectedInterface::Pmi);
    fs::write(tree.path("lib/libmpi.so"), "INPUT(libmpi.so.12)").unwrap();
    assert_eq!(tree.wants(&text), DetectedInterface::Pmi);
    fs::remove_file(tree.path("lib/libmpi.so")).unwrap();
    std::os::unix::fs::symlink("libmpi.so.40", tree.path("lib/libmpi.so")).unwrap();
    assert_eq!(tree.wants(&text), DetectedInterface::Unknown);
}

#[test]
fn endless_commands_are_given_up() {
    let tree = programs();
    let mut words = vec!["env"; 40];
    words.push("ompi");
    assert_eq!(tree.wants(&words), DetectedInterface::Unknown);
}
