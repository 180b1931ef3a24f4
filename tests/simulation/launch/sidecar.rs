//! A node's PMIx server, as its step and its ranks see it: it serves the step's requests, and makes one upcall of what
//! all its clients have asked for together.

use std::collections::{BTreeMap, BTreeSet};

use wireup_core::job::ids::{GlobalRank, Nspace, Rank};
use wireup_core::pmix::keys;
use wireup_core::pmix::sidecar_protocol::serve::{self, Body};
use wireup_core::pmix::sidecar_protocol::{
    ControlKind, ControlRefusal, ForkEnv, Hello, SidecarNotice,
};
use wireup_core::pmix::upcall::{
    GroupOp, Notice, SpawnedAppInfo, Upcall, UpcallAnswer, UpcallKind, UpcallRequest,
};
use wireup_core::pmix::value::{DataRange, Info, PmixProc, PmixRank, Status, Text, Value};
use wireup_core::pmix::wire::{FrameDecoder, SidecarFrame};

/// Request of a rank to its server.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ask {
    pub(crate) by: PmixProc,
    pub(crate) what: Wish,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Wish {
    Connect,
    /// Puts and commits: everything that others may fetch of it.
    Commit(Vec<u8>),
    Fence {
        collect: bool,
    },
    /// The data of another one.
    Modex(u32),
    Publish(String, String),
    /// Waits until it is there.
    LookUp(String),
    Group {
        op: GroupOp,
        name: String,
        members: Vec<u32>,
    },
    Spawn(u32),
    Abort,
    Finalize,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    /// Data of the reply: collected by a fence or modex, value of a lookup, or name of a spawned
    /// job.
    pub(crate) data: Vec<u8>,
    /// Context id of a group.
    pub(crate) context: Option<usize>,
}

/// Effect of a server on the simulation.
#[derive(Debug)]
pub(crate) enum Does {
    Control(Vec<u8>),
    Upcall(Vec<u8>),
    Reply(GlobalRank, Reply),
    End,
}

#[derive(Debug)]
pub(crate) struct Sidecar {
    control: FrameDecoder,
    upcalls: FrameDecoder,
    /// By job, its ranks here.
    clients: BTreeMap<Text, BTreeSet<u32>>,
    /// Committed data of local ranks.
    data: BTreeMap<(Text, u32), Vec<u8>>,
    /// The step's requests for what is not committed.
    parked: Vec<((Text, u32), u64)>,
    /// Local ranks that have called a collective which other local ranks have not called yet.
    called: BTreeMap<String, Vec<GlobalRank>>,
    /// Ranks that wait for the reply to an upcall.
    waiting: BTreeMap<u64, (UpcallKind, Vec<GlobalRank>)>,
    last: u64,
    pub(crate) broken: Option<String>,
    does: Vec<Does>,
}

fn key(proc: &PmixProc) -> (Text, u32) {
    (proc.nspace.clone(), proc.rank.0)
}

impl Sidecar {
    /// One that has loaded its libraries.
    pub(crate) fn new() -> Self {
        let hello = Hello {
            libpmix: "OpenPMIx 5.0.3 (simulated)".into(),
        };
        let hello = serve::notice(&SidecarNotice::Hello(hello)).expect("it is short");
        Self {
            control: FrameDecoder::default(),
            upcalls: FrameDecoder::default(),
            clients: BTreeMap::new(),
            data: BTreeMap::new(),
            parked: Vec::new(),
            called: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last: 0,
            broken: None,
            does: vec![Does::Control(hello)],
        }
    }

    pub(crate) fn take_does(&mut self) -> Vec<Does> {
        std::mem::take(&mut self.does)
    }

    fn frames(&mut self, control: bool, bytes: &[u8]) -> Vec<SidecarFrame> {
        let decoder = match control {
            true => &mut self.control,
            false => &mut self.upcalls,
        };
        let mut frames = Vec::new();
        if let Err(error) = decoder.push(bytes, &mut frames) {
            self.broken = Some(format!("the server reads {error}"));
        }
        frames
    }

    /// The step has a request.
    pub(crate) fn controlled(&mut self, bytes: &[u8]) {
        for frame in self.frames(true, bytes) {
            match serve::SidecarRequest::decode(&frame) {
                Ok(request) => self.serve(frame.id, request),
                Err(error) => self.broken = Some(format!("the server reads {error}")),
            }
        }
    }

