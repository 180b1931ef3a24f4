//! Chooses the MPI that the ranks of a program load instead of the program's own (`--mpi`): finds the installation that a name
//! means on this host, and the variables by which the dynamic loader finds its library.
//!
//! ```text
//!  name or path ─▶ installations ─▶ library of the program's ABI ─▶ the first by which the program loads it:
//!                                                                   no change, LD_LIBRARY_PATH, LD_PRELOAD
//! ```
//! LD_LIBRARY_PATH has no effect on children of the ranks that need no MPI, and precedes DT_RUNPATH. Only LD_PRELOAD precedes
//! DT_RPATH, and replaces a library of another name. Source: ld.so(8).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::inspect::ldso::LoaderFiles;
use crate::inspect::mpi_files::{MpiSearch, read_installations};
use crate::inspect::mpi4py;
use crate::inspect::program::Program;
use crate::inspect::{
    DetectedInterface, DetectionReason, FoundLibrary, ProgramInspection, elf, inspect,
    mpi_libraries, relocated, symbols,
};
use crate::plan::Variable;
use wireup_core::job::mpi::{MpiAbi, MpiFamily, MpiInstallation, MpiSelector};
use wireup_core::job::spec::AppRequest;

/// Variable with the directories that the dynamic loader searches first.
pub(super) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Variable with the libraries that the dynamic loader loads first.
pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// Directories below the prefix of Intel MPI that may contain its libfabric.
const INTEL_LIBFABRIC: [&str; 2] = ["opt/mpi/libfabric/lib", "libfabric/lib"];

/// Prefixes of the names of MPI's C functions.
const FUNCTIONS: [&str; 2] = ["MPI_", "PMPI_"];

/// Maximum number of installations in an error text.
const NAMED_MAX: usize = 4;

/// MPI that was chosen for a program, and the mechanism by which the program loads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChosenMpi {
    /// The text of `--mpi`.
    pub choice: String,
    pub installation: MpiInstallation,
    pub library: PathBuf,
    pub mechanism: LoadMechanism,
    /// Variables that were set or changed for this MPI.
    pub variables: Vec<Variable>,
}

/// Mechanism by which the dynamic loader finds the chosen library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadMechanism {
    /// The program loads the library without any change.
    Unchanged,
    LibraryPath,
    Preload,
    /// The program itself needs no MPI library: variables name the library for scripts, and for code that opens it at run time.
    Named,
}

impl fmt::Display for ChosenMpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            choice,
            installation,
            library,
            mechanism,
            ..
        } = self;
        let how = match mechanism {
            LoadMechanism::Unchanged => "the program loads it without a change",
            LoadMechanism::LibraryPath => "by LD_LIBRARY_PATH",
            LoadMechanism::Preload => "by LD_PRELOAD, because LD_LIBRARY_PATH does not suffice",
            LoadMechanism::Named => {
                "by LD_LIBRARY_PATH and MPI4PY_LIBMPI, because the program names no MPI library"
            }
        };
        write!(
            f,
            "{} ({installation}, found by {}), chosen by --mpi {choice}; {how}",
            library.display(),
            installation.source
        )
    }
}

/// Choice of an MPI with which a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum MpiChoiceError {
    #[error(
        "--mpi {0}: unknown name; use mpich, impi, mvapich or openmpi, optionally with a version (mpich5), a name of --define-mpi, or a path"
    )]
    UnknownName(String),
    #[error("--mpi {choice}: no such MPI on this host; {}", present(.found))]
    NotInstalled {
        choice: String,
        found: Vec<MpiInstallation>,
    },
    #[error(
        "--mpi {choice}: {} has no MPI library (libmpi.so.12, libmpi.so.40 or libmpi_abi.so.1); give the directory of the installation",
        path.display()
    )]
    NoLibrary { choice: String, path: PathBuf },
    #[error(
        "--mpi {choice}: {} is built for {abi}, which {chosen} does not have; {}",
        program.display(), fitting(.alternatives)
    )]
    OtherAbi {
        choice: String,
        program: PathBuf,
        abi: MpiAbi,
        chosen: Box<MpiInstallation>,
        alternatives: Vec<MpiInstallation>,
    },
    #[error(
        "--mpi {choice}: {} is static, and its MPI cannot be replaced; link it dynamically, or omit --mpi",
        program.display()
    )]
    Static { choice: String, program: PathBuf },
    #[error(
        "--mpi {choice}: {} calls {function}, which {} does not have; choose a newer version",
        program.display(), library.display()
    )]
    MissingFunction {
        choice: String,
        program: PathBuf,
        function: String,
        library: PathBuf,
    },
    #[error(
        "--mpi {choice}: {} needs {name}, which {chosen} does not have; choose an MPI with it",
        program.display()
    )]
    MissingLibrary {
        choice: String,
        program: PathBuf,
        name: String,
        chosen: Box<MpiInstallation>,
    },
    #[error(
        "--mpi {choice}: {} would still load {}; link it without DT_RPATH, or omit --mpi",
        program.display(), loaded.display()
    )]
    NotReplaced {
        choice: String,
        program: PathBuf,
        loaded: PathBuf,
    },
}

