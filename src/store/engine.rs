//! One node's way to the job's store: requests go to the head node, each gets one answer.
//!
//! Every node has an engine; that of the head node holds the [`Store`], which is made when it is
//! first needed. A node tells the head node of ranks that end once it has asked for something, or
//! was asked to ([`StoreMessage::Watch`]) because a value lives as long as an application context,
//! which may have ranks anywhere.
//!
//! Rule: a request of a rank that has ended is refused: libpmix may still hand over what a process
//! wrote just before its end, and nobody would remove what it publishes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Store;
use super::request::{Answer, Persistence, Refusal, Request, Requester};
use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId};
use crate::job::proc::Proc;

/// Names a request on its way; chosen by the asking node, rising.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Serial(u64);

#[cfg(test)]
impl From<u64> for Serial {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// A message between the engines of two nodes. The sender is named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoreMessage {
    /// To the head node.
    Ask {
        /// Names the request.
        serial: Serial,
        /// Who asks.
        who: Requester,
        /// What.
        request: Request,
    },
    /// From the head node.
    Answer {
        /// Of the request.
        serial: Serial,
        /// The answer.
        answer: Answer,
    },
    /// To the head node: these ranks of the sender's have ended.
    Ended(Vec<(Proc, AppNum)>),
    /// From the head node: it wants to hear of every rank that ends.
    Watch,
}

/// What an engine orders.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<T> {
    /// Deliver a message; `to` is never this node.
    Send {
        /// Destination.
        to: NodeId,
        /// The message.
        message: StoreMessage,
    },
    /// Answer a local requester; happens once per ticket.
    Complete {
        /// Whom.
        ticket: T,
        /// The answer.
        answer: Answer,
    },
}

/// The head node's part.
#[derive(Debug, Default)]
struct Head {
    store: Store<(NodeId, Serial)>,
    /// Application contexts that values live as long as, with their number of ranks.
    watched: BTreeMap<AppNum, u32>,
    /// Ranks that were said to have ended, by application context.
    ended: BTreeMap<AppNum, BTreeSet<Proc>>,
}

/// The engine of one node. `T` names a local requester.
#[derive(Debug)]
pub struct StoreEngine<T> {
    node: NodeId,
    head: NodeId,
    /// Number of nodes of the job.
    nodes: u32,
    last: u64,
    asking: BTreeMap<Serial, (Proc, T)>,
    /// Ranks of this node that have ended.
    ended: BTreeMap<Proc, AppNum>,
    /// Those that the head node was not told of.
    untold: Vec<(Proc, AppNum)>,
    /// Whether the head node is to hear of ends.
    tells: bool,
    at_head: Option<Box<Head>>,
    lost: BTreeSet<NodeId>,
    torn_down: bool,
}

impl<T> StoreEngine<T> {
    /// The engine of `node`, one of so many; the store is on `head`.
    pub fn new(node: NodeId, head: NodeId, nodes: u32) -> Self {
        Self {
            node,
            head,
            nodes,
            last: 0,
            asking: BTreeMap::new(),
            ended: BTreeMap::new(),
            untold: Vec::new(),
            tells: false,
            at_head: None,
            lost: BTreeSet::new(),
            torn_down: false,
        }
    }

    /// A process of this node asks.
    pub fn ask(
        &mut self,
        who: Requester,
        request: Request,
        ticket: T,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        let refusal = if self.torn_down {
            Some(Refusal::TornDown)
        } else if self.lost.contains(&self.head) {
            Some(Refusal::HeadLost)
        } else if self.ended.contains_key(&who.proc) {
            Some(Refusal::RequesterEnded)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let answer = Answer::Refused(refusal);
            return out.push(Output::Complete { ticket, answer });
        }
        self.last += 1;
        let serial = Serial(self.last);
        self.asking.insert(serial, (who.proc.clone(), ticket));
        self.tells = true;
        if self.node == self.head {
            return self.asked(self.node, serial, &who, request, now, out);
        }
        out.push(Output::Send {
            to: self.head,
            message: StoreMessage::Ask {
                serial,
                who,
                request,
            },
        });
    }

    /// A message of another node's engine.
    pub fn message(
        &mut self,
        from: NodeId,
        message: StoreMessage,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        // What it still said may come after its ranks were counted as ended.
        if self.lost.contains(&from) {
            return;
        }
        match message {
            StoreMessage::Ask {
                serial,
                mut who,
                request,
            } if self.node == self.head => {
                who.node = from;
                self.asked(from, serial, &who, request, now, out);
            }
            StoreMessage::Ended(procs) if self.node == self.head => {
                for (proc, app) in procs {
                    self.proc_ended(proc, app, out);
                }
            }
            StoreMessage::Answer { serial, answer } if from == self.head => {
                self.complete(serial, answer, out);
            }
            StoreMessage::Watch if from == self.head => {
                self.tells = true;
                self.tell_ends(out);
            }
            StoreMessage::Ask { .. }
            | StoreMessage::Ended(_)
            | StoreMessage::Answer { .. }
            | StoreMessage::Watch => {}
        }
    }

