//! A launch this agent knows: on its head node with the launcher and all that is known from it, on
//! the others by its name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

use super::exchange::{Ended, Entries, ExchangeError, KeyExchange};
use super::launch_progress::Progress;
use super::launch_request::{LaunchRequest, NodeLayout};
use super::unread_output::BufferedOutput;
use crate::budget::ByteReservation;
use crate::proto::v1::{LaunchInfo, LaunchState, RankInfo, StdioOutput};
use wireup_core::record::{ResizeCommand, ResizeReplyRecord, SignalCommand};

/// Ranks in one answer to a query.
const QUERY_RANKS: usize = 16_384;

#[derive(Debug)]
pub struct ScheduledLaunch {
    pub id: String,
    pub allocation: String,
    /// Nodes of the launch, and ranks of each.
    pub place: NodeLayout,
    /// User id of the launch.
    pub owner: u32,
    /// Time of the request, in milliseconds since the epoch.
    pub started: i64,
    /// The launcher, on the head node.
    pub head: Option<Arc<LauncherState>>,
    exchange: Mutex<KeyExchange<oneshot::Sender<ExchangeAnswer>>>,
    /// Since when it waits for its launcher, if the launcher has not reached this node yet.
    waits: Mutex<Option<Instant>>,
    ending: Mutex<Option<LaunchEnding>>,
    /// Bytes of the owner's budget.
    _held: ByteReservation,
    /// Whether this node's part is to end.
    aborted: watch::Sender<bool>,
}

#[derive(Debug)]
struct LaunchEnding {
    /// In milliseconds since the epoch.
    time: i64,
    /// Reason of the end, if known here.
    reason: String,
}

/// Result of an exchange of keys.
pub type ExchangeAnswer = Result<Arc<Entries>, ExchangeEnd>;

/// Reason for which an exchange of keys fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExchangeEnd {
    /// The end of the launch.
    LaunchEnded,
    /// Nodes that did not arrive in time.
    Missing(Arc<[u32]>),
}

/// The launcher of a launch and the state that it reported.
#[derive(Debug)]
pub struct LauncherState {
    /// State, ranks and result of the launch.
    progress: Mutex<Progress>,
    /// Rings when that changes.
    changed: watch::Sender<()>,
    output: Mutex<BufferedOutput>,
    /// Signals when output is added, removed or released.
    moved: watch::Sender<()>,
    /// The launcher's standard input, as long as it is open.
    pub stdin: tokio::sync::Mutex<Stdin>,
    orders: mpsc::UnboundedSender<LauncherCommand>,
    resizes: Mutex<PendingResizes>,
}

/// Changes of the launch's hosts, or the reason why there are none.
pub type ResizeReply = Result<Vec<String>, String>;

/// Changes of the launch's hosts to which the launcher has not replied, by their numbers.
#[derive(Debug, Default)]
struct PendingResizes {
    last_number: u64,
    waiting: BTreeMap<u64, oneshot::Sender<ResizeReply>>,
}

/// State of the launcher's standard input.
#[derive(Debug)]
pub enum Stdin {
    /// To no reader: no rank reads input.
    Nobody,
    Open(pipe::Sender),
    Ended,
}

/// Orders to the task that owns a launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LauncherCommand {
    Signal(SignalCommand),
    Resize(ResizeCommand),
    /// End it, by force if it takes longer than it should.
    End,
}

impl ScheduledLaunch {
    /// Makes a launch from its request; `head` on its head node.
    pub fn new(
        request: &LaunchRequest,
        owner: u32,
        head: Option<Arc<LauncherState>>,
        reservation: ByteReservation,
    ) -> Self {
        let nodes = u32::try_from(request.place.nodes.len()).expect("a message is shorter");
        Self {
            id: request.id.clone(),
            allocation: request.allocation.clone(),
            place: request.place.clone(),
            owner,
            started: now(),
            exchange: Mutex::new(KeyExchange::new(nodes, request.place.is_head())),
            waits: Mutex::new(head.is_none().then(Instant::now)),
            ending: Mutex::new(None),
            aborted: watch::Sender::new(false),
            _held: reservation,
            head,
        }
    }

    /// Returns the time of the end, in milliseconds since the epoch.
    pub fn ended(&self) -> Option<i64> {
        lock(&self.ending).as_ref().map(|end| end.time)
    }

