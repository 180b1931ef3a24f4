//! State that the launcher's process has inherited, which ranks must get unchanged.

use std::collections::BTreeSet;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::leftovers;

/// Limits, ignored signals and children that the launcher's process has inherited.
#[derive(Clone, Debug)]
pub struct InheritedState {
    /// The limit of descriptors it was given.
    pub nofile: libc::rlimit,
    /// Ignored when the launcher started; the runtime's own SIGPIPE included.
    pub ignored: Vec<i32>,
    /// Children that it has not started.
    pub children: BTreeSet<i32>,
}

impl InheritedState {
    /// Looks at the process and raises its limit of descriptors. `ignored` are the signals that
    /// were ignored at its start.
    pub fn take(ignored: Vec<i32>) -> Self {
        Self {
            nofile: raise_descriptor_limit(),
            ignored,
            children: leftovers::children(),
        }
    }

    /// Returns the signals that a child resets: all signals that the launcher ignores, except those that its own parent
    /// asked for with nohup.
    pub fn signals_to_reset(&self) -> Vec<i32> {
        self.ignored
            .iter()
            .copied()
            .filter(|signal| *signal != libc::SIGHUP)
            .collect()
    }
}

fn raise_descriptor_limit() -> libc::rlimit {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Never fails: the soft limit may always be raised to the hard one.
    let _ = setrlimit(Resource::Nofile, raised);
    let raw = |value: Option<u64>| value.unwrap_or(libc::RLIM_INFINITY);
    libc::rlimit {
        rlim_cur: raw(limit.current),
        rlim_max: raw(limit.maximum),
    }
}
