//! The launches this agent takes part in, and whether it takes more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::Signal;
use tokio::sync::{Notify, broadcast};

use super::descriptor::LaunchToken;
use super::frame_router::TreePosition;
use crate::budget::{BudgetAccount, BudgetExceeded, Budgets, LaunchPermit};

/// Reason for which a launch is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaunchRefusal {
    /// The agent ends with its last launch.
    #[error("the agent is draining and accepts no new launch")]
    Draining,
    /// The place is taken.
    #[error("launch {0} already exists at this agent")]
    Twice(String),
    /// The launch is known by another token.
    #[error("launch {0} already exists at this agent, with another token than the caller's")]
    Token(String),
    /// The user takes part in too many launches.
    #[error(transparent)]
    Spent(#[from] BudgetExceeded),
    /// The launch is known as another user's.
    #[error("launch {launch} already exists at this agent for user id {owner}, not {uid}")]
    User {
        launch: String,
        owner: u32,
        /// User id of the caller that opens the launch.
        uid: u32,
    },
}

/// A launch that is known to the agent.
#[derive(Debug)]
struct LaunchEntry {
    token: LaunchToken,
    uid: u32,
    /// The launcher is connected here.
    has_launcher: bool,
    /// A node of it is here.
    has_step: bool,
}

#[derive(Debug, Default)]
struct LaunchTable {
    entries: BTreeMap<String, LaunchEntry>,
    /// Launchers that this agent started itself.
    launchers: usize,
    draining: bool,
    /// Whether the agent starts no launcher any more.
    refuses_launchers: bool,
    /// Drains as soon as it has a launch.
    single_launch: bool,
    /// Whether the steps of all launches are to end.
    ending: bool,
}

/// Signals for steps that are kept until these have got them.
const SIGNALS_MAX: usize = 16;

/// The launches of an agent.
#[derive(Debug)]
pub struct LaunchRegistry {
    budgets: Arc<Budgets>,
    launches: Mutex<LaunchTable>,
    /// Told whenever a launch ends and when draining begins.
    changed: Notify,
    /// For the ranks of all launches.
    signals: broadcast::Sender<Signal>,
}

impl Default for LaunchRegistry {
    fn default() -> Self {
        Self {
            budgets: Arc::default(),
            launches: Mutex::default(),
            changed: Notify::new(),
            signals: broadcast::Sender::new(SIGNALS_MAX),
        }
    }
}

/// A place in a launch that is taken; given up when this is dropped.
#[derive(Debug)]
pub struct LaunchRegistration {
    registry: Arc<LaunchRegistry>,
    launch: String,
    place: TreePosition,
    /// Account of the launch's user.
    pub account: Arc<BudgetAccount>,
    _taken: LaunchPermit,
}

fn parts(place: TreePosition) -> (bool, bool) {
    (
        !matches!(place, TreePosition::Member(_)),
        place.node().is_some(),
    )
}

impl LaunchRegistry {
    /// Makes a registry without launches; places in it belong to these budgets.
    pub fn new(budgets: Arc<Budgets>) -> Self {
        Self {
            budgets,
            ..Self::default()
        }
    }

