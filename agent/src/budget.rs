//! Limits on one user's resources at an agent. A user who has used up the budget is refused; other users are not
//! affected.
//!
//! Shared bytes are counted once: a message that waits for many links is one ([`BudgetAccount::count_message`]). Data
//! that has arrived counts even without room for it. Then the next data that would wait longer is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prost::bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of one user at a time; each is a launch, or soon will be.
pub const PER_USER: usize = 256;

/// Maximum number of bytes: some requests of the largest size, with the data built from each, and
/// the queues of some links that take nothing.
pub const BYTES: usize = 1024 * 1024 * 1024;

/// Most places in launches: one where the launcher is, and one for each node.
pub const PLACES: usize = 1024;

/// Most connections to other agents that are being made. More wait.
pub const DIALS: usize = 128;

/// Most host names that are being looked up at the same time. More wait.
pub const LOOKUPS: usize = 64;

/// Most connections whose first message is being read: it may be large. Silent ones do not count.
const READ_AT_ONCE: usize = 4;

/// Messages up to this size are copied, and counted in their queues; longer ones are shared.
pub const COPIED: usize = 4 * 1024;

/// The accounts of all users with resources here.
#[derive(Debug, Default)]
pub struct Budgets(Mutex<BTreeMap<u32, Weak<BudgetAccount>>>);

/// Resources of one user at this agent: bytes, launches, connection attempts and lookups.
#[derive(Debug)]
pub struct BudgetAccount {
    uid: u32,
    bytes: AtomicUsize,
    places: AtomicUsize,
    dials: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
    reading: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// A budget that is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BudgetExceeded {
    /// The user holds more than [`BYTES`].
    #[error(
        "user id {0} uses {most} MiB of this agent, the limit for one user (launch requests, messages for processes \
         that do not read, names, registrations): end some of the user's launches, or continue them if they are \
         stopped",
        most = BYTES >> 20
    )]
    Bytes(u32),
    /// The user has [`PLACES`] launches.
    #[error(
        "user id {0} has {PLACES} launches at this agent, the limit for one user: try again when one has ended"
    )]
    Places(u32),
}

/// Bytes of an account, given back when this is dropped.
#[derive(Debug)]
pub struct ByteReservation {
    account: Arc<BudgetAccount>,
    bytes: usize,
}

/// A place in a launch, given back when this is dropped.
#[derive(Debug)]
pub struct LaunchPermit(Arc<BudgetAccount>);

impl Budgets {
    /// Returns a user's account, which it creates if missing.
    pub fn account(&self, uid: u32) -> Arc<BudgetAccount> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = accounts.get(&uid).and_then(Weak::upgrade) {
            return known;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(BudgetAccount::new(uid));
        accounts.insert(uid, Arc::downgrade(&account));
        account
    }

    /// Returns the resources that all users hold together.
    pub fn held(&self) -> BudgetTotals {
        let accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let living = accounts.values().filter_map(Weak::upgrade);
        living.fold(BudgetTotals::default(), |sum, account| BudgetTotals {
            users: sum.users + 1,
            bytes: sum.bytes + account.bytes.load(Ordering::Relaxed),
        })
    }
}

/// Resources that all users hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BudgetTotals {
    pub users: usize,
    pub bytes: usize,
}

