//! `wireup ps --proctable` and `wireup attach --proctable`: the processes of a job on all its hosts, as its launcher knows them.

use std::io::Write as _;

use super::{choose, scope};
use crate::cli::table;
use crate::control::requests::message::{ProcessRecord, Wish};
use crate::failure::RunFailure;
use crate::jobs::ask::{Quiet, Watcher, ask};
use crate::jobs::{self, Job};
use crate::report::printable;
use wireup_core::job::rank_set::RankSet;

/// The job that a word means.
///
/// # Errors
/// If it means none or several.
pub(in crate::cli) fn found(word: &str) -> Result<Job, RunFailure> {
    let mut all = jobs::list(scope(false, true)?);
    let chosen = choose(&[word.to_owned()], &all)?;
    let index = chosen.first().copied();
    let index = index.ok_or_else(|| RunFailure::request(format!("no job {word:?}")))?;
    Ok(all.swap_remove(index))
}

/// What the launcher of a job answers.
///
/// # Errors
/// When there is no such job, or it does not answer.
pub(in crate::cli) fn asked(
    job: &str,
    ranks: Option<RankSet>,
    wish: Wish,
    watcher: &mut dyn Watcher,
) -> Result<Vec<ProcessRecord>, RunFailure> {
    let found = found(job)?;
    ask(&found, wish, ranks, watcher)
        .map_err(|error| RunFailure::job(format!("job {job}: {error}")))
}

/// Prints the processes of one job.
///
/// # Errors
/// When there is no such job, or its launcher does not answer.
pub(in crate::cli) fn execute(jobs: &[String], json: bool) -> Result<u8, RunFailure> {
    let [job] = jobs else {
        let text = "--proctable shows one job; name one";
        return Err(RunFailure::request(text.to_owned()));
    };
    let records = asked(job, None, Wish::Table, &mut Quiet)?;
    let text = match json {
        true => printable::json(&records).map_err(|error| RunFailure::system("JSON", error))?,
        false => {
            let head = ["RANK", "HOST", "PID", "STATE", "EXECUTABLE"];
            let rows: Vec<Vec<String>> = records.iter().map(row).collect();
            table::render(&head, &rows, super::width())
        }
    };
    // A reader that has seen enough is no failure.
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end());
    Ok(0)
}

fn row(record: &ProcessRecord) -> Vec<String> {
    vec![
        match record.job {
            0 => record.rank.to_string(),
            job => format!("{job}:{}", record.rank),
        },
        record.host.clone(),
        record
            .pid
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        record.state.clone(),
        record.executable.clone(),
    ]
}