    fn serve(&mut self, id: u64, request: serve::SidecarRequest<'_>) {
        let (env, kind) = (ForkEnv::default(), &mut ControlKind::Probe);
        let body = match request {
            serve::SidecarRequest::Init { .. } => {
                *kind = ControlKind::Init;
                Body::Done
            }
            serve::SidecarRequest::RegisterJob {
                nspace, clients, ..
            } => {
                let clients = clients.iter().map(|client| client.rank.0);
                self.clients.insert(nspace, clients.collect());
                *kind = ControlKind::RegisterJob;
                Body::ForkEnv(&env)
            }
            serve::SidecarRequest::DirectModex(proc) => {
                self.parked.push((key(&proc), id));
                return self.serve_parked();
            }
            serve::SidecarRequest::Notify { .. } => {
                *kind = ControlKind::Notify;
                Body::Done
            }
            serve::SidecarRequest::DeregisterJob { nspace } => {
                self.clients.remove(&nspace);
                *kind = ControlKind::DeregisterJob;
                Body::Done
            }
            serve::SidecarRequest::Finalize => {
                self.reply(ControlKind::Finalize, id, Ok(Body::Done));
                return self.does.push(Does::End);
            }
            serve::SidecarRequest::Probe => Body::Done,
            serve::SidecarRequest::IofDeliver { .. } => {
                *kind = ControlKind::IofDeliver;
                Body::Done
            }
        };
        let kind = *kind;
        self.reply(kind, id, Ok(body));
    }

    fn reply(&mut self, kind: ControlKind, id: u64, body: Result<Body<'_>, &ControlRefusal>) {
        let bytes = serve::reply(kind, id, body).expect("it is short");
        self.does.push(Does::Control(bytes));
    }

