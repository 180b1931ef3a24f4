//! Spawns: requests over PMI and PMIx become requests
//! to the launcher, and its answers theirs. Connections between jobs.
//!
//! Rule: every job of a launch is registered with all of its servers before any of its ranks is
//! started, so a connection between jobs of one launch is a barrier of its participants and no more.
//! Source: docs/shim.md#other-jobs.

mod cospawn;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{FenceTicket, NodeCore};
use crate::collective::Act;
use crate::fence::{Contribution, FenceInput, Kind, Series};
use crate::job::ids::{NodeRank, Nspace};
use crate::job::spawn::{
    SpawnApp, SpawnFailure, SpawnFailureKind, SpawnInfo, SpawnRequest, SpawnResult, Spawner,
};
use crate::node::event::{Action, FromNode, SpawnTicket};
use crate::node::raised::raise_job_start;
use crate::pmix::keys;
use crate::pmix::sidecar::UpcallId;
use crate::pmix::upcall::{SpawnedAppInfo, UpcallAnswer};
use crate::pmix::value::{Info, Proc, Status, Text, Value};

/// A waiter for the start of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    Pmix(UpcallId),
    /// A rank, over PMI.
    Pmi(NodeRank),
}

/// What a request is for.
#[derive(Debug)]
enum Part {
    Whole,
    /// A job of a co-spawn: the ranks, or one of the jobs beside them.
    Cospawned {
        by: Spawner,
        /// Jobs that have been started, that of the ranks first, which is the answer.
        started: Vec<Nspace>,
        /// Parts that follow, in this order.
        beside: VecDeque<SpawnRequest>,
    },
}

/// The requests of this node that the launcher has not answered.
#[derive(Debug, Default)]
pub(super) struct Spawns {
    next: u64,
    waiting: BTreeMap<SpawnTicket, (Asker, Part)>,
}

impl NodeCore {
    /// `PMIx_Spawn`.
    pub(super) fn spawn(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        (infos, apps): (&[Info], Vec<SpawnedAppInfo>),
    ) {
        let Some(by) = self.spawner(proc) else {
            return self
                .cx
                .answer(id, &UpcallAnswer::Status(Status::ERR_NOT_FOUND));
        };
        let apps: Option<Vec<_>> = apps.into_iter().map(app).collect();
        let Some(apps) = apps.filter(|apps| !apps.is_empty()) else {
            return self
                .cx
                .answer(id, &UpcallAnswer::Status(Status::ERR_BAD_PARAM));
        };
        let request = SpawnRequest {
            apps,
            infos: infos.iter().map(said).collect(),
            preputs: Vec::new(),
        };
        self.ask_to_spawn(Asker::Pmix(id), by, request);
    }

    /// The process of the launch or the tool of that name.
    fn spawner(&self, name: &Proc) -> Option<Spawner> {
        if let Some(process) = self.cx.named(name) {
            return Some(Spawner::Rank(process));
        }
        self.cx.tools.name_of(name).map(Spawner::Tool)
    }

    /// A spawn request over PMI.
    pub(super) fn pmi_spawn(&mut self, at: NodeRank, request: SpawnRequest) {
        let by = Spawner::Rank(self.cx.process(at));
        self.ask_to_spawn(Asker::Pmi(at), by, request);
    }

    fn ask_to_spawn(&mut self, asker: Asker, by: Spawner, request: SpawnRequest) {
        let (request, beside) = cospawn::divide(request);
        let part = match beside.is_empty() {
            true => Part::Whole,
            false => Part::Cospawned {
                by: by.clone(),
                started: Vec::new(),
                beside,
            },
        };
        self.ask_for_part((asker, part), by, request);
    }

    fn ask_for_part(&mut self, part: (Asker, Part), by: Spawner, request: SpawnRequest) {
        let ticket = self.spawns.ask(part);
        let request = Box::new(request);
        self.cx.order(Action::Tell(FromNode::Spawn {
            ticket,
            by,
            request,
        }));
    }

    /// The launcher's answer to a request.
    pub(super) fn spawned(&mut self, ticket: SpawnTicket, result: &SpawnResult) {
        let Some((asker, part)) = self.spawns.waiting.remove(&ticket) else {
            return;
        };
        match (part, result) {
            (
                Part::Cospawned {
                    by,
                    mut started,
                    mut beside,
                },
                Ok(job),
            ) => {
                started.push(job.clone());
                let ranks = started[0].clone();
                match beside.pop_front() {
                    Some(request) => {
                        let request = cospawn::targeting(request, &ranks);
                        let part = Part::Cospawned {
                            by: by.clone(),
                            started,
                            beside,
                        };
                        self.ask_for_part((asker, part), by, request);
                    }
                    None => self.answer_spawn(asker, &Ok(ranks)),
                }
            }
            (part, result) => {
                if let Part::Cospawned { by, started, .. } = part {
                    for job in &started {
                        self.end_cospawned(&by, job);
                    }
                }
                self.answer_spawn(asker, result);
            }
        }
        if let Ok(nspace) = result {
            self.outputs.job_announced(nspace, &mut self.cx);
            raise_job_start(nspace, &mut self.cx);
            self.settle();
        }
    }

    fn answer_spawn(&mut self, asker: Asker, result: &SpawnResult) {
        match asker {
            Asker::Pmix(id) => {
                let answer = match result {
                    Ok(nspace) => UpcallAnswer::Spawned(nspace.clone()),
                    Err(failure) => UpcallAnswer::Status(status(failure.kind)),
                };
                self.cx.answer(id, &answer);
            }
            Asker::Pmi(at) => self.pmi_spawned(at, result),
        }
    }

