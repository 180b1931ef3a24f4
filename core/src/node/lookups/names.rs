//! Publish and lookup over every protocol. Requests of PMI and PMIx become requests to the launch's name table, and its
//! replies become replies of the protocol.
//!
//! Rule: a PMI name is a text in the range `SESSION` that ends with its publisher; any rank may unpublish it, and
//! publishing it twice fails, as under Hydra. Source: docs/pmi-operations.md#names.
//! Rule: PMIx's defaults are the range `SESSION` and the persistence `SESSION`; a process unpublishes only what it
//! published. Source: `pmix_server.h`.
//! Rule: the connection identifies the requester. The user is the job's; `PMIX_USERID` is ignored, since the client
//! sets it and it differs in a user namespace.

mod pmix;

use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, NodeId, NodeRank};
use crate::name_server::message::NameServerCommand;
use crate::names::engine::{NameAction, NameContext, NameEngine, NameMessage};
use crate::names::name_server_requests::NameServerReply;
use crate::names::request::{
    AcceptedData, NameLookup, NameRange, NameRefusal, NameReply, NameRequest, NameRequester,
    Persistence, PublishedData, UnpublishScope, ValueLimits,
};
use crate::node::context::NodeContext;
use crate::node::context::collective_policy::HEAD;
use crate::node::event::PeerMessage;
use crate::node::node_service::NodeService;
use crate::pmi::limits::NAME_MAX;
use crate::pmi::server::NameAnswer;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::value::{Info, PmixProc, Status, Text};
use std::sync::Arc;

/// A waiter for an answer of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node) enum ReplyTarget {
    /// A rank, over PMI.
    Pmi(NodeRank),
    Pmix(UpcallId),
}

/// The node's part in the launch's store of names.
#[derive(Debug)]
pub(in crate::node) struct Names {
    engine: NameEngine<ReplyTarget>,
}

impl Names {
    pub(in crate::node) fn new(node: NodeId, nodes: u32) -> Self {
        Self {
            engine: NameEngine::new(node, HEAD, nodes),
        }
    }

    pub(in crate::node) fn pmi_publish(
        &mut self,
        rank: NodeRank,
        service: Vec<u8>,
        port: Vec<u8>,
        limits: ValueLimits,
        cx: &mut NodeContext,
    ) {
        let request = NameRequest::Publish {
            range: NameRange::Session,
            persistence: Persistence::Proc,
            limits,
            values: vec![(service, PublishedData::Text(port.into()))],
        };
        self.pmi_ask(rank, request, cx);
    }

    pub(in crate::node) fn pmi_lookup(
        &mut self,
        rank: NodeRank,
        service: Vec<u8>,
        cx: &mut NodeContext,
    ) {
        let request = NameRequest::Lookup(NameLookup {
            range: NameRange::Session,
            accepts: AcceptedData::Text(NAME_MAX),
            keys: vec![service],
            wait: None,
        });
        self.pmi_ask(rank, request, cx);
    }

    pub(in crate::node) fn pmi_unpublish(
        &mut self,
        rank: NodeRank,
        service: Vec<u8>,
        cx: &mut NodeContext,
    ) {
        let request = NameRequest::Unpublish {
            removal: UnpublishScope::Anybodys,
            keys: vec![service],
        };
        self.pmi_ask(rank, request, cx);
    }

    fn pmi_ask(&mut self, at: NodeRank, request: NameRequest, cx: &mut NodeContext) {
        let who = self.requester(cx.process(at), cx);
        self.with_store(cx, |store, names| {
            store.start_request(who, request, ReplyTarget::Pmi(at), names);
        });
    }

    pub(in crate::node) fn publish(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        infos: Vec<Info>,
        cx: &mut NodeContext,
    ) {
        self.pmix_ask(id, proc, None, pmix::publication(infos), cx);
    }

    /// Looks names up. `tool` is the requester if it is a tool that is attached here.
    pub(in crate::node) fn look_up(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        tool: Option<NameRequester>,
        keys: Vec<Text>,
        infos: &[Info],
        cx: &mut NodeContext,
    ) {
        let request = pmix::wait(infos).and_then(|wait| {
            Ok(NameRequest::Lookup(NameLookup {
                range: pmix::range(infos)?.unwrap_or(NameRange::Session),
                accepts: AcceptedData::Anything,
                keys: keys.into_iter().map(Text::into_bytes).collect(),
                wait,
            }))
        });
        self.pmix_ask(id, proc, tool, request, cx);
    }

    pub(in crate::node) fn unpublish(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        keys: Vec<Text>,
        infos: &[Info],
        cx: &mut NodeContext,
    ) {
        let request = pmix::range(infos).map(|range| {
            // "Everything of mine" means just that; single keys are those of the default range.
            let range = range.or_else(|| (!keys.is_empty()).then_some(NameRange::Session));
            NameRequest::Unpublish {
                removal: UnpublishScope::Own(range),
                keys: keys.into_iter().map(Text::into_bytes).collect(),
            }
        });
        self.pmix_ask(id, proc, None, request, cx);
    }

