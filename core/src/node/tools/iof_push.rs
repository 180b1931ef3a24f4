//! Input for processes from processes (`PMIx_IOF_push`) on any nodes.
//!
//! ```text
//! pusher's node ── Give ──▶ the readers' nodes, which write it into their pipes;
//!               ◀── Done ── when all of it is there
//! ```
//! Rule: a push is answered when every reader's pipe has it, so a slow reader slows down a sender
//! that waits for answers. Rule: only ranks that were spawned with a pipe for it can be given input
//! (`PMIX_FWD_STDIN`); others have the launcher's, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::job::ids::{GlobalRank, NodeId, NodeRank};
use crate::node::context::NodeContext;
use crate::node::event::{NodeAction, PeerMessage, StdinWriteResult};
use crate::node::node_service::NodeService;
use crate::node::service_messages::IofPushMessage;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::value::{PmixProc, Status};

/// A push of this node's processes.
#[derive(Debug)]
struct IofPush {
    id: UpcallId,
    waiting: BTreeSet<NodeId>,
    status: Status,
}

/// Pushes that are being written on this node.
#[derive(Debug)]
struct IofPushWrite {
    from: NodeId,
    push: u64,
    pending_ranks: BTreeSet<NodeRank>,
    status: Status,
}

/// A node's part in pushing input.
#[derive(Debug, Default)]
pub(in crate::node) struct IofPushes {
    next: u64,
    pushes: BTreeMap<u64, IofPush>,
    writing: BTreeMap<u64, IofPushWrite>,
}

impl IofPushes {
    /// Pushes input of a `PMIx_IOF_push` to its readers; no data is the end of the input.
    pub(in crate::node) fn push(
        &mut self,
        id: UpcallId,
        targets: &[PmixProc],
        data: &[u8],
        cx: &mut NodeContext,
    ) {
        let processes = match cx.members(targets) {
            Some(processes) if !processes.is_empty() => processes,
            Some(_) => return cx.answer_status(id, Status::ERR_BAD_PARAM),
            None => return cx.answer_status(id, Status::ERR_NOT_FOUND),
        };
        let mut by_node = BTreeMap::<NodeId, Vec<GlobalRank>>::new();
        for process in processes {
            let node = cx.jobs.node_of(process).unwrap_or(cx.node);
            by_node.entry(node).or_default().push(process);
        }
        self.next += 1;
        let push = self.next;
        let entry = IofPush {
            id,
            waiting: by_node.keys().copied().collect(),
            status: Status::SUCCESS,
        };
        self.pushes.insert(push, entry);
        for (to, processes) in by_node {
            let bytes = data.to_vec();
            let message = IofPushMessage::Give {
                push,
                processes,
                bytes,
            };
            self.send_input(to, message, cx);
        }
    }

    fn send_input(&mut self, to: NodeId, message: IofPushMessage, cx: &mut NodeContext) {
        match to == cx.node {
            true => self.input_message(to, message, cx),
            false => cx.send(to, PeerMessage::Input(message)),
        }
    }

    pub(in crate::node) fn input_message(
        &mut self,
        from: NodeId,
        message: IofPushMessage,
        cx: &mut NodeContext,
    ) {
        match message {
            IofPushMessage::Give {
                push,
                processes,
                bytes,
            } => {
                let left = processes.into_iter().filter_map(|p| cx.local(p));
                let left: BTreeSet<NodeRank> = left.collect();
                let ranks: Vec<NodeRank> = left.iter().copied().collect();
                self.next += 1;
                let number = self.next;
                let writing = IofPushWrite {
                    from,
                    push,
                    pending_ranks: left,
                    status: Status::SUCCESS,
                };
                self.writing.insert(number, writing);
                match ranks.is_empty() {
                    true => self.complete_push_write(number, cx),
                    false => cx.order(NodeAction::WriteStdin {
                        number,
                        ranks,
                        bytes,
                    }),
                }
            }
            IofPushMessage::Done { push, status } => self.on_push_reply(push, from, status, cx),
        }
    }

    /// Handles the result of a write of input to a rank here.
    pub(in crate::node) fn on_stdin_written(
        &mut self,
        number: u64,
        rank: NodeRank,
        result: StdinWriteResult,
        cx: &mut NodeContext,
    ) {
        let Some(writing) = self.writing.get_mut(&number) else {
            return;
        };
        writing.pending_ranks.remove(&rank);
        let status = match result {
            StdinWriteResult::Done => Status::SUCCESS,
            StdinWriteResult::Gone => Status::ERR_UNREACH,
            StdinWriteResult::NoPipe => Status::ERR_NOT_SUPPORTED,
            StdinWriteResult::Full => Status::ERR_OUT_OF_RESOURCE,
        };
        if status != Status::SUCCESS {
            writing.status = status;
        }
        self.complete_push_write(number, cx);
    }

    fn complete_push_write(&mut self, number: u64, cx: &mut NodeContext) {
        let done = |writing: &IofPushWrite| writing.pending_ranks.is_empty();
        if !self.writing.get(&number).is_some_and(done) {
            return;
        }
        if let Some(written) = self.writing.remove(&number) {
            let (push, status) = (written.push, written.status);
            self.send_input(written.from, IofPushMessage::Done { push, status }, cx);
        }
    }

    fn on_push_reply(&mut self, push: u64, by: NodeId, status: Status, cx: &mut NodeContext) {
        let Some(entry) = self.pushes.get_mut(&push) else {
            return;
        };
        if entry.waiting.remove(&by) && status != Status::SUCCESS {
            entry.status = status;
        }
        if entry.waiting.is_empty() {
            let (id, status) = (entry.id, entry.status);
            self.pushes.remove(&push);
            cx.answer_status(id, status);
        }
    }
}

impl NodeService for IofPushes {
    /// Removes the processes of a lost node from pending pushes.
    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        let waiting = self.pushes.iter();
        let waiting = waiting.filter(|(_, push)| push.waiting.contains(&node));
        let waiting: Vec<u64> = waiting.map(|(number, _)| *number).collect();
        for push in waiting {
            self.on_push_reply(push, node, Status::ERR_UNREACH, cx);
        }
    }

    /// Answers all pending pushes.
    fn tear_down(&mut self, cx: &mut NodeContext) {
        for (_, push) in std::mem::take(&mut self.pushes) {
            cx.answer_status(push.id, Status::ERR_LOST_CONNECTION);
        }
    }
}

#[cfg(test)]
mod tests;
