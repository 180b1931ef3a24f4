//! `wireup steps`: privileged helper, which forks steps and starts launchers for the agent.
//!
//! A fork of a waiting process needs neither exec nor a dynamic linker and copies little memory, so a step starts in a
//! fraction of the time. The agent, which is large, has threads and holds secrets, is not copied. If the agent has given
//! up root's rights, only this process has them, and [`rules`] limit their use.
//!
//! Rules: this process has one thread and no secrets, and only public data of users (ids, names, home directories), so that
//! a copy of it may belong to any user. A copy changes to its user before it reads a byte that the user could have
//! written. It is a child of the agent (`CLONE_PARENT`, clone(2)), which reaps it. This process never waits for a user or
//! for an account lookup: the copies do.

#[allow(unsafe_code, reason = "descriptors by number, in a copy of the helper")]
mod copy;
#[allow(unsafe_code, reason = "an ioctl that rustix lacks")]
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getppid, pidfd_send_signal};

use self::copy::{ProgramImage, TargetUser, become_launcher, become_step};
use super::step_cgroups::StepCgroups;
use super::step_start::take_link;
use crate::backend::cleanup_record;
use crate::plan::Variable;
use crate::plan::environment::split_entry;
use wireup_core::failure::CommandError;
use wireup_core::link::helper_protocol::{HelperPolicy, HelperReply, HelperRequest, ProcessOwner};
use wireup_core::link::{decode, encode};
use wireup_sys::cgroup::Cgroup;
use wireup_sys::descriptors;
use wireup_sys::fd_passing::{receive, send};
use wireup_sys::machine_slots::SlotLimits;
use wireup_sys::signals;
use wireup_sys::spawn::{ExitStatus, wait};

/// `CLONE_INTO_CGROUP` of the kernel's `linux/sched.h`.
const INTO_GROUP: u64 = 0x2_0000_0000;

/// Side of a fork.
enum ForkSide {
    /// Original process, with the copy's pid and pidfd.
    Server(i32, OwnedFd),
    Copy,
}

/// The purpose of a copy of this process.
enum ForkRole {
    Step {
        link: OwnedFd,
        says: OwnedFd,
        environment: Vec<Vec<u8>>,
    },
    Launcher(ProgramImage, Vec<OwnedFd>),
}

/// Outcome of a request.
enum RequestOutcome {
    Answer(HelperReply),
    /// The request is done, and these descriptors are its reply.
    Files(Vec<Option<File>>),
    /// A process must be started for this user.
    Make(TargetUser, ForkRole),
}

/// State of the helper, which its copies drop.
struct HelperServer {
    socket: OwnedFd,
    /// Executable of launchers, which is this one.
    program: CString,
    /// Whether the OOM killer spares the agent's service; this must not apply to users' processes.
    spared: bool,
    /// Rules for an agent that has given up its rights, and the socket of the account process.
    separated: Option<(HelperPolicy, OwnedFd)>,
    /// Pidfds of started processes that have not ended, by id.
    child_pidfds: BTreeMap<u64, OwnedFd>,
    last_id: u64,
    /// Socket cookies of the connections that were used for a step of root.
    used: BTreeSet<u64>,
}

fn broken(error: impl Into<io::Error>) -> CommandError {
    CommandError::system("the agent's socket", error.into())
}

