//! `wireup stacks` and `wireup core`: inspect the ranks of a running job, on all its hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::launcher_host::LauncherHost;
use super::options::HostsListArgs;
use super::ps::{found, query_records};
use super::remote_launch::{option_words, switch_word};
use crate::control::query_server::job_query::{JobQueryKind, ProcessRecord};
use crate::jobs::query_launcher::{Progress, Watcher};
use crate::report::process_names::{RankKey, listed};
use crate::report::stacks;
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::compress;
use wireup_core::job::rank_set::RankSet;
use wireup_core::printable;
use wireup_core::wording::counted;

const STACKS_HELP: &str = "\
Examples:
  wireup stacks 3f              where all ranks are, as one tree; the odd ones come first
  wireup stacks 3f --ranks 0,3-5
  wireup stacks 3f --python     only Python's own frames, where a rank has some
  wireup stacks 3f --json
  wireup stacks 3f --hosts n[1-4]    the launcher is on one of these hosts

How:
  The launcher has each host of the job run one gdb, which attaches to the ranks there one after
  another; they go on at once. gdb has to be installed on the hosts. Ranks that run Python are shown with the
  frames of Python and of the C functions that these call, by py-spy in PATH (of this command or of the
  launcher), or by what the distribution of Python has for gdb. A rank that gdb does not read within 30 s is
  passed over. After 5 s, and again after longer times, standard error shows the stacks found so far.
  JOB is the beginning of a job's name or the pid of its
  launcher, as `wireup ps` shows them. Where the launcher is on another host, its agent executes the command there as you:
  on a host of the job by itself, elsewhere with --hosts.

Exit status:
  0    the stacks of all ranks that run were shown
  1    there is no such job, or some ranks could not be looked into
  125  wireup itself failed or was called wrongly";

const CORE_HELP: &str = "\
Examples:
  wireup core 3f                      core.RANK.PID of each rank, in this directory
  wireup core 3f --ranks 5 --dir /tmp

How:
  As `wireup stacks` does it, with a gdb on each host. The ranks go on. The directory has to be there
  on the ranks' hosts.

Exit status:
  0    every rank that runs has a core
  1    there is no such job, or some have none
  125  wireup itself failed or was called wrongly";

/// Selection of a job and of its ranks.
#[derive(Debug, Args)]
struct RankSelection {
    /// The job [default: the only one]
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// These ranks only
    #[arg(long, value_name = "RANKS")]
    ranks: Option<RankSet>,

    /// Print a JSON array with an object for each rank
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    hosts: HostsListArgs,
}

impl RankSelection {
    /// Executes the command on the launcher's host, if that is another host; otherwise returns.
    fn pass_on(&mut self, command: &str, mut options: Vec<OsString>) -> Result<(), CommandError> {
        let hosts = std::mem::take(&mut self.hosts);
        let Some(host) = LauncherHost::find(hosts, self.job.as_deref())? else {
            return Ok(());
        };
        let ranks = self.ranks.as_ref().map(RankSet::to_string);
        options.extend(option_words("--ranks", ranks));
        options.extend(switch_word("--json", self.json));
        Err(host.execute(command, options, false))
    }

    /// Shows what the launcher replies about the ranks.
    fn show(self, query: JobQueryKind, lines: RankLines) -> Result<u8, CommandError> {
        let job = found(self.job.as_deref())?;
        let mut interim = Interim::new(self.json, lines);
        let records = query_records(&job, self.ranks, query, &mut interim)?;
        shown(&records, self.json, lines)
    }
}

/// Arguments of `wireup stacks`.
#[derive(Debug, Args)]
#[command(after_help = STACKS_HELP)]
pub(super) struct StacksArgs {
    #[command(flatten)]
    which: RankSelection,

    /// Show only the frames of Python in ranks that run it
    #[arg(long)]
    python: bool,
}

/// Arguments of `wireup core`.
#[derive(Debug, Args)]
#[command(after_help = CORE_HELP)]
pub(super) struct CoreArgs {
    #[command(flatten)]
    which: RankSelection,

