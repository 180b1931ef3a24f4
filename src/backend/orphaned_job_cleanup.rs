//! Ends and removes a job whose launcher no longer exists.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use wireup_sys::poll::pause;
use wireup_sys::procfs::{self, Process};
use wireup_sys::{cgroup, leftovers, remove_dir, sysv};

/// Minimum time for which a guard searches processes: one that was being started when the launcher died has no mark
/// before it executes its program.
pub const LOOK_AT_LEAST: Duration = Duration::from_millis(200);

/// Time for which SIGKILL is repeated before a process that does not end is given up.
pub const GIVE_UP: Duration = Duration::from_secs(10);

/// Processes and files to remove of a job without a launcher.
pub struct OrphanedJobCleanup<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// Whether a session is the job's, by its number and whether a process has that number now.
    pub is_ours: &'a dyn Fn(i32, bool) -> bool,
    /// Directories of the job.
    pub directories: &'a [PathBuf],
    /// Control groups of the job: all their members are its processes.
    pub groups: &'a [PathBuf],
    /// Ranks of the job, which may have ended.
    pub ranks: &'a [i32],
    /// Directories in which its MPI libraries may have made session directories.
    pub tmpdirs: &'a [PathBuf],
    /// The user whose shared-memory files and session directories are checked.
    pub uid: u32,
    /// Files of that user older than this are not removed.
    pub started_at: SystemTime,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Minimum time for the search of processes.
    pub look_at_least: Duration,
    /// Time for which SIGKILL is repeated before a process is given up.
    pub give_up: Duration,
}

impl OrphanedJobCleanup<'_> {
    /// Sends SIGTERM to all processes that are found and SIGKILL after the grace time, then removes the files. Returns the
    /// processes that did not end.
    pub fn carry_out(&self) -> Vec<Process> {
        let mut ended = BTreeSet::new();
        let left = self.end_processes(&mut ended);
        for directory in self.directories {
            // A directory that cannot be removed remains.
            let _ = remove_dir::remove_directory(directory, self.uid);
        }
        for group in self.groups {
            cgroup::end(group);
        }
        leftovers::remove_shared_memory(self.uid, self.started_at);
        ended.extend(self.ranks);
        sysv::remove_segments(self.uid, self.started_at, &ended);
        for tmp in self.tmpdirs {
            leftovers::remove_session_directories(tmp, self.uid, self.started_at, &ended);
        }
        left
    }

    /// Ends the processes of the job. Fills `ended` with the pids of all processes that were found.
    fn end_processes(&self, ended: &mut BTreeSet<i32>) -> Vec<Process> {
        let own = std::process::id();
        let start = Instant::now();
        let mut known: Vec<Process> = Vec::new();
        loop {
            let all = procfs::processes();
            let exists = |pid: i32| all.iter().any(|process| process.pid == pid);
            let mut found = leftovers::find_job_processes(self.job, |session| {
                (self.is_ours)(session, exists(session))
            });
            let members = self.groups.iter().flat_map(|group| cgroup::members(group));
            let members = members.filter(|pid| found.iter().all(|process| process.pid != *pid));
            let members: Vec<Process> = members.filter_map(procfs::process).collect();
            found.extend(members.into_iter().filter(|process| !process.has_ended()));
            // The caller may be a process of the job.
            found.retain(|process| u32::try_from(process.pid) != Ok(own));
            let is_among = |list: &[Process], process: &Process| {
                let same = |p: &Process| p.pid == process.pid && p.started == process.started;
                list.iter().any(same)
            };
            let new: Vec<Process> = found
                .iter()
                .filter(|p| !is_among(&known, p))
                .cloned()
                .collect();
            // Descendants of a rank are remembered by pid after their parents have ended.
            let living: Vec<Process> = all.into_iter().filter(|p| !p.has_ended()).collect();
            known.retain(|old| is_among(&living, old) && !is_among(&found, old));
            found.append(&mut known);
            known = found;
            ended.extend(known.iter().map(|process| process.pid));
            let waited = start.elapsed();
            if known.is_empty() && waited >= self.look_at_least
                || waited >= self.grace + self.give_up
            {
                return known;
            }
            if waited >= self.grace {
                leftovers::signal(&known, Signal::KILL);
            } else {
                leftovers::signal(&new, Signal::TERM);
                leftovers::signal(&new, Signal::CONT);
            }
            // A plain sleep: these processes are not children and cannot be waited for.
            pause(Duration::from_millis(10));
        }
    }
}
