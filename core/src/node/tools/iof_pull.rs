//! Output of processes for subscribers (`PMIx_IOF_pull`) on any node.
//!
//! ```text
//! requester's node ── Want ──▶ the writers' nodes, which pass on data from their pipes:
//! pipe ─▶ Output ──▶ requester's node ─▶ sidecar ─▶ its clients; then Taken ──▶ back
//! ```
//! Rule: of each stream and for each subscribed node, at most some `AHEAD` bytes are in transit; then the pipe is not
//! read until they are taken. This also delays the user's own stream.
//! Rule: libpmix identifies neither a subscriber nor the subscription that ends. So a node stays subscribed to
//! everything that was requested until its last subscriber has ended. Source: docs/pmix-output.md.

mod output_cache;
mod tool_output;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use output_cache::OutputCache;
use tool_output::EarlyOutput;

use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank};
use crate::node::context::NodeContext;
use crate::node::context::pmi_state::PmixState;
use crate::node::context::sidecar_monitor::SidecarState;
use crate::node::event::{NodeAction, Notification, PeerMessage};
use crate::node::node_service::NodeService;
use crate::node::service_messages::{IofPullMessage, OutputCacheRequest};
use crate::pmix::keys;
use crate::pmix::sidecar_link::RequestId;
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::value::{Channels, Info, PmixProc, Value, find};

/// Bytes of a stream that may be on their way to a node before its pipe is left alone.
const AHEAD: usize = 1 << 20;

/// Streams that a subscriber can request.
const STREAMS: [Channels; 2] = [Channels::STDOUT, Channels::STDERR];

/// A stream of a process of this node.
type LocalStream = (NodeRank, u16);

/// A piece of output for processes of this node, whose delivery must be acknowledged.
#[derive(Debug)]
struct OutputPiece {
    delivery: OutputDelivery,
    /// Bytes as read; nothing at the end of the stream.
    data: Vec<u8>,
}

/// The delivery of a piece of output. The node of the process is notified when the piece was taken.
#[derive(Debug)]
struct OutputDelivery {
    /// The node of the process.
    from: NodeId,
    process: GlobalRank,
    channel: Channels,
    bytes: usize,
}

/// The subscription of one node.
#[derive(Debug, Default)]
struct IofSubscriber {
    wants: BTreeSet<LocalStream>,
    /// Streams that the node has requested, ended ones included.
    requested_streams: BTreeSet<LocalStream>,
    /// Streams that the launcher does not get.
    claims: BTreeSet<LocalStream>,
    /// Bytes it has not taken yet.
    ahead: BTreeMap<LocalStream, usize>,
}

/// A node's part in forwarding output.
#[derive(Debug, Default)]
pub(in crate::node) struct IofPulls {
    cache: OutputCache,
    /// Subscriptions to output of this node's processes.
    readers: BTreeMap<NodeId, IofSubscriber>,
    /// Streams that are not read for now.
    held_streams: BTreeSet<LocalStream>,
    /// Number of open requests of this node's processes.
    pulls: u32,
    /// The nodes that have subscriptions of this one.
    subscribed_nodes: BTreeSet<NodeId>,
    /// Pieces that the sidecar has not accepted yet.
    delivering: BTreeMap<RequestId, OutputDelivery>,
    /// Output of jobs that tools here have spawned, until libpmix knows the recipient.
    early_output: BTreeMap<JobIndex, EarlyOutput>,
    /// Streams whose ends this node's processes and tools have not got yet.
    awaited: BTreeSet<(GlobalRank, u16)>,
    /// Ends of jobs of which a tool here is notified when it has got their output, or at that time.
    ends: BTreeMap<JobIndex, (Moment, Notification)>,
}

impl IofPulls {
    /// Whether this node's processes have subscriptions.
    pub(in crate::node) fn is_asking(&self) -> bool {
        self.pulls > 0
    }

    /// Whether this stream of a local process has a subscriber.
    #[cfg(test)]
    fn wants_output(&self, at: NodeRank, channel: Channels) -> bool {
        let mut readers = self.readers.values();
        readers.any(|reader| reader.wants.contains(&(at, channel.0)))
    }

    /// Whether this stream of a local process is not for the launcher: a tool gets it.
    pub(in crate::node) fn claims(&self, at: NodeRank, channel: Channels) -> bool {
        let mut readers = self.readers.values();
        readers.any(|reader| reader.claims.contains(&(at, channel.0)))
    }

    /// Whether another node gets output from this one.
    pub(in crate::node) fn has_readers(&self) -> bool {
        let mut readers = self.readers.values();
        readers.any(|reader| !reader.wants.is_empty())
    }

