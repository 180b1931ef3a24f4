//! Requests to a running launch from other commands of its user: `wireup stacks`, `wireup core`, `wireup top` and
//! `wireup ps --proctable`. And looks into the ranks that the launch takes by itself (`--stacks`).
//!
//! The launch listens at an abstract Unix address, which costs no file and vanishes with it.
//!
//! Rule: the kernel says who is at the other end (`SO_PEERCRED`, unix(7)): the user of the launch, and root.

pub(crate) mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use super::mpir::executable;
use super::{Controller, metrics as launch_metrics};
use crate::backend::inspection::{
    Dump, Inspected, InspectedRank, Inspection, InspectionError, Look,
};
use crate::backend::message::ToBackend;
use crate::failure::RunFailure;
use crate::plan::jobs::Plans;
use crate::report::stacks;
use crate::sys::channel::{Backlog, Channel, Received};
use crate::sys::poll::{Ready, Source, Token};
use message::{JobAnswer, JobQuery, ProcessRecord, REQUEST_MAX, Wish, address};
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId};
use wireup_core::job::outcome::Cause;
use wireup_core::metrics::{self, HttpAnswer};

/// Who may ask at the same time.
const CALLERS_MAX: usize = 16;

/// Bytes of a request that are read at a time.
const CHUNK: usize = 4096;

/// How long the hosts may take to answer: more than each gives its gdb for its ranks.
const LIMIT: Duration = Duration::from_secs(300);

/// The same for what a debugger is not needed for, and is asked for again and again.
const LIMIT_FOR_USAGE: Duration = Duration::from_secs(5);

/// The same for what the end of the job waits for.
const LIMIT_AT_END: Duration = Duration::from_secs(90);

/// The same for the dump of a rank, which the report of its end waits for.
const LIMIT_FOR_DUMP: Duration = Duration::from_secs(15);

/// The number of the connection at which those come that read metrics.
const METRICS: u32 = u32::MAX;

/// A connection that asks.
struct Caller {
    channel: Channel,
    /// It reads metrics, over HTTP.
    metrics: bool,
    request: Vec<u8>,
    /// The request has come.
    asked: bool,
    /// The answer is under way, and the connection ends with it.
    answered: bool,
}

/// Who wants to know what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asker {
    Caller(u32),
    /// The user, of ranks that do not come to a fence.
    LateFence,
    /// The user, at the end of the job's time, which waits for it.
    Timeout,
    /// The user, of ranks that have not come to a fence, which then fails the job.
    FailedFence,
    /// The launcher, of the rank whose end it reports.
    Dump,
}

/// A look into ranks that is under way.
struct Open {
    asker: Asker,
    awaited: BTreeSet<NodeId>,
    ranks: Vec<GlobalRank>,
    found: BTreeMap<GlobalRank, Result<Inspected, InspectionError>>,
    until: Duration,
}

/// See the module.
#[derive(Default)]
pub(super) struct Requests {
    listener: Option<OwnedFd>,
    metrics: Option<OwnedFd>,
    callers: BTreeMap<u32, Caller>,
    last_caller: u32,
    open: BTreeMap<u32, Open>,
    last_ticket: u32,
    /// The stacks at the end of the job's time have been asked for.
    timeout_seen: bool,
    /// A fence has failed; the job does when it is known where the ranks are.
    failure: Option<Cause>,
    failure_seen: bool,
    /// The rank whose dump was looked for, and the dump if there is one.
    dump: Option<(GlobalRank, Option<Dump>)>,
}

impl Requests {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.until).min()
    }

    /// The dump of a rank, or that there is none, once that is known.
    pub(super) fn dump_of(&self, rank: GlobalRank) -> Option<Option<&Dump>> {
        let (of, dump) = self.dump.as_ref()?;
        (*of == rank).then_some(dump.as_ref())
    }

    /// Whether the end of the job's time waits for what is found.
    pub(super) fn hold_timeout(&self) -> bool {
        self.open.values().any(|open| open.asker == Asker::Timeout)
    }
}

fn listener(job: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(&address(job))?)?;
    listen(&socket, CALLERS_MAX as i32)?;
    Ok(socket)
}