impl MpiChoiceError {
    /// Whether the choice may be valid on another host.
    pub(super) fn is_of_this_host(&self) -> bool {
        matches!(self, Self::NotInstalled { .. } | Self::NoLibrary { .. })
    }
}

fn present(found: &[MpiInstallation]) -> String {
    match found.is_empty() {
        true => "no MPI was found; give the directory of the installation".to_owned(),
        false => format!(
            "use {}, or give the directory of the installation",
            list(found)
        ),
    }
}

fn fitting(alternatives: &[MpiInstallation]) -> String {
    match alternatives.is_empty() {
        true => "no MPI on this host has it; omit --mpi, or install one with it".to_owned(),
        false => format!("choose {}, or omit --mpi", list(alternatives)),
    }
}

fn list(installations: &[MpiInstallation]) -> String {
    let all = installations.iter().take(NAMED_MAX);
    let all: Vec<String> = all.map(|it| format!("{} ({it})", it.name())).collect();
    all.join(", ")
}

/// Chooses the MPI of one program.
pub(super) struct MpiChooser<'a> {
    pub(super) app: &'a AppRequest,
    pub(super) program: &'a Program,
    /// Variables of the launcher, read if those of the program lack one.
    pub(super) inherited: &'a [Variable],
    pub(super) cwd: &'a Path,
}

