//! Starts the ranks of a job from several threads at once.
//!
//! Each thread creates a rank's descriptors, starts its process and passes both to the caller's event loop through
//! a channel. Between clone and exec a thread sleeps, so one thread per core keeps the cores busy. An eventfd wakes
//! the event loop when the last rank is started; before that it reads the channel every [`PACE`].

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::set_socket_passcred;
use rustix::pipe::{PipeFlags, pipe_with};
use zeroize::Zeroize as _;

use wireup_core::job::ids::GlobalRank;
use wireup_sys::cgroup::Cgroup;
use wireup_sys::mounts::MountView;
use wireup_sys::namespace::NodeNamespaces;
use wireup_sys::poll::pause;
use wireup_sys::spawn::{Child, ChildCommand, ProcessSettings, ProcessSpawner, SpawnStage};
use wireup_sys::unix_socket;

mod threads;

pub use threads::StarterThreads;

/// Descriptor number of the PMI socket in a rank.
pub const PMI_FD: i32 = 3;

/// Interval at which a caller that waits for the starting threads checks their results.
pub const PACE: Duration = Duration::from_millis(5);

/// Number of ranks per thread up to which the caller's thread starts ranks too.
const FEW: usize = 4;

/// Name of a starting thread.
pub const THREAD: &CStr = c"start";

/// Arguments of execve and settings that all ranks of one application context share.
#[derive(Debug)]
pub struct AppExec {
    /// Program of the ranks.
    pub executed: ExecSpec,
    /// Environment common to the app's ranks.
    pub env: Vec<CString>,
    /// Working directory; the launcher's or step daemon's if absent.
    pub cwd: Option<CString>,
    /// Limits and other settings that the kernel keeps for each rank.
    pub settings: ProcessSettings,
}

/// Program and arguments of one process, as execve takes them.
#[derive(Debug)]
pub struct ExecSpec {
    pub program: CString,
    pub argv: Vec<CString>,
}

/// Source of a rank's standard input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StdinPlan {
    /// The rank reads `/dev/null`.
    Empty,
    /// The rank gets the launcher's own descriptor.
    Inherit,
    /// The rank reads a pipe that the launcher writes.
    Pipe,
}

/// Destination of a rank's standard output and standard error.
#[derive(Debug)]
pub enum OutputPlan {
    /// Two pipes that the launcher reads.
    Pipes,
    /// A terminal of the rank, which is also its standard input.
    Terminal {
        /// The launcher's end, non-blocking.
        master: OwnedFd,
        slave: OwnedFd,
    },
    /// A file each for standard output and standard error, or one for both.
    Files {
        out: File,
        /// File of standard error; `out` if absent.
        err: Option<File>,
    },
}

/// Command to start one rank.
#[derive(Debug)]
pub struct RankPlan {
    pub process: GlobalRank,
    /// Index of the rank's node in [`StartShared::node_env`] and [`StartShared::namespaces`].
    pub node: usize,
    /// Index of the rank's application context in [`StartShared::apps`].
    pub app: usize,
    /// Command that is executed in place of the app's program.
    pub wrapper: Option<ExecSpec>,
    /// Variables of this rank alone.
    pub env: Vec<CString>,
    /// CPUs to which the rank is bound, 64 in each word; empty if it is not bound.
    pub cpus: Vec<u64>,
    /// Memory policy of the rank and the NUMA nodes of the policy, 64 in each word.
    pub memory: Option<(i32, Vec<u64>)>,
    pub stdin: StdinPlan,
    pub output: OutputPlan,
    /// Whether the rank gets a PMI socket.
    pub pmi: bool,
    /// Whether the rank is stopped before it executes its program.
    pub stopped: bool,
}

/// Settings of a job's ranks that all starting threads share.
#[derive(Debug)]
pub struct StartShared {
    pub apps: Vec<AppExec>,
    /// Environment of all ranks; follows that of the app.
    pub env: Vec<CString>,
    /// Environment of the ranks of each node; follows `env`.
    pub node_env: Vec<Vec<CString>>,
    /// Mounts of the image in which the ranks run, if they do.
    pub view: Option<Arc<MountView>>,
    /// Namespaces of the virtual nodes.
    pub namespaces: Option<Arc<NodeNamespaces>>,
    /// Control group of the launch on this host, if it has one.
    pub group: Option<Arc<Cgroup>>,
    /// Value for the `oom_score_adj` of the ranks; `None` leaves it unchanged.
    pub oom_score: Option<CString>,
    /// Signals whose default action is restored.
    pub reset_signals: Vec<i32>,
    /// Descriptor of `/dev/null`, for standard input without a source.
    pub null: OwnedFd,
    /// Standard input of the launcher.
    pub stdin: OwnedFd,
    /// Lowest number for the launcher's ends of a rank's descriptors, if there are many ranks. Child processes get no copies
    /// of descriptors from this number on: to close them would take the last ranks longer than their programs run.
    pub lowest_rank_fd: Option<RawFd>,
}

impl Drop for StartShared {
    /// Overwrites the variables of the nodes, which contain keys.
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
    /// Launcher's end of the PMI socket, non-blocking.
    pub pmi: Option<OwnedFd>,
    /// Read end of standard output, or master of the terminal; non-blocking.
    pub stdout: Option<OwnedFd>,
    /// Read end of standard error, non-blocking.
    pub stderr: Option<OwnedFd>,
    /// Write end of standard input.
    pub stdin: Option<OwnedFd>,
}

/// Failure to start a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankStartError {
    /// The job failed before a thread took the rank's plan.
    Skipped,
    /// The descriptors of the rank could not be created.
    Descriptors(Errno),
    /// The process could not be started.
    Spawn(SpawnStage, Errno),
}

