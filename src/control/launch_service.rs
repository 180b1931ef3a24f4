//! The services of a launch that have deadlines.

use std::time::Duration;

use super::launch_context::LaunchContext;

/// A part of the launcher that serves one concept, owns its state and has deadlines.
pub(super) trait LaunchService {
    /// Returns the time at which [`tick`](Self::tick) is due.
    fn next_deadline(&self) -> Option<Duration>;

    /// Handles what is due at `now`.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration);
}
