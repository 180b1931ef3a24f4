//! The plan's record in the status stream.

use crate::plan::Plan;
use wireup_core::record::{AppRecord, JobPlan, JobState, PlannedJob, PlannedNode, Record, VERSION};

/// The planned job.
pub(crate) fn planned(plan: &Plan) -> Record<'_> {
    let nodes = plan.job.ranks.node_ids().map(|node| PlannedNode {
        node: node.0,
        host: plan.node_names[node.index()].as_str().into(),
        ranks: plan.job.ranks.local_size(node),
    });
    let offered = [("pmi", plan.offer.pmi), ("pmix", plan.offer.pmix)];
    let job = JobPlan {
        version: VERSION,
        job: plan.job.nspace.as_str().into(),
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        size: plan.job.ranks.size(),
        offered: offered
            .into_iter()
            .filter_map(|(name, offered)| offered.then_some(name.into()))
            .collect(),
        nodes: nodes.collect(),
        apps: apps(plan),
    };
    Record::Job(PlannedJob {
        state: JobState::Planned,
        plan: Some(job),
        cause: None,
    })
}

/// The program of an application context, as it was found.
pub(crate) fn program(plan: &Plan, app: usize) -> String {
    plan.apps[app].program.path().display().to_string()
}

/// The application contexts.
pub(crate) fn apps(plan: &Plan) -> Vec<AppRecord> {
    let apps = plan.apps.iter().enumerate();
    apps.map(|(index, app)| AppRecord {
        app: index as u32,
        program: program(plan, index),
        ranks: app.size,
    })
    .collect()
}
