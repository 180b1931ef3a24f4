//! Records of a launch for the readers of its status stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{Level, debug, enabled, info};

use super::failure_line::failure_line;
use super::launch_context::LaunchContext;
use super::launch_stage::LaunchStage;
use super::queued_spawn::SpawnSource;
use super::resize_request::ResizeResult;
use crate::plan::HostPlan;
use crate::plan::planned_jobs::{Jobs, Plans};
use crate::report::plan_record::{apps, planned, program};
use crate::report::status_stream::own_failure;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::missing_ranks::MissingRanks;
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::job::spawn::SpawnFailure;
use wireup_core::record::{
    CauseRecord, EndRecord, HostBindings, JoinedNode, Missing, MissingRank, PlannedJob,
    RankBinding, RankChange, RankId, RankLocation, RankResult, RankState, ResizeReplyRecord,
    ResultRecord, SpawnRecord, SpawnReplyRecord, StatusRecord, VERSION, ms,
};
use wireup_core::wording::without_error_codes;

/// Records the plan of the launch.
pub(super) fn record_plan(cx: &mut LaunchContext) {
    if !cx.status.is_recorded() {
        return;
    }
    let plan = Arc::clone(&cx.plan);
    cx.record(&planned(&plan));
}

/// Enters a stage of the launch, unless the launch is past it.
pub(super) fn enter_stage(cx: &mut LaunchContext, stage: LaunchStage) {
    if !cx.stage.advance(stage) {
        return;
    }
    let Some(state) = stage.job_state() else {
        return;
    };
    info!(?state, "launch");
    if !cx.status.is_recorded() {
        return;
    }
    let jobs = cx.jobs.clone();
    let cause = cx.supervisor.cause();
    let cause = cause.map(|cause| cause_record(cx, &jobs, cause));
    cx.record(&StatusRecord::Job(PlannedJob {
        state,
        plan: None,
        cause,
    }));
}

/// Records a rank's new state.
pub(super) fn rank_changed(cx: &mut LaunchContext, rank: KnownRank, state: RankState) {
    if !cx.status.is_recorded() && !enabled!(Level::DEBUG) {
        return;
    }
    let parent = cx.job_tree.get(rank.job()).and_then(|job| job.span.id());
    debug!(parent: parent, rank = rank.rank().0, ?state, "rank");
    if !cx.status.is_recorded() {
        return;
    }
    let jobs = cx.jobs.clone();
    let life = cx.ranks.get(rank);
    cx.record(&StatusRecord::Rank(RankChange {
        state,
        place: place_of(&jobs, rank),
        pid: life.pid,
        end: life
            .end
            .map(|(_, end)| end.map_or_else(EndRecord::default, EndRecord::from)),
        usage: life.usage,
    }));
}

/// Records the binding of ranks of one job on a host.
pub(super) fn record_bindings(
    cx: &mut LaunchContext,
    topology: &str,
    ranks: &[(KnownRank, String)],
) {
    let Some((first, _)) = ranks.first() else {
        return;
    };
    let jobs = cx.jobs.clone();
    // One machine may be several nodes.
    let mut nodes: BTreeMap<NodeId, Vec<RankBinding<'_>>> = BTreeMap::new();
    for (process, cpus) in ranks {
        let binding = RankBinding {
            rank: process.rank(),
            cpus: cpus.as_str().into(),
        };
        nodes.entry(process.node()).or_default().push(binding);
    }
    for (node, ranks) in nodes {
        let host = jobs.first().node_name(node);
        cx.record(&StatusRecord::Bindings(HostBindings {
            spawned_job: first.job(),
            node: node.0,
            host: host.into(),
            topology: topology.into(),
            ranks,
        }));
    }
}

/// Records a host that has joined.
pub(super) fn record_node(cx: &mut LaunchContext, plan: &HostPlan, node: NodeId) {
    let host = plan.node_name(node).into();
    cx.record(&StatusRecord::Node(JoinedNode { node: node.0, host }));
}

