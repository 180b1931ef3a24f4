//! The terms of a launch, which are the same on all its nodes.

use std::time::Duration;

use crate::fence::{FenceTimeout, TimeoutSource};
use crate::job::ids::NodeId;
use crate::job::spec::{FENCE_TIMEOUT, FailurePolicy, FenceTimeoutSpec, JobSpec};
use crate::link::routing_tree::TreeShape;

/// The first node. It decides for the launch, and stores published names and values.
pub const HEAD: NodeId = NodeId(0);

/// Tree shape, timeouts and failure policy of a job's collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CollectivePolicy {
    /// The trees that they form.
    pub shape: TreeShape,
    /// Timeout of a fence and of a request for another process's data.
    pub limit: FenceTimeoutSpec,
    /// The job continues when a rank dies.
    pub tolerant: bool,
    /// Whether collectives of the launch complete without dead processes and lost nodes.
    pub survives: bool,
    /// Whether another process may speak for a rank, with PMI.
    pub restartable: bool,
    /// The user is shown where the ranks are when a fence fails the job: until then they wait in it.
    pub shown: bool,
    /// The launcher gets a report of the time that each fence has taken.
    pub observed: bool,
}

impl CollectivePolicy {
    pub fn from_spec(spec: &JobSpec) -> Self {
        let (spread, ending) = (&spec.layout.spread, &spec.ending);
        Self {
            shape: TreeShape {
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            limit: ending.fence,
            tolerant: !ending.kill_on_bad_exit,
            survives: ending.on_failure == FailurePolicy::Continue,
            restartable: ending.restartable,
            shown: spec.debug.stacks,
            observed: spec.status.observes_fences(),
        }
    }

    /// Returns the timeout of a collective for which no program has set one.
    pub(in crate::node) fn timeout(self) -> Option<FenceTimeout> {
        let (after, kind) = match self.limit {
            FenceTimeoutSpec::Sensible => (FENCE_TIMEOUT, TimeoutSource::Default),
            FenceTimeoutSpec::After(time) => (time, TimeoutSource::User),
            FenceTimeoutSpec::Unlimited => return None,
        };
        Some(FenceTimeout { after, kind })
    }

    /// Returns the timeout of a collective; `program_timeout` is that of the program, if any.
    pub(in crate::node) fn timeout_or(
        self,
        program_timeout: Option<Duration>,
    ) -> Option<FenceTimeout> {
        let program = program_timeout.map(|after| FenceTimeout {
            after,
            kind: TimeoutSource::Program,
        });
        match (program, self.timeout()) {
            (Some(program), Some(own))
                if own.kind == TimeoutSource::User && own.after < program.after =>
            {
                Some(own)
            }
            (program, own) => program.or(own),
        }
    }
}