    /// Directory for the cores, on each host [default: this one]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// Shows the stacks of a job's ranks.
///
/// # Errors
/// The errors of [`found`] and [`query_records`].
pub(super) fn show_stacks(mut args: StacksArgs) -> Result<u8, CommandError> {
    let python = args.python;
    let options = python.then(|| "--python".into());
    args.which
        .pass_on("stacks", options.into_iter().collect())?;
    let path = std::env::var("PATH").ok();
    args.which.show(JobQueryKind::Stacks { python, path }, tree)
}

fn tree(records: &[ProcessRecord]) -> Vec<String> {
    let stacks = records.iter().map(ProcessRecord::stack);
    let stacks = stacks.filter_map(|one| Some((one.name, one.found.ok()?)));
    stacks::tree(stacks)
}

/// Function that formats ranks as lines of text.
type RankLines = fn(&[ProcessRecord]) -> Vec<String>;

/// Time without a reply after which the first interim result is shown.
const FIRST_INTERIM: Duration = Duration::from_secs(5);

/// Interim results on standard error while ranks are inspected, at increasing intervals.
struct Interim {
    started: Instant,
    /// Time from the start to the next result.
    next: Duration,
    /// Number of ranks in the last result.
    shown: usize,
    /// Lines for the ranks; none for JSON.
    lines: Option<RankLines>,
}

impl Interim {
    fn new(json: bool, lines: RankLines) -> Self {
        Self {
            started: Instant::now(),
            next: FIRST_INTERIM,
            shown: 0,
            lines: (!json).then_some(lines),
        }
    }
}

impl Watcher for Interim {
    fn due(&self) -> Option<Instant> {
        Some(self.started + self.next)
    }

    fn show(&mut self, progress: &Progress<'_>) {
        let Progress { total, found } = *progress;
        let seconds = self.started.elapsed().as_secs();
        let mut text = vec![format!(
            "wireup: {} of {} inspected after {seconds} s",
            found.len(),
            counted(total, "rank")
        )];
        if let Some(lines) = self.lines.filter(|_| found.len() > self.shown) {
            let mut found = found.to_vec();
            found.sort_by_key(|record| (record.job, record.rank));
            text.extend(lines(&found));
        }
        self.shown = found.len();
        self.next *= 2;
        eprint!("{}", printable::lines(text));
    }
}

/// Writes cores of a job's ranks.
///
/// # Errors
/// The errors of [`found`] and [`query_records`].
pub(super) fn write_cores(mut args: CoreArgs) -> Result<u8, CommandError> {
    let here = std::env::current_dir()
        .map_err(|error| CommandError::system("cannot find the working directory", error))?;
    let directory = here.join(args.dir.take().unwrap_or_default());
    let options = vec!["--dir".into(), directory.clone().into_os_string()];
    args.which.pass_on("core", options)?;
    args.which.show(JobQueryKind::Core { directory }, cores)
}

fn cores(records: &[ProcessRecord]) -> Vec<String> {
    let line = |record: &ProcessRecord| {
        let stack = record.stack();
        let file = stack.found.ok()?.first()?;
        Some(format!("{}: {}:{file}", listed(&[stack.name]), stack.host))
    };
    records.iter().filter_map(line).collect()
}

/// Prints the results, and the reasons for missing ones.
fn shown(records: &[ProcessRecord], json: bool, lines: RankLines) -> Result<u8, CommandError> {
    let text = match json {
        true => {
            let text = printable::json(&records);
            text.map_err(|error| CommandError::system("JSON", error))? + "\n"
        }
        false => printable::lines(lines(records)),
    };
    super::show(&text);
    let stacks = records.iter().map(ProcessRecord::stack);
    let missing: Vec<String> = stacks
        .filter_map(|stack| stacks::missing_stack(&stack))
        .collect();
    let notes = noted(records);
    let lines = missing.iter().chain(&notes);
    let lines = lines.map(|line| format!("wireup: {line}"));
    eprint!("{}", printable::lines(lines));
    if records.is_empty() {
        eprintln!("wireup: none of these ranks runs");
    }
    Ok(u8::from(!missing.is_empty() || records.is_empty()))
}

/// A line for each reason why ranks are shown otherwise than they would be.
fn noted(records: &[ProcessRecord]) -> Vec<String> {
    let mut notes: BTreeMap<&str, (Vec<RankKey>, BTreeSet<&str>)> = BTreeMap::new();
    for record in records {
        if let Some(note) = &record.note {
            let stack = record.stack();
            let (names, hosts) = notes.entry(note).or_default();
            names.push(stack.name);
            hosts.insert(stack.host);
        }
    }
    let line = |(note, (names, hosts)): (&str, (Vec<RankKey>, BTreeSet<&str>))| {
        format!("{} ({}): {note}", listed(&names), compress(hosts))
    };
    notes.into_iter().map(line).collect()
}
