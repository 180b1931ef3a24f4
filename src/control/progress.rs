//! Determines the event that the job is waiting for, and shows it in the progress line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::launch_context::LaunchContext;
use super::launch_service::LaunchService;
use crate::backend::step_messages::{LauncherToStep, NodeStage};
use crate::inspect::DetectedInterface;
use crate::plan::HostPlan;
use crate::plan::staged_files::stages_files;
use crate::report::progress_line::{
    END_PATIENCE, EVERY, HostPreparation, NAMED, PATIENCE, PATIENCE_ACROSS, ProgressLine,
    ProgressUpdate, StartupWait, slowest,
};
use crate::stdio::streams::OutputStreams;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::supervisor::LaunchPhase;

/// The progress line, and the reports of nodes that only it needs.
pub(super) struct LaunchProgress {
    line: ProgressLine,
    stages: BTreeMap<NodeId, NodeStage>,
    first_fence: FirstFence,
    /// Applications of which a process has loaded an MPI: their ranks are expected to connect.
    pub(super) mpi_apps: BTreeSet<usize>,
}

impl LaunchService for LaunchProgress {
    fn next_deadline(&self) -> Option<Duration> {
        self.line.next_deadline()
    }

    /// Updates the progress line, if it is due.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        if self.line.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        let wait = self.current_wait(cx, now);
        match self.line.update_line(now, wait) {
            ProgressUpdate::Draw(text) if cx.streams.can_draw() => {
                cx.streams.draw(Some(&format!("wireup: {text}")));
            }
            ProgressUpdate::Keep | ProgressUpdate::Draw(_) => {}
            ProgressUpdate::Erase => cx.streams.draw(None),
            ProgressUpdate::Log(text) => cx.print_line(&text),
        }
        self.request_fence_counts(cx, now);
    }
}

impl LaunchProgress {
    pub(super) fn new(plan: &HostPlan, streams: &OutputStreams) -> Self {
        Self {
            line: ProgressLine::new(
                plan.spec.status.live && streams.on_terminal(),
                plan.spec.verbose > 0 && !plan.spec.status.no_progress,
                patience(plan),
            ),
            stages: BTreeMap::new(),
            first_fence: FirstFence::default(),
            mpi_apps: BTreeSet::new(),
        }
    }

    /// Starts the next wait, which is shown if it takes long.
    pub(super) fn expect(&mut self, cx: &LaunchContext) {
        self.line.expect(cx.now(), patience(&cx.plan));
    }

    /// Starts the wait for the end of the launch.
    pub(super) fn expect_end(&mut self, cx: &LaunchContext) {
        self.line.expect(cx.now(), END_PATIENCE);
    }
}

/// The first fence of the ranks of the initial job.
#[derive(Debug, Default)]
struct FirstFence {
    /// Time at which all ranks had connected; from then on nodes count their ranks in fences.
    connected_at: Option<Duration>,
    /// Number of ranks that wait in the fence, by node.
    waiting: BTreeMap<NodeId, usize>,
    /// Whether a fence was released; nodes need not count then.
    passed: bool,
}

/// Returns the time after which a wait is shown.
fn patience(plan: &HostPlan) -> Duration {
    plan.scope.map_or(PATIENCE_ACROSS, |_| PATIENCE)
}

impl LaunchProgress {
    /// Records that a host has reached a stage of its preparation.
    pub(super) fn node_reached(&mut self, node: NodeId, stage: NodeStage) {
        let known = self.stages.entry(node).or_insert(stage);
        *known = stage.max(*known);
    }

    /// Records a node's count of its ranks in fences.
    pub(super) fn fences_counted(&mut self, node: NodeId, passed: bool, waiting: u32) {
        let first = &mut self.first_fence;
        first.passed |= passed;
        first.waiting.insert(node, waiting as usize);
    }

    /// Starts the wait for the first fence, when all ranks have connected.
    pub(super) fn all_connected(&mut self, cx: &mut LaunchContext) {
        let now = cx.now();
        if cx.plan.spec.status.live && cx.plan.job.process_map.size() > 1 {
            self.first_fence.connected_at = Some(now);
            self.line.expect(now, patience(&cx.plan));
        }
    }

    /// Has nodes count their ranks in fences, at growing intervals.
    fn request_fence_counts(&mut self, cx: &mut LaunchContext, now: Duration) {
        let first = &self.first_fence;
        let Some(since) = first.connected_at.filter(|_| !first.passed) else {
            return;
        };
        if cx.supervisor.phase() == LaunchPhase::Running {
            cx.steps.send(LauncherToStep::CountFences);
            let interval = now.saturating_sub(since) / 8;
            self.line.expect(now, interval.max(EVERY));
        }
    }

    fn current_wait(&self, cx: &LaunchContext, now: Duration) -> Option<StartupWait> {
        match cx.supervisor.phase() {
            LaunchPhase::Running => self
                .preparations(cx)
                .or_else(|| starts(cx))
                .or_else(|| self.contacts(cx))
                .or_else(|| self.first_fence(cx)),
            LaunchPhase::Terminating { kill_at } => {
                ends(cx, "SIGTERM", Some(kill_at.saturating_sub(now)))
            }
            LaunchPhase::Killing => ends(cx, "SIGKILL", None),
        }
    }

