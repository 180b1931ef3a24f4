//! `wireup kill`: signals to jobs on this machine, and their end.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;

use super::launch_command::job_of;
use super::launcher_host::LauncherHost;
use super::options::HostsListArgs;
use super::ps::{choose, scope};
use super::remote_launch::{option_words, switch_word};
use super::run::grace_of;
use crate::cli::value_error::ValueError;
use crate::jobs::termination::{self, EndError, SentSignal, SignalRecipient};
use crate::jobs::{self, JobLifeState, LocalJobInfo, name};
use wireup_core::failure::CommandError;
use wireup_core::job::spec::GRACE;
use wireup_core::printable;
use wireup_core::wording::counted;
use wireup_sys::signals;

/// Time after the job's grace time at which a launcher gets the signal again.
const AGAIN: Duration = Duration::from_secs(8);

/// Time of the wait after the second signal.
const LAST: Duration = Duration::from_secs(20);

const AFTER_HELP: &str = "\
Examples:
  wireup kill 3f              ends the job whose name begins with 3f
  wireup kill -s USR1 4711    signals the job whose launcher has pid 4711
  wireup kill --all
  wireup kill 3f --hosts n[1-4]    the launcher is on one of these hosts

Jobs:
  A job is named by the beginning of its name or by the pid of its launcher; `wireup ps` shows them.

Signals:
  SIGTERM makes the launcher end its ranks: they get it too, and SIGKILL after the grace time. It passes
  on INT, TERM, QUIT, HUP, USR1, USR2, TSTP, CONT, ALRM, ABRT, URG and XCPU; other signals go to the
  ranks' process groups directly. TERM, HUP, QUIT and KILL wait until nothing of the job is left. A job
  whose launcher is gone is ended the same way, and its files are removed.

Several hosts:
  On the launcher's machine a job is ended everywhere. On another one of its hosts TERM, HUP, QUIT and
  KILL end the part that is there, and with it the job; other signals, and those for some ranks, reach
  ranks on this machine only, and the hosts of the others are named. With --hosts, the agent of the launcher's host
  executes the command there as you.

Exit status:
  0    done
  1    there is no such job or rank, it did not end, or ranks were meant that are on other hosts
  125  wireup itself failed or was called wrongly";

/// Arguments of `wireup kill`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct KillArgs {
    /// Jobs to signal [default: the only one]
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,

    /// All your jobs
    #[arg(long, conflicts_with_all = ["jobs", "ranks"])]
    all: bool,

    /// With --all: jobs of all users (for root)
    #[arg(long, requires = "all", conflicts_with = "jobs")]
    all_users: bool,

    /// Signal to send, by name or number
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    #[arg(allow_negative_numbers = true)]
    signal: Signal,

    /// Signal only these ranks, and not through the launcher
    #[arg(long = "rank", value_name = "R[,R]...", value_delimiter = ',')]
    ranks: Vec<u32>,

    /// Return as soon as the signal has been sent
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    hosts: HostsListArgs,
}

impl KillArgs {
    /// Executes the command on the host of the job's launcher, which is one of the named hosts.
    fn pass_on(self) -> Result<u8, CommandError> {
        if self.all || self.jobs.len() > 1 || !self.hosts.has_hosts() {
            return Err(CommandError::request(
                "--hosts and --hostfile signal one JOB, whose launcher is on one of the hosts, without --all; --agent needs \
                 one of them",
            ));
        }
        let signal = self.signal.as_raw().to_string();
        let mut options: Vec<OsString> = vec!["--signal".into(), signal.into()];
        let ranks: Vec<String> = self.ranks.iter().map(u32::to_string).collect();
        let ranks = (!ranks.is_empty()).then(|| ranks.join(","));
        options.extend(option_words("--rank", ranks));
        options.extend(switch_word("--no-wait", self.no_wait));
        let job = self.jobs.first().map(String::as_str);
        let host = LauncherHost::among(self.hosts, job)?;
        Err(host.execute("kill", options, false))
    }
}

fn parse_signal(text: &str) -> Result<Signal, ValueError> {
    signals::parse(text).ok_or(ValueError::Signal)
}

