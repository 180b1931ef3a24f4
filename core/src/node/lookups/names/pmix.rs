//! PMIx's directives and statuses as the store has them.

use crate::names::request::{
    FoundName, LookupWait, NameRange, NameRefusal, NameReply, NameRequest, Persistence,
    PublishedData, ValueLimits,
};
use crate::node::context::upcalls::{custom_range, named_members, timeout};
use crate::pmix::keys;
use crate::pmix::upcall::{self, Pdata};
use crate::pmix::value::{DataRange, Info, PmixProc, Status, Text, Value, find, persistence};

/// Infos of a publish call that are directives; all others are published values.
const DIRECTIVES: [&str; 7] = [
    keys::RANGE,
    keys::PERSISTENCE,
    keys::USERID,
    keys::GRPID,
    keys::TIMEOUT,
    keys::EVENT_CUSTOM_RANGE,
    keys::WAIT,
];

/// Info keys of MPICH's name-publishing interface (doc/namepub): those that wireup supports, and those for the location
/// and the account of the name store, which only the user of the launch chooses (`--names`).
const NAMEPUB: [&str; 7] = [
    ValueLimits::EXPIRE,
    ValueLimits::REFCOUNT,
    "NAMEPUB_CONTACT",
    "NAMEPUB_CREDENTIAL",
    "NAMEPUB_IP",
    "NAMEPUB_IP_FROM_ENV",
    "NAMEPUB_USER",
];

/// Infos of a publish call that would let other users in, or keep groups of one's own out. They
/// are not honoured: values are always for the publisher's user alone.
const PERMISSIONS: [&str; 3] = [
    keys::ACCESS_PERMISSIONS,
    keys::ACCESS_USERIDS,
    keys::ACCESS_GRPIDS,
];

/// Converts a reply of the name table for libpmix.
pub(super) fn pmix_answer(answer: NameReply) -> upcall::UpcallAnswer {
    let pdata = |found: Vec<FoundName>, status| {
        let pdata: Option<Vec<Pdata>> = found.iter().map(pdata).collect();
        match pdata {
            Some(pdata) => upcall::UpcallAnswer::Found(status, pdata),
            None => upcall::UpcallAnswer::Status(Status::ERROR),
        }
    };
    let status = match answer {
        NameReply::Done => Status::SUCCESS,
        NameReply::Found(found) => return pdata(found, Status::SUCCESS),
        NameReply::Partial(found) => return pdata(found, Status::ERR_PARTIAL_SUCCESS),
        // No process can request a list.
        NameReply::Listed(_) => Status::ERROR,
        NameReply::Refused(refusal) => match refusal {
            NameRefusal::Duplicate(_) => Status::ERR_DUPLICATE_KEY,
            NameRefusal::NotFound => Status::ERR_NOT_FOUND,
            NameRefusal::Keys => Status::ERR_BAD_PARAM,
            NameRefusal::Full => Status::ERR_OUT_OF_RESOURCE,
            NameRefusal::Timeout => Status::ERR_TIMEOUT,
            NameRefusal::Unavailable(_) => Status::ERR_UNREACH,
            NameRefusal::RequesterEnded
            | NameRefusal::HeadLost
            | NameRefusal::SharedLost
            | NameRefusal::TornDown => Status::ERR_LOST_CONNECTION,
        },
    };
    upcall::UpcallAnswer::Status(status)
}

/// Converts a found value; `None` for bytes that cannot be decoded.
fn pdata(found: &FoundName) -> Option<Pdata> {
    let value = match &found.data {
        PublishedData::Text(text) => Value::String(Text::new(&**text)),
        PublishedData::Typed(bytes) => Value::from_bytes(bytes).ok()?,
    };
    Some(Pdata {
        proc: PmixProc::from(&found.owner),
        key: Text::new(&*found.key),
        value,
    })
}

/// Converts the values and directives of a publish call to a request.
pub(super) fn publication(infos: Vec<Info>) -> Result<NameRequest, Status> {
    let range = range(&infos)?.unwrap_or(NameRange::Session);
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
    let limits = limits(&infos)?;
    let mut values = Vec::with_capacity(infos.len());
    for info in infos {
        let is_one_of = |keys: &[&str]| keys.iter().any(|key| info.key == *key);
        if info.required && is_one_of(&PERMISSIONS) {
            return Err(Status::ERR_NOT_SUPPORTED);
        }
        if is_one_of(&DIRECTIVES) || is_one_of(&PERMISSIONS) || is_one_of(&NAMEPUB) {
            continue;
        }
        let data = match info.value {
            Value::String(text) => PublishedData::Text(text.into_bytes().into()),
            value if value.is_complete() => PublishedData::Typed(value.to_bytes().into()),
            _ => return Err(Status::ERR_NOT_SUPPORTED),
        };
        values.push((info.key.into_bytes(), data));
    }
    Ok(NameRequest::Publish {
        range,
        persistence,
        limits,
        values,
    })
}

/// Reads the limits from the infos of a publish call, under the names of MPICH's name-publishing interface. A client
/// may give a number as text, as in MPI's infos.
fn limits(infos: &[Info]) -> Result<ValueLimits, Status> {
    let number = |key| match find(infos, key) {
        None => Ok(None),
        Some(value) => count(value).map(Some).ok_or(Status::ERR_BAD_PARAM),
    };
    ValueLimits::new(number(ValueLimits::EXPIRE)?, number(ValueLimits::REFCOUNT)?)
        .ok_or(Status::ERR_BAD_PARAM)
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.to_str()?.trim().parse().ok(),
        Value::Int(number) | Value::Int32(number) => u64::try_from(*number).ok(),
        Value::Uint(number) | Value::Uint32(number) => Some(u64::from(*number)),
        Value::Size(number) | Value::Uint64(number) => Some(*number),
        _ => None,
    }
}

/// Reads `PMIX_RANGE`, if present.
pub(super) fn range(infos: &[Info]) -> Result<Option<NameRange>, Status> {
    let number = match find(infos, keys::RANGE) {
        None | Some(Value::Range(DataRange::UNDEF)) => return Ok(None),
        Some(Value::Range(number)) => *number,
        Some(_) => return Err(Status::ERR_BAD_PARAM),
    };
    Ok(Some(match number {
        DataRange::RM => NameRange::Rm,
        DataRange::LOCAL => NameRange::Local,
        DataRange::NAMESPACE => NameRange::Namespace,
        DataRange::SESSION => NameRange::Session,
        DataRange::GLOBAL => NameRange::Global,
        DataRange::PROC_LOCAL => NameRange::ProcLocal,
        DataRange::CUSTOM => {
            let members = custom_range(infos).and_then(|procs| named_members(&procs));
            NameRange::Custom(members.ok_or(Status::ERR_BAD_PARAM)?.into())
        }
        _ => return Err(Status::ERR_BAD_PARAM),
    }))
}

/// Reads `PMIX_WAIT` with `PMIX_TIMEOUT`, if present. Its value is an int. A truth value means "all" or "do not wait",
/// and a missing value "all".
pub(super) fn wait(infos: &[Info]) -> Result<Option<LookupWait>, Status> {
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
    Ok(Some(LookupWait {
        at_least,
        timeout: timeout(infos),
    }))
}
