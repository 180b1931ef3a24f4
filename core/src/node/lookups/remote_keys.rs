//! Reads of other jobs' PMI keys, on any node: one key, all pairs, or the existence of a job.
//!
//! ```text
//! requester's node ── Ask ──▶ the lowest node that hosts ranks of the job
//!                  ◀─ Told ──
//! ```
//! Rule: barriers and fences bring the keys of a job to the nodes that host ranks of it; other nodes request them
//! there. A spawned program may read its parents' keys, and its parents may read its keys, by the name of the job.
//! Source: docs/pmi-operations.md#spawn.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::job::ids::{JobIndex, LocalRank, NodeId, Nspace};
use crate::node::context::NodeContext;
use crate::node::event::PeerMessage;
use crate::node::node_service::NodeService;
use crate::node::service_messages::KeyMessage;
use crate::pmi::pmi_action::{KeyAnswer, RemoteKeyRead};

/// Rank that requests a key.
#[derive(Clone, Copy, Debug)]
pub(in crate::node) struct KeyRequester {
    pub(in crate::node) job: JobIndex,
    pub(in crate::node) rank: LocalRank,
    pub(in crate::node) number: u64,
}

/// Questions to other nodes.
#[derive(Debug, Default)]
pub(in crate::node) struct RemoteKeyReads {
    next: u64,
    waiting: BTreeMap<u64, (KeyRequester, NodeId)>,
}

/// Result of a lookup of a key on this node.
enum KeyLookup {
    Value(Vec<u8>),
    NoKey,
    NoJob,
    /// The owner is on these nodes.
    Elsewhere(NodeId),
}

impl RemoteKeyReads {
    /// Handles a rank's read of another job's keys.
    pub(in crate::node) fn request_key(
        &mut self,
        reply_to: KeyRequester,
        job: Nspace,
        request: RemoteKeyRead,
        cx: &mut NodeContext,
    ) {
        match self.find_key(&job, &request, cx) {
            KeyLookup::Value(value) => send_key_reply(reply_to, KeyAnswer::Value(&value), cx),
            KeyLookup::NoKey => send_key_reply(reply_to, KeyAnswer::NoKey, cx),
            KeyLookup::NoJob => send_key_reply(reply_to, KeyAnswer::NoJob, cx),
            KeyLookup::Elsewhere(to) => {
                self.next += 1;
                let number = self.next;
                self.waiting.insert(number, (reply_to, to));
                let message = PeerMessage::Key(KeyMessage::Ask {
                    number,
                    job,
                    request,
                });
                cx.send(to, message);
            }
        }
    }

    fn find_key(&self, job: &Nspace, request: &RemoteKeyRead, cx: &NodeContext) -> KeyLookup {
        let Some((_, member)) = cx.find_job(job.as_str()) else {
            return KeyLookup::NoJob;
        };
        let Some(server) = &member.pmi else {
            return KeyLookup::NoJob;
        };
        let hosting = member.context.nodes_with_ranks();
        let is_here = hosting.contains(&cx.node);
        // What its spawner put is everywhere, the rest is not.
        let found = (is_here || *request != RemoteKeyRead::Pairs)
            .then(|| server.serve_remote_read(request));
        if let Some(value) = found.flatten() {
            return KeyLookup::Value(value);
        }
        let living = hosting.iter().find(|node| !cx.lost_nodes.contains(*node));
        match living {
            Some(node) if !is_here => KeyLookup::Elsewhere(*node),
            _ => KeyLookup::NoKey,
        }
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: KeyMessage,
        cx: &mut NodeContext,
    ) {
        match message {
            KeyMessage::Ask {
                number,
                job,
                request,
            } => {
                let value = match self.find_key(&job, &request, cx) {
                    KeyLookup::Value(value) => Some(value),
                    KeyLookup::NoKey | KeyLookup::NoJob | KeyLookup::Elsewhere(_) => None,
                };
                let message = PeerMessage::Key(KeyMessage::Value { number, value });
                cx.send(from, message);
            }
            KeyMessage::Value { number, value } => {
                if let Some((asker, _)) = self.waiting.remove(&number) {
                    let answer = value.as_deref();
                    let answer = answer.map_or(KeyAnswer::NoKey, KeyAnswer::Value);
                    send_key_reply(asker, answer, cx);
                }
            }
        }
    }
}

impl NodeService for RemoteKeyReads {
    /// Keys that were put on a lost node are unknown.
    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        let lost = self.waiting.extract_if(.., |_, (_, at)| *at == node);
        for (_, (asker, _)) in lost {
            send_key_reply(asker, KeyAnswer::NoKey, cx);
        }
    }
}

fn send_key_reply(to: KeyRequester, answer: KeyAnswer<'_>, cx: &mut NodeContext) {
    cx.with_pmi(to.job, |server| {
        server.key_answer(to.rank, to.number, answer);
    });
}
