use std::ffi::OsString;

use super::*;
use crate::inspect::elf::sample::Sample;
use crate::inspect::ldso::LoaderFiles;
use crate::inspect::{DetectedInterface, DetectionReason};

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Creates a libpmix with this version text.
    fn libpmix(&self, name: &str, version: &str) -> PathBuf {
        Sample {
            constants: &format!("junk PMIx Standard: 4.2 OpenPMIx {version} (PMIx Standard: 5.1)"),
            ..Sample::default()
        }
        .write(self.path(name))
    }

    fn loader(&self) -> Loader {
        let system = LoaderFiles {
            cache: self.path("none"),
            config: self.path("none"),
            directories: vec![self.path("system")],
        };
        Loader::new(&[], self.0.path(), system)
    }
}

/// Program with Open MPI's libmpi at `openmpi` that itself loads `libpmix`.
fn program(openmpi: Option<PathBuf>, libpmix: Option<PathBuf>) -> DetectionResult {
    DetectionResult {
        wants: DetectedInterface::Pmix,
        behind: Vec::new(),
        program: "app".into(),
        why: DetectionReason::NoMpi,
        missing: Vec::new(),
        openmpi,
        libpmix,
    }
}

#[test]
fn versions_compare_by_three_numbers_and_suffixes_do_not_count() {
    let parse = |text: &str| PmixRelease::parse(text.as_bytes());
    assert_eq!(parse("4.2.2rc2 (PMIx"), Some(MINIMUM));
    assert_eq!(parse("5.0.11rc1"), Some(PmixRelease::new(5, 0, 11)));
    assert!(PmixRelease::new(5, 0, 11) > PmixRelease::new(5, 0, 9));
    assert!(PmixRelease::new(10, 0, 0) > PmixRelease::new(9, 9, 9));
    for bad in [
        "",
        "4",
        "4.2",
        "4.2.",
        ".2.2",
        "Standard: 4.2.2",
        "99999.0.0",
    ] {
        assert_eq!(parse(bad), None, "{bad:?}");
    }
}

#[test]
fn debian_s_repaired_release_is_not_vulnerable() {
    let path = Path::new("/usr/lib/x86_64-linux-gnu/libpmix.so.2");
    if !path.exists() {
        return;
    }
    let version = version_of(path).unwrap().unwrap();
    // Debian 12 repaired its 4.2.2 without a new number.
    assert_eq!(vulnerable(path, version), None, "{version}");
}

#[test]
fn releases_before_fix_of_either_series_are_vulnerable() {
    let tree = Tree::new();
    let unknown = tree.libpmix("libpmix.so.2", "4.2.2");
    for (version, vulnerable) in [
        ((4, 2, 2), true),
        ((4, 2, 5), true),
        ((4, 2, 6), false),
        ((4, 2, 9), false),
        ((5, 0, 0), true),
        ((5, 0, 1), false),
        ((6, 0, 0), false),
    ] {
        let version = PmixRelease::new(version.0, version.1, version.2);
        let warning = super::vulnerable(&unknown, version);
        assert_eq!(warning.is_some(), vulnerable, "{version}");
    }
}

#[test]
fn libpmix_comes_from_flag_program_variable_or_system() {
    let tree = Tree::new();
    let flag = tree.libpmix("flag/libpmix.so.2", "6.0.0");
    let own = tree.libpmix("own/libpmix.so.2", "5.0.1");
    let variable = tree.libpmix("variable/libpmix.so.2", "5.0.2");
    let system = tree.libpmix("system/libpmix.so.2", "4.2.2rc2");
    let program = program(None, Some(own.clone()));
    let loader = tree.loader();
    let pick = |flag: Option<&Path>, program: Option<&DetectionResult>, variable: Option<&Path>| {
        choose(flag, program, variable, &[], &loader).unwrap().path
    };
    assert_eq!(pick(Some(&flag), Some(&program), Some(&variable)), flag);
    assert_eq!(pick(None, Some(&program), Some(&variable)), own);
    assert_eq!(pick(None, None, Some(&variable)), variable);
    assert_eq!(pick(None, None, None), system);
    let choice = choose(None, None, None, &[], &loader).unwrap();
    assert_eq!(choice.version, Some(MINIMUM));
    // The libpmix of a script is a guess: it precedes the system's, and follows those that are known.
    let libmpi = Sample::default().write(tree.path("venv/lib/libmpi.so.40"));
    let guess = tree.libpmix("venv/lib/openmpi/libpmix.so.2", "5.0.3");
    let pick = |program, variable| {
        let scripts = [libmpi.clone()];
        choose(None, program, variable, &scripts, &loader).unwrap()
    };
    assert_eq!(pick(Some(&program), None).path, own);
    assert_eq!(pick(None, Some(&*variable)).path, variable);
    let choice = pick(None, None);
    assert_eq!((choice.path, choice.source), (guess, LibpmixSource::Script));
}

