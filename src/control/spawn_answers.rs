//! Answers to the requesters of spawns.

use std::time::Duration;

use super::launch_context::LaunchContext;
use super::queued_spawn::{QueuedSpawn, SpawnSource};
use super::status_records;
use crate::backend::step_messages::{LauncherToStep, NodeRefusal};
use crate::plan::RequesterPlan;
use crate::plan::planned_jobs::Plans;
use crate::report::failures::by_node;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequester};
use wireup_core::node::event::NodeCommand;

/// Returns the requester in the form that planning needs.
pub(super) fn requester_plan<'a>(
    cx: &'a LaunchContext,
    source: &'a SpawnSource,
) -> RequesterPlan<'a> {
    match source {
        SpawnSource::Node(_, SpawnRequester::Rank(process)) => {
            let (parent, rank) = cx.jobs.plan_of(*process);
            RequesterPlan::Rank(parent, rank)
        }
        SpawnSource::Node((node, _), SpawnRequester::Tool(name)) => {
            RequesterPlan::Tool(*node, name)
        }
        SpawnSource::Controller(_) => RequesterPlan::Controller,
    }
}

/// Names the requester for messages.
pub(super) fn requester_name(source: &SpawnSource) -> String {
    match source {
        SpawnSource::Node(_, SpawnRequester::Rank(process)) => process.to_string(),
        SpawnSource::Node(_, SpawnRequester::Tool(name)) => format!("the tool {}", name.nspace),
        SpawnSource::Controller(_) => "the controlling process".to_owned(),
    }
}

/// Returns the job with which the spawned jobs end. Jobs of a tool or a controlling process belong to the launch.
pub(super) fn requester_job(source: &SpawnSource) -> JobIndex {
    source.rank().map_or(JobIndex::INITIAL, KnownRank::job)
}

/// Refuses a spawn that was not started.
pub(super) fn refuse_spawn(cx: &mut LaunchContext, spawn: QueuedSpawn, failure: SpawnFailure) {
    if let Some(name) = spawn.prepared_as {
        cx.steps.send(LauncherToStep::Forget(name));
    }
    answer_spawn(cx, &spawn.source, Err(failure));
}

/// Replies with the job, or with the reason why there is none.
pub(super) fn answer_spawn(
    cx: &mut LaunchContext,
    source: &SpawnSource,
    result: Result<JobIndex, SpawnFailure>,
) {
    if let Err(failure) = &result
        && failure.kind != SpawnFailureKind::Ending
    {
        let text = format!("{} cannot spawn: {}", requester_name(source), failure.text);
        cx.warn(&text);
    }
    let (node, ticket) = match source {
        SpawnSource::Node(reply_to, _) => *reply_to,
        SpawnSource::Controller(request) => {
            return status_records::record_spawn_reply(cx, *request, result);
        }
    };
    let result = result.map(|job| {
        let plan = cx.jobs.get(job).expect("the job was added");
        plan.job.nspace.clone()
    });
    let command = NodeCommand::Spawned { ticket, result };
    cx.steps.send(LauncherToStep::Node(node, command));
}

/// Returns the failure of a spawn that exceeded its timeout.
pub(super) fn too_late(limit: Duration) -> SpawnFailure {
    let seconds = limit.as_secs_f64();
    let text = format!("not all processes were started within the {seconds} s allowed");
    SpawnFailure::new(SpawnFailureKind::TimedOut, text)
}

/// Returns the failure of a spawn for which some hosts could not join, or could not be prepared.
pub(super) fn hosts_failure(
    failed: &[(NodeId, NodeRefusal)],
    names: &[String],
) -> Option<SpawnFailure> {
    let refused = failed.iter().map(|(node, refusal)| {
        let failure = CommandError::Reported {
            code: refusal.code,
            message: refusal.message.clone(),
        };
        (*node, failure)
    });
    let texts = by_node(refused.collect(), names).into_iter();
    let texts: Vec<_> = texts.map(|failure| failure.to_string()).collect();
    (!texts.is_empty()).then(|| SpawnFailure::new(SpawnFailureKind::Failed, texts.join("; ")))
}