    /// Subscribes a local process to output of others, or ends a subscription. libpmix does not identify the process.
    pub(in crate::node) fn subscribe(
        &mut self,
        procs: &[PmixProc],
        infos: &[Info],
        channels: Channels,
        cx: &mut NodeContext,
    ) {
        if !matches!(find(infos, keys::IOF_STOP), None | Some(Value::Bool(false))) {
            self.pulls = self.pulls.saturating_sub(1);
            if self.pulls == 0 {
                self.unsubscribe_all(cx);
            }
            return;
        }
        self.pulls += 1;
        let mut by_node = BTreeMap::<NodeId, Vec<GlobalRank>>::new();
        // There is no answer that could report unknown processes.
        let members = cx.members(procs).unwrap_or_default();
        let streams = STREAMS.into_iter().filter(|stream| channels.has(*stream));
        let streams: Vec<Channels> = streams.collect();
        self.await_output(members.iter().copied(), &streams);
        for process in members {
            if let Some(node) = cx.jobs.node_of(process) {
                by_node.entry(node).or_default().push(process);
            }
        }
        for (to, processes) in by_node {
            self.subscribed_nodes.insert(to);
            let message = IofPullMessage::Want {
                processes,
                channels,
                cached: OutputCacheRequest::from_infos(infos),
            };
            self.send(to, message, cx);
        }
    }

    /// Cancels all subscriptions of this node.
    fn unsubscribe_all(&mut self, cx: &mut NodeContext) {
        self.pulls = 0;
        self.awaited.clear();
        self.notify_due_ends(true, cx);
        for to in std::mem::take(&mut self.subscribed_nodes) {
            self.send(to, IofPullMessage::WantNothing, cx);
        }
    }

    /// Removes subscriptions of processes that have ended.
    pub(in crate::node) fn unsubscribe_ended(&mut self, cx: &mut NodeContext) {
        let gone = cx.tools.is_empty() && !cx.pmix_states.contains(&PmixState::Connected);
        if self.is_asking() && gone {
            self.unsubscribe_all(cx);
        }
    }

    /// Handles the loss of the sidecar: acknowledges pending deliveries, drops early output and cancels all
    /// subscriptions.
    pub(in crate::node) fn sidecar_lost(&mut self, cx: &mut NodeContext) {
        for (_, delivery) in std::mem::take(&mut self.delivering) {
            self.acknowledge_output(delivery, cx);
        }
        while let Some(job) = self.early_output.keys().next().copied() {
            self.drop_early_output(job, cx);
        }
        self.unsubscribe_all(cx);
    }

    /// Passes on output that was read; an empty read is the end of the stream.
    pub(in crate::node) fn pass_output(
        &mut self,
        at: NodeRank,
        channel: Channels,
        bytes: &[u8],
        cx: &mut NodeContext,
    ) {
        let stream = (at, channel.0);
        self.cache.add(stream, bytes);
        let readers = self.readers.iter();
        let readers = readers.filter(|(_, reader)| reader.wants.contains(&stream));
        let readers: Vec<NodeId> = readers.map(|(node, _)| *node).collect();
        for to in readers {
            self.forward_output(to, stream, bytes.to_vec(), cx);
        }
    }

    /// Passes a piece of a local stream on to a subscribed node.
    fn forward_output(
        &mut self,
        to: NodeId,
        stream: LocalStream,
        bytes: Vec<u8>,
        cx: &mut NodeContext,
    ) {
        let (rank, channel) = (stream.0, Channels(stream.1));
        if let Some(reader) = self.readers.get_mut(&to) {
            let ahead = reader.ahead.entry(stream).or_default();
            *ahead += bytes.len();
            if *ahead >= AHEAD && self.held_streams.insert(stream) {
                cx.order(NodeAction::HoldOutput {
                    rank,
                    channel,
                    is_held: true,
                });
            }
            if bytes.is_empty() {
                reader.wants.remove(&stream);
                reader.claims.remove(&stream);
            }
        }
        let process = cx.process(rank);
        let message = IofPullMessage::Output {
            process,
            channel,
            bytes,
        };
        self.send(to, message, cx);
    }

