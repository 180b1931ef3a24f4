//! `wireup ps --hosts`: the jobs of several hosts, from `wireup ps` on each, which a launch of this user executes there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{rank_counts, text_table, user_name, width};
use crate::cli::node_status::query_nodes;
use crate::cli::options::HostsListArgs;
use crate::cli::remote_launch::{SCRIPT, host_entry};
use crate::failure::CommandError;
use crate::report::printable;
use wireup_core::job::hosts::HostSpec;
use wireup_core::link::agent_protocol::NodeAddress;
use wireup_core::wording::json_problem;

/// The answer of a host that is not what `wireup ps` prints.
#[derive(Debug, thiserror::Error)]
#[error("invalid answer of wireup ps on {host}: {}", json_problem(error))]
struct InvalidAnswer {
    host: String,
    error: serde_json::Error,
}

/// The jobs of several hosts.
pub(in crate::cli) struct HostJobs {
    /// The hosts of the line.
    pub(in crate::cli) hosts: Vec<HostSpec>,
    /// Records of `wireup ps --json`, each with its host as `on`.
    pub(in crate::cli) records: Vec<Value>,
    /// Whether a host was not reached, which a line has named.
    missed: bool,
}

impl HostJobs {
    /// Lists the jobs of the hosts that are reached.
    ///
    /// # Errors
    /// The hosts cannot be queried.
    pub(in crate::cli) fn list(args: HostsListArgs, all_users: bool) -> Result<Self, CommandError> {
        let agent = args.agent().map(Path::to_owned);
        let hosts = args.resolve()?;
        let members = hosts.iter().map(|host| NodeAddress {
            name: host.name.clone(),
            address: host.address.clone(),
        });
        let nodes = query_nodes(agent.as_deref(), members.collect())?;
        let mut reached = Vec::new();
        for (host, node) in hosts.iter().zip(&nodes) {
            match &node.problem {
                None => reached.push(host),
                Some(problem) => {
                    let problem = printable::printable(problem);
                    eprintln!("wireup: no jobs of host {}: {problem}", host.name);
                }
            }
        }
        let missed = reached.len() < hosts.len();
        let mut records = Vec::new();
        if !reached.is_empty() {
            let output = launch(&reached, agent.as_deref(), all_users)
                .map_err(|error| CommandError::system("cannot start wireup run", error))?;
            let said = String::from_utf8_lossy(&output.stderr);
            if !output.status.success() {
                return Err(reason(&said, output.status));
            }
            eprint!("{said}");
            let output = String::from_utf8_lossy(&output.stdout);
            records = jobs(&reached, &output)
                .map_err(|error| CommandError::system("cannot show the jobs", error))?;
        }
        Ok(Self {
            hosts,
            records,
            missed,
        })
    }
}

/// Prints the jobs; exit code 1 if a host was not reached.
///
/// # Errors
/// The errors of [`HostJobs::list`].
pub(super) fn execute(
    args: HostsListArgs,
    all_users: bool,
    json: bool,
) -> Result<u8, CommandError> {
    let HostJobs {
        records, missed, ..
    } = HostJobs::list(args, all_users)?;
    let text = match json {
        true => {
            let json = printable::json(&Value::Array(records));
            json.map_err(|error| CommandError::system("cannot show the jobs", error))? + "\n"
        }
        false => job_table(&records, all_users),
    };
    // A reader that has seen enough is no failure.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(u8::from(missed))
}

fn launch(
    hosts: &[&HostSpec],
    agent: Option<&Path>,
    all_users: bool,
) -> std::io::Result<std::process::Output> {
    let list: Vec<String> = hosts.iter().map(|host| host_entry(host)).collect();
    let own = std::env::current_exe()?;
    let mut command = Command::new(&own);
    command
        .arg0("wireup")
        .args(["run", "--no-config", "--engine", "none", "--pmi", "none"]);
    command.args([
        "--ppn",
        "1",
        "--label",
        "--wdir",
        "/",
        "--hosts",
        &list.join(","),
    ]);
    if let Some(agent) = agent {
        command.arg("--agent").arg(agent);
    }
    command.args(["sh", "-c", SCRIPT]).arg(&own);
    command.args(["ps", "--json", "--of-others"]);
    if all_users {
        command.arg("--all-users");
    }
    command.stdin(Stdio::null()).output()
}

/// The reason why the launch failed, which is its last line; those before are printed.
fn reason(said: &str, status: ExitStatus) -> CommandError {
    let said = said.trim_end();
    let (before, last) = match said.rsplit_once('\n') {
        Some((before, last)) => (format!("{before}\n"), last),
        None => (String::new(), said),
    };
    eprint!("{before}");
    match last.strip_prefix("wireup: ") {
        Some(reason) => CommandError::request(reason.to_owned()),
        None => {
            let text = "the launch of wireup ps on the hosts failed";
            CommandError::system(text, format!("{status}; {last}"))
        }
    }
}

/// The records in the output of all hosts, each with its host.
fn jobs(hosts: &[&HostSpec], output: &str) -> Result<Vec<Value>, InvalidAnswer> {
    let mut texts: BTreeMap<usize, String> = BTreeMap::new();
    for line in output.lines() {
        let labelled = line
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        if let Some((rank, text)) = labelled
            && let Ok(rank) = rank.parse()
        {
            // JSON needs no line ends, and a line may have come in two parts.
            texts.entry(rank).or_default().push_str(text);
        }
    }
    let mut all = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        let text = texts.remove(&rank).unwrap_or_default();
        let records: Vec<serde_json::Map<String, Value>> =
            serde_json::from_str(&text).map_err(|error| InvalidAnswer {
                host: host.name.clone(),
                error,
            })?;
        all.extend(records.into_iter().map(|mut record| {
            record.insert("on".to_owned(), Value::from(host.name.as_str()));
            Value::Object(record)
        }));
    }
    Ok(all)
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
            let given = is_placed.then(|| {
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
                    given,
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
