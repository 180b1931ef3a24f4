//! Spawns: requests over PMI and PMIx become requests
//! to the launcher, and its answers theirs. Connections between jobs.
//!
//! Rule: every job of a launch is registered with all of its servers before any of its ranks is
//! started, so a connection between jobs of one launch is a barrier of its participants and no more.
//! Source: docs/pmix-server.md#job-description.

mod cospawn;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::job::ids::{NodeRank, Nspace};
use crate::job::spawn::{
    SpawnApp, SpawnFailure, SpawnFailureKind, SpawnInfo, SpawnRequest, SpawnRequester, SpawnResult,
};
use crate::node::context::NodeContext;
use crate::node::event::{NodeReport, SpawnRequestId};
use crate::node::node_service::NodeService;

use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::upcall::{SpawnedAppInfo, UpcallAnswer};
use crate::pmix::value::{Info, PmixProc, Status, Text, Value};

/// A waiter for the start of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SpawnReplyTarget {
    Pmix(UpcallId),
    /// A rank, over PMI.
    Pmi(NodeRank),
}

/// A spawn that has no answer yet: one job, or those of a co-spawn, which are requested one after the other.
#[derive(Debug)]
struct SpawnSequence {
    reply_to: SpawnReplyTarget,
    requester: SpawnRequester,
    /// Jobs that have been started, that of the ranks first, which is the answer.
    started: Vec<Nspace>,
    /// Parts that follow, in this order.
    beside: VecDeque<SpawnRequest>,
}

/// The requests of this node that the launcher has not answered.
#[derive(Debug, Default)]
pub(in crate::node) struct PendingSpawns {
    next: u64,
    waiting: BTreeMap<SpawnRequestId, SpawnSequence>,
}

impl PendingSpawns {
    /// Sends the request of a `PMIx_Spawn` to the launcher.
    pub(in crate::node) fn spawn(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        infos: &[Info],
        apps: Vec<SpawnedAppInfo>,
        cx: &mut NodeContext,
    ) {
        let Some(requester) = self.spawner(proc, cx) else {
            return cx.answer_status(id, Status::ERR_NOT_FOUND);
        };
        let apps: Option<Vec<_>> = apps.into_iter().map(app).collect();
        let Some(apps) = apps.filter(|apps| !apps.is_empty()) else {
            return cx.answer_status(id, Status::ERR_BAD_PARAM);
        };
        let request = SpawnRequest {
            apps,
            infos: infos.iter().map(to_spawn_info).collect(),
            preputs: Vec::new(),
        };
        self.request_spawn(SpawnReplyTarget::Pmix(id), requester, request, cx);
    }

    /// Returns the process of the launch or the tool with this name.
    fn spawner(&self, name: &PmixProc, cx: &NodeContext) -> Option<SpawnRequester> {
        let process = cx.find_process(name).map(SpawnRequester::Rank);
        process.or_else(|| cx.tools.name_of(name).map(SpawnRequester::Tool))
    }

    /// Sends a spawn request over PMI to the launcher.
    pub(in crate::node) fn pmi_spawn(
        &mut self,
        at: NodeRank,
        request: SpawnRequest,
        cx: &mut NodeContext,
    ) {
        let requester = SpawnRequester::Rank(cx.process(at));
        self.request_spawn(SpawnReplyTarget::Pmi(at), requester, request, cx);
    }

    fn request_spawn(
        &mut self,
        reply_to: SpawnReplyTarget,
        requester: SpawnRequester,
        request: SpawnRequest,
        cx: &mut NodeContext,
    ) {
        let (request, beside) = cospawn::divide(request);
        let spawn = SpawnSequence {
            reply_to,
            requester,
            started: Vec::new(),
            beside,
        };
        self.request_job(spawn, request, cx);
    }

