//! Sidecar's side of the control socket: requests in, replies out.
//!
//! The infos of a request stay encoded: only the shim has libpmix's structures.

use wireup_shim::wire as c;

use super::{
    ClientRegistration, ControlKind, ControlRefusal, ForkEnv, Hello, SidecarNotice, StartupFailure,
};
use crate::job::ids::Rank;
use crate::pmix::value::{Channels, DataRange, PmixProc, Status, Text};
use crate::pmix::wire::{Reader, SidecarFrame, WireError, Writer};

/// A request as the host reads it; `infos` is an encoded list, checked by the shim.
#[derive(Clone, PartialEq, Debug)]
pub enum SidecarRequest<'a> {
    /// Start the PMIx server.
    Init {
        /// Infos for `PMIx_server_init`, encoded.
        infos: &'a [u8],
    },
    /// Register a job with libpmix.
    RegisterJob {
        nspace: Text,
        /// This node's ranks of it.
        clients: Vec<ClientRegistration>,
        /// Infos for `PMIx_server_register_nspace`, encoded.
        infos: &'a [u8],
    },
    /// Fetch the data that a local process has published.
    DirectModex(PmixProc),
    /// Deliver an event to local processes.
    Notify {
        code: Status,
        source: PmixProc,
        range: DataRange,
        /// Infos for `PMIx_Notify_event`, encoded.
        infos: &'a [u8],
    },
    DeregisterJob {
        nspace: Text,
    },
    /// Stop the PMIx server.
    Finalize,
    /// Show that libpmix works.
    Probe,
    /// Pass output on to local processes.
    IofDeliver {
        source: PmixProc,
        channel: Channels,
        /// The output; empty at its end.
        data: &'a [u8],
    },
}

impl<'a> SidecarRequest<'a> {
    /// Reads a request frame.
    ///
    /// # Errors
    /// [`WireError`]; the stream is then lost.
    pub fn decode(frame: &'a SidecarFrame) -> Result<Self, WireError> {
        let kind = ControlKind::from_op(frame.op).filter(|_| !frame.reply);
        let kind = kind.ok_or(WireError::Operation {
            op: frame.op,
            reply: frame.reply,
        })?;
        if frame.id == 0 {
            return Err(WireError::Id {
                op: frame.op,
                id: 0,
            });
        }
        let mut from = Reader::new(&frame.payload);
        let request = match kind {
            ControlKind::Init => Self::Init { infos: from.rest() },
            ControlKind::RegisterJob => Self::RegisterJob {
                nspace: nspace(&mut from)?,
                clients: from.list(|from| {
                    Ok(ClientRegistration {
                        rank: Rank(from.u32()?),
                        uid: from.u32()?,
                        gid: from.u32()?,
                    })
                })?,
                infos: from.rest(),
            },
            ControlKind::DirectModex => Self::DirectModex(PmixProc::decode(&mut from)?),
            ControlKind::Notify => Self::Notify {
                code: Status(from.i32()?),
                source: PmixProc::decode(&mut from)?,
                range: DataRange(from.u8()?),
                infos: from.rest(),
            },
            ControlKind::DeregisterJob => Self::DeregisterJob {
                nspace: nspace(&mut from)?,
            },
            ControlKind::Finalize => Self::Finalize,
            ControlKind::Probe => Self::Probe,
            ControlKind::IofDeliver => Self::IofDeliver {
                source: PmixProc::decode(&mut from)?,
                channel: Channels(from.u16()?),
                data: from.bytes()?,
            },
        };
        from.end()?;
        Ok(request)
    }
}

fn nspace(from: &mut Reader<'_>) -> Result<Text, WireError> {
    let nspace = Text::decode(from)?;
    match nspace.as_bytes().len() {
        1..=255 => Ok(nspace),
        _ => Err(WireError::Bad("nspace")),
    }
}

/// Contents of a successful reply.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    Done,
    ForkEnv(&'a ForkEnv),
    Data(&'a [u8]),
}

/// Encodes the reply to the request `id` of this kind.
///
/// # Errors
/// [`WireError::TooLarge`].
pub fn reply(
    kind: ControlKind,
    id: u64,
    outcome: Result<Body<'_>, &ControlRefusal>,
) -> Result<Vec<u8>, WireError> {
    let mut out = Writer::frame();
    let (status, text) = match outcome {
        Ok(_) => (Status::SUCCESS, ""),
        Err(refusal) => (refusal.status, refusal.text.as_str()),
    };
    out.i32(status.0);
    Text::from(text).encode(&mut out);
    match outcome {
        Ok(Body::Done) | Err(_) => {}
        Ok(Body::Data(data)) => out.bytes(data),
        Ok(Body::ForkEnv(env)) => {
            let variables = |list: &[(Text, Text)], out: &mut Writer| {
                out.count(list.len());
                for (name, value) in list {
                    name.encode(out);
                    value.encode(out);
                }
            };
            variables(&env.common, &mut out);
            out.count(env.clients.len());
            for (rank, list) in &env.clients {
                out.u32(rank.0);
                variables(list, &mut out);
            }
        }
    }
    out.finish(kind.op(), true, id)
}

/// Encodes the frame of a notice.
///
/// # Errors
/// [`WireError::TooLarge`].
pub fn notice(notice: &SidecarNotice) -> Result<Vec<u8>, WireError> {
    let mut out = Writer::frame();
    let op = match notice {
        SidecarNotice::Hello(Hello { libpmix }) => {
            out.u32(c::WIREUP_SHIM_ABI);
            libpmix.encode(&mut out);
            c::WIREUP_OP_HELLO
        }
        SidecarNotice::Failed(StartupFailure { stage, text }) => {
            out.u8(*stage as u8);
            text.encode(&mut out);
            c::WIREUP_OP_FAILED
        }
        SidecarNotice::Warning(text) => {
            text.encode(&mut out);
            c::WIREUP_OP_WARNING
        }
    };
    out.finish(op as u16, false, 0)
}
