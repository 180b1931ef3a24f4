//! Standard input for ranks that cannot inherit the launcher's own descriptor.
//!
//! One rank reading a file or a pipe simply inherits it. Two cases need copying: several ranks
//! (`--stdin all`), and a terminal, because ranks run in their own sessions: the kernel would let
//! them read the terminal even in the background and take input meant for the shell.
//!
//! A separate thread reads and writes blocking, one buffer at a time: the slowest reader sets
//! the pace, nothing is dropped, and a rank that has closed its input is left out.
//!
//! Rule: a read of the controlling terminal in the background raises SIGTTIN, and fails with EIO
//! when that is blocked. Source: tty_ioctl(4), credentials(7).

mod waiting;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::termios::{isatty, tcgetpgrp};

use crate::sys::signals;

const CHUNK: usize = 64 * 1024;

/// How often a launcher in the background looks whether it came to the foreground or a rank
/// waits for input.
const BACKGROUND_CHECK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Whether standard input has to be copied rather than inherited.
pub fn needs_copy(stdin: BorrowedFd<'_>, readers: usize) -> bool {
    readers > 1 || readers == 1 && isatty(stdin)
}

/// Whether there is nothing to be read, because it is `/dev/null`: what batch systems and scripts
/// give to a launcher.
pub fn is_empty(stdin: BorrowedFd<'_>) -> bool {
    let null = rustix::fs::makedev(1, 3);
    let found = rustix::fs::fstat(stdin);
    found.is_ok_and(|found| {
        found.st_rdev == null && FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
    })
}

/// Starts copying `stdin` to the pipes of `readers` (rank's process and writing end).
///
/// The thread ends with the input, with the last reader, or with the process.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(stdin: OwnedFd, readers: Vec<(Pid, OwnedFd)>) -> std::io::Result<()> {
    thread::Builder::new()
        .name("stdin".into())
        .stack_size(128 * 1024)
        .spawn(move || copy(stdin.as_fd(), readers))?;
    Ok(())
}

fn copy(stdin: BorrowedFd<'_>, mut readers: Vec<(Pid, OwnedFd)>) {
    let terminal = isatty(stdin);
    // A read in the background then fails instead of stopping the job: see `read_background`.
    signals::block_terminal_stop();
    let mut buffer = vec![0; CHUNK];
    loop {
        let (turn, result) = match turn(stdin, terminal, &mut readers) {
            Turn::Over => return,
            Turn::Background => (Turn::Background, read_background(stdin, &mut buffer)),
            turn => (turn, rustix::io::read(stdin, &mut buffer)),
        };
        match result {
            Ok(0) => return,
            Ok(count) => readers.retain(|(_, pipe)| write_all(pipe, &buffer[..count])),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Put into the background between the look and the read.
            Err(Errno::IO) if turn == Turn::Foreground => {}
            Err(_) => return,
        }
    }
}

/// The next action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// There is something to read.
    Ready,
    /// There is something to read at the terminal, and it is ours.
    Foreground,
    /// The terminal is not ours and a rank waits for input: reading it stops the launcher, as a
    /// shell's user expects of a job. The ranks go on as far as they get without it.
    Background,
    /// No rank reads any more, or the terminal is gone.
    Over,
}

/// Waits until there is something to do. Input is not touched once every reader has closed its
/// end, so that it is available to the next reader.
fn turn(stdin: BorrowedFd<'_>, terminal: bool, readers: &mut Vec<(Pid, OwnedFd)>) -> Turn {
    loop {
        let in_foreground = match terminal.then(|| tcgetpgrp(stdin)) {
            None => None,
            Some(Ok(group)) => Some(group == rustix::process::getpgrp()),
            // A terminal that does not control this session has no foreground to speak of.
            Some(Err(Errno::NOTTY)) => None,
            Some(Err(_)) => return Turn::Over,
        };
        let events = match in_foreground {
            Some(false) => PollFlags::empty(),
            _ => PollFlags::IN,
        };
        let mut watched = vec![PollFd::new(&stdin, events)];
        // The kernel reports a pipe without readers without registration.
        watched.extend(
            readers
                .iter()
                .map(|(_, pipe)| PollFd::new(pipe, PollFlags::empty())),
        );
        // A change of the terminal's foreground process group causes no event.
        let timeout = in_foreground.map(|_| &BACKGROUND_CHECK);
        if poll(&mut watched, timeout).is_err() {
            continue;
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut gone = ready[1..].iter();
        readers.retain(|_| !gone.next().is_some_and(|gone| *gone));
        if readers.is_empty() {
            return Turn::Over;
        }
        match in_foreground {
            Some(false) if waiting::any_waits(readers) => return Turn::Background,
            Some(true) if ready[0] => return Turn::Foreground,
            None if ready[0] => return Turn::Ready,
            _ => {}
        }
    }
}

/// Reads the terminal in the background, which the system answers by stopping this process.
fn read_background(stdin: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    signals::allow_terminal_stop();
    let result = rustix::io::read(stdin, buffer);
    signals::block_terminal_stop();
    result
}

/// False when the reader is gone.
fn write_all(pipe: &OwnedFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(pipe, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}
