//! Signals to the ranks of a launch.

use rustix::process::Signal;
use tonic::Status;

use crate::scheduled::scheduled_launch::{LauncherCommand, LauncherState, ScheduledLaunch};
use wireup_core::job::ids::Rank;
use wireup_core::record::SignalCommand;

/// Most ranks named in one call; more are meant by naming none.
const RANKS_MAX: usize = 65_536;

/// Sends a signal to ranks, or to the job if none is named.
pub(super) fn send(
    head: &LauncherState,
    launch: &ScheduledLaunch,
    signal: i32,
    ranks: Vec<u32>,
) -> Result<(), Status> {
    let invalid = |text: String| Err(Status::invalid_argument(text));
    if Signal::from_named_raw(signal).is_none() {
        return invalid(format!("invalid signal {signal}: use 1 to 31"));
    }
    if ranks.len() > RANKS_MAX {
        return invalid(format!(
            "too many ranks ({}): use at most {RANKS_MAX}, or none for all",
            ranks.len()
        ));
    }
    let size = launch.place.size;
    if let Some(rank) = ranks.iter().find(|rank| **rank >= size) {
        return invalid(format!(
            "invalid rank {rank}: the last rank of launch {:?} is {}",
            launch.id,
            size - 1
        ));
    }
    let ranks: Vec<_> = ranks.into_iter().map(Rank).collect();
    let ranks = (!ranks.is_empty()).then_some(ranks);
    match head.order(LauncherCommand::Signal(SignalCommand::new(signal, ranks))) {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "launch {:?} has ended: no rank to signal",
            launch.id
        ))),
    }
}
