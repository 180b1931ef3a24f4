//! Requests to a running launch from other commands of its user: `wireup stacks`, `wireup core`, `wireup top`,
//! `wireup resize` and `wireup ps --proctable`. Requests that need the hosts are in [`inspections`], with those of the launch itself (`--stacks`).
//!
//! The launch listens at an abstract Unix address, which needs no file and disappears with the launch.
//!
//! Rule: the kernel identifies the peer (`SO_PEERCRED`, unix(7)): the user of the launch and root are served.

mod inspections;
pub(crate) mod job_query;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use super::debugger_table::executable;
use super::launch_context::LaunchContext;
use super::launch_hosts::request_resize;
use super::launch_metrics::{self, LaunchCounters};
use super::launch_service::LaunchService;
use super::resize_request::{ResizeResult, ResizeSource};
use crate::backend::inspection::InspectionKind;
use crate::plan::planned_jobs::Plans;
use inspections::{InspectionRequester, InspectionRequests};
use job_query::{JobAnswer, JobQuery, JobQueryKind, ProcessRecord, REQUEST_MAX, address};
use wireup_core::failure::CommandError;
use wireup_core::job::job_table::KnownRank;
use wireup_core::metrics::{self, HttpAnswer};
use wireup_sys::channel::{BacklogPolicy, Channel, ReadResult};
use wireup_sys::poll::{PollEvent, PollSource, PollToken};

/// Maximum number of connections of commands, and of readers of metrics.
const CALLERS_MAX: usize = 16;

/// Bytes of a request that are read at a time.
const CHUNK: usize = 4096;

/// Token index of the listener for readers of metrics.
const METRICS: u32 = u32::MAX;

/// Connection of a command or of a reader of metrics.
struct QueryConnection {
    channel: Channel,
    /// Whether the peer reads metrics, over HTTP.
    metrics: bool,
    request: Vec<u8>,
    /// Whether the whole request was received.
    request_received: bool,
    /// Whether the peer accepts results before the answer.
    progress: bool,
    /// Whether the answer was sent; the connection is closed after it.
    answered: bool,
}

/// Requests of other commands, and readers of metrics.
#[derive(Default)]
pub(super) struct QueryServer {
    listener: Option<OwnedFd>,
    metrics: Option<OwnedFd>,
    callers: BTreeMap<u32, QueryConnection>,
    last_caller: u32,
    looks: InspectionRequests,
}

fn listener(job: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(&address(job))?)?;
    listen(&socket, CALLERS_MAX as i32)?;
    Ok(socket)
}

/// Encodes an answer as one line.
fn line(answer: &JobAnswer) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    line
}

impl LaunchService for QueryServer {
    fn next_deadline(&self) -> Option<Duration> {
        self.looks.next_deadline()
    }

    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        self.expire(cx, now);
    }
}

impl QueryServer {
    /// Starts to accept requests. If that is not possible, the launch runs without.
    pub(super) fn take_requests(&mut self, cx: &mut LaunchContext) {
        let Ok(listener) = listener(cx.plan.job.nspace.as_str()) else {
            return;
        };
        let token = PollToken::new(PollSource::Requests, 0);
        if cx.events.poll.add(&listener, token).is_ok() {
            self.listener = Some(listener);
        }
    }

    /// Starts to serve metrics at an address.
    ///
    /// # Errors
    /// [`CommandError`] if metrics cannot be served there.
    pub(super) fn serve_metrics_at(
        &mut self,
        cx: &mut LaunchContext,
        address: SocketAddr,
    ) -> Result<(), CommandError> {
        let listener = launch_metrics::listen(address)?;
        let token = PollToken::new(PollSource::Requests, METRICS);
        let watched = cx.events.poll.add(&listener, token);
        watched
            .map_err(|errno| CommandError::system("cannot wait for readers of metrics", errno))?;
        self.metrics = Some(listener);
        Ok(())
    }