/// Attempts to execute a program that is open for writing. A program that was just staged is busy while a process that was
/// cloned in the meantime, with a copy of every descriptor, has not yet executed its own program.
const BUSY_TRIES: u32 = 20;
/// Pause between two of these attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Report of a starting thread; one for each planned rank.
pub type StartResult = (GlobalRank, Result<StartedProcess, RankStartError>);

/// Plans that the starting threads of one call execute together.
#[derive(Debug)]
struct StartQueue {
    shared: Arc<StartShared>,
    plans: Vec<Mutex<Option<RankPlan>>>,
    /// Index of the plan that is taken next.
    next: AtomicUsize,
    /// Number of plans without a report.
    pending_count: AtomicUsize,
    stop: AtomicBool,
    wake: Arc<OwnedFd>,
}

impl StartQueue {
    /// Starts the ranks of plans until none is left, or until the deadline.
    fn carry_out(&self, results: &Sender<StartResult>, deadline: Option<Instant>) {
        let mut spawner = ProcessSpawner::default();
        while deadline.is_none_or(|deadline| Instant::now() < deadline) {
            // Relaxed suffices to assign indices; locks protect the plans.
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
            // The receiver outlives the threads; without it the result is not needed.
            let _ = results.send((rank, result));
            if self.pending_count.fetch_sub(1, Ordering::AcqRel) == 1 {
                let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            }
        }
    }
}

/// Running start of ranks; [`stop`](Self::stop) cancels those that are not started yet.
#[derive(Debug)]
pub struct RankStarter {
    work: Arc<StartQueue>,
}

impl RankStarter {
    /// Starts the ranks of all `plans` with this number of threads; the caller's is one of them if there are
    /// few ranks. The threads send exactly one [`StartResult`] for each plan, and write the eventfd `wake` after the last.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        shared: Arc<StartShared>,
        plans: Vec<RankPlan>,
        pool: &mut StarterThreads,
        threads: usize,
        results: &Sender<StartResult>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<Self> {
        let count = threads.clamp(1, plans.len().max(1));
        // A thread costs as much as the start of half a rank, too much for a few ranks. With many ranks the caller must be
        // free to serve those that run already.
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
            // With no other thread, the caller's starts all ranks.
            let deadline = (count > 1).then(|| Instant::now() + PACE);
            work.carry_out(results, deadline);
        }
        Ok(Self { work })
    }

    /// Makes the threads report the remaining ranks as skipped instead of starting them.
    pub fn stop(&self) {
        self.work.stop.store(true, Ordering::Release);
    }
}

/// Creates a pipe; returns the launcher's read end, non-blocking, then the rank's write end.
fn output_pipe(lowest_rank_fd: Option<RawFd>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setfl(&read, OFlags::NONBLOCK)?;
    Ok((move_descriptor(read, lowest_rank_fd), write))
}

/// Moves a descriptor to a number from `from` on. At the limit of descriptors it keeps its number, which only costs time.
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
    let lowest_rank_fd = shared.lowest_rank_fd;
    let pmi = plan
        .pmi
        .then(|| pmi_socket(lowest_rank_fd))
        .transpose()
        .map_err(RankStartError::Descriptors)?;
    let stdin_pipe = (plan.stdin == StdinPlan::Pipe)
        .then(|| pipe_with(PipeFlags::CLOEXEC))
        .transpose()
        .map_err(RankStartError::Descriptors)?;
    let pipes = match plan.output {
        OutputPlan::Pipes => Some((
            output_pipe(lowest_rank_fd).map_err(RankStartError::Descriptors)?,
            output_pipe(lowest_rank_fd).map_err(RankStartError::Descriptors)?,
        )),
        OutputPlan::Files { .. } | OutputPlan::Terminal { .. } => None,
    };
    let stdin: BorrowedFd<'_> = match (plan.stdin, &stdin_pipe) {
        (StdinPlan::Pipe, Some((read, _))) => read.as_fd(),
        (StdinPlan::Inherit, _) => shared.stdin.as_fd(),
        _ => shared.null.as_fd(),
    };
    let (stdin, out, err) = match (&pipes, &plan.output) {
        (Some(((_, out), (_, err))), _) => (stdin, out.as_fd(), err.as_fd()),
        (None, OutputPlan::Files { out, err }) => {
            (stdin, out.as_fd(), err.as_ref().unwrap_or(out).as_fd())
        }
        (None, OutputPlan::Terminal { slave, .. }) => (slave.as_fd(), slave.as_fd(), slave.as_fd()),
        (None, OutputPlan::Pipes) => (stdin, shared.null.as_fd(), shared.null.as_fd()),
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
        terminal: matches!(plan.output, OutputPlan::Terminal { .. }),
        settings: Some(&app.settings),
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
        crowded: lowest_rank_fd.is_some(),
        stopped: plan.stopped,
    };
    let mut tries = 0;
    let child = loop {
        match spawner.spawn(&command) {
            Err(error) if error.errno == Errno::TXTBSY && tries < BUSY_TRIES => {
                tries += 1;
                // No event reports the end of this state.
                pause(BUSY_PAUSE);
            }
            other => break other,
        }
    };
    let mut child = child.map_err(|error| RankStartError::Spawn(error.step, error.errno))?;
    child.pidfd = move_descriptor(child.pidfd, lowest_rank_fd);
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
        stdin: stdin_pipe.map(|(_, write)| move_descriptor(write, lowest_rank_fd)),
    })
}

/// Creates a PMI connection; returns wireup's end, which is non-blocking and receives the pid of each sender, then the rank's.
fn pmi_socket(lowest_rank_fd: Option<RawFd>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) = unix_socket::pair()?;
    set_socket_passcred(&ours, true)?;
    Ok((move_descriptor(ours, lowest_rank_fd), theirs))
}

#[cfg(test)]
mod tests;
