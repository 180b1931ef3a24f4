//! Signals to the ranks of a launch.

use nix::sys::signal::Signal;
use tonic::Status;

use super::launch::{Head, Launch, Order};

/// Sends a signal to ranks, or to all if none is named.
pub(super) fn send(head: &Head, launch: &Launch, signal: i32, ranks: &[u32]) -> Result<(), Status> {
    let signal = Signal::try_from(signal)
        .map_err(|_| Status::invalid_argument(format!("{signal} is not the number of a signal")))?;
    if !ranks.is_empty() {
        return Err(Status::unimplemented("only"));
    }
    match head.order(Order::Signal(signal)) {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "launch {:?} has ended: there is no rank to signal",
            launch.id
        ))),
    }
}
