//! The engine of the head node: requests of all nodes, and the answers of the stores.

use super::head_state::NameReplies;
use super::{NameAction, NameContext, NameEngine, NameMessage};
use crate::job::ids::{AppNum, NodeId};
use crate::job::proc::Proc;
use crate::names::name_server_requests::{
    NameRequestId, NameServerReply, NameServerRequest, NodeRequestNumber,
};
use crate::names::request::{NameRefusal, NameReply, NameRequest, NameRequester, Persistence};

impl<T> NameEngine<T> {
    /// Handles a reply of the name server.
    pub fn on_name_server_reply(&mut self, message: NameServerReply, cx: &mut NameContext<'_, T>) {
        let abroad = self.at_head.as_mut().and_then(|head| head.abroad.as_mut());
        let Some(abroad) = abroad else { return };
        let NameServerReply { ticket, answer } = message;
        let once = answer.has_once();
        if abroad.pending_requests.remove(&ticket) {
            if once {
                abroad.unacknowledged_replies.insert(ticket);
            }
            self.deliver(vec![(ticket, answer)], cx);
        } else if once {
            let reached = false;
            let receipt = NameServerRequest::Receipt { ticket, reached };
            cx.order(NameAction::Shared(receipt));
        }
    }

    /// Handles the loss of the name server, with its whole table.
    pub fn shared_lost(&mut self, cx: &mut NameContext<'_, T>) {
        let abroad = self.at_head.as_mut().and_then(|head| head.abroad.take());
        let Some(abroad) = abroad else { return };
        let refused = |ticket| (ticket, NameReply::Refused(NameRefusal::SharedLost));
        let answers = abroad.pending_requests.into_iter().map(refused).collect();
        self.deliver(answers, cx);
    }

    /// Values in transit to a lost node are available again.
    pub(super) fn lost_on_the_way(&mut self, node: NodeId, cx: &mut NameContext<'_, T>) {
        let Some(head) = &mut self.at_head else {
            return;
        };
        let mut answers = NameReplies::new();
        let of_node = |ticket: &&NameRequestId| ticket.node == node;
        let abroad = head
            .abroad
            .iter()
            .flat_map(|abroad| &abroad.unacknowledged_replies);
        let lent: Vec<NameRequestId> = abroad.filter(of_node).copied().collect();
        for ticket in lent {
            head.receipt(ticket, false, &mut answers, cx);
        }
        head.store
            .requests_lost(|ticket| ticket.node == node, &mut answers);
        head.hand_over(cx);
        self.deliver(answers, cx);
    }

    pub(super) fn on_request(
        &mut self,
        from: NodeId,
        serial: NodeRequestNumber,
        who: &NameRequester,
        request: NameRequest,
        cx: &mut NameContext<'_, T>,
    ) {
        let ticket = NameRequestId { node: from, serial };
        if self.torn_down {
            let answer = NameReply::Refused(NameRefusal::TornDown);
            return self.deliver(vec![(ticket, answer)], cx);
        }
        let lives_as_app = matches!(
            request,
            NameRequest::Publish {
                persistence: Persistence::App,
                ..
            }
        );
        let head = self.at_head.get_or_insert_default();
        let program = (who.proc.nspace.clone(), who.app);
        if lives_as_app && head.watched.insert(program, who.app_size).is_none() {
            // Ranks of this node that ended before count too; other nodes report theirs.
            for (proc, app) in &self.ended_ranks {
                let program = (proc.nspace.clone(), *app);
                head.ended_ranks
                    .entry(program)
                    .or_default()
                    .insert(proc.clone());
            }
            let others = (0..self.nodes).map(NodeId).filter(|to| *to != self.node);
            let others = others.filter(|to| !self.lost_nodes.contains(to));
            cx.actions.extend(others.map(|to| NameAction::Send {
                to,
                message: NameMessage::Watch,
            }));
        }
        let mut answers = NameReplies::new();
        head.handle_request(ticket, who, request, &mut answers, cx);
        self.deliver(answers, cx);
    }

    /// Handles the end of a rank on any node.
    pub(super) fn proc_ended(&mut self, proc: Proc, app: AppNum, cx: &mut NameContext<'_, T>) {
        let Some(head) = &mut self.at_head else {
            return;
        };
        let mut answers = NameReplies::new();
        match head.abroad {
            Some(_) => cx.order(NameAction::Shared(NameServerRequest::Ended(proc.clone()))),
            None => head.store.proc_ended(&proc, &mut answers),
        }
        let nspace = proc.nspace.clone();
        let program = (nspace.clone(), app);
        let all = head.watched.get(&program).map(|size| *size as usize);
        let ended = head.ended_ranks.entry(program).or_default();
        ended.insert(proc);
        if all.is_some_and(|all| ended.len() >= all) {
            match head.abroad {
                Some(_) => {
                    let ended = NameServerRequest::AppEnded { nspace, app };
                    cx.order(NameAction::Shared(ended));
                }
                None => head.store.app_ended(&nspace, app),
            }
        }
        self.deliver(answers, cx);
    }

    /// Sends answers to the nodes of the requesters.
    pub(super) fn deliver(&mut self, answers: NameReplies, cx: &mut NameContext<'_, T>) {
        for (ticket, answer) in answers {
            let NameRequestId { node: to, serial } = ticket;
            let once = answer.has_once();
            if to == self.node {
                let reached = self.complete(serial, answer, cx);
                if once {
                    self.receipt(ticket, reached, cx);
                }
            } else if !self.lost_nodes.contains(&to) {
                let message = NameMessage::Answer { serial, answer };
                cx.order(NameAction::Send { to, message });
            } else if once {
                self.receipt(ticket, false, cx);
            }
        }
    }

    /// Whether an answer with values for one reader has reached it.
    pub(super) fn receipt(
        &mut self,
        ticket: NameRequestId,
        reached: bool,
        cx: &mut NameContext<'_, T>,
    ) {
        if let Some(head) = &mut self.at_head {
            let mut answers = NameReplies::new();
            head.receipt(ticket, reached, &mut answers, cx);
            self.deliver(answers, cx);
        }
    }
}