    pub(super) fn on_ready(
        &mut self,
        cx: &mut LaunchContext,
        counters: &LaunchCounters,
        event: PollEvent,
    ) {
        match event.token.index {
            0 => self.accept_callers(cx, false),
            METRICS => self.accept_callers(cx, true),
            caller => self.on_readable(cx, counters, caller, event),
        }
    }

    fn accept_callers(&mut self, cx: &mut LaunchContext, metrics: bool) {
        while let Some(socket) = self.accept(metrics) {
            if metrics {
                self.make_place_for_metrics(cx);
            }
            self.add_caller(cx, socket, metrics);
        }
    }

    /// Closes the oldest connection of a reader of metrics if there are too many: any user may connect, and send nothing.
    fn make_place_for_metrics(&mut self, cx: &mut LaunchContext) {
        let readers = self.callers.iter();
        let mut readers = readers.filter(|(_, caller)| caller.metrics);
        let oldest = readers.next().map(|(number, _)| *number);
        if readers.count() + 1 >= CALLERS_MAX
            && let Some(oldest) = oldest
        {
            self.close(cx, oldest);
        }
    }

    /// Accepts the next connection of a permitted user for which there is room.
    fn accept(&self, metrics: bool) -> Option<OwnedFd> {
        let listener = match metrics {
            true => self.metrics.as_ref()?,
            false => self.listener.as_ref()?,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let own = rustix::process::geteuid();
        let others = self.callers.values();
        let full = others.filter(|other| other.metrics == metrics).count() >= CALLERS_MAX;
        loop {
            let socket = accept_with(listener, flags).ok()?;
            // Metrics are not secret: any user of this machine can read them over the network.
            let permitted = metrics
                || socket_peercred(&socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
            if permitted && (metrics || !full) {
                return Some(socket);
            }
        }
    }

    fn add_caller(&mut self, cx: &mut LaunchContext, socket: OwnedFd, metrics: bool) {
        // Numbers are not reused, so that an event of a closed connection does not reach another one.
        self.last_caller += 1;
        let number = self.last_caller;
        let token = PollToken::new(PollSource::Requests, number);
        let channel = Channel::new(socket, token, BacklogPolicy::Flows, &cx.events.poll);
        if let Ok(channel) = channel {
            let caller = QueryConnection {
                channel,
                metrics,
                request: Vec::new(),
                request_received: false,
                progress: false,
                answered: false,
            };
            self.callers.insert(number, caller);
        }
    }

    fn on_readable(
        &mut self,
        cx: &mut LaunchContext,
        counters: &LaunchCounters,
        number: u32,
        event: PollEvent,
    ) {
        let Some(caller) = self.callers.get_mut(&number) else {
            return;
        };
        if event.writable {
            caller.channel.writable(&cx.events.poll);
        }
        let mut gone = false;
        while event.readable && !gone {
            caller.request.reserve(CHUNK);
            match caller.channel.append(&mut caller.request) {
                ReadResult::Bytes(_) => gone = caller.request.len() > REQUEST_MAX,
                ReadResult::Nothing => break,
                ReadResult::End => gone = true,
            }
        }
        let done = caller.answered && caller.channel.queued() == 0;
        if gone || done {
            return self.close(cx, number);
        }
        if caller.metrics && !caller.answered {
            let request = std::mem::take(&mut caller.request);
            return self.serve_metrics(cx, counters, number, request);
        }
        if !caller.request_received && !caller.metrics && caller.request.ends_with(b"\n") {
            caller.request_received = true;
            match serde_json::from_slice::<JobQuery>(&caller.request) {
                Ok(request) => self.on_request(cx, number, &request),
                Err(error) => self.answer(cx, number, &JobAnswer::Refused(error.to_string())),
            }
        }
    }

    fn serve_metrics(
        &mut self,
        cx: &mut LaunchContext,
        counters: &LaunchCounters,
        number: u32,
        request: Vec<u8>,
    ) {
        match metrics::answer(&request, || counters.text(cx)) {
            HttpAnswer::Answer(bytes) => self.send_answer(cx, number, &bytes),
            HttpAnswer::More => {
                if let Some(caller) = self.callers.get_mut(&number) {
                    caller.request = request;
                }
            }
        }
    }

    fn close(&mut self, cx: &mut LaunchContext, number: u32) {
        if let Some(caller) = self.callers.remove(&number) {
            let _ = cx.events.poll.remove(caller.channel.as_fd());
        }
    }

    /// Replies to a caller that has requested a change of the hosts.
    pub(super) fn answer_resize(
        &mut self,
        cx: &mut LaunchContext,
        number: u32,
        result: ResizeResult,
    ) {
        let answer = match result {
            Ok(report) => JobAnswer::Resized(report),
            Err(failure) => JobAnswer::Refused(failure.text),
        };
        self.answer(cx, number, &answer);
    }

    fn answer(&mut self, cx: &mut LaunchContext, number: u32, answer: &JobAnswer) {
        self.send_answer(cx, number, &line(answer));
    }

    /// Sends a line that other lines follow.
    fn send_progress(&mut self, cx: &mut LaunchContext, number: u32, answer: &JobAnswer) {
        if let Some(caller) = self.callers.get_mut(&number) {
            caller.channel.send(&line(answer), &cx.events.poll);
        }
    }

    /// Whether a caller accepts results before the answer.
    fn takes_progress(&self, number: u32) -> bool {
        let caller = self.callers.get(&number);
        caller.is_some_and(|caller| caller.progress)
    }

    fn send_answer(&mut self, cx: &mut LaunchContext, number: u32, answer: &[u8]) {
        let Some(caller) = self.callers.get_mut(&number) else {
            return;
        };
        caller.channel.send(answer, &cx.events.poll);
        caller.answered = true;
        if caller.channel.queued() == 0 {
            self.close(cx, number);
        }
    }

    fn on_request(&mut self, cx: &mut LaunchContext, number: u32, request: &JobQuery) {
        let size = cx.plan.job.process_map.size();
        if let Some(set) = &request.ranks
            && let Some(rank) = set.beyond(&(0..size))
        {
            let last = size - 1;
            let text = format!("no rank {rank}: the job has ranks 0 to {last}");
            return self.answer(cx, number, &JobAnswer::Refused(text));
        }
        let is_requested = |process: &KnownRank| match &request.ranks {
            None => true,
            Some(ranks) => process.is_in_initial_job() && ranks.contains(process.rank()),
        };
        let ranks: Vec<KnownRank> = cx.jobs.all_ranks().filter(is_requested).collect();
        if let Some(caller) = self.callers.get_mut(&number) {
            caller.progress = request.progress;
        }
        let look = match &request.wish {
            JobQueryKind::Table => {
                let records = ranks.iter().map(|rank| record_of(cx, *rank)).collect();
                return self.answer(cx, number, &JobAnswer::Processes(records));
            }
            JobQueryKind::Stacks { python, path } => InspectionKind::Stacks {
                python: *python,
                path: path.clone(),
            },
            JobQueryKind::Core { directory } => InspectionKind::Core(directory.clone()),
            JobQueryKind::Usage => InspectionKind::Usage,
            JobQueryKind::Resize(command) => {
                self.send_progress(cx, number, &JobAnswer::Taken(0));
                let source = ResizeSource::Caller(number);
                return request_resize(cx, source, command);
            }
        };
        self.inspect_ranks(cx, InspectionRequester::Caller(number), ranks, look);
    }
}

/// Returns the record of a process, without results of an inspection.
fn record_of(cx: &LaunchContext, process: KnownRank) -> ProcessRecord {
    let (plan, rank) = cx.jobs.plan_of(process);
    let life = cx.ranks.get(process);
    let state = match (life.pid, life.is_over()) {
        (_, true) => "ended",
        (Some(_), false) => "running",
        (None, false) => "planned",
    };
    ProcessRecord {
        job: process.job().0,
        rank: rank.0,
        host: cx.jobs.host_of(process).to_owned(),
        pid: life.pid,
        executable: executable(plan, rank).to_string_lossy().into_owned(),
        state: state.to_owned(),
        found: None,
        error: None,
        note: None,
        usage: None,
    }
}