    /// Makes a registry for one launch: it takes no other, and is drained when that one has ended.
    pub fn single_launch(budgets: Arc<Budgets>) -> Self {
        let registry = Self::new(budgets);
        registry.lock().single_launch = true;
        registry
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LaunchTable> {
        // Every change under the lock is one that cannot panic half-way.
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in a launch. One agent may be a launch's entry and, later, a node of it.
    ///
    /// # Errors
    /// [`LaunchRefusal`].
    pub fn enter(
        self: &Arc<Self>,
        launch: &str,
        token: LaunchToken,
        uid: u32,
        place: TreePosition,
    ) -> Result<LaunchRegistration, LaunchRefusal> {
        let (entry, member) = parts(place);
        let account = self.budgets.account(uid);
        let taken = account.enter()?;
        let mut launches = self.lock();
        let draining = launches.draining;
        match launches.entries.get_mut(launch) {
            None if draining => return Err(LaunchRefusal::Draining),
            None => {
                let known = LaunchEntry {
                    token,
                    uid,
                    has_launcher: entry,
                    has_step: member,
                };
                launches.entries.insert(launch.to_owned(), known);
                launches.draining |= launches.single_launch;
            }
            // A launcher's name for its launch is not to be one that is in use.
            Some(_) if entry => return Err(LaunchRefusal::Twice(launch.to_owned())),
            Some(known) if !known.token.matches(token) => {
                return Err(LaunchRefusal::Token(launch.to_owned()));
            }
            Some(known) if known.uid != uid => {
                return Err(LaunchRefusal::User {
                    launch: launch.to_owned(),
                    owner: known.uid,
                    uid,
                });
            }
            Some(known) if known.has_step => return Err(LaunchRefusal::Twice(launch.to_owned())),
            Some(known) => known.has_step = true,
        }
        Ok(LaunchRegistration {
            registry: self.clone(),
            launch: launch.to_owned(),
            place,
            account,
            _taken: taken,
        })
    }

    /// Keeps a draining agent until the launcher that it is about to start has ended.
    ///
    /// # Errors
    /// [`LaunchRefusal::Draining`].
    pub fn start_launcher(self: &Arc<Self>) -> Result<RunningLauncher, LaunchRefusal> {
        let mut launches = self.lock();
        if launches.draining || launches.refuses_launchers {
            return Err(LaunchRefusal::Draining);
        }
        launches.launchers += 1;
        Ok(RunningLauncher(self.clone()))
    }

    /// Waits until draining has begun.
    pub async fn draining_begun(&self) {
        self.wait_until(|launches| launches.draining).await;
    }

    async fn wait_until(&self, is_reached: impl Fn(&LaunchTable) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_reached(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the number of launches.
    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether new launches are refused.
    pub fn draining(&self) -> bool {
        self.lock().draining
    }

    /// Starts no launcher from now on.
    pub fn refuse_launchers(&self) {
        self.lock().refuses_launchers = true;
    }

    /// Takes no new launch from now on.
    pub fn drain(&self) {
        self.lock().draining = true;
        self.changed.notify_waiters();
    }

    /// Asks the steps of all launches to end, those that come later too.
    pub fn end_steps(&self) {
        self.lock().ending = true;
        self.changed.notify_waiters();
    }

    /// Waits until [`Self::end_steps`] is called.
    pub async fn steps_end(&self) {
        self.wait_until(|launches| launches.ending).await;
    }

    /// Sends a signal to the steps that run, for their ranks.
    pub fn signal_steps(&self, signal: Signal) {
        // Without steps it is for no rank.
        let _ = self.signals.send(signal);
    }

    /// Returns the signals that are sent to steps from now on.
    pub fn step_signals(&self) -> broadcast::Receiver<Signal> {
        self.signals.subscribe()
    }

    /// Waits until draining has begun and no launch is left.
    pub async fn drained(&self) {
        let is_drained = |launches: &LaunchTable| {
            launches.draining && launches.entries.is_empty() && launches.launchers == 0
        };
        self.wait_until(is_drained).await;
    }
}

/// A launcher that this agent started; it has ended when this is dropped.
#[derive(Debug)]
pub struct RunningLauncher(Arc<LaunchRegistry>);

impl Drop for RunningLauncher {
    fn drop(&mut self) {
        self.0.lock().launchers -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Drop for LaunchRegistration {
    fn drop(&mut self) {
        let (entry, member) = parts(self.place);
        let mut launches = self.registry.lock();
        if let Some(known) = launches.entries.get_mut(&self.launch) {
            known.has_launcher &= !entry;
            known.has_step &= !member;
            if !known.has_launcher && !known.has_step {
                launches.entries.remove(&self.launch);
            }
        }
        drop(launches);
        self.registry.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use wireup_core::job::ids::NodeId;

    use super::*;

    #[test]
    fn launch_is_entered_once_by_launcher_and_once_by_parent() {
        let registry = Arc::new(LaunchRegistry::default());
        let token = LaunchToken::random();
        let member = TreePosition::Member(NodeId(1));
        let entry = registry.enter("l", token, 7, TreePosition::Entry).unwrap();
        assert_eq!(
            registry
                .enter("l", token, 7, TreePosition::Entry)
                .unwrap_err(),
            LaunchRefusal::Twice("l".into())
        );
        assert_eq!(
            registry
                .enter("l", LaunchToken::random(), 7, member)
                .unwrap_err(),
            LaunchRefusal::Token("l".into())
        );
        assert!(matches!(
            registry.enter("l", token, 8, member).unwrap_err(),
            LaunchRefusal::User {
                owner: 7,
                uid: 8,
                ..
            }
        ));
        let registration = registry.enter("l", token, 7, member).unwrap();
        assert_eq!(
            registry.enter("l", token, 7, member).unwrap_err(),
            LaunchRefusal::Twice("l".into())
        );
        assert_eq!(registry.count(), 1);
        drop(entry);
        assert_eq!(registry.count(), 1);
        drop(registration);
        assert_eq!(registry.count(), 0);
    }

    #[tokio::test]
    async fn stopping_agent_takes_no_launch_and_exits_after_last() {
        let registry = Arc::new(LaunchRegistry::default());
        let token = LaunchToken::random();
        let entry = registry.enter("l", token, 7, TreePosition::Entry).unwrap();
        registry.drain();
        assert_eq!(
            registry
                .enter("m", token, 7, TreePosition::EntryAndRoot)
                .unwrap_err(),
            LaunchRefusal::Draining
        );
        // Its own launcher is connected already.
        let member = registry
            .enter("l", token, 7, TreePosition::Member(NodeId(0)))
            .unwrap();
        let mut drained = std::pin::pin!(registry.drained());
        assert!((&mut drained).now_or_never().is_none());
        drop(entry);
        assert!((&mut drained).now_or_never().is_none());
        drop(member);
        drained.await;
    }

    #[tokio::test]
    async fn steps_are_stopped_whenever_they_start() {
        let registry = LaunchRegistry::default();
        let mut end = std::pin::pin!(registry.steps_end());
        assert!((&mut end).now_or_never().is_none());
        registry.end_steps();
        end.await;
        registry.steps_end().await;
    }

    #[tokio::test]
    async fn stopping_agent_waits_for_launchers_it_started() {
        let registry = Arc::new(LaunchRegistry::default());
        let mut begun = std::pin::pin!(registry.draining_begun());
        assert!((&mut begun).now_or_never().is_none());
        let launcher = registry.start_launcher().unwrap();
        registry.drain();
        begun.await;
        assert_eq!(
            registry.start_launcher().unwrap_err(),
            LaunchRefusal::Draining
        );
        let mut drained = std::pin::pin!(registry.drained());
        assert!((&mut drained).now_or_never().is_none());
        drop(launcher);
        drained.await;
    }
}
