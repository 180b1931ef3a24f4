//! Starts the ranks of a job from several threads at once.
//!
//! Each thread makes a rank's descriptors, starts its process and passes both to the loop through
//! a channel. Between clone and exec a thread sleeps, so one per core keeps the cores busy: the loop
//! is woken, by an eventfd, when the last rank is started, and looks by itself every [`PACE`] before.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use zeroize::Zeroize as _;

use wireup_core::job::ids::GlobalRank;
use wireup_sys::cgroup::Cgroup;
use wireup_sys::mounts::MountView;
use wireup_sys::namespace::NodeNamespaces;
use wireup_sys::spawn::{Child, ChildCommand, ProcessSettings, ProcessSpawner, SpawnStage};

mod threads;

pub use threads::StarterThreads;

/// Descriptor number of the PMI socket in a rank.
pub const PMI_FD: i32 = 3;

/// Interval at which a caller that waits for the starting threads checks their results.
pub const PACE: Duration = Duration::from_millis(5);

/// Ranks for each thread up to which the caller's is one of them.
const FEW: usize = 4;

/// Name of a starting thread.
pub const THREAD: &CStr = c"start";

/// What all ranks of one application context share.
#[derive(Debug)]
pub struct AppExec {
    /// The program of its ranks.
    pub executed: ExecSpec,
    /// Environment common to the app's ranks.
    pub env: Vec<CString>,
    /// Directory to start in.
    pub cwd: Option<CString>,
    /// Settings of its ranks that the kernel keeps.
    pub settings: ProcessSettings,
}

/// What one process executes.
#[derive(Debug)]
pub struct ExecSpec {
    /// Executable, as execve takes it.
    pub program: CString,
    pub argv: Vec<CString>,
}

/// Where a rank's standard input comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StdinPlan {
    /// Nothing to read.
    Empty,
    /// The launcher's own descriptor.
    Inherit,
    /// A pipe the launcher feeds.
    Pipe,
}

/// Where a rank's output goes.
#[derive(Debug)]
pub enum OutputPlan {
    /// Pipes the launcher reads.
    Pipes,
    /// Its own terminal, for standard input too.
    Terminal {
        /// The launcher's end, which does not block.
        master: OwnedFd,
        slave: OwnedFd,
    },
    /// A file each for standard output and error, or one for both.
    Files {
        /// Standard output.
        out: File,
        /// Standard error; the same file as `out` when absent.
        err: Option<File>,
    },
}

/// The order to start one rank.
#[derive(Debug)]
pub struct RankPlan {
    pub process: GlobalRank,
    /// Index of its node into [`StartShared::node_env`] and the namespaces.
    pub node: usize,
    /// Index into [`StartShared::apps`].
    pub app: usize,
    /// The command that is executed in place of the app's program.
    pub wrapper: Option<ExecSpec>,
    /// Variables of this rank alone.
    pub env: Vec<CString>,
    /// The CPUs that it is bound to, 64 in each word; empty if it is not.
    pub cpus: Vec<u64>,
    /// Policy of its memory and the NUMA nodes of that, 64 in each word.
    pub memory: Option<(i32, Vec<u64>)>,
    /// Standard input.
    pub stdin: StdinPlan,
    /// Standard output and error.
    pub output: OutputPlan,
    /// Whether it gets a PMI socket.
    pub pmi: bool,
    /// Whether it is stopped before it begins its program.
    pub stopped: bool,
}

/// What all starting threads share.
#[derive(Debug)]
pub struct StartShared {
    /// Application contexts.
    pub apps: Vec<AppExec>,
    /// Environment of all ranks, after the app's own.
    pub env: Vec<CString>,
    /// Environment of the ranks of each node, after that.
    pub node_env: Vec<Vec<CString>>,
    /// What the ranks see, if they run in an image.
    pub view: Option<Arc<MountView>>,
    /// Namespaces of the virtual nodes.
    pub namespaces: Option<Arc<NodeNamespaces>>,
    /// The launch's control group here, if it has one.
    pub group: Option<Arc<Cgroup>>,
    /// What their score for the out-of-memory killer is set to, if it is.
    pub oom_score: Option<CString>,
    /// Signals to put back to their default.
    pub reset_signals: Vec<i32>,
    /// `/dev/null`.
    pub null: OwnedFd,
    /// Standard input of the launcher.
    pub stdin: OwnedFd,
    /// Lowest number for a rank's descriptor, if there are many ranks: the copies of them would take the ranks that
    /// are started last longer than their programs do.
    pub kept_from: Option<RawFd>,
}

