//! Publishing and looking up, over every protocol: requests of PMI and PMIx become requests of the
//! job's one store, and its answers theirs.
//!
//! Rule: a PMI name is a text in the range `SESSION` that ends with its publisher; any rank may
//! withdraw it, and publishing it twice fails, as under Hydra. Source: docs/pmi-wire.md#names.
//! Rule: PMIx's defaults are the range `SESSION` and the persistence `SESSION`; a process withdraws
//! only what it published. Source: `pmix_server.h`.
//! Rule: who asks is known by the connection; the user is the job's, whatever `PMIX_USERID` says,
//! since that is what a client says of itself and is another number in a user namespace.

use std::sync::Arc;

use super::NodeCore;
use super::upcalls::timeout;
use crate::agent::event::{Action, PeerMessage};
use crate::job::clock::Moment;
use crate::job::ids::{LocalRank, NodeId, Nspace, Rank};
use crate::job::proc::{self, ProcRank};
use crate::pmi::limits::NAME_MAX;
use crate::pmi::server::NameAnswer;
use crate::pmix::host::UpcallId;
use crate::pmix::keys;
use crate::pmix::upcall::{self, Pdata};
use crate::pmix::value::{DataRange, Info, Proc, Status, Text, Value, find, persistence};
use crate::store::engine::{Output, StoreEngine, StoreMessage};
use crate::store::request::{
    Accepts, Answer, Data, Found, Lookup, Persistence, Range, Refusal, Removal, Request, Requester,
    Wait,
};

/// Who waits for an answer of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A rank, over PMI.
    Pmi(LocalRank),
    /// The sidecar.
    Pmix(UpcallId),
}

/// Infos of a publish call that say how; all others are what is published.
const DIRECTIVES: [&str; 7] = [
    keys::RANGE,
    keys::PERSISTENCE,
    keys::USERID,
    keys::GRPID,
    keys::TIMEOUT,
    keys::EVENT_CUSTOM_RANGE,
    keys::WAIT,
];

/// Infos of a publish call that would let other users in, or keep groups of one's own out. They
/// are not honoured: values are always for the publisher's user alone.
const PERMISSIONS: [&str; 3] = [
    keys::ACCESS_PERMISSIONS,
    keys::ACCESS_USERIDS,
    keys::ACCESS_GRPIDS,
];

impl NodeCore {
    pub(super) fn pmi_publish(
        &mut self,
        rank: LocalRank,
        service: Vec<u8>,
        port: Vec<u8>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let request = Request::Publish {
            range: Range::Session,
            persistence: Persistence::Proc,
            values: vec![(service, Data::Text(port.into()))],
        };
        self.pmi_ask(rank, request, now, actions);
    }

    pub(super) fn pmi_lookup(
        &mut self,
        rank: LocalRank,
        service: Vec<u8>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let request = Request::Lookup(Lookup {
            range: Range::Session,
            accepts: Accepts::Text(NAME_MAX),
            keys: vec![service],
            wait: None,
        });
        self.pmi_ask(rank, request, now, actions);
    }

    pub(super) fn pmi_unpublish(
        &mut self,
        rank: LocalRank,
        service: Vec<u8>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let request = Request::Unpublish {
            removal: Removal::Anybodys,
            keys: vec![service],
        };
        self.pmi_ask(rank, request, now, actions);
    }

    fn pmi_ask(
        &mut self,
        local: LocalRank,
        request: Request,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let who = self.requester(self.rank(local));
        self.store(now, actions, |store, out| {
            store.ask(who, request, Asker::Pmi(local), now, out);
        });
    }

    pub(super) fn publish(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        infos: Vec<Info>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        self.pmix_ask(id, proc, publication(infos), now, actions);
    }

    pub(super) fn look_up(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        keys: Vec<Text>,
        infos: &[Info],
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let request = wait(infos).and_then(|wait| {
            Ok(Request::Lookup(Lookup {
                range: range(infos)?.unwrap_or(Range::Session),
                accepts: Accepts::Anything,
                keys: keys.into_iter().map(Text::into_bytes).collect(),
                wait,
            }))
        });
        self.pmix_ask(id, proc, request, now, actions);
    }

    pub(super) fn unpublish(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        keys: Vec<Text>,
        infos: &[Info],
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let request = range(infos).map(|range| {
            // "Everything of mine" means just that; single keys are those of the default range.
            let range = range.or_else(|| (!keys.is_empty()).then_some(Range::Session));
            Request::Unpublish {
                removal: Removal::Own(range),
                keys: keys.into_iter().map(Text::into_bytes).collect(),
            }
        });
        self.pmix_ask(id, proc, request, now, actions);
    }

