//! Writes the launcher's standard output and error, and files for ranks, in separate threads.
//!
//! The descriptors are inherited and shared with a shell, so they must stay blocking; a slow
//! reader blocks the thread and not the loop. The queue is bounded: above [`HIGH`] the loop stops
//! reading the ranks (see [`OutputWriter::is_full`]) and is woken once the queue has drained to [`LOW`]; at
//! the end it waits for the rest (see [`OutputWriter::queued`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Bytes queued at which the loop stops reading ranks.
pub const HIGH: usize = 1024 * 1024;
/// Queued bytes at which it continues.
pub const LOW: usize = HIGH / 4;

#[derive(Debug, Default)]
struct Queue {
    /// Queued bytes, each with its descriptor.
    chunks: VecDeque<(Arc<OwnedFd>, Vec<u8>)>,
    bytes: usize,
    /// Whether the loop waits for the notification that the queue has room again.
    waiting: bool,
    /// Whether the loop waits for the notification that less is queued.
    watched: bool,
    closed: bool,
    failed: Option<Errno>,
}

#[derive(Debug, Default)]
struct WriterState {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl WriterState {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue stays consistent even if a holder panicked: no invariant spans two fields.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queue of one output of the launcher, with its writing thread.
#[derive(Debug)]
pub struct OutputWriter {
    wake: Arc<OwnedFd>,
    shared: Arc<WriterState>,
    running: bool,
}

impl OutputWriter {
    /// Creates an empty queue; `wake` is an eventfd of the loop.
    pub fn new(wake: Arc<OwnedFd>) -> Self {
        Self {
            wake,
            shared: Arc::default(),
            running: false,
        }
    }

    /// Queues bytes for a descriptor. The writing thread is started at the first call.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn write(&mut self, fd: &Arc<OwnedFd>, bytes: Vec<u8>) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.running {
            let (shared, wake) = (Arc::clone(&self.shared), Arc::clone(&self.wake));
            // The thread is not joined: a blocked reader must not prevent the launcher from ending.
            std::thread::Builder::new()
                .name("output".into())
                .stack_size(64 * 1024)
                .spawn(move || drain(&shared, &wake))?;
            self.running = true;
        }
        let mut queue = self.shared.lock();
        if queue.failed.is_none() {
            queue.bytes += bytes.len();
            queue.chunks.push_back((Arc::clone(fd), bytes));
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Whether the loop must stop queuing output; it is woken when that changes.
    pub fn is_full(&self) -> bool {
        let mut queue = self.shared.lock();
        queue.waiting = queue.bytes > if queue.waiting { LOW } else { HIGH };
        queue.waiting
    }

    /// Returns the error, once writing has failed; data queued after that is discarded.
    pub fn failure(&self) -> Option<Errno> {
        self.shared.lock().failed
    }

    /// Ends the queue: the thread ends when all is written, and wakes the loop.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }

    /// Returns the number of bytes that are queued or being written; 0 when writing has failed. The loop is woken once when
    /// the number has become smaller.
    pub fn queued(&self) -> usize {
        let mut queue = self.shared.lock();
        queue.watched = queue.bytes > 0;
        queue.bytes
    }
}

fn drain(shared: &WriterState, wake: &OwnedFd) {
    let mut queue = shared.lock();
    loop {
        let Some((fd, chunk)) = queue.chunks.pop_front() else {
            if queue.closed {
                // A full eventfd counter still wakes the loop.
                let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
                return;
            }
            queue = shared
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(queue);
        let result = write_all(fd.as_fd(), &chunk);
        drop(fd);
        queue = shared.lock();
        queue.bytes -= chunk.len();
        if let Err(errno) = result {
            queue.failed = Some(errno);
            queue.chunks.clear();
            queue.bytes = 0;
        }
        let watched = std::mem::take(&mut queue.watched);
        if queue.failed.is_some() || watched || queue.waiting && queue.bytes <= LOW {
            // A full eventfd counter still wakes the loop.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

/// Writes all bytes, and waits for room in a descriptor that is full.
///
/// # Errors
/// The system's error; `EPIPE` when the reader has closed it.
pub(super) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Another process made the shared description non-blocking: wait for room.
                let mut poll = [rustix::event::PollFd::new(
                    &fd,
                    rustix::event::PollFlags::OUT,
                )];
                let _ = rustix::event::poll(&mut poll, None);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;

    fn woken(wake: &OwnedFd, within: Duration) -> bool {
        let mut fds = [PollFd::new(wake, PollFlags::IN)];
        let within = Timespec::try_from(within).unwrap();
        poll(&mut fds, Some(&within)).unwrap() == 1
    }

    #[test]
    fn queue_query_wakes_requester_after_write() {
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let mut sink = OutputWriter::new(Arc::clone(&wake));
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = Arc::new(OwnedFd::from(writer));
        // More than a pipe holds.
        let bytes = vec![b'x'; 1 << 18];
        sink.write(&writer, bytes.clone()).unwrap();
        assert_eq!(sink.queued(), bytes.len());
        assert!(!woken(&wake, Duration::from_millis(20)));
        let mut read = vec![0; bytes.len()];
        reader.read_exact(&mut read).unwrap();
        assert!(woken(&wake, Duration::from_secs(30)));
        assert_eq!((sink.queued(), read), (0, bytes));
    }
}
