//! A wait in steps.

use std::time::Duration;

use super::clock::Moment;

/// A wait in steps. Time in which its owner itself stood still (stopped at a terminal, a frozen
/// container) counts as one step at most, because those waited for may have stood still with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteppedTimeout {
    limit: Duration,
    step: Duration,
    next: Moment,
    remaining_steps: u32,
}

impl SteppedTimeout {
    /// Steps of every wait.
    pub const STEPS: u32 = 6;

    /// Creates a timeout that starts now.
    pub fn new(limit: Duration, now: Moment) -> Self {
        Self::begun(limit, Duration::ZERO, now)
    }

    /// Creates a timeout of which a part has passed.
    pub fn begun(limit: Duration, passed: Duration, now: Moment) -> Self {
        let step = limit / Self::STEPS;
        let mut wait = Self {
            limit,
            step,
            next: now,
            remaining_steps: Self::STEPS,
        };
        let mut rest = passed;
        while wait.remaining_steps > 0 && rest >= step {
            rest -= step;
            wait.remaining_steps -= 1;
        }
        wait.next = now + (step - rest.min(step));
        wait
    }

    /// Whether the timeout has passed at this time.
    pub fn exhausted(&mut self, now: Moment) -> bool {
        if self.remaining_steps > 0 && now >= self.next {
            self.remaining_steps -= 1;
            let rest = match self.remaining_steps {
                1 => self.limit - self.step * Self::STEPS,
                _ => Duration::ZERO,
            };
            self.next = now + self.step + rest;
        }
        self.remaining_steps == 0
    }

    /// Returns the whole timeout.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the time of the next check of [`exhausted`](Self::exhausted).
    pub fn next(&self) -> Moment {
        self.next
    }

    /// Whether it ends before another one.
    pub fn ends_before(&self, other: &Self) -> bool {
        let end = |wait: &Self| wait.next + wait.step * wait.remaining_steps.saturating_sub(1);
        end(self) < end(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn wait_ends_at_limit_when_checked_regularly() {
        let mut wait = SteppedTimeout::new(MINUTE, at(100));
        for second in (110..160).step_by(10) {
            assert_eq!(wait.next(), at(second));
            assert!(!wait.exhausted(at(second)));
        }
        assert!(wait.exhausted(at(160)));
    }

    #[test]
    fn unchecked_time_counts_as_one_step() {
        let mut wait = SteppedTimeout::new(MINUTE, at(0));
        assert!(!wait.exhausted(at(100_000)));
        assert_eq!(wait.next(), at(100_010));
    }

    #[test]
    fn wait_may_have_started_elsewhere() {
        let mut wait = SteppedTimeout::begun(MINUTE, Duration::from_secs(57), at(7));
        assert_eq!(wait.next(), at(10));
        assert!(!SteppedTimeout::new(MINUTE, at(7)).ends_before(&wait));
        assert!(wait.ends_before(&SteppedTimeout::new(MINUTE, at(7))));
        assert!(wait.exhausted(at(10)));
        assert!(SteppedTimeout::begun(MINUTE, MINUTE, at(7)).exhausted(at(7)));
    }
}
