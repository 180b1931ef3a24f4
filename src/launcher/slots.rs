//! How many ranks this machine should take: one per CPU that we may use.
//!
//! A CPU counts if it is in the affinity mask (which cgroup cpusets shape); a CPU quota of the
//! cgroup, or of one above it, lowers the count further, rounded up.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use super::elf::open_regular;

mod cgroup;

pub use cgroup::Quota;
use cgroup::{Mount, mounts_in, quota_in};

/// Where the hierarchies are that can limit CPU time: they are not moved while somebody runs, and the
/// system takes its time to list what is mounted.
static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();

/// What limits the number of ranks here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slots {
    /// CPUs in the affinity mask.
    pub affinity: u32,
    /// CPUs of the machine that are switched on; `None` if the system does not tell.
    pub online: Option<u32>,
    /// The strictest CPU quota of our cgroups.
    pub quota: Option<Quota>,
}

/// How a job fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// More ranks than slots: waiting ranks should yield their CPU to others.
    pub oversubscribed: bool,
}

/// More ranks than slots, and nobody allowed it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{ranks} ranks do not fit in {slots}; use --oversubscribe, or -n {}", slots.count())]
pub struct SlotsError {
    /// Ranks asked for.
    pub ranks: u32,
    /// What there is.
    pub slots: Slots,
}

impl Slots {
    /// Asks the system.
    ///
    /// What it does not tell does not limit; a machine that tells nothing has one slot.
    pub fn detect() -> Self {
        let read = |path: &str| read_text(Path::new(path));
        let online = read("/sys/devices/system/cpu/online").and_then(|text| count_list(&text));
        Self {
            affinity: affinity().or(online).unwrap_or(1),
            online,
            quota: quota_in(
                &read("/proc/self/cgroup").unwrap_or_default(),
                MOUNTS.get_or_init(|| mounts_in(&read("/proc/self/mountinfo").unwrap_or_default())),
                read_text,
            ),
        }
    }

    /// The number of slots, at least 1.
    pub fn count(&self) -> u32 {
        let quota = self.quota.map_or(u32::MAX, Quota::cpus);
        self.affinity.min(quota).max(1)
    }

    /// Decides whether `ranks` ranks may run here: up to the number of slots, or any number with
    /// `oversubscribe`.
    ///
    /// # Errors
    /// [`SlotsError`] when they do not fit.
    pub fn check(&self, ranks: u32, oversubscribe: bool) -> Result<Fit, SlotsError> {
        let oversubscribed = ranks > self.count();
        if oversubscribed && !oversubscribe {
            return Err(SlotsError {
                ranks,
                slots: *self,
            });
        }
        Ok(Fit { oversubscribed })
    }
}

impl fmt::Display for Slots {
    /// The count and the arithmetic behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} slot{plural} (affinity mask: {}", self.affinity)?;
        if let Some(online) = self.online {
            write!(f, " of {online} CPUs")?;
        }
        match self.quota {
            Some(quota) => write!(f, ", cgroup limit: {quota})"),
            None => f.write_str(", no cgroup limit)"),
        }
    }
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

/// A small text of the system's, or `None` if it cannot be read.
fn read_text(path: &Path) -> Option<String> {
    use std::io::Read as _;
    // The kernel's files do not tell their size; most fit at once.
    let mut bytes = Vec::with_capacity(4096);
    let file = open_regular(path).ok()?;
    file.take(4 * 1024 * 1024).read_to_end(&mut bytes).ok()?;
    // Mount points of others may hold any bytes.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