    /// Returns the wait for PMIx servers or hosts that are not ready.
    fn preparations(&self, cx: &LaunchContext) -> Option<StartupWait> {
        let late = cx.steps.late_nodes();
        if late.is_empty() {
            return None;
        }
        let names = |nodes: &[NodeId]| {
            let named = nodes.iter().take(NAMED);
            let named = named.map(|node| cx.plan.node_name(*node).to_owned());
            named.collect()
        };
        if cx.plan.scope.is_some() {
            return Some(StartupWait::Servers {
                named: names(&late),
                count: late.len(),
            });
        }
        let hosts = cx.plan.job.process_map.nodes() as usize;
        let before = |stage| {
            let short = |node: &&NodeId| {
                let reached = self.stages.get(*node);
                reached.is_none_or(|reached| *reached < stage)
            };
            late.iter().filter(short).copied().collect::<Vec<_>>()
        };
        let staging = match stages_files(&cx.plan) {
            true => before(NodeStage::Staged),
            false => Vec::new(),
        };
        let phases = [
            (HostPreparation::Agents, before(NodeStage::Joined)),
            (HostPreparation::Staging, staging),
            (HostPreparation::Servers, late.clone()),
        ];
        let mut phases = phases.into_iter();
        let (preparation, nodes) = phases.find(|(_, nodes)| !nodes.is_empty())?;
        Some(StartupWait::Hosts {
            preparation,
            ready: hosts.saturating_sub(nodes.len()),
            hosts,
            named: names(&nodes),
        })
    }

    /// Returns the wait for ranks that have not connected and are expected to: those of applications that
    /// load an MPI, or of which another rank has connected.
    fn contacts(&self, cx: &LaunchContext) -> Option<StartupWait> {
        if !cx.plan.offer.pmi && !cx.plan.offer.pmix || cx.is_connected() {
            return None;
        }
        let (mut size, mut connected) = (0, 0);
        let mut missing = Vec::new();
        for app in 0..cx.plan.apps.len() {
            let wants = cx.plan.apps[app].detected.wants;
            let loads = matches!(wants, DetectedInterface::Pmi | DetectedInterface::Pmix)
                || self.mpi_apps.contains(&app);
            if !loads && !cx.is_app_connected(app) {
                continue;
            }
            for rank in cx.ranks_of_app(app) {
                size += 1;
                if cx.ranks.get(rank).connected {
                    connected += 1;
                } else if cx.ranks.get(rank).end.is_none() {
                    missing.push(rank);
                }
            }
        }
        let named = missing.iter().take(NAMED).map(|rank| cx.name_of(*rank));
        let must_name_hosts = cx.plan.job.process_map.nodes() > 1 && missing.len() > NAMED;
        (!missing.is_empty()).then(|| StartupWait::Ranks {
            connected,
            size,
            named: named.collect(),
            hosts: match must_name_hosts {
                true => hosts_of(cx, missing.iter().copied()),
                false => Vec::new(),
            },
        })
    }

    /// Returns the wait for ranks that have not entered the first fence, while others wait in it.
    fn first_fence(&self, cx: &LaunchContext) -> Option<StartupWait> {
        let first = &self.first_fence;
        let entered: usize = first.waiting.values().sum();
        if first.passed || entered == 0 {
            return None;
        }
        let ranks = &cx.plan.job.process_map;
        let missing = ranks.node_ids().map(|node| {
            let here = ranks.local_size(node) as usize;
            let waiting = first.waiting.get(&node).copied().unwrap_or(0);
            (node, here.saturating_sub(waiting))
        });
        Some(StartupWait::Fence {
            entered,
            size: ranks.size() as usize,
            hosts: slowest_hosts(cx, missing.collect()),
        })
    }
}

/// Returns the wait for ranks of the initial job that have not been started.
fn starts(cx: &LaunchContext) -> Option<StartupWait> {
    let size = cx.plan.job.process_map.size();
    let missing = |rank: &KnownRank| {
        let life = cx.ranks.get(*rank);
        life.pid.is_none() && !life.is_over()
    };
    let ranks = cx.jobs.ranks_of_job(JobIndex::INITIAL);
    let missing: Vec<KnownRank> = ranks.filter(missing).collect();
    (!missing.is_empty()).then(|| StartupWait::Starts {
        started: size as usize - missing.len(),
        size: size as usize,
        hosts: hosts_of(cx, missing),
    })
}

/// Returns the hosts with most of these ranks.
fn hosts_of(
    cx: &LaunchContext,
    ranks: impl IntoIterator<Item = KnownRank>,
) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for rank in ranks {
        *counts.entry(rank.node()).or_default() += 1;
    }
    slowest_hosts(cx, counts)
}

fn slowest_hosts(cx: &LaunchContext, counts: BTreeMap<NodeId, usize>) -> Vec<(String, usize)> {
    let named = |(node, count): (NodeId, usize)| {
        let name = cx.plan.node_name(node).to_owned();
        (name, count)
    };
    slowest(counts.into_iter().map(named))
}

/// Returns the wait for ranks that were signalled to exit.
fn ends(
    cx: &LaunchContext,
    signal: &'static str,
    kill_in: Option<Duration>,
) -> Option<StartupWait> {
    let runs = |rank: &KnownRank| cx.ranks.get(*rank).runs();
    let left: Vec<KnownRank> = cx.jobs.all_ranks().filter(runs).collect();
    let named = left.iter().take(NAMED).map(|rank| cx.name_of(*rank));
    (!left.is_empty()).then(|| StartupWait::Ends {
        named: named.collect(),
        count: left.len(),
        signal,
        kill_in,
    })
}
