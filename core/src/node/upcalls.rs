//! The sidecar's part of a node's core: its life, and what libpmix asks through it.
//!
//! Rule: a client that connected and not yet finalized is active; both are notices that the
//! sidecar writes before libpmix lets the client go on, so they are read before its exit is
//! judged. Source: docs/shim.md.

use std::time::Duration;

use super::fences::FenceTicket;
use super::logs::log;
use super::node_context::NodeContext;
use super::{NodeCore, PmixState};
use crate::collective::Act;
use crate::direct_modex::{ModexFailure, ModexInput};
use crate::fence::{
    Contribution, Deadline, FenceFailure, FenceInput, FenceResult, Kind, Nodes, Participants,
    Series,
};
use crate::job::allocation::Directive;
use crate::job::proc;
use crate::node::collectives::ModexTicket;
use crate::node::event::{Action, Notification, Report};
use crate::pmix::keys;
use crate::pmix::sidecar::{SidecarEvent, UpcallId};
use crate::pmix::upcall::{Notice, UpcallAnswer, UpcallRequest};
use crate::pmix::value::{Info, Proc, ProcRank, Status, Value};

impl NodeContext {
    /// The participants and the nodes that host them; `None` when they are not of this launch.
    pub(super) fn participants(&self, procs: &[Proc]) -> Option<(Participants, Nodes)> {
        let mut named = Vec::with_capacity(procs.len());
        let mut nodes = Vec::new();
        for proc in procs {
            let nspace = std::str::from_utf8(proc.nspace.as_bytes()).ok()?;
            let (_, member) = self.job_named(nspace)?;
            let rank = proc::ProcRank::from_pmix(proc.rank.0)?;
            match rank {
                proc::ProcRank::One(rank) => nodes.push(member.context.ranks.node_of(rank)?),
                proc::ProcRank::Wildcard => {
                    nodes.extend(member.world.1.iter());
                }
            }
            named.push((member.context.nspace.clone(), rank));
        }
        let participants = Participants::from_procs(named).ok()?;
        Some((participants, Nodes::new(nodes)?))
    }

    pub(super) fn fence_answer(&mut self, id: UpcallId, result: FenceResult) {
        let answer = match result {
            Ok(released) if released.status == 0 => UpcallAnswer::Data(released.data.to_vec()),
            Ok(released) => UpcallAnswer::Status(Status(released.status)),
            Err(failure) => UpcallAnswer::Status(failure_status(&failure)),
        };
        self.answer(id, &answer);
    }

    /// The same where no data is exchanged.
    pub(super) fn connect_answer(&mut self, id: UpcallId, result: FenceResult) {
        let status = match result {
            Ok(released) => Status(released.status),
            Err(failure) => failure_status(&failure),
        };
        self.answer(id, &UpcallAnswer::Status(status));
    }
}

impl NodeCore {
    pub(super) fn sidecar_events(&mut self, events: Vec<SidecarEvent>) {
        for event in events {
            match event {
                SidecarEvent::Hello(hello) => {
                    self.sidecar_loaded();
                    self.groups.libpmix.clone_from(&hello.libpmix);
                    self.cx.order(Action::Report(Report::SidecarLoaded(hello)));
                }
                SidecarEvent::Warning(text) => {
                    let text = text.to_string();
                    self.cx
                        .order(Action::Report(Report::SidecarWarning { text }));
                }
                SidecarEvent::Failed(failed) => self.sidecar_gave_up(&failed),
                SidecarEvent::Reply { id, reply } => self.control_reply(id, reply),
                SidecarEvent::Request { id, request } => self.request(id, request),
                SidecarEvent::Notice(notice) => self.notice(notice),
            }
            self.settle();
        }
    }

