//! Resolves an application context on a host: its program, environment and working directory.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{AppStart, Variable};
use crate::inspect::ldso::{Loader, LoaderFiles};
use crate::inspect::program::{Program, ProgramError};
use crate::inspect::{ProgramInspection, inspect, relocated};
use crate::plan::environment::{self, EnvForward};
use crate::plan::impi_preload::{self, ImpiPreloadError};
use crate::plan::inherited_context::InheritedContext;
use crate::plan::mpi_choice::{MpiChoiceError, MpiChooser};
use crate::plan::reasons::CountReason;
use crate::plan::wrap::{WrapError, Wrapper};
use crate::plan::{hostfile, rank_env, transports};
use wireup_core::container;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::AppRequest;
use wireup_sys::resource_limits::{self, Forbidden};
use wireup_sys::spawn::ProcessSettings;

/// Machine on which an application is inspected; decides which files must exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InspectionSite {
    /// The only machine of the job.
    Alone,
    /// Machine of the launcher of a job on several hosts: files that are missing here may exist on the hosts.
    Launcher,
    /// Host with ranks of the application.
    Node,
    /// Machine without ranks of the application: no file must exist.
    Bystander,
    /// Machine with ranks of the application, in a spawned job.
    Child,
}

impl InspectionSite {
    /// Whether ranks of the application are started on the machine.
    fn starts(self) -> bool {
        matches!(self, Self::Alone | Self::Node | Self::Child)
    }
}

/// Advice in messages about a file that a host does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// The text of the error is sufficient.
    None,
    Copy,
    CopyOrPreload,
    /// The file must be in the image.
    Image,
}

impl Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Image => "; put it into the image (--image), or mount its directory there (--image-mount)",
            Self::Copy => "; copy it to the host, or to a file system of all hosts",
            Self::CopyOrPreload => {
                "; copy it to the host, or to a file system of all hosts, or let wireup copy it (--stage)"
            }
        })
    }
}

/// Part of an application context that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum AppError {
    #[error("{0}{1}")]
    Program(ProgramError, Remedy),
    #[error("{0}{1}")]
    Wrapper(WrapError, Remedy),
    #[error("--rlimit: {0}")]
    Limits(Forbidden),
    /// Working directory of an initial job on this machine.
    #[error("--wdir {}: {problem}", dir.display())]
    Wdir {
        dir: PathBuf,
        problem: DirectoryProblem,
    },
    /// Working directory of a spawned job.
    #[error("working directory {}: {problem}; create it, or choose another (wdir)", dir.display())]
    SpawnedWdir {
        dir: PathBuf,
        problem: DirectoryProblem,
    },
    /// Working directory of an initial job on another host.
    #[error("working directory {}: {problem}; create it on the host, or choose another with --wdir", dir.display())]
    WdirThere {
        dir: PathBuf,
        problem: DirectoryProblem,
    },
    #[error(
        "{} exists neither on the host nor on the launcher's; copy it to the host", .0.display()
    )]
    NeededFile(PathBuf),
    #[error("--env-file {}: {error}", path.display())]
    UnreadableEnvironment { path: PathBuf, error: io::Error },
    #[error("--env-file {}: {error}", path.display())]
    Environment {
        path: PathBuf,
        error: environment::env_file::FileError,
    },
    #[error(transparent)]
    Mpi(MpiChoiceError),
    #[error(transparent)]
    Impi(ImpiPreloadError),
    #[error("-x: {0}")]
    Forward(environment::ForwardError),
}

impl From<AppError> for CommandError {
    fn from(error: AppError) -> Self {
        match error.program_code() {
            Some(code) => Self::Program {
                code,
                error: error.into(),
            },
            None => Self::request(error),
        }
    }
}

impl AppError {
    /// Exit code for a program that cannot be executed; `None` for other errors.
    pub(super) fn program_code(&self) -> Option<u8> {
        match self {
            Self::Program(error, _) => Some(error.exit_code()),
            Self::Wrapper(error, _) => Some(error.exit_code()),
            _ => None,
        }
    }
}

