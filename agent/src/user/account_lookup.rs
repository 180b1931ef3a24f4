//! `wireup-agent accounts`: the process that looks up users for the agent's helper.
//!
//! Account databases (LDAP, SSSD) come as libraries, which the helper must not load into a process
//! that has root's rights, and over networks, for which it must not wait. Each look-up is a copy of
//! this process, which has the databases' libraries and nothing else; the answer goes to the pipe
//! that came with the id. It keeps the rights of its parent: its answer decides which groups a
//! user's processes have.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::ServedUsers;
use super::spawn::LINK;
use wireup_core::failure::CommandError;
use wireup_core::link::helper_protocol::{FoundAccount, UserIds};
use wireup_core::link::{decode, encode};
use wireup_sys::fd_passing::receive;

/// Answers until the helper has gone.
///
/// # Errors
/// If no socket was passed, or it fails.
pub fn main() -> Result<u8, CommandError> {
    let broken = |error: io::Error| CommandError::system("the helper's socket", error);
    // SAFETY: the parent passes the descriptor; if there is none, duplicating fails.
    let socket = unsafe { BorrowedFd::borrow_raw(LINK) };
    let socket = socket.try_clone_to_owned().map_err(broken)?;
    // Root's account is in a file everywhere: this look-up loads all that later ones need.
    let _ = ServedUsers::Everybody.find(0);
    // SAFETY: no code waits for the copies.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    while let Some((body, mut descriptors)) = receive(&socket).map_err(broken)? {
        let (Ok(uid), Some(reply)) = (decode::<u32>(&body), descriptors.pop()) else {
            return Err(broken(io::ErrorKind::InvalidData.into()));
        };
        // SAFETY: the process has one thread, so its copy may run any code.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: libraries of databases may wait for processes of their own.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
                answer(reply, &look_up(uid));
                // SAFETY: ends the copy.
                unsafe { libc::_exit(0) }
            }
            1.. => {}
            _ => {
                let reason = io::Error::last_os_error().to_string();
                answer(reply, &FoundAccount::Nothing { reason });
            }
        }
    }
    Ok(0)
}

fn look_up(uid: u32) -> FoundAccount {
    match ServedUsers::Everybody.find(uid) {
        Ok(user) => FoundAccount::Account(UserIds {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups,
        }),
        Err(error) => FoundAccount::Nothing {
            reason: error.to_string(),
        },
    }
}

fn answer(reply: OwnedFd, found: &FoundAccount) {
    // The requester may have gone.
    let _ = File::from(reply).write_all(&encode(found));
}
