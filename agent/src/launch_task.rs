//! Runs one launch at this agent: one task that owns its links and executes the router's actions.

mod child_agents;
mod router_actions;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::stream::{self, AbortHandle, BoxStream, SelectAll};
use futures_util::{Stream, StreamExt};
use prost::bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tracing::{info, warn};

use crate::budget::BudgetAccount;
use crate::launch::descriptor::LaunchDescriptor;
use crate::launch::frame_link::{LinkInput, LinkReader, LinkWriter};
use crate::launch::frame_router::{Neighbour, Router, RouterAction, RouterEvent, TreePosition};
use crate::launch::joining_nodes::{GrowthAssembler, LauncherMessage};
use crate::launch::launch_registry::LaunchRegistration;
use crate::launch::queue::LinkQueue;
use crate::launch::step_process::{StepProcess, start};
use crate::launch::step_watch::StepWatch;
use crate::memory;
use crate::peer::peer_connection::{PeerConnection, ResolvedPeers};
use crate::proto::v1;
use crate::state::Agent;
use crate::user::User;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{LaunchSummary, StepCommand, VERSION};
use wireup_core::link::encode;
use wireup_core::link::liveness::{LivenessAction, LivenessMessage};

/// Time for a step after the notice that the launch is orphaned: it gives its ranks two seconds and kills them. Then
/// the step is killed, and its guard cleans up.
const ORPHAN_LIMIT: Duration = Duration::from_secs(20);

/// For this time the task only waits for name look-ups; after it they run concurrently. A caller
/// that waits for a sign of life has to have it soon.
const NAMES_FIRST: Duration = Duration::from_millis(800);

/// Interval of checks for a step that must end while it is being started.
const STARTING: Duration = Duration::from_millis(50);

/// Refused frames of one launch that are logged, and losses.
const LINES: u32 = 10;

/// From this number of other agents on, a launch's memory is returned to the kernel some time after
/// its end.
const WIDE: usize = 64;

/// The origin of a launch.
pub enum LaunchSource {
    /// The launcher, on this machine.
    Launcher {
        reader: LinkReader,
        writer: LinkWriter,
        /// Connection of the launcher, if it is root's.
        root: Option<OwnedFd>,
    },
    /// Agent of another node.
    Agent {
        name: String,
        queue: LinkQueue<v1::PeerUp>,
        /// From it; ends with [`RouterEvent::UpGone`].
        events: BoxStream<'static, RouterEvent>,
    },
}

/// Destination of upward messages.
enum UpstreamLink {
    Launcher(LinkWriter),
    Agent(LinkQueue<v1::PeerUp>),
    Gone,
}

struct ChildLink {
    /// Dropped to end the stream.
    queue: Option<LinkQueue<v1::PeerDown>>,
    /// Connection of the stream, kept until it is made; dropped with the queue.
    connection: Option<Arc<PeerConnection>>,
    /// Ends the input from the child.
    abort: AbortHandle,
}

struct LaunchTask {
    agent: Arc<Agent>,
    account: Arc<BudgetAccount>,
    launch: String,
    /// Without the messages to the steps. Only if nodes can join.
    descriptor: Option<LaunchDescriptor>,
    router: Router,
    events: SelectAll<BoxStream<'static, RouterEvent>>,
    upstream: UpstreamLink,
    step: Option<(LinkWriter, StepProcess)>,
    /// Monitor of the step's liveness.
    watch: StepWatch,
    children: BTreeMap<NodeId, ChildLink>,
    /// Whether queued data waits until other tasks have run.
    is_gathering: bool,
    /// Timer after which the step is killed.
    step_kill_timer: Pin<Box<Sleep>>,
    orphaned: bool,
    /// Summary that the launcher sends at its end; `None` if the launcher is on another machine.
    summary: Option<Arc<OnceLock<LaunchSummary>>>,
    refused_frames: u32,
    losses: u32,
}

