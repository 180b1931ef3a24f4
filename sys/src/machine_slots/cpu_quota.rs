//! Reads the CPU quota of this process's cgroups, in both versions of the interface.
//!
//! Rule: the quotas of all levels up to the root apply, so the strictest counts. Version 2 has
//! `cpu.max` (`QUOTA PERIOD` in µs, QUOTA may be `max`), version 1 `cpu.cfs_quota_us` (−1 for
//! none) and `cpu.cfs_period_us`. Source: cgroups(7) and the kernel's cgroup-v2 guide.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

/// Share of CPU time, in thousandths of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Quota(u64);

impl Quota {
    /// Makes a quota of `time` in every `period`, both in one unit; `None` for a period of zero.
    pub fn new(time: u64, period: u64) -> Option<Self> {
        (period > 0).then(|| Self(time.saturating_mul(1000).div_ceil(period)))
    }

    /// Number of whole CPUs, rounded up.
    pub fn cpus(self) -> u32 {
        u32::try_from(self.0.div_ceil(1000)).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Quota {
    /// Writes the number of CPUs with one decimal, rounded up so that a small quota is not written as 0.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.div_ceil(100);
        write!(f, "{}.{}", tenths / 10, tenths % 10)
    }
}

/// Version of the cgroup interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CpuController {
    V1,
    V2,
}

/// Mounted cgroup hierarchy that can limit CPU time.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Mount {
    pub(super) version: CpuController,
    /// Directory of the hierarchy that is visible at the mount point.
    root: String,
    pub(super) point: PathBuf,
}

/// Cgroup hierarchy at a mount point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hierarchy {
    pub(super) version: CpuController,
    /// Whether the whole hierarchy is visible, not only a part.
    pub(super) whole: bool,
}

impl CpuController {
    /// Version for a type of file system. Source: statfs(2).
    pub(super) fn from_fs_type(kind: rustix::fs::FsWord) -> Option<Self> {
        match kind {
            libc::CGROUP2_SUPER_MAGIC => Some(Self::V2),
            libc::CGROUP_SUPER_MAGIC => Some(Self::V1),
            _ => None,
        }
    }
}

/// Finds the hierarchy that can limit CPU time at its usual mount point, without the list of all mounts; `None`
/// if it is not there, or if only a part of it may be visible.
///
/// Rule: a controller belongs to one hierarchy. Source: cgroups(7), and systemd's directories.
pub(super) fn usual_mount(cgroup: &str, at: impl Fn(&Path) -> Option<Hierarchy>) -> Option<Mount> {
    const V1_POINTS: &[&str] = &["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu"];
    const V2_POINTS: &[&str] = &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let (version, own, points) = match own_path(cgroup, CpuController::V1) {
        Some(own) => (CpuController::V1, own, V1_POINTS),
        None => (
            CpuController::V2,
            own_path(cgroup, CpuController::V2)?,
            V2_POINTS,
        ),
    };
    let found = |point: &&&str| {
        at(Path::new(point))
            .is_some_and(|found| found.version == version && (found.whole || own == "/"))
    };
    let point = points.iter().find(found)?;
    Some(Mount {
        version,
        root: "/".to_owned(),
        point: point.into(),
    })
}

/// Finds the hierarchies that can limit CPU time in the text of `/proc/self/mountinfo`.
pub(super) fn mounts_in(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

/// Strictest quota that applies to this process, by the text of `/proc/self/cgroup` and the hierarchies; `read` reads a file.
/// `None` without a quota.
pub(super) fn quota_in(
    cgroup: &str,
    mounts: &[Mount],
    read: impl Fn(&Path) -> Option<String>,
) -> Option<Quota> {
    let levels = mounts.iter().flat_map(|mount| {
        let own = own_path(cgroup, mount.version).unwrap_or("/");
        levels(mount, own)
            .into_iter()
            .map(move |level| (mount.version, level))
    });
    levels
        .filter_map(|(version, level)| match version {
            CpuController::V2 => parse_v2(&read(&level.join("cpu.max"))?),
            CpuController::V1 => {
                // -1 means no limit, and does not parse as unsigned.
                let time = read(&level.join("cpu.cfs_quota_us"))?.trim().parse().ok()?;
                let period = read(&level.join("cpu.cfs_period_us"))?;
                Quota::new(time, period.trim().parse().ok()?)
            }
        })
        .min()
}

/// Path of this process in a hierarchy. Lines are `id:controllers:path`; version 2 has id 0 and no controllers.
fn own_path(cgroup: &str, version: CpuController) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let ours = match version {
            CpuController::V2 => id == "0" && controllers.is_empty(),
            CpuController::V1 => controllers.split(',').any(|name| name == "cpu"),
        };
        ours.then_some(path)
    })
}

/// Reads a line of mountinfo: `id parent device ROOT POINT options [fields…] - TYPE source OPTIONS`.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let version = match right.next()? {
        "cgroup2" => CpuController::V2,
        "cgroup" if right.nth(1)?.split(',').any(|option| option == "cpu") => CpuController::V1,
        _ => return None,
    };
    Some(Mount {
        version,
        root: String::from_utf8_lossy(&unescape(root)).into_owned(),
        point: OsString::from_vec(unescape(point)).into(),
    })
}

/// Directories from this process's group up to the mount point. For a path outside the mount (in a
/// container with only a part of the hierarchy) only the mount point.
fn levels(mount: &Mount, own: &str) -> Vec<PathBuf> {
    let rest = match own.strip_prefix(mount.root.trim_end_matches('/')) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => "",
    };
    let below = Path::new(rest.trim_start_matches('/'));
    if below.components().any(|part| part == Component::ParentDir) {
        return vec![mount.point.clone()];
    }
    let group = mount.point.join(below);
    let groups = group.ancestors();
    let groups = groups.take_while(|group| group.starts_with(&mount.point));
    groups.map(Path::to_owned).collect()
}

/// Decodes the octal escapes of mountinfo, such as `\040` for a blank.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

fn parse_v2(text: &str) -> Option<Quota> {
    let mut words = text.split_ascii_whitespace();
    let (time, period) = (words.next()?, words.next()?);
    Quota::new(time.parse().ok()?, period.parse().ok()?)
}
