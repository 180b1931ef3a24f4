//! Publishing and looking up, over every protocol: requests of PMI and PMIx become requests of the
//! launch's one store, and its answers theirs.
//!
//! Rule: a PMI name is a text in the range `SESSION` that ends with its publisher; any rank may
//! withdraw it, and publishing it twice fails, as under Hydra. Source: docs/pmi-wire.md#names.
//! Rule: PMIx's defaults are the range `SESSION` and the persistence `SESSION`; a process withdraws
//! only what it published. Source: `pmix_server.h`.
//! Rule: the connection identifies the requester; the user is the job's, whatever `PMIX_USERID`
//! says, since the client sets it and it differs in a user namespace.

mod pmix;

use crate::job::ids::{AppNum, GlobalRank, NodeId, NodeRank};
use crate::names::engine::{NameOutput, StoreEngine, StoreMessage};
use crate::names::request::{
    Accepts, Data, Limits, Lookup, NameRefusal, NameReply, NameRequest, Persistence, Range,
    Removal, Requester,
};
use crate::node::NodeCore;
use crate::node::event::{Action, PeerMessage};
use crate::pmi::limits::NAME_MAX;
use crate::pmi::server::NameAnswer;
use crate::pmix::sidecar::UpcallId;
use crate::pmix::upcall;
use crate::pmix::value::{Info, Proc, Status, Text};
use crate::rendezvous::message::{FromRendezvous, ToRendezvous};

/// A waiter for an answer of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A rank, over PMI.
    Pmi(NodeRank),
    Pmix(UpcallId),
}

impl NodeCore {
    pub(super) fn pmi_publish(
        &mut self,
        rank: NodeRank,
        service: Vec<u8>,
        port: Vec<u8>,
        limits: Limits,
    ) {
        let request = NameRequest::Publish {
            range: Range::Session,
            persistence: Persistence::Proc,
            limits,
            values: vec![(service, Data::Text(port.into()))],
        };
        self.pmi_ask(rank, request);
    }

    pub(super) fn pmi_lookup(&mut self, rank: NodeRank, service: Vec<u8>) {
        let request = NameRequest::Lookup(Lookup {
            range: Range::Session,
            accepts: Accepts::Text(NAME_MAX),
            keys: vec![service],
            wait: None,
        });
        self.pmi_ask(rank, request);
    }

    pub(super) fn pmi_unpublish(&mut self, rank: NodeRank, service: Vec<u8>) {
        let request = NameRequest::Unpublish {
            removal: Removal::Anybodys,
            keys: vec![service],
        };
        self.pmi_ask(rank, request);
    }

    fn pmi_ask(&mut self, at: NodeRank, request: NameRequest) {
        let now = self.cx.now;
        let who = self.requester(self.cx.process(at));
        self.store(|store, out| {
            store.ask(who, request, Asker::Pmi(at), now, out);
        });
    }

    pub(super) fn publish(&mut self, id: UpcallId, proc: &Proc, infos: Vec<Info>) {
        self.pmix_ask(id, proc, pmix::publication(infos));
    }

    pub(super) fn look_up(&mut self, id: UpcallId, proc: &Proc, keys: Vec<Text>, infos: &[Info]) {
        let request = pmix::wait(infos).and_then(|wait| {
            Ok(NameRequest::Lookup(Lookup {
                range: pmix::range(infos)?.unwrap_or(Range::Session),
                accepts: Accepts::Anything,
                keys: keys.into_iter().map(Text::into_bytes).collect(),
                wait,
            }))
        });
        self.pmix_ask(id, proc, request);
    }

    pub(super) fn unpublish(&mut self, id: UpcallId, proc: &Proc, keys: Vec<Text>, infos: &[Info]) {
        let request = pmix::range(infos).map(|range| {
            // "Everything of mine" means just that; single keys are those of the default range.
            let range = range.or_else(|| (!keys.is_empty()).then_some(Range::Session));
            NameRequest::Unpublish {
                removal: Removal::Own(range),
                keys: keys.into_iter().map(Text::into_bytes).collect(),
            }
        });
        self.pmix_ask(id, proc, request);
    }

    fn pmix_ask(&mut self, id: UpcallId, proc: &Proc, request: Result<NameRequest, Status>) {
        let now = self.cx.now;
        // libpmix names the process of the connection, and has only clients of this launch, and tools.
        let process = self.cx.named(proc);
        let process = process.filter(|process| self.cx.local(*process).is_some());
        let who = match (process, &request) {
            (Some(process), _) => Some(self.requester(process)),
            (None, Ok(NameRequest::Lookup(_))) => self.tool_as_requester(proc),
            // No process would withdraw what a tool has published: another tool may come with the same name.
            (None, _) => None,
        };
        match (who, request) {
            (Some(who), Ok(request)) => {
                self.store(|store, out| {
                    store.ask(who, request, Asker::Pmix(id), now, out);
                });
            }
            (None, _) => {
                self.cx
                    .answer(id, &upcall::UpcallAnswer::Status(Status::ERR_NOT_FOUND));
            }
            (_, Err(status)) => self.cx.answer(id, &upcall::UpcallAnswer::Status(status)),
        }
    }

    pub(super) fn store_message(&mut self, from: NodeId, message: StoreMessage) {
        let now = self.cx.now;
        self.store(|store, out| {
            store.message(from, message, now, out);
        });
    }

