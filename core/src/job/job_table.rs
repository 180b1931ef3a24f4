//! The jobs of a launch: the one the user asked for, and those that were spawned.
//!
//! Jobs are added and stay; a process is known in the whole launch by its [`GlobalRank`], on its
//! node by its [`NodeRank`], and neither ever means another process.

use std::fmt;
use std::sync::Arc;

use super::ids::{GlobalRank, JobIndex, LocalRank, NodeId, NodeRank, Rank};
use crate::job::process_map::ProcessMap;

/// A job with a placement.
pub trait HasProcessMap {
    /// The placement of the job's ranks.
    fn ranks(&self) -> &ProcessMap;
}

impl<P: HasProcessMap> HasProcessMap for Arc<P> {
    fn ranks(&self) -> &ProcessMap {
        P::ranks(self)
    }
}

/// A job of which no more is known.
impl HasProcessMap for ProcessMap {
    fn ranks(&self) -> &ProcessMap {
        self
    }
}

/// A process that a launch has. Only the launch's [`JobTable`] makes one, so that a number that another process sent is looked
/// up before it can index anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KnownRank {
    global: GlobalRank,
    job: JobIndex,
    rank: Rank,
    node: NodeId,
}

impl KnownRank {
    /// The process in its launch.
    pub fn global(self) -> GlobalRank {
        self.global
    }

    /// Whether it belongs to the job the user asked for.
    pub fn is_in_initial_job(self) -> bool {
        self.job.is_initial()
    }

    /// The job it belongs to.
    pub fn job(self) -> JobIndex {
        self.job
    }

    /// The process in its job.
    pub fn rank(self) -> Rank {
        self.rank
    }

    /// The node on which it runs.
    pub fn node(self) -> NodeId {
        self.node
    }

    /// Position in lists of all processes of the launch.
    pub fn index(self) -> usize {
        self.global.index()
    }
}

/// In words: `rank 3`, or `rank 3 of spawned job 1`.
impl fmt::Display for KnownRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, rank, .. } = self;
        match self.is_in_initial_job() {
            true => write!(f, "rank {rank}"),
            false => write!(f, "rank {rank} of spawned job {job}"),
        }
    }
}

/// See the module. There is always a first job.
#[derive(Clone, Debug)]
pub struct JobTable<T> {
    /// With the first process of each.
    jobs: Vec<(GlobalRank, T)>,
}

impl<T: HasProcessMap> JobTable<T> {
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
    pub fn add(&mut self, job: T) -> JobIndex {
        let number = JobIndex(u32::try_from(self.jobs.len()).expect("fewer jobs than processes"));
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

    /// Mutable access to the job the user asked for; the placement must not change.
    pub fn first_mut(&mut self) -> &mut T {
        &mut self.jobs[0].1
    }

    /// A job, if there is one of that number.
    pub fn get(&self, job: JobIndex) -> Option<&T> {
        self.jobs.get(job.index()).map(|(_, job)| job)
    }

    /// Mutable access; the placement must not change.
    pub fn get_mut(&mut self, job: JobIndex) -> Option<&mut T> {
        self.jobs.get_mut(job.index()).map(|(_, job)| job)
    }

    /// Gives the first job more nodes, which have none of its ranks.
    pub fn replace_first(&mut self, first: T) {
        self.jobs[0].1 = first;
    }

    /// The jobs, in the order of their numbers.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = (JobIndex, &T)> {
        let jobs = self.jobs.iter().enumerate();
        jobs.map(|(number, (_, job))| (JobIndex(number as u32), job))
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
    pub fn first_of(&self, job: JobIndex) -> GlobalRank {
        self.jobs[job.index()].0
    }

    /// The processes of a job, ascending; none of one that the launch does not have.
    pub fn processes_of(&self, job: JobIndex) -> impl Iterator<Item = GlobalRank> + use<T> {
        let job = self.jobs.get(job.index());
        let all = job.map_or(0..0, |(first, job)| first.0..first.0 + job.ranks().size());
        all.map(GlobalRank)
    }

    /// All processes of the launch, ascending.
    pub fn all_ranks(&self) -> impl Iterator<Item = KnownRank> + '_ {
        let all = (0..self.size()).map(GlobalRank);
        all.filter_map(|process| self.look_up(process))
    }

    /// The processes of a job, ascending; none of one that the launch does not have.
    pub fn ranks_of_job(&self, job: JobIndex) -> impl Iterator<Item = KnownRank> + '_ {
        let all = self.processes_of(job);
        all.filter_map(|process| self.look_up(process))
    }

    /// A process, if the launch has it.
    pub fn look_up(&self, process: GlobalRank) -> Option<KnownRank> {
        let (job, rank) = self.find(process)?;
        Some(KnownRank {
            global: process,
            job,
            rank,
            node: self.jobs[job.index()].1.ranks().node_of(rank)?,
        })
    }

    /// The process that a rank of a job is.
    ///
    /// # Panics
    /// If there is no such job.
    pub fn global(&self, job: JobIndex, rank: Rank) -> GlobalRank {
        GlobalRank(self.jobs[job.index()].0.0 + rank.0)
    }

    /// The job and rank of a process.
    pub fn find(&self, process: GlobalRank) -> Option<(JobIndex, Rank)> {
        let after = self.jobs.partition_point(|(first, _)| *first <= process);
        // Jobs without ranks begin where the next one does.
        let at = after.checked_sub(1)?;
        let (first, job) = &self.jobs[at];
        let rank = Rank(process.0 - first.0);
        (rank.0 < job.ranks().size()).then_some((JobIndex(at as u32), rank))
    }

    /// The node of a process.
    pub fn node_of(&self, process: GlobalRank) -> Option<NodeId> {
        Some(self.look_up(process)?.node)
    }

    /// Position of a process on its node.
    pub fn node_rank(&self, process: GlobalRank) -> Option<NodeRank> {
        let (job, rank) = self.find(process)?;
        let ranks = self.jobs[job.index()].1.ranks();
        let (node, local) = ranks.node_of(rank).zip(ranks.local_rank(rank))?;
        Some(self.node_rank_of(node, job, local))
    }

    /// Position on its node of the process that has this place in its job.
    pub fn node_rank_of(&self, node: NodeId, job: JobIndex, local: LocalRank) -> NodeRank {
        let before = &self.jobs[..job.index()];
        let before: u32 = before
            .iter()
            .map(|(_, job)| job.ranks().local_size(node))
            .sum();
        NodeRank(before + local.0)
    }

    /// Job and place in it of a process of a node.
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

    /// The processes of a node, in the order of their positions.
    pub fn ranks_on_node(&self, node: NodeId) -> impl Iterator<Item = KnownRank> + '_ {
        let all = self.processes_on(node);
        all.filter_map(|process| self.look_up(process))
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
