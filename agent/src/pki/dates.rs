//! Dates of certificates, as they are shown and noted.

use std::time::{Duration, SystemTime};

use wireup_core::job::wall_clock::WallClock;

/// Writes a time in UTC, as RFC 3339 has it; that of 1970 for earlier times.
pub(super) fn date_time(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    WallClock::utc(since.unwrap_or_default())
        .at(Duration::ZERO)
        .to_string()
}

/// Writes a date in UTC, for example `2026-11-21`.
pub fn date(time: SystemTime) -> String {
    let text = date_time(time);
    text.split('T').next().unwrap_or_default().to_owned()
}
