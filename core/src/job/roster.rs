//! The jobs of a launch: the one the user asked for, and those that were spawned.
//!
//! Jobs are added and stay; a process is known in the whole launch by its [`GlobalRank`], on its
//! node by its [`NodeRank`], and neither ever means another process.

use std::sync::Arc;

use super::ids::{GlobalRank, JobNumber, LocalRank, NodeId, NodeRank, Rank};
use crate::job::rank_placement::RankMap;

/// A job with a placement.
pub trait Placed {
    /// The placement of the job's ranks.
    fn ranks(&self) -> &RankMap;
}

impl<P: Placed> Placed for Arc<P> {
    fn ranks(&self) -> &RankMap {
        P::ranks(self)
    }
}

/// A job of which no more is known.
impl Placed for RankMap {
    fn ranks(&self) -> &RankMap {
        self
    }
}

/// See the module. There is always a first job.
#[derive(Clone, Debug)]
pub struct Roster<T> {
    /// With the first process of each.
    jobs: Vec<(GlobalRank, T)>,
}

impl<T: Placed> Roster<T> {
    /// A launch of one job.
    pub fn new(first: T) -> Self {
        Self {
            jobs: vec![(GlobalRank(0), first)],
        }
    }

    /// Adds a job.
    ///
    /// # Panics
    /// If there are more processes than a `u32` counts: the launcher refuses such a job before.
    pub fn add(&mut self, job: T) -> JobNumber {
        let number = JobNumber(u32::try_from(self.jobs.len()).expect("fewer jobs than processes"));
        self.jobs.push((GlobalRank(self.size()), job));
        assert!(
            self.size() >= self.jobs[number.index()].0.0,
            "the launcher bounds the processes of a launch"
        );
        number
    }

    /// The job the user asked for.
    pub fn first(&self) -> &T {
        &self.jobs[0].1
    }

    /// A job, if there is one of that number.
    pub fn get(&self, job: JobNumber) -> Option<&T> {
        self.jobs.get(job.index()).map(|(_, job)| job)
    }

    /// Mutable access; the placement must not change.
    pub fn get_mut(&mut self, job: JobNumber) -> Option<&mut T> {
        self.jobs.get_mut(job.index()).map(|(_, job)| job)
    }

    /// Gives the first job more nodes, which have none of its ranks.
    pub fn replace_first(&mut self, first: T) {
        self.jobs[0].1 = first;
    }

