//! `wireup run`: arguments to a [`JobSpec`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

mod detach;
pub(super) mod more_hosts;

use detach::{LauncherMode, can_be_kept, may_be_kept, start_detachable, start_of};

use super::apps::{app_specs, split_apps};
use super::config::{self, Defaults};
use super::impi::ImpiSpec;
use super::option_scan::OptionTable;
use super::run_args::{RunArgs, parse, topics};
use super::{nested_launcher, requeue, unused_nodes};
use crate::cli::foreign_options::option_table::OWN;
use crate::cli::{foreign_options, usage_errors};
use crate::control::run::{EarlyResources, run};
use crate::detached;
use crate::failure::CommandError;
use crate::log;
use crate::rank_proxy::openmpi_singleton;
use crate::report::printable::printable;
use crate::report::status_stream::refused;
use wireup_core::job::ids::Nspace;
use wireup_core::job::outcome::EXIT_REQUEUE;
use wireup_core::job::spec::{
    FailurePolicy, GRACE, JobSpec, StatusSpec, StdioSpec, TerminationSpec,
};

/// What a command line asks for.
enum RunRequest {
    /// A job, and the IMPI job that it is part of.
    Run(Box<JobSpec>, Option<ImpiSpec>, LauncherMode),
    /// Something that has been answered, with this exit code.
    Answered(u8),
}