/// Signals the jobs and, if that ends them, waits for it.
///
/// # Errors
/// When the job does not exist; then no signal is sent.
pub(super) fn execute(args: KillArgs) -> Result<u8, CommandError> {
    if args.hosts.has_options() {
        return args.pass_on();
    }
    let started = Instant::now();
    let all = jobs::list(scope(args.all_users, !args.jobs.is_empty())?);
    let chosen = match args.all {
        true => (0..all.len()).collect(),
        false => choose(&args.jobs, &all)?,
    };
    if chosen.is_empty() {
        eprintln!("wireup: no jobs to signal");
    }
    let short = name::short(&all);
    let called = |index: usize| {
        let pid = all[index].pid().unwrap_or(0);
        match &short[index] {
            Some(short) => format!("job {short} (pid {pid})"),
            None => format!("job of pid {pid}"),
        }
    };
    let names: Vec<&String> = chosen
        .iter()
        .filter_map(|index| all[*index].name.as_ref())
        .collect();
    let ranks = (!args.ranks.is_empty()).then_some(args.ranks.as_slice());
    let mut failed = false;
    let mut open = Vec::new();
    for index in chosen {
        let job = &all[index];
        // A job inside another one ends with it, and its launcher gets the signal too.
        let inside = job.within.as_ref().is_some_and(|job| names.contains(&job));
        if inside && termination::ends(args.signal) {
            continue;
        }
        match termination::signal(job, ranks, args.signal) {
            Ok(sent) => open.push((index, sent)),
            Err(error) => {
                failed = true;
                let hint = match error {
                    EndError::Elsewhere(_) => launcher_hint(job, ranks),
                    _ => String::new(),
                };
                let line = format!("wireup: {}: {error}{hint}", called(index));
                eprint!("{}", printable::lines([line]));
            }
        }
    }
    for (index, sent) in open {
        let what = what_was_sent(&all[index], &sent, args.signal);
        let mut text = format!("{}: {what}", called(index));
        if !sent.elsewhere.is_empty() {
            failed = true;
            let hint = launcher_hint(&all[index], ranks);
            text += &format!(
                "; {}{hint}",
                termination::remote_ranks_text(&sent.elsewhere)
            );
        }
        if termination::ends(args.signal) && !args.no_wait {
            match wait(&all[index], &sent, ranks, started) {
                Ok(true) => {
                    let seconds = started.elapsed().as_secs_f64();
                    let where_ = match sent.receiver {
                        SignalRecipient::Steps => " here",
                        _ => "",
                    };
                    text += &format!("; ended{where_} after {seconds:.1} s");
                }
                Ok(false) => {
                    failed = true;
                    text += &format!(
                        "; still there after {} s{}",
                        started.elapsed().as_secs(),
                        remedy(args.signal)
                    );
                }
                Err(error) => {
                    failed = true;
                    text += &format!("; {error}");
                }
            }
        }
        eprint!("{}", printable::lines([format!("wireup: {text}")]));
    }
    Ok(u8::from(failed))
}

/// Process that passes a signal to all ranks.
fn launcher_hint(job: &LocalJobInfo, ranks: Option<&[u32]>) -> String {
    match (job.launcher_elsewhere(), ranks) {
        (Some(launcher), None) => {
            let host = &launcher.host;
            format!(", or all ranks on {host}, the host of its launcher")
        }
        _ => String::new(),
    }
}

fn remedy(signal: Signal) -> &'static str {
    match signal == Signal::KILL {
        true => "",
        false => ", -s KILL cannot be ignored",
    }
}

fn what_was_sent(job: &LocalJobInfo, sent: &SentSignal, signal: Signal) -> String {
    let signal = signals::name(signal);
    match &sent.receiver {
        SignalRecipient::Launcher => format!("{signal} sent to its launcher"),
        SignalRecipient::LauncherInstead => "no rank runs, SIGTERM sent to its launcher".to_owned(),
        SignalRecipient::LauncherKills => "its launcher kills it on all hosts".to_owned(),
        SignalRecipient::Steps => {
            let step = format!("SIGTERM sent to its step here{}", nodes_here(job));
            match job.state == JobLifeState::Orphaned {
                true => format!("{step}, whose agent is gone"),
                false => format!("{step}, which ends it on all its hosts"),
            }
        }
        SignalRecipient::Ranks(ranks) => match ranks[..] {
            [rank] => format!("{signal} sent to rank {rank}"),
            _ => format!("{signal} sent to {} ranks", ranks.len()),
        },
        SignalRecipient::Leftovers(count) => {
            format!(
                "its launcher was gone; {} ended and files removed",
                counted(*count, "process")
            )
        }
        SignalRecipient::Nobody => "its launcher is gone and its guard is ending it".to_owned(),
    }
}

/// The nodes of a job that are here, between parentheses.
fn nodes_here(job: &LocalJobInfo) -> String {
    let names: Vec<&str> = job.nodes_here().filter_map(|(_, name)| name).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    }
}

/// Whether the selected processes have ended.
fn wait(
    job: &LocalJobInfo,
    sent: &SentSignal,
    ranks: Option<&[u32]>,
    started: Instant,
) -> Result<bool, EndError> {
    // A job without a local launcher has a rank's command.
    let described = job
        .launcher
        .as_ref()
        .and_then(|process| job_of(process.pid));
    let grace = match (&job.launcher, described) {
        (Some(_), None) => grace_of(&job.command),
        (Some(_), Some(spec)) => spec.ending.grace,
        (None, _) => GRACE,
    };
    let patience = grace.saturating_add(AGAIN);
    let patience = patience.saturating_sub(started.elapsed());
    if ranks.is_some() {
        return Ok(termination::wait_for_processes(sent, patience));
    }
    if termination::wait(job, sent, patience)? {
        return Ok(true);
    }
    termination::hurry(job, sent)?;
    termination::wait(job, sent, LAST)
}