    fn serve_parked(&mut self) {
        let data = &self.data;
        let (now, later) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|(proc, _)| data.contains_key(proc));
        self.parked = later;
        let now: Vec<((Text, u32), u64)> = now;
        for (proc, id) in now {
            let data = self.data[&proc].clone();
            self.reply(ControlKind::DirectModex, id, Ok(Body::Data(&data)));
        }
    }

    /// The step has answered an upcall.
    pub(crate) fn answered(&mut self, bytes: &[u8]) {
        for frame in self.frames(false, bytes) {
            let kind = UpcallKind::from_op(frame.op);
            let waiting = self.waiting.remove(&frame.id);
            let (Some((request_kind, waiting)), Ok(parts)) =
                (waiting, UpcallAnswer::decode(&frame))
            else {
                self.broken = Some(format!("{kind:?} {} has another answer", frame.id));
                return;
            };
            if kind != Some(request_kind) {
                self.broken = Some(format!("{request_kind:?} is answered as {kind:?}"));
            }
            let context = parts.infos.iter().find_map(|info| match info.value {
                Value::Size(context) if info.key == keys::GROUP_CONTEXT_ID => Some(context),
                _ => None,
            });
            let found = parts.found.into_iter().find_map(|one| match one.value {
                Value::String(text) => Some(text.into_bytes()),
                _ => None,
            });
            let reply = Reply {
                status: parts.status,
                data: found.unwrap_or(parts.data),
                context: context.and_then(|context| usize::try_from(context).ok()),
            };
            for rank in waiting {
                self.does.push(Does::Reply(rank, reply.clone()));
            }
        }
    }

    fn upcall(&mut self, upcall: Upcall, waiting: Vec<GlobalRank>) {
        let id = match &upcall {
            Upcall::Notice(_) => 0,
            Upcall::Request(_) => {
                self.last += 1;
                self.waiting.insert(self.last, (upcall.kind(), waiting));
                self.last
            }
        };
        let bytes = upcall.encode(id).expect("it is short");
        self.does.push(Does::Upcall(bytes));
    }

    /// Calls a collective, and returns its callers when all local ranks have called.
    fn all_called(&mut self, name: String, by: GlobalRank, here: usize) -> Option<Vec<GlobalRank>> {
        let called = self.called.entry(name.clone()).or_default();
        called.push(by);
        (called.len() == here).then(|| self.called.remove(&name).unwrap_or_default())
    }

    /// Handles a request of a rank.
    pub(crate) fn on_request(&mut self, by: GlobalRank, ask: Ask) {
        let Ask { by: proc, what } = ask;
        let nspace = proc.nspace.clone();
        let here = self.clients.get(&nspace).cloned().unwrap_or_default();
        let request = match what {
            Wish::Connect => {
                let infos = Vec::new();
                self.upcall(
                    Upcall::Notice(Notice::ClientConnected { proc, infos }),
                    Vec::new(),
                );
                return self.done(by);
            }
            Wish::Commit(data) => {
                self.data.insert(key(&proc), data);
                self.serve_parked();
                return self.done(by);
            }
            Wish::Finalize => {
                self.upcall(Upcall::Notice(Notice::ClientFinalized { proc }), Vec::new());
                return self.done(by);
            }
            Wish::Fence { collect } => {
                let name = format!("fence of {nspace}");
                let Some(waiting) = self.all_called(name, by, here.len()) else {
                    return;
                };
                let all = PmixProc {
                    nspace: nspace.clone(),
                    rank: PmixRank::WILDCARD,
                };
                let own = self.data.range((nspace.clone(), 0)..=(nspace, u32::MAX));
                let own = own.map(|(_, data)| data.as_slice());
                let data = match collect {
                    true => own.collect::<Vec<_>>().concat(),
                    false => Vec::new(),
                };
                let request = UpcallRequest::Fence {
                    procs: vec![all],
                    infos: vec![Info::new(keys::COLLECT_DATA, Value::Bool(collect))],
                    data,
                };
                return self.upcall(Upcall::Request(request), waiting);
            }
            Wish::Group { op, name, members } => {
                let called = format!("{op:?} {name}");
                let local = members.iter().filter(|member| here.contains(member));
                let Some(waiting) = self.all_called(called, by, local.count()) else {
                    return;
                };
                let member = |member: &u32| PmixProc {
                    nspace: nspace.clone(),
                    rank: PmixRank(*member),
                };
                let context = Info::new(keys::GROUP_ASSIGN_CONTEXT_ID, Value::Bool(true));
                let infos = match op {
                    GroupOp::Construct => vec![context],
                    GroupOp::Destruct => Vec::new(),
                };
                let request = UpcallRequest::Group {
                    op,
                    name: name.into(),
                    procs: members.iter().map(member).collect(),
                    infos,
                };
                return self.upcall(Upcall::Request(request), waiting);
            }
            Wish::Modex(of) => {
                let of = PmixProc {
                    nspace,
                    rank: PmixRank(of),
                };
                match self.data.get(&key(&of)) {
                    Some(data) => {
                        let data = data.clone();
                        return self.answer(by, data);
                    }
                    None => UpcallRequest::DirectModex {
                        proc: of,
                        infos: Vec::new(),
                    },
                }
            }
            Wish::Publish(name, value) => UpcallRequest::Publish {
                proc,
                infos: vec![Info::new(&name, Value::String(value.into())), within_job()],
            },
            Wish::LookUp(name) => UpcallRequest::Lookup {
                proc,
                keys: vec![name.into()],
                infos: vec![Info::new(keys::WAIT, Value::Bool(true)), within_job()],
            },
            Wish::Spawn(count) => UpcallRequest::Spawn {
                proc,
                infos: Vec::new(),
                apps: vec![SpawnedAppInfo {
                    cmd: "child".into(),
                    argv: vec!["child".into()],
                    env: Vec::new(),
                    cwd: Text::default(),
                    maxprocs: count as i32,
                    infos: Vec::new(),
                }],
            },
            Wish::Abort => UpcallRequest::Abort {
                proc,
                status: 6,
                message: Text::default(),
                targets: Vec::new(),
            },
        };
        self.upcall(Upcall::Request(request), vec![by]);
    }

    fn done(&mut self, by: GlobalRank) {
        self.answer(by, Vec::new());
    }

    fn answer(&mut self, by: GlobalRank, data: Vec<u8>) {
        let reply = Reply {
            status: Status::SUCCESS,
            data,
            context: None,
        };
        self.does.push(Does::Reply(by, reply));
    }
}

/// Other launches see nothing of it.
fn within_job() -> Info {
    Info::new(keys::RANGE, Value::Range(DataRange::NAMESPACE))
}

/// The name of a rank of a job.
pub(crate) fn proc(nspace: &Nspace, rank: u32) -> PmixProc {
    PmixProc::new(nspace, Rank(rank))
}
