//! Output of ranks for libpmix's subscribers, at the pace of those that read (see `backlog`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::backlog::{self, ClientBacklog, OutputDecision};
use crate::c_memory::{self, CBytes, CProc, check};
use crate::pmix_calls::PmixServer;
use wireup_core::pmix::sidecar_protocol::{ControlRefusal, SidecarNotice};
use wireup_core::pmix::value::{Channels, PmixProc, Status};

/// Time between two checks whether pieces that wait may pass.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// A piece that waits. The launcher sends no more of its stream than some megabyte beyond it.
struct IofChunk {
    id: u64,
    source: PmixProc,
    channel: Channels,
    bytes: Vec<u8>,
}

/// Output that has not been handed to libpmix.
#[derive(Default)]
pub(crate) struct Output {
    backlog: ClientBacklog,
    /// Pieces that wait, in the order in which they came.
    waiting: VecDeque<IofChunk>,
}

impl Output {
    /// Whether pieces wait for subscribers.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl PmixServer {
    /// Takes a piece of output, which is replied to when libpmix has it, or when it is dropped.
    pub(crate) fn iof_deliver(
        &mut self,
        id: u64,
        source: &PmixProc,
        channel: Channels,
        bytes: &[u8],
    ) {
        let waits = self.output.waits() || !self.pass_judged(id, source, channel, bytes);
        if waits {
            self.output.waiting.push_back(IofChunk {
                id,
                source: source.clone(),
                channel,
                bytes: bytes.to_vec(),
            });
        }
    }

    /// Hands on the pieces that have waited and may pass now.
    pub(crate) fn retry_output(&mut self) {
        while let Some(piece) = self.output.waiting.pop_front() {
            if !self.pass_judged(piece.id, &piece.source, piece.channel, &piece.bytes) {
                self.output.waiting.push_front(piece);
                return;
            }
        }
    }

    /// Passes a piece on or drops it; false if it has to wait.
    fn pass_judged(&mut self, id: u64, source: &PmixProc, channel: Channels, bytes: &[u8]) -> bool {
        let backlog = &mut self.output.backlog;
        let verdict = backlog.judge(bytes.len(), Instant::now(), backlog::connections);
        for connection in backlog.stuck() {
            backlog::cut_off(connection);
            self.warn("a PMIx tool does not read its forwarded output and was disconnected");
        }
        let passed = match verdict {
            OutputDecision::Wait => return false,
            OutputDecision::Pass => self.pass(id, source, channel, bytes),
            OutputDecision::Drop => Err(dropped()),
            OutputDecision::DropAndTell => {
                self.warn(
                    "a PMIx client does not read its forwarded output: until it does, output is dropped for all tools \
                     and clients of this node",
                );
                Err(dropped())
            }
        };
        if let Err(refusal) = passed {
            self.replies.finish(id, Err(&refusal));
        }
        true
    }

    fn warn(&self, text: &str) {
        self.replies.notice(&SidecarNotice::Warning(text.into()));
    }

    /// Hands a piece to libpmix, which copies neither the source nor the bytes.
    fn pass(
        &self,
        id: u64,
        source: &PmixProc,
        channel: Channels,
        data: &[u8],
    ) -> Result<(), ControlRefusal> {
        self.check_registered(&source.nspace)?;
        let source = CProc::new(self.libraries.shim, &source.nspace, source.rank)?;
        let bytes = CBytes::new(self.libraries.shim, data)?;
        let (proc, object) = (source.0, bytes.0);
        let (pmix, done) = (self.libraries.pmix, Some(c_memory::on_done as _));
        let (channel, infos) = (channel.0, std::ptr::null());
        let status = self.callback_data(id, (source, bytes)).start(|data| {
            // SAFETY: proc and bytes live in the box until the callback, which takes it, once; there are no
            // infos.
            unsafe { pmix.PMIx_server_IOF_deliver(proc, channel, object, infos, 0, done, data) }
        });
        check(status, "PMIx_server_IOF_deliver failed")
    }
}

fn dropped() -> ControlRefusal {
    ControlRefusal::new(Status::ERR_OUT_OF_RESOURCE, "a client does not read")
}
