//! A copy of the helper, on its way to being a user's process.

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::time::{Duration, Instant};
use std::{fs, ptr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::plan::Variable;
use wireup_core::failure::CommandError;
use wireup_core::link::decode;
use wireup_core::link::helper_protocol::{FoundAccount, UserIds};
use wireup_core::link::scheduled_launcher::{COMMAND, JOB};
use wireup_sys::fd_passing::DESCRIPTORS_MAX;
use wireup_sys::privileges::drop_root;
use wireup_sys::{close_range, out_of_memory, signals};

/// How long the account database may take.
const LOOK_UP: Duration = Duration::from_secs(60);

/// Descriptors that a launcher has: the standard ones, where it takes orders, and its job.
pub(super) const DESCRIPTORS: usize = JOB as usize + 1;

/// The user of a copy.
pub(super) enum TargetUser {
    /// It stays what it is.
    Nobody,
    /// A user with known ids.
    Known(UserIds),
    /// A user that is being looked up, with one of the user's groups if it is not the first.
    Asked {
        uid: u32,
        gid: Option<u32>,
        reply: OwnedFd,
    },
}

/// The program and arguments, in the kernel's layout.
pub(super) struct ProgramImage {
    words: Vec<CString>,
    variables: Vec<CString>,
}

impl ProgramImage {
    /// The program with these arguments; `None` if one cannot be passed on.
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

/// Whether the kernel spares this process, and so its copies.
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
    // First the descriptor for error messages.
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
        // First the descriptor for error messages.
        dup2_stderr(&descriptors[2]).map_err(failed("standard error"))?;
        // Before anything is closed.
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
    // SAFETY: texts that end, in lists that end, all of which live longer than the call. What this program
    // ignores is not to be ignored by another.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
    }
    let what = format!("cannot execute {}", program.to_string_lossy());
    CommandError::system(what, io::Error::last_os_error())
}

/// Gives descriptors the numbers from 0 on; no other stays open.
fn place(descriptors: Vec<OwnedFd>) -> Result<(), CommandError> {
    // Out of the way of all the numbers.
    let above = DESCRIPTORS_MAX as RawFd + 1;
    let moved = descriptors
        .into_iter()
        .map(|fd| fcntl_dupfd_cloexec(fd, above));
    let moved: Vec<OwnedFd> = moved
        .collect::<Result<_, _>>()
        .map_err(failed("descriptors"))?;
    let wrong = || CommandError::system("descriptors", io::Error::last_os_error());
    for (to, from) in (0..).zip(&moved) {
        // SAFETY: the source is open, and nothing owns the numbers: what this program has below is never
        // closed.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(wrong());
        }
    }
    let first = moved.len() as libc::c_uint;
    drop(moved);
    // SAFETY: closes what nothing refers to any more.
    match unsafe { close_range::close(first, libc::c_uint::MAX) } {
        0 => Ok(()),
        _ => Err(wrong()),
    }
}

/// The ids to which the process changes, if it does.
fn account(becomes: TargetUser) -> Result<Option<UserIds>, CommandError> {
    match becomes {
        TargetUser::Nobody => Ok(None),
        TargetUser::Known(account) => Ok(Some(account)),
        TargetUser::Asked { uid, gid, reply } => found(uid, gid, reply).map(Some),
    }
}

/// Changes the process to its user, in its own session. All work that needs root comes before.
fn become_user_s(account: Option<UserIds>, spared: bool) -> Result<(), CommandError> {
    setsid().map_err(failed("a session of its own"))?;
    let Some(account) = account else {
        return Ok(());
    };
    prepare(spared);
    drop_root(account.uid, account.gid, &account.groups).map_err(|(part, errno)| {
        let error = io::Error::from_raw_os_error(errno);
        let what = format!("cannot become user id {}: {}", account.uid, part.words());
        CommandError::system(what, error)
    })?;
    // Its memory contains no more than after an exec: the user may inspect it.
    set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed("its visibility"))
}

/// What root does for a process that becomes a user's. It runs with all of root's rights, and has read nothing
/// that the user could have written.
fn prepare(spared: bool) {
    if spared {
        // The service is spared for the users' sake, not their programs.
        let _ = fs::write(OsStr::from_bytes(out_of_memory::SCORE.to_bytes()), "0");
    }
}

/// The ids of a user that is being looked up.
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
            io::Error::other(format!("group {gid} is none of its groups")),
        )),
        _ => {
            account.gid = gid.unwrap_or(account.gid);
            Ok(account)
        }
    }
}

/// Everything that comes over a pipe in the time that a look-up may take.
fn read(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    let until = Instant::now() + LOOK_UP;
    let mut pipe = fs::File::from(pipe);
    let mut text = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a minute");
        let mut ready = [PollFd::new(&pipe, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut ready, Some(&left)))? == 0 {
            return Err(io::Error::other("the account database does not answer"));
        }
        let mut piece = [0; 4096];
        match pipe.read(&mut piece)? {
            0 => return Ok(text),
            count => text.extend_from_slice(&piece[..count]),
        }
    }
}

/// The variables of an environment.
pub(super) fn variables(entries: Vec<Vec<u8>>) -> Vec<Variable> {
    let variable = |entry: Vec<u8>| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (entry[..at].to_vec(), entry[at + 1..].to_vec());
        Some((OsString::from_vec(name), OsString::from_vec(value)))
    };
    entries.into_iter().filter_map(variable).collect()
}