    fn pmix_ask(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        tool: Option<NameRequester>,
        request: Result<NameRequest, Status>,
        cx: &mut NodeContext,
    ) {
        // libpmix names the process of the connection, and has only clients of this launch, and tools.
        let process = cx.find_process(proc);
        let process = process.filter(|process| cx.local(*process).is_some());
        let who = match (process, &request) {
            (Some(process), _) => Some(self.requester(process, cx)),
            (None, Ok(NameRequest::Lookup(_))) => tool,
            // No process would unpublish the values of a tool: another tool may get the same name.
            (None, _) => None,
        };
        match (who, request) {
            (Some(who), Ok(request)) => self.with_store(cx, |store, names| {
                store.start_request(who, request, ReplyTarget::Pmix(id), names);
            }),
            (None, _) => cx.answer_status(id, Status::ERR_NOT_FOUND),
            (_, Err(status)) => cx.answer_status(id, status),
        }
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: NameMessage,
        cx: &mut NodeContext,
    ) {
        self.with_store(cx, |store, names| store.message(from, message, names));
    }

    pub(in crate::node) fn rank_ended(&mut self, process: GlobalRank, cx: &mut NodeContext) {
        let NameRequester { proc, app, .. } = self.requester(process, cx);
        self.with_store(cx, |store, names| store.rank_ended(proc, app, names));
    }

    pub(in crate::node) fn grow(&mut self, nodes: u32, cx: &mut NodeContext) {
        self.with_store(cx, |store, names| store.grow(nodes, names));
    }

    /// Handles a reply of the name server, at the head node.
    pub(in crate::node) fn on_name_server_reply(
        &mut self,
        message: NameServerReply,
        cx: &mut NodeContext,
    ) {
        self.with_store(cx, |store, names| {
            store.on_name_server_reply(message, names);
        });
    }

    /// Handles the loss of the shared name table, at the head node.
    pub(in crate::node) fn shared_lost(&mut self, cx: &mut NodeContext) {
        self.with_store(cx, |store, names| store.shared_lost(names));
    }

    fn requester(&self, process: GlobalRank, cx: &NodeContext) -> NameRequester {
        let proc = cx.name_of(process);
        let (job, rank) = cx.jobs.find(process).expect("a process of the launch");
        let job = cx.job(job);
        let app = job.app_map.appnum_of(rank);
        let members = job.app_map.ranks_of(app);
        NameRequester {
            proc,
            node: cx.node,
            user: job.uid,
            app,
            app_size: members.end - members.start,
        }
    }

    /// Calls the store and executes the resulting actions.
    fn with_store(
        &mut self,
        cx: &mut NodeContext,
        operation: impl FnOnce(&mut NameEngine<ReplyTarget>, &mut NameContext<'_, ReplyTarget>),
    ) {
        let mut outputs = Vec::new();
        let mut names = NameContext::new(cx.now, &mut outputs);
        operation(&mut self.engine, &mut names);
        for output in outputs {
            match output {
                NameAction::Send { to, message } => cx.send(to, PeerMessage::Store(message)),
                NameAction::Shared(message) => {
                    cx.send_to_name_server(NameServerCommand::Store(message));
                }
                NameAction::Complete {
                    ticket: ReplyTarget::Pmi(at),
                    answer,
                } => self.pmi_name_answer(at, &answer, cx),
                NameAction::Complete {
                    ticket: ReplyTarget::Pmix(id),
                    answer,
                } => {
                    let answer = pmix::pmix_answer(answer);
                    cx.answer(id, &answer);
                }
            }
        }
    }

    fn pmi_name_answer(&mut self, at: NodeRank, answer: &NameReply, cx: &mut NodeContext) {
        let answer = match answer {
            NameReply::Done => NameAnswer::Done,
            NameReply::Found(found) => match &found[..] {
                [found] => NameAnswer::Port(found.data.bytes()),
                _ => NameAnswer::Refused("service not found"),
            },
            NameReply::Partial(_) | NameReply::Listed(_) => {
                NameAnswer::Refused("service not found")
            }
            NameReply::Refused(refusal) => NameAnswer::Refused(match refusal {
                NameRefusal::NotFound => "service not found",
                NameRefusal::Duplicate(_) => "already published",
                NameRefusal::Keys => "invalid service",
                NameRefusal::Full => "too many names",
                NameRefusal::Timeout => "timeout",
                NameRefusal::HeadLost => "head node lost",
                NameRefusal::SharedLost => "rendezvous lost",
                NameRefusal::Unavailable(_) => "name store unavailable",
                NameRefusal::RequesterEnded | NameRefusal::TornDown => "job ends",
            }),
        };
        cx.with_pmi_of(at, |server, local| server.name_answer(local, answer));
    }
}

impl NodeService for Names {
    fn next_deadline(&self) -> Option<Moment> {
        self.engine.next_deadline()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        self.with_store(cx, |store, names| store.tick(names));
    }

    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        let procs: Vec<_> = cx
            .jobs
            .processes_on(node)
            .map(|process| {
                let NameRequester { proc, app, .. } = self.requester(process, cx);
                (proc, app)
            })
            .collect();
        self.with_store(cx, |store, names| store.node_lost(node, procs, names));
    }

    fn tear_down(&mut self, cx: &mut NodeContext) {
        self.with_store(cx, |store, names| store.tear_down(names));
    }
}

#[cfg(test)]
mod tests;
