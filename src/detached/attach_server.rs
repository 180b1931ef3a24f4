//! The attach server: starts a launcher, stores its last output and its exit status, and serves clients.
//!
//! ```text
//! running ──launcher has ended──▶ ended ──all output shown to an attached client, or time is over──▶ (exits)
//! ```

mod viewer;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::detached::address::{accept, is_from, listener};
use crate::detached::attach_messages::{AttachReply, AttachRequest, LauncherStream};
use crate::detached::detached_start::start;
use crate::detached::keeper_connection::AttachConnection;
use crate::detached::output_buffer::{KEPT, OutputBuffer, PIECE};
use crate::detached::{COMMAND, NAME, job_name_from_env};
use viewer::{AttachedClient, LauncherProgress};
use wireup_core::failure::CommandError;
use wireup_sys::descriptors;
use wireup_sys::poll::wait_for_events;
use wireup_sys::spawn::{Child, ExitStatus, wait};

/// Time for which the exit status is kept for the first client that requests it.
const UNASKED: Duration = Duration::from_secs(24 * 60 * 60);

/// Time for which the exit status and the last output are kept after that.
const ASKED: Duration = Duration::from_secs(10 * 60);

/// Time for which the exit status is kept once a client has it and has shown everything: others may be about to request it.
const KNOWN: Duration = Duration::from_secs(5);

/// Bytes of input for the launcher that may wait to be written; beyond that no more are read.
const INPUT: usize = 64 << 10;

/// Maximum number of clients that wait, or have not sent their request.
const CLIENTS_MAX: usize = 256;

/// Starts the launcher with these arguments after `run`, and serves until some time after its end. Writes a byte to standard
/// output when it serves.
///
/// # Errors
/// [`CommandError`] if the launcher cannot be started, or clients cannot connect.
pub fn serve_launcher(args: &[OsString]) -> Result<u8, CommandError> {
    let own = |what: &'static str| move |error: io::Error| CommandError::system(what, error);
    let by_hand = || CommandError::request(format!("{COMMAND} is started by `wireup run`"));
    let job = job_name_from_env().ok_or_else(by_hand)?;
    // `wireup run --detach` ends before this process, and waits for the byte.
    let _ = set_parent_process_death_signal(None);
    descriptors::reserve_low()
        .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
    let listener = listener(&job)
        .map_err(|errno| CommandError::system("cannot listen for `wireup attach`", errno))?;
    let keeper = AttachServer::start(args, &job, listener);
    let mut keeper = keeper.map_err(own("cannot start the launcher"))?;
    let mut stdout = io::stdout();
    // `wireup run` may have been killed.
    let _ = stdout.write_all(b"\n").and_then(|()| stdout.flush());
    release_surroundings().map_err(own("cannot open /dev/null"))?;
    keeper.run().map_err(own("the attach server cannot wait"))?;
    Ok(0)
}

/// Releases the streams and the directory of the command that started the job.
fn release_surroundings() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(rustix::process::chdir("/")?)
}

struct AttachServer {
    listener: OwnedFd,
    launcher: Child,
    /// Standard input of the launcher; `None` once that has ended.
    stdin: Option<OwnedFd>,
    /// Bytes for standard input that are not written yet.
    input: Vec<u8>,
    /// Whether standard input ends after these bytes.
    input_ends: bool,
    streams: Vec<(LauncherStream, OwnedFd)>,
    output: OutputBuffer,
    progress: LauncherProgress,
    /// Time until which the exit code is kept, once the launcher has ended.
    deadline: Option<Instant>,
    /// The attached client, which is sent the output.
    viewer: Option<AttachedClient>,
    /// Clients that are not attached, with the reply that each waits for.
    pending_clients: Vec<(AttachConnection, Awaited)>,
}

/// Reply that a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaited {
    /// None, since the request has not arrived.
    Nothing,
    Start,
    End,
}