    fn notice(&mut self, notice: Notice) {
        let now = self.cx.now;
        match notice {
            Notice::ClientConnected { proc, .. } => {
                if let Some(local) = self.cx.local_of(&proc) {
                    self.cx.pmix[local.index()] = PmixState::Connected;
                    self.cx.last_contact[local.index()] = Some(now);
                    let proc = self.cx.name_of(self.cx.process(local));
                    self.modex(ModexInput::RankConnected { proc });
                    self.cx
                        .order(Action::Report(Report::RankConnected { rank: local }));
                }
            }
            Notice::ClientFinalized { proc } => {
                if let Some(local) = self.cx.local_of(&proc) {
                    self.cx.pmix[local.index()] = PmixState::Finalized;
                    self.cx.last_contact[local.index()] = Some(now);
                    self.cx
                        .order(Action::Report(Report::RankFinalized { rank: local }));
                }
            }
            Notice::NotifyEvent {
                code: Status::READY_FOR_DEBUG,
                source,
                infos,
                ..
            } => self.stopped.rank_stopped(&source, &infos, &mut self.cx),
            Notice::NotifyEvent {
                code,
                source,
                range,
                infos,
            } => {
                if code == Status::DEBUGGER_RELEASE {
                    let direction = &mut self.direction;
                    if direction.launcher_released(&source, &infos, &mut self.cx) {
                        return;
                    }
                    self.stopped.rank_released(&infos, &mut self.cx);
                }
                self.forward(Notification {
                    code,
                    source,
                    range,
                    infos,
                });
            }
            // libpmix delivers events to local clients by itself, and every event of the job is
            // carried to every node anyway.
            Notice::RegisterEvents { .. } | Notice::DeregisterEvents { .. } => {}
            Notice::IofPull {
                procs,
                infos,
                channels,
            } => self
                .outputs
                .subscribe(&procs, &infos, channels, &mut self.cx),
            Notice::Spawned { nspace } => self.outputs.job_subscribed(&nspace, &mut self.cx),
            Notice::GroupEnded { name, procs } => {
                self.groups.group_ended(&name, &procs, &mut self.cx)
            }
            Notice::ConnectionsLost { source, infos } => {
                let gone = self.cx.disconnect_tools(source, infos);
                for tool in &gone {
                    self.outputs.tool_gone(tool, &mut self.cx);
                }
                if !gone.is_empty() && self.cx.tools.is_empty() {
                    self.cx.report_no_tools();
                }
                self.outputs.unsubscribe_ended(&mut self.cx);
            }
        }
    }

    fn request(&mut self, id: UpcallId, request: UpcallRequest) {
        match request {
            UpcallRequest::Fence { procs, infos, data } => {
                self.pmix_fence(id, &procs, &infos, data);
            }
            UpcallRequest::DirectModex { proc, infos } => {
                let Some(process) = self.cx.named(&proc) else {
                    return self
                        .collectives
                        .fetch_far(id, &proc, timeout(&infos), &mut self.cx);
                };
                let proc = self.cx.name_of(process);
                let owner = self.cx.jobs.node_of(process);
                // Without a given limit, the owner applies its own.
                let timeout = self.cx.terms.timeout_or(timeout(&infos));
                let timeout = timeout.filter(|timeout| timeout.kind != Deadline::Default);
                let timeout = timeout.map(|timeout| timeout.after);
                self.modex(ModexInput::Ask {
                    proc,
                    owner,
                    timeout,
                    key: required_key(&infos),
                    ticket: ModexTicket::Pmix(id),
                });
            }
            UpcallRequest::Abort {
                proc,
                status,
                message,
                targets,
            } => self
                .demands
                .abort(id, &proc, (status, &message), &targets, &mut self.cx),
            UpcallRequest::Query { queries, .. } => self.queries.query(id, queries, &mut self.cx),
            UpcallRequest::Log {
                proc,
                data,
                directives,
            } => log(id, &proc, data, &directives, &mut self.cx),
            UpcallRequest::Publish { proc, infos } => {
                self.names.publish(id, &proc, infos, &mut self.cx)
            }
            UpcallRequest::Lookup { proc, keys, infos } => {
                let tool = self.tool_as_requester(&proc);
                self.names
                    .look_up(id, &proc, tool, keys, &infos, &mut self.cx);
            }
            UpcallRequest::Unpublish { proc, keys, infos } => {
                self.names.unpublish(id, &proc, keys, &infos, &mut self.cx)
            }
            UpcallRequest::Group {
                op,
                name,
                procs,
                infos,
            } => self
                .groups
                .request(id, (op, name), &procs, infos, &mut self.cx),
            UpcallRequest::JobControl {
                proc,
                targets,
                directives,
            } => self
                .demands
                .job_control(id, &proc, &targets, &directives, &mut self.cx),
            UpcallRequest::SessionControl {
                proc,
                session,
                directives,
            } => {
                let extended =
                    self.demands
                        .session_control(id, &proc, (session, &directives), &mut self.cx);
                if let Some(infos) = extended {
                    let extend = (Directive::Extend, &infos[..]);
                    self.allocations.ask_for(id, &proc, extend, &mut self.cx);
                }
            }
            UpcallRequest::PushStdin { targets, data, .. } => {
                self.inputs.push(id, &targets, &data, &mut self.cx)
            }
            UpcallRequest::Spawn { proc, infos, apps } => {
                self.spawns.spawn(id, &proc, (&infos, apps), &mut self.cx)
            }
            UpcallRequest::Connect { procs, infos } => {
                self.meet(id, (Act::Connect, &procs), &infos);
            }
            UpcallRequest::Disconnect { procs, infos } => {
                self.meet(id, (Act::Disconnect, &procs), &infos);
            }
            UpcallRequest::GetCredential { proc, directives } => {
                let answer = self.credentials.vouch_for(proc, &directives, self.cx.now);
                self.cx.answer(id, &answer);
            }
            UpcallRequest::ValidateCredential {
                credential,
                directives,
                ..
            } => {
                let answer = self
                    .credentials
                    .validate(&credential, &directives, self.cx.now);
                self.cx.answer(id, &answer);
            }
            UpcallRequest::Allocate {
                proc,
                directive,
                infos,
            } => self
                .allocations
                .allocate(id, &proc, (directive, &infos), &mut self.cx),
            UpcallRequest::ToolConnected { infos } => self.cx.connect_tool(id, &infos),
        }
    }