/// Records a host that has left.
pub(super) fn record_node_left(cx: &mut LaunchContext, node: NodeId, name: &str) {
    cx.record(&StatusRecord::NodeLeft(JoinedNode {
        node: node.0,
        host: name.into(),
    }));
}

/// Records the reply to a change of the launch's hosts.
pub(super) fn record_resize_reply(cx: &mut LaunchContext, request: u64, result: ResizeResult) {
    let (changes, message) = match result {
        Ok(report) => (report.lines(), None),
        Err(failure) => (Vec::new(), Some(failure.text.into())),
    };
    cx.record(&StatusRecord::ResizeReply(ResizeReplyRecord {
        request,
        changes,
        message,
    }));
}

/// Records a job that is about to be started.
pub(super) fn record_spawn(cx: &mut LaunchContext, number: JobIndex, source: &SpawnSource) {
    if !cx.status.is_recorded() {
        return;
    }
    let jobs = cx.jobs.clone();
    let plan = jobs.get(number).expect("it was added just now");
    let parent = source.rank().map(RankId::from);
    cx.record(&StatusRecord::Spawned(SpawnRecord {
        spawned_job: number,
        job: plan.job.nspace.as_str().into(),
        size: plan.job.process_map.size(),
        apps: apps(plan),
        parent,
    }));
}

/// Replies to a spawn that the controlling process has requested.
pub(super) fn record_spawn_reply(
    cx: &mut LaunchContext,
    request: u64,
    result: Result<JobIndex, SpawnFailure>,
) {
    let (spawned_job, message) = match result {
        Ok(job) => (Some(job), None),
        Err(failure) => (None, Some(failure.text.into())),
    };
    cx.record(&StatusRecord::SpawnReply(SpawnReplyRecord {
        request,
        spawned_job,
        message,
    }));
}

/// Writes the reports about the launch, which has ended. Returns whether all could be written.
pub(super) fn write_reports(cx: &mut LaunchContext) -> bool {
    let Some(stream) = cx.status.take_recorded() else {
        return true;
    };
    let plan = Arc::clone(&cx.plan);
    let output = stream.make(&plan.spec.status);
    output.lines.iter().for_each(|line| cx.print_line(line));
    let failures = output.failures.iter().map(ToString::to_string);
    failures.for_each(|failure| cx.print_line(&failure));
    output.failures.is_empty()
}

/// Prints a warning if the status stream cannot be written any more. The job continues without it.
pub(super) fn check_status(cx: &mut LaunchContext) {
    if let Some(errno) = cx.status.failure() {
        cx.print_line(&format!(
            "warning: the status stream (--json) cannot be written: {errno}"
        ));
    }
}

/// Writes the last record: the result of the launch.
pub(super) fn record_result(cx: &mut LaunchContext, code: u8, failure: Option<&CommandError>) {
    let Some(clock) = cx.status.clock() else {
        return;
    };
    let jobs = cx.jobs.clone();
    let plan = jobs.first();
    let supervisor = &cx.supervisor;
    let first = supervisor.cause();
    let first = first.or_else(|| supervisor.tolerated().filter(|_| code != 0));
    let interrupted = FailureCause::Interrupted(libc::SIGINT);
    let first = first.or_else(|| (code == interrupted.exit_code()).then_some(&interrupted));
    let cause = match failure {
        Some(failure) => Some(own_failure("wireup_failed", failure)),
        None => first.map(|cause| cause_record(cx, &jobs, cause)),
    };
    let time = |at| clock.at(at).to_string();
    let rank_result = |rank: KnownRank| {
        let life = cx.ranks.get(rank);
        let state = cx.pmi_state(rank);
        let start = life.pid.is_some().then_some(life.start);
        let end = life.end.map(|(at, _)| at);
        RankResult {
            place: place_of(&jobs, rank),
            pid: life.pid,
            start: start.map(time),
            start_ms: start.map(ms),
            end: end.map(time),
            end_ms: end.map(ms),
            how: life
                .end
                .and_then(|(_, end)| end)
                .map(EndRecord::from)
                .unwrap_or_default(),
            usage: life.usage,
            cause: life.fate.map(Into::into),
            connected: state.contacted,
            last_activity: state.last_activity,
        }
    };
    let ranks = jobs.all_ranks().map(rank_result).collect();
    let now = cx.now();
    let outcome = ResultRecord {
        version: VERSION,
        job: Some(plan.job.nspace.as_str().into()),
        exit_code: failure.map_or(code, |failure| failure.code()),
        exit_policy: Some(plan.spec.ending.exit.to_string()),
        on_failure: Some(plan.spec.ending.on_failure.as_str().into()),
        requeue: cx.supervisor.wants_requeue(),
        cause,
        start: time(std::time::Duration::ZERO),
        end: time(now),
        elapsed_ms: ms(now),
        apps: apps(plan),
        ranks,
    };
    cx.record(&StatusRecord::Result(Box::new(outcome)));
}

