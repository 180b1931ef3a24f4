//! Finds out what the job is waiting for, and shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Controller;
use crate::backend::step_messages::{LauncherToStep, NodeStage};
use crate::inspect::DetectedInterface;
use crate::plan::HostPlan;
use crate::report::progress_line::{
    EVERY, HostPreparation, NAMED, PATIENCE, PATIENCE_ACROSS, ProgressUpdate, StartupWait, slowest,
};
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::supervisor::LaunchPhase;

/// What nodes have reported only for the progress line.
#[derive(Debug, Default)]
pub(super) struct StartProgress {
    stages: BTreeMap<NodeId, NodeStage>,
    first_fence: FirstFence,
}

/// The first fence of the ranks of the first job.
#[derive(Debug, Default)]
struct FirstFence {
    /// When all ranks had made contact: from then on nodes are asked.
    connected_at: Option<Duration>,
    /// By node: its ranks that wait in it.
    waiting: BTreeMap<NodeId, usize>,
    /// A fence was released: nothing more is asked.
    passed: bool,
}

/// The time that something may take in a launch before it is shown.
pub(super) fn patience(plan: &HostPlan) -> Duration {
    match plan.spec.layout.across_hosts() {
        true => PATIENCE_ACROSS,
        false => PATIENCE,
    }
}

impl Controller {
    /// How long something may take before it is shown.
    pub(super) fn patience(&self) -> Duration {
        patience(&self.cx.plan)
    }

    /// Updates the progress line, if it is due.
    pub(super) fn show_progress(&mut self, now: Duration) {
        if self.progress.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        let wait = self.current_wait(now);
        match self.progress.update_line(now, wait) {
            ProgressUpdate::Draw(text) if self.cx.streams.can_draw() => {
                self.cx.streams.draw(Some(&format!("wireup: {text}")));
            }
            ProgressUpdate::Keep | ProgressUpdate::Draw(_) => {}
            ProgressUpdate::Erase => self.cx.streams.draw(None),
            ProgressUpdate::Log(text) => self.cx.print_line(&text),
        }
        self.request_fence_counts(now);
    }

    /// A host has come further on its way to be ready.
    pub(super) fn node_reached(&mut self, node: NodeId, stage: NodeStage) {
        let known = self.start_progress.stages.entry(node).or_insert(stage);
        *known = stage.max(*known);
    }

    /// A node has counted its ranks in fences.
    pub(super) fn fences_counted(&mut self, node: NodeId, passed: bool, waiting: u32) {
        let first = &mut self.start_progress.first_fence;
        first.passed |= passed;
        first.waiting.insert(node, waiting as usize);
    }

    /// All ranks have made contact: what they wait for next is a fence.
    pub(super) fn all_connected(&mut self, now: Duration) {
        self.watch_for_stalls(now);
        if self.cx.plan.spec.status.live && self.cx.plan.job.process_map.size() > 1 {
            self.start_progress.first_fence.connected_at = Some(now);
            self.progress.expect(now, self.patience());
        }
    }

    /// Has nodes count their ranks in fences, ever more seldom while none of them comes to one.
    fn request_fence_counts(&mut self, now: Duration) {
        let first = &self.start_progress.first_fence;
        let Some(since) = first.connected_at.filter(|_| !first.passed) else {
            return;
        };
        if self.cx.supervisor.phase() == LaunchPhase::Running {
            self.cx.steps.send(LauncherToStep::CountFences);
            let interval = now.saturating_sub(since) / 8;
            self.progress.expect(now, interval.max(EVERY));
        }
    }

    fn current_wait(&self, now: Duration) -> Option<StartupWait> {
        match self.cx.supervisor.phase() {
            LaunchPhase::Running => self
                .preparations()
                .or_else(|| self.starts())
                .or_else(|| self.contacts())
                .or_else(|| self.first_fence()),
            LaunchPhase::Terminating { kill_at } => {
                self.ends("SIGTERM", Some(kill_at.saturating_sub(now)))
            }
            LaunchPhase::Killing => self.ends("SIGKILL", None),
        }
    }

