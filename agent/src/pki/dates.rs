//! Dates of certificates, as they are shown and noted.

use std::time::{Duration, SystemTime};

use wireup_core::job::wall_clock::WallClock;

/// Returns the time since 1970; zero for earlier times.
pub(super) fn since_epoch(time: SystemTime) -> Duration {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Writes a date in UTC, for example `2026-11-21`.
pub fn date(time: SystemTime) -> String {
    let text = WallClock::utc(since_epoch(time))
        .at(Duration::ZERO)
        .to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}