impl MpiChooser<'_> {
    /// Chooses the MPI of the program, changes its variables accordingly, and inspects the program again. `None` without
    /// `--mpi`, or if the program is not on this host.
    ///
    /// # Errors
    /// [`MpiChoiceError`]; the variables are unchanged then.
    pub(super) fn choose(
        &self,
        env: &mut Vec<Variable>,
        inspection: &mut ProgramInspection,
    ) -> Result<Option<ChosenMpi>, MpiChoiceError> {
        let Some(choice) = &self.app.mpi.choice else {
            return Ok(None);
        };
        let choice = choice.to_string_lossy().into_owned();
        let program = inspection.detected.program.clone();
        match inspection.detected.why {
            DetectionReason::NotHere => return Ok(None),
            DetectionReason::Static(_) => return Err(MpiChoiceError::Static { choice, program }),
            _ => {}
        }
        let abi = program_abi(&needed_libraries(inspection));
        let candidates = self.candidates(&choice, env, inspection)?;
        let has_abi = |it: &MpiInstallation| abi.is_none_or(|abi| it.libraries.contains_key(&abi));
        let Some(installation) = candidates.iter().find(|it| has_abi(it)) else {
            let all = self.search(env, inspection).into_iter();
            return Err(MpiChoiceError::OtherAbi {
                choice,
                program,
                abi: abi.expect("every installation fits a program without an ABI"),
                chosen: Box::new(candidates[0].clone()),
                alternatives: all.filter(has_abi).collect(),
            });
        };
        let mut changed = env.clone();
        self.add_variables(installation, &mut changed);
        let (library, mechanism) = match abi {
            Some(abi) => {
                let library = &installation.libraries[&abi];
                let target = LoadTarget { abi, library };
                let mechanism =
                    self.load(&choice, installation, &target, &mut changed, inspection)?;
                (library, mechanism)
            }
            None => {
                // mpi4py's modules are built for the ABIs of the MPI families, which precede the standard ABI in the map.
                let library = installation.libraries.values().next();
                let library = library.expect("an installation has a library");
                search_first(&mut changed, library);
                set(&mut changed, mpi4py::LIBRARY, library.as_os_str());
                *inspection = self.inspect(&changed);
                let is_opaque = inspection.detected.wants == DetectedInterface::Unknown;
                if is_opaque && installation.family == MpiFamily::OpenMpi {
                    inspection.detected.openmpi = Some(library.clone());
                }
                (library, LoadMechanism::Named)
            }
        };
        let variables = changed.iter().filter(|it| !env.contains(it));
        let chosen = ChosenMpi {
            choice,
            library: library.clone(),
            mechanism,
            variables: variables.cloned().collect(),
            installation: installation.clone(),
        };
        *env = changed;
        Ok(Some(chosen))
    }

    /// Finds the installations that the choice may mean, the most probable first; at least one.
    fn candidates(
        &self,
        choice: &str,
        env: &[Variable],
        inspection: &ProgramInspection,
    ) -> Result<Vec<MpiInstallation>, MpiChoiceError> {
        let mut definitions = self.app.mpi.definitions.iter();
        let definition = definitions.rfind(|it| it.name == choice);
        let is_path = choice.contains('/');
        let path = match definition {
            Some(definition) => Some(definition.path.clone()),
            None => is_path.then(|| self.cwd.join(choice)),
        };
        if let Some(path) = path {
            let source = if is_path { "its path" } else { "--define-mpi" };
            let mut found = read_installations(&path, source);
            if found.is_empty() {
                let choice = choice.to_owned();
                return Err(MpiChoiceError::NoLibrary { choice, path });
            }
            let variables = definition.map(|it| it.variables.clone());
            let variables = variables.unwrap_or_default();
            for installation in &mut found {
                installation.variables.clone_from(&variables);
            }
            return Ok(found);
        }
        let selector = MpiSelector::parse(choice);
        let selector = selector.ok_or_else(|| MpiChoiceError::UnknownName(choice.to_owned()))?;
        let all = self.search(env, inspection).into_iter();
        let (found, others): (Vec<_>, Vec<_>) = all.partition(|it| selector.matches(it));
        match found.is_empty() {
            true => Err(MpiChoiceError::NotInstalled {
                choice: choice.to_owned(),
                found: others,
            }),
            false => Ok(found),
        }
    }

    fn search(&self, env: &[Variable], inspection: &ProgramInspection) -> Vec<MpiInstallation> {
        let variable = |name: &str| {
            let mut all = env.iter().chain(self.inherited);
            let found = all.find(|(known, _)| known == name);
            found.map(|(_, value)| PathBuf::from(value))
        };
        let search = MpiSearch {
            variable: &variable,
            loader: &inspection.loader,
            program: Some(&inspection.detected.program),
        };
        search.installations()
    }

    /// Makes the dynamic loader find the library by the first mechanism that suffices.
    fn load(
        &self,
        choice: &str,
        installation: &MpiInstallation,
        target: &LoadTarget<'_>,
        env: &mut Vec<Variable>,
        inspection: &mut ProgramInspection,
    ) -> Result<LoadMechanism, MpiChoiceError> {
        let program = inspection.detected.program.clone();
        let needed = needed_libraries(inspection);
        let directory = target.library.parent().unwrap_or_else(|| Path::new("/"));
        let companions = needed
            .iter()
            .filter(|it| MpiAbi::from_companion(&it.name) == Some(target.abi));
        let companions: Vec<PathBuf> = companions.map(|it| directory.join(&it.name)).collect();
        if let Some(missing) = companions.iter().find(|path| !path.exists()) {
            let name = missing.file_name().unwrap_or_default().to_string_lossy();
            return Err(MpiChoiceError::MissingLibrary {
                choice: choice.to_owned(),
                program,
                name: name.into_owned(),
                chosen: Box::new(installation.clone()),
            });
        }
        let mut by_path = env.clone();
        search_first(&mut by_path, target.library);
        let mut preloaded = env.clone();
        for library in companions
            .iter()
            .map(PathBuf::as_path)
            .chain([target.library])
        {
            put_first(&mut preloaded, PRELOAD, library);
        }
        for (variables, mechanism) in [
            (env.clone(), LoadMechanism::Unchanged),
            (by_path, LoadMechanism::LibraryPath),
            (preloaded, LoadMechanism::Preload),
        ] {
            let again = self.inspect(&variables);
            if !target.is_loaded(&needed_libraries(&again)) {
                continue;
            }
            if mechanism != LoadMechanism::Unchanged
                && let Some(function) = missing_function(&program, target.library)
            {
                return Err(MpiChoiceError::MissingFunction {
                    choice: choice.to_owned(),
                    program,
                    function,
                    library: target.library.to_owned(),
                });
            }
            (*env, *inspection) = (variables, again);
            return Ok(mechanism);
        }
        let loaded = needed.into_iter().find_map(|library| library.path);
        Err(MpiChoiceError::NotReplaced {
            choice: choice.to_owned(),
            program,
            loaded: loaded.unwrap_or_default(),
        })
    }

    fn inspect(&self, env: &[Variable]) -> ProgramInspection {
        let system = LoaderFiles::default();
        inspect(self.program, &self.app.argv, env, self.cwd, &system)
    }

    /// Adds the variables that an installation needs. Variables that the user sets for the program stay.
    fn add_variables(&self, installation: &MpiInstallation, env: &mut Vec<Variable>) {
        let is_given = |name: &OsStr| {
            self.app.env.iter().any(|text| {
                let rest = text.as_bytes().strip_prefix(name.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
            })
        };
        let prefix = installation.directory().parent();
        match (installation.family, prefix) {
            (MpiFamily::Intel, Some(prefix)) => {
                if !is_given("I_MPI_ROOT".as_ref()) {
                    set(env, "I_MPI_ROOT", prefix.as_os_str());
                }
                let mut all = INTEL_LIBFABRIC.iter().map(|below| prefix.join(below));
                if let Some(libfabric) = all.find(|it| it.join("libfabric.so.1").exists()) {
                    put_first(env, LIBRARY_PATH, &libfabric);
                    if !is_given("FI_PROVIDER_PATH".as_ref()) {
                        set(env, "FI_PROVIDER_PATH", libfabric.join("prov").as_os_str());
                    }
                }
            }
            // Removes the prefix of another installation; a relocated installation gets its own later.
            (MpiFamily::OpenMpi, Some(prefix)) if !is_given(relocated::OPEN_MPI.as_ref()) => {
                env.retain(|(name, value)| {
                    name != relocated::OPEN_MPI || Path::new(value) == prefix
                });
            }
            _ => {}
        }
        for (name, value) in &installation.variables {
            if !is_given(name) {
                set(env, name, value);
            }
        }
    }
}

