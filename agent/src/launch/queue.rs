//! Messages that wait to be sent on a gRPC stream.
//!
//! Senders of frames are never blocked: output is bounded end to end by credit, fences by their data. A link on which
//! [`LINK_MAX`] bytes wait is given up.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::budget::{BudgetAccount, BudgetExceeded, ByteReservation, COPIED};

/// Most bytes that wait for one link. Twice the size of a fence of 100,000 ranks with 1 KiB each.
pub const LINK_MAX: usize = 256 * 1024 * 1024;

/// Cost of a message in addition to its body: the envelope and its place in a queue.
pub const OVERHEAD: usize = 128;

/// Reason for which no further message may wait for a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueueFull {
    /// The link's queue would exceed [`LINK_MAX`] bytes.
    #[error("the peer does not read: {} MiB are queued", LINK_MAX >> 20)]
    Link,
    /// Something waits already, and its user has nothing left.
    #[error("the peer does not read, and {0}")]
    User(#[from] BudgetExceeded),
}

/// The end that is pushed to. The stream ends, after all that waits, when this is dropped.
#[derive(Debug)]
pub struct LinkQueue<T> {
    sender: mpsc::UnboundedSender<QueuedMessage<T>>,
    account: Arc<BudgetAccount>,
    waiting: Arc<AtomicUsize>,
}

/// The end that is sent from.
#[derive(Debug)]
pub struct LinkQueueReceiver<T> {
    receiver: mpsc::UnboundedReceiver<QueuedMessage<T>>,
    waiting: Arc<AtomicUsize>,
}

/// A message that waits.
#[derive(Debug)]
struct QueuedMessage<T> {
    message: T,
    bytes: usize,
    /// Overhead that is not counted with a message's body.
    _held: ByteReservation,
}

/// Makes an empty queue of a user.
pub fn queue<T>(account: &Arc<BudgetAccount>) -> (LinkQueue<T>, LinkQueueReceiver<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let queue = LinkQueue {
        sender,
        account: account.clone(),
        waiting: waiting.clone(),
    };
    (queue, LinkQueueReceiver { receiver, waiting })
}

impl<T> LinkQueue<T> {
    /// Returns the account of the queue's user.
    pub fn account(&self) -> &Arc<BudgetAccount> {
        &self.account
    }

    /// Queues a message with a body of this size; a long one is [kept](BudgetAccount::keep). A stream
    /// that is closed is not reported here, but by its other direction.
    ///
    /// # Errors
    /// [`QueueFull`]; the message is dropped.
    pub fn push(&self, message: T, body: usize) -> Result<(), QueueFull> {
        let bytes = body + OVERHEAD;
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting + bytes > LINK_MAX {
            return Err(QueueFull::Link);
        }
        if waiting > 0 {
            self.account.check()?;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let own = if body > COPIED { 0 } else { body };
        let message = QueuedMessage {
            message,
            bytes,
            _held: self.account.hold(own + OVERHEAD),
        };
        // Fails when the stream is gone.
        let _ = self.sender.send(message);
        Ok(())
    }
}

impl<T> Stream for LinkQueueReceiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.receiver.poll_recv(cx).map(|item| {
            item.map(|QueuedMessage { message, bytes, .. }| {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
                message
            })
        })
    }
}

/// A queue's stream that can be sent from its beginning again, until one attempt is accepted.
#[derive(Debug)]
pub struct Resend<T>(Arc<Mutex<Sent<T>>>);

/// One attempt to send a [`Resend`]. A later attempt ends it.
#[derive(Debug)]
pub struct Attempt<T> {
    sent: Arc<Mutex<Sent<T>>>,
    number: usize,
}

#[derive(Debug)]
struct Sent<T> {
    queued: LinkQueueReceiver<T>,
    /// Messages that were taken from the queue and may have to be sent again, oldest first.
    resend_queue: VecDeque<T>,
    /// Number of kept messages that the current attempt has sent.
    position: usize,
    /// Number of attempts so far.
    attempts: usize,
    accepted: bool,
}

