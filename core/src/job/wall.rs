//! Dates and times as people and schedulers read them; no I/O.
//!
//! A run reads the system's clock once, at its start, and counts on from there: what it writes down
//! is in order even if somebody sets the clock meanwhile.

use std::fmt;
use std::time::Duration;

const DAY: i64 = 24 * 60 * 60;

/// The calendar's view of a run's own time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WallClock {
    /// Time from 1970-01-01T00:00:00Z to the start of the run.
    origin: Duration,
    /// Seconds by which local time is ahead of UTC; `None` to write UTC.
    ahead: Option<i32>,
}

impl WallClock {
    /// A clock that writes UTC. `origin` is the time from 1970-01-01T00:00:00Z to the start of the
    /// run.
    pub fn utc(origin: Duration) -> Self {
        Self {
            origin,
            ahead: None,
        }
    }

    /// A clock that writes the time of a zone that is `ahead` seconds ahead of UTC.
    pub fn local(origin: Duration, ahead: i32) -> Self {
        Self {
            origin,
            ahead: Some(ahead),
        }
    }

    /// The moment `now` after the start of the run.
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
    /// Days and seconds of the day since the epoch, in the zone that is written.
    fn local(self) -> (i64, i64) {
        let ahead = self.ahead.unwrap_or(0);
        // More would be no date that anybody can write.
        let seconds = i64::try_from(self.since_epoch.as_secs()).unwrap_or(i64::MAX);
        let local = seconds.min(i64::MAX / 2) + i64::from(ahead);
        (local.div_euclid(DAY), local.rem_euclid(DAY))
    }

    /// The same as a system's log has it, without year and zone: `Mar  1 00:59:59`. Source: RFC 3164,
    /// 4.1.2.
    pub fn log_date(self) -> String {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let (days, of_day) = self.local();
        let (_, month, day) = civil(days);
        let month = usize::try_from(month - 1).map_or("", |month| MONTHS[month % 12]);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        format!("{month} {day:>2} {hour:02}:{minute:02}:{second:02}")
    }
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = self.local();
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
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

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year, in cycles of 400
/// years, which all have the same number of days.
fn civil(days: i64) -> (i64, i64, i64) {
    const CYCLE: i64 = 400 * 365 + 97;
    /// From 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    let days = days + EPOCH;
    let (cycle, of_cycle) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    // Leap days that lie before this day in its cycle: every 4 years, not every 100, every 400.
    let leaps = of_cycle / 1460 - of_cycle / 36_524 + of_cycle / 146_096;
    let year = (of_cycle - leaps) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    // Months from March have 31, 30, 31, 30, 31 days, twice over, and the rest.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (cycle * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utc(seconds: u64) -> String {
        let clock = WallClock::utc(Duration::from_secs(seconds));
        clock.at(Duration::from_millis(7)).to_string()
    }

    #[test]
    fn known_moments_are_written_as_rfc_3339_has_them() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59.007Z");
        assert_eq!(utc(1_709_251_200), "2024-03-01T00:00:00.007Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00.007Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59.007Z");
    }

    #[test]
    fn days_follow_each_other_without_gap() {
        let mut before = civil(-1);
        for days in 0..200_000 {
            let (year, month, day) = civil(days);
            let next_day = (before.0, before.1, before.2 + 1);
            let next_month = (before.0, before.1 + 1, 1);
            let next_year = (before.0 + 1, 1, 1);
            let follows = [next_day, next_month, next_year].contains(&(year, month, day));
            assert!(follows && day <= 31 && month <= 12, "{days}");
            before = (year, month, day);
        }
    }

    #[test]
    fn local_time_carries_its_offset() {
        let at = |ahead| {
            let clock = WallClock::local(Duration::from_secs(1_709_251_199), ahead);
            clock.at(Duration::ZERO).to_string()
        };
        assert_eq!(at(3600), "2024-03-01T00:59:59.000+01:00");
        assert_eq!(at(-16200), "2024-02-29T19:29:59.000-04:30");
        assert_eq!(at(0), "2024-02-29T23:59:59.000+00:00");
    }
}
