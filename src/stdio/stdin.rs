//! Standard input for ranks that cannot inherit the launcher's own descriptor.
//!
//! A single rank that reads a file or a pipe inherits it. Two cases need copying: several ranks (`--stdin all`), and a
//! terminal. Ranks run in their own sessions, so the kernel would let them read the terminal in the background, and they
//! would take input that is meant for the shell.
//!
//! A separate thread reads and writes blocking, one buffer at a time: the slowest reader determines the speed, nothing is
//! dropped, and ranks that have closed their input are skipped.
//!
//! Ranks on other hosts cannot inherit it either. Input that no rank reads remains for the next reader, such as a shell's
//! `while read`: the first bytes are copied from a pipe, file or socket without taking them, and taken when a rank has
//! read some. The thread detects that for local ranks ([`start`]); for others it is reported ([`start_untaken`]).
//!
//! Rule: a read of the controlling terminal in the background raises SIGTTIN, and fails with EIO
//! when that is blocked. Source: tty_ioctl(4), credentials(7).

mod blocked_input;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, pipe_with, tee};
use rustix::process::Pid;
use rustix::termios::{isatty, tcgetpgrp};

use super::writer;
use wireup_sys::signals;

const CHUNK: usize = 64 * 1024;

/// Interval of a background launcher's checks whether it is in the foreground or a rank waits for input.
const BACKGROUND_CHECK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Shortest and longest interval between checks for the first read. The kernel does not report reads of a pipe.
const FIRST_READ_CHECK: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(200));

/// A rank's process, and the writing end of the pipe to it. It is shared: with many ranks there may be no descriptors for copies.
type StdinReader = (Pid, Arc<OwnedFd>);

/// Whether standard input has to be copied rather than inherited.
pub fn needs_copy(stdin: BorrowedFd<'_>, readers: usize) -> bool {
    readers > 1 || readers == 1 && isatty(stdin)
}

/// Whether standard input is `/dev/null`, as in batch systems and scripts.
pub fn is_empty(stdin: BorrowedFd<'_>) -> bool {
    let null = rustix::fs::makedev(1, 3);
    let found = rustix::fs::fstat(stdin);
    found.is_ok_and(|found| {
        found.st_rdev == null && FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
    })
}

/// Starts copying `stdin` to the pipes of `readers` (rank's process and writing end). The first bytes remain in `stdin`
/// until a rank has read some, and no further ones are copied before.
///
/// The thread ends with the input, with the last reader, or with the process; [`FirstInput::settle`] must be called before
/// the process ends.
///
/// # Errors
/// The thread cannot be started.
pub fn start(stdin: OwnedFd, readers: Vec<(Pid, OwnedFd)>) -> std::io::Result<FirstInput> {
    let first = FirstInput::default();
    let watched = FirstCopy::Watched(first.clone());
    spawn(Arc::new(stdin), readers, watched)?;
    Ok(first)
}

fn spawn(
    stdin: Arc<OwnedFd>,
    readers: Vec<(Pid, OwnedFd)>,
    first: FirstCopy,
) -> std::io::Result<()> {
    let readers = readers.into_iter();
    let readers: Vec<StdinReader> = readers.map(|(pid, pipe)| (pid, Arc::new(pipe))).collect();
    thread::Builder::new()
        .name("stdin".into())
        .stack_size(128 * 1024)
        .spawn(move || copy(&stdin, readers, Some(first)))?;
    Ok(())
}

/// Starts copying as [`start`] does, but takes the first bytes at [`UntakenInput::take`].
///
/// # Errors
/// The thread cannot be started.
pub fn start_untaken(
    stdin: OwnedFd,
    readers: Vec<(Pid, OwnedFd)>,
) -> std::io::Result<UntakenInput> {
    let stdin = Arc::new(stdin);
    let (taken, is_taken) = channel();
    let untaken = UntakenInput {
        stdin: Arc::clone(&stdin),
        copied: Arc::default(),
        taken_tx: taken,
    };
    let first = FirstCopy::Reported {
        copied: Arc::clone(&untaken.copied),
        is_taken,
    };
    spawn(stdin, readers, first)?;
    Ok(untaken)
}

/// First input of the local ranks, until it is taken.
#[derive(Clone, Debug, Default)]
pub struct FirstInput(Arc<Mutex<Option<CopiedInput>>>);