/// Reason why a working directory cannot be used.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum DirectoryProblem {
    #[error(transparent)]
    Denied(Errno),
    #[error("not a directory")]
    NoDirectory,
}

/// Resolves an application; returns the dynamic loader with its environment too. `env` are the application's
/// [`variables`]. The program of a [child](InspectionSite::Child) is searched in the directories of the request, in
/// those of PATH, and last in its working directory. `count` is the reason for the number of
/// `ranks`, and `in_image` whether they run in an image.
pub(super) fn resolve_app(
    app: &AppRequest,
    ranks: Range<u32>,
    count: CountReason,
    mut env: Vec<Variable>,
    inheritance: &InheritedContext,
    stand: InspectionSite,
    in_image: bool,
) -> Result<(AppStart, Loader), AppError> {
    let mut cwd = working_directory(app, inheritance, stand)?;
    if in_image {
        // A process that has entered the image is in another directory.
        cwd.get_or_insert_with(|| inheritance.cwd.clone());
    }
    let start = cwd.as_deref().unwrap_or(&inheritance.cwd);
    if stand.starts()
        && let Some(path) = missing_file(app, start)
    {
        return Err(AppError::NeededFile(path));
    }
    // The launcher's PATH is used for ranks without one.
    let path = env
        .iter()
        .chain(&inheritance.vars)
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let find = |name: &OsStr| match stand {
        InspectionSite::Bystander => Ok(Program::from_remote_name(name, start)),
        InspectionSite::Alone | InspectionSite::Node | InspectionSite::Child => {
            Program::find(name, path, start)
        }
        InspectionSite::Launcher => match Program::find(name, path, start) {
            Err(ProgramError::BadName { name }) => Err(ProgramError::BadName { name }),
            found => Ok(found.unwrap_or_else(|_| Program::from_remote_name(name, start))),
        },
    };
    let remedy = |preloaded| match (stand, preloaded) {
        _ if in_image => Remedy::Image,
        (InspectionSite::Node, true) => Remedy::Copy,
        (InspectionSite::Node, false) => Remedy::CopyOrPreload,
        _ => Remedy::None,
    };
    let program = match stand {
        InspectionSite::Child => Program::find_spawned(&app.argv[0], &app.search, path, start),
        _ => find(&app.argv[0]),
    };
    let program = program.map_err(|error| {
        let is_brought = app.preload.program || app.preload.stage;
        AppError::Program(error.with_app(&app.argv, app.count), remedy(is_brought))
    })?;
    let wrapper = app.wrap.as_ref().map(|spec| {
        let found = Wrapper::find(spec, &ranks, find);
        found.map_err(|error| AppError::Wrapper(error, remedy(true)))
    });
    let wrapper = wrapper.transpose()?;
    let base_env = env.clone();
    let mut inspection = inspect(&program, &app.argv, &env, start, &LoaderFiles::default());
    let chooser = MpiChooser {
        app,
        program: &program,
        inherited: &inheritance.vars,
        cwd: start,
    };
    let mpi = match chooser.choose(&mut env, &mut inspection) {
        Err(error) if stand == InspectionSite::Launcher && error.is_of_this_host() => None,
        chosen => chosen.map_err(AppError::Mpi)?,
    };
    // Spawned jobs have worlds of their own, and images have no libraries of wireup.
    if matches!(stand, InspectionSite::Alone | InspectionSite::Node) && !in_image {
        impi_preload::add_library(&inspection, mpi.as_ref(), &mut env).map_err(AppError::Impi)?;
    }
    let ProgramInspection { detected, loader } = inspection;
    if stand.starts()
        && !env.iter().any(|(name, _)| name == relocated::OPEN_MPI)
        && let Some(prefix) = detected.openmpi.as_deref().and_then(relocated::open_mpi)
    {
        env.push((relocated::OPEN_MPI.into(), prefix.into()));
    }
    if stand.starts() {
        env.extend(transports::left_out(&detected, &loader, &env));
    }
    let limits = match stand.starts() {
        true => resource_limits::resolve(&app.limits),
        false => Ok(Vec::new()),
    };
    let app = AppStart {
        wrapper,
        program,
        args: app.argv[1..].to_vec(),
        size: ranks.end - ranks.start,
        count,
        preset_rank_vars: rank_env::preset_variables(&env),
        env,
        base_env,
        mpi,
        cwd,
        detected,
        settings: ProcessSettings {
            limits: limits.map_err(AppError::Limits)?,
            umask: app.umask.or(inheritance.umask),
        },
    };
    Ok((app, loader))
}

