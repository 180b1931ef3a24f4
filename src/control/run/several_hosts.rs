//! Preparation of a launch on several hosts.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{outside, show};
use crate::backend::remote::RemoteBackend;
use crate::backend::step_links::StepLinks;
use crate::control::event_sources::EventSources;
use crate::control::{self, Controller};
use crate::plan::HostPlan;
use crate::report::status_stream::{StatusOutput, StatusStream};
use wireup_core::failure::CommandError;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::signals::Signals;

/// Does everything that can fail before other hosts are contacted.
///
/// # Errors
/// [`CommandError`] with the reason.
pub(super) fn prepare(
    plan: HostPlan,
    surroundings: &InheritedState,
    started: Instant,
    started_at: SystemTime,
    status: Option<StatusOutput>,
) -> Result<Controller, CommandError> {
    let plan = Arc::new(plan);
    let show = show(&plan, started_at, status.as_ref());
    // Nothing has to be cleaned up yet: a signal ends the process, also during a wait.
    let events = EventSources::new()?;
    let (poll, wake) = (events.poll.clone(), Arc::clone(&events.wake));
    let hosts = RemoteBackend::connect(&plan, started, poll, wake)?;
    let signals = Signals::take(&surroundings.ignored, false);
    let (signals, streams) = outside(&events, signals, show)?;
    Ok(Controller::new(control::ControllerParts {
        status: status.map(|target| StatusStream::new(target, &events.wake)),
        plan,
        started,
        started_at,
        events,
        steps: StepLinks::Hosts(Box::new(hosts)),
        guard: None,
        signals,
        streams,
    }))
}
