//! Records of several hosts, from a command of wireup that a launch of this user executes on each, and that prints them as JSON.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use super::node_status::query_nodes;
use super::options::HostsListArgs;
use super::remote_launch::{SCRIPT, WITHOUT_MPI, option_words};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::HostSpec;
use wireup_core::printable;
use wireup_core::wording::json_problem;

/// Error: a host's reply is not the expected output of the command.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid answer of wireup {command} on {host}: {}",
    json_problem(error)
)]
struct InvalidAnswer {
    command: String,
    host: String,
    error: serde_json::Error,
}

/// The records of several hosts.
pub(super) struct HostRecords {
    /// The hosts of the line.
    pub(super) hosts: Vec<HostSpec>,
    /// Records that the command printed, each with its host as `on`.
    pub(super) records: Vec<Value>,
    /// Whether a host was not reached, which a line has named.
    pub(super) missed: bool,
}

impl HostRecords {
    /// Executes a command of wireup on the hosts that are reached. `noun` is the word for the records in messages.
    ///
    /// # Errors
    /// The hosts cannot be queried.
    pub(super) fn collect(
        args: HostsListArgs,
        noun: &str,
        words: &[OsString],
    ) -> Result<Self, CommandError> {
        let agent = args.agent.clone();
        let hosts = args.resolve()?;
        let nodes = query_nodes(agent.as_deref(), &hosts)?;
        let mut reached = Vec::new();
        for (host, node) in hosts.iter().zip(&nodes) {
            match &node.problem {
                None => reached.push(host),
                Some(problem) => {
                    let problem = printable::printable(problem);
                    eprintln!("wireup: no {noun} of host {}: {problem}", host.name);
                }
            }
        }
        let missed = reached.len() < hosts.len();
        let mut records = Vec::new();
        if !reached.is_empty() {
            let output = launch(&reached, agent.as_deref(), words)
                .map_err(|error| CommandError::system("cannot start wireup run", error))?;
            let message = String::from_utf8_lossy(&output.stderr);
            if !output.status.success() {
                return Err(reason(&message, output.status, words));
            }
            eprint!("{message}");
            let output = String::from_utf8_lossy(&output.stdout);
            records = labelled_records(&reached, &output, words)
                .map_err(|error| CommandError::system(format!("cannot show the {noun}"), error))?;
        }
        Ok(Self {
            hosts,
            records,
            missed,
        })
    }

    /// Prints the records, as JSON or as this table; exit code 1 if a host was not reached.
    ///
    /// # Errors
    /// The records cannot be written as JSON.
    pub(super) fn show(
        &self,
        noun: &str,
        json: bool,
        table: impl FnOnce(&[Value]) -> String,
    ) -> Result<u8, CommandError> {
        let text = match json {
            true => {
                let json = printable::json(&self.records);
                json.map_err(|error| {
                    CommandError::system(format!("cannot show the {noun}"), error)
                })? + "\n"
            }
            false => table(&self.records),
        };
        super::show(&text);
        Ok(u8::from(self.missed))
    }
}

fn launch(
    hosts: &[&HostSpec],
    agent: Option<&Path>,
    words: &[OsString],
) -> std::io::Result<std::process::Output> {
    let list: Vec<String> = hosts.iter().map(|host| host.entry()).collect();
    let own = std::env::current_exe()?;
    let mut command = Command::new(&own);
    command.arg0("wireup").arg("run").args(WITHOUT_MPI);
    command.args(["--ppn", "1", "--label", "--wdir", "/"]);
    command.args(["--hosts", &list.join(",")]);
    command.args(option_words("--agent", agent));
    command.args(["sh", "-c", SCRIPT]).arg(&own);
    command.args(words);
    command.stdin(Stdio::null()).output()
}

/// The reason why the launch failed, which is its last line; those before are printed.
fn reason(message: &str, status: ExitStatus, words: &[OsString]) -> CommandError {
    let message = message.trim_end();
    let (before, last) = match message.rsplit_once('\n') {
        Some((before, last)) => (format!("{before}\n"), last),
        None => (String::new(), message),
    };
    eprint!("{before}");
    match last.strip_prefix("wireup: ") {
        Some(reason) => CommandError::request(reason.to_owned()),
        None => {
            let text = format!("the launch of wireup {} on the hosts failed", name(words));
            CommandError::system(text, format!("{status}; {last}"))
        }
    }
}

/// The records in the output of all hosts, each with its host.
fn labelled_records(
    hosts: &[&HostSpec],
    output: &str,
    words: &[OsString],
) -> Result<Vec<Value>, InvalidAnswer> {
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
                command: name(words),
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

/// The command that these words begin with.
fn name(words: &[OsString]) -> String {
    let name = words.first().map(|name| name.to_string_lossy());
    name.unwrap_or_default().into_owned()
}
