//! Control groups: processes started in one stay in it, even if their sessions, parents and
//! environments change.
//!
//! A launch has one on each node where it may create one: below the group of its creator. It limits
//! nothing; it is there so that every process of the launch can be found and killed.
//!
//! Rules: only a group without members can be removed; `cgroup.kill` kills all members at once,
//! those of groups below included; a process that has ended is no member. A process can be made in
//! a group for little, to move one costs more than to make it. Source: the kernel's cgroup-v2
//! guide.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, Mode, OFlags, open, statfs};

use crate::access;
use crate::poll::pause;

/// Mount points of version 2 of the interface: alone, or together with version 1.
const POINTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Names of the groups made here begin with this.
pub const PREFIX: &str = "wireup-";

/// A group that has just lost its last member may take a moment to show it.
const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(1);

/// Returns the path of a group called `name` below this process's own; `None` where the process may make none.
pub fn place(name: &str) -> Option<PathBuf> {
    let own = own_group()?;
    let may = |path: &Path, what| access::check(path, what).is_ok();
    // To put a process into a group takes the right to take it out of that above.
    let movable = may(&own.join("cgroup.procs"), Access::WRITE_OK);
    (movable && may(&own, Access::WRITE_OK)).then(|| own.join(name))
}

/// Returns the group of this process.
pub fn own_group() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own_in(&text)?;
    let is_v2 = |point: &&&str| {
        statfs(**point).is_ok_and(|found| found.f_type == libc::CGROUP2_SUPER_MAGIC)
    };
    let point = Path::new(POINTS.iter().find(is_v2)?);
    let own = point.join(path);
    own.is_dir().then_some(own)
}

/// Returns the path of the group of version 1 that has a controller, without the slash at its start, given the text of
/// `/proc/self/cgroup`.
fn first_version_in<'a>(text: &'a str, controller: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let has = controllers.split(',').any(|name| name == controller);
        path.strip_prefix('/').filter(|_| has)
    })
}

/// Returns the group of this process in the hierarchy of version 1 that has a controller.
pub(crate) fn first_version_group(controller: &str) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = first_version_in(&text, controller)?;
    Some(Path::new("/sys/fs/cgroup").join(controller).join(path))
}

/// Returns the amount of a resource that the groups of this process still permit: the minimum of limit minus use over
/// its group and those above. The names of the files (limit, use) are those of version 2 and of version 1; `None`
/// without a limit.
pub fn remaining_limit(controller: &str, second: (&str, &str), first: (&str, &str)) -> Option<u64> {
    let has = |(group, files): &(PathBuf, (&str, &str))| group.join(files.1).exists();
    let second = own_group().map(|group| (group, second));
    let first = || Some((first_version_group(controller)?, first));
    let (group, (limit, used)) = second.filter(has).or_else(first)?;
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = group.ancestors().filter_map(|group| {
        // Version 1 writes a number near the largest for no limit.
        let limit = number(group.join(limit)).filter(|limit| *limit < u64::MAX / 4)?;
        let used = number(group.join(used))?.saturating_sub(reclaimable(group, controller));
        Some(limit.saturating_sub(used))
    });
    left.min()
}

/// Bytes of files in memory that count as used and are given up when memory is short.
fn reclaimable(group: &Path, controller: &str) -> u64 {
    if controller != "memory" {
        return 0;
    }
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().parse::<u64>().ok()
    };
    let total = of("total_inactive_file ").or_else(|| of("inactive_file "));
    total.unwrap_or(0)
}

/// Returns the path of the group of version 2 below its mount point, given the text of `/proc/self/cgroup`.
fn own_in(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Outside of what this process may see.
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

/// A group of one's own making.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    directory: OwnedFd,
}

impl Cgroup {
    /// Makes the group at a [`place`].
    pub fn make(path: PathBuf) -> Option<Self> {
        fs::create_dir(&path).ok()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open(&path, flags, Mode::empty()) {
            Ok(directory) => Some(Self { path, directory }),
            Err(_) => {
                let _ = fs::remove_dir(&path);
                None
            }
        }
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves this process into the group; one that cannot be entered is done without.
    pub fn enter(&self) {
        let _ = fs::write(self.path.join("cgroup.procs"), "0");
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the processes in a group and in those below it.
pub fn members(group: &Path) -> Vec<i32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut members: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for below in child_groups(group) {
        members.extend(self::members(&below));
    }
    members
}

/// Whether a group has members, those of groups below it included.
pub fn is_populated(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events"));
    events.is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
}

/// Kills every process in a group at once.
pub fn kill(group: &Path) {
    // Where it cannot be written there is no such group, or the kernel is older than 5.14; then the
    // processes in it have been signalled one by one.
    let _ = fs::write(group.join("cgroup.kill"), "1");
}

/// Kills the processes of a group and removes it; returns whether it is gone.
pub fn end(group: &Path) -> bool {
    if is_populated(group) {
        kill(group);
    }
    (0..REMOVE_TRIES).any(|_| {
        let gone = remove(group);
        if !gone {
            pause(REMOVE_PAUSE);
        }
        gone
    })
}

/// Removes a group without members, with those below it; returns whether it is gone.
pub fn remove(group: &Path) -> bool {
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(_) => {
            let mut below = child_groups(group).into_iter().peekable();
            below.peek().is_some() && {
                let gone = below.all(|below| remove(&below));
                gone && fs::remove_dir(group).is_ok()
            }
        }
    }
}

/// Returns the groups directly below a group whose names have [`PREFIX`].
pub fn groups_in(group: &Path) -> Vec<PathBuf> {
    let ours = |path: &PathBuf| {
        let name = path.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
    };
    child_groups(group).into_iter().filter(ours).collect()
}

fn child_groups(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_that_of_version_2() {
        assert_eq!(
            own_in("4:memory:/a\n0::/user.slice/b\n"),
            Some("user.slice/b")
        );
        assert_eq!(own_in("0::/\n"), Some(""));
        assert_eq!(own_in("0::/../x\n"), None);
        assert_eq!(own_in("4:memory:/a\n"), None);
        let groups = "8:pids:/a\n4:cpu,memory:/b/c\n0::/d\n";
        assert_eq!(first_version_in(groups, "memory"), Some("b/c"));
        assert_eq!(first_version_in("0::/d\n", "memory"), None);
    }
}
