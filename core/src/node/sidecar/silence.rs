//! A sidecar that does not answer: probes of it, and how long its silence is accepted.

use std::time::Duration;

use crate::job::stepped_timeout::SteppedTimeout;
use crate::link::liveness::BUSY_LIMIT;
use crate::node::context::NodeContext;
use crate::node::context::sidecar_monitor::SidecarState;
use crate::node::event::SidecarActivity;
use crate::pmix::sidecar_link::RequestId;
use crate::pmix::sidecar_protocol::SidecarCommand;

/// Time for which the end of a rank waits for the answer to a probe.
pub(super) const DOUBT_LIMIT: Duration = Duration::from_secs(1);
/// Number of inspections that may find a starting sidecar stopped before it counts as broken.
const STOPPED_LOOKS: u32 = 1;

impl NodeContext {
    /// Probes the sidecar after a bad end of a rank. When a sidecar dies, its ranks lose their connection and may end
    /// before its own end is seen. They must not be blamed then.
    pub(in crate::node) fn probe_sidecar(&mut self) {
        let now = self.now;
        if self.sidecar.state == SidecarState::Ready {
            let probe = self.control(&SidecarCommand::Probe);
            self.sidecar.doubt = probe.map(|id| (id, now + DOUBT_LIMIT));
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
                life.seen_stopped += 1;
                // One that was stopped for a moment continues.
                if life.seen_stopped > STOPPED_LOOKS {
                    self.sidecar_broken("its process is stopped".to_owned());
                }
            }
            (SidecarState::Starting, _) => life.seen_stopped = 0,
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

    pub(super) fn sidecar_timed_out(&mut self, limit: Duration) {
        let text = self.impatient(limit.as_secs());
        self.sidecar_broken(text);
    }

    /// Describes the wait that timed out, with the reaction.
    pub(super) fn impatient(&self, seconds: u64) -> String {
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
