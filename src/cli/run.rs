//! `wireup run`: turns its command line into a launch.
//!
//! ```text
//! arguments       the line, parsed and checked: no I/O
//! launch_lookups  files, environment and hosts, each looked up once
//! arguments       both as a JobSpec: no I/O
//! ```
//! With `--detach` only the launcher that the attach server starts looks anything up, and reports that.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

mod arguments;
mod detach;
mod launch_lookups;
pub(super) mod more_hosts;

use arguments::{CommandLine, LaunchArguments, LaunchLookups, has_option};
use detach::check_detachable;
pub(super) use launch_lookups::filter_of_environment;

use super::config::Defaults;
use super::impi::ImpiSpec;
use super::option_scan::OptionTable;
use super::run_args::{RunArgs, parse, topics};
use super::{nested_launcher, requeue, unused_nodes};
use crate::cli::run_usage_errors;
use crate::control::run::{EarlyResources, run};
use crate::detached;
use crate::rank_proxy::openmpi_singleton;
use crate::report::status_stream::refused;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;
use wireup_core::job::outcome::EXIT_REQUEUE;
use wireup_core::job::spec::{FailurePolicy, GRACE, JobSpec, StatusSpec, TerminationSpec};
use wireup_core::printable::printable;

/// Request of a command line.
enum RunRequest {
    /// Run a job, and join its IMPI job.
    Run(Box<JobSpec>, Option<ImpiSpec>),
    /// The request was answered, with this exit code.
    Answered(u8),
}

/// Runs the job of a whole command line, `wireup run` included, and returns its exit code.
pub(super) fn line(args: Vec<OsString>) -> Result<u8, CommandError> {
    let job_name = detached::job_name_from_env();
    if job_name.is_none()
        && let Some(code) = detach::hand_over(&args)?
    {
        return Ok(code);
    }
    let name = job_name.and_then(|name| Nspace::new(&name).ok());
    let name = name.or_else(openmpi_singleton::nspace);
    let guarded = starts_ranks_here(&args);
    let prepare = || EarlyResources::new(guarded, name.clone());
    // A launch joins an IMPI job before other preparations, so that its agent does not count as a leftover of the job.
    let prepared = (!has_option(&args, &[b"impi"])).then(prepare);
    let (mut spec, link) = match request(args)? {
        RunRequest::Run(spec, link) => (spec, link),
        RunRequest::Answered(code) => return Ok(code),
    };
    detached::attach_client::report_lookups();
    let membership = match link {
        Some(link) if !spec.dry_run => Some(link.join(&mut spec)?),
        _ => None,
    };
    let code = start(*spec, prepared.unwrap_or_else(prepare))?;
    Ok(membership.map_or(code, |membership| membership.leave(code)))
}

fn start(
    mut spec: JobSpec,
    beginning: Result<EarlyResources, CommandError>,
) -> Result<u8, CommandError> {
    nested_launcher::prepare(&mut spec);
    let requeues = spec.ending.on_failure == FailurePolicy::Requeue;
    let code = run(spec, beginning, detached::attach_client::report_start)?;
    if requeues && code == EXIT_REQUEUE {
        requeue::request_requeue();
    }
    Ok(code)
}

/// Whether an unparsed line looks like one that starts ranks on this machine. A wrong result only costs time.
fn starts_ranks_here(args: &[OsString]) -> bool {
    const NO_RANKS: [&str; 3] = ["-h", "--help", "--dry-run"];
    let elsewhere = |word: &OsString| {
        NO_RANKS.iter().any(|known| word == known) || word.as_bytes().starts_with(b"--host")
    };
    !args.iter().any(elsewhere)
}