/// Input that is in the ranks' pipes and in `stdin`.
#[derive(Debug)]
struct CopiedInput {
    stdin: Arc<OwnedFd>,
    bytes: Vec<u8>,
    pipes: Vec<WrittenPipe>,
}

/// Pipe, and number of bytes written to it: fewer than there were if its reader has closed it or made it smaller.
type WrittenPipe = (Arc<OwnedFd>, usize);

impl CopiedInput {
    /// Whether a rank has read some.
    fn is_read(&self) -> bool {
        self.pipes.iter().any(|(pipe, written)| {
            let unread = ioctl_fionread(pipe);
            unread.is_ok_and(|unread| unread < *written as u64)
        })
    }
}

impl FirstInput {
    /// Takes the input if a rank has read some of it. Returns whether none is left to take.
    pub fn settle(&self) -> bool {
        let mut copied = self.lock();
        if copied.as_ref().is_some_and(|input| !input.is_read()) {
            return false;
        }
        if let Some(input) = copied.take() {
            take(input.stdin.as_fd(), &input.bytes);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<CopiedInput>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes bytes to the readers, whose pipes are empty, and waits until they are taken. Returns false if they never are.
    fn write_first(
        &self,
        stdin: &Arc<OwnedFd>,
        bytes: &[u8],
        readers: &mut Vec<StdinReader>,
    ) -> bool {
        let unfinished = self.write(stdin, bytes, readers);
        if !self.wait(readers) {
            return false;
        }
        readers.retain(|(_, pipe)| {
            let mut unfinished = unfinished.iter();
            let found = unfinished.find(|(other, _)| Arc::ptr_eq(pipe, other));
            found.is_none_or(|(_, written)| write_all(pipe, &bytes[*written..]))
        });
        true
    }

    /// Writes as many of the bytes as the readers' pipes have room for. Returns the pipes that have no room for all of them.
    ///
    /// Rule: the event loop waits for the lock in [`FirstInput::settle`]. While it is held, no write waits for a reader.
    fn write(
        &self,
        stdin: &Arc<OwnedFd>,
        bytes: &[u8],
        readers: &mut Vec<StdinReader>,
    ) -> Vec<WrittenPipe> {
        let mut pipes = Vec::with_capacity(readers.len());
        let mut untaken = self.lock();
        readers.retain(|(_, pipe)| {
            let (written, is_open) = write_available(pipe, bytes);
            pipes.push((Arc::clone(pipe), written));
            is_open
        });
        *untaken = Some(CopiedInput {
            stdin: Arc::clone(stdin),
            bytes: bytes.to_owned(),
            pipes: pipes.clone(),
        });
        pipes.retain(|(_, written)| *written < bytes.len());
        pipes
    }

    /// Waits until the input is taken. Returns false if no rank reads any more.
    fn wait(&self, readers: &mut Vec<StdinReader>) -> bool {
        let (mut interval, longest) = FIRST_READ_CHECK;
        while !self.settle() {
            if readers.is_empty() {
                *self.lock() = None;
                return false;
            }
            let ends = readers.iter();
            let mut ends: Vec<_> = ends
                .map(|(_, pipe)| PollFd::new(pipe, PollFlags::empty()))
                .collect();
            let timeout = Timespec::try_from(interval).unwrap_or_default();
            let _ = poll(&mut ends, Some(&timeout));
            let gone: Vec<bool> = ends.iter().map(|end| !end.revents().is_empty()).collect();
            let mut gone = gone.into_iter();
            readers.retain(|_| !gone.next().unwrap_or_default());
            interval = (2 * interval).min(longest);
        }
        true
    }
}

/// Input that was copied and not taken. Dropping this leaves the bytes for the next reader.
#[derive(Debug)]
pub struct UntakenInput {
    stdin: Arc<OwnedFd>,
    /// Bytes that were copied.
    copied: Arc<Mutex<Vec<u8>>>,
    taken_tx: Sender<()>,
}

impl UntakenInput {
    /// Takes the bytes, and lets the thread continue.
    pub fn take(self) {
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        take(self.stdin.as_fd(), &copied);
        // The thread may have ended with its readers.
        let _ = self.taken_tx.send(());
    }
}

/// Takes bytes that were copied.
fn take(stdin: BorrowedFd<'_>, copied: &[u8]) {
    let mut buffer = vec![0; copied.len()];
    let there = peek(stdin, &mut buffer);
    // Another process may have taken them, and the next bytes may be different ones.
    let is_there = match there {
        Ok(count) => buffer[..count] == *copied,
        // Without a free descriptor this is unknown. Bytes that are not taken would reach the ranks twice.
        Err(error) => matches!(error, Errno::MFILE | Errno::NFILE),
    };
    let mut left = if is_there { copied.len() } else { 0 };
    while left > 0 {
        let mut ready = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
        match poll(&mut ready, Some(&Timespec::default())) {
            Ok(1..) => {}
            Err(Errno::INTR) => continue,
            Ok(0) | Err(_) => break,
        }
        match rustix::io::read(stdin, &mut buffer[..left]) {
            Ok(count @ 1..) => left -= count,
            Err(Errno::INTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
}

/// First input, and its use by the thread that copies.
enum FirstCopy {
    /// The thread checks whether a rank has read some.
    Watched(FirstInput),
    /// Thread's end of [`UntakenInput`].
    Reported {
        copied: Arc<Mutex<Vec<u8>>>,
        is_taken: Receiver<()>,
    },
}

impl FirstCopy {
    /// Returns the maximum number of bytes for which the readers' pipes have room.
    fn room(&self, readers: &[StdinReader]) -> usize {
        match self {
            Self::Watched(_) => {
                let sizes = readers
                    .iter()
                    .filter_map(|(_, pipe)| fcntl_getpipe_size(pipe).ok());
                sizes.min().unwrap_or(CHUNK).min(CHUNK)
            }
            Self::Reported { .. } => CHUNK,
        }
    }

    /// Writes the bytes to the readers and waits until they are taken. Returns false if they never are.
    fn write_to_readers(
        self,
        stdin: &Arc<OwnedFd>,
        bytes: &[u8],
        readers: &mut Vec<StdinReader>,
    ) -> bool {
        match self {
            Self::Watched(first) => first.write_first(stdin, bytes, readers),
            Self::Reported { copied, is_taken } => {
                let mut copied = copied.lock().unwrap_or_else(PoisonError::into_inner);
                copied.extend_from_slice(bytes);
                drop(copied);
                readers.retain(|(_, pipe)| write_all(pipe, bytes));
                is_taken.recv().is_ok()
            }
        }
    }
}

/// Copies the available input without taking it.
///
/// # Errors
/// For a terminal or device, whose input cannot be copied without taking it.
fn peek(stdin: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    match FileType::from_raw_mode(rustix::fs::fstat(stdin)?.st_mode) {
        FileType::Fifo => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            let count = tee(stdin, write, buffer.len(), SpliceFlags::NONBLOCK)?;
            let mut copied = 0;
            while copied < count {
                copied += rustix::io::read(&read, &mut buffer[copied..count])?;
            }
            Ok(count)
        }
        FileType::RegularFile => {
            let position = rustix::fs::seek(stdin, SeekFrom::Current(0))?;
            rustix::io::pread(stdin, buffer, position)
        }
        FileType::Socket => Ok(rustix::net::recv(stdin, buffer, RecvFlags::PEEK)?.0),
        _ => Err(Errno::INVAL),
    }
}

fn copy(stdin: &Arc<OwnedFd>, mut readers: Vec<StdinReader>, mut first: Option<FirstCopy>) {
    let terminal = isatty(stdin);
    // A read in the background then fails instead of stopping the job: see `read_background`.
    signals::block_terminal_stop();
    let mut buffer = vec![0; CHUNK];
    loop {
        let turn = turn(stdin.as_fd(), terminal, &mut readers);
        if turn == StdinReadiness::Ready
            && let Some(first) = first.take()
            && let Ok(count) = peek(stdin.as_fd(), &mut buffer[..first.room(&readers)])
        {
            if count == 0 || !first.write_to_readers(stdin, &buffer[..count], &mut readers) {
                return;
            }
            continue;
        }
        let (turn, result) = match turn {
            StdinReadiness::Over => return,
            StdinReadiness::Background => {
                let result = read_background(stdin.as_fd(), &mut buffer);
                (StdinReadiness::Background, result)
            }
            turn => (turn, rustix::io::read(stdin, &mut buffer)),
        };
        match result {
            Ok(0) => return,
            Ok(count) => readers.retain(|(_, pipe)| write_all(pipe, &buffer[..count])),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The launcher was put into the background between the check and the read.
            Err(Errno::IO) if turn == StdinReadiness::Foreground => {}
            Err(_) => return,
        }
    }
}

/// State of standard input, which determines the next action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StdinReadiness {
    /// Input can be read.
    Ready,
    /// Input of the terminal can be read, and this process is in the foreground.
    Foreground,
    /// This process is in the background and a rank waits for input: reading stops the launcher, as users of a shell expect
    /// of a job. The ranks continue as far as they can.
    Background,
    /// No rank reads any more, or the terminal is closed.
    Over,
}

/// Waits for the next state. Input is not read once every reader has closed its end, so that it remains for the next
/// reader.
fn turn(stdin: BorrowedFd<'_>, terminal: bool, readers: &mut Vec<StdinReader>) -> StdinReadiness {
    loop {
        let in_foreground = match terminal.then(|| tcgetpgrp(stdin)) {
            None => None,
            Some(Ok(group)) => Some(group == rustix::process::getpgrp()),
            // A terminal that does not control this session has no foreground for it.
            Some(Err(Errno::NOTTY)) => None,
            Some(Err(_)) => return StdinReadiness::Over,
        };
        let events = match in_foreground {
            Some(false) => PollFlags::empty(),
            _ => PollFlags::IN,
        };
        let mut watched = vec![PollFd::new(&stdin, events)];
        // The kernel reports the loss of the readers even without registration for events.
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
            return StdinReadiness::Over;
        }
        match in_foreground {
            Some(false) if blocked_input::any_waits(readers) => return StdinReadiness::Background,
            Some(true) if ready[0] => return StdinReadiness::Foreground,
            None if ready[0] => return StdinReadiness::Ready,
            _ => {}
        }
    }
}

/// Reads the terminal in the background, so that the system stops this process.
fn read_background(stdin: BorrowedFd<'_>, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    signals::allow_terminal_stop();
    let result = rustix::io::read(stdin, buffer);
    signals::block_terminal_stop();
    result
}

/// Writes all bytes. Returns false when the reader has closed the pipe.
fn write_all(pipe: &OwnedFd, bytes: &[u8]) -> bool {
    writer::write_all(pipe.as_fd(), bytes).is_ok()
}

/// Writes without waiting for the reader. Returns the number of written bytes, and whether the pipe has a reader.
fn write_available(pipe: &OwnedFd, bytes: &[u8]) -> (usize, bool) {
    // The flags of the rank's end are separate.
    let Ok(flags) = fcntl_getfl(pipe) else {
        return (0, false);
    };
    if fcntl_setfl(pipe, flags | OFlags::NONBLOCK).is_err() {
        return (0, false);
    }
    let (mut written, mut is_open) = (0, true);
    while written < bytes.len() {
        match rustix::io::write(pipe, &bytes[written..]) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(_) => {
                is_open = false;
                break;
            }
        }
    }
    // The call cannot fail, since it has succeeded with other flags.
    let _ = fcntl_setfl(pipe, flags);
    (written, is_open)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::unix::net::UnixStream;

    use rustix::pipe::fcntl_setpipe_size;

    use super::*;

    fn reader(pipe: OwnedFd) -> StdinReader {
        (rustix::process::getpid(), Arc::new(pipe))
    }

    /// Pipe that processes of other tests do not inherit.
    fn new_pipe() -> (OwnedFd, OwnedFd) {
        pipe_with(PipeFlags::CLOEXEC).unwrap()
    }

    /// A file, at its beginning.
    fn input(bytes: &[u8]) -> Arc<OwnedFd> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Arc::new(file.into())
    }