fn cause_record<'a>(cx: &LaunchContext, jobs: &'a Jobs, cause: &FailureCause) -> CauseRecord<'a> {
    let (code, signal) = match cause {
        FailureCause::RankFailed {
            end: RankEnd::Code(code),
            ..
        } => (Some(i32::from(*code)), None),
        FailureCause::RankFailed {
            end: RankEnd::Signal(signal),
            ..
        }
        | FailureCause::TerminatedBy { signal, .. }
        | FailureCause::Interrupted(signal) => (None, Some(*signal)),
        FailureCause::Aborted { code, .. } => (Some(*code), None),
        FailureCause::NotFinalized { .. }
        | FailureCause::NeverJoined { .. }
        | FailureCause::ExitedEarly { .. } => (Some(0), None),
        _ => (None, None),
    };
    let rank = cause.rank().and_then(|rank| jobs.look_up(rank));
    let last_activity = rank.map(|rank| cx.pmi_state(rank).last_activity);
    CauseRecord {
        kind: cause.consequence().name.into(),
        message: failure_line(cx, Some(cause)).map_or_else(
            || "no process reads the output".into(),
            |line| without_error_codes(&line).into_owned(),
        ),
        place: rank.map(|rank| place_of(jobs, rank)),
        pid: rank.and_then(|rank| cx.ranks.get(rank).pid),
        program: rank.map(|rank| {
            let (plan, rank) = jobs.plan_of(rank);
            program(plan, plan.app_of(rank))
        }),
        code,
        signal,
        last_activity,
        missing: match cause {
            FailureCause::FenceTimeout(late) => Some(Box::new(missing(cx, jobs, &late.absences))),
            _ => None,
        },
    }
}

fn missing<'a>(cx: &LaunchContext, jobs: &'a Jobs, absences: &MissingRanks) -> Missing<'a> {
    let hosts = |nodes: &[NodeId]| {
        let nodes = nodes
            .iter()
            .map(|node| jobs.first().node_name(*node).into());
        nodes.collect()
    };
    let ranks = absences.named.iter().filter_map(|absent| {
        let rank = jobs.look_up(absent.rank)?;
        Some(MissingRank {
            place: place_of(jobs, rank),
            pid: cx.ranks.get(rank).pid,
            last_activity: absent.last_request.clone(),
            idle_ms: absent.idle.map(ms),
        })
    });
    Missing {
        count: absences.ranks,
        ranks: ranks.collect(),
        nodes: hosts(&absences.nodes.named),
        silent: hosts(&absences.silent.named),
    }
}

fn place_of(jobs: &Jobs, process: KnownRank) -> RankLocation<'_> {
    let (plan, rank) = jobs.plan_of(process);
    let (node, host) = (process.node(), jobs.host_of(process));
    RankLocation::new(process.into(), node, host, plan.job.app_map.appnum_of(rank))
}
