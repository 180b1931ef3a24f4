//! The time zone of this machine, or the one the user chose by `TZ`.

use std::time::{SystemTime, UNIX_EPOCH};

use wireup_core::job::wall_clock::WallClock;

/// Creates a clock in local time with its zero at `start`. The offset is that of the start; a run that lasts through a
/// change of daylight saving time keeps it, and it is written with every time.
pub fn local_clock(start: SystemTime) -> WallClock {
    let origin = start.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = libc::time_t::try_from(origin.as_secs()).unwrap_or(0);
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to locals of the right types. The call reads the environment,
    // which nothing in this process changes; all zeroes are a valid `tm`, also if it fails.
    let local = unsafe {
        libc::localtime_r(&seconds, local.as_mut_ptr());
        local.assume_init()
    };
    WallClock::local(origin, i32::try_from(local.tm_gmtoff).unwrap_or(0))
}

/// Makes a clock in UTC with its zero at `start`.
pub fn utc_clock(start: SystemTime) -> WallClock {
    WallClock::utc(start.duration_since(UNIX_EPOCH).unwrap_or_default())
}
