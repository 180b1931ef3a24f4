//! Number of tests that run at once: one for each processor and, while processors are idle, up to twice as many.
//!
//! Many tests wait most of their time. With one test for each processor these leave processors idle; with more tests at
//! all times those that compute would disturb each other. All test executables of a build that run at the same time
//! share one pace: each test holds the lock of a slot, a file in a directory of the build.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time over which processors must have been idle before another test begins.
const WINDOW: Duration = Duration::from_secs(1);

/// Time between two looks for a free slot.
const POLL: Duration = Duration::from_millis(100);

/// Share of one processor that must have been idle in that time.
const IDLE: f64 = 0.5;

/// Ticks of the kernel's clock in a second, as /proc/stat counts (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Admits tests.
#[derive(Debug)]
pub struct Pace {
    /// Directory with one lock file for each slot and the start of the window.
    directory: PathBuf,
    processors: usize,
    /// Returns for how many seconds the processors have been idle, all together.
    idle: fn() -> f64,
}

/// Slot of a running test; dropping it frees the slot.
#[derive(Debug)]
pub struct Admitted {
    _slot: File,
}

impl Pace {
    /// Returns the pace of this machine, which test executables that use the same directory share.
    pub(crate) fn of_this_machine(directory: &Path) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(directory, processors, idle_seconds)
    }

    /// Returns the pace for a number of processors. The function returns for how many seconds these have been idle, all
    /// together.
    ///
    /// # Panics
    /// If the directory cannot be made.
    pub fn new(directory: &Path, processors: usize, idle: fn() -> f64) -> Self {
        fs::create_dir_all(directory).unwrap();
        Self {
            directory: directory.to_owned(),
            processors,
            idle,
        }
    }

    /// Most tests that it admits at once.
    pub(crate) fn most(&self) -> usize {
        2 * self.processors
    }

    /// Waits until another test may run.
    pub fn admit(&self) -> Admitted {
        loop {
            let free = self.free_slot(0..self.processors);
            let free = free.or_else(|| {
                let is_idle = self.leaves_idle();
                is_idle.then(|| self.free_slot(self.processors..self.most()))?
            });
            if let Some(slot) = free {
                return Admitted { _slot: slot };
            }
            // Other processes free their slots without a notice.
            thread::park_timeout(POLL);
        }
    }

    fn free_slot(&self, mut slots: std::ops::Range<usize>) -> Option<File> {
        slots.find_map(|slot| {
            let file = self.open(&format!("slot-{slot}"));
            file.try_lock().is_ok().then_some(file)
        })
    }

    /// Whether a window has ended in which the running tests left a processor idle. The next one begins then.
    fn leaves_idle(&self) -> bool {
        let mut file = self.open("window");
        file.lock().unwrap();
        let mut text = String::new();
        // A write that was cut off by a kill is no start.
        let _ = file.read_to_string(&mut text);
        let start = text.split_once(' ').and_then(|(began, idle)| {
            Some((began.parse::<f64>().ok()?, idle.parse::<f64>().ok()?))
        });
        let (now, idle_now) = (seconds(), (self.idle)());
        let time = start.map(|(began, _)| now - began);
        if time.is_some_and(|time| (0.0..WINDOW.as_secs_f64()).contains(&time)) {
            return false;
        }
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        write!(file, "{now} {idle_now}").unwrap();
        // A window that nothing looked at for long says little of now.
        start.is_some_and(|(began, idle_then)| {
            let time = now - began;
            (0.0..10.0 * WINDOW.as_secs_f64()).contains(&time)
                && idle_now - idle_then >= IDLE * time
        })
    }

    fn open(&self, name: &str) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.directory.join(name)).unwrap()
    }
}

/// Seconds since the machine was started.
fn seconds() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds for which the processors have been idle, all together; 0 where the kernel does not say.
fn idle_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .and_then(|fields| fields.split_ascii_whitespace().nth(3))
        .and_then(|idle| idle.parse::<f64>().ok());
    ticks.unwrap_or_default() / TICKS
}
