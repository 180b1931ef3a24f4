//! The agent's answers to upcalls, and their encoding.

use super::UpcallKind;
use crate::job::ids::Nspace;
use crate::pmix::keys;
use crate::pmix::value::{Info, PmixProc, Status, Text, Value};
use crate::pmix::wire::{Reader, SidecarFrame, WireError, Writer};

/// A published value as a lookup gets it.
#[derive(Clone, PartialEq, Debug)]
pub struct Pdata {
    pub proc: PmixProc,
    pub key: Text,
    pub value: Value,
}

/// The agent's answer to an upcall.
///
/// `abort`, `log`, `publish` and `unpublish` take a [`Status`](Self::Status), `fence` and
/// `direct_modex` take [`Data`](Self::Data), `query`, `group` and `allocate` take
/// [`Infos`](Self::Infos), `lookup`
/// takes [`Found`](Self::Found), `spawn` takes [`Spawned`](Self::Spawned), `get_credential` takes
/// [`Credential`](Self::Credential), `validate_credential` takes [`Infos`](Self::Infos), `connect` and
/// `disconnect` take a status, `tool_connected` takes [`Named`](Self::Named); a status answers every kind, and is how each of them fails.
#[derive(Clone, PartialEq, Debug)]
pub enum UpcallAnswer {
    /// Success without data, or a refusal.
    Status(Status),
    /// Success, with the collected data.
    Data(Vec<u8>),
    /// Known infos, with a status for complete or partial data.
    Infos(Status, Vec<Info>),
    /// Success, with a credential and its type.
    Credential(Vec<u8>, Vec<Info>),
    /// Values found, with a status for complete or partial data.
    Found(Status, Vec<Pdata>),
    /// Success: the job runs.
    Spawned(Nspace),
    /// Success: the process is known by this name.
    Named(PmixProc),
}

/// An answer as the shim reads it.
#[derive(Clone, PartialEq, Debug)]
pub struct AnswerParts {
    pub status: Status,
    /// See [`UpcallAnswer::Data`], or the name of a spawned job, or the nspace of [`UpcallAnswer::Named`]; else
    /// empty.
    pub data: Vec<u8>,
    /// See [`UpcallAnswer::Infos`]; else empty.
    pub infos: Vec<Info>,
    /// See [`UpcallAnswer::Found`]; else empty.
    pub found: Vec<Pdata>,
}

impl UpcallAnswer {
    /// Encodes the reply frame. An answer of another kind of upcall is reduced to its status; a spawn or a tool without
    /// a name failed.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn encode(&self, kind: UpcallKind, id: u64) -> Result<Vec<u8>, WireError> {
        let rank;
        let (status, data, infos, found): (Status, &[u8], &[Info], &[Pdata]) = match self {
            Self::Status(status) => (*status, &[], &[], &[]),
            Self::Data(data) => (Status::SUCCESS, data, &[], &[]),
            Self::Infos(status, infos) => (*status, &[], infos, &[]),
            Self::Credential(data, infos) => (Status::SUCCESS, data, infos, &[]),
            Self::Found(status, found) => (*status, &[], &[], found),
            Self::Spawned(nspace) => (Status::SUCCESS, nspace.as_str().as_bytes(), &[], &[]),
            Self::Named(proc) => {
                rank = [Info::new(keys::RANK, Value::Rank(proc.rank))];
                (Status::SUCCESS, proc.nspace.as_bytes(), &rank, &[])
            }
        };
        let nameless = match kind {
            UpcallKind::Spawn => !matches!(self, Self::Spawned(_)),
            UpcallKind::ToolConnected => !matches!(self, Self::Named(_)),
            _ => false,
        };
        let status = match status {
            Status::SUCCESS if nameless => Status::ERROR,
            status => status,
        };
        let mut out = Writer::frame();
        out.i32(status.0);
        if kind == UpcallKind::Lookup {
            out.count(found.len());
            for pdata in found {
                pdata.proc.encode(&mut out);
                pdata.key.encode(&mut out);
                pdata.value.encode(&mut out);
            }
        } else {
            out.bytes(data);
            Info::encode_list(infos, &mut out);
        }
        out.finish(kind.op(), true, id)
    }

    /// Reads a reply as the shim does.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(frame: &SidecarFrame) -> Result<AnswerParts, WireError> {
        let mut from = Reader::new(&frame.payload);
        let mut parts = AnswerParts {
            status: Status(from.i32()?),
            data: Vec::new(),
            infos: Vec::new(),
            found: Vec::new(),
        };
        if frame.op == UpcallKind::Lookup.op() {
            parts.found = from.list(|from| {
                Ok(Pdata {
                    proc: PmixProc::decode(from)?,
                    key: Text::decode(from)?,
                    value: Value::decode(from, 0)?,
                })
            })?;
        } else {
            parts.data = from.bytes()?.to_vec();
            parts.infos = Info::decode_list(&mut from)?;
        }
        from.end()?;
        Ok(parts)
    }
}
