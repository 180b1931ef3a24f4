//! Dates and times as people and schedulers read them; no I/O.
//!
//! A run reads the system's clock once, at its start, and adds elapsed time to it: its time stamps
//! are in order even if the clock is set meanwhile.

use std::fmt;
use std::time::Duration;

use time::{OffsetDateTime, PrimitiveDateTime};

/// The calendar's view of a run's own time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WallClock {
    /// Time from 1970-01-01T00:00:00Z to the start of the run.
    origin: Duration,
    /// Seconds by which local time is ahead of UTC; `None` to write UTC.
    ahead: Option<i32>,
}

impl WallClock {
    /// Creates a clock that writes UTC. `origin` is the time from 1970-01-01T00:00:00Z to the start of the run.
    pub fn utc(origin: Duration) -> Self {
        Self {
            origin,
            ahead: None,
        }
    }

    /// Creates a clock that writes the time of a zone that is `ahead` seconds ahead of UTC.
    pub fn local(origin: Duration, ahead: i32) -> Self {
        Self {
            origin,
            ahead: Some(ahead),
        }
    }

    /// Returns the moment `now` after the start of the run.
    pub fn at(self, now: Duration) -> Rfc3339 {
        Rfc3339 {
            since_epoch: self.origin.saturating_add(now),
            ahead: self.ahead,
        }
    }
}

/// A moment, displayed as RFC 3339 has it, with milliseconds: `2024-02-29T23:59:59.999Z`,
/// `2024-03-01T00:59:59.999+01:00`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc3339 {
    since_epoch: Duration,
    ahead: Option<i32>,
}

impl Rfc3339 {
    /// Returns date and time in the written zone; the epoch for a time without a four-digit year.
    fn local(self) -> PrimitiveDateTime {
        let seconds = i64::try_from(self.since_epoch.as_secs()).unwrap_or(i64::MAX);
        let local = seconds.saturating_add(i64::from(self.ahead.unwrap_or(0)));
        let local = OffsetDateTime::from_unix_timestamp(local);
        let local = local.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        PrimitiveDateTime::new(local.date(), local.time())
    }

    /// Returns the time in the form of a system's log, without year and zone: `Mar  1 00:59:59`. Source: RFC 3164,
    /// 4.1.2.
    pub fn log_date(self) -> String {
        let local = self.local();
        let (hour, minute, second) = local.as_hms();
        let (month, day) = (local.month().to_string(), local.day());
        format!("{month:.3} {day:>2} {hour:02}:{minute:02}:{second:02}")
    }

    /// Returns date and time in the form of ctime(3), without zone: `Thu Feb 29 23:59:59 2024`.
    pub fn ctime(self) -> String {
        let local = self.local();
        let (hour, minute, second) = local.as_hms();
        let (weekday, month) = (local.weekday().to_string(), local.month().to_string());
        let (day, year) = (local.day(), local.year());
        format!("{weekday:.3} {month:.3} {day:>2} {hour:02}:{minute:02}:{second:02} {year}")
    }
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.local();
        let (hour, minute, second) = local.as_hms();
        let (year, month, day) = (local.year(), u8::from(local.month()), local.day());
        let millis = self.since_epoch.subsec_millis();
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}"
        )?;
        match self.ahead {
            None => f.write_str("Z"),
            Some(ahead) => {
                let sign = if ahead < 0 { '-' } else { '+' };
                let minutes = ahead.unsigned_abs() / 60;
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(seconds: u64) -> String {
        let clock = WallClock::utc(Duration::from_secs(seconds));
        clock.at(Duration::from_millis(7)).to_string()
    }

    #[test]
    fn known_times_are_written_as_in_rfc_3339() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59.007Z");
        assert_eq!(utc(1_709_251_200), "2024-03-01T00:00:00.007Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00.007Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59.007Z");
    }

    #[test]
    fn ctime_has_weekday_and_year() {
        let at = |ahead| WallClock::local(Duration::from_secs(1_709_251_199), ahead);
        assert_eq!(at(0).at(Duration::ZERO).ctime(), "Thu Feb 29 23:59:59 2024");
        assert_eq!(
            at(3600).at(Duration::ZERO).ctime(),
            "Fri Mar  1 00:59:59 2024"
        );
    }

    #[test]
    fn local_time_has_offset() {
        let at = |ahead| {
            let clock = WallClock::local(Duration::from_secs(1_709_251_199), ahead);
            clock.at(Duration::ZERO).to_string()
        };
        assert_eq!(at(3600), "2024-03-01T00:59:59.000+01:00");
        assert_eq!(at(-16200), "2024-02-29T19:29:59.000-04:30");
        assert_eq!(at(0), "2024-02-29T23:59:59.000+00:00");
    }
}