/// Library that a program must load.
struct LoadTarget<'a> {
    abi: MpiAbi,
    library: &'a Path,
}

impl LoadTarget<'_> {
    /// Whether a program with these libraries loads the target, and libraries for other languages from the same directory.
    fn is_loaded(&self, libraries: &[FoundLibrary]) -> bool {
        let real = |path: Option<&Path>| path?.canonicalize().ok();
        let own = real(Some(self.library));
        let directory = own.as_deref().and_then(Path::parent);
        let is_main = |it: &&FoundLibrary| MpiAbi::from_soname(&it.name) == Some(self.abi);
        let main = libraries.iter().find(is_main);
        let mut names: Vec<&str> = Vec::new();
        main.is_some_and(|main| real(main.path.as_deref()) == own)
            && libraries.iter().all(|it| {
                // The loader searches only for the first library of a name.
                let is_first = !names.contains(&it.name.as_str());
                names.push(&it.name);
                let is_companion = MpiAbi::from_companion(&it.name) == Some(self.abi);
                let found = real(it.path.as_deref());
                !is_first || !is_companion || found.as_deref().and_then(Path::parent) == directory
            })
    }
}

/// The MPI libraries of a native program.
pub(super) fn needed_libraries(inspection: &ProgramInspection) -> Vec<FoundLibrary> {
    let program = &inspection.detected.program;
    match elf::read(program) {
        Ok(elf) if elf.dynamic => mpi_libraries(program, &elf, &inspection.loader),
        _ => Vec::new(),
    }
}

