//! PMI-1 lines to requests: which fields the commands have.
//!
//! Rule: the last field of `put`, of the name commands and of `abort` runs to the end of the line
//! and may hold blanks. Source: docs/pmi-wire.md#framing.

use super::command::{PmiCommand, RequestContext};
use super::limits::{KEYLEN_MAX, KVSNAME_MAX, NAME_MAX, VALLEN_MAX};
use super::pmi_collective::BarrierGroup;
use super::reply::PmiRefusal;
use super::request::{PmiRequest, bounded};
use super::wire_v1::{Fields, Pmi1Line, ProtocolError, number};
use crate::names::request::ValueLimits;

/// Interprets one line: returns the request, or the reason for its refusal.
///
/// # Errors
/// A [`ProtocolError`] when the line is not understood at all: the connection is lost.
pub fn parse<'a>(
    line: &Pmi1Line<'a>,
) -> Result<
    (
        RequestContext<'a>,
        Result<PmiRequest<'a>, PmiRefusal<'static>>,
    ),
    ProtocolError,
> {
    let mut call = RequestContext::line(line.name);
    let request = match call.command {
        PmiCommand::Barrier => {
            let [group] = pick(line.fields(), ["group"])?;
            call.tag = group.map_or(0, BarrierGroup::tag_of);
            let group = group.map_or(Ok(BarrierGroup::WORLD), BarrierGroup::parse);
            group.map(PmiRequest::Barrier)
        }
        PmiCommand::Init => {
            let [version, subversion] = pick(line.fields(), ["pmi_version", "pmi_subversion"])?;
            init(version, subversion)
        }
        PmiCommand::Put => {
            let (head, value) = line.split_tail(b" value=");
            let [kvsname, key] = pick(head, ["kvsname", "key"])?;
            put(kvsname, key, value)
        }
        PmiCommand::Get => {
            let [kvsname, key] = pick(line.fields(), ["kvsname", "key"])?;
            get(kvsname, key)
        }
        PmiCommand::Publish => {
            let (service, port) = line.split_service(Some(b" port="));
            publish(service, port)
        }
        PmiCommand::Lookup => {
            let (service, _) = line.split_service(None);
            bounded(service, "service", NAME_MAX).map(|service| PmiRequest::Lookup { service })
        }
        PmiCommand::Unpublish => {
            let (service, _) = line.split_service(None);
            bounded(service, "service", NAME_MAX).map(|service| PmiRequest::Unpublish { service })
        }
        PmiCommand::Abort => Ok(abort(line)?),
        PmiCommand::Maxes => plain(line, PmiRequest::Maxes)?,
        PmiCommand::AppNum => plain(line, PmiRequest::AppNum)?,
        PmiCommand::KvsName => plain(line, PmiRequest::KvsName)?,
        PmiCommand::Hosts => plain(line, PmiRequest::Hosts)?,
        PmiCommand::UniverseSize => plain(line, PmiRequest::UniverseSize)?,
        PmiCommand::Finalize => plain(line, PmiRequest::Finalize)?,
        PmiCommand::Restart => plain(line, PmiRequest::Restart)?,
        PmiCommand::CreateKvs | PmiCommand::DestroyKvs | PmiCommand::GetByIndex => {
            Err(PmiRefusal::NotSupported)
        }
        _ => Err(PmiRefusal::UnknownCommand),
    };
    Ok((call, request))
}

fn init<'a>(
    version: Option<&[u8]>,
    subversion: Option<&[u8]>,
) -> Result<PmiRequest<'a>, PmiRefusal<'static>> {
    let numeric = |value: Option<&[u8]>, name| {
        let value = value.ok_or(PmiRefusal::MissingField(name))?;
        number(value).ok_or(PmiRefusal::BadField(name))
    };
    Ok(PmiRequest::Init {
        version: numeric(version, "pmi_version")?,
        subversion: numeric(subversion, "pmi_subversion")?,
    })
}

fn put<'a>(
    kvsname: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
) -> Result<PmiRequest<'a>, PmiRefusal<'static>> {
    let kvsname = bounded(kvsname, "kvsname", KVSNAME_MAX)?;
    let key = bounded(key, "key", KEYLEN_MAX)?;
    let value = value.ok_or(PmiRefusal::MissingField("value"))?;
    if value.len() > VALLEN_MAX {
        return Err(PmiRefusal::TooLong("value"));
    }
    Ok(PmiRequest::Put {
        kvsname: Some(kvsname),
        key,
        value,
    })
}

fn get<'a>(
    kvsname: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
) -> Result<PmiRequest<'a>, PmiRefusal<'static>> {
    Ok(PmiRequest::Get {
        kvsname: Some(bounded(kvsname, "kvsname", KVSNAME_MAX)?),
        key: bounded(key, "key", KEYLEN_MAX)?,
    })
}

fn publish<'a>(
    service: Option<&'a [u8]>,
    port: Option<&'a [u8]>,
) -> Result<PmiRequest<'a>, PmiRefusal<'static>> {
    Ok(PmiRequest::Publish {
        service: bounded(service, "service", NAME_MAX)?,
        port: bounded(port, "port", NAME_MAX)?,
        limits: ValueLimits::default(),
    })
}

/// Parses an abort. It is never refused: without a usable code it fails the job as a protocol error.
fn abort<'a>(line: &Pmi1Line<'a>) -> Result<PmiRequest<'a>, ProtocolError> {
    let (head, message) = match line.split_tail(b" message=") {
        (head, None) => match line.split_tail(b" error_msg=") {
            (_, None) => (head, None),
            found => found,
        },
        found => found,
    };
    let [code, flux_code] = pick(head, ["exitcode", "exit_code"])?;
    let code = code
        .or(flux_code)
        .and_then(number)
        .ok_or(ProtocolError::AbortCode)?;
    Ok(PmiRequest::Abort {
        code,
        message: message.unwrap_or(b""),
    })
}

/// Returns the first value of each requested key; other fields are ignored if their syntax is valid.
pub(super) fn pick<'a, const N: usize>(
    fields: Fields<'a>,
    names: [&str; N],
) -> Result<[Option<&'a [u8]>; N], ProtocolError> {
    let mut found = [None; N];
    for field in fields {
        let (key, value) = field?;
        let place = names.iter().position(|name| name.as_bytes() == key);
        if let Some(place) = place.map(|index| &mut found[index]) {
            place.get_or_insert(value);
        }
    }
    Ok(found)
}

/// Returns a request without fields.
fn plain<'a>(
    line: &Pmi1Line<'a>,
    request: PmiRequest<'a>,
) -> Result<Result<PmiRequest<'a>, PmiRefusal<'static>>, ProtocolError> {
    let [] = pick(line.fields(), [])?;
    Ok(Ok(request))
}
