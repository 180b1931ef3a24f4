//! A control group with a limit of memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::skip;

/// Groups of this process so far.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A memory cgroup for one test; removed at its end.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None` where no group can be made, which is noted as a skipped test.
    pub fn new(bytes: u64) -> Option<Self> {
        let group = Self::create(bytes);
        if group.is_none() {
            skip("the out-of-memory killer: needs a memory cgroup of its own, and root's rights");
        }
        group
    }

    fn create(bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let first = own.lines().find_map(|line| line.split_once(":memory:/"));
        let (parent, limit) = match first {
            Some((_, path)) => (
                Path::new("/sys/fs/cgroup/memory").join(path),
                "memory.limit_in_bytes",
            ),
            None => (
                Path::new("/sys/fs/cgroup").join(own.strip_prefix("0::/")?.trim_end()),
                "memory.max",
            ),
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("wireup-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        // Swap would let a process go on for long.
        let swap = group.0.join("memory.memsw.limit_in_bytes");
        let _ = fs::write(swap, bytes.to_string());
        let _ = fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }

    /// Returns the file that moves processes into the group.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
