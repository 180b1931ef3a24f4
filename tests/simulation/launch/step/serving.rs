//! A step's PMIx server, and the jobs that are spawned.

use std::sync::Arc;
use std::time::Duration;

use super::{Does, Life, SIGKILL, Server, SimulatedReport, Spawned, Step};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::node::JobContext;
use wireup_core::node::event::{NodeEvent, SidecarActivity, SidecarEnd};
use wireup_core::pmix::sidecar_protocol::{ClientRegistration, SidecarCommand};

impl Step {
    pub(crate) fn start(&mut self, ranks: Vec<GlobalRank>, now: Duration) {
        for rank in ranks {
            self.does.push(Does::Start(rank));
            self.queue_report(SimulatedReport::Started(rank));
            let (rank, pid) = (self.place(rank), 1000 + rank.0);
            self.feed(NodeEvent::RankStarted { rank, pid }, now);
        }
    }

    pub(crate) fn add_job(&mut self, job: &Arc<JobContext>, now: Duration) {
        let number = self.jobs.add(Arc::clone(job));
        for rank in self.jobs.processes_of(number) {
            if self.jobs.node_of(rank) == Some(self.node) {
                self.ranks.insert(rank, Life::Planned);
            }
        }
        self.spawned.insert(number, Spawned::default());
        let served = self.server != Server::Absent;
        let requests: Vec<SidecarCommand> =
            served.then(|| self.registers(job)).into_iter().collect();
        let mut actions = Vec::new();
        let added = self.core.with_actions(Moment(now), &mut actions, |core| {
            core.add_job(Arc::clone(job), !served, &requests)
        });
        added.expect("a fine job");
        self.act(actions, now);
        if self.ending {
            self.queue_report(SimulatedReport::JobRefused(number));
            self.drop_job(number);
        } else if !served {
            self.start_spawned(number, now);
        }
    }

    pub(crate) fn start_spawned(&mut self, job: JobIndex, now: Duration) {
        if self.ending && self.spawned[&job].started {
            return;
        }
        if self.ending {
            self.queue_report(SimulatedReport::JobRefused(job));
            return self.drop_job(job);
        }
        let spawned = self.spawned.get_mut(&job).expect("it was added");
        if spawned.dropped {
            return;
        }
        spawned.started = true;
        let here = self.planned(job);
        self.ranks
            .extend(here.iter().map(|rank| (*rank, Life::Runs)));
        self.start(here, now);
        self.queue_report(SimulatedReport::AllStarted(job));
    }

    /// Ranks of a job that are not started.
    pub(crate) fn planned(&self, job: JobIndex) -> Vec<GlobalRank> {
        let of_job = self.jobs.processes_of(job);
        of_job
            .filter(|rank| self.ranks.get(rank) == Some(&Life::Planned))
            .collect()
    }

    /// Nothing of a spawned job is to be started any more, or to go on.
    pub(crate) fn drop_job(&mut self, job: JobIndex) {
        let Some(spawned) = self.spawned.get_mut(&job) else {
            return;
        };
        let was_reported = spawned.started || spawned.dropped;
        spawned.dropped = true;
        for rank in self.planned(job) {
            self.ranks.insert(rank, Life::Over);
            self.queue_report(SimulatedReport::NotStarted(rank));
        }
        if !was_reported {
            self.queue_report(SimulatedReport::AllStarted(job));
        }
        let runs = |rank: &GlobalRank| self.ranks.get(rank) == Some(&Life::Runs);
        let runs = self.jobs.processes_of(job).filter(runs);
        let kills: Vec<Does> = runs.map(|rank| Does::Signal(rank, SIGKILL)).collect();
        self.does.extend(kills);
    }

    /// Something came of the PMIx server.
    pub(crate) fn served(&mut self, control: bool, bytes: &[u8], now: Duration) {
        let event = match control {
            true => NodeEvent::ControlReceived(bytes),
            false => NodeEvent::UpcallReceived(bytes),
        };
        self.feed(event, now);
    }

    /// Handles the exit of the sidecar's process, after all that it sent was read.
    pub(crate) fn sidecar_ended(&mut self, in_order: bool, now: Duration) {
        let how = "it has ended".to_owned();
        let end = match in_order {
            true => SidecarEnd::InOrder,
            false => SidecarEnd::Failed,
        };
        self.feed(NodeEvent::SidecarEnded { how, end }, now);
        self.server = match self.server {
            Server::Lost => Server::Lost,
            _ => Server::Ended,
        };
        self.server_gone = true;
    }

    /// Handles the observed state of the PMIx server's process.
    pub(crate) fn on_sidecar_observed(&mut self, stopped: bool, now: Duration) {
        let doing = match stopped {
            true => SidecarActivity::Stopped,
            false => SidecarActivity::Works,
        };
        self.feed(NodeEvent::SidecarObserved(doing), now);
    }

    /// The request that makes a job known to the PMIx server.
    pub(crate) fn registers(&self, job: &Arc<JobContext>) -> SidecarCommand {
        let client = |rank| ClientRegistration {
            rank,
            uid: 1000,
            gid: 1000,
        };
        SidecarCommand::RegisterJob {
            nspace: job.nspace.clone(),
            infos: Vec::new(),
            clients: job.process_map.ranks_on(self.node).map(client).collect(),
        }
    }
}