impl Controller {
    /// Takes requests from now on. Where that is not possible, the launch does without.
    pub(super) fn take_requests(&mut self) {
        let Ok(listener) = listener(self.plan.job.nspace.as_str()) else {
            return;
        };
        let token = Token::new(Source::Requests, 0);
        if self.backend.poll().add(&listener, token).is_ok() {
            self.requests.listener = Some(listener);
        }
    }

    /// Serves metrics from now on, if they are asked for.
    ///
    /// # Errors
    /// When they cannot be served there.
    pub(super) fn serve_metrics_at(&mut self, address: SocketAddr) -> Result<(), RunFailure> {
        let listener = launch_metrics::listen(address)?;
        let token = Token::new(Source::Requests, METRICS);
        let watched = self.backend.poll().add(&listener, token);
        watched.map_err(|errno| RunFailure::system("cannot wait for readers of metrics", errno))?;
        self.requests.metrics = Some(listener);
        Ok(())
    }

    pub(super) fn hear_request(&mut self, event: Ready) {
        match event.token.index {
            0 => self.accept_callers(false),
            METRICS => self.accept_callers(true),
            caller => self.hear_caller(caller, event),
        }
    }

    fn accept_callers(&mut self, metrics: bool) {
        while let Some(socket) = self.accept(metrics) {
            self.add_caller(socket, metrics);
        }
    }