    /// Returns since when the launch waits to be brought here; none if it does not, or no more.
    pub fn waits_since(&self) -> Option<Instant> {
        let waits = *lock(&self.waits);
        waits.filter(|_| self.ended().is_none())
    }

    /// Notes that the launch has a step on this node.
    pub fn bring(&self) {
        *lock(&self.waits) = None;
    }

    /// Aborts a launch that has not reached this node in time. If it does later, it must end.
    pub fn abort_with_reason(&self, reason: &str) {
        self.aborted.send_replace(true);
        self.end_for(reason);
    }

    /// Ends the launch; waiters of an exchange get an error.
    pub fn end(&self) {
        self.end_for("");
    }

    fn end_for(&self, reason: &str) {
        lock(&self.ending).get_or_insert_with(|| LaunchEnding {
            time: now(),
            reason: reason.to_owned(),
        });
        self.end_exchange(&Err(ExchangeEnd::LaunchEnded));
    }

    /// Ends this node's part, or prevents it from beginning.
    pub fn abort(&self) {
        self.aborted.send_replace(true);
        // The step's task is the other receiver.
        if self.aborted.receiver_count() == 0 {
            self.end();
        }
    }

    /// Whether this node's part is to end.
    pub fn is_aborted(&self) -> bool {
        *self.aborted.borrow()
    }

    /// Waits until this node's part is to end.
    pub async fn aborted(&self) {
        // Its sender is here.
        let _ = self.aborted.subscribe().wait_for(|aborted| *aborted).await;
    }

    /// Adds a node's part in an exchange; results are sent.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn arrive(
        &self,
        node: u32,
        entries: Entries,
    ) -> Result<oneshot::Receiver<ExchangeAnswer>, ExchangeError> {
        let (answer, receiver) = oneshot::channel();
        let ended = lock(&self.exchange).arrive(node, entries, answer)?;
        if let Some((waiting, merged)) = ended as Option<Ended<_>> {
            send_answers(waiting, &Ok(merged));
        }
        if self.ended().is_some() {
            // The launch may have ended before this part arrived.
            self.end_exchange(&Err(ExchangeEnd::LaunchEnded));
        }
        Ok(receiver)
    }

    /// Removes a node that takes part from the exchange: it waits no more.
    pub fn leave(&self, node: u32) {
        lock(&self.exchange).leave(node);
    }

    /// Fails an exchange to which not all nodes have come in time.
    pub fn fail_exchange(&self) {
        let missing = lock(&self.exchange).missing().into();
        self.end_exchange(&Err(ExchangeEnd::Missing(missing)));
    }

    /// Ends an exchange for all that wait; how many these are.
    pub fn end_exchange(&self, answer: &ExchangeAnswer) -> u32 {
        let waiting = lock(&self.exchange).complete();
        send_answers(waiting, answer)
    }

    /// Returns the state of the launch, in as many messages as needed.
    pub fn info(&self, ranks: bool) -> Vec<LaunchInfo> {
        let mut info = LaunchInfo {
            launch_id: self.id.clone(),
            allocation_id: self.allocation.clone(),
            uid: self.owner,
            state: LaunchState::Registered.into(),
            world_size: self.place.size,
            nodes: self
                .place
                .nodes
                .iter()
                .map(|node| node.name.clone())
                .collect(),
            head_node_index: self.place.head,
            node_index: self.place.local_node,
            start_ms: self.started,
            end_ms: self.ended().unwrap_or(0),
            ..Default::default()
        };
        let mut all: Vec<RankInfo> = Vec::new();
        match &self.head {
            Some(head) => {
                let progress = head.progress();
                let (state, reason) = progress.state();
                info.state = state.into();
                info.error_message = reason.to_owned();
                info.exit_code = progress.result().map(|result| result.exit_code);
                if ranks {
                    all = progress.ranks();
                }
            }
            None => {
                if let Some(end) = &*lock(&self.ending) {
                    info.state = LaunchState::Ended.into();
                    info.error_message.clone_from(&end.reason);
                }
            }
        }
        let mut parts = vec![info];
        for (index, ranks) in all.chunks(QUERY_RANKS).enumerate() {
            if index > 0 {
                parts.last_mut().expect("there is a first").more = true;
                parts.push(LaunchInfo {
                    launch_id: self.id.clone(),
                    ..Default::default()
                });
            }
            parts.last_mut().expect("there is a first").ranks = ranks.to_vec();
        }
        parts
    }
}

