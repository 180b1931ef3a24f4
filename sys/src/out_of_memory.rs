//! The kernel's out-of-memory killer: whether it ended processes of this launcher's control group, and which it is to
//! end first.
//!
//! Rules: `memory.events` (version 2) counts the processes of a group and of those below it,
//! `memory.oom_control` (version 1) those of the group; a group without the controller has neither.
//! Source: the kernel's cgroup-v2 and cgroup-v1/memory guides.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup;

/// The score that is added to what a process uses, in thousandths of the memory there is; children inherit it.
/// Everyone may raise it. Source: proc_pid_oom_score_adj(5).
pub const SCORE: &CStr = c"/proc/self/oom_score_adj";

/// Addition to the score of ranks, as if each used half of the memory. So the kernel does not kill a launcher, grant
/// holder, step or PMIx server, which all ranks need and which report the killed rank, however many small ranks there
/// are.
const RANK: i32 = 500;

const HIGHEST: i32 = 1000;

/// Reads the score of this process.
pub fn own_score() -> Option<i32> {
    let text = fs::read_to_string(SCORE.to_str().ok()?).ok()?;
    text.trim().parse().ok()
}

/// Returns the score for ranks; `None` if the score of this process is unknown.
pub fn rank_score() -> Option<CString> {
    let score = own_score()?.saturating_add(RANK).min(HIGHEST);
    CString::new(score.to_string()).ok()
}

/// The counter of a group, with its value at the start of the ranks.
#[derive(Clone, Debug)]
pub struct OomCounter {
    group: PathBuf,
    files: MemoryFiles,
    kills: u64,
}

/// Names of a memory controller's files.
#[derive(Clone, Copy, Debug)]
struct MemoryFiles {
    kills: &'static str,
    limit: &'static str,
}

const VERSION_1: MemoryFiles = MemoryFiles {
    kills: "memory.oom_control",
    limit: "memory.limit_in_bytes",
};
const VERSION_2: MemoryFiles = MemoryFiles {
    kills: "memory.events",
    limit: "memory.max",
};

impl OomCounter {
    /// Reads it; `None` where no group of this process counts.
    pub fn read() -> Option<Self> {
        let second = cgroup::own_group().map(|group| (group, VERSION_2));
        let first = || Some((cgroup::first_version_group("memory")?, VERSION_1));
        let of = |(group, files): (PathBuf, MemoryFiles)| {
            let kills = kills(&group, files)?;
            Some(Self {
                group,
                files,
                kills,
            })
        };
        second.and_then(of).or_else(|| first().and_then(of))
    }

    /// Describes with how much memory processes were killed since, for a rank that was killed; `None` if none was
    /// killed.
    pub fn describe(&self) -> Option<String> {
        if kills(&self.group, self.files)? <= self.kills {
            return None;
        }
        let limit = self.group.ancestors().filter_map(|group| {
            let text = fs::read_to_string(group.join(self.files.limit)).ok()?;
            text.trim().parse::<u64>().ok()
        });
        // Version 1 writes a number near the largest for no limit.
        let limit = limit.filter(|limit| *limit < u64::MAX / 4).min();
        Some(match limit {
            Some(limit) => format!(
                "the kernel's out-of-memory killer ended it: the memory limit of the cgroup is {} MiB",
                limit >> 20
            ),
            None => "the kernel's out-of-memory killer ended it: the machine's memory was used up"
                .to_owned(),
        })
    }
}

fn kills(group: &Path, files: MemoryFiles) -> Option<u64> {
    count(&fs::read_to_string(group.join(files.kills)).ok()?)
}

fn count(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        let events = "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(count(events), Some(1));
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            Some(3)
        );
        assert_eq!(count("oom 2\n"), None);
    }
}
