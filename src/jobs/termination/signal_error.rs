//! Errors of signals to jobs. No I/O.

use rustix::io::Errno;

use wireup_core::job::hosts::compress;

/// Failure to signal or terminate a job.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndError {
    /// The process belongs to another user now.
    #[error("not permitted to signal process {pid} ({name})")]
    NotPermitted { pid: i32, name: String },
    /// The system refused the signal for another reason.
    #[error("cannot signal process {pid}: {errno}")]
    Refused { pid: i32, errno: Errno },
    /// The rank does not run.
    #[error("no rank {rank} runs; running ranks: {}", running(.living))]
    NoRank { rank: u32, living: Vec<u32> },
    /// The job has no process that could take the signal.
    #[error("no rank of the job runs")]
    NoRanks,
    /// All selected ranks run on other hosts.
    #[error("cannot signal ranks on other hosts: {}", remote_ranks_text(.0))]
    Elsewhere(Vec<(String, Vec<u32>)>),
    /// Root could not become the job's user to clean up.
    #[error("cannot clean up as user id {uid}: {reason}")]
    NotAsUser { uid: u32, reason: String },
    #[error("SIGKILL did not end {}", pids(.0))]
    Survived(Vec<i32>),
}

fn running(living: &[u32]) -> String {
    match living {
        [] => "none".to_owned(),
        [first, .., last] if last - first >= 16 => {
            format!("{} of {first} to {last}", living.len())
        }
        _ => list(living),
    }
}

fn list<T: ToString>(numbers: &[T]) -> String {
    let numbers: Vec<String> = numbers.iter().map(T::to_string).collect();
    numbers.join(", ")
}

/// Text with the hosts of ranks, and the instruction to signal them there.
pub fn remote_ranks_text(ranks: &[(String, Vec<u32>)]) -> String {
    const MOST: usize = 4;
    let few = ranks.len() <= MOST && ranks.iter().all(|(_, ranks)| ranks.len() <= MOST);
    if !few {
        let count: usize = ranks.iter().map(|(_, ranks)| ranks.len()).sum();
        let hosts = compress(ranks.iter().map(|(host, _)| host));
        return format!("{count} ranks are on {hosts}: signal them there");
    }
    let each = ranks.iter().map(|(host, ranks)| match ranks[..] {
        [rank] => format!("rank {rank} is on {host}"),
        _ => format!("ranks {} are on {host}", list(ranks)),
    });
    let each: Vec<String> = each.collect();
    format!("{}: signal them there", each.join(", "))
}

fn pids(pids: &[i32]) -> String {
    match pids {
        [pid] => format!("process {pid}"),
        _ => format!("processes {}", list(pids)),
    }
}
