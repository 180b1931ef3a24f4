//! Control groups of the steps that this process forks, one for each. If this process is root's, neither the step nor its
//! descendants can leave the group.
//!
//! An empty group is removed. Processes that outlive both step and guard are killed. This is checked at each request for a
//! step, and at the start of this process for groups of an earlier helper. An earlier helper that is still ending, because
//! its agent was just killed, is waited for.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wireup_core::executables::STEP_SERVER;

use rustix::io::Errno;

use wireup_sys::cgroup::{self, Cgroup};
use wireup_sys::pidfd::ProcessHandle;
use wireup_sys::procfs;

/// Prefix of the groups' names. The pid namespace, pid and start of the helper, and the number of the group follow.
const PREFIX: &str = "wireup-step-";

/// Pid and start time of a helper, which together identify it.
type HelperId = (i32, u64);

/// Control groups of the steps of this process, and of earlier helpers.
#[derive(Debug)]
pub(super) struct StepCgroups {
    /// Prefix of the names of the groups of this process.
    name_prefix: Option<String>,
    cgroup_paths: BTreeSet<PathBuf>,
    /// Groups of earlier helpers that have not ended, with the process of each.
    of_others: HashMap<HelperId, (ProcessHandle, Vec<PathBuf>)>,
    group_count: u64,
}

impl StepCgroups {
    /// Takes over the groups of earlier helpers that have ended.
    pub(super) fn new() -> Self {
        let namespace = fs::metadata("/proc/self/ns/pid").map(|meta| meta.ino());
        let own = procfs::process(rustix::process::getpid().as_raw_nonzero().get());
        let own = own.zip(namespace.ok());
        let of_here = own.as_ref().map(|(_, here)| format!("{PREFIX}{here}-"));
        let maker = |path: &Path| -> Option<HelperId> {
            let name = path.file_name()?.to_str()?;
            let mut numbers = name.strip_prefix(of_here.as_deref()?)?.split('-');
            Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        };
        let mut groups = Self {
            cgroup_paths: BTreeSet::new(),
            of_others: HashMap::new(),
            name_prefix: own
                .as_ref()
                .map(|(own, here)| format!("{PREFIX}{here}-{}-{}-", own.pid, own.started)),
            group_count: 0,
        };
        let place = cgroup::own_group();
        for path in place.iter().flat_map(|place| cgroup::groups_in(place)) {
            let Some(maker) = maker(&path) else { continue };
            match groups.of_others.get_mut(&maker) {
                Some((_, paths)) => paths.push(path),
                None => match living(maker) {
                    Ok(Some(held)) => drop(groups.of_others.insert(maker, (held, vec![path]))),
                    Ok(None) => drop(groups.cgroup_paths.insert(path)),
                    // Without a pidfd the end of the helper would not be noticed.
                    Err(_) => {}
                },
            }
        }
        groups.sweep();
        groups
    }

    /// Returns pidfds of earlier helpers that have not ended. When one ends, [`StepCgroups::sweep`] must be called.
    pub(super) fn makers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.of_others.values().map(|(held, _)| held.as_fd())
    }

    /// Creates a group for the next step, if the system allows it.
    pub(super) fn make(&mut self) -> Option<Cgroup> {
        self.group_count += 1;
        let name = format!("{}{}", self.name_prefix.as_ref()?, self.group_count);
        let group = Cgroup::make(cgroup::place(&name)?)?;
        self.cgroup_paths.insert(group.path().to_owned());
        Some(group)
    }

    /// Kills processes in groups without step and guard, and removes empty groups.
    pub(super) fn sweep(&mut self) {
        let ended = |_: &HelperId, (held, _): &mut (ProcessHandle, _)| held.wait(Duration::ZERO);
        let left = self.of_others.extract_if(ended);
        self.cgroup_paths
            .extend(left.flat_map(|(_, (_, paths))| paths));
        self.cgroup_paths
            .retain(|group| match cgroup::is_populated(group) {
                true if is_led(group) => true,
                true => !cgroup::end(group),
                false => !cgroup::remove(group),
            });
    }
}

/// Opens a helper's process, unless it has ended.
fn living((pid, started): HelperId) -> Result<Option<ProcessHandle>, Errno> {
    let process = procfs::process(pid);
    match process.filter(|process| process.started == started && !process.has_ended()) {
        Some(process) => ProcessHandle::open(&process),
        None => Ok(None),
    }
}

/// Whether a group contains a step or its guard, which are copies of this process.
fn is_led(group: &Path) -> bool {
    let own = procfs::executable(rustix::process::getpid().as_raw_nonzero().get());
    let mut members = cgroup::members(group).into_iter();
    members.any(|pid| {
        let words = procfs::command_line(pid);
        let copy = words
            .get(1)
            .is_some_and(|word| word == "step" || word == STEP_SERVER);
        copy && procfs::executable(pid) == own
            && procfs::process(pid).is_some_and(|p| !p.has_ended())
    })
}
