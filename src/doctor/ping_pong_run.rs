//! `wireup doctor --run`: two ranks of the user's own MPI send messages between hosts, pair by pair.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use wireup_core::doctor::DoctorHost;
use wireup_core::doctor::neighbours::{pairs, rounds};
use wireup_core::doctor::ping_pong::{Pair, PingPong};
use wireup_core::job::hosts::HostSpec;

use crate::backend::cleanup_record;
use wireup_core::failure::{CommandError, RequestError};

/// Source of the program that the two ranks run, unless the user names one.
const SOURCE: &str = include_str!("pingpong.c");

/// Timeout of a pair, in seconds.
const LIMIT: &str = "60";

/// Number of pairs that run at the same time.
const AT_ONCE: usize = 16;

/// Program that the ranks run.
#[derive(Clone, Debug)]
pub enum PingPongProgram {
    /// Program of wireup, compiled with this command.
    Compiled(OsString),
    /// Program of the user.
    User(PathBuf),
}

/// Error: the program cannot be made.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("--run: {} cannot be executed: {error}; name the compiler of your MPI (--mpicc)", compiler.display())]
    NoCompiler { compiler: PathBuf, error: io::Error },
    #[error("--run: {} did not compile the program: {output}", compiler.display())]
    NotCompiled { compiler: PathBuf, output: String },
    #[error("--run: a directory for the program: {0}")]
    Directory(io::Error),
}

impl RequestError for RunError {}

/// Directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        // A predictable name could be taken by another user.
        let number = cleanup_record::number()?;
        let path = std::env::temp_dir().join(format!("wireup-doctor-{number:016x}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed stays in the user's directory for temporary files, with a name that identifies it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sends messages to and fro between pairs of these hosts, or two ranks on this one. The result of each pair is stored at the
/// first of its hosts.
///
/// # Errors
/// If the program cannot be made.
pub fn ping_pong(
    hosts: &mut [DoctorHost],
    specs: &[HostSpec],
    agent: Option<&OsString>,
    choice: &PingPongProgram,
) -> Result<(), CommandError> {
    let scratch = Scratch::new().map_err(RunError::Directory)?;
    let program = match choice {
        PingPongProgram::User(program) => program.clone(),
        PingPongProgram::Compiled(compiler) => compile(compiler, &scratch.0)?,
    };
    if specs.is_empty() {
        let result = launch(None, agent, &program);
        hosts[0].pairs.push(Pair { host: 0, result });
        return Ok(());
    }
    let answered: Vec<usize> = (0..hosts.len())
        .filter(|number| hosts[*number].facts.is_ok())
        .collect();
    for round in rounds(&pairs(answered.len()), AT_ONCE) {
        let results: Vec<(usize, Pair)> = std::thread::scope(|scope| {
            let launches: Vec<_> = round
                .into_iter()
                .map(|(from, to)| (answered[from], answered[to]))
                .map(|(from, host)| {
                    let program = &program;
                    scope.spawn(move || {
                        let result = launch(Some([&specs[from], &specs[host]]), agent, program);
                        (from, Pair { host, result })
                    })
                })
                .collect();
            let ended = launches.into_iter().filter_map(|launch| launch.join().ok());
            ended.collect()
        });
        for (from, pair) in results {
            hosts[from].pairs.push(pair);
        }
    }
    Ok(())
}

fn compile(compiler: &OsStr, directory: &Path) -> Result<PathBuf, RunError> {
    let (source, program) = (directory.join("pingpong.c"), directory.join("pingpong"));
    std::fs::write(&source, SOURCE).map_err(RunError::Directory)?;
    let compiled = Command::new(compiler)
        .args(["-O2", "-o"])
        .args([&program, &source])
        .stdin(Stdio::null())
        .output();
    let name = || PathBuf::from(compiler);
    let output = compiled.map_err(|error| RunError::NoCompiler {
        compiler: name(),
        error,
    })?;
    match output.status.success() {
        true => Ok(program),
        false => Err(RunError::NotCompiled {
            compiler: name(),
            output: last_line(&output.stderr).unwrap_or_else(|| output.status.to_string()),
        }),
    }
}

/// Runs two ranks on two hosts, or on this machine.
fn launch(
    hosts: Option<[&HostSpec; 2]>,
    agent: Option<&OsString>,
    program: &Path,
) -> Result<PingPong, String> {
    let started = || -> io::Result<Output> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg0("wireup")
            .args(["run", "-n", "2", "--timeout", LIMIT]);
        match hosts {
            None => command.arg("--oversubscribe"),
            Some(hosts) => {
                let list = hosts.map(HostSpec::entry).join(",");
                command.args(["--ppn", "1", "--stage=program", "--hosts", &list])
            }
        };
        if let Some(agent) = agent.filter(|_| hosts.is_some()) {
            command.arg("--agent").arg(agent);
        }
        command.arg(program).stdin(Stdio::null()).output()
    };
    let output = started().map_err(|error| format!("wireup run cannot be started: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match output.status.success() {
        true => Ok(PingPong::find(&printed)),
        false => Err(failure_text(&output)),
    }
}

/// Describes the failure of a launch: the first line of wireup, and the last of the MPI.
fn failure_text(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let own = stderr.lines().find_map(|line| {
        let line = line.strip_prefix("wireup: ")?;
        (!line.starts_with("warning: ")).then(|| line.to_owned())
    });
    let theirs = stderr
        .lines()
        .rfind(|line| !line.starts_with("wireup: ") && !line.trim().is_empty());
    match (own, theirs) {
        (Some(own), Some(theirs)) => format!("{own}; {}", theirs.trim()),
        (Some(own), None) => own,
        (None, Some(theirs)) => theirs.trim().to_owned(),
        (None, None) => output.status.to_string(),
    }
}

fn last_line(output: &[u8]) -> Option<String> {
    let output = String::from_utf8_lossy(output);
    let line = output.lines().rfind(|line| !line.trim().is_empty())?;
    Some(line.trim().to_owned())
}