/// ABI that a program was built for, by the libraries that it needs.
pub(super) fn program_abi(needed: &[FoundLibrary]) -> Option<MpiAbi> {
    let mut mains = needed.iter().filter_map(|it| MpiAbi::from_soname(&it.name));
    let mut companions = needed
        .iter()
        .filter_map(|it| MpiAbi::from_companion(&it.name));
    mains.next().or_else(|| companions.next())
}

/// First MPI function that a program uses and a library does not have.
fn missing_function(program: &Path, library: &Path) -> Option<String> {
    let (user, library) = (symbols::read(program).ok()?, symbols::read(library).ok()?);
    let mut functions = user.undefined.into_iter();
    functions.find(|name| {
        FUNCTIONS.iter().any(|start| name.starts_with(start)) && !library.defined.contains(name)
    })
}

/// Puts the directory of a library first in `LD_LIBRARY_PATH`, except a system directory, whose other libraries would
/// precede those of the program too.
fn search_first(env: &mut Vec<Variable>, library: &Path) {
    let directory = library.parent().unwrap_or_else(|| Path::new("/"));
    let system = LoaderFiles::default().directories;
    if !system.iter().any(|known| known == directory) {
        put_first(env, LIBRARY_PATH, directory);
    }
}

/// Puts a path in front of a list in a variable, unless it is the first already.
pub(super) fn put_first(env: &mut Vec<Variable>, name: &str, path: &Path) {
    let known = env.iter().find(|(known, _)| known == name);
    let old = known.map(|(_, value)| value.as_bytes()).unwrap_or_default();
    if old.split(|byte| *byte == b':').next() == Some(path.as_os_str().as_bytes()) {
        return;
    }
    let mut value = path.as_os_str().to_owned();
    if !old.is_empty() {
        value.push(":");
        value.push(OsStr::from_bytes(old));
    }
    set(env, name, &value);
}