/// Runs the job of a whole command line, `wireup run` included, and returns its exit code.
pub(super) fn line(args: Vec<OsString>) -> Result<u8, CommandError> {
    let given = detached::job_name_from_env();
    if given.is_none() && may_be_kept(&args) {
        match parse_request(args.clone())? {
            RunRequest::Run(_, _, LauncherMode::Here) => {}
            RunRequest::Run(_, _, start) => return start_detachable(&args, start),
            RunRequest::Answered(code) => return Ok(code),
        }
    }
    let name = given.and_then(|name| Nspace::new(&name).ok());
    let name = name.or_else(openmpi_singleton::nspace);
    // Before anything is prepared for the launch: its agent is then none of the processes that a job leaves behind.
    let member = match asks(&args, &[b"impi"]).then(|| parse_request(args.clone())) {
        Some(Ok(RunRequest::Run(mut spec, Some(link), _))) if !spec.dry_run => {
            Some((link.join(&mut spec)?, spec))
        }
        Some(Ok(RunRequest::Answered(code))) => return Ok(code),
        Some(Err(failure)) => return Err(failure),
        _ => None,
    };
    let beginning = EarlyResources::new(starts_ranks_here(&args), name);
    if let Some((membership, spec)) = member {
        return start(*spec, beginning).map(|code| membership.leave(code));
    }
    match parse_request(args)? {
        RunRequest::Run(spec, _, _) => start(*spec, beginning),
        RunRequest::Answered(code) => Ok(code),
    }
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

/// Whether a line that has not been parsed has an option that begins with one of these.
fn asks(args: &[OsString], options: &[&[u8]]) -> bool {
    args.iter().any(|word| {
        let name = word.as_bytes();
        let dashes = name.iter().take_while(|byte| **byte == b'-').count();
        let name = &name[dashes..];
        dashes > 0 && options.iter().any(|option| name.starts_with(option))
    })
}

/// Whether a line that has not been parsed looks like one that starts ranks on this machine. To be
/// wrong costs time and nothing else.
fn starts_ranks_here(args: &[OsString]) -> bool {
    const NO_RANKS: [&str; 3] = ["-h", "--help", "--dry-run"];
    let elsewhere = |word: &OsString| {
        NO_RANKS.iter().any(|known| word == known) || word.as_bytes().starts_with(b"--host")
    };
    !args.iter().any(elsewhere)
}

fn parse_request(args: Vec<OsString>) -> Result<RunRequest, CommandError> {
    let own = OptionTable::from_parser::<RunArgs>();
    let mut parts = split_apps(args.into_iter().skip(2)).into_iter();
    let (mut everywhere, mut idle) = (Vec::new(), Vec::new());
    let mut translate = |part| {
        let translated =
            foreign_options::translate(&own, &OWN, part).map_err(CommandError::request)?;
        everywhere.extend(translated.everywhere);
        idle.extend(translated.notes);
        Ok::<_, CommandError>(translated.words)
    };
    let first = translate(parts.next().unwrap_or_default())?;
    if let Some(topic) = topics::topic(&own, &first) {
        return topics::show(topic).map(RunRequest::Answered);
    }
    let rest = parts.map(translate).collect::<Result<Vec<_>, _>>()?;
    if let Some(problem) = more_hosts::find(&own, &first) {
        return Err(CommandError::request(problem));
    }
    let defaults = if config::is_refused(&own, &first) {
        Defaults::default()
    } else {
        config::read(&own).map_err(CommandError::request)?
    };
    let mut words = defaults.words();
    words.extend_from_slice(&everywhere);
    words.extend_from_slice(&first);
    let mut args = match parse(own, words) {
        Ok(args) => args,
        Err(error) => {
            let answered = super::answer(&error, || blame(&error, &defaults, &first));
            return answered.map(RunRequest::Answered);
        }
    };
    let is_explicit = |words: &[OsString]| asks(words, &[b"launch-agents"]);
    args.hosts.launch_agents_by_default = !is_explicit(&everywhere) && !is_explicit(&first);
    let start = start_of(&args);
    // Options for every program precede each one's own.
    let mut shared = defaults.words_of_every_program();
    shared.extend(everywhere);
    let status = StatusSpec::from(args.status);
    let told = |failure: &CommandError| {
        if !args.dry_run {
            refused(&status, failure);
        }
    };
    let log = match args.log {
        Some(filter) => Some(filter),
        None => filter_of_environment().inspect_err(told)?,
    };
    let is_job_option = |word: &OsStr| OptionTable::from_parser::<RunArgs>().knows(word);
    let mut apps = app_specs(args.app, &shared, rest, is_job_option).inspect_err(told)?;
    let rankfile = args.layout.rankfile().inspect_err(told)?;
    if let (Some(file), [app]) = (&rankfile, &mut apps[..]) {
        app.count = app.count.or_else(|| Some(file.size()));
    }
    args.ending.check().inspect_err(told)?;
    let stdio = StdioSpec::from(args.stdio);
    if start != LauncherMode::Here {
        can_be_kept(&stdio, &status).inspect_err(told)?;
    }
    // Of a job that is kept its launcher says it.
    let says = start == LauncherMode::Here;
    let given = args.hosts.are_given() || args.layout.is_virtual();
    let psets = std::mem::take(&mut args.layout.psets);
    let ranks = apps.iter().map(|app| app.count).sum::<Option<u32>>();
    let slots = rankfile.as_ref().and_then(|file| file.slots.clone());
    let binding = args.binding.resolve(&args.layout, slots);
    let binding = binding.inspect_err(told)?;
    let layout = args.layout.resolve(args.hosts, ranks, rankfile.as_ref());
    let layout = layout.inspect_err(told)?;
    if says
        && !given
        && layout.hosts.is_empty()
        && let Some(line) = unused_nodes::other_nodes()
    {
        eprintln!("wireup: {}", printable(&line));
    }
    let mut notes = Vec::new();
    let no_config = args.no_config;
    let described = || defaults.describe(no_config).into_iter().chain(idle);
    if args.explain || args.dry_run {
        notes.extend(described());
    } else if says && args.verbose > 0 {
        for line in described() {
            eprintln!("wireup: {}", printable(&line));
        }
    }
    let spec = JobSpec {
        apps,
        psets,
        layout,
        binding,
        container: args.container.resolve().inspect_err(told)?,
        fabric: args.fabric.into(),
        stdio,
        ending: args.ending.into(),
        status,
        interface: args.interface.into(),
        debug: args.debug.into(),
        impi: None,
        dry_run: args.dry_run,
        explain: args.explain,
        notes,
        verbose: args.verbose,
        log,
    };
    Ok(RunRequest::Run(Box::new(spec), args.impi, start))
}

/// What `wireup run` with these words would run.
///
/// # Errors
/// As [`line`] has them.
pub(super) fn spec_of(words: Vec<OsString>) -> Result<JobSpec, CommandError> {
    let front = ["wireup", "run", "--dry-run"].map(OsString::from);
    match parse_request(front.into_iter().chain(words).collect())? {
        RunRequest::Run(spec, ..) => Ok(*spec),
        RunRequest::Answered(_) => Err(CommandError::request(
            "these options ask for no run".to_owned(),
        )),
    }
}

/// The filter of the log that the environment gives.
pub(super) fn filter_of_environment() -> Result<Option<String>, CommandError> {
    let Some(filter) = std::env::var_os(log::VARIABLE).filter(|filter| !filter.is_empty()) else {
        return Ok(None);
    };
    let checked = log::check(&filter.to_string_lossy());
    checked
        .map(Some)
        .map_err(|error| CommandError::request(format!("{}: {error}", log::VARIABLE)))
}

/// The line for a command line that was refused, which may be the fault of a defaults file.
fn blame(error: &clap::Error, defaults: &Defaults, first: &[OsString]) -> String {
    if let Some(line) = defaults.blame_entry() {
        return line;
    }
    let mut line = usage_errors::run_error_text(error);
    if let Some(advice) = usage_errors::taken_as_file(error, first) {
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

/// The grace time of a job whose launcher had these arguments after `run`, with today's
/// defaults files; the built-in one when this version does not understand the words.
pub(super) fn grace_of(command: &[OsString]) -> Duration {
    let own = OptionTable::from_parser::<RunArgs>();
    let first = split_apps(command.to_vec()).into_iter().next();
    let Ok(translated) = foreign_options::translate(&own, &OWN, first.unwrap_or_default()) else {
        return GRACE;
    };
    let defaults = match config::is_refused(&own, &translated.words) {
        true => Defaults::default(),
        false => config::read(&own).unwrap_or_default(),
    };
    let mut words = defaults.words();
    words.extend(translated.everywhere);
    words.extend(translated.words);
    parse(own, words).map_or(GRACE, |args| TerminationSpec::from(args.ending).grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_time_of_a_running_job_is_read_from_its_command_line() {
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
