//! What a launcher or a step of a job on several hosts shows of it to `wireup ps` and `kill`.
//!
//! Such a launcher has no process of the job below it, and a step has none before its ranks are
//! started, so nothing else would name the job. A label is a file in memory, called like the job;
//! the name is in the link `/proc/PID/fd/N`, where the job is in its life is the first byte, and
//! the rest is JSON, which other versions can read. It is gone with its process.
//!
//! Rule: a job's name must not become known to other users, who could impersonate ranks with it.
//! The links and files in `/proc/PID/fd` are readable only with access to the process; all users
//! can read its arguments, its name and names of sockets. Source: `PTRACE_MODE_READ_FSCREDS` in
//! proc_pid_fd(5).

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::plan::JobPlan;
use crate::plan::launch_names::LauncherProcess;
use wireup_core::job::ids::NodeId;
use wireup_core::job::process_map::ProcessMap;
use wireup_sys::procfs;

/// Most bytes of a label that are read: far more than one of a job of the largest size has.
const MOST: u64 = 16 * 1024 * 1024;

/// Where a job is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum JobStage {
    /// Some ranks have not been started.
    Starting,
    /// All ranks were started.
    Running,
    /// It is being ended, or no rank is left.
    Ending,
}

impl JobStage {
    fn byte(self) -> u8 {
        match self {
            Self::Starting => b's',
            Self::Running => b'r',
            Self::Ending => b'e',
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        let all = [Self::Starting, Self::Running, Self::Ending];
        all.into_iter().find(|stage| stage.byte() == byte)
    }
}

/// What does not change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LabelPlacement {
    /// The node of a step; a launcher has none.
    pub node: Option<NodeId>,
    /// The names of all nodes.
    pub hosts: Vec<String>,
    /// Which ranks they have.
    pub ranks: ProcessMap,
    /// The process that leads the launch.
    #[serde(default)]
    pub launcher: Option<LauncherProcess>,
}

/// A label as other processes see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelContents {
    /// Name of the job.
    pub job: String,
    /// Where it is in its life.
    pub stage: JobStage,
    pub placement: LabelPlacement,
}

/// A process's own label.
#[derive(Debug)]
pub(crate) struct JobLabel {
    file: Option<File>,
    stage: JobStage,
}

impl JobLabel {
    /// Shows a job that starts: a launcher's, or a node's part. Where the system refuses there is
    /// nothing to be seen, which is no reason not to run it.
    pub(crate) fn show(decided: &JobPlan, node: Option<NodeId>) -> Self {
        let placement = LabelPlacement {
            node,
            hosts: decided.node_names.clone(),
            ranks: decided.job.process_map.clone(),
            launcher: Some(decided.launcher.clone()),
        };
        Self::new(decided.job.nspace.as_str(), &placement)
    }

    fn new(job: &str, placement: &LabelPlacement) -> Self {
        Self {
            file: make(job, placement).ok(),
            stage: JobStage::Starting,
        }
    }

    /// Shows the same job on the hosts it has now, when others have joined.
    pub(crate) fn renew(&mut self, decided: &JobPlan, node: Option<NodeId>) {
        let stage = self.stage;
        *self = Self::show(decided, node);
        self.turn(stage);
    }

    /// The job has come so far; it never goes back.
    pub(crate) fn turn(&mut self, stage: JobStage) {
        if stage <= self.stage {
            return;
        }
        self.stage = stage;
        if let Some(file) = &self.file {
            // Replaces a byte of a file in memory: nothing can be missing for that.
            let _ = file.write_at(&[stage.byte()], 0);
        }
    }
}

fn make(name: &str, placement: &LabelPlacement) -> std::io::Result<File> {
    let mut text = vec![JobStage::Starting.byte()];
    serde_json::to_writer(&mut text, placement)?;
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(&text)?;
    Ok(file)
}

/// Reads the label of a process, if it has one whose name `is_job` accepts and that can be looked
/// at.
pub fn read(pid: i32, is_job: impl Fn(&str) -> bool) -> Option<LabelContents> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    entries.flatten().find_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let name = link.to_str()?.strip_prefix("/memfd:")?;
        let job = name
            .strip_suffix(" (deleted)")
            .filter(|name| is_job(name))?;
        let text = procfs::file_in_memory(&entry.path(), MOST)?;
        let (stage, rest) = text.split_first()?;
        Some(LabelContents {
            job: job.to_owned(),
            stage: JobStage::from_byte(*stage)?,
            placement: parse(rest)?,
        })
    })
}

/// The part of a label that does not change. Numbers must fit each other, and names are shown on
/// terminals.
pub(crate) fn parse(text: &[u8]) -> Option<LabelPlacement> {
    let placement: LabelPlacement = serde_json::from_slice(text).ok()?;
    let nodes = placement.ranks.nodes();
    let fits = usize::try_from(nodes).is_ok_and(|nodes| nodes == placement.hosts.len())
        && placement.node.is_none_or(|node| node.0 < nodes);
    let plain = |name: &String| !name.contains(char::is_control);
    let launcher = placement.launcher.iter().map(|launcher| &launcher.host);
    (fits && placement.hosts.iter().chain(launcher).all(plain)).then_some(placement)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "wireup-00000000000000aa";

    fn placement(node: Option<u32>) -> LabelPlacement {
        LabelPlacement {
            node: node.map(NodeId),
            hosts: vec!["n1".into(), "n2".into()],
            ranks: ProcessMap::from_runs([(NodeId(0), 2), (NodeId(1), 1)]),
            launcher: Some(LauncherProcess {
                host: "login".into(),
                pid: 7,
            }),
        }
    }

    #[test]
    fn label_is_read_by_name_until_removed() {
        let pid = std::process::id() as i32;
        // Other tests of this process may show something too.
        let read = || read(pid, |name| name == JOB);
        let mut label = JobLabel::new(JOB, &placement(Some(1)));
        for stage in [JobStage::Starting, JobStage::Running, JobStage::Ending] {
            label.turn(stage);
            let seen = read().unwrap();
            assert_eq!((seen.job.as_str(), seen.stage), (JOB, stage));
            assert_eq!(seen.placement, placement(Some(1)));
        }
        label.turn(JobStage::Running);
        assert_eq!(read().unwrap().stage, JobStage::Ending);
        drop(label);
        assert_eq!(read(), None);
    }

    #[test]
    fn invalid_or_disruptive_label_is_not_shown() {
        let text = |placement: &LabelPlacement| serde_json::to_vec(placement).unwrap();
        assert_eq!(parse(&text(&placement(None))), Some(placement(None)));
        let mut few = placement(None);
        few.hosts.pop();
        let mut rude = placement(None);
        rude.hosts[0] = "\x1b[2J".into();
        let mut forged = placement(None);
        forged.launcher.as_mut().unwrap().host = "a\nb".into();
        for wrong in [&few, &rude, &forged, &placement(Some(2))] {
            assert_eq!(parse(&text(wrong)), None, "{wrong:?}");
        }
        assert_eq!(parse(b""), None);
        let huge = br#"{"node":null,"hosts":[],"ranks":{"nodes":0,"sweeps":[
            {"node":0,"nodes":4294967295,"each":4294967295,"rounds":4294967295}]}}"#;
        assert_eq!(parse(huge), None);
    }
}
