//! Sends standard input to other hosts: one piece at a time, the next when every reader has the previous one.

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

/// Size of a piece in bytes.
const PIECE: usize = 64 * 1024;

/// Input that was read here and not delivered yet.
#[derive(Debug)]
pub(super) struct PendingStdin {
    /// Pipe that a separate thread fills, which can read a terminal.
    pipe: OwnedFd,
    /// Whether the pipe is in the poll set. It is removed while a piece is being delivered: the system always reports the end
    /// of a pipe.
    watched: bool,
    /// First input, until a rank has read some of it.
    untaken: Option<UntakenInput>,
}

const TOKEN: PollToken = PollToken {
    source: PollSource::Input,
    index: 0,
};

impl RemoteBackend {
    /// Returns the nodes whose ranks read standard input.
    fn readers(&self) -> Vec<NodeId> {
        let ranks = &self.plan.job.process_map;
        let is_reader = |node: &NodeId| match self.plan.spec.stdio.stdin {
            StdinTarget::None => false,
            StdinTarget::Rank(rank) => ranks.node_of(rank) == Some(*node),
            StdinTarget::All => ranks.local_size(*node) > 0,
        };
        let nodes = ranks.node_ids().filter(is_reader);
        nodes
            .filter(|node| self.fleet.may_read_stdin(*node))
            .collect()
    }

    /// Starts to read when all ranks run, if any rank reads standard input.
    pub(super) fn start_input(&mut self) {
        if self.readers().is_empty() {
            return;
        }
        // The system has no descriptor or thread left: the readers get no input.
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

    /// Handles a rank's first read of the input.
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
            // The pipe was in the poll set until now, so the call cannot fail.
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

    /// Handles a node's acknowledgement: its ranks have the last piece, or none of them reads any more.
    pub(super) fn input_taken(&mut self, node: KnownNode, open: bool) {
        self.fleet.input_taken(node, open);
        self.resume_stdin();
    }

    /// Continues to read once all nodes have acknowledged the last piece.
    pub(super) fn resume_stdin(&mut self) {
        let readers = self.readers();
        if readers.is_empty() {
            return self.end_input();
        }
        let has_input = |node: &NodeId| self.fleet.has_input(*node);
        if !readers.iter().any(has_input)
            && let Some(input) = self.input.as_mut().filter(|input| !input.watched)
        {
            // A pipe that cannot be watched is not read.
            input.watched = self.poll.add(&input.pipe, TOKEN).is_ok();
        }
    }
}