    fn position(input: &OwnedFd) -> u64 {
        rustix::fs::seek(input, SeekFrom::Current(0)).unwrap()
    }

    #[test]
    fn first_input_is_not_taken_for_closed_pipe() {
        let stdin = input(b"first");
        let (closed, pipe) = new_pipe();
        let (open, open_pipe) = new_pipe();
        drop(closed);
        let mut readers = vec![reader(pipe), reader(open_pipe)];
        let first = FirstInput::default();
        first.write(&stdin, b"first", &mut readers);
        assert_eq!(readers.len(), 1);
        assert!(!first.settle(), "no rank has read");
        assert_eq!(position(&stdin), 0);
        assert_eq!(rustix::io::read(&open, &mut [0_u8]), Ok(1));
        assert!(first.settle());
        assert_eq!(position(&stdin), 5);
    }

    #[test]
    fn first_input_stays_when_all_pipes_are_closed() {
        let stdin = input(b"first");
        let (closed, pipe) = new_pipe();
        drop(closed);
        let first = FirstInput::default();
        assert!(!first.write_first(&stdin, b"first", &mut vec![reader(pipe)]));
        assert_eq!(position(&stdin), 0);
    }

    #[test]
    fn first_write_does_not_wait_for_smaller_pipe() {
        let page = rustix::param::page_size();
        let bytes = vec![b'x'; 2 * page];
        let stdin = input(&bytes);
        let (read, pipe) = new_pipe();
        fcntl_setpipe_size(&pipe, page).unwrap();
        let mut readers = vec![reader(pipe)];
        let first = FirstInput::default();
        let unfinished = first.write(&stdin, &bytes, &mut readers);
        assert_eq!((readers.len(), unfinished[0].1), (1, page));
        assert!(!first.settle(), "no rank has read");
        assert_eq!(rustix::io::read(&read, &mut [0_u8]), Ok(1));
        assert!(first.settle());
        assert_eq!(position(&stdin), bytes.len() as u64);
        let flags = fcntl_getfl(&*readers[0].1).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "later writes wait");
    }

    #[test]
    fn first_input_is_whole_for_smaller_pipe() {
        let page = rustix::param::page_size();
        let bytes: Vec<u8> = (0..3 * page).map(|at| (at % 251) as u8).collect();
        let stdin = input(&bytes);
        let (read, pipe) = new_pipe();
        fcntl_setpipe_size(&pipe, page).unwrap();
        let input_bytes = bytes.clone();
        let thread = thread::spawn(move || {
            let first = FirstInput::default();
            first.write_first(&stdin, &input_bytes, &mut vec![reader(pipe)])
        });
        let mut found = Vec::new();
        File::from(read).read_to_end(&mut found).unwrap();
        assert_eq!(found, bytes);
        assert!(thread.join().unwrap());
    }

    /// Reads what arrives first, and then takes it if `takes`; what the next reader of the input gets, and what arrives later.
    fn copied(stdin: &OwnedFd, takes: bool, close: impl FnOnce()) -> (Vec<u8>, Vec<u8>) {
        let (ours, theirs) = rustix::pipe::pipe().unwrap();
        let own = rustix::process::getpid();
        let untaken = start_untaken(stdin.try_clone().unwrap(), vec![(own, theirs)]).unwrap();
        let mut first = [0; 5];
        let mut ours = File::from(ours);
        ours.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first");
        close();
        match takes {
            true => untaken.take(),
            false => drop(untaken),
        }
        let mut later = Vec::new();
        ours.read_to_end(&mut later).unwrap();
        let mut rest = Vec::new();
        File::from(stdin.try_clone().unwrap())
            .read_to_end(&mut rest)
            .unwrap();
        (rest, later)
    }

    #[test]
    fn input_not_taken_is_left_for_next_reader() {
        for takes in [false, true] {
            let expected: (&[u8], &[u8]) = match takes {
                false => (b"first, second", b""),
                true => (b"", b", second"),
            };
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"before first, second").unwrap();
            file.seek(std::io::SeekFrom::Start(7)).unwrap();
            // Of a file everything arrives at once.
            let (rest, later) = copied(&file.into(), takes, || {});
            assert_eq!((&rest[..], &later[..]), (expected.0, &b", second"[..]));
            let (read, write) = rustix::pipe::pipe().unwrap();
            let mut write = File::from(write);
            write.write_all(b"first").unwrap();
            let close = move || write.write_all(b", second").unwrap();
            let (rest, later) = copied(&read, takes, close);
            assert_eq!((&rest[..], &later[..]), expected, "pipe");
            let (read, mut write) = UnixStream::pair().unwrap();
            write.write_all(b"first").unwrap();
            let close = move || write.write_all(b", second").unwrap();
            let (rest, later) = copied(&read.into(), takes, close);
            assert_eq!((&rest[..], &later[..]), expected, "socket");
        }
    }
}