    fn pmix_ask(
        &mut self,
        id: UpcallId,
        proc: &Proc,
        request: Result<Request, Status>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        // libpmix names the process whose connection it is, and has only clients of this job.
        let rank = self.named(proc).map(|proc| proc.rank);
        let rank = rank.filter(|rank| self.local(*rank).is_some());
        match (rank, request) {
            (Some(rank), Ok(request)) => {
                let who = self.requester(rank);
                self.store(now, actions, |store, out| {
                    store.ask(who, request, Asker::Pmix(id), now, out);
                });
            }
            (None, _) => {
                self.answer(id, &upcall::Answer::Status(Status::ERR_NOT_FOUND), actions);
            }
            (_, Err(status)) => self.answer(id, &upcall::Answer::Status(status), actions),
        }
    }

    pub(super) fn store_message(
        &mut self,
        from: NodeId,
        message: StoreMessage,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        self.store(now, actions, |store, out| {
            store.message(from, message, now, out);
        });
    }

    pub(super) fn store_rank_ended(&mut self, rank: Rank, now: Moment, actions: &mut Vec<Action>) {
        let proc = proc::Proc::new(self.job.nspace.clone(), rank);
        let app = self.job.appnums[rank.index()];
        self.store(now, actions, |store, out| store.rank_ended(proc, app, out));
    }

    pub(super) fn store_tick(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.store(now, actions, |store, out| store.tick(now, out));
    }

    pub(super) fn store_tear_down(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.store(now, actions, |store, out| store.tear_down(out));
    }

    fn requester(&self, rank: Rank) -> Requester {
        let app = self.job.appnums[rank.index()];
        let members = self.job.appnums.iter().filter(|other| **other == app);
        Requester {
            proc: proc::Proc::new(self.job.nspace.clone(), rank),
            node: self.node,
            user: self.job.user,
            app,
            app_size: members.count() as u32,
        }
    }

    /// Does something with the store and carries out what follows.
    fn store(
        &mut self,
        now: Moment,
        actions: &mut Vec<Action>,
        what: impl FnOnce(&mut StoreEngine<Asker>, &mut Vec<Output<Asker>>),
    ) {
        let mut outputs = Vec::new();
        what(&mut self.store, &mut outputs);
        for output in outputs {
            match output {
                Output::Send { to, message } => actions.push(Action::SendPeer {
                    to,
                    message: PeerMessage::Store(message),
                }),
                Output::Complete {
                    ticket: Asker::Pmi(local),
                    answer,
                } => self.pmi_name_answer(local, &answer, now, actions),
                Output::Complete {
                    ticket: Asker::Pmix(id),
                    answer,
                } => {
                    let answer = pmix_answer(answer);
                    self.answer(id, &answer, actions);
                }
            }
        }
    }

    fn pmi_name_answer(
        &mut self,
        local: LocalRank,
        answer: &Answer,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(server) = &mut self.pmi else { return };
        let answer = match answer {
            Answer::Done => NameAnswer::Done,
            Answer::Found(found) => match &found[..] {
                [found] => NameAnswer::Port(found.data.bytes()),
                _ => NameAnswer::Refused("service_not_found"),
            },
            Answer::Partial(_) | Answer::Refused(Refusal::NotFound) => {
                NameAnswer::Refused("service_not_found")
            }
            Answer::Refused(Refusal::Duplicate(_)) => NameAnswer::Refused("already_published"),
            Answer::Refused(Refusal::Keys) => NameAnswer::Refused("invalid_service"),
            Answer::Refused(Refusal::Full) => NameAnswer::Refused("too_many_names"),
            Answer::Refused(Refusal::Timeout) => NameAnswer::Refused("timeout"),
            Answer::Refused(Refusal::RequesterEnded | Refusal::TornDown) => {
                NameAnswer::Refused("job_ends")
            }
        };
        let mut effects = Vec::new();
        server.name_answer(local, answer, &mut effects);
        self.pmi_effects(effects, now, actions);
    }
}

fn pmix_answer(answer: Answer) -> upcall::Answer {
    let pdata = |found: Vec<Found>, status| {
        let pdata: Option<Vec<Pdata>> = found.iter().map(pdata).collect();
        match pdata {
            Some(pdata) => upcall::Answer::Found(status, pdata),
            None => upcall::Answer::Status(Status::ERROR),
        }
    };
    let status = match answer {
        Answer::Done => Status::SUCCESS,
        Answer::Found(found) => return pdata(found, Status::SUCCESS),
        Answer::Partial(found) => return pdata(found, Status::ERR_PARTIAL_SUCCESS),
        Answer::Refused(refusal) => match refusal {
            Refusal::Duplicate(_) => Status::ERR_DUPLICATE_KEY,
            Refusal::NotFound => Status::ERR_NOT_FOUND,
            Refusal::Keys => Status::ERR_BAD_PARAM,
            Refusal::Full => Status::ERR_OUT_OF_RESOURCE,
            Refusal::Timeout => Status::ERR_TIMEOUT,
            Refusal::RequesterEnded | Refusal::TornDown => Status::ERR_LOST_CONNECTION,
        },
    };
    upcall::Answer::Status(status)
}

