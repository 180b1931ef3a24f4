//! The control groups of the steps that this process forks, one for each. Where this process is
//! root's, a step's user cannot leave it, and nothing that the step has started can.
//!
//! A control group is removed when it is empty. Processes that outlive both step and guard are
//! killed. This is checked at each request for a step, and when this process starts, for groups of
//! an earlier helper.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::server::COMMAND;
use crate::sys::cgroup::{self, Group};
use crate::sys::procfs;

/// What the names of these groups begin with. The namespace of processes follows, number and start
/// of the process that made it, and how many it had made.
const PREFIX: &str = "wireup-step-";

/// See the module.
#[derive(Debug)]
pub(super) struct Groups {
    /// What the names of those begin with that are made here.
    own: Option<String>,
    known: BTreeSet<PathBuf>,
    made: u64,
}

impl Groups {
    /// Takes over what those have left that were here before and are dead.
    pub(super) fn new() -> Self {
        let namespace = fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino());
        let own = procfs::process(rustix::process::getpid().as_raw_nonzero().get());
        let own = own.zip(namespace.ok());
        let of_here = own.as_ref().map(|(_, here)| format!("{PREFIX}{here}-"));
        let left = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            let maker = name.zip(of_here.as_ref()).and_then(|(name, of_here)| {
                let mut numbers = name.strip_prefix(of_here.as_str())?.split('-');
                Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
            });
            maker.is_some_and(|(pid, started): (i32, u64)| {
                procfs::process(pid).is_none_or(|found| found.started != started)
            })
        };
        let place = cgroup::own();
        let groups = place.iter().flat_map(|place| cgroup::made_in(place));
        let mut groups = Self {
            known: groups.filter(left).collect(),
            own: own.map(|(own, here)| format!("{PREFIX}{here}-{}-{}-", own.pid, own.started)),
            made: 0,
        };
        groups.sweep();
        groups
    }

    /// A group for the next step, where there can be one.
    pub(super) fn make(&mut self) -> Option<Group> {
        self.made += 1;
        let name = format!("{}{}", self.own.as_ref()?, self.made);
        let group = Group::make(cgroup::place(&name)?)?;
        self.known.insert(group.path().to_owned());
        Some(group)
    }

    /// Kills processes in groups without a step and guard.
    pub(super) fn sweep(&mut self) {
        self.known
            .retain(|group| match cgroup::is_populated(group) {
                true if is_led(group) => true,
                true => !cgroup::end(group),
                false => !cgroup::remove(group),
            });
    }
}

/// Whether a step, or a guard of one, is in a group: copies of this process.
fn is_led(group: &Path) -> bool {
    let own = procfs::executable(rustix::process::getpid().as_raw_nonzero().get());
    let mut members = cgroup::members(group).into_iter();
    members.any(|pid| {
        let words = procfs::command_line(pid);
        let copy = words
            .get(1)
            .is_some_and(|word| word == "step" || word == COMMAND);
        copy && procfs::executable(pid) == own
            && procfs::process(pid).is_some_and(|p| !p.has_ended())
    })
}
