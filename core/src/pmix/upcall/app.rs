//! One program of a spawn request.

use crate::pmix::upcall::encoding::encode_texts;
use crate::pmix::value::{Info, Text};
use crate::pmix::wire::{Reader, WireError, Writer};

/// An application context of [`Request::Spawn`](super::UpcallRequest::Spawn), as the client gave it.
#[derive(Clone, PartialEq, Debug)]
pub struct SpawnedAppInfo {
    /// The program; may be empty, then it is the first of `argv`.
    pub cmd: Text,
    /// Program name and arguments, or nothing at all.
    pub argv: Vec<Text>,
    /// Variables for its ranks, `NAME=VALUE`, that must reach them as they are.
    pub env: Vec<Text>,
    /// Where it starts; empty if the client leaves that open.
    pub cwd: Text,
    /// Number of ranks, as the client gave it: it may be 0 or less.
    pub maxprocs: i32,
    /// `WDIR`, `HOST`, `PREFIX` and the like.
    pub infos: Vec<Info>,
}

impl SpawnedAppInfo {
    pub(super) fn encode(&self, out: &mut Writer) {
        self.cmd.encode(out);
        encode_texts(&self.argv, out);
        encode_texts(&self.env, out);
        self.cwd.encode(out);
        out.i32(self.maxprocs);
        Info::encode_list(&self.infos, out);
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            cmd: Text::decode(from)?,
            argv: from.list(Text::decode)?,
            env: from.list(Text::decode)?,
            cwd: Text::decode(from)?,
            maxprocs: from.i32()?,
            infos: Info::decode_list(from)?,
        })
    }
}
