//! `wireup ps`: the jobs on this machine; with `--hosts`, those of hosts; with `--nodes`, the agents of nodes.

mod host_jobs;
mod job_records;
mod node_table;
mod proctable;

use std::collections::BTreeMap;
use std::process::Command;

use clap::Args;
pub(super) use host_jobs::list_host_jobs;
pub(super) use proctable::{execute as show_processes, found, query_records};

use super::help_text::columns_of;
use super::options::HostsListArgs;
use crate::jobs::discover::UserScope;
use crate::jobs::{self, LocalJobInfo, name};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::compress;
use wireup_core::text_table;
use wireup_sys::procfs::Process;

const AFTER_HELP: &str = "\
Examples:
  wireup ps              your jobs
  wireup ps -l 3f        the ranks of the job whose name begins with 3f
  wireup ps --json
  wireup ps --proctable 3f            host, pid and executable of each rank, on all hosts
  wireup ps --hosts n[1-4]            your jobs on these hosts
  wireup ps --nodes --hosts n[1-4]    how the agents of these hosts are

Jobs:
  A job is named by the beginning of its name or by the pid of its launcher. RANKS are those that
  live and all, behind a + those that were spawned; with -l they are JOB:RANK. Of a job on several
  hosts this machine has the launcher, nodes with their ranks, or both; HERE says what, and RANKS are
  those that live here, those that were given to this machine, and all.
  With --hosts a line is the part of a job on one host, as `wireup ps` there shows it: a launch of this user executes
  it on each. --all-users needs root, and agents that take root's launches (--root-launches).

Exit status:
  0    the jobs, hosts or ranks were shown
  1    there is no such job, or a host was not reached
  125  wireup itself failed or was called wrongly";

/// Arguments of `wireup ps`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct PsArgs {
    /// Show these jobs only
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,

    /// One line for each running rank; time and memory are sums over all its processes
    #[arg(short = 'l', long)]
    ranks: bool,

    /// Jobs of all users (for root)
    #[arg(long)]
    all_users: bool,

    /// Print a JSON array: jobs with their ranks, or nodes; times in seconds, memory in bytes
    #[arg(long)]
    json: bool,

    /// Show the processes of one job (JOB, or the only one) on all its hosts as debuggers see them: host, pid, executable
    #[arg(long, conflicts_with_all = ["ranks", "nodes", "all_users"])]
    proctable: bool,

    /// Show the state of agents: that of this machine, or those of --hosts or --hostfile
    #[arg(long, conflicts_with_all = ["jobs", "ranks", "all_users"])]
    nodes: bool,

    /// Leave out the job of which this process is a rank
    #[arg(long, hide = true)]
    of_others: bool,

    #[command(flatten)]
    host_list: HostsListArgs,
}

/// Prints the jobs.
///
/// # Errors
/// If there is no such job, or the user may not see the requested ones.
pub(super) fn execute(args: PsArgs) -> Result<u8, CommandError> {
    if args.nodes {
        return node_table::execute(args.host_list, args.json);
    }
    if args.host_list.has_options() {
        if args.ranks || args.proctable || !args.jobs.is_empty() || !args.host_list.has_hosts() {
            return Err(CommandError::request(
                "--hosts and --hostfile show all jobs of hosts, without JOB, --ranks and --proctable; --agent needs one \
                 of them, or --nodes",
            ));
        }
        scope(args.all_users, false)?;
        return host_jobs::execute(args.host_list, args.all_users, args.json);
    }
    if args.proctable {
        return show_processes(&args.jobs, args.json);
    }
    let mut all = jobs::list(scope(args.all_users, !args.jobs.is_empty())?);
    if args.of_others {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        all.retain(|job| job.ranks.iter().all(|rank| rank.process.pid != own));
    }
    let short = name::short(&all);
    let mut chosen: Vec<usize> = (0..all.len()).collect();
    if !args.jobs.is_empty() {
        chosen = choose(&args.jobs, &all)?;
    }
    let chosen = chosen
        .into_iter()
        .map(|index| (short[index].as_deref(), &all[index]));
    let text = match (args.json, args.ranks) {
        (true, _) => job_records::json(chosen),
        (false, true) => rank_table(chosen),
        (false, false) => job_table(chosen, args.all_users),
    };
    super::show(&text);
    Ok(0)
}

