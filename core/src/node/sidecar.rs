//! Events of the node's sidecar: its start, stop and loss, its timeouts, and the effect of its failure.
//!
//! ```text
//! Starting ──job registered──▶ Ready ──job over──▶ Stopping ──process gone──▶ Ended
//!    └─ it fails, breaks the protocol, keeps silent ─┴──▶ Broken ─────────────▲
//! ```
//! The controller, which knows all nodes, decides the effect of a lost sidecar on the job: other
//! nodes may still need the data of ranks that have finished here.

use std::time::Duration;

use crate::job::shortage;
use crate::job::stepped_timeout::SteppedTimeout;
use crate::link::liveness::BUSY_LIMIT;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::NodeEffect;
use crate::node::context::pmi_state::PmixState;
use crate::node::context::sidecar_monitor::{SidecarMonitor, SidecarState};
use crate::node::event::{NodeAction, NodeNotice, SidecarActivity, SidecarEnd};
use crate::pmix::sidecar_link::RequestId;
use crate::pmix::sidecar_protocol::{SidecarCommand, StartupFailure, StartupStage};

/// From the start of the process until the job is registered. Loading libraries from a cold
/// network file system takes seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Additional start time for each node of the job, since virtual nodes start on one machine.
const START_LIMIT_PER_NODE: Duration = Duration::from_millis(250);
/// Time from the request to stop to the exit of the process.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Time from the end of a socket to the exit of the process. A process that dies closes its sockets first, and its exit
/// status is more informative. An orderly exit may take two seconds.
const CLOSED_LIMIT: Duration = Duration::from_secs(3);

/// Time for which the end of a rank waits for the answer to a probe.
const DOUBT_LIMIT: Duration = Duration::from_secs(1);
/// Number of inspections that may find a starting sidecar stopped before it counts as broken.
const STOPPED_LOOKS: u32 = 1;

/// Remedy in the message about an invalid frame of the sidecar.
const UNINTELLIGIBLE: &str = "; use the wireup-pmix-host of this wireup";

impl NodeContext {
    /// Makes the sidecar's first requests, which need what only the driver knows (directories,
    /// users). They may wait in its socket while it still loads its libraries.
    pub(super) fn start_sidecar(&mut self, requests: &[SidecarCommand]) {
        let limit = START_LIMIT + START_LIMIT_PER_NODE * self.jobs.nodes();
        self.sidecar.patience = Some(SteppedTimeout::new(limit, self.now));
        for request in requests {
            self.control(request);
        }
    }

    /// Handles the sidecar's report that it cannot continue.
    pub(super) fn sidecar_gave_up(&mut self, failed: &StartupFailure) {
        // Failures of the other stages have their own remedies.
        let remedy = match (shortage::remedy(&failed.text.to_string()), failed.stage) {
            ("", StartupStage::Link) => UNINTELLIGIBLE,
            (remedy, _) => remedy,
        };
        let text = format!("{}{remedy}", failed.text);
        self.sidecar_broken(text);
    }

    /// Requests the sidecar to stop, after the end of all ranks.
    pub(super) fn stop_sidecar(&mut self) {
        if self.sidecar.is_needed() {
            self.sidecar.stop_monitoring(SidecarState::Stopping);
            self.sidecar.patience = Some(SteppedTimeout::new(STOP_LIMIT, self.now));
            self.control(&SidecarCommand::Finalize);
        }
    }

    /// Handles the end of one of the sidecar's sockets: the sidecar stops, has died, or has failed.
    pub(super) fn sidecar_closed(&mut self) {
        if self.sidecar.is_needed() && !self.sidecar.closed {
            self.sidecar.closed = true;
            self.sidecar.probe_at = None;
            self.sidecar.patience = Some(SteppedTimeout::new(CLOSED_LIMIT, self.now));
        }
    }

    /// Handles the exit of the sidecar's process.
    pub(super) fn sidecar_ended(&mut self, how: String, end: SidecarEnd) {
        if self.sidecar.is_running() && !(end == SidecarEnd::InOrder && self.sidecar.stopped) {
            self.sidecar.replaceable |= end == SidecarEnd::Killed;
            self.sidecar_lost(how, false);
        }
        self.sidecar.stop_monitoring(SidecarState::Ended);
    }

    pub(super) fn sidecar_tick(&mut self) {
        let now = self.now;
        let life = &mut self.sidecar;
        life.doubt = life.doubt.filter(|(_, until)| now < *until);
        if life.probe_at.is_some_and(|at| now >= at) {
            life.probe_at = None;
            life.silent_since = now;
            life.patience = Some(SteppedTimeout::new(life.silence / 2, now));
            self.sidecar.probe = self.control(&SidecarCommand::Probe);
        }
        let Some(patience) = &mut self.sidecar.patience else {
            return;
        };
        let due = now >= patience.next();
        let (over, limit) = (patience.exhausted(now), patience.limit());
        match (self.sidecar.state, self.sidecar.closed) {
            // One that is stopped does not start any more; one that waits may wait for a file system.
            (SidecarState::Starting, false) if due && !over => {
                self.order(NodeAction::ObserveSidecar)
            }
            (SidecarState::Ready, false) if over => self.order(NodeAction::ObserveSidecar),
            _ if over => self.sidecar_timed_out(limit),
            _ => {}
        }
    }

    /// Marks the sidecar as unusable, although its process may still run.
    pub(super) fn sidecar_broken(&mut self, error: String) {
        if self.sidecar.is_running() {
            self.sidecar_lost(error, true);
        }
    }