impl<T> Resend<T> {
    /// Takes all messages of a queue.
    pub fn new(queued: LinkQueueReceiver<T>) -> Self {
        Self(Arc::new(Mutex::new(Sent {
            queued,
            resend_queue: VecDeque::new(),
            position: 0,
            attempts: 0,
            accepted: false,
        })))
    }

    /// Begins an attempt with the first message.
    pub fn attempt(&self) -> Attempt<T> {
        let mut sent = lock(&self.0);
        sent.attempts += 1;
        sent.position = 0;
        Attempt {
            number: sent.attempts,
            sent: Arc::clone(&self.0),
        }
    }

    /// Keeps no message any more: the current attempt was accepted.
    pub fn accept(&self) {
        let mut sent = lock(&self.0);
        let position = std::mem::take(&mut sent.position);
        sent.resend_queue.drain(..position);
        sent.accepted = true;
    }
}

fn lock<T>(sent: &Mutex<Sent<T>>) -> MutexGuard<'_, Sent<T>> {
    // Every change under the lock is one that cannot panic half-way.
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> Stream for Attempt<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let sent = &mut *lock(&self.sent);
        if sent.attempts != self.number {
            return Poll::Ready(None);
        }
        if sent.accepted {
            return match sent.resend_queue.pop_front() {
                Some(message) => Poll::Ready(Some(message)),
                None => Pin::new(&mut sent.queued).poll_next(cx),
            };
        }
        if sent.position == sent.resend_queue.len() {
            match ready!(Pin::new(&mut sent.queued).poll_next(cx)) {
                Some(message) => sent.resend_queue.push_back(message),
                None => return Poll::Ready(None),
            }
        }
        sent.position += 1;
        Poll::Ready(sent.resend_queue.get(sent.position - 1).cloned())
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;
    use crate::budget::{BYTES, Budgets};

    #[tokio::test]
    async fn exhausted_user_budget_refuses_messages_for_link() {
        let account = Budgets::default().account(1);
        let (queue, mut queued) = queue(&account);
        let _all = account.take(BYTES).unwrap();
        // One that is taken at once does no harm.
        assert_eq!(queue.push('a', 10), Ok(()));
        assert_eq!(
            queue.push('b', 10),
            Err(QueueFull::User(BudgetExceeded::Bytes(1)))
        );
        assert_eq!(queued.next().await, Some('a'));
        assert_eq!(queue.push('c', 10), Ok(()));
        drop((queue, queued));
        assert_eq!(account.check(), Ok(()));
    }

    #[tokio::test]
    async fn queue_is_limited_and_sent_messages_make_room() {
        let (queue, mut queued) = queue(&Budgets::default().account(1));
        assert_eq!(queue.push('a', LINK_MAX - OVERHEAD), Ok(()));
        assert_eq!(queue.push('b', 0), Err(QueueFull::Link));
        assert_eq!(queued.next().await, Some('a'));
        assert_eq!(queue.push('c', 0), Ok(()));
        drop(queue);
        assert_eq!(queued.next().await, Some('c'));
        assert_eq!(queued.next().await, None);
    }

    #[tokio::test]
    async fn attempt_sends_all_messages_until_one_is_accepted() {
        let (queue, queued) = queue(&Budgets::default().account(1));
        let resend = Resend::new(queued);
        for message in ['a', 'b', 'c'] {
            queue.push(message, 0).unwrap();
        }
        let mut first = resend.attempt();
        assert_eq!(first.next().await, Some('a'));
        assert_eq!(first.next().await, Some('b'));
        let mut second = resend.attempt();
        assert_eq!(first.next().await, None);
        assert_eq!(second.next().await, Some('a'));
        // What was kept of the first attempt is sent after the answer, too.
        resend.accept();
        queue.push('d', 0).unwrap();
        drop(queue);
        let rest: Vec<char> = second.collect().await;
        assert_eq!(rest, ['b', 'c', 'd']);
    }
}
