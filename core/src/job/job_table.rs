//! Jobs of a launch: the initial one, and the spawned ones.
//!
//! Jobs are added and stay. A process is identified in the launch by its [`GlobalRank`], on its node by its
//! [`NodeRank`], and neither is ever reused.

use std::fmt;
use std::sync::Arc;

use super::ids::{GlobalRank, JobIndex, LocalRank, NodeId, NodeRank, Rank};
use crate::job::process_map::ProcessMap;

/// A job with a placement.
pub trait HasProcessMap {
    /// Returns the process map of the job.
    fn ranks(&self) -> &ProcessMap;
}

impl<P: HasProcessMap> HasProcessMap for Arc<P> {
    fn ranks(&self) -> &ProcessMap {
        P::ranks(self)
    }
}

/// Process map as a job without further data.
impl HasProcessMap for ProcessMap {
    fn ranks(&self) -> &ProcessMap {
        self
    }
}

/// Process of a launch. Only the launch's [`JobTable`] creates one, so that a number from another process is looked up
/// before it can index anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KnownRank {
    global: GlobalRank,
    job: JobIndex,
    rank: Rank,
    node: NodeId,
}

impl KnownRank {
    /// Returns the rank in the launch.
    pub fn global(self) -> GlobalRank {
        self.global
    }

    /// Whether the process belongs to the initial job.
    pub fn is_in_initial_job(self) -> bool {
        self.job.is_initial()
    }

    /// Returns the index of the process's job.
    pub fn job(self) -> JobIndex {
        self.job
    }

    /// Returns the rank in the job.
    pub fn rank(self) -> Rank {
        self.rank
    }

    /// Returns the node of the process.
    pub fn node(self) -> NodeId {
        self.node
    }

    /// Returns the index in lists of all processes of the launch.
    pub fn index(self) -> usize {
        self.global.index()
    }
}

/// Formats the rank for messages: `rank 3`, or `rank 3 of spawned job 1`.
impl fmt::Display for KnownRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, rank, .. } = self;
        match self.is_in_initial_job() {
            true => write!(f, "rank {rank}"),
            false => write!(f, "rank {rank} of spawned job {job}"),
        }
    }
}

/// Jobs of a launch in the order in which they were added; never empty.
#[derive(Clone, Debug)]
pub struct JobTable<T> {
    /// With the first process of each.
    jobs: Vec<(GlobalRank, T)>,
}

impl<T: HasProcessMap> JobTable<T> {
    /// Creates the table of a launch of one job.
    pub fn new(first: T) -> Self {
        Self {
            jobs: vec![(GlobalRank(0), first)],
        }
    }

    /// Adds a job after all others, and returns its index.
    ///
    /// # Panics
    /// If there are more processes than a `u32` counts: the launcher refuses such a job before.
    pub fn add(&mut self, job: T) -> JobIndex {
        let number = JobIndex(u32::try_from(self.jobs.len()).expect("fewer jobs than processes"));
        self.jobs.push((GlobalRank(self.size()), job));
        assert!(
            self.size() >= self.jobs[number.index()].0.0,
            "the launcher bounds the processes of a launch"
        );
        number
    }

    /// Returns the initial job.
    pub fn first(&self) -> &T {
        &self.jobs[0].1
    }

    /// Returns the initial job for changes; its process map must not change.
    pub fn first_mut(&mut self) -> &mut T {
        &mut self.jobs[0].1
    }

    /// Returns a job, if there is one with that index.
    pub fn get(&self, job: JobIndex) -> Option<&T> {
        self.jobs.get(job.index()).map(|(_, job)| job)
    }

    /// Returns a job for changes; its process map must not change.
    pub fn get_mut(&mut self, job: JobIndex) -> Option<&mut T> {
        self.jobs.get_mut(job.index()).map(|(_, job)| job)
    }

    /// Gives the first job more nodes, which have none of its ranks.
    pub fn replace_first(&mut self, first: T) {
        self.jobs[0].1 = first;
    }

