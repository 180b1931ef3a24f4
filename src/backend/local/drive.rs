//! Carries out orders, and deals with what became ready or is due.

use std::time::Duration;

use super::shutdown::End;
use super::{LocalBackend, RankSlot};
use crate::backend::backend_message::{FromBackend, ToBackend};
use crate::backend::local::wait_detector::Lookout;
use crate::sys::poll::{Ready, Source};
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::node::event::Event;
use wireup_core::supervisor::first_failure;

impl LocalBackend {
    /// Executes an order of the launcher.
    pub(crate) fn order(&mut self, order: ToBackend) {
        match order {
            ToBackend::Skip => self.skip_ranks(),
            ToBackend::Ending => self.stop_starting(),
            ToBackend::Signal(signal) => {
                self.killed |= signal == libc::SIGKILL;
                self.signal_ranks(signal);
            }
            ToBackend::SignalRanks { signal, ranks } => {
                if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
                    self.signal_some(&ranks, signal);
                }
            }
            ToBackend::LetGo { report } => self.let_go(report),
            ToBackend::ServeTools => self.serve_tools(),
            ToBackend::Direct(debugged) => self.direct(debugged),
            ToBackend::Inspect(inspection) => self.inspect(inspection),
            ToBackend::CountFences => self.count_fences(),
            ToBackend::Ask(awaited) => self.look_out_for(awaited),
            ToBackend::Look { app, ranks } => {
                if let Some(seen) = self.look_at(&ranks) {
                    self.tell(FromBackend::LoadedMpi { app, seen });
                }
            }
            ToBackend::DropJob(job) => self.drop_job(job),
            ToBackend::JobOver(job) => self.job_over(job),
            ToBackend::NodesLost { nodes, reason } => self.nodes_lost(&nodes, &reason),
            ToBackend::Node(node, told) => {
                if self.part.holds(node) {
                    self.feed(node, Event::Told(told));
                }
            }
            ToBackend::Finish { abnormal, ends } => self.finish(abnormal, ends),
            ToBackend::Hurry => self.hurry(),
        }
    }

    /// The job is being ended.
    pub(super) fn stop_starting(&mut self) {
        self.ending = true;
        self.lookout = Lookout::default();
        for (_, job) in self.jobs.jobs() {
            if let Some(starter) = &job.starter {
                starter.stop();
            }
        }
    }

    /// Deals with a descriptor that is ready, if it is one of the backend's.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn dispatch(&mut self, event: Ready) -> std::io::Result<()> {
        let Ready {
            token,
            readable,
            writable,
        } = event;
        let node = NodeId(token.index);
        match token.source {
            Source::Signals
            | Source::Orders
            | Source::Link
            | Source::Feed
            | Source::Input
            | Source::Rendezvous
            | Source::Allocator
            | Source::Callers
            | Source::Requests
            | Source::Director => {}
            Source::Tools => self.serve_tools(),
            Source::Inspection => self.read_inspection(token.index),
            Source::Pushed => self.pushed_ready(GlobalRank(token.index)),
            Source::Wake => self.take_results()?,
            Source::Pmi => {
                let rank = GlobalRank(token.index);
                if writable
                    && let RankSlot::Running {
                        pmi: Some(channel), ..
                    } = &mut self.ranks[self.part.seat(&self.jobs, rank)]
                {
                    channel.writable(&self.poll);
                }
                if readable {
                    self.read_pmi(rank);
                }
            }
            Source::RankExit => self.rank_exit(GlobalRank(token.index)),
            Source::Stdout | Source::Stderr => {
                self.read_pipe(token.source, GlobalRank(token.index))?
            }
            Source::Control | Source::Upcall => {
                if writable {
                    self.write_sidecar(node, token.source);
                }
                if readable {
                    self.read_sidecar(node, token.source);
                }
            }
            Source::SidecarOutput => self.read_sidecar_output(node)?,
            Source::SidecarExit => self.sidecar_exited(node)?,
        }
        Ok(())
    }

    /// When [`LocalBackend::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let cores = self
            .nodes
            .iter()
            .filter_map(|node| node.core.next_deadline())
            .min();
        [
            cores.map(|at| at.0),
            self.look,
            self.tools_from,
            self.lookout.at,
            self.inspections.next_deadline(),
            self.failures.next_deadline(),
            self.end.as_ref().and_then(End::next_deadline),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When a descriptor cannot be watched any more.
    pub(crate) fn tick(&mut self) -> std::io::Result<()> {
        let now = self.now();
        if self.look.is_some_and(|at| at <= now) {
            self.take_results()?;
        }
        if self.tools_from.is_some_and(|at| at <= now) {
            self.listen();
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index]
                .core
                .next_deadline()
                .is_some_and(|at| at.0 <= now)
            {
                self.feed(self.part.node_at(index), Event::Tick);
            }
        }
        if self.lookout.at.is_some_and(|at| at <= now) {
            self.look_out();
        }
        self.look_at_inspections(now);
        self.happened(first_failure::Event::Tick);
        self.go_on_ending()
    }
}