    pub(super) fn store_rank_ended(&mut self, process: GlobalRank) {
        let now = self.cx.now;
        let Requester { proc, app, .. } = self.requester(process);
        self.store(|store, out| store.rank_ended(proc, app, now, out));
    }

    pub(super) fn store_node_lost(&mut self, node: NodeId) {
        let now = self.cx.now;
        let procs: Vec<_> = self
            .cx
            .jobs
            .processes_on(node)
            .map(|process| {
                let Requester { proc, app, .. } = self.requester(process);
                (proc, app)
            })
            .collect();
        self.store(|store, out| store.node_lost(node, procs, now, out));
    }

    pub(super) fn store_grow(&mut self, nodes: u32) {
        self.store(|store, out| store.grow(nodes, out));
    }

    pub(super) fn store_tick(&mut self) {
        let now = self.cx.now;
        self.store(|store, out| store.tick(now, out));
    }

    pub(super) fn store_tear_down(&mut self) {
        let now = self.cx.now;
        self.store(|store, out| store.tear_down(now, out));
    }

    /// At the head node: a message of the name server.
    pub(super) fn rendezvous_said(&mut self, message: FromRendezvous) {
        let now = self.cx.now;
        match message {
            // The launcher reports trouble.
            FromRendezvous::Welcome | FromRendezvous::Trouble(_) => {}
            FromRendezvous::Store(message) => self.store(|store, out| {
                store.shared_said(message, now, out);
            }),
            FromRendezvous::Relayed { from, body } => {
                self.crossed(&from, &body);
            }
            FromRendezvous::Gone(jobs) => self.jobs_gone(Some(&jobs)),
        }
    }

    /// At the head node: the rendezvous is lost.
    pub(super) fn rendezvous_lost(&mut self) {
        let now = self.cx.now;
        self.collectives.epoch += 1;
        self.store(|store, out| store.shared_lost(now, out));
        self.jobs_gone(None);
    }

    fn requester(&self, process: GlobalRank) -> Requester {
        let proc = self.cx.name_of(process);
        let (job, rank) = self.cx.jobs.find(process).expect("a process of the launch");
        let job = self.cx.job(job);
        let app = job.appnums.of(rank);
        let members = job.appnums.ranks_of(app);
        Requester {
            proc,
            node: self.cx.node,
            user: job.user,
            app,
            app_size: members.end - members.start,
        }
    }

    /// A tool that is attached here. It is one of the launch's session, and of no job.
    fn tool_as_requester(&self, name: &Proc) -> Option<Requester> {
        Some(Requester {
            proc: self.tool_named(name)?,
            node: self.cx.node,
            user: self.cx.launch().user,
            app: AppNum(0),
            app_size: 1,
        })
    }

    /// Does something with the store and carries out what follows.
    fn store(&mut self, what: impl FnOnce(&mut StoreEngine<Asker>, &mut Vec<NameOutput<Asker>>)) {
        let mut outputs = Vec::new();
        what(&mut self.store, &mut outputs);
        for output in outputs {
            match output {
                NameOutput::Send { to, message } => self.cx.order(Action::SendPeer {
                    to,
                    message: PeerMessage::Store(message),
                }),
                NameOutput::Shared(message) => {
                    self.tell_rendezvous(ToRendezvous::Store(message));
                }
                NameOutput::Complete {
                    ticket: Asker::Pmi(at),
                    answer,
                } => self.pmi_name_answer(at, &answer),
                NameOutput::Complete {
                    ticket: Asker::Pmix(id),
                    answer,
                } => {
                    let answer = pmix::pmix_answer(answer);
                    self.cx.answer(id, &answer);
                }
            }
        }
    }

    fn pmi_name_answer(&mut self, at: NodeRank, answer: &NameReply) {
        let Some((job, local, server)) = self.cx.pmi_of(at) else {
            return;
        };
        let answer = match answer {
            NameReply::Done => NameAnswer::Done,
            NameReply::Found(found) => match &found[..] {
                [found] => NameAnswer::Port(found.data.bytes()),
                _ => NameAnswer::Refused("service not found"),
            },
            NameReply::Partial(_)
            | NameReply::Listed(_)
            | NameReply::Refused(NameRefusal::NotFound) => NameAnswer::Refused("service not found"),
            NameReply::Refused(NameRefusal::Duplicate(_)) => {
                NameAnswer::Refused("already published")
            }
            NameReply::Refused(NameRefusal::Keys) => NameAnswer::Refused("invalid service"),
            NameReply::Refused(NameRefusal::Full) => NameAnswer::Refused("too many names"),
            NameReply::Refused(NameRefusal::Timeout) => NameAnswer::Refused("timeout"),
            NameReply::Refused(NameRefusal::HeadLost) => NameAnswer::Refused("head node lost"),
            NameReply::Refused(NameRefusal::SharedLost) => NameAnswer::Refused("rendezvous lost"),
            NameReply::Refused(NameRefusal::Unavailable(_)) => {
                NameAnswer::Refused("name store unavailable")
            }
            NameReply::Refused(NameRefusal::RequesterEnded | NameRefusal::TornDown) => {
                NameAnswer::Refused("job ends")
            }
        };
        let mut effects = Vec::new();
        server.name_answer(local, answer, &mut effects);
        self.pmi_effects(job, effects);
    }
}

#[cfg(test)]
mod tests;
