//! One application context: its program, environment and working directory.

use std::ffi::OsString;
use std::path::Path;

use super::super::environment::{self, Forward};
use super::super::inspect::{Inspection, inspect};
use super::super::ldso::{Loader, System};
use super::super::limits;
use super::super::program::Program;
use super::super::rank_env;
use super::super::reasons::CountWhy;
use super::super::relocated;
use super::super::run::RunFailure;
use super::{App, wrong};
use crate::job::spec::AppSpec;

/// The application, and the dynamic loader as its program will meet it.
pub(super) fn app_plan(
    app: &AppSpec,
    (size, count): (u32, CountWhy),
    inherited: &[(OsString, OsString)],
    cwd: &Path,
    warnings: &mut Vec<String>,
) -> Result<(App, Loader), RunFailure> {
    let wdir = app.wdir.as_ref().map(|dir| cwd.join(dir));
    if let Some(dir) = &wdir {
        let entered = rustix::fs::access(dir, rustix::fs::Access::EXEC_OK);
        if let Err(errno) = entered {
            let text = format!("--wdir {}: {errno}", dir.display());
            return Err(wrong(text));
        }
        if !dir.is_dir() {
            return Err(wrong(format!(
                "--wdir {} is not a directory",
                dir.display()
            )));
        }
    }
    let asked = app
        .env
        .iter()
        .map(|text| Forward::parse(text))
        .collect::<Result<Vec<_>, _>>();
    let asked = asked.map_err(|error| wrong(format!("-x: {error}")))?;
    let base = environment::base(inherited.iter().cloned(), &asked);
    warnings.extend(
        base.unset
            .iter()
            .map(|name| format!("-x {}: not set here", name.to_string_lossy())),
    );
    let mut env = base.variables;
    let path = env
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let start = wdir.as_deref().unwrap_or(cwd);
    let program = Program::find(&app.argv[0], path, start).map_err(|error| RunFailure {
        code: error.exit_code(),
        message: error.to_string(),
    })?;
    let Inspection { finding, loader } =
        inspect(&program, &app.argv, &env, start, &System::default());
    if !env.iter().any(|(name, _)| name == relocated::OPEN_MPI)
        && let Some(prefix) = finding.openmpi.as_deref().and_then(relocated::open_mpi)
    {
        env.push((relocated::OPEN_MPI.into(), prefix.into()));
    }
    let app = App {
        program,
        args: app.argv[1..].to_vec(),
        size,
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
