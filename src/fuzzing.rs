//! Entry points of the fuzzer, and of the plain tests that run them over a corpus and changes of
//! it: reports of steps to their launcher, and files of other origin.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::allocator_client::FromAllocator;
use crate::backend::job_label;
use crate::backend::report_validation::ReportScope;
use crate::backend::step_messages::{
    KnownReport, LaunchDescription, LauncherToStep, StepToLauncher,
};
use crate::control::control_stream;
use crate::inspect::ldso::cache::Index;
use crate::plan::environment::env_file;
use wireup_core::fuzzing::job;
use wireup_core::job::hosts::file as hostfile;
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::job_table::{JobTable, KnownRank};
use wireup_core::job::outcome::{PmiState, RankEnd};
use wireup_core::job::spec::TerminationSpec;
use wireup_core::link::frame::FrameAddress;
use wireup_core::link::fuzzing::{messages, read};
use wireup_core::node::JobContext;
use wireup_core::node::event::{NodeReport, PeerMessage};
use wireup_core::step::report_batch::RankReportBatch;
use wireup_core::supervisor::{RankExit, Supervisor, SupervisorAction};

type Jobs = JobTable<Arc<JobContext>>;

/// Runs one input: messages of steps to the launcher of a job, and when that ends by them.
///
/// # Panics
/// When a promise is broken that this module checks.
pub fn carried(data: &[u8]) {
    let mut jobs = JobTable::new(Arc::new(job()));
    jobs.add(Arc::new(job()));
    let nodes = jobs.nodes();
    let mut supervisor = Supervisor::new(jobs.size(), &TerminationSpec::default());
    let mut now = Duration::ZERO;
    messages(data, |from, body| {
        read::<LaunchDescription>(body);
        read::<LauncherToStep>(body);
        read::<PeerMessage>(body);
        let reports = read::<Vec<StepToLauncher>>(body);
        let (Some(reports), FrameAddress::Node(from)) = (reports, from) else {
            return;
        };
        // The transport names senders that there are.
        let from = NodeId(from.0 % nodes);
        now += Duration::from_secs(1);
        for report in reports {
            if let Some(report) = ReportScope::new(&jobs, Some(from)).check(report) {
                handle_report(&jobs, &mut supervisor, now, report);
            }
        }
    });
    let mut orders = Vec::new();
    while let Some(at) = supervisor.next_deadline().filter(|at| *at > now) {
        now = at;
        supervisor.tick(now, |_| true, &mut orders);
    }
    there(&jobs, &orders);
}

/// The launcher's handling of reports.
fn handle_report(jobs: &Jobs, supervisor: &mut Supervisor, now: Duration, report: KnownReport) {
    let mut orders = Vec::new();
    match report {
        StepToLauncher::NotStarted { cause, .. } => {
            supervisor.rank_skipped();
            if let Some(cause) = cause {
                supervisor.fail(cause, now, &mut orders);
            }
        }
        StepToLauncher::Judged { rank, end, state } => {
            judged(supervisor, now, (&[rank], end, &state), &mut orders);
        }
        StepToLauncher::Alike(RankReportBatch::Ended {
            end, state, ranks, ..
        }) => {
            let ranks: Vec<KnownRank> = ranks.into_iter().map(|(rank, _)| rank).collect();
            judged(supervisor, now, (&ranks, end, &state), &mut orders);
        }
        StepToLauncher::Left { waiting, cause } => supervisor.rank_left(waiting, cause, now),
        StepToLauncher::Failed { cause, .. } => supervisor.fail(cause, now, &mut orders),
        StepToLauncher::Node {
            report: NodeReport::JobControl(demand),
            ..
        } => supervisor.demanded(demand, now, &mut orders),
        _ => {}
    }
    if let Some(rank) = supervisor.cause().and_then(|cause| cause.rank()) {
        assert!(jobs.find(rank).is_some(), "{rank:?}");
    }
    there(jobs, &orders);
}

fn judged(
    supervisor: &mut Supervisor,
    now: Duration,
    (ranks, end, state): (&[KnownRank], RankEnd, &PmiState),
    orders: &mut Vec<SupervisorAction>,
) {
    for rank in ranks {
        let gone = RankExit {
            rank: rank.global(),
            job: rank.job(),
            end,
            pmi: state,
            joinable: true,
            singleton_reason: None,
        };
        supervisor.rank_ended(gone, now, orders);
    }
}

/// Only ranks that exist are signalled.
fn there(jobs: &Jobs, orders: &[SupervisorAction]) {
    for order in orders {
        if let SupervisorAction::SignalRanks(_, ranks) = order {
            let known = ranks.iter().all(|rank| jobs.find(*rank).is_some());
            assert!(known, "{order:?}");
        }
    }
}

/// Runs one input: a letter for its kind, and the text of a file, a line or a label.
///
/// # Panics
/// When a promise is broken that this module checks.
pub fn files(data: &[u8]) {
    let [kind, text @ ..] = data else {
        return;
    };
    match kind {
        b'h' => {
            let _ = hostfile::parse(Path::new("hosts"), text);
        }
        b'e' => {
            let forwards = env_file::parse(text).unwrap_or_default();
            assert!(forwards.len() <= text.len());
        }
        b'o' => {
            control_stream::parse(text);
        }
        b'a' => {
            let _ = serde_json::from_slice::<FromAllocator>(text);
        }
        b'p' => {
            if let Some(placement) = job_label::parse(text) {
                assert_eq!(placement.hosts.len(), placement.ranks.nodes() as usize);
                let last = placement.ranks.size().checked_sub(1).map(Rank);
                assert!(last.is_none_or(|last| placement.ranks.node_of(last).is_some()));
            }
        }
        b'v' => {
            wireup_core::pmix::release::PmixRelease::parse(text);
        }
        b'c' => {
            let index = Index::parse_cache(text.to_vec());
            let name = OsStr::new("libmpi.so.12");
            // Nothing is made up: each path is in the cache.
            let paths = index.map_or_else(Vec::new, |index| index.candidates(name));
            assert!(paths.iter().all(|path| path.as_os_str().len() < text.len()));
        }
        _ => {}
    }
}

/// Streams of random messages, as inputs of [`carried`].
#[cfg(test)]
pub(crate) fn carried_seeds(count: usize) -> Vec<Vec<u8>> {
    use proptest::prelude::*;

    use crate::backend::arbitrary::{description, reports, to_step};
    use wireup_core::link::encode;
    use wireup_core::link::fuzzing::seeds::seeds;

    let body = prop_oneof![
        14 => reports().prop_map(|reports| encode(&reports)),
        6 => to_step(),
        1 => description().prop_map(|description| encode(&description)),
    ];
    seeds(count, job().process_map.nodes(), body.boxed())
}