impl Drop for StartShared {
    /// Among the variables of a node are keys.
    fn drop(&mut self) {
        for entry in self.node_env.iter_mut().flatten() {
            std::mem::take(entry).into_bytes_with_nul().zeroize();
        }
    }
}

/// A started rank with the launcher's ends of its descriptors.
#[derive(Debug)]
pub struct StartedProcess {
    pub child: Child,
    /// Its PMI socket, non-blocking.
    pub pmi: Option<OwnedFd>,
    /// Where its standard output arrives, non-blocking.
    pub stdout: Option<OwnedFd>,
    /// Where its standard error arrives, non-blocking.
    pub stderr: Option<OwnedFd>,
    /// Where its standard input is written.
    pub stdin: Option<OwnedFd>,
}

/// Why a rank was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankStartError {
    /// The job failed before its turn came.
    Skipped,
    /// Descriptors could not be made.
    Descriptors(Errno),
    /// The process could not be started.
    Spawn(SpawnStage, Errno),
}

/// Attempts to execute a program that is open for writing, and the time in between. One that has
/// just come with its job is busy for as long as a process that was cloned meanwhile, with a copy
/// of every descriptor, takes until it executes its own.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// What a starting thread reports: one per planned rank.
pub type StartResult = (GlobalRank, Result<StartedProcess, RankStartError>);

/// What the starting threads have to do together.
#[derive(Debug)]
struct StartQueue {
    shared: Arc<StartShared>,
    plans: Vec<Mutex<Option<RankPlan>>>,
    /// The next plan.
    next: AtomicUsize,
    /// Plans that were not reported.
    pending_count: AtomicUsize,
    stop: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl StartQueue {
    /// Takes plans as long as there are any, or until it is late.
    fn carry_out(&self, results: &Sender<StartResult>, until: Option<Instant>) {
        let mut spawner = ProcessSpawner::new();
        while until.is_none_or(|until| Instant::now() < until) {
            // Only assigns indices; the plans themselves are behind their locks.
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = self.plans.get(index) else {
                return;
            };
            let plan = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(plan) = plan else { return };
            let rank = plan.process;
            let result = if self.stop.load(Ordering::Acquire) {
                Err(RankStartError::Skipped)
            } else {
                start_one(&mut spawner, &self.shared, plan)
            };
            // The loop outlives the threads; if it is gone the result is not needed.
            let _ = results.send((rank, result));
            if self.pending_count.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            }
        }
    }
}

/// What the starting threads do.
#[derive(Debug)]
pub struct RankStarter {
    work: Arc<StartQueue>,
}

