//! `wireup stacks` and `wireup core`: looks into the ranks of a running job, on all its hosts.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::ps::asked;
use crate::control::requests::message::{ProcessRecord, Wish};
use crate::failure::RunFailure;
use crate::report::process_names::listed;
use crate::report::stacks;
use wireup_core::job::rank_set::RankSet;

const STACKS_HELP: &str = "\
Examples:
  wireup stacks 3f              where all ranks are, as one tree; the odd ones come first
  wireup stacks 3f --ranks 0,3-5
  wireup stacks 3f --python     Python's own frames, where a rank has some
  wireup stacks 3f --json

How:
  The launcher has each host of the job run one gdb, which attaches to the ranks there one after
  another; they go on at once. gdb has to be installed on the hosts. For --python it is py-spy, or
  what the distribution of Python has for gdb. JOB is the beginning of a job's name or the pid of its
  launcher, as `wireup ps` shows them; the command runs where the launcher does.

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

/// Which ranks of which job.
#[derive(Debug, Args)]
struct Which {
    /// The job
    #[arg(value_name = "JOB")]
    job: String,

    /// These ranks only
    #[arg(long, value_name = "RANKS")]
    ranks: Option<RankSet>,

    /// Print a JSON array with an object for each rank
    #[arg(long)]
    json: bool,
}

/// Arguments of `wireup stacks`.
#[derive(Debug, Args)]
#[command(after_help = STACKS_HELP)]
pub(super) struct StacksArgs {
    #[command(flatten)]
    which: Which,

    /// Show the frames of Python in ranks that run it
    #[arg(long)]
    python: bool,
}

/// Arguments of `wireup core`.
#[derive(Debug, Args)]
#[command(after_help = CORE_HELP)]
pub(super) struct CoreArgs {
    #[command(flatten)]
    which: Which,

    /// Directory for the cores, on each host [default: this one]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
}

/// Shows the stacks of a job's ranks.
///
/// # Errors
/// As [`asked`].
pub(super) fn show_stacks(args: StacksArgs) -> Result<u8, RunFailure> {
    let python = args.python;
    let Which { job, ranks, json } = args.which;
    let records = asked(&job, ranks, Wish::Stacks { python })?;
    shown(&records, json, |records| {
        let seen = records.iter().map(ProcessRecord::seen);
        let stacks = seen.filter_map(|one| Some((one.name, one.found.ok()?)));
        stacks::tree(stacks)
    })
}

/// Writes cores of a job's ranks.
///
/// # Errors
/// As [`asked`].
pub(super) fn write_cores(args: CoreArgs) -> Result<u8, RunFailure> {
    let Which { job, ranks, json } = args.which;
    let here = std::env::current_dir()
        .map_err(|error| RunFailure::system("cannot tell which directory this is", error))?;
    let directory = here.join(args.dir.unwrap_or_default());
    let records = asked(&job, ranks, Wish::Core { directory })?;
    shown(&records, json, |records| {
        let line = |record: &ProcessRecord| {
            let seen = record.seen();
            let file = seen.found.ok()?.first()?;
            Some(format!("{}: {}:{file}", listed(&[seen.name]), seen.host))
        };
        records.iter().filter_map(line).collect()
    })
}

/// Prints what was found, and says what was not.
fn shown(
    records: &[ProcessRecord],
    json: bool,
    lines: impl Fn(&[ProcessRecord]) -> Vec<String>,
) -> Result<u8, RunFailure> {
    let mut text = match json {
        true => serde_json::to_string_pretty(records)
            .map_err(|error| RunFailure::system("JSON", error))?,
        false => lines(records).join("\n"),
    };
    if !text.is_empty() {
        text.push('\n');
    }
    // A reader that has seen enough is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    let seen = records.iter().map(ProcessRecord::seen);
    let unseen: Vec<String> = seen.filter_map(|seen| stacks::unseen(&seen)).collect();
    for line in &unseen {
        eprintln!("wireup: {line}");
    }
    if records.is_empty() {
        eprintln!("wireup: none of these ranks runs");
    }
    Ok(u8::from(!unseen.is_empty() || records.is_empty()))
}
