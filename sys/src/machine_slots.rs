//! Computes the number of slots of this machine: one per CPU that wireup may use.
//!
//! A CPU counts if it is in the affinity mask (which cgroup cpusets restrict); a CPU quota of the
//! cgroup, or of a parent, lowers the count further, rounded up.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use wireup_core::wording::counted;

mod cpu_quota;

pub use cpu_quota::Quota;
use cpu_quota::{CpuController, Hierarchy, Mount, mounts_in, quota_in, usual_mount};

/// Cgroup hierarchies that can limit CPU time. Cached: they do not move during a launch, and listing mounts is
/// slow.
static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();

/// Limits of the number of ranks on this machine.
#[derive(Clone, Debug)]
pub struct SlotLimits {
    /// Number of CPUs in the affinity mask.
    pub affinity: u32,
    /// CPU quota; read from several files, so only if the affinity mask is not sufficient.
    quota: OnceLock<Option<Quota>>,
}

/// Number of slots with the limits from which it was computed, for texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotCalculation {
    count: u32,
    affinity: u32,
    quota: Option<Quota>,
    online: Option<u32>,
}

impl SlotLimits {
    /// Reads the affinity mask, else the number of online CPUs. A machine without either has one slot.
    pub fn detect() -> Self {
        Self {
            affinity: affinity().or_else(online).unwrap_or(1),
            quota: OnceLock::new(),
        }
    }

    /// Strictest CPU quota of this process's cgroups.
    pub fn quota(&self) -> Option<Quota> {
        *self.quota.get_or_init(|| {
            let cgroup = read_text(Path::new("/proc/self/cgroup")).unwrap_or_default();
            let mounts = MOUNTS.get_or_init(|| match usual_mount(&cgroup, hierarchy_at) {
                Some(mount) => vec![mount],
                None => {
                    let mountinfo = read_text(Path::new("/proc/self/mountinfo"));
                    mounts_in(&mountinfo.unwrap_or_default())
                }
            });
            quota_in(&cgroup, mounts, read_text)
        })
    }

    /// Number of slots with its limits, for texts.
    pub fn arithmetic(&self) -> SlotCalculation {
        SlotCalculation {
            count: self.count(),
            affinity: self.affinity,
            quota: self.quota(),
            online: online(),
        }
    }

    /// Number of slots, at least 1.
    pub fn count(&self) -> u32 {
        let quota = self.quota().map_or(u32::MAX, Quota::cpus);
        self.affinity.min(quota).max(1)
    }

    /// Whether this number of ranks exceeds the slots.
    pub fn exceeded_by(&self, ranks: u32) -> bool {
        ranks > self.affinity.max(1) || ranks > self.count()
    }
}

impl SlotCalculation {
    /// Text with the limits of the number, such as `affinity mask: 2 of 64 CPUs, no cgroup limit`.
    pub fn limits(&self) -> String {
        let online = self.online.map(|online| format!(" of {online} CPUs"));
        let quota = match self.quota {
            Some(quota) => format!("cgroup limit: {quota}"),
            None => "no cgroup limit".to_owned(),
        };
        let online = online.unwrap_or_default();
        format!("affinity mask: {}{online}, {quota}", self.affinity)
    }
}

impl fmt::Display for SlotCalculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", counted(self.count, "slot"), self.limits())
    }
}

/// Number of online CPUs of the machine; `None` if unknown.
pub fn online() -> Option<u32> {
    count_list(&read_text(Path::new("/sys/devices/system/cpu/online"))?)
}

fn affinity() -> Option<u32> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => Some(set.count()),
        // The mask of the system call is too small for the largest machines; the text is not limited.
        Err(_) => count_list(
            read_text(Path::new("/proc/thread-self/status"))?
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?,
        ),
    }
}

/// Number of CPUs in a list such as `0-3,8,10-11`; `None` for an empty or invalid list.
fn count_list(list: &str) -> Option<u32> {
    let mut count = 0_u32;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Cgroup hierarchy that is mounted at a directory, if any.
fn hierarchy_at(point: &Path) -> Option<Hierarchy> {
    // Inode number of the root of every hierarchy (the kernel's kernfs).
    const ROOT: u64 = 1;
    let version = CpuController::from_fs_type(rustix::fs::statfs(point).ok()?.f_type)?;
    let whole = rustix::fs::stat(point).is_ok_and(|stat| stat.st_ino == ROOT);
    Some(Hierarchy { version, whole })
}

/// Text of a file of the kernel; `None` if it cannot be read.
fn read_text(path: &Path) -> Option<String> {
    // The kernel reports no size of its files; most fit into this buffer.
    let mut bytes = Vec::with_capacity(4096);
    let file = File::open(path).ok()?;
    file.take(4 * 1024 * 1024).read_to_end(&mut bytes).ok()?;
    // Names of mount points may contain any bytes.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