    /// Requests the next job of a spawn.
    fn request_job(&mut self, spawn: SpawnSequence, request: SpawnRequest, cx: &mut NodeContext) {
        self.next += 1;
        let ticket = SpawnRequestId(self.next);
        cx.report_to_launcher(NodeReport::Spawn {
            ticket,
            requester: spawn.requester.clone(),
            request: Box::new(request),
        });
        self.waiting.insert(ticket, spawn);
    }

    /// Handles the launcher's reply to a request. Returns whether the request was made here and had no reply yet.
    pub(in crate::node) fn spawned(
        &mut self,
        ticket: SpawnRequestId,
        result: &SpawnResult,
        cx: &mut NodeContext,
    ) -> bool {
        let Some(mut spawn) = self.waiting.remove(&ticket) else {
            return false;
        };
        match result {
            Ok(job) => {
                spawn.started.push(job.clone());
                let ranks = spawn.started[0].clone();
                match spawn.beside.pop_front() {
                    Some(request) => {
                        let request = cospawn::targeting(request, &ranks);
                        self.request_job(spawn, request, cx);
                    }
                    None => self.answer_spawn(spawn.reply_to, &Ok(ranks), cx),
                }
            }
            Err(_) => {
                for job in &spawn.started {
                    self.end_cospawned(&spawn.requester, job, cx);
                }
                self.answer_spawn(spawn.reply_to, result, cx);
            }
        }
        true
    }

    fn answer_spawn(
        &mut self,
        reply_to: SpawnReplyTarget,
        result: &SpawnResult,
        cx: &mut NodeContext,
    ) {
        match reply_to {
            SpawnReplyTarget::Pmix(id) => {
                let answer = match result {
                    Ok(nspace) => UpcallAnswer::Spawned(nspace.clone()),
                    Err(failure) => UpcallAnswer::Status(status(failure.kind)),
                };
                cx.answer(id, &answer);
            }
            SpawnReplyTarget::Pmi(at) => {
                let started = started_ranks(result, cx);
                cx.with_pmi_of(at, |server, rank| server.spawned(rank, result, &started));
            }
        }
    }
}

impl NodeService for PendingSpawns {
    /// Refuses all pending spawns at the end of the launch.
    fn tear_down(&mut self, cx: &mut NodeContext) {
        let ending = Err(SpawnFailure {
            kind: SpawnFailureKind::Ending,
            text: String::new(),
        });
        let tickets: Vec<_> = self.waiting.keys().copied().collect();
        for ticket in tickets {
            self.spawned(ticket, &ending, cx);
        }
    }
}

/// Returns the number of ranks of each program of a new job, which this node has registered.
fn started_ranks(result: &SpawnResult, cx: &NodeContext) -> Vec<u32> {
    let job = result.as_ref().ok();
    let job = job.and_then(|nspace| cx.find_job(nspace.as_str()));
    job.map_or_else(Vec::new, |(_, job)| job.context.app_map.sizes().collect())
}

/// Converts one application context to a request; `None` if it is empty.
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
        infos: app.infos.iter().map(to_spawn_info).collect(),
    })
}

fn os(text: Text) -> OsString {
    OsString::from_vec(text.into_bytes())
}

/// Converts an info to text; a value without a text form becomes empty.
pub(in crate::node) fn to_spawn_info(info: &Info) -> SpawnInfo {
    let value = match &info.value {
        // As everywhere in PMIx, an attribute without a value is a true one.
        Value::Undef => "true".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::String(value) => value.to_string(),
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
            format!("{}:{}", proc.nspace, proc.rank.0)
        }
        Value::Rank(rank) | Value::Proc(PmixProc { rank, .. }) => rank.0.to_string(),
        Value::Array(array) => {
            let rank = |value: &Value| match value {
                Value::Rank(rank) | Value::Proc(PmixProc { rank, .. }) => Some(rank.0.to_string()),
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
            format!("{separator}{name}={value}")
        }
        _ => String::new(),
    };
    SpawnInfo {
        key: info.key.to_string(),
        value,
        required: info.required,
    }
}

/// Returns the PMIx status for a failed spawn.
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
