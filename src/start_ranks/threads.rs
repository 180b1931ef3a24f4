//! The threads that start ranks. They stay as long as there may be a process that one of them has started: its
//! end is that of its parent to the system, which then sends what [`spawn`](wireup_sys::spawn) asks for.

use std::ffi::CStr;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::thread::set_name;

use super::THREAD;

/// Name of a thread that has nothing to do.
const IDLE: &CStr = c"idle";

type Task = Box<dyn FnOnce() + Send>;

/// See the module. To drop it lets the threads end.
#[derive(Debug)]
pub struct StarterThreads {
    tasks_to: Sender<Task>,
    tasks: Arc<Mutex<Receiver<Task>>>,
    count: usize,
}

impl Default for StarterThreads {
    fn default() -> Self {
        let (tasks_to, tasks) = channel();
        Self {
            tasks_to,
            tasks: Arc::new(Mutex::new(tasks)),
            count: 0,
        }
    }
}

impl StarterThreads {
    /// Has a task done `count` times, at once if as many threads can be had.
    ///
    /// # Errors
    /// When there is not a single thread.
    pub(super) fn share(
        &mut self,
        count: usize,
        task: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<()> {
        while self.count < count {
            match self.add() {
                Ok(()) => self.count += 1,
                Err(error) if self.count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        for _ in 0..count {
            // The receiver is here.
            let _ = self.tasks_to.send(Box::new(task.clone()));
        }
        Ok(())
    }

    fn add(&self) -> io::Result<()> {
        let tasks = Arc::clone(&self.tasks);
        let next = move || {
            let tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.recv().ok()
        };
        let thread = thread::Builder::new()
            .name(THREAD.to_string_lossy().into())
            .stack_size(128 * 1024);
        thread.spawn(move || {
            while let Some(task) = next() {
                // Names are for debugging.
                let _ = set_name(THREAD);
                task();
                let _ = set_name(IDLE);
            }
        })?;
        Ok(())
    }
}
