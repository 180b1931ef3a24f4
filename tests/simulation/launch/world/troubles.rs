//! The one thing that goes wrong in a launch, and the causes that may be named then.

use std::time::Duration;

use super::super::message::{End, Message};
use super::super::plan::Trouble;
use super::super::rank::Act;
use super::super::step::SIGKILL;
use super::World;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::link::agent_protocol::NO_SIGN;

impl World {
    /// The one thing that goes wrong, as far as it can now.
    pub(super) fn strike(&mut self) {
        let in_session = self.ranks.iter().filter(|rank| rank.runs && rank.session);
        let in_session: Vec<GlobalRank> = in_session.map(|rank| rank.rank).collect();
        let nodes: Vec<NodeId> = self.jobs.node_ids().collect();
        let node = *self.rng.pick(&nodes);
        let rank = (!in_session.is_empty()).then(|| *self.rng.pick(&in_session));
        let trouble = self.plan.trouble;
        self.note(|| format!("now: {trouble:?}, of {node:?} or {rank:?}"));
        match (trouble, rank) {
            (Trouble::Nothing, _) => {}
            (Trouble::RankKilled, Some(rank)) => {
                self.broken = true;
                let end = RankEnd::Signal(SIGKILL);
                self.may = vec![Some(FailureCause::RankFailed { rank, end })];
                self.ends(rank, end);
                let own = self.jobs.node_of(rank);
                let elsewhere = |other: &&GlobalRank| self.jobs.node_of(**other) != own;
                self.follow = in_session.iter().filter(elsewhere).copied().collect();
            }
            (Trouble::RankExits, Some(rank)) => {
                self.broken = true;
                let end = RankEnd::Code(3);
                self.may = vec![Some(FailureCause::RankFailed { rank, end })];
                self.ends(rank, end);
            }
            (Trouble::RankAborts, Some(rank)) => {
                self.broken = true;
                let cause = FailureCause::Aborted {
                    rank,
                    code: 6,
                    message: String::new(),
                };
                self.may = vec![Some(cause)];
                self.ranks[rank.index()].acts.push_front(Act::Abort);
            }
            // No rank is between init and finalize.
            (Trouble::RankKilled | Trouble::RankExits | Trouble::RankAborts, None) => {}
            (Trouble::StepKilled, _) => {
                self.host_may_fail(&[node]);
                for rank in self.jobs.processes_on(node) {
                    self.ranks[rank.index()].runs = false;
                }
                self.end_step(node, "killed");
            }
            (Trouble::HostLost, _) if self.host(self.entry()) != Some(node) => {
                self.host_may_fail(&self.tree.subtree(node));
                self.lose(node);
            }
            (Trouble::LinkCut, _) if node.0 > 0 => {
                self.host_may_fail(&self.tree.subtree(node));
                let parent = End::Agent(self.tree.parent(node));
                self.cut_link(parent, End::Agent(Some(node)));
            }
            (Trouble::HostLost | Trouble::LinkCut, _) => {}
            (Trouble::LauncherKilled, _) => {
                self.broken = true;
                self.launcher = None;
                let entry = self.entry();
                self.push(End::Launcher, entry, Message::Closed("it died".to_owned()));
            }
            (Trouble::SidecarKilled | Trouble::SidecarStopped, _) => {
                if !self.sidecars.contains_key(&node) {
                    return;
                }
                self.broken = true;
                // The server may have reported a leaving one, and cannot notify it.
                let leaves = |rank: &GlobalRank| {
                    self.ranks[rank.index()].pending_request == Some(Act::Finalize)
                };
                let needs = |rank| !self.ranks[GlobalRank::index(rank)].finalized && !leaves(&rank);
                let error = String::new();
                self.may = vec![Some(FailureCause::SidecarFailed { node, error })];
                if !self.jobs.processes_on(node).any(needs) {
                    self.may.push(None);
                }
                let leaving = self.jobs.processes_on(node).filter(leaves);
                let end = RankEnd::Code(1);
                let failed = leaving.map(|rank| Some(FailureCause::RankFailed { rank, end }));
                self.may.extend(failed);
                match trouble {
                    Trouble::SidecarStopped => self.stopped = Some(node),
                    _ => {
                        self.end_sidecar(node, false);
                        let here = self.jobs.processes_on(node);
                        self.follow = here.collect();
                    }
                }
            }
            (Trouble::HostPaused, _) => {
                self.paused = Some((node, self.now + Duration::from_secs(3)))
            }
            (Trouble::SlowReader, _) => {
                self.slow = Some(self.now + Duration::from_secs(3));
                let now = self.now;
                if let Some(launcher) = &mut self.launcher {
                    launcher.pause(true, now);
                }
            }
        }
    }

    /// The first of some nodes is to blame, if they still have something to do.
    pub(super) fn host_may_fail(&mut self, nodes: &[NodeId]) {
        self.broken = true;
        let runs = |node: &NodeId| {
            self.jobs
                .processes_on(*node)
                .any(|rank| !self.ranks[rank.index()].finalized)
        };
        let certain = nodes.iter().any(runs);
        let node = nodes[0];
        // The report gives its reason in one of several words.
        let error = String::new();
        self.may = vec![Some(FailureCause::NodeFailed { node, error })];
        if !certain
            || self
                .launcher
                .as_ref()
                .is_some_and(|launcher| !launcher.all_started)
        {
            self.may.push(None);
        }
    }

    pub(super) fn lose(&mut self, node: NodeId) {
        self.dead.insert(node);
        for rank in self.jobs.processes_on(node) {
            self.ranks[rank.index()].runs = false;
        }
        self.steps.remove(&node);
        self.sidecars.remove(&node);
        self.stopped.take_if(|stopped| *stopped == node);
        self.agents.remove(&Some(node));
        let parent = self
            .tree
            .parent(node)
            .map_or(End::Agent(None), |parent| End::Agent(Some(parent)));
        let children = self
            .tree
            .children(node)
            .map(|child| End::Agent(Some(child)));
        let neighbours: Vec<End> = children.chain([parent]).collect();
        for other in neighbours {
            self.cut_link(End::Agent(Some(node)), other);
        }
        let jobs = &self.jobs;
        let here = |end: &End| match end {
            End::Rank(rank) | End::Process(rank) | End::Pipe(rank) => {
                jobs.node_of(*rank) == Some(node)
            }
            End::Step(of) | End::Sidecar(of) | End::Upcalls(of) | End::SidecarProcess(of) => {
                *of == node
            }
            _ => false,
        };
        self.streams
            .retain(|(from, to), _| !here(from) && !here(to));
    }

    /// Nothing more goes over a link, and the end of what is under way is lost. Both sides notice.
    pub(super) fn cut_link(&mut self, one: End, other: End) {
        for (from, to) in [(one, other), (other, one)] {
            let knows = |end: End| match end {
                End::Agent(node) => self.agents.contains_key(&node),
                _ => true,
            };
            let opened = knows(one) && knows(other);
            let stream = self.streams.entry((from, to)).or_default();
            let length = self.rng.below(stream.len() + 1);
            let opens = matches!(stream.front(), Some((_, Message::Open)));
            stream.truncate(if opens { 0 } else { length });
            let reaches = !self.is_dead(to) && (opened || knows(to));
            if reaches && !self.cut.contains(&(from, to)) {
                self.push_raw(from, to, Message::Closed(NO_SIGN.to_owned()));
            }
            self.cut.insert((from, to));
        }
    }
}
