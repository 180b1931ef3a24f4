//! Executes commands about a job on the host of its launcher: a launch of the same user runs them there, through the agents.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::path::PathBuf;

use serde_json::Value;

use super::host_records::HostRecords;
use super::options::HostsListArgs;
use super::ps;
use super::remote_launch::{SCRIPT, WITHOUT_MPI, become_run, host_options, option_words};
use crate::jobs::name;
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::HostSpec;
use wireup_core::printable;
use wireup_core::shell_words::quoted;

/// Set for commands that were passed on, which are not passed on again.
const PASSED_ON: &str = "WIREUP_PASSED_ON";

/// Length of the beginning of a job's name that names the job in an argument list, which other users can read: enough to be
/// the only one, and too little to guess the name.
const SHOWN: usize = "wireup-".len() + 8;

/// The host on which the launcher of a job runs.
#[derive(Debug)]
pub(super) struct LauncherHost {
    /// Beginning of the job's name.
    job: String,
    /// Name of the host, as `--hosts` takes it.
    host: String,
    /// Socket of the agent of this machine, if it is named.
    agent: Option<PathBuf>,
}

impl LauncherHost {
    /// The launcher's host of the job that a word means: among the hosts of the line, or, if it names none, the one that the
    /// job's processes here show. `None` if the command is to be executed here.
    ///
    /// # Errors
    /// The errors of [`Self::among`]; an agent is named without hosts.
    pub(super) fn find(
        hosts: HostsListArgs,
        word: Option<&str>,
    ) -> Result<Option<Self>, CommandError> {
        if hosts.has_hosts() {
            return Self::among(hosts, word).map(Some);
        }
        match Self::shown(word) {
            Some(host) => Ok(Some(Self {
                agent: hosts.agent,
                ..host
            })),
            None if hosts.agent.is_some() => Err(CommandError::request(
                "--agent is for a job whose launcher is on another host: name that host with --hosts",
            )),
            None => Ok(None),
        }
    }

    /// The launcher's host that the job's processes here show, if it is another one. Processes of other users are ignored:
    /// they could show any host.
    pub(super) fn shown(word: Option<&str>) -> Option<Self> {
        if std::env::var_os(PASSED_ON).is_some() {
            return None;
        }
        let job = ps::found(word).ok()?;
        let is_own = job.uid == rustix::process::geteuid().as_raw();
        let launcher = job.launcher_elsewhere().filter(|_| is_own)?;
        Some(Self {
            job: beginning(job.name.as_ref()?),
            host: launcher.host.clone(),
            agent: None,
        })
    }

    /// The launcher's host of the job that a word means, among the hosts of the line.
    ///
    /// # Errors
    /// The hosts cannot be queried, or no job or several have their launchers on one of them.
    pub(super) fn among(args: HostsListArgs, word: Option<&str>) -> Result<Self, CommandError> {
        let agent = args.agent.clone();
        let all_users = word.is_some() && rustix::process::geteuid().is_root();
        let HostRecords { hosts, records, .. } = ps::list_host_jobs(args, all_users)?;
        let led: Vec<LedJob<'_>> = records.iter().filter_map(LedJob::from_record).collect();
        let meant = led
            .iter()
            .filter(|job| word.is_none_or(|word| job.matches(word)));
        let meant: Vec<&LedJob<'_>> = meant.collect();
        let [found] = meant[..] else {
            return Err(CommandError::job(not_one(word, &led, &meant)));
        };
        let host = hosts.iter().find(|host| host.name == found.host);
        Ok(Self {
            job: beginning(found.name),
            host: host.map_or_else(|| found.host.to_owned(), HostSpec::entry),
            agent,
        })
    }

