//! Work that a service, or the supervisor, leaves for another part of the launcher.

use wireup_core::job::outcome::FailureCause;

/// Work for another part of the launcher, in the order in which it was left.
pub(super) enum LaunchEffect {
    /// The end of the launch has begun.
    EndBegun,
    /// The rank with a terminal is to be hung up, like one whose user has gone.
    HangUp,
    /// The job has failed, unless it has before.
    Fail(FailureCause),
}
