//! How many tests run at once: one for each processor and, while processors are idle, up to twice as many.
//!
//! Many tests wait most of their time. With one test for each processor these leave processors idle; with more tests at
//! all times those that compute would disturb each other.

use std::fs;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Over how much time processors must have been idle before another test begins.
const WINDOW: Duration = Duration::from_secs(1);

/// What of one processor must have been idle in that time.
const IDLE: f64 = 0.5;

/// Ticks of the kernel's clock in a second, as /proc/stat counts (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Admits tests.
#[derive(Debug)]
pub struct Pace {
    processors: usize,
    /// For how many seconds the processors have been idle, all together.
    idle: fn() -> f64,
    running: Mutex<Running>,
    ended: Condvar,
}

#[derive(Debug)]
struct Running {
    tests: usize,
    /// When the last window ended, and how long processors had been idle until then.
    since: (Instant, f64),
}

/// A test that runs, until it is dropped.
#[derive(Debug)]
pub struct Admitted<'a>(&'a Pace);

impl Pace {
    /// For this machine.
    pub(crate) fn of_this_machine() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(processors, idle_seconds)
    }

    /// For that number of processors, and a function that says for how many seconds these have been idle, all together.
    pub fn new(processors: usize, idle: fn() -> f64) -> Self {
        let running = Running {
            tests: 0,
            since: (Instant::now(), idle()),
        };
        Self {
            processors,
            idle,
            running: Mutex::new(running),
            ended: Condvar::new(),
        }
    }

    /// Most tests that it admits at once.
    pub(crate) fn most(&self) -> usize {
        2 * self.processors
    }

    /// Waits until another test may run.
    pub fn admit(&self) -> Admitted<'_> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.tests >= self.processors && !running.leaves_idle(self.idle) {
            let waited = self.ended.wait_timeout(running, WINDOW / 4);
            running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        running.tests += 1;
        Admitted(self)
    }
}

impl Running {
    /// Whether a window has ended in which the running tests left a processor idle.
    fn leaves_idle(&mut self, idle: fn() -> f64) -> bool {
        let (began, idle_then) = self.since;
        let time = began.elapsed();
        if time < WINDOW {
            return false;
        }
        let idle_now = idle();
        self.since = (Instant::now(), idle_now);
        idle_now - idle_then >= IDLE * time.as_secs_f64()
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut running = self
            .0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        running.tests -= 1;
        self.0.ended.notify_one();
    }
}

/// For how long the processors have been idle, all together; 0 where the kernel does not say.
fn idle_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .and_then(|fields| fields.split_ascii_whitespace().nth(3))
        .and_then(|idle| idle.parse::<f64>().ok());
    ticks.unwrap_or_default() / TICKS
}