impl BudgetAccount {
    fn new(uid: u32) -> Self {
        Self {
            uid,
            bytes: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            dials: Arc::new(Semaphore::new(DIALS)),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
            reading: Arc::new(Semaphore::new(READ_AT_ONCE)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Reserves a number of bytes.
    ///
    /// # Errors
    /// [`BudgetExceeded::Bytes`]
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<ByteReservation, BudgetExceeded> {
        let mut held = self.hold(0);
        held.grow(bytes)?;
        Ok(held)
    }

    /// Counts existing bytes, whether or not there is room for them.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> ByteReservation {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        ByteReservation {
            account: Arc::clone(self),
            bytes,
        }
    }

    /// Counts a message as long as a part of it is referenced. Short ones are copied and counted
    /// where they wait.
    pub fn count_message(self: &Arc<Self>, message: Bytes) -> Bytes {
        if message.len() <= COPIED {
            return message;
        }
        let held = self.hold(message.len());
        Bytes::from_owner(CountedBytes {
            message,
            _held: held,
        })
    }

    /// Refuses a request that would wait when the budget is used up.
    ///
    /// # Errors
    /// [`BudgetExceeded::Bytes`]
    pub fn check(&self) -> Result<(), BudgetExceeded> {
        match self.bytes.load(Ordering::Relaxed) > BYTES {
            true => Err(BudgetExceeded::Bytes(self.uid)),
            false => Ok(()),
        }
    }

    /// Takes a place in a launch.
    ///
    /// # Errors
    /// [`BudgetExceeded::Places`]
    pub fn enter(self: &Arc<Self>) -> Result<LaunchPermit, BudgetExceeded> {
        let before = self.places.fetch_add(1, Ordering::Relaxed);
        let taken = LaunchPermit(Arc::clone(self));
        match before < PLACES {
            true => Ok(taken),
            false => Err(BudgetExceeded::Places(self.uid)),
        }
    }

    /// Waits until a connection may be made.
    pub async fn dial(&self) -> OwnedSemaphorePermit {
        permit(&self.dials).await
    }

    /// Waits until the first message of a connection may be read.
    pub async fn reading(&self) -> OwnedSemaphorePermit {
        permit(&self.reading).await
    }

    /// Waits until a large request may be decoded: one of a user at a time, so that users are served in turn.
    pub async fn turn(&self) -> OwnedSemaphorePermit {
        permit(&self.turn).await
    }

    /// Waits until another name may be looked up.
    pub async fn lookup(&self) -> OwnedSemaphorePermit {
        permit(&self.lookups).await
    }
}

async fn permit(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = Arc::clone(of).acquire_owned().await;
    permit.expect("it is never closed")
}

impl ByteReservation {
    /// Adds bytes to the reservation.
    ///
    /// # Errors
    /// [`BudgetExceeded::Bytes`]; the reservation is unchanged then.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        let before = self.account.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > BYTES {
            self.account.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(BudgetExceeded::Bytes(self.account.uid));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Counts this number of bytes, whether or not there is room for them.
    pub fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let count = &self.account.bytes;
        match bytes.checked_sub(before) {
            Some(more) => count.fetch_add(more, Ordering::Relaxed),
            None => count.fetch_sub(before - bytes, Ordering::Relaxed),
        };
    }

    /// Returns the number of bytes that are charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the account of the reservation.
    pub fn account(&self) -> &Arc<BudgetAccount> {
        &self.account
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.account.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for LaunchPermit {
    fn drop(&mut self) {
        self.0.places.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message with its share of the account.
struct CountedBytes {
    message: Bytes,
    _held: ByteReservation,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn user_beyond_byte_budget_is_refused_and_others_are_not() {
        let budgets = Budgets::default();
        let (one, other) = (budgets.account(1), budgets.account(2));
        let mut held = one.take(BYTES - 10).unwrap();
        assert_eq!(
            budgets.account(1).take(11).unwrap_err(),
            BudgetExceeded::Bytes(1)
        );
        assert_eq!(held.grow(11), Err(BudgetExceeded::Bytes(1)));
        assert_eq!(held.grow(10), Ok(()));
        assert_eq!(one.check(), Ok(()));
        let there = one.hold(1);
        assert_eq!(one.check(), Err(BudgetExceeded::Bytes(1)));
        other.take(BYTES).unwrap();
        drop(there);
        held.set(0);
        one.take(BYTES).unwrap();
        let text = BudgetExceeded::Bytes(7).to_string();
        assert!(text.contains("user id 7 uses 1024 MiB"), "{text}");
    }

    #[test]
    fn message_is_counted_once_until_its_last_part_is_dropped() {
        let account = Budgets::default().account(1);
        let count = || account.bytes.load(Ordering::Relaxed);
        let short = account.count_message(Bytes::from(vec![0; COPIED]));
        assert_eq!(count(), 0);
        let long = account.count_message(Bytes::from(vec![0; COPIED + 1]));
        let part = long.slice(1..2);
        let copies = [long.clone(), long];
        assert_eq!(count(), COPIED + 1);
        drop(copies);
        assert_eq!(count(), COPIED + 1);
        drop((part, short));
        assert_eq!(count(), 0);
    }

    #[test]
    fn user_waits_for_turn_of_own_requests_only() {
        let budgets = Budgets::default();
        let context = &mut Context::from_waker(Waker::noop());
        let account = budgets.account(1);
        let Poll::Ready(first) = pin!(account.turn()).poll(context) else {
            panic!("nobody has the turn");
        };
        let again = budgets.account(1);
        let mut second = pin!(again.turn());
        assert!(second.as_mut().poll(context).is_pending());
        assert!(pin!(budgets.account(2).turn()).poll(context).is_ready());
        drop(first);
        assert!(second.poll(context).is_ready());
    }

    #[test]
    fn places_in_launches_are_limited_and_come_back() {
        let account = Budgets::default().account(1);
        let mut taken: Vec<_> = (0..PLACES).map(|_| account.enter().unwrap()).collect();
        assert_eq!(account.enter().unwrap_err(), BudgetExceeded::Places(1));
        taken.pop();
        account.enter().unwrap();
    }
}
