//! Waiting for a condition.

use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};

/// Maximum duration of anything unless a test sets another: never reached by what works, also on a
/// loaded machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` gives something; looks often, so that no test waits longer than it
/// must.
///
/// # Panics
/// When it does not within [`DEADLINE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "timed out: {what}");
        look_again_soon();
    }
}

/// Returns the value of `look` once it has not changed for a while.
pub fn settled<T: PartialEq>(look: impl Fn() -> T) -> T {
    let (mut last, mut since) = (look(), Instant::now());
    eventually("nothing changes any more", || {
        let now = look();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_millis(500)).then_some(())
    });
    last
}

/// A moment between two looks at something that cannot be waited for.
pub(crate) fn look_again_soon() {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 5_000_000,
    };
    let _ = poll(&mut [], Some(&moment));
}
