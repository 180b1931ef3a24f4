//! The terms of a launch, which are the same on all its nodes.

use std::time::Duration;

use crate::fence::{Deadline, Timeout};
use crate::job::ids::NodeId;
use crate::job::spec::{FENCE_TIMEOUT, FenceLimit, JobSpec, OnFailure};
use crate::link::spawn_tree::Shape;

/// The first node. It decides for the launch, and stores published names and values.
pub const HEAD: NodeId = NodeId(0);

/// How the nodes of a job meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// The trees that they form.
    pub shape: Shape,
    /// How long a fence, or another process's data, may be waited for.
    pub limit: FenceLimit,
    /// The job continues when a rank dies.
    pub tolerant: bool,
    /// Collectives of the launch complete without the dead, also when a node is lost.
    pub survives: bool,
    /// Another process may come to speak for a rank, with PMI.
    pub restartable: bool,
    /// The user is shown where the ranks are when a fence fails the job: until then they wait in it.
    pub shown: bool,
    /// The launcher gets a report of the time that each fence has taken.
    pub observed: bool,
}

impl Terms {
    /// The user's setting.
    pub fn of(spec: &JobSpec) -> Self {
        let (spread, ending) = (&spec.layout.spread, &spec.ending);
        Self {
            shape: Shape {
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            limit: ending.fence,
            tolerant: !ending.kill_on_bad_exit,
            survives: ending.on_failure == OnFailure::Continue,
            restartable: ending.restartable,
            shown: spec.debug.stacks,
            observed: spec.status.observes_fences(),
        }
    }

    /// For what no program has set a time.
    pub(super) fn timeout(self) -> Option<Timeout> {
        let (after, kind) = match self.limit {
            FenceLimit::Sensible => (FENCE_TIMEOUT, Deadline::Default),
            FenceLimit::After(time) => (time, Deadline::User),
            FenceLimit::Unlimited => return None,
        };
        Some(Timeout { after, kind })
    }

    /// For what a program may have set a time.
    pub(super) fn timeout_or(self, given: Option<Duration>) -> Option<Timeout> {
        let given = given.map(|after| Timeout {
            after,
            kind: Deadline::Program,
        });
        match (given, self.timeout()) {
            (Some(given), Some(own)) if own.kind == Deadline::User && own.after < given.after => {
                Some(own)
            }
            (given, own) => given.or(own),
        }
    }
}
