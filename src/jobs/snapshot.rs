//! Reads the processes of the machine from `/proc`, with their jobs and their roles in wireup.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use wireup_core::executables::STEP_SERVER;

use super::name;
use crate::backend::{guard, job_label, step};
use crate::plan::rank_env::SPAWNED_JOB;
use wireup_core::link::scheduled_launcher;
use wireup_sys::leftovers::JOB;
use wireup_sys::procfs::{self, Process, ProcessEnvironment};

/// Job of a process, from its environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobTag {
    /// Name of the job.
    pub job: String,
    /// Rank of the process, or the rank from which it descends; PMIx servers have none.
    pub rank: Option<u32>,
    /// Index of the job in its launch; 0 for the initial job.
    pub spawned_job: u32,
    /// Number of ranks of the job.
    pub size: Option<u32>,
    /// Number of nodes of the job.
    pub nodes: Option<u32>,
    /// Number and name of the node.
    pub node: Option<(u32, String)>,
}

impl JobTag {
    /// Reads the variables that wireup sets; `None` for a process without a job, or with an invalid job name.
    fn from_environment(env: &ProcessEnvironment) -> Option<Self> {
        let text = |name: &str| std::str::from_utf8(env.get(name)?).ok();
        let number = |name: &str| text(name)?.parse().ok();
        let job = text(JOB).filter(|job| name::is_job(job))?.to_owned();
        // The variable may contain any bytes, and is printed to terminals.
        let host = text("WIREUP_HOST").filter(|host| !host.contains(char::is_control));
        let host = host.map(str::to_owned);
        Some(Self {
            job,
            rank: number("WIREUP_RANK"),
            spawned_job: number(SPAWNED_JOB).unwrap_or(0),
            size: number("WIREUP_SIZE"),
            nodes: number("WIREUP_NNODES"),
            node: number("WIREUP_NODE").zip(host),
        })
    }
}

/// Role of a process of wireup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessRole {
    /// Process that runs a job.
    Launcher {
        /// Arguments after `run`; of a launcher that an agent started, the programs of the job.
        command: Vec<OsString>,
        /// Whether some ranks have not been started.
        starting: bool,
        /// Label of a job on several hosts.
        label: Option<Box<job_label::LabelContents>>,
    },
    /// Step daemon: serves one node of a job on several hosts.
    Step {
        /// Label of the job; `None` before the step daemon has the plan of the job.
        label: Option<Box<job_label::LabelContents>>,
    },
    /// Process that cleans up after a launcher or a step daemon.
    Guard {
        /// Pids of the processes of which the guard has pidfds; −1 for those that have exited.
        charge: Vec<i32>,
    },
}

/// One process of a [`Snapshot`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessSnapshot {
    pub process: Process,
    pub uid: u32,
    /// Job of the process, if it belongs to one and its environment is readable.
    pub mark: Option<JobTag>,
    pub role: Option<ProcessRole>,
}

/// Processes of the machine at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Processes in the order in which `/proc` lists them.
    pub processes: Vec<ProcessSnapshot>,
    /// Time since the system started.
    pub now: Duration,
}

impl Snapshot {
    /// Reads `/proc`. Processes that exit in the meantime are missing, or lack some facts.
    pub fn take() -> Self {
        let own_file = file_id(Path::new("/proc/self/exe"));
        let see = |process: Process| {
            let pid = process.pid;
            let (uid, _) = procfs::owner(pid)?;
            let env = ProcessEnvironment::from_pid(pid);
            let mark = env.as_ref().and_then(JobTag::from_environment);
            let role = role(&process, own_file);
            Some(ProcessSnapshot {
                process,
                uid,
                mark,
                role,
            })
        };
        Self {
            processes: procfs::processes().into_iter().filter_map(see).collect(),
            now: procfs::now(),
        }
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Role of a process. The executable of launchers and step daemons is this process's own, or a file named `wireup`,
/// possibly replaced since.
fn role(process: &Process, own_file: Option<(u64, u64)>) -> Option<ProcessRole> {
    let words = procfs::command_line(process.pid);
    let launches = words
        .get(1)
        .is_some_and(|word| word == "run" || word == scheduled_launcher::COMMAND);
    let is_guard = process.name.as_bytes() == guard::NAME.to_bytes();
    // Step daemons that the privileged helper forks have the helper's command line.
    let is_step = match words.get(1) {
        Some(word) if word == "step" => words.len() == 2,
        Some(word) if word == STEP_SERVER => {
            is_guard || process.name.as_bytes() == step::NAME.to_bytes()
        }
        _ => false,
    };
    if !launches && !is_step {
        return None;
    }
    let file = procfs::executable(process.pid)?;
    let name = file.file_name()?;
    let ours = name == "wireup"
        || name == "wireup (deleted)"
        || own_file.is_some()
            && own_file == file_id(Path::new(&format!("/proc/{}/exe", process.pid)));
    if !ours {
        return None;
    }
    if is_guard {
        let charge = procfs::pidfds(process.pid);
        return Some(ProcessRole::Guard { charge });
    }
    let label = job_label::read(process.pid, name::is_job).map(Box::new);
    if is_step {
        return Some(ProcessRole::Step { label });
    }
    let threads = procfs::threads(process.pid);
    Some(ProcessRole::Launcher {
        command: words.into_iter().skip(2).collect(),
        starting: threads
            .iter()
            .any(|name| name.as_bytes() == crate::start_ranks::THREAD.to_bytes()),
        label,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_job_names_are_marks() {
        for (value, expected) in [
            ("wireup-0123456789abcdef", true),
            ("..", false),
            ("wireup-../../etc/passwd", false),
            ("", false),
        ] {
            let mut child = std::process::Command::new("cat")
                .env(JOB, value)
                .env("WIREUP_RANK", "3")
                .env("WIREUP_NODE", "1")
                .env("WIREUP_HOST", "alpha")
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let pid = child.id() as i32;
            // The kernel shows it a moment after the start.
            while std::fs::read(format!("/proc/{pid}/environ"))
                .unwrap()
                .is_empty()
            {
                std::thread::yield_now();
            }
            let snapshot = Snapshot::take();
            let process = snapshot.processes.iter().find(|s| s.process.pid == pid);
            let mark = process.unwrap().mark.clone();
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(mark.is_some(), expected, "{value}");
            if let Some(mark) = mark {
                assert_eq!(
                    (mark.job.as_str(), mark.rank, mark.size),
                    (value, Some(3), None)
                );
                assert_eq!(mark.node, Some((1, "alpha".to_owned())));
            }
        }
    }
}
