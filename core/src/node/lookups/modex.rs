//! Direct modex of a node: data of its ranks for other requesters, and data of remote ranks. The sidecar has the data
//! of local ranks.

use crate::job::ids::NodeId;
use std::sync::Arc;

use crate::direct_modex::{ModexAction, ModexEngine, ModexEvent, ModexResult};
use crate::job::clock::Moment;
use crate::job::proc::Proc;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::{ModexRequester, NodeEffect};
use crate::node::context::upcalls::modex_status;
use crate::node::event::PeerMessage;
use crate::node::node_service::NodeService;
use crate::pmix::sidecar_link::{RequestId, UpcallId};
use crate::pmix::sidecar_protocol::{ControlRefusal, SidecarCommand};
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::Status;

/// Direct modex as a node takes part in it.
pub(in crate::node) struct DirectModex {
    engine: ModexEngine<ModexRequester>,
    /// Requests for data of local ranks that the sidecar has not answered.
    requests: Vec<(RequestId, Proc)>,
}

impl DirectModex {
    pub(in crate::node) fn new(engine: ModexEngine<ModexRequester>) -> Self {
        Self {
            engine,
            requests: Vec::new(),
        }
    }

    /// Passes an input to the engine and executes its orders.
    pub(in crate::node) fn handle(
        &mut self,
        input: ModexEvent<ModexRequester>,
        cx: &mut NodeContext,
    ) {
        let mut outputs = Vec::new();
        self.engine.handle(input, cx.now, &mut outputs);
        for output in outputs {
            match output {
                ModexAction::Send { to, message } => cx.send(to, PeerMessage::Modex(message)),
                ModexAction::AskHost { proc } => self.request_from_sidecar(proc, cx),
                ModexAction::Complete { ticket, result } => match ticket {
                    ModexRequester::Pmix(id) => answer(id, result, cx),
                    ModexRequester::Far { to, serial } => {
                        cx.leave(NodeEffect::FarData { to, serial, result });
                    }
                },
            }
        }
    }

    /// Requests the data of a local rank for another node.
    fn request_from_sidecar(&mut self, proc: Proc, cx: &mut NodeContext) {
        if !cx.sidecar.is_ready() {
            let result = Err(Status::ERR_NOT_FOUND.0);
            return self.handle(ModexEvent::SidecarAnswered { proc, result }, cx);
        }
        let (nspace, rank) = (proc.nspace.clone(), proc.rank);
        let control = SidecarCommand::DirectModex { nspace, rank };
        if let Some(id) = cx.control(&control) {
            self.requests.push((id, proc));
        }
    }

    /// Handles the sidecar's reply to a request.
    pub(in crate::node) fn sidecar_answered(
        &mut self,
        id: RequestId,
        result: Result<Vec<u8>, ControlRefusal>,
        cx: &mut NodeContext,
    ) {
        let at = self.requests.iter().position(|(request, _)| *request == id);
        let Some(at) = at else { return };
        let (_, proc) = self.requests.swap_remove(at);
        let result = result.map(Arc::from).map_err(|refusal| refusal.status.0);
        self.handle(ModexEvent::SidecarAnswered { proc, result }, cx);
    }

    /// Fails the requests for local ranks, whose data is lost with the sidecar.
    pub(in crate::node) fn sidecar_lost(&mut self, cx: &mut NodeContext) {
        for (_, proc) in std::mem::take(&mut self.requests) {
            let result = Err(Status::ERR_LOST_CONNECTION.0);
            self.handle(ModexEvent::SidecarAnswered { proc, result }, cx);
        }
    }
}

impl NodeService for DirectModex {
    fn next_deadline(&self) -> Option<Moment> {
        self.engine.next_deadline()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        self.handle(ModexEvent::Tick, cx);
    }

    fn node_lost(&mut self, node: NodeId, reason: &Arc<str>, cx: &mut NodeContext) {
        let reason = Arc::clone(reason);
        self.handle(ModexEvent::PeerLost { node, reason }, cx);
    }

    fn tear_down(&mut self, cx: &mut NodeContext) {
        self.handle(ModexEvent::Teardown, cx);
    }
}

fn answer(id: UpcallId, result: ModexResult, cx: &mut NodeContext) {
    let answer = match result {
        Ok(data) => UpcallAnswer::Data(data.to_vec()),
        Err(failure) => UpcallAnswer::Status(modex_status(failure)),
    };
    cx.answer(id, &answer);
}