/// First file that must exist where an application's ranks start, and does not.
fn missing_file(app: &AppRequest, cwd: &Path) -> Option<PathBuf> {
    // A staged file has the last component of the path as its name in the working directory.
    let is_brought = |path: &Path| path.file_name().is_some_and(|name| cwd.join(name).exists());
    let mut paths = app.needed_files.iter().map(|path| cwd.join(path));
    paths.find(|path| !path.exists() && !is_brought(path))
}

/// Working directory of an application's ranks; `None` if it is that of this process.
pub(super) fn working_directory(
    app: &AppRequest,
    inheritance: &InheritedContext,
    stand: InspectionSite,
) -> Result<Option<PathBuf>, AppError> {
    let wdir = app.wdir.as_ref().map(|dir| inheritance.cwd.join(dir));
    let dir = match (wdir, stand) {
        (None, InspectionSite::Alone) => return Ok(None),
        (wdir, _) => wdir.unwrap_or_else(|| inheritance.cwd.clone()),
    };
    if !stand.starts() {
        return Ok(Some(dir));
    }
    let problem = match rustix::fs::access(&dir, rustix::fs::Access::EXEC_OK) {
        Err(errno) => DirectoryProblem::Denied(errno),
        Ok(()) if !dir.is_dir() => DirectoryProblem::NoDirectory,
        Ok(()) => return Ok(Some(dir)),
    };
    Err(match stand {
        InspectionSite::Alone => AppError::Wdir { dir, problem },
        InspectionSite::Child => AppError::SpawnedWdir { dir, problem },
        _ => AppError::WdirThere { dir, problem },
    })
}

/// Variables of an app's ranks before wireup's own. Variables that are meaningful on this machine alone are removed for other
/// hosts, and variables with files of the host for ranks in an image, unless the user names them.
pub(super) fn variables(
    app: &AppRequest,
    inheritance: &InheritedContext,
    in_image: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Variable>, AppError> {
    let mut forwards = Vec::new();
    for path in &app.env_files {
        let text = hostfile::read_within(path, ENV_FILE_MAX);
        let text = text.map_err(|error| AppError::UnreadableEnvironment {
            path: path.clone(),
            error,
        })?;
        let variables = environment::env_file::parse(&text);
        forwards.extend(variables.map_err(|error| AppError::Environment {
            path: path.clone(),
            error,
        })?);
    }
    for text in &app.env {
        forwards.push(EnvForward::parse(text).map_err(AppError::Forward)?);
    }
    let mut base = environment::base(&inheritance.vars, &app.inherited, &forwards);
    let mut leave = |is_left: fn(&OsStr) -> bool| {
        environment::leave(&mut base.variables, &app.inherited, &forwards, is_left);
    };
    if in_image {
        // The image has its own system files.
        leave(container::is_of_the_image);
    }
    if inheritance.is_for_hosts() {
        leave(environment::is_local);
    }
    let not_set = |option: &str, name: &OsString| {
        format!("{option} {}: not set here", name.to_string_lossy())
    };
    let bare = |text: &'_ OsString| {
        let text = text.as_bytes();
        text.strip_suffix(b"*").unwrap_or(text).to_owned()
    };
    let unset = |name: &OsString| {
        let option = app.env.iter().find(|text| bare(text) == name.as_bytes());
        option.map_or_else(
            || not_set("--env-file", name),
            |written| not_set("-x", written),
        )
    };
    warnings.extend(base.not_there.iter().map(|name| not_set("--env", name)));
    warnings.extend(base.unset.iter().map(unset));
    Ok(base.variables)
}

/// Maximum size of an environment file in bytes.
const ENV_FILE_MAX: u64 = 8 * 1024 * 1024;