    /// Returns the jobs, in the order of their indexes.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (JobIndex, &T)> {
        let jobs = self.jobs.iter().enumerate();
        jobs.map(|(number, (_, job))| (JobIndex(number as u32), job))
    }

    /// Returns the number of jobs.
    pub fn count(&self) -> u32 {
        self.jobs.len() as u32
    }

    /// Returns the number of processes of all jobs.
    pub fn size(&self) -> u32 {
        self.jobs
            .last()
            .map_or(0, |(first, job)| first.0 + job.ranks().size())
    }

    /// Returns the first process of a job.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn first_of(&self, job: JobIndex) -> GlobalRank {
        self.jobs[job.index()].0
    }

    /// Returns the processes of a job, ascending; empty for a job that the launch does not have.
    pub fn processes_of(&self, job: JobIndex) -> impl Iterator<Item = GlobalRank> + use<T> {
        let job = self.jobs.get(job.index());
        let all = job.map_or(0..0, |(first, job)| first.0..first.0 + job.ranks().size());
        all.map(GlobalRank)
    }

    /// Returns all processes of the launch, ascending.
    pub fn all_ranks(&self) -> impl Iterator<Item = KnownRank> + '_ {
        let all = (0..self.size()).map(GlobalRank);
        all.filter_map(|process| self.look_up(process))
    }

    /// Returns the processes of a job, ascending; empty for a job that the launch does not have.
    pub fn ranks_of_job(&self, job: JobIndex) -> impl Iterator<Item = KnownRank> + '_ {
        let all = self.processes_of(job);
        all.filter_map(|process| self.look_up(process))
    }

    /// Looks up a process of the launch.
    pub fn look_up(&self, process: GlobalRank) -> Option<KnownRank> {
        let (job, rank) = self.find(process)?;
        Some(KnownRank {
            global: process,
            job,
            rank,
            node: self.jobs[job.index()].1.ranks().node_of(rank)?,
        })
    }

    /// Returns the global rank of a rank of a job.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn global(&self, job: JobIndex, rank: Rank) -> GlobalRank {
        GlobalRank(self.jobs[job.index()].0.0 + rank.0)
    }

    /// Returns the job and rank of a process.
    pub fn find(&self, process: GlobalRank) -> Option<(JobIndex, Rank)> {
        let after = self.jobs.partition_point(|(first, _)| *first <= process);
        // Jobs without ranks begin where the next one does.
        let at = after.checked_sub(1)?;
        let (first, job) = &self.jobs[at];
        let rank = Rank(process.0 - first.0);
        (rank.0 < job.ranks().size()).then_some((JobIndex(at as u32), rank))
    }

    /// Returns the node of a process.
    pub fn node_of(&self, process: GlobalRank) -> Option<NodeId> {
        Some(self.look_up(process)?.node)
    }

    /// Returns the node rank of a process.
    pub fn node_rank(&self, process: GlobalRank) -> Option<NodeRank> {
        let (job, rank) = self.find(process)?;
        let ranks = self.jobs[job.index()].1.ranks();
        let (node, local) = ranks.node_of(rank).zip(ranks.local_rank(rank))?;
        Some(self.node_rank_of(node, job, local))
    }

    /// Returns the node rank of the process with this local rank in its job.
    pub fn node_rank_of(&self, node: NodeId, job: JobIndex, local: LocalRank) -> NodeRank {
        let before = &self.jobs[..job.index()];
        let before: u32 = before
            .iter()
            .map(|(_, job)| job.ranks().local_size(node))
            .sum();
        NodeRank(before + local.0)
    }

    /// Returns the job and local rank of a process of a node.
    pub fn local_at(&self, node: NodeId, at: NodeRank) -> Option<(JobIndex, LocalRank)> {
        let mut local = at.0;
        for (number, (_, job)) in (0..).map(JobIndex).zip(&self.jobs) {
            let here = job.ranks().local_size(node);
            if local < here {
                return Some((number, LocalRank(local)));
            }
            local -= here;
        }
        None
    }

    /// Returns the process with this rank on a node.
    pub fn process_at(&self, node: NodeId, at: NodeRank) -> Option<GlobalRank> {
        let (job, local) = self.local_at(node, at)?;
        let rank = self.jobs[job.index()].1.ranks().rank_at(node, local)?;
        Some(self.global(job, rank))
    }

    /// Returns the processes of a node, in the order of their node ranks.
    pub fn processes_on(&self, node: NodeId) -> impl Iterator<Item = GlobalRank> + '_ {
        self.jobs.iter().flat_map(move |(first, job)| {
            let ranks = job.ranks().ranks_on(node);
            ranks.map(|rank| GlobalRank(first.0 + rank.0))
        })
    }

    /// Returns the processes of a node, in the order of their node ranks.
    pub fn ranks_on_node(&self, node: NodeId) -> impl Iterator<Item = KnownRank> + '_ {
        let all = self.processes_on(node);
        all.filter_map(|process| self.look_up(process))
    }

    /// Returns the number of processes of a node.
    pub fn local_size(&self, node: NodeId) -> u32 {
        self.jobs
            .iter()
            .map(|(_, job)| job.ranks().local_size(node))
            .sum()
    }

    /// Returns the number of nodes of the launch.
    pub fn nodes(&self) -> u32 {
        self.first().ranks().nodes()
    }

    /// Returns the nodes of the launch.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<T> {
        self.first().ranks().node_ids()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> JobTable<ProcessMap> {
        let on = |runs: &[(u32, u32)]| {
            ProcessMap::from_runs(runs.iter().map(|(node, ranks)| (NodeId(*node), *ranks)))
        };
        let mut roster = JobTable::new(on(&[(0, 2), (1, 2)]));
        assert_eq!(roster.add(on(&[(1, 1), (0, 1)])), JobIndex(1));
        assert_eq!(roster.add(on(&[(0, 1), (1, 0)])), JobIndex(2));
        roster
    }

    #[test]
    fn processes_are_numbered_by_job_and_rank() {
        let roster = roster();
        assert_eq!(roster.size(), 7);
        assert_eq!(roster.find(GlobalRank(3)), Some((JobIndex(0), Rank(3))));
        assert_eq!(roster.find(GlobalRank(4)), Some((JobIndex(1), Rank(0))));
        assert_eq!(roster.find(GlobalRank(6)), Some((JobIndex(2), Rank(0))));
        assert_eq!(roster.find(GlobalRank(7)), None);
        assert_eq!(roster.look_up(GlobalRank(7)), None);
        assert_eq!(roster.processes_of(JobIndex(3)).count(), 0);
        let known: Vec<KnownRank> = roster.all_ranks().collect();
        let globals = known.iter().map(|rank| rank.global());
        assert!(globals.eq((0..7).map(GlobalRank)));
        let fifth = known[5];
        assert_eq!((fifth.job(), fifth.rank()), (JobIndex(1), Rank(1)));
        assert_eq!((fifth.node(), fifth.index()), (NodeId(0), 5));
        assert_eq!(fifth.to_string(), "rank 1 of spawned job 1");
        assert!(
            roster
                .ranks_of_job(JobIndex(1))
                .eq(known[4..6].iter().copied())
        );
        assert_eq!(roster.global(JobIndex(1), Rank(1)), GlobalRank(5));
        assert_eq!(roster.node_of(GlobalRank(4)), Some(NodeId(1)));
    }

    #[test]
    fn node_ranks_count_processes_of_all_jobs() {
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