    /// A rank of this node has ended.
    pub fn rank_ended(&mut self, proc: Proc, app: AppNum, out: &mut Vec<Output<T>>) {
        self.ended.insert(proc.clone(), app);
        let left: Vec<Serial> = self
            .asking
            .iter()
            .filter(|(_, (asker, _))| *asker == proc)
            .map(|(serial, _)| *serial)
            .collect();
        for serial in left {
            self.complete(serial, Answer::Refused(Refusal::RequesterEnded), out);
        }
        if self.node == self.head {
            return self.proc_ended(proc, app, out);
        }
        self.untold.push((proc, app));
        if self.tells {
            self.tell_ends(out);
        }
    }

    /// A node is gone for good, and with it these ranks.
    pub fn node_lost(
        &mut self,
        node: NodeId,
        ranks: impl IntoIterator<Item = (Proc, AppNum)>,
        out: &mut Vec<Output<T>>,
    ) {
        if node == self.node || !self.lost.insert(node) {
            return;
        }
        if node == self.head {
            for (_, (_, ticket)) in std::mem::take(&mut self.asking) {
                let answer = Answer::Refused(Refusal::HeadLost);
                out.push(Output::Complete { ticket, answer });
            }
        }
        if self.node == self.head {
            for (proc, app) in ranks {
                self.ended.insert(proc.clone(), app);
                self.proc_ended(proc, app, out);
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Moment, out: &mut Vec<Output<T>>) {
        let mut answers = Vec::new();
        if let Some(head) = &mut self.at_head {
            head.store.tick(now, &mut answers);
        }
        self.deliver(answers, out);
    }

    /// When [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.at_head.as_ref()?.store.next_deadline()
    }

    /// The job ends: everybody who waits is told so, and so is who still asks.
    pub fn tear_down(&mut self, out: &mut Vec<Output<T>>) {
        let mut answers = Vec::new();
        if let Some(mut head) = self.at_head.take() {
            head.store.tear_down(&mut answers);
        }
        self.deliver(answers, out);
        for (_, (_, ticket)) in std::mem::take(&mut self.asking) {
            let answer = Answer::Refused(Refusal::TornDown);
            out.push(Output::Complete { ticket, answer });
        }
        self.torn_down = true;
    }

    fn asked(
        &mut self,
        from: NodeId,
        serial: Serial,
        who: &Requester,
        request: Request,
        now: Moment,
        out: &mut Vec<Output<T>>,
    ) {
        if self.torn_down {
            let answer = Answer::Refused(Refusal::TornDown);
            return self.deliver(vec![((from, serial), answer)], out);
        }
        let lives_as_app = matches!(
            request,
            Request::Publish {
                persistence: Persistence::App,
                ..
            }
        );
        let head = self.at_head.get_or_insert_default();
        if lives_as_app && head.watched.insert(who.app, who.app_size).is_none() {
            // Ranks of this node that ended before count too; other nodes tell of theirs.
            for (proc, app) in &self.ended {
                head.ended.entry(*app).or_default().insert(proc.clone());
            }
            let others = (0..self.nodes).map(NodeId).filter(|to| *to != self.node);
            let others = others.filter(|to| !self.lost.contains(to));
            out.extend(others.map(|to| Output::Send {
                to,
                message: StoreMessage::Watch,
            }));
        }
        let mut answers = Vec::new();
        head.store
            .handle(who, request, (from, serial), now, &mut answers);
        self.deliver(answers, out);
    }

    /// At the head node: a rank somewhere has ended.
    fn proc_ended(&mut self, proc: Proc, app: AppNum, out: &mut Vec<Output<T>>) {
        let Some(head) = &mut self.at_head else {
            return;
        };
        let mut answers = Vec::new();
        head.store.proc_ended(&proc, &mut answers);
        let nspace = proc.nspace.clone();
        let ended = head.ended.entry(app).or_default();
        ended.insert(proc);
        let all = head.watched.get(&app).map(|size| *size as usize);
        if all.is_some_and(|all| ended.len() >= all) {
            head.store.app_ended(&nspace, app);
        }
        self.deliver(answers, out);
    }

    fn tell_ends(&mut self, out: &mut Vec<Output<T>>) {
        if !self.untold.is_empty() {
            out.push(Output::Send {
                to: self.head,
                message: StoreMessage::Ended(std::mem::take(&mut self.untold)),
            });
        }
    }

    fn deliver(&mut self, answers: Vec<((NodeId, Serial), Answer)>, out: &mut Vec<Output<T>>) {
        for ((to, serial), answer) in answers {
            if to == self.node {
                self.complete(serial, answer, out);
            } else if !self.lost.contains(&to) {
                let message = StoreMessage::Answer { serial, answer };
                out.push(Output::Send { to, message });
            }
        }
    }

    fn complete(&mut self, serial: Serial, answer: Answer, out: &mut Vec<Output<T>>) {
        if let Some((_, ticket)) = self.asking.remove(&serial) {
            out.push(Output::Complete { ticket, answer });
        }
    }
}
