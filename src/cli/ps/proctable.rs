//! `wireup ps --proctable` and `wireup attach --proctable`: the processes of a job on all its hosts, as its launcher knows them.

use super::{choose, rank_text, scope};
use crate::cli::show;
use crate::control::query_server::job_query::{JobQueryKind, ProcessRecord};
use crate::jobs::name::called;
use crate::jobs::query_launcher::{Quiet, Watcher, query_launcher};
use crate::jobs::{self, LocalJobInfo};
use wireup_core::failure::CommandError;
use wireup_core::job::rank_set::RankSet;
use wireup_core::printable;
use wireup_core::text_table;

/// The job that a word means; the user's only job if there is no word.
///
/// # Errors
/// If there is none, or more than one.
pub(in crate::cli) fn found(word: Option<&str>) -> Result<LocalJobInfo, CommandError> {
    let mut all = jobs::list(scope(false, word.is_some())?);
    let words: Vec<String> = word.map(str::to_owned).into_iter().collect();
    let chosen = choose(&words, &all)?;
    Ok(all.swap_remove(chosen[0]))
}

/// Returns the reply of a job's launcher.
///
/// # Errors
/// When it does not answer.
pub(in crate::cli) fn query_records(
    job: &LocalJobInfo,
    ranks: Option<RankSet>,
    wish: JobQueryKind,
    watcher: &mut dyn Watcher,
) -> Result<Vec<ProcessRecord>, CommandError> {
    query_launcher(job, wish, ranks, watcher)
        .map_err(|error| CommandError::job(format!("job {}: {error}", called(job))))
}

/// Prints the processes of the named job, or of the only one.
///
/// # Errors
/// When the job does not exist, or its launcher does not reply.
pub(in crate::cli) fn execute(jobs: &[String], json: bool) -> Result<u8, CommandError> {
    if jobs.len() > 1 {
        let text = "--proctable shows one job; name one";
        return Err(CommandError::request(text));
    }
    let job = found(jobs.first().map(String::as_str))?;
    let records = query_records(&job, None, JobQueryKind::Table, &mut Quiet)?;
    let text = match json {
        true => printable::json(&records).map_err(|error| CommandError::system("JSON", error))?,
        false => {
            let head = ["RANK", "HOST", "PID", "STATE", "EXECUTABLE"];
            let rows: Vec<Vec<String>> = records.iter().map(row).collect();
            text_table::render(&head, &rows, super::width())
        }
    };
    show(&format!("{}\n", text.trim_end()));
    Ok(0)
}

fn row(record: &ProcessRecord) -> Vec<String> {
    vec![
        rank_text(record.job, record.rank),
        record.host.clone(),
        text_table::or_dash(record.pid),
        record.state.clone(),
        record.executable.clone(),
    ]
}