#[test]
fn old_libpmix_of_program_is_skipped_for_newer_one() {
    let tree = Tree::new();
    let own = tree.libpmix("own/libpmix.so.2", "3.2.3");
    let program = program(None, Some(own.clone()));
    let error = choose(None, Some(&program), None, &[], &tree.loader()).unwrap_err();
    let LibpmixError::TooOld { path, version } = &error else {
        panic!("{error}");
    };
    assert_eq!((path, *version), (&own, PmixRelease::new(3, 2, 3)));
    assert!(error.to_string().contains("3.2.3") && error.to_string().contains("4.2.2"));
    let system = tree.libpmix("system/libpmix.so.2", "5.0.1");
    let choice = choose(None, Some(&program), None, &[], &tree.loader()).unwrap();
    assert_eq!(choice.path, system);
}

#[test]
fn libpmix_named_by_user_must_be_usable() {
    let tree = Tree::new();
    tree.libpmix("system/libpmix.so.2", "5.0.1");
    let loader = tree.loader();
    let old = tree.libpmix("old.so", "4.1.3");
    let refused = |path: &Path| choose(Some(path), None, None, &[], &loader).unwrap_err();
    assert!(matches!(refused(&old), LibpmixError::TooOld { .. }));
    let text = refused(&tree.path("none.so")).to_string();
    assert!(text.contains("none.so") && text.contains(FLAG), "{text}");
    assert!(matches!(
        refused(tree.0.path()),
        LibpmixError::Unusable { .. }
    ));
    let foreign = Sample {
        machine: 43,
        constants: "OpenPMIx 5.0.1",
        ..Sample::default()
    }
    .write(tree.path("foreign.so"));
    assert!(refused(&foreign).to_string().contains("machine 43"));
    let variable = choose(None, None, Some(&old), &[], &loader).unwrap_err();
    assert!(matches!(variable, LibpmixError::TooOld { .. }));

    let silent = Sample::default().write(tree.path("silent.so"));
    assert_eq!(
        choose(Some(&silent), None, None, &[], &loader)
            .unwrap()
            .version,
        None
    );
}

#[test]
fn open_mpi_plugin_leads_to_its_libpmix_on_debian() {
    let tree = Tree::new();
    let libmpi = Sample::default().write(tree.path("lib/libmpi.so.40"));
    let plugins = tree.path("lib/openmpi/lib/openmpi3");
    for (name, needed) in [
        ("mca_btl_tcp.so", "libother.so"),
        ("mca_pmix_ext3x.so", "libpmix.so.2"),
        ("mca_pmix_isolated.so", "libopen-pal.so.40"),
    ] {
        Sample {
            needed: &["libopen-pal.so.40", needed],
            runpath: Some("$ORIGIN/../../../pmix2"),
            ..Sample::default()
        }
        .write(plugins.join(name));
    }
    let library = tree.libpmix("lib/pmix2/libpmix.so.2.6.2", "4.2.2rc2");
    std::os::unix::fs::symlink(&library, tree.path("lib/pmix2/libpmix.so.2")).unwrap();
    tree.libpmix("system/libpmix.so.2", "5.0.1");
    let program = program(Some(libmpi), None);
    let choice = choose(None, Some(&program), None, &[], &tree.loader()).unwrap();
    assert_eq!((choice.path, choice.version), (library, Some(MINIMUM)));
    assert_eq!(choice.source, LibpmixSource::Program);
}

#[test]
fn libpmix_in_private_directory_of_open_mpi_is_found() {
    let tree = Tree::new();
    let libmpi = Sample::default().write(tree.path("lib/libmpi.so.40"));
    let library = tree.libpmix("lib/openmpi/libpmix.so.2", "5.0.11rc1");
    let program = program(Some(libmpi), None);
    let choice = choose(None, Some(&program), None, &[], &tree.loader()).unwrap();
    assert_eq!(choice.path, library);
}

#[test]
fn missing_libpmix_error_names_searched_paths_and_remedy() {
    let tree = Tree::new();
    let environment = [(
        OsString::from("LD_LIBRARY_PATH"),
        tree.path("x").into_os_string(),
    )];
    let system = tree.loader().system().clone();
    let loader = Loader::new(&environment, tree.0.path(), system);
    let text = choose(None, None, None, &[], &loader)
        .unwrap_err()
        .to_string();
    for part in [
        "LD_LIBRARY_PATH",
        "system",
        "apt-get install libpmix2",
        FLAG,
        VARIABLE,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let found = tree.libpmix("x/libpmix.so.2", "5.0.1");
    assert_eq!(choose(None, None, None, &[], &loader).unwrap().path, found);
}
