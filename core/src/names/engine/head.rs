//! The head node's part of an engine: its store, or its requests to the rendezvous.

use std::collections::{BTreeMap, BTreeSet};

use super::NameOutput;
use crate::job::clock::Moment;
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
    pub(super) fn say<T>(&self, message: ToShared, out: &mut Vec<NameOutput<T>>) {
        out.push(NameOutput::Shared(message));
    }

    pub(super) fn ask<T>(
        &mut self,
        (ticket, who, request): (Ticket, &Requester, NameRequest),
        now: Moment,
        answers: &mut Answers,
        out: &mut Vec<NameOutput<T>>,
    ) {
        if self.abroad.is_none() && request.is_wide(who) {
            self.abroad = Some(Abroad::default());
            self.hand_over(now, out);
        }
        let Some(abroad) = &mut self.abroad else {
            return self.store.handle(who, request, ticket, now, answers);
        };
        abroad.asked.insert(ticket);
        let who = who.clone();
        let ask = ToShared::Ask {
            ticket,
            who,
            request,
        };
        self.say(ask, out);
    }

    /// Moves the local contents to the rendezvous.
    pub(super) fn hand_over<T>(&mut self, now: Moment, out: &mut Vec<NameOutput<T>>) {
        let Some(abroad) = &mut self.abroad else {
            return;
        };
        let moved = self.store.drain(now);
        let waiting = moved.lookups.iter().map(|(ticket, ..)| *ticket);
        abroad.asked.extend(waiting);
        for (who, request) in moved.publications {
            self.say(ToShared::Keep { who, request }, out);
        }
        for (ticket, who, request) in moved.lookups {
            let ask = ToShared::Ask {
                ticket,
                who,
                request,
            };
            self.say(ask, out);
        }
    }

    pub(super) fn receipt<T>(
        &mut self,
        ticket: Ticket,
        reached: bool,
        now: Moment,
        answers: &mut Answers,
        out: &mut Vec<NameOutput<T>>,
    ) {
        let abroad = self.abroad.as_mut();
        if abroad.is_some_and(|abroad| abroad.lent.remove(&ticket)) {
            return self.say(ToShared::Receipt { ticket, reached }, out);
        }
        self.store.receipt(&ticket, reached, answers);
        // A value that came back too late for the store goes to the rendezvous.
        self.hand_over(now, out);
    }
}