/// Source of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Polled {
    Listener,
    Launcher,
    Stdin,
    Stream(usize),
    Viewer,
    Other(usize),
}

fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

impl AttachServer {
    fn start(args: &[OsString], job: &str, listener: OwnedFd) -> io::Result<Self> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let ((stdin_theirs, stdin), (stdout, stdout_theirs), (stderr, stderr_theirs)) =
            (pipe()?, pipe()?, pipe()?);
        let theirs = [&stdin_theirs, &stdout_theirs, &stderr_theirs].map(AsFd::as_fd);
        let launcher = start("run", args, (NAME, job), theirs)?;
        [&stdin, &stdout, &stderr]
            .into_iter()
            .try_for_each(nonblocking)?;
        Ok(Self {
            listener,
            launcher,
            stdin: Some(stdin),
            input: Vec::new(),
            input_ends: false,
            streams: vec![
                (LauncherStream::Stdout, stdout),
                (LauncherStream::Stderr, stderr),
            ],
            output: OutputBuffer::new(KEPT),
            progress: LauncherProgress::default(),
            deadline: None,
            viewer: None,
            pending_clients: Vec::new(),
        })
    }

    /// Serves until a client has shown everything and has the exit status, or until the exit status is no longer kept.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let left = self.deadline;
            let left = left.map(|deadline| deadline.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            for (polled, ready) in self.wait(left, now)? {
                match polled {
                    Polled::Listener => self.accept(),
                    Polled::Launcher => self.launcher_ended()?,
                    Polled::Stdin => self.write_input(),
                    // Clients are served between two reads.
                    Polled::Stream(at) => {
                        self.read_output(at);
                    }
                    Polled::Viewer => self.on_viewer_ready(ready),
                    Polled::Other(at) => self.on_client_readable(at),
                }
            }
            if let Some(viewer) = &mut self.viewer
                && !viewer.send(&self.output, &self.progress, Instant::now())
            {
                self.viewer = None;
            }
        }
    }

    /// Waits for events, at most for the time `left`.
    fn wait(&self, left: Option<Duration>, now: Instant) -> io::Result<Vec<(Polled, PollFlags)>> {
        let mut what: Vec<(Polled, BorrowedFd<'_>, PollFlags)> = Vec::new();
        if self.pending_clients.len() < CLIENTS_MAX {
            what.push((Polled::Listener, self.listener.as_fd(), PollFlags::IN));
        }
        if self.progress.code.is_none() {
            let pidfd = self.launcher.pidfd.as_fd();
            what.push((Polled::Launcher, pidfd, PollFlags::IN));
        }
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.input.is_empty()) {
            what.push((Polled::Stdin, stdin.as_fd(), PollFlags::OUT));
        }
        // A client that shows the output delays the job, so that no output is lost.
        let viewer = self.viewer.as_ref().filter(|_| !self.output.has_room());
        let patience = viewer.map_or(Duration::ZERO, |viewer| viewer.patience(now));
        if patience.is_zero() {
            let streams = self.streams.iter().enumerate();
            what.extend(
                streams.map(|(at, (_, fd))| (Polled::Stream(at), fd.as_fd(), PollFlags::IN)),
            );
        }
        if let Some(viewer) = &self.viewer {
            let flags = viewer.interest(self.input.len() < INPUT);
            what.push((Polled::Viewer, viewer.as_fd(), flags));
        }
        let others = self.pending_clients.iter().enumerate();
        what.extend(others.map(|(at, (one, _))| (Polled::Other(at), one.as_fd(), PollFlags::IN)));
        let left = [left, Some(patience).filter(|patience| !patience.is_zero())];
        let left = left.into_iter().flatten().min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let fds = what
            .iter()
            .map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        wait_for_events(&mut fds, left.as_ref())?;
        let polled = what.iter().map(|(polled, ..)| *polled);
        let ready = polled.zip(fds.iter().map(PollFd::revents));
        // The highest index first, so that a removal does not move those that follow.
        let mut ready: Vec<_> = ready.filter(|(_, flags)| !flags.is_empty()).collect();
        ready.reverse();
        Ok(ready)
    }

    fn accept(&mut self) {
        while self.pending_clients.len() < CLIENTS_MAX
            && let Some(socket) = accept(&self.listener)
        {
            let connection = AttachConnection::new(socket);
            self.pending_clients.push((connection, Awaited::Nothing));
        }
    }

    fn launcher_ended(&mut self) -> io::Result<()> {
        let code = match wait(&self.launcher.pidfd)? {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal { number, .. } => u8::try_from(128 + number).unwrap_or(u8::MAX),
        };
        // The launcher may have reported the start just before.
        self.accept();
        for at in (0..self.pending_clients.len()).rev() {
            self.on_client_readable(at);
        }
        self.progress.lookup_wait = None;
        self.progress.code = Some(code);
        self.deadline = Some(Instant::now() + UNASKED);
        // Processes that the launcher left may have the other ends of its pipes.
        self.drain_output();
        self.stdin = None;
        self.streams.clear();
        for (connection, awaited) in std::mem::take(&mut self.pending_clients) {
            match awaited {
                Awaited::End => self.answer(connection),
                Awaited::Start => {
                    let client = self.new_viewer(connection);
                    self.show_to(client);
                }
                Awaited::Nothing => self.pending_clients.push((connection, awaited)),
            }
        }
        Ok(())
    }

    /// Creates a client that is sent the output from the position that was shown last.
    fn new_viewer(&mut self, connection: AttachConnection) -> AttachedClient {
        // The client before it may have reported what it has shown.
        self.on_viewer_ready(PollFlags::IN);
        AttachedClient::new(connection, self.output.shown(), Instant::now())
    }

    /// Attaches this client, in place of the one before.
    fn show_to(&mut self, client: AttachedClient) {
        let replaced = self.viewer.replace(client);
        let waiting = replaced.and_then(AttachedClient::into_waiting_connection);
        self.pending_clients
            .extend(waiting.map(|connection| (connection, Awaited::Start)));
        self.take_messages();
    }

    /// Handles the end of the launcher's look-ups: reads everything that it wrote before.
    fn on_looked_up(&mut self) {
        self.drain_output();
        self.end_lookups();
    }

    /// Stores the position after the output of the look-ups, if it is not known yet.
    fn end_lookups(&mut self) {
        let end = &mut self.progress.lookup_output_end;
        end.get_or_insert_with(|| self.output.end());
    }

    /// Handles the start of all ranks.
    fn on_start(&mut self) {
        // The report of the end of the look-ups may have failed.
        self.end_lookups();
        self.progress.is_started = true;
        let awaits = |other: &mut (AttachConnection, Awaited)| other.1 == Awaited::Start;
        for (mut connection, _) in self.pending_clients.extract_if(.., awaits) {
            // The socket of a new client has room for the message.
            connection.send(&AttachReply::Started);
        }
    }

    /// Sends the exit code to a client that waits. The socket of a new client has room for the message.
    fn answer(&mut self, mut connection: AttachConnection) {
        if let Some(code) = self.progress.code
            && connection.send(&AttachReply::Ended(code))
        {
            self.shorten(ASKED);
        }
    }

    /// Keeps the exit code for this time at most.
    fn shorten(&mut self, time: Duration) {
        let deadline = self.deadline;
        self.deadline = deadline.map(|deadline| deadline.min(Instant::now() + time));
    }

    fn write_input(&mut self) {
        let Some(stdin) = &self.stdin else {
            self.input.clear();
            return;
        };
        match rustix::io::write(stdin, &self.input) {
            Ok(written) => drop(self.input.drain(..written)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // No rank reads standard input any more.
            Err(_) => {
                self.input.clear();
                self.stdin = None;
            }
        }
        if self.input.is_empty() && self.input_ends {
            self.stdin = None;
        }
    }

    /// Reads once from a stream of the launcher. Returns whether there may be more.
    fn read_output(&mut self, at: usize) -> bool {
        let Some((stream, fd)) = self.streams.get(at) else {
            return false;
        };
        let mut bytes = vec![0; PIECE];
        match rustix::io::read(fd, &mut bytes) {
            Ok(0) => {
                self.streams.remove(at);
                false
            }
            Ok(count) => {
                self.output.push(*stream, &bytes[..count]);
                true
            }
            Err(errno) => errno == Errno::INTR,
        }
    }

    /// Reads everything that the launcher has written.
    fn drain_output(&mut self) {
        for at in (0..self.streams.len()).rev() {
            while self.read_output(at) {}
        }
    }

    /// Reads requests of a client that is not attached, or removes it when it has disconnected.
    fn on_client_readable(&mut self, at: usize) {
        if at >= self.pending_clients.len() {
            return;
        }
        let (mut connection, mut awaited) = self.pending_clients.remove(at);
        let is_open = connection.read();
        loop {
            match connection.next() {
                Ok(Some(AttachRequest::Started)) if is_from(&connection, self.launcher.pid) => {
                    return self.on_start();
                }
                Ok(Some(AttachRequest::LookedUp)) if is_from(&connection, self.launcher.pid) => {
                    return self.on_looked_up();
                }
                Ok(Some(AttachRequest::LookupWait(source)))
                    if is_from(&connection, self.launcher.pid) =>
                {
                    self.progress.lookup_wait = source;
                    return;
                }
                _ if !is_open => return,
                Ok(Some(AttachRequest::Attach)) => {
                    let client = self.new_viewer(connection);
                    return self.show_to(client);
                }
                Ok(Some(AttachRequest::Wait)) if self.progress.code.is_some() => {
                    return self.answer(connection);
                }
                Ok(Some(AttachRequest::Wait)) => awaited = Awaited::End,
                Ok(Some(AttachRequest::AwaitStart)) => {
                    let client = self.new_viewer(connection).awaiting_start();
                    return self.show_to(client);
                }
                Ok(Some(AttachRequest::Signal(signal))) if awaited == Awaited::Start => {
                    self.signal(signal);
                }
                // Another client shows the output now.
                Ok(Some(AttachRequest::Shown(_))) if awaited == Awaited::Start => {}
                Ok(None) => return self.pending_clients.push((connection, awaited)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }

    fn on_viewer_ready(&mut self, ready: PollFlags) {
        let gone = PollFlags::HUP | PollFlags::ERR;
        if !ready.intersects(PollFlags::IN | gone) {
            return;
        }
        let there = self.viewer.as_mut().is_some_and(AttachedClient::read);
        // Messages of a client that has disconnected count as well.
        self.take_messages();
        if !there {
            self.viewer = None;
        }
    }

    fn take_messages(&mut self) {
        while let Some(viewer) = &mut self.viewer {
            match viewer.next() {
                Ok(Some(AttachRequest::Input(bytes))) => {
                    self.input_ends |= bytes.is_empty();
                    self.input.extend_from_slice(&bytes);
                    self.write_input();
                }
                Ok(Some(AttachRequest::Signal(signal))) => self.signal(signal),
                Ok(Some(AttachRequest::Shown(bytes))) => {
                    let position = viewer.shows(bytes, Instant::now());
                    self.output.show(position);
                }
                Ok(Some(AttachRequest::KnowsEnd)) => {
                    // Only this client has the name of a job that has not started.
                    self.shorten(match self.progress.is_started {
                        true => KNOWN,
                        false => Duration::ZERO,
                    });
                }
                Ok(None) => return,
                Ok(Some(_)) | Err(_) => self.viewer = None,
            }
        }
    }

    fn signal(&self, signal: i32) {
        // Until the launcher is reaped, its pid cannot belong to another process.
        if self.progress.code.is_none()
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            let _ = rustix::process::kill_process(self.launcher.pid, signal);
        }
    }
}
