//! Turns a copy of the helper into a step or launcher of a user.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};
use std::{fs, ptr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use wireup_core::failure::CommandError;
use wireup_core::link::decode;
use wireup_core::link::helper_protocol::{FoundAccount, UserIds};
use wireup_core::link::scheduled_launcher::{COMMAND, JOB};
use wireup_sys::fd_passing::DESCRIPTORS_MAX;
use wireup_sys::privileges::drop_root;
use wireup_sys::{close_range, out_of_memory, signals};

/// Time limit of a lookup in the account database.
const LOOK_UP: Duration = Duration::from_secs(60);

/// Number of descriptors of a launcher: the standard ones, that of its orders, and that of its job.
pub(super) const DESCRIPTORS: usize = JOB as usize + 1;

/// The user of a copy.
pub(super) enum TargetUser {
    /// The helper's own user: the ids do not change.
    Nobody,
    /// User with known ids.
    Known(UserIds),
    /// User that is being looked up, and the group to use if that is not the user's primary one.
    Pending {
        uid: u32,
        gid: Option<u32>,
        reply: OwnedFd,
    },
}

/// Program and arguments as C strings.
pub(super) struct ProgramImage {
    words: Vec<CString>,
    variables: Vec<CString>,
}

impl ProgramImage {
    /// Creates the image; `None` if an argument contains NUL.
    pub(super) fn new(
        program: &CStr,
        arguments: Vec<Vec<u8>>,
        environment: Vec<Vec<u8>>,
    ) -> Option<Self> {
        let texts = |all: Vec<Vec<u8>>| all.into_iter().map(|text| CString::new(text).ok());
        let first = [Some(program.to_owned()), CString::new(COMMAND).ok()];
        let words = first.into_iter().chain(texts(arguments));
        Some(Self {
            words: words.collect::<Option<_>>()?,
            variables: texts(environment).collect::<Option<_>>()?,
        })
    }
}

/// Whether the OOM killer spares this process, and so its copies.
pub(super) fn is_spared() -> bool {
    out_of_memory::own_score().is_some_and(|score| score < 0)
}

fn failed(what: &'static str) -> impl Fn(Errno) -> CommandError {
    move |errno| CommandError::system(what, errno)
}

/// Makes the process a step of its user.
pub(super) fn become_step(
    becomes: TargetUser,
    says: &OwnedFd,
    spared: bool,
) -> Result<(), CommandError> {
    // The descriptor for error messages is first.
    dup2_stdout(says).map_err(failed("standard output"))?;
    dup2_stderr(says).map_err(failed("standard error"))?;
    let account = account(becomes)?;
    become_user_s(account, spared)
}

/// Makes the process a launcher of its user; returns only if that fails.
pub(super) fn become_launcher(
    becomes: TargetUser,
    program: &CStr,
    launcher: &ProgramImage,
    descriptors: Vec<OwnedFd>,
    spared: bool,
) -> CommandError {
    let become_it = || {
        // The descriptor for error messages is first.
        dup2_stderr(&descriptors[2]).map_err(failed("standard error"))?;
        // The lookup needs a descriptor that is closed below.
        let account = account(becomes)?;
        place(descriptors)?;
        become_user_s(account, spared)
    };
    if let Err(failure) = become_it() {
        return failure;
    }
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        let all = list.iter().map(|text| text.as_ptr());
        all.chain([ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&launcher.words), pointers(&launcher.variables));
    signals::unblock_for_ranks();
    // SAFETY: the strings are NUL-terminated, the lists end with a null pointer, and all outlive the call. Signals that
    // this program ignores are reset for the other one.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
    }
    let what = format!("cannot execute {}", program.to_string_lossy());
    CommandError::system(what, io::Error::last_os_error())
}

