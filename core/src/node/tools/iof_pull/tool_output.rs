//! Output of jobs that tools have spawned: the tools get it from its first byte on, and the launcher does not.
//!
//! Rule: libpmix knows the subscription when it has passed on the reply to the spawn, which the shim reports; earlier
//! output is kept. Source: `pmix_server_spcbfunc` of 4.2.2 and 5.0.11.
//! Rule: a tool is notified of the end of a job after the job's output.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{IofPulls, LocalStream, OutputPiece, STREAMS};
use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, JobIndex, Nspace};
use crate::job::spawn::ToolRequester;
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::node::event::Notification;
use crate::node::service_messages::IofPullMessage;
use crate::pmix::value::{Channels, PmixProc, Status, Text};

/// Delay of the notification about a job's end while remaining processes of the job hold its output open.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Output of a job from before libpmix knows its recipient.
#[derive(Debug, Default)]
pub(super) struct EarlyOutput {
    /// Whether the tool is being notified of the job's name.
    pub(super) announced: bool,
    pub(super) pieces: Vec<OutputPiece>,
}

/// Returns the streams of a spawned job that its tool gets.
fn streams_of(tool: &ToolRequester) -> Vec<Channels> {
    let streams = STREAMS.into_iter().zip([tool.stdout, tool.stderr]);
    let streams = streams.filter(|(_, is_forwarded)| *is_forwarded);
    streams.map(|(stream, _)| stream).collect()
}

impl IofPulls {
    /// Subscribes the tool that has spawned a new job to its output, from the beginning.
    pub(in crate::node) fn job_added(&mut self, job: JobIndex, cx: &mut NodeContext) {
        let context = Arc::clone(cx.job(job));
        let Some(tool) = context.requester.tool() else {
            return;
        };
        let streams = streams_of(tool);
        let here = context.process_map.ranks_on(cx.node);
        let here = here.filter_map(|rank| cx.local(cx.jobs.global(job, rank)));
        let here: BTreeSet<LocalStream> = here
            .flat_map(|at| streams.iter().map(move |stream| (at, stream.0)))
            .collect();
        if !here.is_empty() {
            let reader = self.readers.entry(tool.node).or_default();
            reader.wants.extend(&here);
            reader.requested_streams.extend(&here);
            reader.claims.extend(here);
        }
        if tool.node == cx.node && !streams.is_empty() {
            self.pulls += 1;
            self.await_output(cx.jobs.processes_of(job), &streams);
            self.subscribed_nodes.extend(context.nodes_with_ranks());
            self.early_output.insert(job, EarlyOutput::default());
            if !cx.tools.is_attached(&tool.name) {
                self.unclaim(&[job], cx);
                self.unsubscribe_ended(cx);
            }
        }
    }

    pub(super) fn await_output(
        &mut self,
        processes: impl Iterator<Item = GlobalRank>,
        streams: &[Channels],
    ) {
        let awaited = processes.flat_map(|p| streams.iter().map(move |s| (p, s.0)));
        self.awaited.extend(awaited);
    }

    /// Whether output is on its way to processes and tools of this node.
    pub(in crate::node) fn is_awaited(&self) -> bool {
        self.is_asking() && !(self.awaited.is_empty() && self.delivering.is_empty())
    }

    /// Whether the event is the end of a job whose output a tool here has not got yet; it is kept then.
    pub(in crate::node) fn keeps_end(
        &mut self,
        event: &Notification,
        cx: &mut NodeContext,
    ) -> bool {
        if event.code != Status::EVENT_JOB_END {
            return false;
        }
        let Some((job, member)) = cx.find_pmix_job(&event.source.nspace) else {
            return false;
        };
        let tool = member.context.requester.tool();
        let keeps = tool.is_some_and(|tool| tool.node == cx.node) && self.awaits_job(job, cx);
        if keeps {
            let until = cx.now + LINGER;
            self.ends.insert(job, (until, event.clone()));
        }
        keeps
    }

    pub(super) fn awaits_job(&self, job: JobIndex, cx: &NodeContext) -> bool {
        let mut awaited = self.awaited.iter();
        awaited.any(|(process, _)| cx.jobs.find(*process).is_some_and(|(of, _)| of == job))
    }

    /// Notifies the tools of job ends that no longer wait for output; of all ends if `all` is set.
    pub(in crate::node) fn notify_due_ends(&mut self, all: bool, cx: &mut NodeContext) {
        let is_due =
            |job: JobIndex, until: Moment| all || cx.now >= until || !self.awaits_job(job, cx);
        let due = self.ends.iter();
        let due = due.filter(|(job, (until, _))| is_due(**job, *until));
        let due: Vec<JobIndex> = due.map(|(job, _)| *job).collect();
        for job in due {
            if let Some((_, event)) = self.ends.remove(&job) {
                cx.notify_now(&event);
            }
        }
    }

    /// Gives the output of a tool's jobs to the launcher again, after the end of the tool.
    pub(in crate::node) fn tool_gone(&mut self, name: &PmixProc, cx: &mut NodeContext) {
        let of_tool = |context: &JobContext| {
            let tool = context.requester.tool();
            tool.is_some_and(|tool| PmixProc::from(&tool.name) == *name)
        };
        let jobs = cx.running_jobs().filter(|(_, job)| of_tool(job));
        let jobs: Vec<JobIndex> = jobs.map(|(job, _)| job).collect();
        self.unclaim(&jobs, cx);
    }

    pub(super) fn unclaim(&mut self, jobs: &[JobIndex], cx: &mut NodeContext) {
        for job in jobs {
            let processes: Vec<GlobalRank> = cx.jobs.processes_of(*job).collect();
            for to in cx.job(*job).nodes_with_ranks() {
                let processes = processes.clone();
                self.send(to, IofPullMessage::Unclaimed { processes }, cx);
            }
        }
    }

    /// Notes that the reply to the spawn of this job, which has its name, is on its way.
    pub(in crate::node) fn job_announced(&mut self, nspace: &Nspace, cx: &mut NodeContext) {
        let job = cx.find_job(nspace.as_str()).map(|(job, _)| job);
        if let Some(early) = job.and_then(|job| self.early_output.get_mut(&job)) {
            early.announced = true;
        }
    }

    /// Delivers the early output of a job to which libpmix has subscribed its tool.
    pub(in crate::node) fn job_subscribed(&mut self, nspace: &Text, cx: &mut NodeContext) {
        let job = cx.find_pmix_job(nspace).map(|(job, _)| job);
        let early = job.and_then(|job| self.early_output.remove(&job));
        for piece in early.unwrap_or_default().pieces {
            self.deliver(piece, cx);
        }
    }

    /// Drops the early output of an ended job whose tool was never notified of it.
    pub(in crate::node) fn drop_unannounced(&mut self, job: JobIndex, cx: &mut NodeContext) {
        let early = self.early_output.get(&job);
        if early.is_some_and(|early| !early.announced) {
            self.drop_early_output(job, cx);
        }
    }

    pub(super) fn drop_early_output(&mut self, job: JobIndex, cx: &mut NodeContext) {
        let early = self.early_output.remove(&job).unwrap_or_default();
        for piece in early.pieces {
            self.acknowledge_output(piece.delivery, cx);
        }
    }
}
