//! When and how a job ends.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::choice_name;
use crate::job::exit_policy::ExitPolicy;

/// When and how the job ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TerminationSpec {
    /// The job is ended after this time.
    pub timeout: Option<Duration>,
    /// Which code is the job's.
    pub exit: ExitPolicy,
    /// What follows from a failure.
    pub on_failure: FailurePolicy,
    /// A rank that fails ends the others. Never with [`FailurePolicy::Continue`].
    pub kill_on_bad_exit: bool,
    /// Time between SIGTERM and SIGKILL; zero for SIGKILL at once.
    pub grace: Duration,
    /// A program that loads an MPI and does not use the offered interface fails the job.
    pub strict_pmi: bool,
    /// How long a fence may take from its first arrival.
    pub fence: FenceTimeoutSpec,
    /// How long it may take until all processes of a spawn have been started.
    pub spawn: Option<Duration>,
    /// The effect of the end of a parent's job on spawned jobs.
    pub children: ChildJobPolicy,
    /// Another process may come to speak for a rank, with PMI. Never with [`FailurePolicy::Continue`].
    pub restartable: bool,
}

/// What follows from the loss of a rank or of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FailurePolicy {
    /// The launch ends.
    #[default]
    Abort,
    /// The others go on; whatever they do together completes without the dead.
    Continue,
    /// The launch ends, and asks to be run again.
    Requeue,
}

impl FailurePolicy {
    /// The values of `--on-failure`.
    pub const NAMES: [(&str, Self); 3] = [
        ("abort", Self::Abort),
        ("continue", Self::Continue),
        ("requeue", Self::Requeue),
    ];

    /// As the option spells it.
    pub fn as_str(self) -> &'static str {
        choice_name(&Self::NAMES, self)
    }
}

/// The effect of the end of a parent's job on spawned jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ChildJobPolicy {
    /// They have the time of grace to end, and then are ended.
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

/// How long a fence may take from its first arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum FenceTimeoutSpec {
    /// [`FENCE_TIMEOUT`], if a rank or node is missing that should have come soon, or never comes;
    /// ranks that may be busy with their own work are waited for.
    #[default]
    Sensible,
    /// So long, whatever the others do.
    After(Duration),
    Unlimited,
}

/// How long a fence may take unless the user chooses.
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
