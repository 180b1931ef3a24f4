//! Timeouts, failure policy and exit policy of a job.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::choice_name;
use crate::job::exit_policy::ExitPolicy;

/// Timeouts, failure policy and exit policy of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TerminationSpec {
    /// The job is ended after this time.
    pub timeout: Option<Duration>,
    /// Policy that chooses the job's exit code.
    pub exit: ExitPolicy,
    /// Reaction to a failure.
    pub on_failure: FailurePolicy,
    /// A rank that fails ends the others. Never with [`FailurePolicy::Continue`].
    pub kill_on_bad_exit: bool,
    /// Time between SIGTERM and SIGKILL; zero for SIGKILL at once.
    pub grace: Duration,
    /// A program that loads an MPI and does not use the offered interface fails the job.
    pub strict_pmi: bool,
    /// Timeout of a fence, from its first arrival.
    pub fence: FenceTimeoutSpec,
    /// Timeout for the start of all processes of a spawn.
    pub spawn: Option<Duration>,
    /// The effect of the end of a parent's job on spawned jobs.
    pub children: ChildJobPolicy,
    /// Whether another process may speak for a rank, with PMI. Never set with [`FailurePolicy::Continue`].
    pub restartable: bool,
}

/// Reaction to the loss of a rank or host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FailurePolicy {
    #[default]
    Abort,
    /// The other ranks continue; collectives complete without the dead ones.
    Continue,
    /// The launch ends, and requests to be requeued.
    Requeue,
}

impl FailurePolicy {
    /// The values of `--on-failure`.
    pub const NAMES: [(&str, Self); 3] = [
        ("abort", Self::Abort),
        ("continue", Self::Continue),
        ("requeue", Self::Requeue),
    ];

    /// Returns the name that the option uses.
    pub fn as_str(self) -> &'static str {
        choice_name(&Self::NAMES, self)
    }
}

/// The effect of the end of a parent's job on spawned jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ChildJobPolicy {
    /// Spawned jobs have the grace time to end, and are then terminated.
    #[default]
    EndWithParent,
    Independent,
}

impl ChildJobPolicy {
    /// The values of `--children`.
    pub const NAMES: [(&str, Self); 2] = [
        ("end-with-parent", Self::EndWithParent),
        ("independent", Self::Independent),
    ];
}

/// Timeout of a fence, from its first arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FenceTimeoutSpec {
    /// Timeout of [`FENCE_TIMEOUT`] if a rank or node is missing that should have arrived, or never will. Ranks that
    /// may be busy with their own work are waited for.
    #[default]
    Sensible,
    /// Fixed timeout, independent of the missing ranks.
    After(Duration),
    Unlimited,
}

/// Default of a fence's timeout.
pub const FENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between SIGTERM and SIGKILL unless the user chooses. MPI libraries that catch SIGTERM need
/// well under two seconds. Source: docs/pmi-operations.md#barrier.
pub const GRACE: Duration = Duration::from_secs(2);

impl Default for TerminationSpec {
    fn default() -> Self {
        Self {
            timeout: None,
            exit: ExitPolicy::First,
            on_failure: FailurePolicy::default(),
            kill_on_bad_exit: true,
            grace: GRACE,
            strict_pmi: false,
            fence: FenceTimeoutSpec::default(),
            spawn: None,
            children: ChildJobPolicy::default(),
            restartable: false,
        }
    }
}
