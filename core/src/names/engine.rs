//! One node's way to the launch's store: requests go to the head node, each gets one answer.
//!
//! Every node has an engine; that of the head node holds the [`Store`], which is made when it is
//! first needed. From the first request on that other launches may have to do with, the head node
//! uses the [shared store](super::name_server_requests) instead, and hands over its own store's contents. When
//! the rendezvous is lost, its waiting lookups fail and its names are lost; the next such request
//! goes to another one. A node reports ranks that end to the head node once it has sent a request,
//! or was asked to ([`NameMessage::Watch`]) because a value lives as long as an application
//! context, which may have ranks anywhere.
//!
//! Rule: a request of a rank that has ended is refused: libpmix may still hand over what a process
//! wrote just before its end, and its values would never be removed.

mod head_requests;
mod head_state;
mod name_messages;

use std::collections::{BTreeMap, BTreeSet};

use head_state::HeadNameState;
pub use name_messages::{NameAction, NameMessage};

use super::name_server_requests::{NameRequestId, NodeRequestNumber};
use super::request::{NameRefusal, NameReply, NameRequest, NameRequester};
use crate::engine_context::EngineContext;
use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId};
use crate::job::proc::Proc;

/// The context of an event of an engine.
pub type NameContext<'a, T> = EngineContext<'a, NameAction<T>>;

/// The engine of one node. `T` names a local requester.
#[derive(Debug)]
pub struct NameEngine<T> {
    node: NodeId,
    head: NodeId,
    /// Number of nodes of the job.
    nodes: u32,
    last_serial: u64,
    asking: BTreeMap<NodeRequestNumber, (Proc, T)>,
    /// Ranks of this node that have ended.
    ended_ranks: BTreeMap<Proc, AppNum>,
    /// Ends of processes that were not yet reported to the head node.
    unreported_ends: Vec<(Proc, AppNum)>,
    /// Whether ends are reported to the head node.
    tells: bool,
    at_head: Option<Box<HeadNameState>>,
    lost_nodes: BTreeSet<NodeId>,
    torn_down: bool,
}

impl<T> NameEngine<T> {
    /// Creates the engine of `node`; the table is on `head`.
    pub fn new(node: NodeId, head: NodeId, nodes: u32) -> Self {
        Self {
            node,
            head,
            nodes,
            last_serial: 0,
            asking: BTreeMap::new(),
            ended_ranks: BTreeMap::new(),
            unreported_ends: Vec::new(),
            tells: false,
            at_head: None,
            lost_nodes: BTreeSet::new(),
            torn_down: false,
        }
    }

    /// Sets the new number of nodes. The head node requests those that joined to report ranks that end, if the others
    /// were requested to.
    pub fn grow(&mut self, nodes: u32, cx: &mut NameContext<'_, T>) {
        let joined = (self.nodes..nodes).map(NodeId);
        self.nodes = nodes;
        let watches = |head: &HeadNameState| !head.watched.is_empty();
        if self.at_head.as_deref().is_some_and(watches) {
            cx.actions.extend(joined.map(|to| NameAction::Send {
                to,
                message: NameMessage::Watch,
            }));
        }
    }

    /// Starts a request of a process of this node.
    pub fn start_request(
        &mut self,
        who: NameRequester,
        request: NameRequest,
        ticket: T,
        cx: &mut NameContext<'_, T>,
    ) {
        let refusal = if self.torn_down {
            Some(NameRefusal::TornDown)
        } else if self.lost_nodes.contains(&self.head) {
            Some(NameRefusal::HeadLost)
        } else if self.ended_ranks.contains_key(&who.proc) {
            Some(NameRefusal::RequesterEnded)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let answer = NameReply::Refused(refusal);
            return cx.order(NameAction::Complete { ticket, answer });
        }
        self.last_serial += 1;
        let serial = NodeRequestNumber(self.last_serial);
        self.asking.insert(serial, (who.proc.clone(), ticket));
        self.tells = true;
        if self.node == self.head {
            return self.on_request(self.node, serial, &who, request, cx);
        }
        cx.order(NameAction::Send {
            to: self.head,
            message: NameMessage::Ask {
                serial,
                who,
                request,
            },
        });
    }

