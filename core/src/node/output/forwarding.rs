//! Output of jobs that tools have spawned: they get it from its first byte on, and the launcher does not.
//!
//! Rule: libpmix knows of the subscription when it has passed on the answer to the spawn, which the shim reports;
//! what comes before is kept. Source: `pmix_server_spcbfunc` of 4.2.2 and 5.0.11.
//! Rule: a tool is notified of the end of a job after the job's output.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{STREAMS, Stream};
use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, JobNumber, NodeId, Nspace};
use crate::job::spawn::SpawnedByTool;
use crate::node::event::Notification;
use crate::node::{JobContext, NodeCore, OutputMessage};
use crate::pmix::value::{Channels, Proc, Status, Text};

/// How long a tool is not told the end of a job if processes that it left hold its output open.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What a job has printed before libpmix knows who gets it.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The tool is being told the job's name.
    pub(super) announced: bool,
    pub(super) pieces: Vec<(NodeId, GlobalRank, Channels, Vec<u8>)>,
}

/// What the tool that has spawned a job gets of it.
fn streams_of(tool: &SpawnedByTool) -> Vec<Channels> {
    let streams = STREAMS.into_iter().zip([tool.stdout, tool.stderr]);
    let wanted = streams.filter(|(_, wanted)| *wanted);
    wanted.map(|(stream, _)| stream).collect()
}

impl NodeCore {
    /// A job was added. If a tool has spawned it and gets its output, it does so from the beginning.
    pub(in super::super) fn forward_job(&mut self, job: JobNumber) {
        let context = Arc::clone(self.cx.job(job));
        let Some(tool) = &context.tool else {
            return;
        };
        let streams = streams_of(tool);
        let here = context.ranks.ranks_on(self.cx.node);
        let here = here.filter_map(|rank| self.cx.local(self.cx.jobs.global(job, rank)));
        let here: BTreeSet<Stream> = here
            .flat_map(|at| streams.iter().map(move |stream| (at, stream.0)))
            .collect();
        if !here.is_empty() {
            let reader = self.outputs.readers.entry(tool.node).or_default();
            reader.wants.extend(&here);
            reader.known.extend(&here);
            reader.claims.extend(here);
        }
        if tool.node == self.cx.node && !streams.is_empty() {
            self.outputs.pulls += 1;
            self.await_output(self.cx.jobs.processes_of(job), &streams);
            self.outputs.asked.extend(context.hosting());
            self.outputs.early.insert(job, Early::default());
            if !self.tools.has(&tool.name) {
                self.unclaim(&[job]);
                self.pull_ended();
            }
        }
    }

    pub(super) fn await_output(
        &mut self,
        processes: impl Iterator<Item = GlobalRank>,
        streams: &[Channels],
    ) {
        let awaited = processes.flat_map(|p| streams.iter().map(move |s| (p, s.0)));
        self.outputs.awaited.extend(awaited);
    }

    /// Whether output is on its way to processes and tools of this node.
    pub(in super::super) fn awaits_output(&self) -> bool {
        self.outputs.is_asking()
            && !(self.outputs.awaited.is_empty() && self.outputs.delivering.is_empty())
    }

    /// Whether the event is the end of a job whose output a tool here has not got yet; it is kept then.
    pub(in super::super) fn keeps_end(&mut self, event: &Notification) -> bool {
        let now = self.cx.now;
        let nspace = std::str::from_utf8(event.source.nspace.as_bytes());
        let job = nspace.ok().and_then(|nspace| self.cx.job_named(nspace));
        let Some((job, member)) = job.filter(|_| event.code == Status::EVENT_JOB_END) else {
            return false;
        };
        let tool = member.context.tool.as_ref();
        let keeps = tool.is_some_and(|tool| tool.node == self.cx.node) && self.awaits_job(job);
        if keeps {
            let until = now + LINGER;
            self.outputs.ends.insert(job, (until, event.clone()));
        }
        keeps
    }

    pub(super) fn awaits_job(&self, job: JobNumber) -> bool {
        let mut awaited = self.outputs.awaited.iter();
        awaited.any(|(process, _)| self.cx.jobs.find(*process).is_some_and(|(of, _)| of == job))
    }

    /// Tells the ends of jobs that need not wait any more; all of them if `all` is set.
    pub(in super::super) fn tell_kept_ends(&mut self, all: bool) {
        let now = self.cx.now;
        let due = |core: &Self, job: JobNumber, until: Moment| {
            all || now >= until || !core.awaits_job(job)
        };
        let kept = self.outputs.ends.iter();
        let due: Vec<JobNumber> = kept
            .filter(|(job, (until, _))| due(self, **job, *until))
            .map(|(job, _)| *job)
            .collect();
        for job in due {
            if let Some((_, event)) = self.outputs.ends.remove(&job) {
                self.cx.notify_now(&event);
            }
        }
    }

    /// A tool is gone: what its jobs print goes to the launcher again.
    pub(in super::super) fn forward_no_more(&mut self, name: &Proc) {
        let of_tool = |context: &JobContext| {
            let tool = context.tool.as_ref();
            tool.is_some_and(|tool| Proc::new(&tool.name.nspace, tool.name.rank) == *name)
        };
        let jobs = self.cx.running_jobs().filter(|(_, job)| of_tool(job));
        let jobs: Vec<JobNumber> = jobs.map(|(job, _)| job).collect();
        self.unclaim(&jobs);
    }

    pub(super) fn unclaim(&mut self, jobs: &[JobNumber]) {
        for job in jobs {
            let processes: Vec<GlobalRank> = self.cx.jobs.processes_of(*job).collect();
            for to in self.cx.job(*job).hosting() {
                let processes = processes.clone();
                self.send_output(to, OutputMessage::Unclaimed { processes });
            }
        }
    }

    /// A job was started for a process here, which is being told its name.
    pub(in super::super) fn job_announced(&mut self, nspace: &Nspace) {
        let job = self.cx.job_named(nspace.as_str()).map(|(job, _)| job);
        if let Some(early) = job.and_then(|job| self.outputs.early.get_mut(&job)) {
            early.announced = true;
        }
    }

    /// libpmix passes on what a job prints, if its spawner wanted that.
    pub(in super::super) fn job_subscribed(&mut self, nspace: &Text) {
        let nspace = std::str::from_utf8(nspace.as_bytes());
        let job = nspace.ok().and_then(|nspace| self.cx.job_named(nspace));
        let job = job.map(|(job, _)| job);
        let early = job.and_then(|job| self.outputs.early.remove(&job));
        for piece in early.unwrap_or_default().pieces {
            self.deliver(piece);
        }
    }

    /// All ranks of a job have ended: if it was never announced, no tool gets what it printed.
    pub(in super::super) fn early_over(&mut self, job: JobNumber) {
        let early = self.outputs.early.get(&job);
        if early.is_some_and(|early| !early.announced) {
            self.drop_early(job);
        }
    }

    pub(super) fn drop_early(&mut self, job: JobNumber) {
        let early = self.outputs.early.remove(&job).unwrap_or_default();
        for (from, process, channel, data) in early.pieces {
            self.taken((from, process, channel, data.len()));
        }
    }
}