impl RankStarter {
    /// Starts all `plans` with this number of threads, one of which is the caller's if there are
    /// few ranks. For every plan exactly one [`StartResult`] is sent, and after the last the eventfd
    /// `wake` is written.
    ///
    /// # Errors
    /// When not a single thread can be started.
    pub fn start(
        shared: Arc<StartShared>,
        plans: Vec<RankPlan>,
        pool: &mut StarterThreads,
        threads: usize,
        results: &Sender<StartResult>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<Self> {
        let count = threads.clamp(1, plans.len().max(1));
        // A thread costs as much as half a rank, which is too much for a few. With many the caller has
        // to be free for what those do that run already.
        let helps = plans.len() == 1 || count > 1 && plans.len() <= FEW * count;
        let work = StartQueue {
            shared,
            pending_count: AtomicUsize::new(plans.len()),
            plans: plans
                .into_iter()
                .map(|plan| Mutex::new(Some(plan)))
                .collect(),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wake: Arc::clone(wake),
        };
        let work = Arc::new(work);
        let shared = (Arc::clone(&work), results.clone());
        let task = move || shared.0.carry_out(&shared.1, None);
        pool.share(count - usize::from(helps), task)?;
        if helps {
            // Without another thread to continue it stays to the end.
            let until = (count > 1).then(|| Instant::now() + PACE);
            work.carry_out(results, until);
        }
        Ok(Self { work })
    }

    /// Ranks whose turn has not come are reported as skipped instead of being started.
    pub fn stop(&self) {
        self.work.stop.store(true, Ordering::Release);
    }
}

/// Both ends of a pipe the launcher reads (first) and the rank writes.
fn output_pipe(kept_from: Option<RawFd>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    Ok((move_descriptor(read, kept_from), write))
}

/// A descriptor out of the way of those that children get. At the limit of descriptors it stays where it
/// is, which costs time and nothing else.
fn move_descriptor(fd: OwnedFd, from: Option<RawFd>) -> OwnedFd {
    let moved = from.and_then(|from| fcntl_dupfd_cloexec(&fd, from).ok());
    moved.unwrap_or(fd)
}

fn start_one(
    spawner: &mut ProcessSpawner,
    shared: &StartShared,
    plan: RankPlan,
) -> Result<StartedProcess, RankStartError> {
    let app = &shared.apps[plan.app];
    let executed = plan.wrapper.as_ref().unwrap_or(&app.executed);
    let kept_from = shared.kept_from;
    let pmi = plan
        .pmi
        .then(|| pmi_socket(kept_from))
        .transpose()
        .map_err(RankStartError::Descriptors)?;
    let stdin_pipe = (plan.stdin == StdinPlan::Pipe)
        .then(|| pipe_with(PipeFlags::CLOEXEC))
        .transpose()
        .map_err(RankStartError::Descriptors)?;
    let pipes = match plan.output {
        OutputPlan::Pipes => Some((
            output_pipe(kept_from).map_err(RankStartError::Descriptors)?,
            output_pipe(kept_from).map_err(RankStartError::Descriptors)?,
        )),
        OutputPlan::Files { .. } | OutputPlan::Terminal { .. } => None,
    };
    let stdin: BorrowedFd<'_> = match (plan.stdin, &stdin_pipe) {
        (StdinPlan::Pipe, Some((read, _))) => read.as_fd(),
        (StdinPlan::Inherit, _) => shared.stdin.as_fd(),
        _ => shared.null.as_fd(),
    };
    let (out, err): (BorrowedFd<'_>, BorrowedFd<'_>) = match (&pipes, &plan.output) {
        (Some(((_, out), (_, err))), _) => (out.as_fd(), err.as_fd()),
        (None, OutputPlan::Files { out, err }) => (
            out.as_fd(),
            err.as_ref().map_or_else(|| out.as_fd(), AsFd::as_fd),
        ),
        (None, OutputPlan::Terminal { slave, .. }) => (slave.as_fd(), slave.as_fd()),
        (None, OutputPlan::Pipes) => (shared.null.as_fd(), shared.null.as_fd()),
    };
    let (stdin, terminal) = match &plan.output {
        OutputPlan::Terminal { slave, .. } => (slave.as_fd(), true),
        OutputPlan::Pipes | OutputPlan::Files { .. } => (stdin, false),
    };
    let mut descriptors = vec![(stdin, 0), (out, 1), (err, 2)];
    if let Some((_, theirs)) = &pmi {
        descriptors.push((theirs.as_fd(), PMI_FD));
    }
    let empty = Vec::new();
    let node_env = shared.node_env.get(plan.node).unwrap_or(&empty);
    let command = ChildCommand {
        program: &executed.program,
        argv: &executed.argv,
        env: &[&app.env, &shared.env, node_env, &plan.env],
        cwd: app.cwd.as_deref(),
        descriptors: &descriptors,
        terminal,
        settings: &app.settings,
        cpus: &plan.cpus,
        memory: plan
            .memory
            .as_ref()
            .map(|(policy, nodes)| (*policy, &nodes[..])),
        reset_signals: &shared.reset_signals,
        group: shared.group.as_ref().map(|group| group.as_fd()),
        view: shared.view.as_deref(),
        namespaces: shared
            .namespaces
            .as_ref()
            .map(|ns| ns.namespaces_of_node(plan.node)),
        oom_score: shared.oom_score.as_deref(),
        crowded: kept_from.is_some(),
        stopped: plan.stopped,
    };
    let mut tries = 0;
    let child = loop {
        match spawner.spawn(&command) {
            Err(error) if error.errno == Errno::TXTBSY && tries < BUSY_TRIES => {
                tries += 1;
                // There is no event for it.
                let _ = poll(&mut [], Some(&BUSY_PAUSE));
            }
            other => break other,
        }
    };
    let mut child = child.map_err(|error| RankStartError::Spawn(error.step, error.errno))?;
    child.pidfd = move_descriptor(child.pidfd, kept_from);
    let (stdout, stderr) = match (pipes, plan.output) {
        (Some(((out, _), (err, _))), _) => (Some(out), Some(err)),
        (None, OutputPlan::Terminal { master, .. }) => (Some(master), None),
        (None, _) => (None, None),
    };
    Ok(StartedProcess {
        child,
        pmi: pmi.map(|(ours, _)| ours),
        stdout,
        stderr,
        stdin: stdin_pipe.map(|(_, write)| move_descriptor(write, kept_from)),
    })
}

/// Our end (non-blocking, it names the process that sends) and the rank's of a PMI connection.
fn pmi_socket(kept_from: Option<RawFd>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    set_socket_passcred(&ours, true)?;
    Ok((move_descriptor(ours, kept_from), theirs))
}

#[cfg(test)]
mod tests;