    /// Reports the loss. The services that use the sidecar follow.
    fn sidecar_lost(&mut self, error: String, is_running: bool) {
        self.sidecar.stop_monitoring(SidecarState::Broken);
        self.report(NodeNotice::SidecarLost { error });
        self.leave(NodeEffect::SidecarLost { is_running });
    }

    /// Whether no rank of this node needs the sidecar any more: each has finalized or ended, or was never
    /// to have one.
    pub(super) fn ranks_are_done(&self) -> bool {
        let needs = |rank: &PmixState| match rank {
            PmixState::Absent => self.sidecar.is_offered() && !self.sidecar.for_tools,
            PmixState::Connected => true,
            PmixState::Finalized | PmixState::Died | PmixState::Stayed => false,
        };
        !self.pmix_states.iter().any(needs)
    }

    /// Prepares a sidecar for tools, in place of none or of one that has ended.
    pub(super) fn renew_sidecar_for_tools(&mut self) {
        self.sidecar = SidecarMonitor {
            for_tools: true,
            silence: self.sidecar.silence,
            ..SidecarMonitor::new(true)
        };
        self.sidecar_link.renew();
    }

    /// Whether the sidecar was started for tools and has ended, without harm to any rank, so that later tools may get
    /// another one. A sidecar that failed at its start would fail again, unless it was killed.
    pub(super) fn sidecar_may_follow(&self) -> bool {
        let SidecarMonitor {
            state,
            for_tools,
            replaceable,
            ..
        } = self.sidecar;
        state == SidecarState::Ended && for_tools && replaceable && self.ranks_are_done()
    }

    /// Marks the sidecar as ready after the registration of the job. Returns whether it was not ready before.
    pub(super) fn sidecar_ready(&mut self) -> bool {
        let now = self.now;
        let life = &mut self.sidecar;
        if life.state != SidecarState::Starting {
            return false;
        }
        life.state = SidecarState::Ready;
        life.replaceable = true;
        if !life.closed {
            life.patience = None;
            life.probe_at = Some(now + life.silence / 2);
        }
        true
    }

    /// Breaks the sidecar if the bytes of one of its sockets cannot be parsed.
    pub(super) fn check_sidecar_link(&mut self) {
        if let Some(error) = self.sidecar_link.error() {
            let text = format!("invalid message from it: {error}{UNINTELLIGIBLE}");
            self.sidecar_broken(text);
        }
    }

    /// Probes the sidecar after a bad end of a rank. When a sidecar dies, its ranks lose their connection and may end
    /// before its own end is seen. They must not be blamed then.
    pub(in crate::node) fn probe_sidecar(&mut self) {
        if self.sidecar.state == SidecarState::Ready {
            let probe = self.control(&SidecarCommand::Probe);
            self.sidecar.doubt = probe.map(|id| (id, self.now + DOUBT_LIMIT));
        }
    }

    /// Whether the sidecar may be about to end: judge what happened to its ranks later. Never for
    /// longer than some seconds.
    pub(in crate::node) fn sidecar_in_doubt(&self) -> bool {
        self.sidecar.is_needed() && (self.sidecar.closed || self.sidecar.doubt.is_some())
    }

    pub(in crate::node) fn probe_answered(&mut self, id: RequestId) {
        let now = self.now;
        let life = &mut self.sidecar;
        if life.doubt.is_some_and(|(doubt, _)| doubt == id) {
            life.doubt = None;
        }
        if life.probe == Some(id) && !life.closed && life.state == SidecarState::Ready {
            life.probe = None;
            life.patience = None;
            life.probe_at = Some(now + life.silence / 2);
        }
    }

    /// Handles the inspection of a silent sidecar.
    pub(in crate::node) fn sidecar_inspected(&mut self, doing: SidecarActivity) {
        let now = self.now;
        let life = &mut self.sidecar;
        match (life.state, doing) {
            (SidecarState::Starting, SidecarActivity::Stopped) => {
                life.stopped_count += 1;
                // One that was stopped for a moment continues.
                if life.stopped_count > STOPPED_LOOKS {
                    self.sidecar_broken("its process is stopped".to_owned());
                }
            }
            (SidecarState::Starting, _) => life.stopped_count = 0,
            (SidecarState::Ready, SidecarActivity::Works)
                if now.duration_since(life.silent_since) < BUSY_LIMIT =>
            {
                life.patience = Some(SteppedTimeout::new(life.silence / 2, now));
            }
            (SidecarState::Ready, _) => {
                let limit = now.duration_since(life.silent_since) + life.silence / 2;
                self.sidecar_timed_out(limit);
            }
            _ => {}
        }
    }

    fn sidecar_timed_out(&mut self, limit: Duration) {
        let text = self.impatient(limit.as_secs());
        self.sidecar_broken(text);
    }

    /// Describes the wait that timed out, with the reaction.
    fn impatient(&self, seconds: u64) -> String {
        if self.sidecar.closed {
            return "it closed its connection but did not end; try another libpmix (--libpmix)"
                .to_owned();
        }
        let pending = self.sidecar_link.outstanding_controls().next();
        let what = match (self.sidecar.state, pending) {
            (SidecarState::Stopping, _) => return format!("it did not stop within {seconds} s"),
            (SidecarState::Ready, _) => "answer",
            (_, Some((_, kind))) if self.sidecar.loaded => kind.name(),
            _ => "load its libraries",
        };
        format!(
            "it did not {what} within {seconds} s; check whether it is stopped or waits for a file system, or try \
             another libpmix (--libpmix)"
        )
    }
}

#[cfg(test)]
mod tests;
