//! Messages to the guard, and their reception.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufReader, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Pid;

use crate::backend::cleanup_record::CleanupEntry;
use crate::backend::guard::orphan::OrphanWatch;
use crate::plan::packed_files::FileIdentity;
use crate::stdio::pty::SavedTerminal;
use wireup_sys::pidfd::open_pidfd;

/// Time for which the guard waits only for the launcher's death and reads no messages. Ranks of a short launch have
/// started and ended by then: handling each message would take processor time from them.
const DEAF: Duration = Duration::from_millis(10);

/// Objects to clean up, as collected from the messages.
#[derive(Debug, Default)]
pub(super) struct CleanupState {
    /// Sessions by number, each with a pidfd of its leader; `None` if the leader had ended when the message arrived, or no
    /// descriptor was left.
    pub(super) sessions: BTreeMap<i32, Option<OwnedFd>>,
    pub(super) directories: Vec<PathBuf>,
    pub(super) groups: Vec<PathBuf>,
    pub(super) files: Vec<(PathBuf, FileIdentity)>,
    pub(super) terminal: Option<SavedTerminal>,
    /// Number of leaders with a pidfd.
    pidfd_count: usize,
    /// Number of pidfds at which those of ended leaders are closed.
    room: usize,
}

/// Minimum number of leaders with a descriptor before ended ones are searched.
const ROOM: usize = 64;

impl CleanupState {
    /// Adds a session. Closes the pidfds of ended leaders from time to time: a job may start any number of processes.
    fn add_session(&mut self, number: i32, leader: Option<OwnedFd>) {
        self.pidfd_count += usize::from(leader.is_some());
        self.sessions.insert(number, leader);
        if self.pidfd_count <= self.room.max(ROOM) {
            return;
        }
        for leader in self.sessions.values_mut() {
            leader.take_if(|leader| !lives(leader));
        }
        self.pidfd_count = self.sessions.values().flatten().count();
        self.room = 2 * self.pidfd_count;
    }

    /// Whether a session is the recorded one. `leader_exists`: whether a process with its number exists now.
    pub(super) fn is_ours(&self, session: i32, leader_exists: bool) -> bool {
        match self.sessions.get(&session) {
            None => false,
            // The number is not reused as long as the session has members.
            Some(_) if !leader_exists => true,
            Some(leader) => leader.as_ref().is_some_and(lives),
        }
    }
}

/// Whether the process of a pidfd has not ended.
fn lives(pidfd: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec::default())) == Ok(0)
}

/// The guard's end of the socket: what the launcher writes, and the descriptors that come with it.
pub(super) struct GuardSocket {
    pub(super) socket: OwnedFd,
    /// Received descriptors that no message has taken yet, oldest first.
    pub(super) descriptors: RefCell<Vec<OwnedFd>>,
    /// Watch of the step and its agent; `None` if the guarded process is a launcher.
    pub(super) orphan: Option<OrphanWatch>,
}

impl GuardSocket {
    /// Waits for [`DEAF`], or until the launcher has died.
    pub(super) fn rest(&self) {
        let mut death = [PollFd::new(&self.socket, PollFlags::empty())];
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: DEAF.subsec_nanos().into(),
        };
        // A failure only makes the guard read earlier.
        let _ = poll(&mut death, Some(&time));
    }
}

impl Read for &GuardSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(orphan) = &self.orphan {
            orphan.await_reading(&self.socket);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&self.socket, &mut bytes, &mut ancillary, flags)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                self.descriptors.borrow_mut().extend(descriptors);
            }
        }
        Ok(message.bytes)
    }
}

/// Reads records until the socket ends. Each recorded object is noted before the next record is read. A record that is
/// incomplete because of the launcher's death is dropped.
pub(super) fn read_charge(
    pipe: impl Read,
    start_rendezvous: impl Fn(),
    mut note: impl FnMut(&CleanupEntry),
) -> CleanupState {
    let mut pipe = BufReader::new(pipe);
    let mut charge = CleanupState::default();
    let mut word = [0; 4];
    let mut kind = [0; 1];
    while pipe.read_exact(&mut kind).is_ok() {
        match kind[0] {
            b'S' if pipe.read_exact(&mut word).is_ok() => {
                let number = i32::from_le_bytes(word);
                let leader = Pid::from_raw(number).and_then(|pid| open_pidfd(pid).ok());
                charge.add_session(number, leader);
            }
            b'D' | b'F' | b'G' | b'T' if pipe.read_exact(&mut word).is_ok() => {
                let mut bytes = vec![0; u32::from_le_bytes(word) as usize];
                if pipe.read_exact(&mut bytes).is_err() {
                    break;
                }
                let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
                match kind[0] {
                    b'T' => charge.terminal = SavedTerminal::from_bytes(&bytes),
                    b'F' => {
                        if let Some((identity, rest)) = FileIdentity::parse(bytes) {
                            note(&CleanupEntry::File(identity, path(rest.clone())));
                            charge.files.push((path(rest), identity));
                        }
                    }
                    b'G' => {
                        note(&CleanupEntry::Group(path(bytes.clone())));
                        charge.groups.push(path(bytes));
                    }
                    _ => {
                        note(&CleanupEntry::Directory(path(bytes.clone())));
                        charge.directories.push(path(bytes));
                    }
                }
            }
            b'R' => start_rendezvous(),
            _ => break,
        }
    }
    charge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_record_is_dropped_and_rest_kept() {
        let mut bytes = vec![b'S', 7, 0, 0, 0, b'D', 4, 0, 0, 0];
        bytes.extend_from_slice(b"/tmp");
        bytes.extend_from_slice(&[b'S', 9, 0]);
        let charge = read_charge(&bytes[..], || {}, |_| {});
        assert_eq!(charge.sessions.into_keys().collect::<Vec<_>>(), [7]);
        assert_eq!(charge.directories, [PathBuf::from("/tmp")]);
    }

    #[test]
    fn exited_session_leaders_are_released() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = Pid::from_raw(child.id() as i32).unwrap();
        let dead = open_pidfd(dead).unwrap();
        child.wait().unwrap();
        let mut charge = CleanupState::default();
        charge.add_session(1, open_pidfd(rustix::process::getpid()).ok());
        for number in 2..1000 {
            charge.add_session(number, dead.try_clone().ok());
        }
        let led = charge.sessions.values().flatten().count();
        assert!(led <= ROOM + 1, "{led} leaders");
        assert_eq!(charge.sessions.len(), 999);
        assert!(charge.is_ours(1, true) && !charge.is_ours(2, true) && charge.is_ours(2, false));
    }

    #[test]
    fn session_id_reused_by_stranger_is_not_ours() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let charge = read_charge(&[b"S", &pid.to_le_bytes()[..]].concat()[..], || {}, |_| {});
        child.wait().unwrap();
        // Its leader has ended: members may be left, but a process with its number is another.
        assert!(charge.is_ours(pid, false));
        assert!(!charge.is_ours(pid, true));
        let own = std::process::id() as i32;
        let charge = read_charge(&[b"S", &own.to_le_bytes()[..]].concat()[..], || {}, |_| {});
        assert!(charge.is_ours(own, true));
        assert!(!charge.is_ours(pid, false));
    }
}