    /// The next connection of somebody who may ask and has a place.
    fn accept(&self, metrics: bool) -> Option<OwnedFd> {
        let listener = match metrics {
            true => self.requests.metrics.as_ref()?,
            false => self.requests.listener.as_ref()?,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let own = rustix::process::geteuid();
        let others = self.requests.callers.values();
        let full = others.filter(|other| other.metrics == metrics).count() >= CALLERS_MAX;
        loop {
            let socket = accept_with(listener, flags).ok()?;
            // What may be read over the network of this machine is no secret of the user.
            let permitted = metrics
                || socket_peercred(&socket).is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
            if permitted && !full {
                return Some(socket);
            }
        }
    }

    fn add_caller(&mut self, socket: OwnedFd, metrics: bool) {
        // Tokens are not used again, so that nothing is heard of who was here before.
        self.requests.last_caller += 1;
        let number = self.requests.last_caller;
        let token = Token::new(Source::Requests, number);
        let channel = Channel::new(socket, token, Backlog::Flows, self.backend.poll());
        if let Ok(channel) = channel {
            let caller = Caller {
                channel,
                metrics,
                request: Vec::new(),
                asked: false,
                answered: false,
            };
            self.requests.callers.insert(number, caller);
        }
    }

    fn hear_caller(&mut self, number: u32, event: Ready) {
        let Some(caller) = self.requests.callers.get_mut(&number) else {
            return;
        };
        if event.writable {
            caller.channel.writable(self.backend.poll());
        }
        let mut gone = false;
        while event.readable && !gone {
            caller.request.reserve(CHUNK);
            match caller.channel.append(&mut caller.request) {
                Received::Bytes(_) => gone = caller.request.len() > REQUEST_MAX,
                Received::Nothing => break,
                Received::End => gone = true,
            }
        }
        let done = caller.answered && caller.channel.queued() == 0;
        if gone || done {
            return self.forget(number);
        }
        if caller.metrics && !caller.answered {
            let request = std::mem::take(&mut caller.request);
            return self.serve_metrics(number, request);
        }
        if !caller.asked && !caller.metrics && caller.request.ends_with(b"\n") {
            caller.asked = true;
            match serde_json::from_slice::<JobQuery>(&caller.request) {
                Ok(request) => self.requested(number, &request),
                Err(error) => self.answer(number, &JobAnswer::Refused(error.to_string())),
            }
        }
    }

    fn serve_metrics(&mut self, number: u32, request: Vec<u8>) {
        match metrics::answer(&request, || self.metrics_text()) {
            HttpAnswer::Answer(bytes) => self.send_answer(number, &bytes),
            HttpAnswer::More => {
                if let Some(caller) = self.requests.callers.get_mut(&number) {
                    caller.request = request;
                }
            }
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some(caller) = self.requests.callers.remove(&number) {
            let _ = self.backend.poll().remove(caller.channel.as_fd());
        }
    }

    fn answer(&mut self, number: u32, answer: &JobAnswer) {
        let mut line = serde_json::to_vec(answer).unwrap_or_default();
        line.push(b'\n');
        self.send_answer(number, &line);
    }

    fn send_answer(&mut self, number: u32, answer: &[u8]) {
        let Some(caller) = self.requests.callers.get_mut(&number) else {
            return;
        };
        caller.channel.send(answer, self.backend.poll());
        caller.answered = true;
        if caller.channel.queued() == 0 {
            self.forget(number);
        }
    }

    fn requested(&mut self, number: u32, request: &JobQuery) {
        let size = self.plan.job.ranks.size();
        if let Some(set) = &request.ranks
            && let Some(rank) = set.beyond(&(0..size))
        {
            let last = size - 1;
            let text = format!("there is no rank {rank}: the job has the ranks 0 to {last}");
            return self.answer(number, &JobAnswer::Refused(text));
        }
        let wanted = |process: &GlobalRank| match (&request.ranks, self.jobs.identity(*process)) {
            (None, _) => true,
            (Some(ranks), (JobNumber(0), rank)) => ranks.contains(rank),
            (Some(_), _) => false,
        };
        let all = (0..self.jobs.size()).map(GlobalRank);
        let ranks: Vec<GlobalRank> = all.filter(wanted).collect();
        let look = match &request.wish {
            Wish::Table => {
                let records = ranks.iter().map(|rank| self.record_of(*rank)).collect();
                return self.answer(number, &JobAnswer::Processes(records));
            }
            Wish::Stacks { python } => Look::Stacks { python: *python },
            Wish::Core { directory } => Look::Core(directory.clone()),
            Wish::Usage => Look::Usage,
        };
        let limit = match look {
            Look::Usage => LIMIT_FOR_USAGE,
            _ => LIMIT,
        };
        self.look_into(Asker::Caller(number), ranks, look, limit);
    }

    /// What is known of a process.
    fn record_of(&self, process: GlobalRank) -> ProcessRecord {
        let (plan, local) = self.jobs.plan_of(process);
        let (job, rank) = self.jobs.identity(process);
        let life = &self.lives[process.index()];
        let state = match (life.pid, life.is_over()) {
            (_, true) => "ended",
            (Some(_), false) => "running",
            (None, false) => "planned",
        };
        ProcessRecord {
            job: job.0,
            rank: rank.0,
            host: self.jobs.host_of(process).to_owned(),
            pid: life.pid,
            executable: executable(plan, local).to_string_lossy().into_owned(),
            state: state.to_owned(),
            found: None,
            error: None,
            usage: None,
        }
    }

    /// Has every host look into those of these ranks that run there.
    fn look_into(&mut self, asker: Asker, ranks: Vec<GlobalRank>, look: Look, limit: Duration) {
        let running = |rank: &GlobalRank| self.lives[rank.index()].runs();
        let ranks = ranks.into_iter().filter(running).collect();
        self.order_look(asker, ranks, look, limit);
    }

    fn order_look(&mut self, asker: Asker, ranks: Vec<GlobalRank>, look: Look, limit: Duration) {
        let across = self.plan.spec.layout.across_hosts();
        // One machine answers at once for all the nodes that it is.
        let homes = ranks.iter().map(|rank| match across {
            true => self.jobs.home_of(*rank),
            false => NodeId(0),
        });
        let awaited: BTreeSet<NodeId> = homes.collect();
        self.requests.last_ticket += 1;
        let ticket = self.requests.last_ticket;
        let open = Open {
            asker,
            awaited,
            ranks: ranks.clone(),
            found: BTreeMap::new(),
            until: self.now() + limit,
        };
        self.requests.open.insert(ticket, open);
        if ranks.is_empty() {
            return self.looked(ticket);
        }
        self.backend.order(ToBackend::Inspect(Inspection {
            ticket,
            ranks,
            look,
        }));
    }

    /// A host has answered.
    pub(super) fn inspected(&mut self, node: NodeId, ticket: u32, findings: Vec<InspectedRank>) {
        let Some(open) = self.requests.open.get_mut(&ticket) else {
            return;
        };
        let found = findings.into_iter().map(|one| (one.rank, one.result));
        open.found.extend(found);
        open.awaited.remove(&node);
        if open.awaited.is_empty() {
            self.looked(ticket);
        }
    }

    /// Gives up what takes too long.
    pub(super) fn look_at_requests(&mut self, now: Duration) {
        let open = self.requests.open.iter();
        let late = open.filter(|(_, open)| open.until <= now);
        for ticket in late.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.looked(ticket);
        }
    }

    /// All has been found that will be.
    fn looked(&mut self, ticket: u32) {
        let Some(open) = self.requests.open.remove(&ticket) else {
            return;
        };
        match open.asker {
            Asker::Caller(number) => {
                let records = self.records_of(open);
                self.answer(number, &JobAnswer::Processes(records));
            }
            Asker::Dump => {
                let dump = open.found.into_values().find_map(|found| match found {
                    Ok(Inspected::Dump(dump)) => Some(dump),
                    Ok(Inspected::Stack(_) | Inspected::Core(_) | Inspected::Usage(_)) | Err(_) => {
                        None
                    }
                });
                self.requests.dump = open.ranks.first().map(|rank| (*rank, dump));
            }
            Asker::LateFence | Asker::Timeout => self.show_stacks(open),
            Asker::FailedFence => {
                self.show_stacks(open);
                if let Some(cause) = self.requests.failure.take() {
                    self.fail_by(cause);
                }
            }
        }
    }

    fn records_of(&self, mut open: Open) -> Vec<ProcessRecord> {
        let records = open.ranks.iter().map(|rank| {
            let silent = Err(InspectionError::HostSilent);
            let found = open.found.remove(rank).unwrap_or(silent);
            self.record_of(*rank).with(found)
        });
        records.collect()
    }

    fn show_stacks(&mut self, open: Open) {
        let records = self.records_of(open);
        let seen: Vec<_> = records.iter().map(ProcessRecord::seen).collect();
        for line in stacks::lines(&seen) {
            self.tell(&line);
        }
    }

    /// Finds out what the kernel dumped of a rank. [`Requests::dump_of`] has the answer.
    pub(super) fn look_for_dump(&mut self, rank: GlobalRank) {
        self.order_look(Asker::Dump, vec![rank], Look::Dump, LIMIT_FOR_DUMP);
    }

    /// A fence has waited for long: shows where the ranks are, if the user wants that.
    pub(super) fn show_stacks_of_late_fence(&mut self) {
        if self.plan.spec.debug.stacks {
            let ranks = (0..self.jobs.size()).map(GlobalRank).collect();
            let look = Look::Stacks { python: false };
            self.look_into(Asker::LateFence, ranks, look, LIMIT);
        }
    }

    /// Whether the user wants to see where the ranks are before the job fails by this. Then it fails later.
    pub(super) fn shows_stacks_before(&mut self, cause: &Cause) -> bool {
        let late = matches!(cause, Cause::FenceTimeout(_));
        if !late || !self.plan.spec.debug.stacks || self.supervisor.is_ending() {
            return false;
        }
        if !std::mem::replace(&mut self.requests.failure_seen, true) {
            self.requests.failure = Some(cause.clone());
            let ranks = (0..self.jobs.size()).map(GlobalRank).collect();
            let look = Look::Stacks { python: false };
            self.look_into(Asker::FailedFence, ranks, look, LIMIT_AT_END);
            return true;
        }
        self.requests.failure.is_some()
    }

    /// Whether the job's time has come and its end waits until it is known where the ranks are.
    pub(super) fn waits_for_stacks(&mut self, now: Duration) -> bool {
        let spec = &self.plan.spec;
        let due = spec.ending.timeout.is_some_and(|timeout| now >= timeout);
        if spec.debug.stacks
            && due
            && !self.supervisor.is_ending()
            && !std::mem::replace(&mut self.requests.timeout_seen, true)
        {
            let ranks = (0..self.jobs.size()).map(GlobalRank).collect();
            let look = Look::Stacks { python: false };
            self.look_into(Asker::Timeout, ranks, look, LIMIT_AT_END);
        }
        self.requests.hold_timeout()
    }
}
