//! The state of a node's sidecar, and its deadlines.

use std::time::Duration;

use crate::job::clock::Moment;
use crate::job::stepped_timeout::SteppedTimeout;
use crate::link::liveness::SILENCE;
use crate::pmix::sidecar_link::RequestId;

/// Phase in the life of a sidecar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node) enum SidecarState {
    /// The job needs none.
    Absent,
    /// Started, the job not yet registered.
    Starting,
    Ready,
    /// Received the request to stop.
    Stopping,
    /// Given up and to be killed.
    Broken,
    Ended,
}

/// The sidecar as its node sees it.
#[derive(Debug)]
pub(in crate::node) struct SidecarMonitor {
    pub(in crate::node) state: SidecarState,
    pub(in crate::node) loaded: bool,
    /// The sidecar reported that it has stopped its server.
    pub(in crate::node) stopped: bool,
    /// One of its sockets has ended.
    pub(in crate::node) closed: bool,
    /// Timeout of the operation in progress: start, probe or stop.
    pub(in crate::node) patience: Option<SteppedTimeout>,
    /// Time of the next probe.
    pub(in crate::node) probe_at: Option<Moment>,
    /// The probe whose answer `patience` waits for.
    pub(in crate::node) probe: Option<RequestId>,
    /// Longest accepted silence of the sidecar.
    pub(in crate::node) silence: Duration,
    /// Since when it has not answered.
    pub(in crate::node) silent_since: Moment,
    /// A probe made because a rank ended badly, and how long that end waits for it.
    pub(in crate::node) doubt: Option<(RequestId, Moment)>,
    /// Number of consecutive inspections that found the starting sidecar stopped.
    pub(in crate::node) stopped_count: u32,
    /// The sidecar was started for tools: no rank that was there before needs it.
    pub(in crate::node) for_tools: bool,
    /// Whether another sidecar may replace this one: it was ready once, or was killed while it started.
    pub(in crate::node) replaceable: bool,
}

impl SidecarMonitor {
    pub(in crate::node) fn new(needed: bool) -> Self {
        Self {
            state: if needed {
                SidecarState::Starting
            } else {
                SidecarState::Absent
            },
            loaded: false,
            stopped: false,
            closed: false,
            patience: None,
            probe_at: None,
            probe: None,
            silence: SILENCE,
            silent_since: Moment::default(),
            doubt: None,
            stopped_count: 0,
            for_tools: false,
            replaceable: false,
        }
    }

    pub(in crate::node) fn next_deadline(&self) -> Option<Moment> {
        let patience = self.patience.map(|patience| patience.next());
        let doubt = self.doubt.map(|(_, until)| until);
        [patience, self.probe_at, doubt].into_iter().flatten().min()
    }

    pub(in crate::node) fn is_ready(&self) -> bool {
        self.state == SidecarState::Ready
    }

    /// Whether the job has a sidecar.
    pub(in crate::node) fn is_offered(&self) -> bool {
        self.state != SidecarState::Absent
    }

    /// Whether the sidecar runs, and its messages are handled.
    pub(in crate::node) fn is_running(&self) -> bool {
        self.is_needed() || self.state == SidecarState::Stopping
    }

    /// Whether ranks use the sidecar, or will use it.
    pub(in crate::node) fn is_needed(&self) -> bool {
        matches!(self.state, SidecarState::Starting | SidecarState::Ready)
    }

    /// Ends the monitoring: no further message of the sidecar is expected.
    pub(in crate::node) fn stop_monitoring(&mut self, state: SidecarState) {
        *self = Self {
            state,
            silence: self.silence,
            for_tools: self.for_tools,
            replaceable: self.replaceable,
            ..Self::new(true)
        };
    }
}
