//! What the ranks of a node have done with their process-management interfaces.

use super::NodeCore;
use crate::job::ids::{GlobalRank, JobNumber, LocalRank, NodeRank};
use crate::job::outcome::PmiState;
use crate::job::proc;
use crate::pmi::command::Dialect;

/// What a rank did with PMIx. Kept as it was when the rank ended, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum PmixState {
    /// Never connected.
    #[default]
    Absent,
    /// Between init and finalize.
    Connected,
    /// Left in order.
    Finalized,
    /// Its process ended between init and finalize.
    Died,
    /// Its process ended and had never connected.
    Stayed,
}

impl NodeCore {
    /// What a rank has done with its process-management interfaces.
    pub fn pmi_state(&self, rank: NodeRank) -> PmiState {
        let pmix = self.cx.pmix[rank.index()];
        let pmi = self
            .cx
            .pmi_seen(rank)
            .map(|(local, server)| server.state(local));
        let last = match (pmi.filter(|state| state.contacted()), pmix) {
            (Some(state), _) => format!("{}: {state}", state.dialect()),
            (None, PmixState::Connected | PmixState::Died) => "PMIx: connected".to_owned(),
            (None, PmixState::Finalized) => "PMIx: finalized".to_owned(),
            (None, PmixState::Absent | PmixState::Stayed) => "never contacted PMI".to_owned(),
        };
        PmiState {
            contacted: !matches!(pmix, PmixState::Absent | PmixState::Stayed)
                || pmi.is_some_and(|state| state.contacted()),
            active: pmix == PmixState::Connected || pmi.is_some_and(|state| state.in_session()),
            last,
        }
    }

    /// The form in which a rank speaks PMI, once it has said something.
    pub fn pmi_dialect(&self, rank: NodeRank) -> Option<Dialect> {
        let (local, server) = self.cx.pmi_seen(rank)?;
        let state = server.state(local);
        state.contacted().then(|| state.dialect())
    }

    /// Number of other ranks of a rank's job on this node between init and finalize, if the rank is there and its
    /// library sends finalize only when its process exits.
    pub fn sessions_beside(&self, rank: NodeRank) -> Option<u32> {
        let (local, server) = self.cx.pmi_seen(rank)?;
        server.sessions_beside(local)
    }

    /// Whether a rank is between PMI's init and finalize.
    pub fn has_pmi_session(&self, rank: NodeRank) -> bool {
        let seen = self.cx.pmi_seen(rank);
        seen.is_some_and(|(local, server)| server.state(local).in_session())
    }

    /// Whether some rank of a job is between init and finalize on this node.
    pub fn any_active(&self, job: JobNumber) -> bool {
        let Some(member) = self.cx.jobs.get(job) else {
            return false;
        };
        let here = member.context.ranks.local_size(self.cx.node);
        (0..here).map(LocalRank).any(|local| {
            let pmi = member.pmi.as_ref();
            self.cx.pmix[(member.first.0 + local.0) as usize] == PmixState::Connected
                || pmi.is_some_and(|pmi| pmi.state(local).in_session())
        })
    }

    /// Whether a rank of this node waits for this rank of the launch, whose process has ended: for
    /// instance in a PMI barrier, or a PMIx fence between nodes.
    pub fn waits_for(&self, process: GlobalRank) -> bool {
        let Some((job, rank)) = self.cx.jobs.find(process) else {
            return false;
        };
        let pmi = self.cx.jobs.get(job).and_then(|job| job.pmi.as_ref());
        pmi.is_some_and(|pmi| pmi.waits_for(rank)) || self.is_fenced_with(&self.cx.name_of(process))
    }

    /// Whether a fence or connection of this node's processes needs this one.
    pub(super) fn is_fenced_with(&self, proc: &proc::Proc) -> bool {
        self.fences.engine.has_waiters() && self.fences.engine.waits_for(proc)
    }
}
