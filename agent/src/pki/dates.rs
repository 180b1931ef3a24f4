//! Dates of certificates, as they are shown and noted.

use std::time::{Duration, SystemTime};

use wireup_core::job::wall_clock::WallClock;

/// The time since 1970; none before.
pub(super) fn since_epoch(time: SystemTime) -> Duration {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// A date as `2026-11-21`, in UTC.
pub fn date(time: SystemTime) -> String {
    let text = WallClock::utc(since_epoch(time))
        .at(Duration::ZERO)
        .to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}
