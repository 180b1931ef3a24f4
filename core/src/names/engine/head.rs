//! The head node's part of an engine: its store, or its requests to the rendezvous.

use std::collections::{BTreeMap, BTreeSet};

use super::{NameContext, NameOutput};
use crate::job::ids::{AppNum, Nspace};
use crate::job::proc::Proc;
use crate::names::Store;
use crate::names::request::{NameReply, NameRequest, Requester};
use crate::names::shared::{Ticket, ToShared};

/// An application context of a job.
type Program = (Nspace, AppNum);

pub(super) type Answers = Vec<(Ticket, NameReply)>;

/// The head node's part.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) store: Store<Ticket>,
    /// What the rendezvous was asked, once there is one that keeps the store's place.
    pub(super) abroad: Option<Abroad>,
    /// Application contexts that limit the lifetime of values, with their numbers of ranks.
    pub(super) watched: BTreeMap<Program, u32>,
    /// Ranks that were said to have ended, by application context.
    pub(super) ended: BTreeMap<Program, BTreeSet<Proc>>,
}

/// What the rendezvous and the head node owe each other.
#[derive(Debug, Default)]
pub(super) struct Abroad {
    /// Requests without an answer.
    pub(super) asked: BTreeSet<Ticket>,
    /// Answers without a receipt yet.
    pub(super) lent: BTreeSet<Ticket>,
}

impl Head {
    pub(super) fn say<T>(&self, message: ToShared, cx: &mut NameContext<'_, T>) {
        cx.order(NameOutput::Shared(message));
    }

    pub(super) fn ask<T>(
        &mut self,
        ticket: Ticket,
        who: &Requester,
        request: NameRequest,
        answers: &mut Answers,
        cx: &mut NameContext<'_, T>,
    ) {
        if self.abroad.is_none() && request.is_wide(who) {
            self.abroad = Some(Abroad::default());
            self.hand_over(cx);
        }
        let Some(abroad) = &mut self.abroad else {
            return self.store.handle(who, request, ticket, cx.now, answers);
        };
        abroad.asked.insert(ticket);
        let who = who.clone();
        let ask = ToShared::Ask {
            ticket,
            who,
            request,
        };
        self.say(ask, cx);
    }

    /// Moves the local contents to the rendezvous.
    pub(super) fn hand_over<T>(&mut self, cx: &mut NameContext<'_, T>) {
        let Some(abroad) = &mut self.abroad else {
            return;
        };
        let moved = self.store.drain(cx.now);
        let waiting = moved.lookups.iter().map(|(ticket, ..)| *ticket);
        abroad.asked.extend(waiting);
        for (who, request) in moved.publications {
            self.say(ToShared::Keep { who, request }, cx);
        }
        for (ticket, who, request) in moved.lookups {
            let ask = ToShared::Ask {
                ticket,
                who,
                request,
            };
            self.say(ask, cx);
        }
    }

    pub(super) fn receipt<T>(
        &mut self,
        ticket: Ticket,
        reached: bool,
        answers: &mut Answers,
        cx: &mut NameContext<'_, T>,
    ) {
        let abroad = self.abroad.as_mut();
        if abroad.is_some_and(|abroad| abroad.lent.remove(&ticket)) {
            return self.say(ToShared::Receipt { ticket, reached }, cx);
        }
        self.store.receipt(&ticket, reached, answers);
        // A value that came back too late for the store goes to the rendezvous.
        self.hand_over(cx);
    }
}
