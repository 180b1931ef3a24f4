//! Copies standard input to the rank's pseudo-terminal, in a separate thread.
//!
//! A terminal is read only while it is in raw mode and in the foreground. Anything else is copied to
//! its end, which a terminal does not have: a reader sees the end of a line that is empty and ends
//! with the end-of-file character. That is typed whenever nothing typed before is left, so that
//! every reader finds the end, as in a file; not earlier, since a program that leaves line mode
//! would lose it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{SpecialCodeIndex, isatty, tcgetattr};

use super::{PtyState, in_foreground, peer};
use wireup_sys::signals;

const CHUNK: usize = 16 * 1024;

/// Interval of a background launcher's checks whether it is in the foreground.
const BACKGROUND_CHECK: Duration = Duration::from_millis(200);

/// Shortest and longest interval between checks whether the rank has read the end of the input.
const END_CHECK: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

/// Time of a wait for room for input, after which the thread checks whether the rank has ended.
const ROOM_CHECK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The character that ends the input where the rank has switched it off.
const CTRL_D: u8 = 4;

/// Starts the thread. It ends with the rank, with the user's terminal, or with the process.
pub(super) fn start(
    stdin: OwnedFd,
    master: OwnedFd,
    shared: Arc<PtyState>,
    wake: Arc<OwnedFd>,
) -> std::io::Result<()> {
    thread::Builder::new()
        .name("pty".into())
        .stack_size(128 * 1024)
        .spawn(move || {
            let input = Input {
                stdin: stdin.as_fd(),
                master: master.as_fd(),
                shared: &shared,
                wake: &wake,
            };
            if input.copy() {
                input.end();
            }
        })?;
    Ok(())
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Woken {
    /// Input, or its end, can be read.
    Input,
    /// The time is over.
    Time,
    /// The rank's terminal is closed.
    End,
}

struct Input<'a> {
    stdin: BorrowedFd<'a>,
    master: BorrowedFd<'a>,
    shared: &'a PtyState,
    wake: &'a OwnedFd,
}

impl Input<'_> {
    /// Copies input. Returns true at the end of a file or pipe.
    fn copy(&self) -> bool {
        let terminal = isatty(self.stdin);
        // A read after a change to the background then fails and does not stop the job.
        signals::block_terminal_stop();
        let mut buffer = vec![0; CHUNK];
        loop {
            let woken = match terminal && !self.terminal_is_ours() {
                true => self.wait(false, Some(BACKGROUND_CHECK)),
                false => self.wait(true, None),
            };
            match woken {
                Woken::End => return false,
                Woken::Time => continue,
                Woken::Input => {}
            }
            match rustix::io::read(self.stdin, &mut buffer[..]) {
                Ok(0) => return !terminal,
                Ok(count) if self.write_all(&buffer[..count]) => {}
                Ok(_) => return false,
                Err(Errno::INTR | Errno::AGAIN) => {}
                // The launcher was put into the background between the check and the read.
                Err(Errno::IO) if terminal && !in_foreground(self.stdin) => {}
                Err(_) => return !terminal,
            }
        }
    }

    /// Whether the user's terminal is in raw mode and this process in its foreground. Wakes the loop if only raw mode is
    /// missing.
    fn terminal_is_ours(&self) -> bool {
        if !in_foreground(self.stdin) {
            return false;
        }
        let raw = self.shared.raw.load(Ordering::Acquire);
        if !raw {
            // A full eventfd counter still wakes the loop.
            let _ = rustix::io::write(self.wake, &1u64.to_ne_bytes());
        }
        raw
    }

    /// Types the end-of-file character whenever the rank has read everything.
    fn end(&self) {
        let mut pause = END_CHECK[0];
        while self.wait(false, Some(pause)) == Woken::Time {
            if self.all_is_read() && !self.write_all(&[self.end_of_file()]) {
                return;
            }
            pause = (pause * 2).min(END_CHECK[1]);
        }
    }

    /// Whether the rank has read all input, a typed end of file included.
    fn all_is_read(&self) -> bool {
        let Ok(slave) = peer(self.master) else {
            return false;
        };
        let mut ready = [PollFd::new(&slave, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())) == Ok(0)
    }

    fn end_of_file(&self) -> u8 {
        // On this end, the kernel returns the modes of the rank's end.
        let code = tcgetattr(self.master).map(|modes| modes.special_codes[SpecialCodeIndex::VEOF]);
        code.ok().filter(|code| *code != 0).unwrap_or(CTRL_D)
    }

    /// Waits for input, if it is wanted, for the end of the rank, or for some time.
    fn wait(&self, for_input: bool, time: Option<Duration>) -> Woken {
        // The other end closed shows without being asked for.
        let mut watched = vec![PollFd::new(&self.master, PollFlags::empty())];
        if for_input {
            watched.push(PollFd::new(&self.stdin, PollFlags::IN));
        }
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // Only a signal can interrupt it.
        let _ = poll(&mut watched, time.as_ref());
        let ready = |index: usize| {
            watched
                .get(index)
                .is_some_and(|fd| !fd.revents().is_empty())
        };
        match self.is_over() || ready(0) {
            true => Woken::End,
            false if ready(1) => Woken::Input,
            false => Woken::Time,
        }
    }

    fn is_over(&self) -> bool {
        self.shared.rank_ended.load(Ordering::Acquire)
    }

    /// False when the rank's end is gone.
    fn write_all(&self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match rustix::io::write(self.master, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !self.is_over() => {
                    let mut room = [PollFd::new(&self.master, PollFlags::OUT)];
                    let _ = poll(&mut room, Some(&ROOM_CHECK));
                }
                Err(_) => return false,
            }
        }
        true
    }
}