    /// The jobs, in the order of their numbers.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (JobNumber, &T)> {
        let jobs = self.jobs.iter().enumerate();
        jobs.map(|(number, (_, job))| (JobNumber(number as u32), job))
    }

    /// Number of jobs.
    pub fn count(&self) -> u32 {
        self.jobs.len() as u32
    }

    /// Number of processes.
    pub fn size(&self) -> u32 {
        self.jobs
            .last()
            .map_or(0, |(first, job)| first.0 + job.ranks().size())
    }

    /// The first process of a job.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn first_of(&self, job: JobNumber) -> GlobalRank {
        self.jobs[job.index()].0
    }

    /// The processes of a job, ascending.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn processes_of(&self, job: JobNumber) -> impl Iterator<Item = GlobalRank> + use<T> {
        let (first, job) = &self.jobs[job.index()];
        (first.0..first.0 + job.ranks().size()).map(GlobalRank)
    }

    /// The process that a rank of a job is.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn global(&self, job: JobNumber, rank: Rank) -> GlobalRank {
        GlobalRank(self.jobs[job.index()].0.0 + rank.0)
    }

    /// The job and rank of a process.
    pub fn find(&self, process: GlobalRank) -> Option<(JobNumber, Rank)> {
        let after = self.jobs.partition_point(|(first, _)| *first <= process);
        // Jobs without ranks begin where the next one does.
        let at = after.checked_sub(1)?;
        let (first, job) = &self.jobs[at];
        let rank = Rank(process.0 - first.0);
        (rank.0 < job.ranks().size()).then_some((JobNumber(at as u32), rank))
    }

    /// The node of a process.
    pub fn node_of(&self, process: GlobalRank) -> Option<NodeId> {
        let (job, rank) = self.find(process)?;
        self.jobs[job.index()].1.ranks().node_of(rank)
    }

    /// Number of the job a process belongs to, and its rank there.
    ///
    /// # Panics
    /// If the launch has no such process.
    pub fn identity(&self, process: GlobalRank) -> (JobNumber, Rank) {
        self.find(process).expect("a process of the launch")
    }

    /// The node of a process and its number there.
    ///
    /// # Panics
    /// If the launch has no such process.
    pub fn home_of(&self, process: GlobalRank) -> NodeId {
        self.node_of(process).expect("a process of the launch")
    }

    /// A process in words: `rank 3`, or `rank 3 of spawned job 1`.
    ///
    /// # Panics
    /// If the launch has no such process.
    pub fn name_of(&self, process: GlobalRank) -> String {
        match self.identity(process) {
            (JobNumber(0), rank) => format!("rank {rank}"),
            (job, rank) => format!("rank {rank} of spawned job {job}"),
        }
    }

    /// Position of a process on its node.
    pub fn node_rank(&self, process: GlobalRank) -> Option<NodeRank> {
        let (job, rank) = self.find(process)?;
        let ranks = self.jobs[job.index()].1.ranks();
        let (node, local) = ranks.node_of(rank).zip(ranks.local_rank(rank))?;
        Some(self.node_rank_of(node, job, local))
    }

    /// Position on its node of the process that has this place in its job.
    pub fn node_rank_of(&self, node: NodeId, job: JobNumber, local: LocalRank) -> NodeRank {
        let before = &self.jobs[..job.index()];
        let before: u32 = before
            .iter()
            .map(|(_, job)| job.ranks().local_size(node))
            .sum();
        NodeRank(before + local.0)
    }

    /// Job and place in it of a process of a node.
    pub fn local_at(&self, node: NodeId, at: NodeRank) -> Option<(JobNumber, LocalRank)> {
        let mut local = at.0;
        for (number, (_, job)) in (0..).map(JobNumber).zip(&self.jobs) {
            let here = job.ranks().local_size(node);
            if local < here {
                return Some((number, LocalRank(local)));
            }
            local -= here;
        }
        None
    }

    /// The process at a position of a node.
    pub fn process_at(&self, node: NodeId, at: NodeRank) -> Option<GlobalRank> {
        let (job, local) = self.local_at(node, at)?;
        let rank = self.jobs[job.index()].1.ranks().rank_at(node, local)?;
        Some(self.global(job, rank))
    }

    /// The processes of a node, in the order of their positions.
    pub fn processes_on(&self, node: NodeId) -> impl Iterator<Item = GlobalRank> + '_ {
        self.jobs.iter().flat_map(move |(first, job)| {
            let ranks = job.ranks().ranks_on(node);
            ranks.map(|rank| GlobalRank(first.0 + rank.0))
        })
    }

    /// Number of processes of a node.
    pub fn local_size(&self, node: NodeId) -> u32 {
        self.jobs
            .iter()
            .map(|(_, job)| job.ranks().local_size(node))
            .sum()
    }

    /// Number of nodes of the launch.
    pub fn nodes(&self) -> u32 {
        self.first().ranks().nodes()
    }

    /// The nodes of the launch.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<T> {
        self.first().ranks().node_ids()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster<RankMap> {
        let on = |runs: &[(u32, u32)]| {
            RankMap::from_runs(runs.iter().map(|(node, ranks)| (NodeId(*node), *ranks)))
        };
        let mut roster = Roster::new(on(&[(0, 2), (1, 2)]));
        assert_eq!(roster.add(on(&[(1, 1), (0, 1)])), JobNumber(1));
        assert_eq!(roster.add(on(&[(0, 1), (1, 0)])), JobNumber(2));
        roster
    }

    #[test]
    fn processes_are_numbered_in_the_order_of_jobs_and_ranks() {
        let roster = roster();
        assert_eq!(roster.size(), 7);
        assert_eq!(roster.find(GlobalRank(3)), Some((JobNumber(0), Rank(3))));
        assert_eq!(roster.find(GlobalRank(4)), Some((JobNumber(1), Rank(0))));
        assert_eq!(roster.find(GlobalRank(6)), Some((JobNumber(2), Rank(0))));
        assert_eq!(roster.find(GlobalRank(7)), None);
        assert_eq!(roster.global(JobNumber(1), Rank(1)), GlobalRank(5));
        assert_eq!(roster.node_of(GlobalRank(4)), Some(NodeId(1)));
    }

    #[test]
    fn a_node_numbers_its_processes_over_all_jobs() {
        let roster = roster();
        let on = |node| roster.processes_on(NodeId(node)).collect::<Vec<_>>();
        assert_eq!(on(0), [0, 1, 5, 6].map(GlobalRank));
        assert_eq!(on(1), [2, 3, 4].map(GlobalRank));
        for node in [0, 1].map(NodeId) {
            assert_eq!(roster.local_size(node) as usize, on(node.0).len());
            for (at, process) in (0..).map(NodeRank).zip(on(node.0)) {
                assert_eq!(roster.node_rank(process), Some(at));
                assert_eq!(roster.process_at(node, at), Some(process));
            }
        }
        assert_eq!(roster.process_at(NodeId(1), NodeRank(3)), None);
    }
}
