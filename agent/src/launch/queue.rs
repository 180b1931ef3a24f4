//! What waits to be sent on a gRPC stream.
//!
//! Senders of frames are never blocked: output is bounded end to end by credit, fences by
//! their data. A link that takes nothing for so long that [`LINK_MAX`] bytes wait for it is given up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::budget::{BudgetAccount, COPIED, Held, Spent};

/// Most bytes that wait for one link. Twice what a fence of 100,000 ranks with 1 KiB each comes to.
pub const LINK_MAX: usize = 256 * 1024 * 1024;

/// What a message costs besides its body: the envelope and its place in a queue.
pub const OVERHEAD: usize = 128;

/// Why nothing more may wait for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// It would be more than [`LINK_MAX`].
    #[error("it does not take what is sent to it: {} MiB wait", LINK_MAX >> 20)]
    Link,
    /// Something waits already, and its user has nothing left.
    #[error("it does not take what is sent to it, and {0}")]
    User(#[from] Spent),
}

/// The end that is pushed to. The stream ends, after all that waits, when this is dropped.
#[derive(Debug)]
pub struct Queue<T> {
    sender: mpsc::UnboundedSender<Waits<T>>,
    account: Arc<BudgetAccount>,
    waiting: Arc<AtomicUsize>,
}

/// The end that is sent from.
#[derive(Debug)]
pub struct Queued<T> {
    receiver: mpsc::UnboundedReceiver<Waits<T>>,
    waiting: Arc<AtomicUsize>,
}

/// A message that waits.
#[derive(Debug)]
struct Waits<T> {
    message: T,
    bytes: usize,
    /// Overhead that is not counted with a message's body.
    _held: Held,
}

/// An empty queue, of a user.
pub fn queue<T>(account: &Arc<BudgetAccount>) -> (Queue<T>, Queued<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let queue = Queue {
        sender,
        account: account.clone(),
        waiting: waiting.clone(),
    };
    (queue, Queued { receiver, waiting })
}

impl<T> Queue<T> {
    /// Whose it is.
    pub fn account(&self) -> &Arc<BudgetAccount> {
        &self.account
    }

    /// Queues a message with a body of this size; a long one is [kept](BudgetAccount::keep). A stream
    /// that is closed is not reported here, but by its other direction.
    ///
    /// # Errors
    /// [`Full`]; the message is dropped.
    pub fn push(&self, message: T, body: usize) -> Result<(), Full> {
        let bytes = body + OVERHEAD;
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting + bytes > LINK_MAX {
            return Err(Full::Link);
        }
        if waiting > 0 {
            self.account.check()?;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let own = if body > COPIED { 0 } else { body };
        let message = Waits {
            message,
            bytes,
            _held: self.account.hold(own + OVERHEAD),
        };
        // Fails when the stream is gone.
        let _ = self.sender.send(message);
        Ok(())
    }
}

impl<T> Stream for Queued<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.receiver.poll_recv(cx).map(|item| {
            item.map(|Waits { message, bytes, .. }| {
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
    use crate::budget::{BYTES, Budgets};

    #[tokio::test]
    async fn nothing_more_waits_for_a_link_when_its_user_has_nothing_left() {
        let account = Budgets::default().of(1);
        let (queue, mut queued) = queue(&account);
        let _all = account.take(BYTES).unwrap();
        // One that is taken at once does no harm.
        assert_eq!(queue.push('a', 10), Ok(()));
        assert_eq!(queue.push('b', 10), Err(Full::User(Spent::Bytes(1))));
        assert_eq!(queued.next().await, Some('a'));
        assert_eq!(queue.push('c', 10), Ok(()));
        drop((queue, queued));
        assert_eq!(account.check(), Ok(()));
    }

    #[tokio::test]
    async fn what_waits_is_limited_and_what_was_sent_makes_room() {
        let (queue, mut queued) = queue(&Budgets::default().of(1));
        assert_eq!(queue.push('a', LINK_MAX - OVERHEAD), Ok(()));
        assert_eq!(queue.push('b', 0), Err(Full::Link));
        assert_eq!(queued.next().await, Some('a'));
        assert_eq!(queue.push('c', 0), Ok(()));
        drop(queue);
        assert_eq!(queued.next().await, Some('c'));
        assert_eq!(queued.next().await, None);
    }
}
