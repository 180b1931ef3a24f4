//! What waits to be sent on a gRPC stream.
//!
//! Nothing holds back those who bring frames: output is bounded end to end by credit, fences by
//! their data. A link that takes nothing for so long that [`LINK_MAX`] bytes wait for it is given up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;

/// Most bytes that wait for one link. Twice what a fence of 100,000 ranks with 1 KiB each comes to.
pub const LINK_MAX: usize = 256 * 1024 * 1024;

/// What a message costs besides its body: the envelope and its place in a queue.
pub const OVERHEAD: usize = 128;

/// More than [`LINK_MAX`] would wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it does not take what is sent to it: {} MiB wait", LINK_MAX >> 20)]
pub struct Full;

/// The end that is pushed to. The stream ends, after all that waits, when this is dropped.
#[derive(Debug)]
pub struct Queue<T> {
    sender: mpsc::UnboundedSender<(T, usize)>,
    waiting: Arc<AtomicUsize>,
}

/// The end that is sent from.
#[derive(Debug)]
pub struct Queued<T> {
    receiver: mpsc::UnboundedReceiver<(T, usize)>,
    waiting: Arc<AtomicUsize>,
}

/// An empty queue.
pub fn queue<T>() -> (Queue<T>, Queued<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let queue = Queue {
        sender,
        waiting: waiting.clone(),
    };
    (queue, Queued { receiver, waiting })
}

impl<T> Queue<T> {
    /// Queues a message with a body of so many bytes. That nobody sends any more is not said here:
    /// the other direction of the stream tells.
    ///
    /// # Errors
    /// [`Full`]; the message is dropped.
    pub fn push(&self, message: T, body: usize) -> Result<(), Full> {
        let bytes = body + OVERHEAD;
        if self.waiting.load(Ordering::Relaxed) + bytes > LINK_MAX {
            return Err(Full);
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        // Fails when the stream is gone.
        let _ = self.sender.send((message, bytes));
        Ok(())
    }
}

impl<T> Stream for Queued<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.receiver.poll_recv(cx).map(|item| {
            item.map(|(message, bytes)| {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                message
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_limited_and_what_was_sent_makes_room() {
        let (queue, mut queued) = queue();
        assert_eq!(queue.push('a', LINK_MAX - OVERHEAD), Ok(()));
        assert_eq!(queue.push('b', 0), Err(Full));
        assert_eq!(queued.next().await, Some('a'));
        assert_eq!(queue.push('c', 0), Ok(()));
        drop(queue);
        assert_eq!(queued.next().await, Some('c'));
        assert_eq!(queued.next().await, None);
    }
}