/// Parses a whole command line.
fn request(args: Vec<OsString>) -> Result<RunRequest, CommandError> {
    let own = OptionTable::from_parser::<RunArgs>();
    let line = CommandLine::new(&own, args.into_iter().skip(2)).map_err(CommandError::request)?;
    if let Some(topic) = topics::topic(&own, &line.first) {
        return topics::show(topic).map(RunRequest::Answered);
    }
    if let Some(problem) = more_hosts::find(&own, &line.first) {
        return Err(CommandError::request(problem));
    }
    let defaults = launch_lookups::read_defaults(&own, &line)?;
    let args = match line.parse(own, &defaults) {
        Ok(args) => args,
        Err(error) => return answer(&error, &defaults, &line).map(RunRequest::Answered),
    };
    let (status, is_dry) = (StatusSpec::from(args.status.clone()), args.dry_run);
    let report = |failure: &CommandError| {
        if !is_dry {
            refused(&status, failure);
        }
    };
    let rankfile = launch_lookups::read_rankfile(&args.layout).inspect_err(report)?;
    let arguments = LaunchArguments::new(args, line, &defaults, rankfile).inspect_err(report)?;
    if !is_dry && detached::job_name_from_env().is_some() {
        // Defaults files may add options that exclude --detach.
        check_detachable(&arguments.spec.stdio, &arguments.spec.status)?;
    }
    let found = launch_lookups::look_up(&arguments).inspect_err(report)?;
    let names_hosts = arguments.hosts.has_hosts() || arguments.is_virtual();
    let impi = arguments.impi.clone();
    let spec = arguments.into_spec(found).inspect_err(report)?;
    if !names_hosts
        && spec.layout.hosts.is_empty()
        && let Some(line) = unused_nodes::other_nodes()
    {
        eprintln!("wireup: {}", printable(&line));
    }
    Ok(RunRequest::Run(Box::new(spec), impi))
}

/// Answers a line that requests no launch, or refuses it.
fn answer(
    error: &clap::Error,
    defaults: &Defaults,
    line: &CommandLine,
) -> Result<u8, CommandError> {
    wireup_agent_args::usage_errors::answer(error, || blame(error, defaults, &line.first))
}

/// Returns the job that `wireup run` with these words would run.
///
/// # Errors
/// The errors of [`line`].
pub(super) fn spec_of(words: Vec<OsString>) -> Result<JobSpec, CommandError> {
    let front = ["wireup", "run", "--dry-run"].map(OsString::from);
    match request(front.into_iter().chain(words).collect())? {
        RunRequest::Run(spec, _) => Ok(*spec),
        RunRequest::Answered(_) => Err(CommandError::request("these options ask for no run")),
    }
}

/// Returns the job of these words after `wireup run` on this machine alone, without defaults files and lookups.
///
/// # Errors
/// [`CommandError`], also for options that need a file.
pub(super) fn spec_without_lookups(words: Vec<OsString>) -> Result<JobSpec, CommandError> {
    let own = OptionTable::from_parser::<RunArgs>();
    let line = CommandLine::new(&own, words).map_err(CommandError::request)?;
    let defaults = Defaults::default();
    let args = line.parse(own, &defaults);
    let args =
        args.map_err(|error| CommandError::request(run_usage_errors::run_error_text(&error)))?;
    let arguments = LaunchArguments::new(args, line, &defaults, None)?;
    arguments.into_spec(LaunchLookups::default())
}

/// Returns the error of a refused command line; a defaults file may be the cause.
fn blame(error: &clap::Error, defaults: &Defaults, first: &[OsString]) -> String {
    if let Some(line) = defaults.blame_entry() {
        return line;
    }
    let mut line = run_usage_errors::run_error_text(error);
    if let Some(advice) = run_usage_errors::taken_as_file(error, first) {
        line.push_str(&advice);
    }
    let alone = parse(OptionTable::from_parser::<RunArgs>(), first.to_vec());
    if alone.is_ok() {
        return format!(
            "{line}; that comes of the defaults in {}: --no-config does without",
            defaults.files()
        );
    }
    line
}

/// Returns the grace time of a job whose launcher had these arguments after `run`, with the current defaults files; the
/// built-in one if this version cannot parse the words.
pub(super) fn grace_of(command: &[OsString]) -> Duration {
    let own = OptionTable::from_parser::<RunArgs>();
    let Ok(line) = CommandLine::new(&own, command.iter().cloned()) else {
        return GRACE;
    };
    let defaults = launch_lookups::read_defaults(&own, &line).unwrap_or_default();
    let args = line.parse(own, &defaults);
    args.map_or(GRACE, |args| TerminationSpec::from(args.ending).grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_time_of_running_job_is_read_from_its_command_line() {
        let grace = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            grace_of(&words)
        };
        assert_eq!(
            grace("-np 2 --grace 30 a --grace 4 : -n 1 b"),
            Duration::from_secs(30)
        );
        assert_eq!(grace("--no-config a --grace 4"), GRACE);
        assert_eq!(grace("--no-config --from-a-later-version a"), GRACE);
    }
}