/// Executes requests until the agent closes its socket, and returns `None` then. In each forked step it returns the link
/// and the environment.
///
/// # Errors
/// If no socket was passed, or it fails; in a step or launcher, if it cannot change to its user.
pub(super) fn serve() -> Result<Option<(OwnedFd, Vec<Variable>)>, CommandError> {
    let socket = take_link()?;
    signals::block_for_ranks();
    descriptors::reserve_low()
        .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
    // Every step needs these. Reading them here caches what does not change: the locations of the system's limits, and the
    // features of the processor, whose detection is slow in a virtual machine.
    SlotLimits::detect().quota();
    std::hint::black_box(memchr::memchr(0, &[]));
    let program = std::env::current_exe()
        .and_then(|path| CString::new(path.into_os_string().into_vec()).map_err(io::Error::other));
    let mut server = HelperServer {
        socket,
        program: program.map_err(|error| CommandError::system("cannot find myself", error))?,
        spared: copy::is_spared(),
        separated: None,
        child_pidfds: BTreeMap::new(),
        last_id: 0,
        used: BTreeSet::new(),
    };
    // Launches that ended without supervision while this machine had no agent.
    cleanup_record::collect_of_all_users(None);
    let agent = getppid().map(|pid| pid.as_raw_nonzero().get());
    let mut groups = StepCgroups::new();
    let mut maker = GroupMaker::default();
    loop {
        server.wait(&mut groups)?;
        let Some((body, descriptors)) = receive(&server.socket).map_err(broken)? else {
            server.leave();
            // Groups of ended steps; the next helper handles the rest.
            groups.sweep();
            // The launches of the agent share the content store, which is removed here.
            cleanup_record::collect_of_all_users(agent);
            return Ok(None);
        };
        let outcome = match decode(&body) {
            Ok(order) => server.carry_out(order, descriptors),
            Err(error) => RequestOutcome::refused(format!("invalid request: {error}")),
        };
        let (becomes, part) = match outcome {
            RequestOutcome::Answer(answer) => {
                server.answer(&answer, &[])?;
                continue;
            }
            RequestOutcome::Files(files) => {
                let there = files.iter().map(Option::is_some).collect();
                let files: Vec<_> = files.iter().flatten().map(AsFd::as_fd).collect();
                server.answer(&HelperReply::Files { presence: there }, &files)?;
                continue;
            }
            RequestOutcome::Make(becomes, part) => (becomes, part),
        };
        groups.sweep();
        let group = match part {
            ForkRole::Step { .. } => groups.make(),
            ForkRole::Launcher(..) => None,
        };
        match maker.fork(group.as_ref()) {
            Ok(ForkSide::Server(pid, pidfd)) => server.on_process_forked(pid, pidfd)?,
            Err(error) => server.answer(&failed(&error), &[])?,
            Ok(ForkSide::Copy) => {
                let (program, spared) = (server.program.clone(), server.spared);
                // A copy keeps no state of other processes and of the agent.
                drop((server, groups));
                return match part {
                    ForkRole::Step {
                        link,
                        says,
                        environment,
                    } => {
                        super::show_name()?;
                        become_step(becomes, &says, spared)?;
                        let entries = environment.iter();
                        let variables = entries.filter_map(|entry| split_entry(entry));
                        Ok(Some((link, variables.collect())))
                    }
                    ForkRole::Launcher(launcher, descriptors) => Err(become_launcher(
                        becomes,
                        &program,
                        &launcher,
                        descriptors,
                        spared,
                    )),
                };
            }
        }
    }
}

impl RequestOutcome {
    fn refused(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Answer(HelperReply::Refused { reason })
    }

    fn from_result(result: io::Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::Answer(failed(&error)))
    }
}

fn failed(error: &io::Error) -> HelperReply {
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    HelperReply::Failed { errno }
}

impl HelperServer {
    /// Waits for a request. Meanwhile removes ended processes, and the groups of earlier helpers that end.
    fn wait(&mut self, groups: &mut StepCgroups) -> Result<(), CommandError> {
        loop {
            let accounts = self.separated.iter().map(|(_, accounts)| accounts);
            let links = std::iter::once(&self.socket).chain(accounts);
            let known = links.clone().count();
            let children = self.child_pidfds.values();
            let all = links
                .chain(children)
                .map(AsFd::as_fd)
                .chain(groups.makers());
            let mut all: Vec<_> = all
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            retry_on_intr(|| poll(&mut all, None))
                .map_err(|errno| CommandError::system("cannot wait for orders", errno))?;
            let ready: Vec<bool> = all.iter().map(|fd| !fd.revents().is_empty()).collect();
            let (children, makers) = ready[known..].split_at(self.child_pidfds.len());
            if makers.contains(&true) {
                groups.sweep();
            }
            let mut ended = children.iter();
            self.child_pidfds
                .retain(|_, _| !ended.next().is_some_and(|ended| *ended));
            // The account process never writes to this socket: readiness means its end.
            if known > 1 && ready[1] {
                let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                return Err(CommandError::system(
                    "the process that knows accounts",
                    error,
                ));
            }
            if ready[0] {
                return Ok(());
            }
        }
    }