fn set(env: &mut Vec<Variable>, name: impl Into<OsString>, value: impl Into<OsString>) {
    let name = name.into();
    env.retain(|(known, _)| *known != name);
    env.push((name, value.into()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::elf::sample::Sample;
    use wireup_core::job::mpi::{MpiDefinition, MpiSpec};

    /// Directory with two MPIs of one family, `a` and `b`, and programs.
    struct Site(tempfile::TempDir);

    impl Site {
        fn new() -> Self {
            let site = Self(tempfile::tempdir().unwrap());
            for prefix in ["a", "b"] {
                for name in ["libmpi.so.12", "libmpi_abi.so.1"] {
                    site.write(&format!("{prefix}/lib/{name}"), &Sample::default());
                }
            }
            site.write("a/lib/libmpifort.so.12", &Sample::default());
            site
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn write(&self, name: &str, sample: &Sample<'_>) {
            sample.write(self.path(name));
        }

        /// Chooses an MPI for a program. Returns the choice and the variables of the program.
        fn choose(
            &self,
            choice: &str,
            sample: &Sample<'_>,
        ) -> Result<(ChosenMpi, Vec<Variable>), MpiChoiceError> {
            self.write("app", sample);
            let app = AppRequest {
                argv: vec![self.path("app").into()],
                mpi: MpiSpec {
                    choice: Some(choice.into()),
                    definitions: vec![MpiDefinition {
                        name: "ours".to_owned(),
                        path: self.path("b"),
                        variables: vec![("FI_PROVIDER".into(), "tcp".into())],
                    }],
                },
                ..AppRequest::default()
            };
            let cwd = self.path("");
            let program = Program::find(&app.argv[0], None, &cwd).unwrap();
            let mut env = vec![(LIBRARY_PATH.into(), "/own".into())];
            let system = LoaderFiles::default();
            let mut inspection = inspect(&program, &app.argv, &env, &cwd, &system);
            let chooser = MpiChooser {
                app: &app,
                program: &program,
                inherited: &[],
                cwd: &cwd,
            };
            let chosen = chooser.choose(&mut env, &mut inspection)?;
            Ok((chosen.unwrap(), env))
        }
    }

    fn value<'a>(env: &'a [Variable], name: &str) -> Option<&'a OsStr> {
        let found = env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_os_str())
    }

    #[test]
    fn library_path_leads_program_to_chosen_mpi() {
        let site = Site::new();
        let lib = site.path("a/lib");
        for needed in ["libmpi.so.12", "libmpi_abi.so.1"] {
            let sample = Sample {
                needed: &[needed],
                runpath: lib.to_str(),
                ..Sample::default()
            };
            let (chosen, env) = site.choose("ours", &sample).unwrap();
            assert_eq!(chosen.mechanism, LoadMechanism::LibraryPath);
            assert_eq!(chosen.library, site.path("b/lib").join(needed));
            let expected = format!("{}:/own", site.path("b/lib").display());
            assert_eq!(value(&env, LIBRARY_PATH), Some(expected.as_ref()));
            assert_eq!(value(&env, "FI_PROVIDER"), Some("tcp".as_ref()));
            assert_eq!(chosen.variables.len(), 2, "{chosen:?}");
        }
    }

    #[test]
    fn preload_replaces_library_of_rpath_or_of_another_name() {
        let site = Site::new();
        site.write("c/libmpich.so.12", &Sample::default());
        let (a, c) = (site.path("a/lib"), site.path("c"));
        for (needed, rpath, runpath) in [
            ("libmpi.so.12", a.to_str(), None),
            ("libmpich.so.12", None, c.to_str()),
        ] {
            let sample = Sample {
                needed: &[needed],
                rpath,
                runpath,
                ..Sample::default()
            };
            let (chosen, env) = site.choose("ours", &sample).unwrap();
            assert_eq!(chosen.mechanism, LoadMechanism::Preload, "{needed}");
            let library = site.path("b/lib/libmpi.so.12");
            assert_eq!(value(&env, PRELOAD), Some(library.as_os_str()));
            assert_eq!(value(&env, LIBRARY_PATH), Some("/own".as_ref()));
        }
    }

    #[test]
    fn mpi_that_program_loads_changes_nothing() {
        let site = Site::new();
        let lib = site.path("a/lib");
        let sample = Sample {
            needed: &["libmpifort.so.12", "libmpi.so.12"],
            runpath: lib.to_str(),
            ..Sample::default()
        };
        let own = site.path("a");
        let (chosen, env) = site.choose(own.to_str().unwrap(), &sample).unwrap();
        assert_eq!(chosen.mechanism, LoadMechanism::Unchanged);
        assert_eq!(env.len(), 1, "{env:?}");
        let error = site.choose("ours", &sample).unwrap_err().to_string();
        assert!(error.contains(" needs libmpifort.so.12, which "), "{error}");
    }

    #[test]
    fn variables_name_library_to_program_without_mpi() {
        let site = Site::new();
        let sample = Sample {
            needed: &["libc.so.6"],
            ..Sample::default()
        };
        let (chosen, env) = site.choose("ours", &sample).unwrap();
        assert_eq!(chosen.mechanism, LoadMechanism::Named);
        let library = site.path("b/lib/libmpi.so.12");
        assert_eq!(value(&env, mpi4py::LIBRARY), Some(library.as_os_str()));
    }

    #[test]
    fn unfit_choice_is_refused() {
        let site = Site::new();
        let plain = Sample {
            needed: &["libc.so.6"],
            ..Sample::default()
        };
        let open_mpi = Sample {
            needed: &["libmpi.so.40"],
            ..Sample::default()
        };
        let error = site.choose("ours", &open_mpi).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(" is built for Open MPI's ABI (libmpi.so.40), which "),
            "{text}"
        );
        assert!(!error.is_of_this_host());
        let error = site.choose("unknown", &plain).unwrap_err();
        assert_eq!(error, MpiChoiceError::UnknownName("unknown".to_owned()));
        let error = site.choose("./c", &plain).unwrap_err();
        assert!(matches!(error, MpiChoiceError::NoLibrary { .. }) && error.is_of_this_host());
        let static_program = Sample::default();
        let error = site.choose("ours", &static_program).unwrap_err();
        assert!(matches!(error, MpiChoiceError::Static { .. }), "{error}");
    }
}