/// Moves descriptors to the numbers from 0 on, and closes all others.
fn place(descriptors: Vec<OwnedFd>) -> Result<(), CommandError> {
    // The descriptors are first moved above all target numbers.
    let above = DESCRIPTORS_MAX as RawFd + 1;
    let moved = descriptors
        .into_iter()
        .map(|fd| fcntl_dupfd_cloexec(fd, above));
    let moved: Vec<OwnedFd> = moved
        .collect::<Result<_, _>>()
        .map_err(failed("descriptors"))?;
    let wrong = || CommandError::system("descriptors", io::Error::last_os_error());
    for (to, from) in (0..).zip(&moved) {
        // SAFETY: the source is open, and nothing owns the target numbers: descriptors of this program with these numbers
        // are never closed.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(wrong());
        }
    }
    let first = moved.len() as libc::c_uint;
    drop(moved);
    // SAFETY: nothing refers to these descriptors any more.
    match unsafe { close_range::close(first, libc::c_uint::MAX) } {
        0 => Ok(()),
        _ => Err(wrong()),
    }
}

/// Returns the ids to which the process changes, if it does.
fn account(becomes: TargetUser) -> Result<Option<UserIds>, CommandError> {
    match becomes {
        TargetUser::Nobody => Ok(None),
        TargetUser::Known(account) => Ok(Some(account)),
        TargetUser::Pending { uid, gid, reply } => found(uid, gid, reply).map(Some),
    }
}

/// Changes the process to its user, in its own session. All work that needs root must be done before.
fn become_user_s(account: Option<UserIds>, spared: bool) -> Result<(), CommandError> {
    setsid().map_err(failed("cannot create a session"))?;
    let Some(account) = account else {
        return Ok(());
    };
    prepare(spared);
    drop_root(account.uid, account.gid, &account.groups).map_err(|(part, errno)| {
        let error = io::Error::from_raw_os_error(errno);
        let what = format!("cannot become user id {}: {}", account.uid, part.words());
        CommandError::system(what, error)
    })?;
    // Its memory contains no secrets, so the user may inspect it as after an exec.
    set_dumpable_behavior(DumpableBehavior::Dumpable)
        .map_err(failed("cannot make the process dumpable"))
}

/// Prepares a process with root's rights before it changes to its user. It has read nothing that the user could have
/// written.
fn prepare(spared: bool) {
    if spared {
        // The OOM killer spares the service, but not users' programs.
        let _ = fs::write(OsStr::from_bytes(out_of_memory::SCORE.to_bytes()), "0");
    }
}

/// Receives the ids of a user that is being looked up.
fn found(uid: u32, gid: Option<u32>, reply: OwnedFd) -> Result<UserIds, CommandError> {
    let wrong = |error: io::Error| CommandError::system(format!("user id {uid}"), error);
    let text = read(reply).map_err(wrong)?;
    let mut account = match decode(&text).map_err(|error| wrong(io::Error::other(error)))? {
        FoundAccount::Account(account) => account,
        FoundAccount::Nothing { reason } => return Err(wrong(io::Error::other(reason))),
    };
    if account.uid != uid {
        return Err(wrong(io::ErrorKind::InvalidData.into()));
    }
    match gid {
        Some(gid) if gid != account.gid && !account.groups.contains(&gid) => Err(wrong(
            io::Error::other(format!("not a member of group {gid}")),
        )),
        _ => {
            account.gid = gid.unwrap_or(account.gid);
            Ok(account)
        }
    }
}

/// Reads a pipe to its end, within the time limit of a lookup.
fn read(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    let until = Instant::now() + LOOK_UP;
    let mut pipe = fs::File::from(pipe);
    let mut text = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a minute");
        let mut ready = [PollFd::new(&pipe, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut ready, Some(&left)))? == 0 {
            return Err(io::Error::other(
                "the account database did not answer in time",
            ));
        }
        let mut piece = [0; 4096];
        match pipe.read(&mut piece)? {
            0 => return Ok(text),
            count => text.extend_from_slice(&piece[..count]),
        }
    }
}