fn send_answers(waiting: Vec<oneshot::Sender<ExchangeAnswer>>, answer: &ExchangeAnswer) -> u32 {
    let results = waiting
        .into_iter()
        .map(|waiting| waiting.send(answer.clone()));
    // One that has stopped waiting was not answered.
    results
        .filter(Result::is_ok)
        .count()
        .try_into()
        .unwrap_or(u32::MAX)
}

impl LauncherState {
    /// Makes the state of a launcher that was just started.
    pub fn new(
        request: &LaunchRequest,
        stdin: Option<pipe::Sender>,
        orders: mpsc::UnboundedSender<LauncherCommand>,
    ) -> Self {
        Self {
            progress: Mutex::new(Progress::new(request.place.size, now())),
            changed: watch::Sender::new(()),
            output: Mutex::new(BufferedOutput::new(request.hold_output)),
            moved: watch::Sender::new(()),
            stdin: tokio::sync::Mutex::new(match stdin {
                Some(stdin) => Stdin::Open(stdin),
                None => Stdin::Nobody,
            }),
            orders,
            resizes: Mutex::default(),
        }
    }

    /// Passes a change of the hosts to the launcher. The receiver gets the reply; it is closed when the launcher has ended.
    pub fn resize(&self, command: ResizeCommand) -> oneshot::Receiver<ResizeReply> {
        let (sender, receiver) = oneshot::channel();
        let mut resizes = lock(&self.resizes);
        resizes.last_number += 1;
        let request = resizes.last_number;
        if self.order(LauncherCommand::Resize(ResizeCommand {
            request,
            ..command
        })) {
            resizes.waiting.insert(request, sender);
        }
        receiver
    }

    /// Passes on the launcher's reply to a change of the hosts.
    pub fn on_resize_reply(&self, reply: ResizeReplyRecord<'_>) {
        let result = match reply.message {
            Some(message) => Err(message.into_owned()),
            None => Ok(reply.changes),
        };
        self.end_resize(reply.request, result);
    }

    /// Refuses a change of the hosts that cannot be passed to the launcher.
    pub fn refuse_resize(&self, request: u64, reason: &str) {
        self.end_resize(request, Err(reason.to_owned()));
    }

    fn end_resize(&self, request: u64, result: ResizeReply) {
        if let Some(sender) = lock(&self.resizes).waiting.remove(&request) {
            // The caller may have given up.
            let _ = sender.send(result);
        }
    }

    /// Gives up the changes to which the launcher has not replied, after its end.
    pub fn drop_resizes(&self) {
        lock(&self.resizes).waiting.clear();
    }

    /// Returns the state, for reading.
    pub fn progress(&self) -> MutexGuard<'_, Progress> {
        lock(&self.progress)
    }

    /// Changes the state, and notifies watchers.
    pub fn learn(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut lock(&self.progress));
        self.changed.send_replace(());
    }

    /// Changes the output, and rings.
    pub fn output<T>(&self, change: impl FnOnce(&mut BufferedOutput) -> T) -> T {
        let result = change(&mut lock(&self.output));
        self.moved.send_replace(());
        result
    }

    /// Removes and returns the oldest output that was not read.
    pub fn take_output(&self) -> Option<StdioOutput> {
        let piece = lock(&self.output).pop();
        if piece.is_some() {
            self.moved.send_replace(());
        }
        piece
    }

    /// Looks at the output.
    pub fn output_is(&self, look: impl FnOnce(&BufferedOutput) -> bool) -> bool {
        look(&lock(&self.output))
    }

    /// Returns a signal that reports new information.
    pub fn news(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Rings when output has moved.
    pub fn moves(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    /// Tells the launcher's task; false if the launcher has ended.
    pub fn order(&self, order: LauncherCommand) -> bool {
        self.orders.send(order).is_ok()
    }
}

/// Locks data that no thread leaves half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since the epoch.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or(Duration::ZERO).as_millis()).unwrap_or(i64::MAX)
}