    /// PMIx servers, or hosts, that are not ready.
    fn preparations(&self) -> Option<StartupWait> {
        let late = self.cx.steps.late_nodes();
        if late.is_empty() {
            return None;
        }
        let names = |nodes: &[NodeId]| {
            let named = nodes.iter().take(NAMED);
            let named = named.map(|node| self.cx.plan.node_name(*node).to_owned());
            named.collect()
        };
        if !self.cx.plan.spec.layout.across_hosts() {
            return Some(StartupWait::Servers {
                named: names(&late),
                count: late.len(),
            });
        }
        let hosts = self.cx.plan.job.process_map.nodes() as usize;
        let before = |stage| {
            let short = |node: &&NodeId| {
                let reached = self.start_progress.stages.get(*node);
                reached.is_none_or(|reached| *reached < stage)
            };
            late.iter().filter(short).copied().collect::<Vec<_>>()
        };
        let staged = self.cx.plan.stages_files();
        let phases = [
            (HostPreparation::Agents, before(NodeStage::Joined)),
            (
                HostPreparation::Staging,
                match staged {
                    true => before(NodeStage::Staged),
                    false => Vec::new(),
                },
            ),
            (HostPreparation::Servers, late.clone()),
        ];
        let mut phases = phases.into_iter();
        let (what, nodes) = phases.find(|(_, nodes)| !nodes.is_empty())?;
        Some(StartupWait::Hosts {
            preparation: what,
            ready: hosts.saturating_sub(nodes.len()),
            hosts,
            named: names(&nodes),
        })
    }

    /// Ranks of the first job that have not been started.
    fn starts(&self) -> Option<StartupWait> {
        let size = self.cx.plan.job.process_map.size();
        let missing = |rank: &KnownRank| {
            let life = self.cx.ranks.get(*rank);
            life.pid.is_none() && !life.is_over()
        };
        let ranks = self.cx.jobs.ranks_of_job(JobIndex::INITIAL);
        let missing: Vec<KnownRank> = ranks.filter(missing).collect();
        (!missing.is_empty()).then(|| StartupWait::Starts {
            started: size as usize - missing.len(),
            size: size as usize,
            hosts: self.hosts_of(missing),
        })
    }

    /// The hosts with most of these ranks.
    fn hosts_of(&self, ranks: impl IntoIterator<Item = KnownRank>) -> Vec<(String, usize)> {
        let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
        for rank in ranks {
            *counts.entry(rank.node()).or_default() += 1;
        }
        self.slowest(counts)
    }

    fn slowest(&self, counts: BTreeMap<NodeId, usize>) -> Vec<(String, usize)> {
        let named = |(node, count): (NodeId, usize)| {
            let name = self.cx.plan.node_name(node).to_owned();
            (name, count)
        };
        slowest(counts.into_iter().map(named))
    }

    /// Ranks that have not made contact, if they are expected to: those of programs that load an
    /// MPI, or have other ranks that did.
    fn contacts(&self) -> Option<StartupWait> {
        if !self.cx.plan.offer.pmi && !self.cx.plan.offer.pmix || self.cx.is_connected() {
            return None;
        }
        let (mut size, mut connected) = (0, 0);
        let mut missing = Vec::new();
        for app in 0..self.cx.plan.apps.len() {
            let wants = self.cx.plan.apps[app].detected.wants;
            let loads = matches!(wants, DetectedInterface::Pmi | DetectedInterface::Pmix)
                || self.singletons.sees_mpi(app);
            if !loads && !self.cx.is_app_connected(app) {
                continue;
            }
            for rank in self.cx.ranks_of_app(app) {
                size += 1;
                if self.cx.ranks.get(rank).connected {
                    connected += 1;
                } else if self.cx.ranks.get(rank).end.is_none() {
                    missing.push(rank);
                }
            }
        }
        let named = missing
            .iter()
            .take(NAMED)
            .map(|rank| self.cx.name_of(*rank));
        let must_name_hosts = self.cx.plan.job.process_map.nodes() > 1 && missing.len() > NAMED;
        (!missing.is_empty()).then(|| StartupWait::Ranks {
            connected,
            size,
            named: named.collect(),
            hosts: match must_name_hosts {
                true => self.hosts_of(missing.iter().copied()),
                false => Vec::new(),
            },
        })
    }

    /// Ranks that have not entered the first fence, while others wait in it.
    fn first_fence(&self) -> Option<StartupWait> {
        let first = &self.start_progress.first_fence;
        let entered: usize = first.waiting.values().sum();
        if first.passed || entered == 0 {
            return None;
        }
        let ranks = &self.cx.plan.job.process_map;
        let missing = ranks.node_ids().map(|node| {
            let here = ranks.local_size(node) as usize;
            let waiting = first.waiting.get(&node).copied().unwrap_or(0);
            (node, here.saturating_sub(waiting))
        });
        Some(StartupWait::Fence {
            entered,
            size: ranks.size() as usize,
            hosts: self.slowest(missing.collect()),
        })
    }

    /// Ranks that were asked to end.
    fn ends(&self, signal: &'static str, kill_in: Option<Duration>) -> Option<StartupWait> {
        let runs = |rank: &KnownRank| self.cx.ranks.get(*rank).runs();
        let left: Vec<KnownRank> = self.cx.jobs.all_ranks().filter(runs).collect();
        let named = left.iter().take(NAMED).map(|rank| self.cx.name_of(*rank));
        (!left.is_empty()).then(|| StartupWait::Ends {
            named: named.collect(),
            count: left.len(),
            signal,
            kill_in,
        })
    }
}
