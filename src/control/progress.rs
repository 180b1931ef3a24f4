//! Finds out what the job is waiting for, and shows it.

use std::time::Duration;

use super::Controller;
use crate::inspect::Wants;
use crate::plan::jobs::Plans;
use crate::report::progress::{Line, NAMED, Wait};
use wireup_core::job::ids::GlobalRank;
use wireup_core::supervisor::LaunchPhase;

impl Controller {
    /// Updates the progress line, if it is due.
    pub(super) fn show_progress(&mut self, now: Duration) {
        if self.progress.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        let wait = self.waited_for(now);
        match self.progress.look(now, wait) {
            Line::Draw(text) if self.streams.can_draw() => {
                self.streams.draw(Some(&format!("wireup: {text}")));
            }
            Line::Keep | Line::Draw(_) => {}
            Line::Erase => self.streams.draw(None),
            Line::Log(text) => self.tell(&text),
        }
    }

    fn waited_for(&self, now: Duration) -> Option<Wait> {
        match self.supervisor.phase() {
            LaunchPhase::Running => self.servers().or_else(|| self.contacts()),
            LaunchPhase::Terminating { kill_at } => {
                self.ends("SIGTERM", Some(kill_at.saturating_sub(now)))
            }
            LaunchPhase::Killing => self.ends("SIGKILL", None),
        }
    }

    /// PMIx servers, or hosts, that are not ready.
    fn servers(&self) -> Option<Wait> {
        let late = self.backend.late();
        let count = late.len();
        let named = late.iter().take(NAMED);
        let named = named.map(|node| self.plan.node_names[node.index()].clone());
        let named = named.collect();
        match self.plan.spec.layout.across_hosts() {
            _ if count == 0 => None,
            true => Some(Wait::Hosts { named, count }),
            false => Some(Wait::Servers { named, count }),
        }
    }

    /// Ranks that have not made contact, if they are expected to: those of programs that load an
    /// MPI, or have other ranks that did.
    fn contacts(&self) -> Option<Wait> {
        if !self.plan.offer.pmi && !self.plan.offer.pmix
            || self.connected == self.plan.job.ranks.size()
        {
            return None;
        }
        let (mut size, mut connected) = (0, 0);
        let (mut missing, mut named) = (0, Vec::new());
        for app in 0..self.plan.apps.len() {
            let wants = self.plan.apps[app].detected.wants;
            let loads = matches!(wants, Wants::Pmi | Wants::Pmix) || self.alone.sees_mpi(app);
            if !loads && !self.any_connected(app) {
                continue;
            }
            for rank in self.ranks_of(app) {
                size += 1;
                if self.lives[rank.index()].connected {
                    connected += 1;
                } else if self.lives[rank.index()].end.is_none() {
                    missing += 1;
                    if named.len() < NAMED {
                        named.push(self.name_of(rank));
                    }
                }
            }
        }
        (missing > 0).then_some(Wait::Ranks {
            connected,
            size,
            named,
        })
    }

    /// Ranks that were asked to end.
    fn ends(&self, signal: &'static str, kill_in: Option<Duration>) -> Option<Wait> {
        let runs = |rank: &GlobalRank| self.lives[rank.index()].runs();
        let left = (0..self.jobs.size()).map(GlobalRank).filter(runs);
        let count = left.clone().count();
        let named = left.take(NAMED).map(|rank| self.name_of(rank));
        (count > 0).then(|| Wait::Ends {
            named: named.collect(),
            count,
            signal,
            kill_in,
        })
    }

    fn name_of(&self, rank: GlobalRank) -> String {
        let (name, host) = (self.jobs.name_of(rank), self.jobs.host_of(rank));
        match self.lives[rank.index()].pid {
            Some(pid) => format!("{name} ({host}, pid {pid})"),
            None => format!("{name} ({host})"),
        }
    }
}