    /// Nothing is started any more.
    pub(super) fn spawns_tear_down(&mut self) {
        let ending = Err(SpawnFailure {
            kind: SpawnFailureKind::Ending,
            text: String::new(),
        });
        let tickets: Vec<_> = self.spawns.waiting.keys().copied().collect();
        for ticket in tickets {
            self.spawned(ticket, &ending);
        }
    }

    /// `PMIx_Connect` and `PMIx_Disconnect`.
    pub(super) fn meet(&mut self, id: UpcallId, (act, procs): (Act, &[Proc]), infos: &[Info]) {
        let Some((participants, nodes)) = self.participants(procs) else {
            let data = (super::upcalls::local_status(infos), Vec::new());
            let timeout = super::upcalls::timeout(infos);
            return self
                .collectives
                .enter(id, (act, procs), data, timeout, &mut self.cx);
        };
        let kind = match act {
            Act::Connect => Kind::Connect,
            Act::Disconnect => Kind::Disconnect,
            Act::Fence => Kind::Pmix,
        };
        let status = super::upcalls::local_status(infos);
        let given = super::upcalls::timeout(infos);
        let input = FenceInput::Arrive {
            series: Series { kind, participants },
            nodes,
            contribution: Contribution {
                data: Vec::new().into(),
                collect: false,
                status,
            },
            // libpmix has its own timer, and a callback after it has fired uses freed memory: the
            // answer must come first.
            timeout: self.cx.terms.timeout_or(given.map(|given| given * 3 / 4)),
            ticket: FenceTicket::Connect(id),
        };
        self.fence(input);
    }
}

impl Spawns {
    fn ask(&mut self, part: (Asker, Part)) -> SpawnTicket {
        self.next += 1;
        let ticket = SpawnTicket(self.next);
        self.waiting.insert(ticket, part);
        ticket
    }
}

/// The request for one application context; `None` if it is empty.
fn app(app: SpawnedAppInfo) -> Option<SpawnApp> {
    let mut argv = app.argv.into_iter().map(os);
    let name = argv.next();
    let program = Some(os(app.cmd)).filter(|cmd| !cmd.is_empty()).or(name)?;
    let cwd = os(app.cwd);
    Some(SpawnApp {
        program,
        args: argv.collect(),
        env: app.env.into_iter().map(os).collect(),
        cwd: (!cwd.is_empty()).then(|| PathBuf::from(cwd)),
        // How many daemons of a debugger there are may depend on what they debug.
        count: u32::try_from(app.maxprocs).ok()?,
        infos: app.infos.iter().map(said).collect(),
    })
}

fn os(text: Text) -> OsString {
    OsString::from_vec(text.into_bytes())
}

/// An info as far as it can be said in text.
pub(super) fn said(info: &Info) -> SpawnInfo {
    let text = |text: &Text| String::from_utf8_lossy(text.as_bytes()).into_owned();
    let value = match &info.value {
        // As everywhere in PMIx, an attribute without a value is a true one.
        Value::Undef => "true".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::String(value) => text(value),
        Value::Byte(value) | Value::Uint8(value) => value.to_string(),
        Value::Size(value) | Value::Uint64(value) => value.to_string(),
        Value::Int(value) | Value::Int32(value) => value.to_string(),
        Value::Int8(value) => value.to_string(),
        Value::Int16(value) => value.to_string(),
        Value::Int64(value) => value.to_string(),
        Value::Uint(value) | Value::Uint32(value) => value.to_string(),
        Value::Uint16(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Double(value) => value.to_string(),
        Value::Proc(proc) if info.key == keys::DEBUG_TARGET => {
            format!("{}:{}", text(&proc.nspace), proc.rank.0)
        }
        Value::Rank(rank) | Value::Proc(Proc { rank, .. }) => rank.0.to_string(),
        Value::Array(array) => {
            let rank = |value: &Value| match value {
                Value::Rank(rank) | Value::Proc(Proc { rank, .. }) => Some(rank.0.to_string()),
                _ => None,
            };
            let ranks: Option<Vec<String>> = array.items().iter().map(rank).collect();
            ranks.unwrap_or_default().join(",")
        }
        Value::Envar {
            name,
            value,
            separator,
        } => {
            let separator = match *separator {
                0 => String::new(),
                separator => char::from(separator).to_string(),
            };
            format!("{separator}{}={}", text(name), text(value))
        }
        _ => String::new(),
    };
    SpawnInfo {
        key: text(&info.key),
        value,
        required: info.required,
    }
}

/// The PMIx status for a failed spawn.
fn status(kind: SpawnFailureKind) -> Status {
    match kind {
        SpawnFailureKind::NotFound => Status::ERR_JOB_EXE_NOT_FOUND,
        SpawnFailureKind::NotExecutable => Status::ERR_JOB_APP_NOT_EXECUTABLE,
        SpawnFailureKind::NoSlots => Status::ERR_JOB_INSUFFICIENT_RESOURCES,
        SpawnFailureKind::BadRequest => Status::ERR_BAD_PARAM,
        SpawnFailureKind::NotSupported => Status::ERR_NOT_SUPPORTED,
        SpawnFailureKind::Failed => Status::ERR_JOB_FAILED_TO_LAUNCH,
        SpawnFailureKind::TimedOut => Status::ERR_TIMEOUT,
        SpawnFailureKind::Ending => Status::ERR_JOB_CANCELED,
    }
}