/// Returns the users whose jobs are shown: root may name any.
///
/// # Errors
/// If another user than root asks for all users' jobs.
pub(super) fn scope(all_users: bool, named: bool) -> Result<UserScope, CommandError> {
    let user = rustix::process::geteuid();
    match (user.is_root(), all_users) {
        (true, true) => Ok(UserScope::All),
        (true, false) if named => Ok(UserScope::All),
        (_, false) => Ok(UserScope::User(user.as_raw())),
        (false, true) => Err(CommandError::request(
            "--all-users needs root: the system shows other users' jobs only to root",
        )),
    }
}

/// Returns the named jobs, each once; the only job if none is named.
///
/// # Errors
/// If a name matches no job or several, or none is named and the user has no or several jobs; the text lists them.
pub(super) fn choose(words: &[String], all: &[LocalJobInfo]) -> Result<Vec<usize>, CommandError> {
    match (words, all) {
        ([], [_]) => return Ok(vec![0]),
        ([], _) => return Err(CommandError::job(format!("name a JOB; {}", overview(all)))),
        _ => {}
    }
    let mut chosen = Vec::new();
    for word in words {
        let index = name::resolve(word, all)
            .map_err(|error| CommandError::job(format!("{error}; {}", overview(all))))?;
        if !chosen.contains(&index) {
            chosen.push(index);
        }
    }
    Ok(chosen)
}

/// The table of jobs.
fn overview(all: &[LocalJobInfo]) -> String {
    const MOST: usize = 8;
    if all.is_empty() {
        return "you have no jobs on this machine".to_owned();
    }
    let short = name::short(all);
    let each = all.iter().zip(&short).take(MOST).map(|(job, short)| {
        let pid = job.pid().unwrap_or(0);
        let command: String = text_table::words(&job.command).chars().take(40).collect();
        match short {
            Some(short) => format!("{short} (pid {pid}: {command})"),
            None => format!("pid {pid} ({command})"),
        }
    });
    let each = each.collect::<Vec<_>>().join(", ");
    let more = if all.len() > MOST { ", …" } else { "" };
    format!("there are {each}{more}")
}

/// Columns of the terminal on standard output.
pub(super) fn width() -> Option<usize> {
    columns_of(std::io::stdout())
}

fn job_table<'a>(
    jobs: impl Iterator<Item = (Option<&'a str>, &'a LocalJobInfo)>,
    users: bool,
) -> String {
    const PLACE: usize = 5;
    let jobs: Vec<(Option<&str>, &LocalJobInfo)> = jobs.collect();
    let has_hosts = jobs.iter().any(|(_, job)| job.is_on_several_hosts());
    let mut head = vec![
        "JOB", "PID", "STATE", "RANKS", "NODES", "ELAPSED", "COMMAND",
    ];
    if has_hosts {
        head.splice(PLACE..PLACE, ["HOSTS", "HERE"]);
    }
    if users {
        head.insert(1, "USER");
    }
    let mut names = BTreeMap::new();
    let rows: Vec<Vec<String>> = jobs
        .into_iter()
        .map(|(short, job)| {
            let known = |number: Option<u32>| {
                number.map_or_else(|| "?".to_owned(), |number| number.to_string())
            };
            let mut row = vec![
                short.unwrap_or("-").to_owned(),
                text_table::or_dash(job.pid()),
                job.state.as_str().to_owned(),
                ranks_of(job, &known(job.size)),
                known(job.node_count),
                text_table::time(job.elapsed),
                text_table::words(&job.command),
            ];
            if has_hosts {
                row.splice(PLACE..PLACE, [hosts_of(job), local_part(job)]);
            }
            if users {
                let name = names.entry(job.uid).or_insert_with(|| user_name(job.uid));
                row.insert(1, name.clone());
            }
            row
        })
        .collect();
    text_table::render(&head, &rows, width())
}

/// Formats the number of running ranks on this machine, and of those of spawned jobs; then of all ranks, if some are on
/// other hosts.
fn ranks_of(job: &LocalJobInfo, size: &str) -> String {
    let first = job.first_ranks().count();
    let spawned = job.ranks.len() - first;
    let local = job.placement.as_ref().map(|_| {
        let counts = job.steps.iter().map(|step| job.ranks_of(step).count());
        counts.sum::<usize>()
    });
    rank_counts(&first.to_string(), local, spawned as u64, size)
}

