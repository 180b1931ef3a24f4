//! One application context: its program, environment and working directory.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::super::environment::{self, Forward};
use super::super::inspect::{Inspection, inspect};
use super::super::ldso::{Loader, System};
use super::super::limits;
use super::super::program::Program;
use super::super::rank_env;
use super::super::reasons::CountWhy;
use super::super::relocated;
use super::super::run::RunFailure;
use super::super::wrap::Wrapper;
use super::{App, wrong};
use crate::job::spec::AppSpec;

/// The application, and the dynamic loader as its program will meet it.
pub(super) fn app_plan(
    app: &AppSpec,
    (ranks, count): (Range<u32>, CountWhy),
    inherited: &[(OsString, OsString)],
    cwd: &Path,
    warnings: &mut Vec<String>,
) -> Result<(App, Loader), RunFailure> {
    let wdir = working_directory(app, cwd)?;
    let mut env = variables(app, inherited, warnings)?;
    // A program is found also for ranks that are to have no PATH.
    let path = env
        .iter()
        .chain(inherited)
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let start = wdir.as_deref().unwrap_or(cwd);
    let program = Program::find(&app.argv[0], path, start).map_err(|error| RunFailure {
        code: error.exit_code(),
        message: error.to_string(),
    })?;
    let wrapper = app.wrap.as_ref().map(|spec| {
        Wrapper::find(spec, &ranks, path, start).map_err(|error| RunFailure {
            code: error.exit_code(),
            message: error.to_string(),
        })
    });
    let wrapper = wrapper.transpose()?;
    let Inspection { finding, loader } =
        inspect(&program, &app.argv, &env, start, &System::default());
    if !env.iter().any(|(name, _)| name == relocated::OPEN_MPI)
        && let Some(prefix) = finding.openmpi.as_deref().and_then(relocated::open_mpi)
    {
        env.push((relocated::OPEN_MPI.into(), prefix.into()));
    }
    let app = App {
        wrapper,
        program,
        args: app.argv[1..].to_vec(),
        size: ranks.end - ranks.start,
        count,
        places_given: rank_env::places_given(&env),
        env,
        cwd: wdir,
        finding,
        limits: limits::resolve(&app.limits)
            .map_err(|error| wrong(format!("--rlimit: {error}")))?,
        umask: app.umask,
    };
    Ok((app, loader))
}

/// The directory asked for, if the ranks can start there.
fn working_directory(app: &AppSpec, cwd: &Path) -> Result<Option<PathBuf>, RunFailure> {
    let Some(dir) = app.wdir.as_ref().map(|dir| cwd.join(dir)) else {
        return Ok(None);
    };
    let shown = dir.display();
    if let Err(errno) = rustix::fs::access(&dir, rustix::fs::Access::EXEC_OK) {
        return Err(wrong(format!("--wdir {shown}: {errno}")));
    }
    if !dir.is_dir() {
        return Err(wrong(format!("--wdir {shown} is not a directory")));
    }
    Ok(Some(dir))
}

/// The variables of an app's ranks before wireup's own.
fn variables(
    app: &AppSpec,
    inherited: &[(OsString, OsString)],
    warnings: &mut Vec<String>,
) -> Result<Vec<(OsString, OsString)>, RunFailure> {
    let mut asked = Vec::new();
    for path in &app.env_files {
        let failed = |error: &dyn Display| wrong(format!("--env-file {}: {error}", path.display()));
        let text = read_env_file(path).map_err(|error| failed(&error))?;
        asked.extend(environment::file::parse(&text).map_err(|error| failed(&error))?);
    }
    for text in &app.env {
        asked.push(Forward::parse(text).map_err(|error| wrong(format!("-x: {error}")))?);
    }
    let base = environment::base(inherited, &app.inherited, &asked);
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