    /// Handles a message of another node's engine.
    pub fn message(&mut self, from: NodeId, message: NameMessage, cx: &mut NameContext<'_, T>) {
        // Its last messages may arrive after its ranks were counted as ended.
        if self.lost_nodes.contains(&from) {
            return;
        }
        match message {
            NameMessage::Ask {
                serial,
                mut who,
                request,
            } if self.node == self.head => {
                who.node = from;
                self.on_request(from, serial, &who, request, cx);
            }
            NameMessage::Receipt { serial, reached } if self.node == self.head => {
                let ticket = NameRequestId { node: from, serial };
                self.receipt(ticket, reached, cx);
            }
            NameMessage::Ended(procs) if self.node == self.head => {
                for (proc, app) in procs {
                    self.proc_ended(proc, app, cx);
                }
            }
            NameMessage::Answer { serial, answer } if from == self.head => {
                let once = answer.has_once();
                let reached = self.complete(serial, answer, cx);
                if once {
                    let message = NameMessage::Receipt { serial, reached };
                    let to = self.head;
                    cx.order(NameAction::Send { to, message });
                }
            }
            NameMessage::Watch if from == self.head => {
                self.tells = true;
                self.report_ends(cx);
            }
            NameMessage::Ask { .. }
            | NameMessage::Receipt { .. }
            | NameMessage::Ended(_)
            | NameMessage::Answer { .. }
            | NameMessage::Watch => {}
        }
    }

    /// Handles the end of a rank of this node.
    pub fn rank_ended(&mut self, proc: Proc, app: AppNum, cx: &mut NameContext<'_, T>) {
        self.ended_ranks.insert(proc.clone(), app);
        let left = self.asking.extract_if(.., |_, (asker, _)| *asker == proc);
        for (_, (_, ticket)) in left {
            let answer = NameReply::Refused(NameRefusal::RequesterEnded);
            cx.order(NameAction::Complete { ticket, answer });
        }
        if self.node == self.head {
            return self.proc_ended(proc, app, cx);
        }
        self.unreported_ends.push((proc, app));
        if self.tells {
            self.report_ends(cx);
        }
    }

    /// Handles the loss of a node with these ranks.
    pub fn node_lost(
        &mut self,
        node: NodeId,
        ranks: impl IntoIterator<Item = (Proc, AppNum)>,
        cx: &mut NameContext<'_, T>,
    ) {
        if node == self.node || !self.lost_nodes.insert(node) {
            return;
        }
        if node == self.head {
            for (_, (_, ticket)) in std::mem::take(&mut self.asking) {
                let answer = NameReply::Refused(NameRefusal::HeadLost);
                cx.order(NameAction::Complete { ticket, answer });
            }
        }
        if self.node == self.head {
            for (proc, app) in ranks {
                self.ended_ranks.insert(proc.clone(), app);
                self.proc_ended(proc, app, cx);
            }
            self.lost_on_the_way(node, cx);
        }
    }

    /// Handles the deadlines that have passed.
    pub fn tick(&mut self, cx: &mut NameContext<'_, T>) {
        let mut answers = Vec::new();
        if let Some(head) = &mut self.at_head {
            head.store.tick(cx.now, &mut answers);
        }
        self.deliver(answers, cx);
    }

    /// Returns the time at which [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.at_head.as_ref()?.store.next_deadline()
    }

    /// Fails all waiting and later requests, at the end of the job.
    pub fn tear_down(&mut self, cx: &mut NameContext<'_, T>) {
        let mut answers = Vec::new();
        if let Some(mut head) = self.at_head.take() {
            head.store.tear_down(&mut answers);
            let pending = head.abroad.take().unwrap_or_default().pending_requests;
            let refused = |ticket| (ticket, NameReply::Refused(NameRefusal::TornDown));
            answers.extend(pending.into_iter().map(refused));
        }
        self.deliver(answers, cx);
        for (_, (_, ticket)) in std::mem::take(&mut self.asking) {
            let answer = NameReply::Refused(NameRefusal::TornDown);
            cx.order(NameAction::Complete { ticket, answer });
        }
        self.torn_down = true;
    }

    fn report_ends(&mut self, cx: &mut NameContext<'_, T>) {
        if !self.unreported_ends.is_empty() {
            cx.order(NameAction::Send {
                to: self.head,
                message: NameMessage::Ended(std::mem::take(&mut self.unreported_ends)),
            });
        }
    }

    /// Whether a requester waited for it.
    fn complete(
        &mut self,
        serial: NodeRequestNumber,
        answer: NameReply,
        cx: &mut NameContext<'_, T>,
    ) -> bool {
        let asking = self.asking.remove(&serial);
        let waited = asking.is_some();
        cx.actions
            .extend(asking.map(|(_, ticket)| NameAction::Complete { ticket, answer }));
        waited
    }
}
