//! How many ranks this machine should take: one per CPU that we may use.
//!
//! A CPU counts if it is in the affinity mask (which cgroup cpusets shape); a CPU quota of the
//! cgroup, or of one above it, lowers the count further, rounded up.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use wireup_core::wording::counted;

mod cpu_quota;

pub use cpu_quota::Quota;
use cpu_quota::{CpuController, Hierarchy, Mount, mounts_in, quota_in, usual_mount};

/// The hierarchies that can limit CPU time: they are not moved during a run, and listing mounts is
/// slow.
static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();

/// What limits the number of ranks here.
#[derive(Clone, Debug)]
pub struct SlotLimits {
    /// CPUs in the affinity mask.
    pub affinity: u32,
    /// Read from several files, and so only where the mask does not decide.
    quota: OnceLock<Option<Quota>>,
}

/// The number of slots as text, with its calculation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotCalculation {
    count: u32,
    affinity: u32,
    quota: Option<Quota>,
    online: Option<u32>,
}

impl SlotLimits {
    /// Asks the system.
    ///
    /// Unknown values do not limit; a machine without any known value has one slot.
    pub fn detect() -> Self {
        Self {
            affinity: affinity().or_else(online).unwrap_or(1),
            quota: OnceLock::new(),
        }
    }

    /// The strictest CPU quota of our cgroups.
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

    /// Warnings about them.
    pub fn arithmetic(&self) -> SlotCalculation {
        SlotCalculation {
            count: self.count(),
            affinity: self.affinity,
            quota: self.quota(),
            online: online(),
        }
    }

    /// The number of slots, at least 1.
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
    /// The limits of the number: `affinity mask: 2 of 64 CPUs, no cgroup limit`.
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

/// Online CPUs of the machine; `None` if unknown.
pub fn online() -> Option<u32> {
    count_list(&read_text(Path::new("/sys/devices/system/cpu/online"))?)
}

fn affinity() -> Option<u32> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => Some(set.count()),
        // The fixed-size mask is too small for the largest machines; the text has no such limit.
        Err(_) => count_list(
            read_text(Path::new("/proc/thread-self/status"))?
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?,
        ),
    }
}

/// Number of CPUs in a list such as `0-3,8,10-11`; `None` if it is empty or not such a list.
fn count_list(list: &str) -> Option<u32> {
    let mut count = 0_u32;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The hierarchy of cgroups that is mounted at a directory, if one is.
fn hierarchy_at(point: &Path) -> Option<Hierarchy> {
    // The system gives the root of every hierarchy this number (the kernel's kernfs).
    const ROOT: u64 = 1;
    let version = CpuController::from_fs_type(rustix::fs::statfs(point).ok()?.f_type)?;
    let whole = rustix::fs::stat(point).is_ok_and(|stat| stat.st_ino == ROOT);
    Some(Hierarchy { version, whole })
}

/// A small text of the system's, or `None` if it cannot be read.
fn read_text(path: &Path) -> Option<String> {
    // The kernel's files have no size; most fit at once.
    let mut bytes = Vec::with_capacity(4096);
    let file = File::open(path).ok()?;
    file.take(4 * 1024 * 1024).read_to_end(&mut bytes).ok()?;
    // Mount points of others may hold any bytes.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
