//! The end of a launch whose rank 0 is a program that was started without a launcher: the program ends with it, as any rank
//! does.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use wireup_sys::pidfd::ended_within;
use wireup_sys::signals::Signals;

/// How long the program may take to end by itself. A launch gives its ranks 2 s (`--grace`), this process included.
const MOMENT: Duration = Duration::from_secs(1);

/// Whether the launch has asked its ranks to end. A Ctrl-C reaches the program without this process.
pub(super) fn is_ordered(signals: &mut Signals) -> bool {
    let mut ordered = false;
    while let Some(signal) = signals.pending() {
        ordered |= signal == Signal::TERM;
    }
    ordered
}

/// Ends a program whose connection has been closed. One that aborts is ending by itself, with an exit code of its own, and
/// has a moment for that.
pub(super) fn end(program: &OwnedFd) {
    if !ended_within(program, MOMENT) {
        // One that has ended meanwhile needs no signal.
        let _ = pidfd_send_signal(program, Signal::TERM);
    }
}