/// `None` for bytes that are no value.
fn pdata(found: &Found) -> Option<Pdata> {
    let value = match &found.data {
        Data::Text(text) => Value::String(Text::new(&**text)),
        Data::Typed(bytes) => Value::from_bytes(bytes).ok()?,
    };
    Some(Pdata {
        proc: Proc::new(&found.owner.nspace, found.owner.rank),
        key: Text::new(&*found.key),
        value,
    })
}

/// A publish call's values and how they are to be kept.
fn publication(infos: Vec<Info>) -> Result<Request, Status> {
    let range = range(&infos)?.unwrap_or(Range::Session);
    let persistence = match find(&infos, keys::PERSISTENCE) {
        None => Persistence::Session,
        Some(Value::Persistence(number)) => match *number {
            persistence::INDEF => Persistence::Indefinite,
            persistence::FIRST_READ => Persistence::FirstRead,
            persistence::PROC => Persistence::Proc,
            persistence::APP => Persistence::App,
            persistence::SESSION => Persistence::Session,
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        },
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    let mut values = Vec::with_capacity(infos.len());
    for info in infos {
        let is_one_of = |keys: &[&str]| keys.iter().any(|key| info.key == *key);
        if info.required && is_one_of(&PERMISSIONS) {
            return Err(Status::ERR_NOT_SUPPORTED);
        }
        if is_one_of(&DIRECTIVES) || is_one_of(&PERMISSIONS) {
            continue;
        }
        let data = match info.value {
            Value::String(text) => Data::Text(text.into_bytes().into()),
            value if value.is_complete() => Data::Typed(value.to_bytes().into()),
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        };
        values.push((info.key.into_bytes(), data));
    }
    Ok(Request::Publish {
        range,
        persistence,
        values,
    })
}

/// `PMIX_RANGE`, if there is one.
fn range(infos: &[Info]) -> Result<Option<Range>, Status> {
    let number = match find(infos, keys::RANGE) {
        None | Some(Value::Range(DataRange::UNDEF)) => return Ok(None),
        Some(Value::Range(number)) => *number,
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    Ok(Some(match number {
        DataRange::RM => Range::Rm,
        DataRange::LOCAL => Range::Local,
        DataRange::NAMESPACE => Range::Namespace,
        DataRange::SESSION => Range::Session,
        DataRange::GLOBAL => Range::Global,
        DataRange::PROC_LOCAL => Range::ProcLocal,
        DataRange::CUSTOM => Range::Custom(members(infos).ok_or(Status::ERR_BAD_PARAM)?),
        _ => return Err(Status::ERR_BAD_PARAM),
    }))
}

/// The processes of a custom range: those of `PMIX_EVENT_CUSTOM_RANGE`, one or an array, sorted.
fn members(infos: &[Info]) -> Option<Arc<[(Nspace, ProcRank)]>> {
    let procs: Vec<&Proc> = match find(infos, keys::EVENT_CUSTOM_RANGE)? {
        Value::Proc(proc) => vec![proc],
        Value::Array(array) => array
            .items()
            .iter()
            .map(|item| match item {
                Value::Proc(proc) => Some(proc),
                _ => None,
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    let mut members = procs
        .into_iter()
        .map(|proc| {
            let nspace = std::str::from_utf8(proc.nspace.as_bytes()).ok()?;
            let nspace = Nspace::new(nspace).ok()?;
            Some((nspace, ProcRank::from_pmix(proc.rank.0)?))
        })
        .collect::<Option<Vec<_>>>()?;
    members.sort();
    members.dedup();
    Some(members.into())
}

/// `PMIX_WAIT` with `PMIX_TIMEOUT`, if there is one. Its value is an int; a truth value is taken as
/// "all" or "do not wait", and none at all as "all".
fn wait(infos: &[Info]) -> Result<Option<Wait>, Status> {
    let at_least = match find(infos, keys::WAIT) {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Bool(true) | Value::Undef) => 0,
        Some(Value::Int(count) | Value::Int32(count)) => {
            u64::try_from(*count).map_err(|_| Status::ERR_BAD_PARAM)?
        }
        Some(Value::Uint(count) | Value::Uint32(count)) => u64::from(*count),
        Some(Value::Size(count) | Value::Uint64(count)) => *count,
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    Ok(Some(Wait {
        at_least,
        timeout: timeout(infos),
    }))
}
