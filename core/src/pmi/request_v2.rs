//! PMI-2 frames to requests: which keys the commands have.
//!
//! Rule: requests are read by key, unknown keys are passed over, an empty `jobid` means the own
//! job. Source: docs/pmi2-wire.md#pmi-2-commands.
//! Rule: a name is published with the limits among its infos; other infos are passed over. Source: docs/pmi-operations.md#names.
//! Rule: the exit code of an abort is in `exitcode`, or only in MPICH's words. Source:
//! docs/pmi2-wire.md#pmi-2-abort.

use memchr::{memchr, memmem};

use super::command::{PmiCommand, RequestContext};
use super::limits::{KEYLEN_MAX, KVSNAME_MAX, NAME_MAX, VALLEN_MAX};
use super::node_resource::NodeResource;
use super::pmi_collective::BarrierGroup;
use super::reply::PmiRefusal;
use super::request::{PmiRequest, bounded};
use super::spawn_v2;
use super::wire_v1::number;
use super::wire_v2::Pmi2Frame;
use crate::job::ids::Rank;
use crate::kvs;
use crate::names::request::ValueLimits;

/// Exit code of an abort without one.
const NO_CODE: i32 = -1;

/// Text in front of the code in an abort message of MPICH.
const MPI_ABORT: &[u8] = b"MPI_Abort(";

/// Returns the context of a frame.
pub fn call<'a>(frame: &'a Pmi2Frame<'_>) -> RequestContext<'a> {
    let thrid = frame.get("thrid").filter(|thrid| !thrid.is_empty());
    RequestContext::frame(frame.name, thrid)
}

/// Interprets the keys of a command.
///
/// # Errors
/// The [`PmiRefusal`] to answer with.
pub fn parse<'a>(
    command: PmiCommand,
    frame: &'a Pmi2Frame<'_>,
) -> Result<PmiRequest<'a>, PmiRefusal<'static>> {
    let key = || bounded(frame.get("key"), "key", KEYLEN_MAX);
    let service = || bounded(frame.get("name"), "name", NAME_MAX);
    let job = || bounded(frame.get("jobid"), "jobid", KVSNAME_MAX);
    Ok(match command {
        PmiCommand::FullInit => {
            let stated = frame.get("pmirank").or_else(|| frame.get("srcid"));
            let rank = match stated.filter(|text| !text.is_empty()) {
                Some(text) => Some(number(text).ok_or(PmiRefusal::BadField("pmirank"))?),
                None => None,
            };
            PmiRequest::FullInit {
                rank: rank.map(Rank),
                job: claimed_job(frame),
            }
        }
        PmiCommand::KvsName => PmiRequest::KvsName,
        PmiCommand::Put => PmiRequest::Put {
            kvsname: None,
            key: key()?,
            value: value(frame, "value")?,
        },
        PmiCommand::Get => PmiRequest::Get {
            kvsname: frame.get("jobid").filter(|name| !name.is_empty()),
            key: key()?,
        },
        PmiCommand::Barrier => PmiRequest::Barrier(BarrierGroup::WORLD),
        PmiCommand::JobAttribute => PmiRequest::JobAttribute { key: key()? },
        PmiCommand::PutNodeAttribute => PmiRequest::PutNodeAttribute {
            key: key()?,
            value: value(frame, "value")?,
        },
        PmiCommand::NodeAttribute => PmiRequest::NodeAttribute {
            key: key()?,
            wait: frame
                .get("wait")
                .is_some_and(|wait| wait.eq_ignore_ascii_case(b"true")),
        },
        PmiCommand::RegisterResource => {
            let kind = bounded(frame.get("type"), "type", KEYLEN_MAX)?;
            let name = bounded(frame.get("name"), "name", VALLEN_MAX)?;
            PmiRequest::RegisterResource(NodeResource::parse(kind, name)?)
        }
        PmiCommand::Publish => PmiRequest::Publish {
            service: service()?,
            port: bounded(frame.get("port"), "port", NAME_MAX)?,
            limits: limits(frame)?,
        },
        PmiCommand::Lookup => PmiRequest::Lookup {
            service: service()?,
        },
        PmiCommand::Unpublish => PmiRequest::Unpublish {
            service: service()?,
        },
        PmiCommand::Spawn => PmiRequest::Spawn(spawn_v2::parse(frame)?),
        PmiCommand::GetAll => PmiRequest::GetAll {
            kvsname: frame.get("jobid").filter(|name| !name.is_empty()),
        },
        PmiCommand::PutAll => PmiRequest::PutAll {
            job: job()?,
            pairs: pairs(frame)?,
        },
        PmiCommand::Connect => PmiRequest::Connect { job: job()? },
        PmiCommand::Disconnect => PmiRequest::Disconnect { job: job()? },
        PmiCommand::Ring => PmiRequest::Ring {
            left_value: value(frame, "ring-left")?,
            right: value(frame, "ring-right")?,
        },
        PmiCommand::Abort => abort(frame),
        PmiCommand::Finalize => PmiRequest::Finalize,
        _ => return Err(PmiRefusal::UnknownCommand),
    })
}