    fn answer(
        &self,
        answer: &HelperReply,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), CommandError> {
        send(&self.socket, &encode(answer), descriptors).map_err(broken)
    }

    fn on_process_forked(&mut self, pid: i32, pidfd: OwnedFd) -> Result<(), CommandError> {
        self.last_id += 1;
        let id = self.last_id;
        self.answer(&HelperReply::Process { pid, id }, &[pidfd.as_fd()])?;
        self.child_pidfds.insert(id, pidfd);
        Ok(())
    }

    fn carry_out(&mut self, order: HelperRequest, mut descriptors: Vec<OwnedFd>) -> RequestOutcome {
        match order {
            HelperRequest::Separate(rules) => match (descriptors.pop(), &self.separated) {
                (Some(accounts), None) if descriptors.is_empty() => {
                    self.separated = Some((rules, accounts));
                    RequestOutcome::Answer(HelperReply::Done)
                }
                _ => RequestOutcome::refused("the agent has set its rules already"),
            },
            HelperRequest::Step { owner, environment } => {
                let mut descriptors = descriptors.into_iter();
                let (Some(link), Some(says)) = (descriptors.next(), descriptors.next()) else {
                    return RequestOutcome::refused("step request without a link");
                };
                let part = ForkRole::Step {
                    link,
                    says,
                    environment,
                };
                let kind = rules::ProcessKind::Step {
                    caller: descriptors.next(),
                };
                self.make(owner, &kind, part)
            }
            HelperRequest::Launcher {
                owner,
                shown,
                environment,
            } => match ProgramImage::new(&self.program, shown, environment) {
                Some(program) if descriptors.len() == copy::DESCRIPTORS => {
                    let part = ForkRole::Launcher(program, descriptors);
                    self.make(owner, &rules::ProcessKind::Launcher, part)
                }
                _ => RequestOutcome::refused(
                    "invalid launcher request: an argument contains NUL, or descriptors are missing",
                ),
            },
            HelperRequest::Signal { id, signal } => {
                let Some(signal) = Signal::from_named_raw(signal) else {
                    return RequestOutcome::refused(format!("unknown signal {signal}"));
                };
                // A process that has ended needs no signal.
                if let Some(pidfd) = self.child_pidfds.get(&id) {
                    let _ = pidfd_send_signal(pidfd, signal);
                }
                RequestOutcome::Answer(HelperReply::Done)
            }
            HelperRequest::Credentials => {
                let open = |path: &Vec<u8>| {
                    // Does not wait if the path is a FIFO.
                    let mut options = OpenOptions::new();
                    options.read(true).custom_flags(libc::O_NONBLOCK);
                    match options.open(OsStr::from_bytes(path)) {
                        Ok(file) => Ok(Some(file)),
                        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                        Err(error) => Err(error),
                    }
                };
                let rules = self.separated.iter().map(|(rules, _)| rules);
                let files = rules.flat_map(|rules| &rules.credentials).map(open);
                RequestOutcome::from_result(
                    files.collect::<io::Result<_>>().map(RequestOutcome::Files),
                )
            }
        }
    }

    /// Returns the process to start, if that is permitted.
    fn make(
        &mut self,
        owner: ProcessOwner,
        kind: &rules::ProcessKind,
        part: ForkRole,
    ) -> RequestOutcome {
        let becomes = match (&self.separated, owner) {
            (None, ProcessOwner::Own) => TargetUser::Nobody,
            (None, ProcessOwner::Numbers(account)) => TargetUser::Known(account),
            (Some((rules, accounts)), ProcessOwner::User { uid, gid }) => {
                if let Err(reason) = rules::check(rules, uid, kind, &mut self.used) {
                    return RequestOutcome::refused(reason.to_string());
                }
                let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
                let reply = pipe.and_then(|(reply, to)| {
                    send(accounts, &encode(&uid), &[to.as_fd()])?;
                    Ok(reply)
                });
                match reply {
                    Ok(reply) => TargetUser::Pending { uid, gid, reply },
                    Err(error) => return RequestOutcome::Answer(failed(&error)),
                }
            }
            (None, ProcessOwner::User { .. }) => {
                return RequestOutcome::refused("the agent has not set its rules");
            }
            (Some(_), ProcessOwner::Own | ProcessOwner::Numbers(_)) => {
                return RequestOutcome::refused("an agent without rights must name a user");
            }
        };
        RequestOutcome::Make(becomes, part)
    }