    /// Executes a command of wireup there, with these options and the job. On a terminal it gets one if it uses one.
    pub(super) fn execute(
        self,
        command: &str,
        options: Vec<OsString>,
        terminal: bool,
    ) -> CommandError {
        let own = match std::env::current_exe() {
            Ok(own) => own,
            Err(error) => return CommandError::system("cannot find the path of wireup", error),
        };
        let there: Vec<String> = options.iter().map(|word| quoted(word)).collect();
        let there = format!("wireup {command} {} {}", there.join(" "), self.job);
        let line = format!(
            "wireup: {command} runs on {host}, the host of the launcher, through its agent; without one: ssh {} {}",
            quoted(OsStr::new(&self.host)),
            quoted(OsStr::new(&there.replace("  ", " "))),
            host = self.host,
        );
        eprint!("{}", printable::lines([line]));
        let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let input = match terminal && has_terminal {
            true => ["--pty", "0"],
            false => ["--stdin", "none"],
        };
        let options_of_run = WITHOUT_MPI.into_iter().chain(["-n", "1"]).chain(input);
        let options_of_run = options_of_run.chain(["--wdir", "/"]);
        let mut words: Vec<OsString> = options_of_run.map(OsString::from).collect();
        words.extend(host_options(OsStr::new(&self.host)));
        words.extend(option_words("--agent", self.agent));
        words.extend(["sh", "-c", SCRIPT].map(OsString::from));
        words.extend([own.into_os_string(), command.into()]);
        words.extend(options);
        words.push(self.job.into());
        become_run(words.into_iter())
    }
}

fn beginning(name: &str) -> String {
    name.chars().take(SHOWN).collect()
}

/// A job whose launcher is on one of the hosts.
struct LedJob<'a> {
    name: &'a str,
    host: &'a str,
    /// Number of the launcher's process.
    pid: i64,
}

impl<'a> LedJob<'a> {
    /// The job of a record of `wireup ps --hosts`; `None` if the launcher is on another host.
    fn from_record(record: &'a Value) -> Option<Self> {
        Some(Self {
            name: record["job"].as_str().filter(|text| name::is_job(text))?,
            host: record["on"].as_str()?,
            pid: record["pid"].as_i64()?,
        })
    }

    fn matches(&self, word: &str) -> bool {
        name::begins(self.name, word) || self.pid.to_string() == word
    }
}

/// Explains why a word, or no word, does not mean one job.
fn not_one(word: Option<&str>, all: &[LedJob<'_>], meant: &[&LedJob<'_>]) -> String {
    let list = |jobs: &mut dyn Iterator<Item = &LedJob<'_>>| {
        let each = jobs.map(|job| format!("{} on {} (pid {})", job.name, job.host, job.pid));
        each.collect::<Vec<_>>().join(", ")
    };
    let there = match all {
        [] => "no launcher of a job of yours is on these hosts".to_owned(),
        _ => format!("there are {}", list(&mut all.iter())),
    };
    match (word, meant) {
        (Some(word), []) => format!("no job {word:?}; {there}"),
        (Some(word), _) => format!(
            "{word:?} means more than one job: {}",
            list(&mut meant.iter().copied())
        ),
        (None, _) => format!("name a JOB; {there}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn launcher_host_word_selects_job_with_launcher_on_hosts() {
        let first = "wireup-1230000000000001";
        let second = "wireup-1240000000000001";
        let records = [
            json!({"job": first, "pid": 77, "on": "n1"}),
            json!({"job": first, "pid": null, "on": "n2"}),
            json!({"job": second, "pid": 78, "on": "n2"}),
            json!({"job": "-x", "pid": 79, "on": "n2"}),
        ];
        let led: Vec<LedJob<'_>> = records.iter().filter_map(LedJob::from_record).collect();
        let hosts = |word: &str| {
            let meant = led.iter().filter(|job| job.matches(word));
            meant.map(|job| job.host).collect::<Vec<_>>()
        };
        assert_eq!(hosts("123"), ["n1"]);
        assert_eq!(hosts(second), ["n2"]);
        assert_eq!(hosts("78"), ["n2"]);
        assert_eq!(hosts("12"), ["n1", "n2"]);
        assert_eq!(hosts("79"), [""; 0]);
        let text = not_one(None, &led, &[]);
        assert!(
            text.starts_with("name a JOB; there are wireup-123"),
            "{text}"
        );
    }
}
