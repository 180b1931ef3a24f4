//! Hosts of a batch system: processes and files that may stay on them after a launch, and those
//! that must not.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use wireup_lab::{Host, Lab};

use crate::common::Elsewhere;

/// Mount point of cgroups of version 1: Slurm's of a node are in a directory of its own for each controller.
pub(crate) const GROUPS: &str = "/sys/fs/cgroup";

/// Hosts on which these services run and have their files. All else must be gone after a run.
#[derive(Debug)]
pub(crate) struct Nodes {
    // In this order: the groups can be removed when the hosts have ended.
    pub(crate) lab: Lab,
    pub(crate) services: &'static [&'static str],
    /// Directories, and beginnings of names.
    pub(crate) files: &'static [&'static str],
    pub(crate) _groups: Groups,
}

/// Directories of control groups that the services have made.
#[derive(Debug, Default)]
pub(crate) struct Groups(Vec<PathBuf>);

impl Groups {
    /// Returns the cgroups of Slurm's nodes.
    pub(crate) fn of_slurm(count: usize) -> Self {
        let controllers = fs::read_dir(GROUPS).into_iter().flatten().flatten();
        let all = controllers.flat_map(|controller| {
            (1..=count).map(move |node| controller.path().join(format!("slurm_node{node:02}")))
        });
        Self(all.collect())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        fn remove(dir: &Path) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(dir);
        }
        self.0.iter().for_each(|dir| remove(dir));
    }
}

impl Nodes {
    fn left_on(&self, host: &Host) -> Vec<String> {
        let name = host.name();
        if host.has_crashed() {
            return Vec::new();
        }
        let processes = host.processes().into_iter();
        let processes = processes.filter(|process| !self.services.contains(&&*process.name));
        let known = |path: &PathBuf| self.files.iter().any(|dir| path.starts_with(dir));
        let files = host.files().into_iter().filter(|path| !known(path));
        let processes = processes.map(|process| format!("{name}: process {process}"));
        let files = files.map(|file| format!("{name}: file {}", file.display()));
        processes.chain(files).collect()
    }
}

impl Elsewhere for Nodes {
    fn start(&self, host: usize, command: &mut Command, dir: &Path) -> io::Result<Child> {
        self.lab.host(host).start(command, dir)
    }

    fn left(&self) -> Vec<String> {
        let hosts = self.lab.hosts().iter();
        hosts.flat_map(|host| self.left_on(host)).collect()
    }

    fn excuses(&self, _: i32) -> bool {
        false
    }
}
