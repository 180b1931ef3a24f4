//! Time as the cores see it: an argument, never a reading.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time, counted from an origin the driver chose (the start of the job or agent).
///
/// Moments of one driver compare with each other; they mean nothing to another process, so no
/// message carries one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// Returns the time since `earlier`; zero if `earlier` is in fact later.
    pub fn duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at the end of time: a huge timeout means "never", not a panic.
    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}
