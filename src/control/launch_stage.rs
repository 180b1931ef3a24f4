//! The stages of a launch, in order.

use wireup_core::record::JobState;

/// Stage of a launch. A launch may skip stages, and never returns to an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LaunchStage {
    /// Hosts and PMIx servers are being prepared for the first rank.
    Preparing,
    /// Every PMIx server is ready; the ranks are being started.
    Starting,
    /// The start of every rank has been reported.
    Running,
    /// The ranks were signalled to exit.
    Ending,
    /// The ranks were killed.
    Killing,
    /// No process of the launch is left.
    Ended,
}

impl LaunchStage {
    /// Enters a later stage. Returns whether the stage changed.
    pub(super) fn advance(&mut self, stage: Self) -> bool {
        let is_later = *self < stage;
        *self = stage.max(*self);
        is_later
    }

    /// Returns the state that the status stream reports for this stage, if it reports one.
    pub(super) fn job_state(self) -> Option<JobState> {
        match self {
            Self::Preparing | Self::Starting | Self::Ended => None,
            Self::Running => Some(JobState::Running),
            Self::Ending => Some(JobState::Ending),
            Self::Killing => Some(JobState::Killing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_stage_never_goes_back() {
        let mut stage = LaunchStage::Preparing;
        assert!(stage.advance(LaunchStage::Ending));
        for earlier in [
            LaunchStage::Starting,
            LaunchStage::Running,
            LaunchStage::Ending,
        ] {
            assert!(!stage.advance(earlier), "{earlier:?}");
            assert_eq!(stage, LaunchStage::Ending);
        }
        assert!(stage.advance(LaunchStage::Ended));
        assert!(!stage.advance(LaunchStage::Killing));
    }
}
