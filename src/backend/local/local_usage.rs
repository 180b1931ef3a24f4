//! Measures the resource usage of local ranks, for `wireup top` and others.

use std::collections::HashMap;
use std::time::Duration;

use super::raw;
use super::step_context::StepContext;
use crate::backend::inspection::{InspectionResult, RankInspection, RankUsage};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::GlobalRank;
use wireup_core::node::FenceWait;
use wireup_sys::procfs::{self, Process};

/// Usage of one process and all its descendants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct UsageSum {
    /// Processor time in ticks.
    cpu: u64,
    /// Time for which threads have waited for a processor.
    runqueue: Duration,
    /// Resident memory in pages.
    resident: u64,
}

/// Measures the usage of those of these ranks that run on this host.
pub(super) fn usage_of(cx: &StepContext, ranks: &[(GlobalRank, i32)]) -> Vec<RankInspection> {
    let processes = procfs::processes();
    let roots = ranks.iter().map(|(_, pid)| *pid);
    let sums = sums(&processes, roots, procfs::runqueue_wait);
    let states: HashMap<i32, char> = processes
        .iter()
        .map(|process| (process.pid, process.state))
        .collect();
    let now = Moment(cx.now());
    let waits: Vec<_> = cx
        .nodes
        .iter()
        .map(|node| node.core.fence_waits(now))
        .collect();
    let page = rustix::param::page_size() as u64;
    let usage = |(rank, pid): &(GlobalRank, i32)| {
        let sum = sums.get(pid).copied().unwrap_or_default();
        let (node, local) = cx.place(*rank);
        let seat = cx.scope.local_index(&cx.jobs, *rank);
        let fence = waits[cx.scope.index(node)].get(&local);
        let usage = RankUsage {
            cpu_ms: milliseconds(procfs::ticks(sum.cpu)),
            runqueue_ms: milliseconds(sum.runqueue),
            resident: sum.resident * page,
            output: cx.ranks.at(seat).output.bytes_read(),
            state: states.get(pid).copied().unwrap_or('?'),
            did: cx.pmi_state(*rank).last_activity,
            fence: fence.map(|FenceWait { fence, .. }| fence.clone()),
            fence_ms: fence.map(|wait| milliseconds(wait.waiting)),
        };
        RankInspection {
            rank: *rank,
            result: Ok(InspectionResult::Usage(Box::new(usage))),
        }
    };
    ranks.iter().map(usage).collect()
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns those of these ranks that run on this host, with their pids.
pub(super) fn running(cx: &StepContext, ranks: &[GlobalRank]) -> Vec<(GlobalRank, i32)> {
    let running = ranks.iter().filter_map(|rank| {
        let node = cx.jobs.node_of(*rank)?;
        if !cx.scope.holds(node) {
            return None;
        }
        Some((*rank, raw(cx.slot(*rank).running_pid()?)))
    });
    running.collect()
}

/// Returns the usage of each of these processes with its descendants, by pid.
fn sums(
    processes: &[Process],
    roots: impl Iterator<Item = i32>,
    runqueue_wait: impl Fn(i32) -> Duration,
) -> HashMap<i32, UsageSum> {
    let parents: HashMap<i32, i32> = processes
        .iter()
        .map(|process| (process.pid, process.parent))
        .collect();
    let mut sums: HashMap<i32, UsageSum> = roots.map(|pid| (pid, UsageSum::default())).collect();
    for process in processes {
        let mut at = process.pid;
        // Pids are reused while they are read, so the chain of parents may contain a cycle.
        for _ in 0..processes.len() {
            if let Some(sum) = sums.get_mut(&at) {
                sum.cpu += process.cpu;
                sum.runqueue += runqueue_wait(process.pid);
                sum.resident += process.resident;
                break;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break,
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, cpu: u64) -> Process {
        Process {
            pid,
            name: String::new(),
            state: 'S',
            parent,
            group: pid,
            session: pid,
            cpu,
            started: 0,
            resident: 1,
        }
    }

    #[test]
    fn usage_of_rank_includes_descendants() {
        let processes = [
            process(1, 0, 1000),
            process(10, 1, 1),
            process(11, 10, 2),
            process(12, 11, 4),
            process(20, 1, 8),
            // Two that are each other's parents, by numbers that were given out again.
            process(30, 31, 100),
            process(31, 30, 100),
        ];
        let runqueue_wait = |pid: i32| Duration::from_secs(u64::from(pid.unsigned_abs()));
        let sums = sums(&processes, [10, 20, 99].into_iter(), runqueue_wait);
        let sum = |cpu, seconds, resident| UsageSum {
            cpu,
            runqueue: Duration::from_secs(seconds),
            resident,
        };
        assert_eq!(sums[&10], sum(7, 33, 3));
        assert_eq!(sums[&20], sum(8, 20, 1));
        assert_eq!(sums[&99], sum(0, 0, 0));
    }
}
