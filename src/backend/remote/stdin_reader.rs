//! Standard input on its way to other hosts: one piece at a time, the next when every reader has
//! the last.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::RemoteBackend;
use crate::backend::step_messages::LauncherToStep;
use crate::stdio::stdin::{self, UntakenInput};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::StdinTarget;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node_tracker::KnownNode;
use wireup_sys::poll::{PollSource, PollToken};

/// Bytes of a piece.
const PIECE: usize = 64 * 1024;

/// Input that was read here and not delivered yet.
#[derive(Debug)]
pub(super) struct PendingStdin {
    /// Filled by a separate thread, which can read a terminal.
    pipe: OwnedFd,
    /// While a piece is on its way the pipe is not watched: even one that is not asked about would
    /// report its end.
    watched: bool,
    /// The first input, until a rank has read of it.
    untaken: Option<UntakenInput>,
}

const TOKEN: PollToken = PollToken {
    source: PollSource::Input,
    index: 0,
};

impl RemoteBackend {
    /// The nodes whose ranks read standard input.
    fn readers(&self) -> Vec<NodeId> {
        let ranks = &self.plan.job.process_map;
        let wanted = |node: &NodeId| match self.plan.spec.stdio.stdin {
            StdinTarget::None => false,
            StdinTarget::Rank(rank) => ranks.node_of(rank) == Some(*node),
            StdinTarget::All => ranks.local_size(*node) > 0,
        };
        let nodes = ranks.node_ids().filter(wanted);
        nodes
            .filter(|node| self.fleet.may_read_stdin(*node))
            .collect()
    }

    /// All ranks run: begins to read, if there are readers.
    pub(super) fn start_input(&mut self) {
        if self.readers().is_empty() {
            return;
        }
        // The system is out of descriptors or threads: the readers get no input.
        if !stdin::is_empty(std::io::stdin().as_fd()) {
            self.input = self.make_input().ok();
        }
        if self.input.is_none() {
            self.send_stdin(Vec::new());
        }
    }

    fn make_input(&self) -> std::io::Result<PendingStdin> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&read, OFlags::NONBLOCK)?;
        self.poll.add(&read, TOKEN)?;
        let own = rustix::process::getpid();
        let untaken = stdin::start_untaken(
            std::io::stdin().as_fd().try_clone_to_owned()?,
            vec![(own, write)],
        )?;
        Ok(PendingStdin {
            pipe: read,
            watched: true,
            untaken: Some(untaken),
        })
    }

    /// A rank has read some of the input.
    pub(super) fn input_read(&mut self) {
        if let Some(untaken) = self.input.as_mut().and_then(|input| input.untaken.take()) {
            untaken.take();
        }
    }

    /// Reads the next piece and sends it.
    pub(super) fn read_input(&mut self) {
        let Some(input) = &self.input else { return };
        let mut piece = vec![0; PIECE];
        let count = match rustix::io::read(&input.pipe, &mut piece) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        piece.truncate(count);
        if count == 0 {
            self.end_input();
        } else if let Some(input) = &mut self.input {
            // It was watched until now.
            let _ = self.poll.remove(&input.pipe);
            input.watched = false;
        }
        self.send_stdin(piece);
    }

    fn send_stdin(&mut self, piece: Vec<u8>) {
        let piece = LauncherToStep::Input(piece);
        for node in self.readers() {
            self.fleet.fed(node);
            self.send(FrameAddress::Node(node), &piece);
        }
    }

    fn end_input(&mut self) {
        if let Some(input) = self.input.take()
            && input.watched
        {
            let _ = self.poll.remove(&input.pipe);
        }
    }

    /// A node's ranks have the last piece, or none of them reads any more.
    pub(super) fn input_taken(&mut self, node: KnownNode, open: bool) {
        self.fleet.input_taken(node, open);
        self.resume_stdin();
    }

    /// Continues with the input once no node has to be waited for.
    pub(super) fn resume_stdin(&mut self) {
        let readers = self.readers();
        if readers.is_empty() {
            return self.end_input();
        }
        let has_input = |node: &NodeId| self.fleet.has_input(*node);
        if !readers.iter().any(has_input)
            && let Some(input) = self.input.as_mut().filter(|input| !input.watched)
        {
            // What cannot be watched any more is not read either.
            input.watched = self.poll.add(&input.pipe, TOKEN).is_ok();
        }
    }
}
