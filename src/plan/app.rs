//! One application context: its program, environment and working directory.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{App, Variable, wrong};
use crate::failure::RunFailure;
use crate::inspect::ldso::{Loader, System};
use crate::inspect::program::{Program, ProgramError};
use crate::inspect::{Inspection, inspect, relocated};
use crate::plan::environment::{self, Forward};
use crate::plan::inheritance::Inheritance;
use crate::plan::reasons::CountWhy;
use crate::plan::wrap::Wrapper;
use crate::plan::{rank_env, transports};
use crate::sys::limits;
use wireup_core::job::spec::AppSpec;

/// The purpose of the inspection of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stand {
    /// The one machine of the job.
    Alone,
    /// The launcher of a job on several hosts: files that are missing here may exist there.
    Launcher,
    /// A host with ranks of it.
    Node,
    Bystander,
    /// A machine with ranks of a job that was spawned.
    Child,
}

impl Stand {
    /// Its ranks are started here.
    fn starts(self) -> bool {
        matches!(self, Self::Alone | Self::Node | Self::Child)
    }
}

/// What to do about something that a host does not have.
const EVERYWHERE: &str = "copy it there, or put it where every host sees it";

/// What else can be done about a program.
const ALONG: &str = ", or let it go along (--preload-binary)";

/// The application, and the dynamic loader as its program will meet it. `env` are its
/// [`variables`]. With a `search`, the program was spawned, and is searched in these
/// directories before those of PATH, and in its working directory after all.
pub(super) fn app_plan(
    app: &AppSpec,
    (ranks, count): (Range<u32>, CountWhy),
    mut env: Vec<Variable>,
    inheritance: &Inheritance,
    stand: Stand,
    search: Option<&[PathBuf]>,
) -> Result<(App, Loader), RunFailure> {
    let cwd = working_directory(app, inheritance, stand)?;
    let start = cwd.as_deref().unwrap_or(&inheritance.cwd);
    // A program is found also for ranks that are to have no PATH.
    let path = env
        .iter()
        .chain(&inheritance.vars)
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let find = |name: &OsStr| match stand {
        Stand::Bystander => Ok(Program::elsewhere(name, start)),
        Stand::Alone | Stand::Node | Stand::Child => Program::find(name, path, start),
        Stand::Launcher => match Program::find(name, path, start) {
            Err(ProgramError::BadName { name }) => Err(ProgramError::BadName { name }),
            found => Ok(found.unwrap_or_else(|_| Program::elsewhere(name, start))),
        },
    };
    let refused = |code, message: String| RunFailure {
        code,
        message: match stand {
            Stand::Node => format!("{message}; {EVERYWHERE}"),
            _ => message,
        },
    };
    let program = match (search, stand.starts()) {
        (Some(search), true) => Program::find_spawned(&app.argv[0], search, path, start),
        _ => find(&app.argv[0]),
    };
    let program = program.map_err(|error| {
        let mut failure = refused(error.exit_code(), error.to_string());
        if stand == Stand::Node && !app.preload.program {
            failure.message.push_str(ALONG);
        }
        failure
    })?;
    let wrapper = app.wrap.as_ref().map(|spec| {
        Wrapper::find(spec, &ranks, find)
            .map_err(|error| refused(error.exit_code(), error.to_string()))
    });
    let wrapper = wrapper.transpose()?;
    let Inspection { finding, loader } =
        inspect(&program, &app.argv, &env, start, &System::default());
    let common = env.len();
    if stand.starts()
        && !env.iter().any(|(name, _)| name == relocated::OPEN_MPI)
        && let Some(prefix) = finding.openmpi.as_deref().and_then(relocated::open_mpi)
    {
        env.push((relocated::OPEN_MPI.into(), prefix.into()));
    }
    if stand.starts() {
        let settings = transports::left_out(&finding, &loader, &env);
        env.extend(
            settings
                .into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
    }
    let limits = match stand.starts() {
        true => limits::resolve(&app.limits),
        false => Ok(Vec::new()),
    };
    let app = App {
        wrapper,
        program,
        args: app.argv[1..].to_vec(),
        size: ranks.end - ranks.start,
        count,
        places_given: rank_env::places_given(&env),
        env,
        common,
        cwd,
        finding,
        limits: limits.map_err(|error| wrong(format!("--rlimit: {error}")))?,
        umask: app.umask.or(inheritance.umask),
    };
    Ok((app, loader))
}

/// The directory its ranks are to start in, unless it is that of this process.
pub(super) fn working_directory(
    app: &AppSpec,
    inheritance: &Inheritance,
    stand: Stand,
) -> Result<Option<PathBuf>, RunFailure> {
    let asked = app.wdir.as_ref().map(|dir| inheritance.cwd.join(dir));
    let dir = match (asked, stand) {
        (None, Stand::Alone) => return Ok(None),
        (asked, _) => asked.unwrap_or_else(|| inheritance.cwd.clone()),
    };
    if !stand.starts() {
        return Ok(Some(dir));
    }
    let shown = dir.display();
    let refused = |what: &str| match stand {
        Stand::Alone => wrong(format!("--wdir {shown}{what}")),
        Stand::Child => wrong(format!(
            "the working directory {shown}{what}; make it, or ask for another (wdir)"
        )),
        _ => wrong(format!(
            "the working directory {shown}{what}; make it there, or choose another with --wdir"
        )),
    };
    if let Err(errno) = rustix::fs::access(&dir, rustix::fs::Access::EXEC_OK) {
        return Err(refused(&format!(": {errno}")));
    }
    if !dir.is_dir() {
        return Err(refused(" is not a directory"));
    }
    Ok(Some(dir))
}

/// The variables of an app's ranks before wireup's own; if they are to `travel`, those that mean
/// nothing on other machines only if the user asks for them.
pub(super) fn variables(
    app: &AppSpec,
    inheritance: &Inheritance,
    travel: bool,
    warnings: &mut Vec<String>,
) -> Result<Vec<Variable>, RunFailure> {
    let mut asked = Vec::new();
    for path in &app.env_files {
        let failed = |error: &dyn Display| wrong(format!("--env-file {}: {error}", path.display()));
        let text = read_env_file(path).map_err(|error| failed(&error))?;
        asked.extend(environment::file::parse(&text).map_err(|error| failed(&error))?);
    }
    for text in &app.env {
        asked.push(Forward::parse(text).map_err(|error| wrong(format!("-x: {error}")))?);
    }
    let mut base = environment::base(&inheritance.vars, &app.inherited, &asked);
    if travel {
        environment::leave_local(&mut base.variables, &app.inherited, &asked);
    }
    let not_set = |option: &str, name: &OsString| {
        format!("{option} {}: not set here", name.to_string_lossy())
    };
    let bare = |text: &'_ OsString| {
        let text = text.as_bytes();
        text.strip_suffix(b"*").unwrap_or(text).to_owned()
    };
    let option = |name: &OsString| {
        let given = app.env.iter().any(|text| bare(text) == name.as_bytes());
        if given { "-x" } else { "--env-file" }
    };
    warnings.extend(base.not_there.iter().map(|name| not_set("--env", name)));
    warnings.extend(base.unset.iter().map(|name| not_set(option(name), name)));
    Ok(base.variables)
}

/// More than any environment can hold.
const ENV_FILE_MAX: u64 = 8 * 1024 * 1024;

fn read_env_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    if file.take(ENV_FILE_MAX + 1).read_to_end(&mut text)? as u64 > ENV_FILE_MAX {
        let why = "it is larger than any environment";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(text)
}
