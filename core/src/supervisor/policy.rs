//! What the user's policy for failures (`--on-failure`) makes of one.

use crate::job::outcome::{Cause, RankEnd};
use crate::job::spec::OnFailure;

/// Whether the others go on after this: a rank or a host is lost, and with it what only that had.
///
/// What ranks ask for (an abort), what the user asks for, and what concerns the launch as a whole (a
/// broken protocol, a PMIx server that fails, a launcher that is cut off) ends it under every policy.
pub(super) fn is_survived(policy: OnFailure, cause: &Cause) -> bool {
    policy == OnFailure::Continue
        && match cause {
            Cause::RankFailed { .. } | Cause::NotFinalized { .. } | Cause::NodeFailed { .. } => {
                true
            }
            Cause::NeverJoined { .. }
            | Cause::LeftOthers { .. }
            | Cause::RanAlone { .. }
            | Cause::Aborted { .. }
            | Cause::EndedBy { .. }
            | Cause::Misbehaved { .. }
            | Cause::NotStarted { .. }
            | Cause::SidecarFailed { .. }
            | Cause::CutOff { .. }
            | Cause::FenceFailed { .. }
            | Cause::FenceTimeout(_)
            | Cause::Timeout(_)
            | Cause::Interrupted(_)
            | Cause::OutputLost { .. } => false,
        }
}

/// Whether the same launch may well succeed when it is run again, and the user wants that: something was
/// lost. An exit code or an abort is the program's own verdict, and an interrupt the user's.
pub(super) fn is_requeued(policy: OnFailure, cause: &Cause) -> bool {
    policy == OnFailure::Requeue
        && match cause {
            Cause::RankFailed {
                end: RankEnd::Signal(_),
                ..
            }
            | Cause::SidecarFailed { .. }
            | Cause::NodeFailed { .. }
            | Cause::CutOff { .. }
            | Cause::FenceFailed { .. }
            | Cause::FenceTimeout(_) => true,
            Cause::RankFailed { .. }
            | Cause::NotFinalized { .. }
            | Cause::NeverJoined { .. }
            | Cause::LeftOthers { .. }
            | Cause::RanAlone { .. }
            | Cause::Aborted { .. }
            | Cause::EndedBy { .. }
            | Cause::Misbehaved { .. }
            | Cause::NotStarted { .. }
            | Cause::Timeout(_)
            | Cause::Interrupted(_)
            | Cause::OutputLost { .. } => false,
        }
}
