//! Threads that start ranks. A thread must not end before the processes that it started: for the kernel it is their parent,
//! at whose end they get the signal that [`spawn`](wireup_sys::spawn) requests.

use std::ffi::CStr;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::thread::set_name;

use super::THREAD;

/// Name of a thread without a task.
const IDLE: &CStr = c"idle";

type Task = Box<dyn FnOnce() + Send>;

/// Pool of threads that start ranks; the threads end when it is dropped.
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
    /// Queues a task `count` times; the executions are concurrent if that many threads can be created.
    ///
    /// # Errors
    /// When no thread exists and none can be created.
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
            // Cannot fail: `self` holds the receiver.
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
