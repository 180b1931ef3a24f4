//! Settings of a process that the kernel keeps: those of the launcher, unless others are given.

use super::SpawnStage;
use crate::resource_limits::RawLimit;

/// Settings of a process that the kernel keeps.
#[derive(Clone, Debug, Default)]
pub struct ProcessSettings {
    /// Resource limits; the launcher's own for other resources.
    pub limits: Vec<RawLimit>,
    /// File mode creation mask; the launcher's own when absent.
    pub umask: Option<u32>,
}

impl ProcessSettings {
    /// Gives them to this process, a child between clone and exec: system calls only. On `Err` errno holds the reason.
    ///
    /// Descriptors have their numbers already, which may be beyond the new limit.
    pub(super) fn apply(&self) -> Result<(), SpawnStage> {
        if let Some(mask) = self.umask {
            // SAFETY: a number. The mask is not shared with the launcher: the child was cloned without CLONE_FS.
            unsafe { libc::umask(mask & 0o777) };
        }
        for (resource, limit) in &self.limits {
            // SAFETY: the limit is a reference.
            if unsafe { libc::setrlimit(*resource as _, limit) } < 0 {
                return Err(SpawnStage::Limit);
            }
        }
        Ok(())
    }
}