    /// Removes the files that root has created for the agent, which has ended.
    fn leave(&self) {
        let Some((rules, _)) = &self.separated else {
            return;
        };
        let path = OsStr::from_bytes(&rules.socket.path);
        let found = fs::symlink_metadata(path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == rules::identity(&rules.socket)) {
            // The next agent cleans up the rest.
            let _ = fs::remove_file(path);
        }
    }
}

/// Forks this process into control groups.
#[derive(Default)]
struct GroupMaker {
    /// Parent group of the last trial, and whether a copy can be created in a group below it. The kernel may kill such a copy at
    /// once (see `sys::spawn::into_group`), and this process cannot wait for a copy that is the agent's child.
    tried: Option<(PathBuf, bool)>,
}

impl GroupMaker {
    /// Forks this process, into the group if it can be entered.
    fn fork(&mut self, group: Option<&Cgroup>) -> io::Result<ForkSide> {
        let direct = group.filter(|group| self.can_make_in(group));
        let side = fork(direct)?;
        if let (ForkSide::Copy, None, Some(group)) = (&side, direct, group) {
            group.enter();
        }
        Ok(side)
    }

    fn can_make_in(&mut self, group: &Cgroup) -> bool {
        let own = group.path().parent().unwrap_or_else(|| group.path());
        match &self.tried {
            Some((tried, can)) if tried == own => *can,
            _ => {
                let can = try_in(group);
                self.tried = Some((own.to_owned(), can));
                can
            }
        }
    }
}

/// Whether a copy that is created in a group survives.
fn try_in(group: &Cgroup) -> bool {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: the copy calls one function, which ends it.
    match unsafe { clone_into(group, libc::CLONE_PIDFD, libc::SIGCHLD, &mut pidfd) } {
        // SAFETY: as above.
        0 => unsafe { libc::_exit(0) },
        1.. => {
            // SAFETY: the kernel has just opened it for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            wait(&pidfd) == Ok(ExitStatus::Code(0))
        }
        _ => false,
    }
}

/// Creates a copy of this process in a group, and returns the result of the system call.
///
/// # Safety
/// The process has one thread, or its copy calls only what may be called there.
unsafe fn clone_into(
    group: &Cgroup,
    flags: libc::c_int,
    exit_signal: libc::c_int,
    pidfd: &mut libc::c_int,
) -> libc::c_long {
    // SAFETY: these are numbers and null pointers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags as u64 | INTO_GROUP;
    arguments.exit_signal = exit_signal as u64;
    arguments.pidfd = std::ptr::from_mut(pidfd) as usize as u64;
    arguments.cgroup = group.as_fd().as_raw_fd() as u64;
    // SAFETY: the caller's promise. No stack is given, so the copy continues with its own; the kernel writes the pidfd
    // before the call returns.
    unsafe {
        let size = size_of::<libc::clone_args>();
        libc::syscall(libc::SYS_clone3, std::ptr::from_mut(&mut arguments), size)
    }
}

/// Forks this process into a child of its parent, in the group if it can be entered.
fn fork(group: Option<&Cgroup>) -> io::Result<ForkSide> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD;
    // SAFETY: the process has one thread, so its copy may run any code, with its own stack; the kernel writes the pidfd
    // before the call returns.
    let pid = unsafe {
        let into = group.map(|group| clone_into(group, flags, 0, &mut pidfd));
        match into {
            Some(pid) if pid >= 0 => pid,
            _ => {
                let place: *mut libc::c_int = &mut pidfd;
                libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, place, 0, 0)
            }
        }
    };
    match pid {
        0 => Ok(ForkSide::Copy),
        1.. => {
            // SAFETY: the kernel has just opened it for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(ForkSide::Server(pid as i32, pidfd))
        }
        _ => Err(io::Error::last_os_error()),
    }
}