    fn send(&mut self, to: NodeId, message: IofPullMessage, cx: &mut NodeContext) {
        match to == cx.node {
            true => self.peer_message(to, message, cx),
            false => cx.send(to, PeerMessage::Output(message)),
        }
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: IofPullMessage,
        cx: &mut NodeContext,
    ) {
        match message {
            IofPullMessage::Want {
                processes,
                channels,
                cached,
            } => {
                let here = processes.into_iter().filter_map(|p| cx.local(p));
                let streams = here.flat_map(|at| STREAMS.map(|stream| (at, stream.0)));
                let streams = streams.filter(|(_, stream)| channels.has(Channels(*stream)));
                let streams: Vec<LocalStream> = streams.collect();
                self.on_output_request(from, &streams, cached, cx);
            }
            IofPullMessage::Unclaimed { processes } => {
                let here = processes.into_iter().filter_map(|p| cx.local(p));
                let here: BTreeSet<NodeRank> = here.collect();
                if let Some(reader) = self.readers.get_mut(&from) {
                    reader.claims.retain(|(at, _)| !here.contains(at));
                }
            }
            IofPullMessage::WantNothing => {
                self.readers.remove(&from);
                self.release(cx);
            }
            IofPullMessage::Output {
                process,
                channel,
                bytes,
            } => {
                let delivery = OutputDelivery {
                    from,
                    process,
                    channel,
                    bytes: bytes.len(),
                };
                let data = bytes;
                self.deliver(OutputPiece { delivery, data }, cx);
            }
            IofPullMessage::Taken {
                process,
                channel,
                bytes,
            } => {
                let at = cx.local(process);
                let reader = self.readers.get_mut(&from);
                let ahead = reader.zip(at);
                let ahead = ahead.and_then(|(reader, at)| reader.ahead.get_mut(&(at, channel.0)));
                if let Some(ahead) = ahead {
                    *ahead = ahead.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
                    self.release(cx);
                }
            }
        }
    }

    /// Streams are read again of which no node is far behind.
    fn release(&mut self, cx: &mut NodeContext) {
        let readers = &self.readers;
        let behind = |stream: &LocalStream| {
            let ahead = readers.values().filter_map(|r| r.ahead.get(stream));
            ahead.max().is_some_and(|ahead| *ahead > AHEAD / 2)
        };
        let released: Vec<LocalStream> = self.held_streams.iter().copied().collect();
        for stream in released.into_iter().filter(|stream| !behind(stream)) {
            self.held_streams.remove(&stream);
            cx.order(NodeAction::HoldOutput {
                rank: stream.0,
                channel: Channels(stream.1),
                is_held: false,
            });
        }
    }

    /// Delivers output of a process to local processes.
    fn deliver(&mut self, piece: OutputPiece, cx: &mut NodeContext) {
        let (from, process) = (piece.delivery.from, piece.delivery.process);
        let job = cx.jobs.find(process).map(|(job, _)| job);
        if let Some(early) = job.and_then(|job| self.early_output.get_mut(&job)) {
            early.pieces.push(piece);
            return;
        }
        let OutputPiece { delivery, data } = piece;
        // Its node may have got the request to forward it after the end of the tool.
        let tool = job.and_then(|job| cx.job(job).requester.tool());
        if tool.is_some_and(|tool| tool.node == cx.node && !cx.tools.is_attached(&tool.name)) {
            let processes = vec![process];
            self.send(from, IofPullMessage::Unclaimed { processes }, cx);
        }
        if job.is_none() || !self.is_asking() || cx.sidecar.state != SidecarState::Ready {
            return self.acknowledge_output(delivery, cx);
        }
        let name = cx.name_of(process);
        let control = SidecarCommand::IofDeliver {
            source: PmixProc::from(&name),
            channel: delivery.channel,
            data,
        };
        match cx.control(&control) {
            Some(id) => drop(self.delivering.insert(id, delivery)),
            None => self.acknowledge_output(delivery, cx),
        }
    }

    /// Handles the sidecar's reply to a delivery: passed on or failed, as the subscribers may have ended.
    pub(in crate::node) fn delivered(&mut self, id: RequestId, cx: &mut NodeContext) {
        if let Some(delivery) = self.delivering.remove(&id) {
            self.acknowledge_output(delivery, cx);
        }
    }

    fn acknowledge_output(&mut self, delivery: OutputDelivery, cx: &mut NodeContext) {
        let OutputDelivery {
            from: to,
            process,
            channel,
            bytes,
        } = delivery;
        if bytes == 0 {
            self.awaited.remove(&(process, channel.0));
            if !self.ends.is_empty() {
                self.notify_due_ends(false, cx);
            }
        } else {
            let message = IofPullMessage::Taken {
                process,
                channel,
                bytes: bytes as u64,
            };
            self.send(to, message, cx);
        }
    }
}

impl NodeService for IofPulls {
    fn next_deadline(&self) -> Option<Moment> {
        self.ends.values().map(|(until, _)| *until).min()
    }

    /// Removes the subscriptions and pending pieces of a lost node.
    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        self.subscribed_nodes.remove(&node);
        let jobs = &cx.jobs;
        let there = |process| jobs.node_of(process) == Some(node);
        self.awaited.retain(|(process, _)| !there(*process));
        self.readers.remove(&node);
        self.release(cx);
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        self.notify_due_ends(false, cx);
    }
}

#[cfg(test)]
mod tests;