/// Numbers of ranks: those alive, those of this machine (`local`) if the job is on several hosts, those spawned, and all.
fn rank_counts(alive: &str, local: Option<usize>, spawned: u64, size: &str) -> String {
    let spawned = match spawned {
        0 => String::new(),
        spawned => format!("+{spawned}"),
    };
    match local {
        Some(local) => format!("{alive}/{local}{spawned} of {size}"),
        None => format!("{alive}/{size}{spawned}"),
    }
}

/// The nodes of a job on several hosts.
fn hosts_of(job: &LocalJobInfo) -> String {
    const MOST: usize = 40;
    match &job.placement {
        Some(placement) => text_table::cut(&compress(placement.present_hosts()), MOST),
        None => "-".to_owned(),
    }
}

/// The part of a job on this machine.
fn local_part(job: &LocalJobInfo) -> String {
    if !job.is_on_several_hosts() {
        return "all".to_owned();
    }
    let launcher = job.launcher.as_ref().map(|_| "launcher".to_owned());
    let nodes = job.nodes_here().map(|(step, host)| {
        let ranks = text_table::ranges(job.ranks_of(step));
        match host {
            Some(host) => format!("{host}: {ranks}"),
            None => "step".to_owned(),
        }
    });
    let parts: Vec<String> = launcher.into_iter().chain(nodes).collect();
    parts.join(", ")
}

fn rank_table<'a>(jobs: impl Iterator<Item = (Option<&'a str>, &'a LocalJobInfo)>) -> String {
    let head = [
        "JOB", "RANK", "NODE", "HOST", "PID", "STATE", "CPU", "MEMORY", "PROGRAM",
    ];
    let mut rows = Vec::new();
    for (short, job) in jobs {
        rows.extend(job.ranks.iter().map(|rank| {
            let (node, host) = node_of(rank);
            vec![
                short.unwrap_or("-").to_owned(),
                rank_text(rank.spawned_job, rank.rank),
                text_table::or_dash(node),
                host.unwrap_or("-").to_owned(),
                rank.process.pid.to_string(),
                state_of(&rank.process).to_owned(),
                text_table::time(rank.cpu),
                text_table::bytes(rank.resident),
                program(rank),
            ]
        }));
    }
    text_table::render(&head, &rows, width())
}

/// Formats a rank: `JOB:RANK` in a spawned job.
pub(super) fn rank_text(job: u32, rank: u32) -> String {
    match job {
        0 => rank.to_string(),
        job => format!("{job}:{rank}"),
    }
}

fn node_of(rank: &jobs::Rank) -> (Option<u32>, Option<&str>) {
    match &rank.node {
        Some((node, host)) => (Some(*node), Some(host)),
        None => (None, None),
    }
}

/// Returns a rank's command; the kernel's name of the process if it has no arguments any more.
fn program(rank: &jobs::Rank) -> String {
    match rank.command.is_empty() {
        true => format!("[{}]", rank.process.name),
        false => text_table::words(&rank.command),
    }
}

fn state_of(process: &Process) -> &'static str {
    match process.state {
        'R' => "running",
        'D' => "blocked",
        'T' | 't' => "stopped",
        'Z' | 'X' => "ended",
        _ => "sleeping",
    }
}

/// Returns the user's name from `id`; the number if it has none. This program is linked without glibc's modules for
/// directory services, so it asks another one.
fn user_name(uid: u32) -> String {
    let id = Command::new("id")
        .args(["-un", "--", &uid.to_string()])
        .output();
    id.ok()
        .filter(|id| id.status.success())
        .and_then(|id| String::from_utf8(id.stdout).ok())
        .map_or_else(|| uid.to_string(), |name| name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::discover::tests::job;

    #[test]
    fn only_job_is_default() {
        let one = job("wireup-1230000000000001", 77);
        let other = job("wireup-1240000000000001", 78);
        let chosen = |words: &[&str], all: &[LocalJobInfo]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            choose(&words, all).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(&[], std::slice::from_ref(&one)), Ok(vec![0]));
        assert_eq!(chosen(&["78"], &[one.clone(), other.clone()]), Ok(vec![1]));
        let none = chosen(&[], &[]).unwrap_err();
        assert_eq!(none, "name a JOB; you have no jobs on this machine");
        let several = chosen(&[], &[one, other]).unwrap_err();
        for text in ["name a JOB; there are 123000 (pid 77", "124000 (pid 78"] {
            assert!(several.contains(text), "{several}");
        }
    }
}
