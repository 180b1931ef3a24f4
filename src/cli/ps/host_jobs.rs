//! `wireup ps --hosts`: the jobs of several hosts, from `wireup ps` on each.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

use super::{rank_counts, user_name, width};
use crate::cli::host_records::HostRecords;
use crate::cli::options::HostsListArgs;
use wireup_core::failure::CommandError;
use wireup_core::text_table;

/// Lists the jobs of the hosts that are reached: the records of `wireup ps --json`.
///
/// # Errors
/// The hosts cannot be queried.
pub(in crate::cli) fn list_host_jobs(
    args: HostsListArgs,
    all_users: bool,
) -> Result<HostRecords, CommandError> {
    let mut words: Vec<OsString> = ["ps", "--json", "--of-others"].map(Into::into).to_vec();
    if all_users {
        words.push("--all-users".into());
    }
    HostRecords::collect(args, "jobs", &words)
}

/// Prints the jobs; exit code 1 if a host was not reached.
///
/// # Errors
/// The errors of [`list_host_jobs`].
pub(super) fn execute(
    args: HostsListArgs,
    all_users: bool,
    json: bool,
) -> Result<u8, CommandError> {
    let found = list_host_jobs(args, all_users)?;
    found.show("jobs", json, |records| job_table(records, all_users))
}

fn job_table(records: &[Value], users: bool) -> String {
    let mut head = vec![
        "HOST", "JOB", "PID", "STATE", "RANKS", "NODES", "ELAPSED", "COMMAND",
    ];
    if users {
        head.insert(2, "USER");
    }
    let known = |value: &Value, unknown: &str| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => unknown.to_owned(),
    };
    let mut names = BTreeMap::new();
    let rows: Vec<Vec<String>> = records
        .iter()
        .map(|record| {
            let part = &record["part"];
            // Without hosts it is not known which ranks are where.
            let is_placed = part["hosts"].get(0).is_some();
            let local = is_placed.then(|| {
                let nodes = part["nodes"].as_array().into_iter().flatten();
                let ranks = nodes.filter_map(|node| node["ranks"].as_array());
                ranks.map(Vec::len).sum()
            });
            let words = record["command"].as_array().into_iter().flatten();
            let command: Vec<OsString> = words.map(|word| known(word, "").into()).collect();
            let elapsed = record["elapsed"].as_f64().unwrap_or_default();
            let elapsed = Duration::try_from_secs_f64(elapsed).unwrap_or_default();
            let mut row = vec![
                known(&record["on"], "-"),
                known(&record["short"], "-"),
                known(&record["pid"], "-"),
                known(&record["state"], "?"),
                rank_counts(
                    &known(&record["ranks_alive"], "?"),
                    local,
                    record["spawned_alive"].as_u64().unwrap_or_default(),
                    &known(&record["size"], "?"),
                ),
                known(&record["node_count"], "?"),
                text_table::time(elapsed),
                text_table::words(&command),
            ];
            if users {
                let uid = record["uid"]
                    .as_u64()
                    .and_then(|uid| u32::try_from(uid).ok());
                let name = match uid {
                    Some(uid) => names.entry(uid).or_insert_with(|| user_name(uid)).clone(),
                    None => "?".to_owned(),
                };
                row.insert(2, name);
            }
            row
        })
        .collect();
    text_table::render(&head, &rows, width())
}
