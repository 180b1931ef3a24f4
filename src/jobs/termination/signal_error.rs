//! Why a signal did not come to whom it was meant for; no I/O.

use rustix::io::Errno;

use wireup_core::job::hosts::compress;

/// Why a signal could not be sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndError {
    /// A process belongs to another user now.
    #[error("not permitted to signal process {pid} ({name})")]
    NotPermitted { pid: i32, name: String },
    /// The system refused for another reason.
    #[error("cannot signal process {pid}: {errno}")]
    Refused { pid: i32, errno: Errno },
    /// A rank does not run.
    #[error("no rank {rank} runs; {}", running(.living))]
    NoRank { rank: u32, living: Vec<u32> },
    /// Nothing could take the signal.
    #[error("none of its ranks runs")]
    NoRanks,
    /// The signal can only be sent where they are.
    #[error("{}", remote_ranks_text(.0))]
    Elsewhere(Vec<(String, Vec<u32>)>),
    /// Root could not become the job's user to clean up.
    #[error("cannot clean up as user id {uid}: {reason}")]
    NotAsUser { uid: u32, reason: String },
    /// Processes survived SIGKILL.
    #[error("cannot end {}", pids(.0))]
    Survived(Vec<i32>),
}

fn running(living: &[u32]) -> String {
    match living {
        [] => "none does".to_owned(),
        [first, .., last] if last - first >= 16 => {
            format!("{} of the ranks {first} to {last} do", living.len())
        }
        _ => {
            let numbers: Vec<String> = living.iter().map(u32::to_string).collect();
            format!("{} do", numbers.join(", "))
        }
    }
}

/// In words: where ranks are.
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
        _ => {
            let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("ranks {} are on {host}", numbers.join(", "))
        }
    });
    let each: Vec<String> = each.collect();
    format!("{}: signal them there", each.join(", "))
}

fn pids(pids: &[i32]) -> String {
    let numbers: Vec<String> = pids.iter().map(i32::to_string).collect();
    format!("process {}", numbers.join(", "))
}
