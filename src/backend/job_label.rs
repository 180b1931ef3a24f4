//! Label of a job: published by the launchers and steps of launches on several hosts for `wireup ps` and `kill`.
//!
//! Such a launcher has no child process of the job, and a step has none before its ranks are started, so nothing else
//! would name the job. A label is a memory file with the job's name, which is in the link `/proc/PID/fd/N`. Its first
//! byte is the stage of the job; the rest is JSON, which other versions can read. It ends with its process.
//!
//! Rule: a job's name must not become known to other users, who could impersonate ranks with it.
//! The links and files in `/proc/PID/fd` are readable only with access to the process; all users
//! can read its arguments, its name and names of sockets. Source: `PTRACE_MODE_READ_FSCREDS` in
//! proc_pid_fd(5).

use std::collections::BTreeSet;
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

/// Maximum number of bytes that are read of a label: far more than the label of the largest job has.
const MOST: u64 = 16 * 1024 * 1024;

/// Stage of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum JobStage {
    /// At least one rank is not started yet.
    Starting,
    /// All ranks were started.
    Running,
    /// The job is being terminated, or no rank is left.
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

/// Part of a label that does not change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LabelPlacement {
    /// The node of a step; a launcher has none.
    pub node: Option<NodeId>,
    /// The names of all nodes.
    pub hosts: Vec<String>,
    /// Nodes that could not join or have left.
    #[serde(default)]
    pub absent: BTreeSet<NodeId>,
    /// Ranks of these nodes.
    pub ranks: ProcessMap,
    /// Launcher of the launch, with its host.
    #[serde(default)]
    pub launcher: Option<LauncherProcess>,
}

impl LabelPlacement {
    /// Host name of a node.
    pub fn host(&self, node: NodeId) -> Option<&str> {
        self.hosts.get(node.index()).map(String::as_str)
    }

    /// Names of the hosts that are in the launch.
    pub fn present_hosts(&self) -> impl Iterator<Item = &str> {
        let all = (0..).map(NodeId).zip(&self.hosts);
        let present = all.filter(|(node, _)| !self.absent.contains(node));
        present.map(|(_, name)| name.as_str())
    }
}

/// A label as other processes see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelContents {
    /// Name of the job.
    pub job: String,
    /// Stage of the job.
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
    /// Publishes the label of a job that starts, or of a node's part of it. If the system refuses, the job runs without a
    /// label.
    pub(crate) fn show(decided: &JobPlan, node: Option<NodeId>) -> Self {
        let placement = LabelPlacement {
            node,
            hosts: decided.node_names.clone(),
            absent: decided.absent.clone(),
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

    /// Publishes the label again with the current hosts, after hosts have joined.
    pub(crate) fn renew(&mut self, decided: &JobPlan, node: Option<NodeId>) {
        let stage = self.stage;
        *self = Self::show(decided, node);
        self.turn(stage);
    }

    /// Advances the job to this stage; it never goes back.
    pub(crate) fn turn(&mut self, stage: JobStage) {
        if stage <= self.stage {
            return;
        }
        self.stage = stage;
        if let Some(file) = &self.file {
            // Replacing a byte of a memory file needs no resources.
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

/// Reads the label of a process; `None` if it has none that is readable and whose name `is_job` accepts.
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

/// Parses the part of a label that does not change. Counts must be consistent, and names must be fit for terminals.
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
            absent: BTreeSet::new(),
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
            let contents = read().unwrap();
            assert_eq!((contents.job.as_str(), contents.stage), (JOB, stage));
            assert_eq!(contents.placement, placement(Some(1)));
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