    fn pmix_fence(&mut self, id: UpcallId, procs: &[Proc], infos: &[Info], data: Vec<u8>) {
        let Some((participants, nodes)) = self.cx.participants(procs) else {
            let data = (local_status(infos), data);
            let timeout = timeout(infos);
            return self
                .collectives
                .enter(id, (Act::Fence, procs), data, timeout, &mut self.cx);
        };
        let collect = infos
            .iter()
            .any(|info| info.key == keys::COLLECT_DATA && info.value == Value::Bool(true));
        let contribution = Contribution {
            data: data.into(),
            collect,
            status: local_status(infos),
        };
        let ticket = FenceTicket::Pmix(id);
        let timeout = self.cx.terms.timeout_or(timeout(infos));
        let input = FenceInput::Arrive {
            series: Series {
                kind: Kind::Pmix,
                participants,
            },
            nodes,
            contribution,
            timeout,
            ticket,
        };
        self.fence(input);
    }
}

/// Why there is no data, as PMIx has it.
pub(super) fn modex_status(failure: ModexFailure) -> Status {
    match failure {
        ModexFailure::NotFound | ModexFailure::RankGone => Status::ERR_NOT_FOUND,
        ModexFailure::Timeout { .. } => Status::ERR_TIMEOUT,
        ModexFailure::PeerLost { .. } | ModexFailure::TornDown { .. } => {
            Status::ERR_LOST_CONNECTION
        }
        ModexFailure::TooLarge(_) => Status::ERR_OUT_OF_RESOURCE,
        ModexFailure::Host(status) => Status(status),
    }
}

fn failure_status(failure: &FenceFailure) -> Status {
    match failure {
        FenceFailure::Timeout { .. } => Status::ERR_TIMEOUT,
        FenceFailure::PeerLost { .. } | FenceFailure::TornDown { .. } => {
            Status::ERR_LOST_CONNECTION
        }
        _ => Status::ERROR,
    }
}

/// How a collective went among the processes of this node, as libpmix has it.
pub(super) fn local_status(infos: &[Info]) -> i32 {
    let status = infos.iter().find_map(|info| match &info.value {
        Value::Status(status) if info.key == keys::LOCAL_COLLECTIVE_STATUS => Some(status.0),
        _ => None,
    });
    status.unwrap_or(0)
}

/// The key for which a client waits; not one of those that only the host gives (`pmix…`), since the
/// rank does not publish them.
fn required_key(infos: &[Info]) -> Option<Box<[u8]>> {
    let required = infos.iter().find(|info| info.key == keys::REQUIRED_KEY)?;
    match &required.value {
        Value::String(key) if !key.as_bytes().starts_with(b"pmix") => Some(key.as_bytes().into()),
        _ => None,
    }
}

/// `PMIX_TIMEOUT` comes as int or unsigned; 0 means none.
pub(super) fn timeout(infos: &[Info]) -> Option<Duration> {
    let seconds = infos
        .iter()
        .filter(|info| info.key == keys::TIMEOUT)
        .find_map(|info| match info.value {
            Value::Int(seconds) | Value::Int32(seconds) => u64::try_from(seconds).ok(),
            Value::Uint(seconds) | Value::Uint32(seconds) => Some(u64::from(seconds)),
            _ => None,
        })?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The special rank that stands for a whole nspace never names one process.
const _: () = assert!(ProcRank::WILDCARD.0 == proc::PMIX_RANK_WILDCARD);
