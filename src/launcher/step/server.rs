//! `wireup steps`: the process from which an agent's steps are forked.
//!
//! A program that is forked from one that waits, ready to go, needs neither exec nor a dynamic linker
//! and copies little memory: it starts in a fraction of the time, and the agent, which is large, has
//! threads and knows secrets, need not be copied at all.
//!
//! Rules: this process has one thread and holds no secret, and of users only what everybody may look up
//! (numbers, names, home directories), so that a copy of it may be anybody's. A copy becomes its user's before it reads a byte that the user could have
//! written. It is a child of the agent (`CLONE_PARENT`, clone(2)), which waits for it as if it had
//! started it.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use super::begin::take_link;
use crate::agent::descriptors;
use crate::agent::handover::{receive, send};
use crate::agent::privileges::give_up;
use crate::agent::title::LastWord;
use crate::launcher::plan::Variable;
use crate::launcher::run::RunFailure;
use crate::launcher::slots::Slots;
use crate::link::steps::{Account, Answer, Order};
use crate::link::{decode, encode};

/// The command's name. Its copies show themselves as `step`.
pub const COMMAND: &str = "steps";

/// Which side of a fork this is.
enum Side {
    /// The process that goes on, with the copy's number and pidfd.
    Server(i32, OwnedFd),
    Copy,
}

/// Forks steps until the agent closes its socket. Returns in each of them, with its link and its
/// environment, and at the end with nothing.
///
/// # Errors
/// When nobody gave a socket, or what comes over it is none of an agent's; in a step, when it cannot
/// become its user's.
pub(super) fn serve() -> Result<Option<(OwnedFd, Vec<Variable>)>, RunFailure> {
    let broken = |error| RunFailure::own("the agent's socket", error);
    let socket = take_link()?;
    descriptors::reserve_low().map_err(|errno| RunFailure::own("out of descriptors", errno))?;
    // Every step asks for these, and what does not change is known then: where the system's limits are,
    // and what the processor can do, which a virtual machine takes its time to tell.
    Slots::detect().quota();
    std::hint::black_box(memchr::memchr(0, &[]));
    let word = LastWord::find(COMMAND);
    while let Some((body, mut descriptors)) = receive(&socket).map_err(broken)? {
        let order: Order = decode(&body).map_err(|error| broken(io::Error::other(error)))?;
        let (Some(says), Some(link)) = (descriptors.pop(), descriptors.pop()) else {
            return Err(broken(io::ErrorKind::InvalidData.into()));
        };
        match fork() {
            Ok(Side::Copy) => {
                drop(socket);
                if let Some(word) = word {
                    word.shorten();
                }
                become_step(order.account.as_ref(), &says)?;
                return Ok(Some((link, variables(order.environment))));
            }
            Ok(Side::Server(pid, pidfd)) => {
                let answer = encode(&Answer::Made { pid });
                send(&socket, &answer, &[pidfd.as_fd()]).map_err(broken)?;
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or_default();
                send(&socket, &encode(&Answer::Failed { errno }), &[]).map_err(broken)?;
            }
        }
    }
    Ok(None)
}

fn fork() -> io::Result<Side> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the process has one thread, so its copy may run any code. No stack is given, so the
    // copy goes on with its own; the kernel writes the pidfd before the call returns.
    let pid = unsafe {
        let place: *mut libc::c_int = &mut pidfd;
        libc::syscall(libc::SYS_clone, flags, 0, place, 0, 0)
    };
    match pid {
        0 => Ok(Side::Copy),
        1.. => {
            // SAFETY: the kernel has just opened it for us.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Server(pid as i32, pidfd))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// In the copy: what makes it a step of the account.
fn become_step(account: Option<&Account>, says: &OwnedFd) -> Result<(), RunFailure> {
    let failed = |what, errno: rustix::io::Errno| RunFailure::own(what, errno);
    // First of all where it says what goes wrong.
    dup2_stdout(says).map_err(|errno| failed("standard output", errno))?;
    dup2_stderr(says).map_err(|errno| failed("standard error", errno))?;
    setsid().map_err(|errno| failed("a session of its own", errno))?;
    if let Some(account) = account {
        give_up(account.uid, account.gid, &account.groups).map_err(|(part, errno)| {
            let error = io::Error::from_raw_os_error(errno);
            let what = format!("cannot become user id {}: {}", account.uid, part.words());
            RunFailure::own(&what, error)
        })?;
        // Its memory holds no more than it would after exec: the user may see what it is.
        set_dumpable_behavior(DumpableBehavior::Dumpable)
            .map_err(|errno| failed("its visibility", errno))?;
    }
    Ok(())
}

/// The variables of an environment.
fn variables(entries: Vec<Vec<u8>>) -> Vec<Variable> {
    let variable = |entry: Vec<u8>| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (entry[..at].to_vec(), entry[at + 1..].to_vec());
        Some((OsString::from_vec(name), OsString::from_vec(value)))
    };
    entries.into_iter().filter_map(variable).collect()
}
