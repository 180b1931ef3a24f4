//! End of a launch whose rank 0 is a program that was started without a launcher: the program is ended with the launch, like any
//! rank.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use wireup_sys::pidfd::ended_within;
use wireup_sys::signals::Signals;

/// Time in which the program may exit by itself. A launch gives its ranks, this process included, 2 s (`--grace`).
const MOMENT: Duration = Duration::from_secs(1);

/// Whether the launch has signalled its ranks to exit. Ctrl-C reaches the program without this process.
pub(super) fn is_ordered(signals: &mut Signals) -> bool {
    let mut ordered = false;
    while let Some(signal) = signals.pending() {
        ordered |= signal == Signal::TERM;
    }
    ordered
}

/// Ends a program whose connection has been closed. A program that aborts exits by itself, with an exit code of its own, and
/// gets a moment for that.
pub(super) fn end(program: &OwnedFd) {
    if !ended_within(program, MOMENT) {
        // A program that has exited meanwhile needs no signal.
        let _ = pidfd_send_signal(program, Signal::TERM);
    }
}
