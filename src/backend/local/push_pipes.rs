//! Input that processes have for ranks here (`PMIx_IOF_push`), on its way into their pipes.
//!
//! A reader sets the pace of senders that wait until their input is read. Input of others is
//! bounded: what would make it more than `WAITING_MAX` is refused.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use crate::backend::local::{LocalBackend, LocalJob};
use crate::plan::planned_jobs::Plans;
use crate::sys::poll::{Interest, Poll, PollSource, PollToken};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, NodeRank};
use wireup_core::node::event::{NodeEvent, StdinWriteResult};

/// Bytes that may wait for a rank to read them.
const WAITING_MAX: usize = 16 << 20;

/// Marks a piece without a waiting sender.
const NOBODY: u64 = 0;

/// Input on its way into a pipe.
#[derive(Debug)]
struct PushedChunk {
    number: u64,
    bytes: Vec<u8>,
    /// Bytes that are there.
    done: usize,
}

/// The pipe of one rank.
#[derive(Debug)]
struct PushPipe {
    pipe: OwnedFd,
    pieces: VecDeque<PushedChunk>,
}

impl PushPipe {
    /// Bytes that are not in the pipe yet.
    fn waiting(&self) -> usize {
        let left = |piece: &PushedChunk| piece.bytes.len() - piece.done;
        self.pieces.iter().map(left).sum()
    }
}

/// The pipes that are filled by processes.
#[derive(Debug, Default)]
pub(super) struct PushPipes(BTreeMap<GlobalRank, PushPipe>);

impl PushPipes {
    /// Takes over the writing end of a rank's pipe.
    pub(super) fn add(
        &mut self,
        poll: &Poll,
        rank: GlobalRank,
        pipe: OwnedFd,
    ) -> std::io::Result<()> {
        let token = PollToken::new(PollSource::Pushed, rank.0);
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        poll.add(&pipe, token)?;
        // The kernel reports a pipe without readers without registration.
        poll.set(&pipe, token, Interest::Paused)?;
        let pieces = VecDeque::new();
        self.0.insert(rank, PushPipe { pipe, pieces });
        Ok(())
    }

    /// Closes a rank's pipe; the pieces that it never got.
    fn close(&mut self, rank: GlobalRank, poll: &Poll) -> Vec<u64> {
        let Some(feed) = self.0.remove(&rank) else {
            return Vec::new();
        };
        let _ = poll.remove(&feed.pipe);
        feed.pieces.iter().map(|piece| piece.number).collect()
    }

    /// Writes as much as fits; returns the results for pieces.
    fn write(&mut self, rank: GlobalRank, poll: &Poll) -> Vec<(u64, StdinWriteResult)> {
        let mut results = Vec::new();
        let mut gone = false;
        let Some(feed) = self.0.get_mut(&rank) else {
            return results;
        };
        while let Some(piece) = feed.pieces.front_mut() {
            if piece.bytes.is_empty() {
                results.push((piece.number, StdinWriteResult::Done));
                feed.pieces.pop_front();
                gone = true;
                break;
            }
            match rustix::io::write(&feed.pipe, &piece.bytes[piece.done..]) {
                Ok(count) => piece.done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    gone = true;
                    break;
                }
            }
            if piece.done == piece.bytes.len() {
                results.push((piece.number, StdinWriteResult::Done));
                feed.pieces.pop_front();
            }
        }
        let interest = match feed.pieces.is_empty() {
            true => Interest::Paused,
            false => Interest::Write,
        };
        let token = PollToken::new(PollSource::Pushed, rank.0);
        if gone || poll.set(&feed.pipe, token, interest).is_err() {
            let lost = self.close(rank, poll).into_iter();
            results.extend(lost.map(|number| (number, StdinWriteResult::Gone)));
        }
        results
    }
}

impl LocalBackend {
    /// A process has input for ranks of a node here.
    pub(super) fn push_input(
        &mut self,
        node: NodeId,
        number: u64,
        ranks: Vec<NodeRank>,
        bytes: &[u8],
    ) {
        for at in ranks {
            let Some(rank) = self.rank_at(node, at) else {
                continue;
            };
            let results = match self.push_pipes.0.get_mut(&rank) {
                Some(feed) if feed.waiting() + bytes.len() > WAITING_MAX => {
                    vec![(number, StdinWriteResult::Full)]
                }
                Some(feed) => {
                    let (bytes, done) = (bytes.to_vec(), 0);
                    feed.pieces.push_back(PushedChunk {
                        number,
                        bytes,
                        done,
                    });
                    self.push_pipes.write(rank, &self.poll)
                }
                None => vec![(number, self.stdin_error(rank))],
            };
            self.report_stdin_written(rank, results);
        }
    }

    /// All processes of a job have ended: its children read the queued input, and then the
    /// end.
    pub(super) fn feeders_over(&mut self, job: JobIndex) {
        let Some(feeder) = self.jobs.get(job).map(LocalJob::nspace) else {
            return;
        };
        let jobs = self.jobs.jobs();
        let children = jobs.filter(|(_, child)| child.parent() == Some(feeder));
        let ranks = children.flat_map(|(child, _)| self.jobs.processes_of(child));
        let readers: Vec<_> = ranks
            .filter(|rank| self.push_pipes.0.contains_key(rank))
            .collect();
        for rank in readers {
            if let Some(feed) = self.push_pipes.0.get_mut(&rank) {
                feed.pieces.push_back(PushedChunk {
                    number: NOBODY,
                    bytes: Vec::new(),
                    done: 0,
                });
            }
            let results = self.push_pipes.write(rank, &self.poll);
            self.report_stdin_written(rank, results);
        }
    }

    /// Why a rank cannot be given input.
    fn stdin_error(&self, rank: GlobalRank) -> StdinWriteResult {
        let (job, rank) = self.jobs.plan_of(self.look_up(rank));
        // What a rank of the first job reads comes from the launcher.
        match job.spec.stdio.stdin.reads(rank) && job.origin.is_some() {
            true => StdinWriteResult::Gone,
            false => StdinWriteResult::NoPipe,
        }
    }

    /// A rank's pipe has room, or no reader any more.
    pub(super) fn pushed_ready(&mut self, rank: GlobalRank) {
        let idle = |feed: &PushPipe| feed.pieces.is_empty();
        match self.push_pipes.0.get(&rank).is_some_and(idle) {
            true => self.end_input(rank),
            false => {
                let results = self.push_pipes.write(rank, &self.poll);
                self.report_stdin_written(rank, results);
            }
        }
    }

    /// A rank reads nothing any more.
    pub(super) fn end_input(&mut self, rank: GlobalRank) {
        let lost = self.push_pipes.close(rank, &self.poll).into_iter();
        self.report_stdin_written(
            rank,
            lost.map(|number| (number, StdinWriteResult::Gone))
                .collect(),
        );
    }

    fn report_stdin_written(&mut self, rank: GlobalRank, results: Vec<(u64, StdinWriteResult)>) {
        let (node, at) = self.place(rank);
        for (number, fed) in results {
            let rank = at;
            self.handle_event(
                node,
                NodeEvent::StdinWritten {
                    number,
                    rank,
                    result: fed,
                },
            );
        }
    }
}