/// Returns the job that the client of a `fullinit` claims, if any.
pub(super) fn claimed_job<'a>(frame: &'a Pmi2Frame<'_>) -> Option<&'a [u8]> {
    frame.get("pmijobid").filter(|job| !job.is_empty())
}

/// Returns the limits among the infos of a publication. The first info of each name counts.
fn limits(frame: &Pmi2Frame<'_>) -> Result<ValueLimits, PmiRefusal<'static>> {
    let infos = spawn_v2::infos(frame)?;
    let count = |name: &'static str| -> Result<Option<u64>, PmiRefusal<'static>> {
        let info = infos.iter().find(|(key, _)| key == name.as_bytes());
        info.map(|(_, value)| number(value.trim_ascii()).ok_or(PmiRefusal::BadField(name)))
            .transpose()
    };
    ValueLimits::new(count(ValueLimits::EXPIRE)?, count(ValueLimits::REFCOUNT)?)
        .ok_or(PmiRefusal::BadField(ValueLimits::REFCOUNT))
}

/// Returns a required value, which may be empty.
fn value<'a>(
    frame: &'a Pmi2Frame<'_>,
    name: &'static str,
) -> Result<&'a [u8], PmiRefusal<'static>> {
    checked(frame.get(name).ok_or(PmiRefusal::MissingField(name))?, name)
}

fn checked<'a>(value: &'a [u8], name: &'static str) -> Result<&'a [u8], PmiRefusal<'static>> {
    match value {
        value if value.len() > VALLEN_MAX => Err(PmiRefusal::TooLong(name)),
        value => Ok(value),
    }
}

/// Returns the pairs in order, as many as announced, encoded.
fn pairs(frame: &Pmi2Frame<'_>) -> Result<Vec<u8>, PmiRefusal<'static>> {
    let texts = frame.pairs();
    let texts: Vec<_> = texts
        .filter(|(key, _)| matches!(*key, b"key" | b"val"))
        .collect();
    let count = bounded(frame.get("npair"), "npair", KEYLEN_MAX)?;
    if number(count) != Some(texts.len() / 2) {
        return Err(PmiRefusal::BadField("npair"));
    }
    let mut encoded = Vec::new();
    for pair in texts.chunks(2) {
        let [(b"key", key), (b"val", value)] = pair else {
            return Err(PmiRefusal::BadField("npair"));
        };
        let key = bounded(Some(key), "key", KEYLEN_MAX)?;
        kvs::encode_entry(key, checked(value, "val")?, &mut encoded);
    }
    Ok(encoded)
}

fn abort<'a>(frame: &'a Pmi2Frame<'_>) -> PmiRequest<'a> {
    let message = frame.get("message").or_else(|| frame.get("msg"));
    let message = message.unwrap_or_default();
    let stated = frame.get("exitcode").and_then(number);
    // MPICH 5 always sends -1 instead of the program's code.
    let stated = stated.filter(|&code| code != NO_CODE);
    PmiRequest::Abort {
        code: stated.or_else(|| code_in(message)).unwrap_or(NO_CODE),
        message,
    }
}

/// Returns the code in `... MPI_Abort(MPI_COMM_WORLD, 42) ...`.
fn code_in(message: &[u8]) -> Option<i32> {
    let at = memmem::find(message, MPI_ABORT)? + MPI_ABORT.len();
    let (arguments, _) = message[at..].split_at(memchr(b')', &message[at..])?);
    let comma = arguments.iter().rposition(|&byte| byte == b',')?;
    number(arguments[comma + 1..].trim_ascii())
}