/// Takes part in a launch until nothing of it is left here.
pub async fn run_launch(
    agent: Arc<Agent>,
    descriptor: LaunchDescriptor,
    user: User,
    place: TreePosition,
    mut above: LaunchSource,
    registration: LaunchRegistration,
) {
    let begun = Instant::now();
    let who = match &above {
        LaunchSource::Launcher { .. } => "its launcher".to_owned(),
        LaunchSource::Agent { name, .. } => name.clone(),
    };
    let (launch, uid) = (descriptor.launch.clone(), descriptor.uid);
    let nodes = descriptor.spread.nodes.len();
    if let LaunchSource::Launcher { writer, .. } = &mut above {
        // Its own limit may be longer than this agent's. A queue that is full is noticed when more is sent.
        let _ = writer.sign(LivenessMessage::Alive {
            silence: Some(agent.liveness_limit),
        });
        let _ = poll_fn(|cx| Poll::Ready(writer.poll_flush(cx))).await;
    }
    match place.node() {
        Some(node) => {
            info!(%launch, uid, "begins as node {} of {nodes}, brought by {who}", node.0);
        }
        None => {
            info!(%launch, uid, "begins; its launcher is on this host, its {nodes} nodes are on others")
        }
    }
    agent.counters.parts.add(1);
    let scheduled = agent.scheduled.part(&descriptor.scheduled, uid);
    let router = Router::new(place, descriptor.tree());
    let below = router.child_nodes();
    // Nothing is started for a launch with nodes that cannot be found.
    let finding = agent.peers.find(&descriptor, &below, &registration.account);
    let found = timeout(NAMES_FIRST, finding).await.unwrap_or_default();
    let wide = below.len() > WIDE;
    let mut task = LaunchTask::start(
        &agent,
        descriptor,
        user,
        router,
        above,
        &registration,
        found,
    );
    let step = task.step.as_ref().map(|(_, process)| process.clone());
    let aborted = async {
        match &scheduled {
            Some(part) => part.aborted().await,
            None => std::future::pending().await,
        }
    };
    let abort = async {
        if let Some(step) = step {
            let mut signals = agent.registry.step_signals();
            let passed = async {
                loop {
                    match signals.recv().await {
                        Ok(signal) => drop(step.signal(signal)),
                        // More of them at once than are kept.
                        Err(RecvError::Lagged(_)) => {}
                        Err(RecvError::Closed) => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                () = aborted => {}
                () = agent.registry.steps_end() => {}
                () = passed => {}
            }
            while !step.end() {
                sleep(STARTING).await;
            }
        }
        // The step reports later events.
        std::future::pending::<()>().await;
    };
    let reason = tokio::select! {
        reason = task.run() => reason,
        () = abort => unreachable!("it is never over"),
    };
    if let Some(part) = scheduled {
        part.end();
    }
    if let Some(summary) = task.summary.take() {
        agent.counters.launch_ended(summary.get());
    }
    drop(task);
    drop(registration);
    if wide {
        memory::schedule_trim(&agent.background);
    }
    let seconds = begun.elapsed().as_secs_f64();
    info!(%launch, uid, "ended after {seconds:.3} s: {reason}");
}

impl LaunchTask {
    fn start(
        agent: &Arc<Agent>,
        opening: LaunchDescriptor,
        user: User,
        router: Router,
        above: LaunchSource,
        registration: &LaunchRegistration,
        found: ResolvedPeers,
    ) -> Self {
        let (place, account) = (router.place(), &registration.account);
        let mut events = SelectAll::new();
        let mut caller = None;
        let mut summary: Option<Arc<OnceLock<LaunchSummary>>> = None;
        let up = match above {
            LaunchSource::Launcher {
                reader,
                writer,
                root,
            } => {
                caller = root;
                let end = summary.insert(Arc::default()).clone();
                events.push(launcher(reader, GrowthAssembler::new(account), end).boxed());
                UpstreamLink::Launcher(writer)
            }
            LaunchSource::Agent {
                queue,
                events: from,
                ..
            } => {
                events.push(from);
                UpstreamLink::Agent(queue)
            }
        };
        let mut step = None;
        let absent = found.missing.len();
        let not_contacted_reason =
            || format!("not contacted: {absent} of the hosts cannot be found");
        if absent > 0 {
            let reason = not_contacted_reason();
            events.push(stream::iter([RouterEvent::StepGone { reason }]).boxed());
        } else if let Some(node) = place.node() {
            let steps = Arc::clone(&agent.step_spawner);
            match start(
                user,
                steps,
                &opening.launch,
                account,
                caller,
                &agent.background,
            ) {
                Ok((mut writer, from)) => {
                    let begin = StepCommand::Begin {
                        version: VERSION,
                        node,
                        launch: opening.launch.clone(),
                        spread: opening.spread.clone(),
                        description: opening.description.to_vec(),
                        silence: agent.liveness_limit,
                    };
                    let begin = account.count_message(Bytes::from(encode(&begin)));
                    writer
                        .control(&begin)
                        .expect("an opening is smaller than what may wait");
                    step = Some((writer, from.process.clone()));
                    events.push(from.boxed());
                }
                Err(error) => {
                    let reason = format!("cannot start its step: {error}");
                    events.push(stream::iter([RouterEvent::StepGone { reason }]).boxed());
                }
            }
        }
        let mut task = Self {
            agent: Arc::clone(agent),
            account: Arc::clone(account),
            launch: opening.launch.clone(),
            descriptor: None,
            router,
            events,
            upstream: up,
            step,
            watch: StepWatch::new(agent.liveness_limit),
            children: BTreeMap::new(),
            is_gathering: false,
            step_kill_timer: Box::pin(sleep(ORPHAN_LIMIT)),
            orphaned: false,
            summary,
            refused_frames: 0,
            losses: 0,
        };
        for node in task.router.child_nodes() {
            match found.missing.get(&node) {
                Some(error) => task.not_contacted(node, error.to_string()),
                None if absent > 0 => task.not_contacted(node, not_contacted_reason()),
                None => task.contact(&opening, node),
            }
        }
        for (node, connection) in found.connections {
            if let Some(child) = task.children.get_mut(&node) {
                child.connection = Some(connection);
            }
        }
        if place.node() == Some(NodeId(0)) {
            task.descriptor = Some(opening.without_description());
        }
        task
    }

    /// Runs until nothing is left; returns the reason of the end.
    async fn run(&mut self) -> String {
        let mut actions = Vec::new();
        let mut why = String::new();
        loop {
            let mut event = poll_fn(|cx| self.poll_event(cx)).await;
            if let RouterEvent::Carried(from, packet) = &mut event {
                packet.body = self.account.count_message(std::mem::take(&mut packet.body));
                if self.is_agent(*from) {
                    self.agent.counters.received.add(packet.body.len() as u64);
                }
            }
            match &event {
                RouterEvent::Carried(Neighbour::Step, _)
                | RouterEvent::Signed(Neighbour::Step, _) => {
                    self.watch.on_alive();
                }
                RouterEvent::StepGone { .. } => self.watch.end(),
                RouterEvent::UpGone { reason } => {
                    self.upstream = UpstreamLink::Gone;
                    if why.is_empty() {
                        why.clone_from(reason);
                    }
                }
                _ => {}
            }
            self.router.handle(event, &mut actions);
            while !actions.is_empty() {
                // What cannot be queued is an event, which may have actions in turn.
                let mut troubles = Vec::new();
                for action in actions.drain(..) {
                    if matches!(action, RouterAction::End) {
                        return why;
                    }
                    troubles.extend(self.perform(action));
                }
                for trouble in troubles {
                    self.router.handle(trouble, &mut actions);
                }
            }
        }
    }

    /// Whether a neighbour is another agent.
    fn is_agent(&self, neighbour: Neighbour) -> bool {
        match neighbour {
            Neighbour::Up => matches!(self.upstream, UpstreamLink::Agent(_)),
            Neighbour::Step => false,
            Neighbour::Child(_) => true,
        }
    }

    /// Returns the next event. Without one it writes queued data as far as possible: one write, and one wake-up of the
    /// neighbour, for all messages that have arrived meanwhile.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<RouterEvent> {
        // The router ends the launch before its last link is gone.
        if let Poll::Ready(Some(event)) = self.events.poll_next_unpin(cx) {
            return Poll::Ready(event);
        }
        // Connections that have received data are read first.
        self.is_gathering = !self.is_gathering && self.has_queued();
        if self.is_gathering {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Both are polled again when they can go on.
        if let UpstreamLink::Launcher(writer) = &mut self.upstream {
            let _ = writer.poll_flush(cx);
        }
        self.flush_step(cx);
        if let Some((_, process)) = &self.step
            && self.orphaned
            && self.step_kill_timer.as_mut().poll(cx).is_ready()
        {
            warn!(launch = %self.launch, "killed its step, which did not end in time");
            process.kill();
            self.orphaned = false;
        }
        self.poll_watch(cx)
    }

    /// Whether data waits to be written to a local neighbour.
    fn has_queued(&self) -> bool {
        let launcher = match &self.upstream {
            UpstreamLink::Launcher(writer) => writer.waits(),
            _ => false,
        };
        launcher || self.step.as_ref().is_some_and(|(step, _)| step.waits())
    }

    /// Writes queued data to the step. Only a read by the step makes room in a full socket, so it is a sign of life: a probe
    /// may be behind the queued data.
    fn flush_step(&mut self, cx: &mut Context<'_>) {
        let Some((writer, _)) = &mut self.step else {
            return;
        };
        let blocked = writer.blocked_bytes();
        let _ = writer.poll_flush(cx);
        if blocked.is_some_and(|blocked| writer.queued_bytes() < blocked) {
            self.watch.on_alive();
        }
    }

    /// Checks whether the step is alive, after all input has been read.
    fn poll_watch(&mut self, cx: &mut Context<'_>) -> Poll<RouterEvent> {
        while let Some((_, process)) = &self.step {
            match ready!(self.watch.poll_look(process, cx)) {
                LivenessAction::Fine => {}
                LivenessAction::Ask => {
                    if let Some(event) = self.sign(Neighbour::Step, LivenessMessage::Ask) {
                        return Poll::Ready(event);
                    }
                    self.flush_step(cx);
                }
                LivenessAction::Silent => {
                    process.kill_for_silence(self.watch.limit());
                    warn!(launch = %self.launch, "killed its step, which is silent");
                    return Poll::Pending;
                }
            }
        }
        Poll::Pending
    }
}

/// Returns the launcher's messages as events, and then its end.
fn launcher(
    reader: LinkReader,
    mut pieces: GrowthAssembler,
    summary: Arc<OnceLock<LaunchSummary>>,
) -> impl Stream<Item = RouterEvent> + Send {
    let gone = |reason: &str| RouterEvent::UpGone {
        reason: reason.to_owned(),
    };
    let events = reader.filter_map(move |incoming| {
        let event = match incoming {
            Ok(LinkInput::Carried(packet)) => Some(RouterEvent::Carried(Neighbour::Up, packet)),
            Ok(LinkInput::Sign(sign)) => Some(RouterEvent::Signed(Neighbour::Up, sign)),
            Ok(LinkInput::Control { more, body }) => {
                match pieces.push_launcher_piece(&body, more) {
                    Ok(Some(LauncherMessage::Growth(growth))) => Some(RouterEvent::Grow(growth)),
                    Ok(Some(LauncherMessage::Ended(end))) => {
                        // The first word counts.
                        let _ = summary.set(end);
                        None
                    }
                    Ok(None) => None,
                    Err(what) => Some(gone(&format!("the launcher sent {what}"))),
                }
            }
            Err(error) => Some(gone(&format!("the launcher is lost: {error}"))),
        };
        std::future::ready(event)
    });
    let ended = gone("the launcher has ended");
    events.chain(stream::iter([ended]))
}
