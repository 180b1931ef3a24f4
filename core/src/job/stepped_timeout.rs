//! A wait in steps.

use std::time::Duration;

use super::clock::Moment;

/// A wait in steps. Time in which its owner itself stood still (stopped at a terminal, a frozen container, a virtual
/// machine that gets no processor) does not count, because those waited for may have stood still with it: a step that is
/// checked late by its own length and by [`LATE`](Self::LATE) is repeated, up to [`LATE_MAX`](Self::LATE_MAX) times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteppedTimeout {
    limit: Duration,
    step: Duration,
    next: Moment,
    remaining_steps: u32,
    /// Late steps that may still be repeated.
    remaining_repeats: u32,
}

impl SteppedTimeout {
    /// Steps of every wait.
    pub const STEPS: u32 = 6;

    /// Least delay of a check that shows that its owner stood still.
    pub const LATE: Duration = Duration::from_millis(500);

    /// Most steps that are repeated. The owner of a wait on a machine that is always slow gives up in the end.
    pub const LATE_MAX: u32 = 24;

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
            remaining_repeats: Self::LATE_MAX,
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
            let is_late = now.duration_since(self.next) >= self.step.max(Self::LATE);
            if is_late && self.remaining_repeats > 0 {
                self.remaining_repeats -= 1;
                self.next = now + self.step;
                return false;
            }
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
    fn time_of_late_checks_does_not_count() {
        let mut wait = SteppedTimeout::new(MINUTE, at(0));
        assert!(!wait.exhausted(at(100_000)));
        assert_eq!(wait.next(), at(100_010));
        // A machine that stands still again and again exhausts no wait...
        let mut now = 100_000;
        for _ in 1..SteppedTimeout::LATE_MAX {
            now += 20;
            assert!(!wait.exhausted(at(now)));
        }
        // ... but a wait does not go on for ever.
        for _ in 1..SteppedTimeout::STEPS {
            now += 20;
            assert!(!wait.exhausted(at(now)));
        }
        assert!(wait.exhausted(at(now + 20)));
    }

    #[test]
    fn short_delays_count() {
        let limit = Duration::from_millis(60);
        let mut wait = SteppedTimeout::new(limit, at(0));
        let mut now = Moment::default();
        for _ in 1..SteppedTimeout::STEPS {
            now = now + Duration::from_millis(400);
            assert!(!wait.exhausted(now));
        }
        assert!(wait.exhausted(now + Duration::from_millis(400)));
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
