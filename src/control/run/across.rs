//! Parts of a run that differ on several hosts.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{outside, show};
use crate::backend::Backend;
use crate::backend::message::NodeRefusal;
use crate::backend::remote::RemoteBackend;
use crate::control::{self, Controller};
use crate::failure::RunFailure;
use crate::plan::Plan;
use crate::report::failures::by_node;
use crate::report::status::{Status, Target};
use crate::sys::process_state::Surroundings;
use crate::sys::signals::Signals;
use wireup_core::job::outcome::Cause;

/// Everything that can be refused before other hosts are asked.
///
/// # Errors
/// [`RunFailure`] with the reason.
pub(super) fn prepare(
    plan: Plan,
    surroundings: &Surroundings,
    (started, since): (Instant, SystemTime),
    status: Option<Target>,
) -> Result<Controller, RunFailure> {
    let plan = Arc::new(plan);
    let show = show(&plan, since, status.as_ref());
    // Nothing needs an orderly end yet: a signal ends the process, whatever it waits for.
    let mut remote = RemoteBackend::connect(&plan, started)?;
    let signals = Signals::take(&surroundings.ignored, false);
    let wake = Arc::clone(remote.wake());
    let (signals, streams) = outside((remote.poll(), &wake), signals, show)?;
    Ok(Controller::new(control::ControllerParts {
        status: status.map(|target| Status::new(target, &wake)),
        plan,
        started,
        since,
        backend: Box::new(remote),
        signals,
        streams,
    }))
}

/// Whether every node takes part.
///
/// # Errors
/// [`RunFailure`] with the hosts that do not, and the reasons.
pub(super) fn judge(controller: &mut Controller) -> Result<(), RunFailure> {
    let refused = std::mem::take(&mut controller.refused);
    let mut failures = Vec::new();
    for (node, NodeRefusal { code, message }) in refused {
        let lost = Cause::NodeFailed {
            node,
            error: message.clone(),
        };
        let message = match controller.backend.explain(&lost) {
            Some(Cause::CutOff { error: message }) => {
                return Err(RunFailure::Reported { code, message });
            }
            Some(Cause::NodeFailed { error, .. }) => error,
            _ => message,
        };
        failures.push((node, RunFailure::Reported { code, message }));
    }
    let mut failures = by_node(failures, &controller.plan.node_names);
    let Some(last) = failures.pop() else {
        return Ok(());
    };
    // The caller that ends the run reports the last one.
    for failure in failures {
        controller.tell(&failure.to_string());
    }
    Err(last)
}
