//! State of the head node in an engine: its name table, or its requests to the name server.

use std::collections::{BTreeMap, BTreeSet};

use super::{NameAction, NameContext};
use crate::job::ids::{AppNum, Nspace};
use crate::job::proc::Proc;
use crate::names::NameTable;
use crate::names::name_server_requests::{NameRequestId, NameServerRequest};
use crate::names::request::{NameReply, NameRequest, NameRequester};

/// An application context of a job.
type AppId = (Nspace, AppNum);

pub(super) type NameReplies = Vec<(NameRequestId, NameReply)>;

/// The head node's part.
#[derive(Debug, Default)]
pub(super) struct HeadNameState {
    pub(super) store: NameTable<NameRequestId>,
    /// Session with the name server, once it has taken over the name table.
    pub(super) abroad: Option<NameServerSession>,
    /// Application contexts that limit the lifetime of values, with their numbers of ranks.
    pub(super) watched: BTreeMap<AppId, u32>,
    /// Ranks that were reported as ended, by application context.
    pub(super) ended_ranks: BTreeMap<AppId, BTreeSet<Proc>>,
}

/// Pending requests of the head node to the name server, and replies without a receipt.
#[derive(Debug, Default)]
pub(super) struct NameServerSession {
    /// Requests without an answer.
    pub(super) pending_requests: BTreeSet<NameRequestId>,
    /// Answers without a receipt yet.
    pub(super) unacknowledged_replies: BTreeSet<NameRequestId>,
}

impl HeadNameState {
    pub(super) fn handle_request<T>(
        &mut self,
        ticket: NameRequestId,
        who: &NameRequester,
        request: NameRequest,
        answers: &mut NameReplies,
        cx: &mut NameContext<'_, T>,
    ) {
        if self.abroad.is_none() && request.is_wide(who) {
            self.abroad = Some(NameServerSession::default());
            self.hand_over(cx);
        }
        let Some(abroad) = &mut self.abroad else {
            return self.store.handle(who, request, ticket, cx.now, answers);
        };
        abroad.pending_requests.insert(ticket);
        let who = who.clone();
        let ask = NameServerRequest::Ask {
            ticket,
            who,
            request,
        };
        cx.order(NameAction::Shared(ask));
    }

    /// Moves the local contents to the name server.
    pub(super) fn hand_over<T>(&mut self, cx: &mut NameContext<'_, T>) {
        let Some(abroad) = &mut self.abroad else {
            return;
        };
        let moved = self.store.drain(cx.now);
        let waiting = moved.lookups.iter().map(|(ticket, ..)| *ticket);
        abroad.pending_requests.extend(waiting);
        for (who, request) in moved.publications {
            cx.order(NameAction::Shared(NameServerRequest::Keep { who, request }));
        }
        for (ticket, who, request) in moved.lookups {
            let ask = NameServerRequest::Ask {
                ticket,
                who,
                request,
            };
            cx.order(NameAction::Shared(ask));
        }
    }

    pub(super) fn receipt<T>(
        &mut self,
        ticket: NameRequestId,
        reached: bool,
        answers: &mut NameReplies,
        cx: &mut NameContext<'_, T>,
    ) {
        let abroad = self.abroad.as_mut();
        if abroad.is_some_and(|abroad| abroad.unacknowledged_replies.remove(&ticket)) {
            let receipt = NameServerRequest::Receipt { ticket, reached };
            return cx.order(NameAction::Shared(receipt));
        }
        self.store.receipt(&ticket, reached, answers);
        // A value that came back too late for the local table goes to the name server.
        self.hand_over(cx);
    }
}
