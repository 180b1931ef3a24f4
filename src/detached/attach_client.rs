//! `wireup run --detach`, `wireup attach` and `wireup wait`: the clients of an attach server.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, kill_process};

use crate::detached::attach_messages::{AttachReply, AttachRequest, LauncherStream};
use crate::detached::detached_start::start;
use crate::detached::keeper_connection::{AttachConnection, InvalidMessage};
use crate::detached::{COMMAND, NAME, address, job_name_from_env};
use crate::plan::job_names::JobNames;
use crate::report::progress_line::StartupWait;
use crate::stdio::terminal_line;
use wireup_core::failure::CommandError;
use wireup_sys::descriptors;
use wireup_sys::poll::wait_for_events;
use wireup_sys::signals::{Signals, ignored_at_start};
use wireup_sys::spawn::{ExitStatus, wait as wait_for_end};

/// Bytes of input that are read, and sent, at once.
const PIECE: usize = 32 << 10;

/// Time in which an attach server must handle a report of its launcher.
const ANSWER_LIMIT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Job whose attach server this process has started. Signals are kept until the job is attached.
pub struct KeptJob {
    pub name: String,
    signals: Signals,
}

/// Starts an attach server for a launcher with these arguments after `run`. The launcher may not have parsed the arguments yet.
///
/// # Errors
/// [`CommandError`] if the attach server cannot be started.
pub fn start_keeper(args: &[OsString]) -> Result<KeptJob, CommandError> {
    let own =
        |error: io::Error| CommandError::system("cannot start the job's attach server", error);
    // A signal that ended this process would leave the attach server behind.
    let signals = take_signals()?;
    let job = JobNames::default().fresh()?;
    descriptors::reserve_low().map_err(|error| own(error.into()))?;
    let (ready, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| own(errno.into()))?;
    let (stdin, stderr) = (io::stdin(), io::stderr());
    let streams = [stdin.as_fd(), theirs.as_fd(), stderr.as_fd()];
    let keeper = start(COMMAND, args, (NAME, job.as_str()), streams).map_err(own)?;
    drop(theirs);
    let mut byte = [0];
    if std::fs::File::from(ready).read(&mut byte).map_err(own)? > 0 {
        let name = job.as_str().to_owned();
        return Ok(KeptJob { name, signals });
    }
    Err(match wait_for_end(&keeper.pidfd) {
        // The attach server has printed the reason on standard error.
        Ok(ExitStatus::Code(code)) => CommandError::Reported {
            code,
            message: "the job was not started".to_owned(),
        },
        _ => own(io::Error::other("killed")),
    })
}

impl KeptJob {
    /// Waits until all ranks of the job have been started, and shows what its launcher prints while it looks up hosts and other
    /// things. Returns the exit code if the launcher ends before, after all output was shown.
    /// Passes signals on as [`attach`] does.
    ///
    /// # Errors
    /// Those of [`attach`].
    pub fn await_start(self) -> Result<Option<u8>, CommandError> {
        let request = AttachRequest::AwaitStart;
        match connected(Some(&self.name), &request, false, self.signals)?.run()? {
            ClientEnd::Started | ClientEnd::Left => Ok(None),
            ClientEnd::Ended(code) => Ok(Some(code)),
        }
    }

    /// Attaches with standard input, as [`attach`] does.
    ///
    /// # Errors
    /// Those of [`attach`].
    pub fn attach(self) -> Result<u8, CommandError> {
        attached(Some(&self.name), true, self.signals)
    }
}

/// Reports to this launcher's attach server, if it has one, that all ranks have been started.
pub fn report_start() {
    report(&AttachRequest::Started, "the start");
}

/// Reports to this launcher's attach server, if it has one, that all look-ups are complete, and waits until the attach server
/// has read all output so far.
pub fn report_lookups() {
    report_in_order(&AttachRequest::LookedUp, "the end of the look-ups");
}

/// Reports to this launcher's attach server, if it has one, the source that a look-up waits for, or the end of that wait.
pub fn report_lookup_wait(source: Option<&str>) {
    let request = AttachRequest::LookupWait(source.map(str::to_owned));
    report_in_order(&request, "a look-up");
}

/// Sends a report to this launcher's attach server, if it has one, and waits until the attach server has handled it.
fn report_in_order(request: &AttachRequest, what: &str) {
    if let Some(mut connection) = report(request, what) {
        let mut in_time = true;
        while in_time && connection.read() {
            let mut fds = [PollFd::new(&connection, PollFlags::IN)];
            in_time = poll(&mut fds, Some(&ANSWER_LIMIT)) != Ok(0);
        }
    }
}

/// Sends a report to this launcher's attach server, and returns the connection.
fn report(request: &AttachRequest, what: &str) -> Option<AttachConnection> {
    let job = job_name_from_env()?;
    match address::connect_to_parent(&job) {
        Ok(socket) => {
            let mut connection = AttachConnection::new(socket);
            connection.send(request);
            Some(connection)
        }
        Err(errno) => {
            print_line(&format!(
                "warning: cannot report {what} to the job's attach server: {errno}"
            ));
            None
        }
    }
}

/// Waits for the ends of detached jobs, or of the only one if none is named. Returns the first exit code that is not 0.
///
/// # Errors
/// [`CommandError`] if a job does not exist, or its attach server was killed.
pub fn wait(jobs: &[String]) -> Result<u8, CommandError> {
    let connected = match jobs.is_empty() {
        true => vec![address::connect(None)?],
        false => {
            let connected = jobs.iter().map(|job| address::connect(Some(job)));
            connected.collect::<Result<Vec<_>, _>>()?
        }
    };
    let waiting = connected.into_iter().map(|(job, socket)| {
        let mut connection = AttachConnection::new(socket);
        connection.send(&AttachRequest::Wait);
        (job, connection)
    });
    // All requests are sent before the first wait.
    let waiting: Vec<_> = waiting.collect();
    let mut code = 0;
    for (job, connection) in waiting {
        let ended = wait_for_one(&job, connection)?;
        code = if code == 0 { ended } else { code };
    }
    Ok(code)
}

fn wait_for_one(job: &str, mut connection: AttachConnection) -> Result<u8, CommandError> {
    loop {
        let alive = connection.read();
        match connection.next().map_err(unreadable)? {
            Some(AttachReply::Ended(code)) => return Ok(code),
            Some(_) => {}
            None if alive => {
                let mut fds = [PollFd::new(&connection, PollFlags::IN)];
                wait_for_events(&mut fds, None).map_err(cannot_wait)?;
            }
            None => return Err(lost(job)),
        }
    }
}

fn unreadable(garbage: InvalidMessage) -> CommandError {
    CommandError::system("invalid message from the job's attach server", garbage)
}

fn lost(job: &str) -> CommandError {
    let text = format!("the attach server of job {job} was killed, which has ended the job");
    CommandError::system(text, "its exit status is not known")
}

fn cannot_wait(errno: Errno) -> CommandError {
    CommandError::system("cannot wait", errno)
}

/// Shows the output of a detached job that was not shown yet, and all that follows; passes on signals and, if chosen, standard
/// input. Without a name, the job is the only one. Returns the job's exit code, or 0 when the terminal is lost or the user
/// leaves the job.
///
/// # Errors
/// [`CommandError`] if the job does not exist, another client attaches, or the job's attach server was killed.
pub fn attach(job: Option<&str>, with_input: bool) -> Result<u8, CommandError> {
    // Signals are taken first, since any could end this process.
    attached(job, with_input, take_signals()?)
}

fn attached(job: Option<&str>, with_input: bool, signals: Signals) -> Result<u8, CommandError> {
    match connected(job, &AttachRequest::Attach, with_input, signals)?.run()? {
        ClientEnd::Started | ClientEnd::Left => Ok(0),
        ClientEnd::Ended(code) => Ok(code),
    }
}

fn take_signals() -> Result<Signals, CommandError> {
    Signals::take(&ignored_at_start(), false)
        .map_err(|errno| CommandError::system("cannot take signals", errno))
}

/// Connects a client that sends this request.
fn connected(
    job: Option<&str>,
    request: &AttachRequest,
    with_input: bool,
    signals: Signals,
) -> Result<Client, CommandError> {
    let (job, socket) = address::connect(job)?;
    let mut client = Client::new(job, socket, signals, with_input);
    client.connection.queue(request);
    Ok(client)
}

/// Prints a line on standard error; the terminal may be lost.
fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "wireup: {line}");
}

struct Client {
    job: String,
    connection: AttachConnection,
    signals: Signals,
    /// Whether standard input is still read.
    reads: bool,
    /// Whether standard input was a terminal at the start; a lost terminal does not count as one.
    terminal: bool,
    /// Source that a look-up of the launcher waits for, while a line at the end of the terminal shows it.
    lookup_wait: Option<String>,
}

/// Reason for which a client ends.
enum ClientEnd {
    /// All ranks have been started.
    Started,
    /// The terminal is lost, or the user leaves the job.
    Left,
    /// The job has ended with this code.
    Ended(u8),
}

/// Descriptors that are ready.
struct Ready {
    input: PollFlags,
    signalled: bool,
    readable: bool,
}

impl Client {
    fn new(job: String, socket: OwnedFd, signals: Signals, reads: bool) -> Self {
        Self {
            job,
            connection: AttachConnection::new(socket),
            signals,
            reads,
            terminal: io::stdin().is_terminal(),
            lookup_wait: None,
        }
    }

    fn run(mut self) -> Result<ClientEnd, CommandError> {
        let end = self.show_job();
        self.take_lookup_wait();
        if matches!(end, Ok(ClientEnd::Left)) {
            let job = &self.job;
            print_line(&format!(
                "job {job} continues; `wireup attach {job}` comes back to it"
            ));
        }
        end
    }

    fn show_job(&mut self) -> Result<ClientEnd, CommandError> {
        loop {
            let mut alive = self.connection.flush();
            let ready = self.wait()?;
            let leaves = ready.signalled && self.take_signals();
            let terminal_is_lost = self.is_loss(ready.input)
                || !ready.input.is_empty() && !leaves && self.read_input();
            if leaves || terminal_is_lost {
                return Ok(ClientEnd::Left);
            }
            alive &= !ready.readable || self.connection.read();
            while let Some(message) = self.connection.next().map_err(unreadable)? {
                match message {
                    AttachReply::Ended(code) => {
                        self.connection.send(&AttachRequest::KnowsEnd);
                        return Ok(ClientEnd::Ended(code));
                    }
                    AttachReply::Started => {
                        // Sends the report of the output that was shown.
                        self.connection.flush();
                        return Ok(ClientEnd::Started);
                    }
                    AttachReply::Lost(bytes) => {
                        self.take_lookup_wait();
                        print_line(&format!(
                            "{bytes} bytes of output before this were not kept"
                        ));
                        self.connection.queue(&AttachRequest::Shown(bytes));
                    }
                    AttachReply::Output(stream, bytes) => self.show(stream, &bytes)?,
                    AttachReply::LookupWait(source) => self.show_lookup_wait(source),
                }
            }
            if !alive {
                let job = &self.job;
                return Err(match address::has_attach_server(job) {
                    true => CommandError::request(format!(
                        "another `wireup attach` has taken over job {job}, which continues"
                    )),
                    false => lost(job),
                });
            }
        }
    }

    fn wait(&self) -> Result<Ready, CommandError> {
        let stdin = io::stdin();
        let stdin = stdin.as_fd();
        let queued = self.connection.queued() > 0;
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, queued);
        let mut fds = vec![
            PollFd::new(&self.connection, flags),
            PollFd::new(&self.signals, PollFlags::IN),
        ];
        // Input that was read is sent before more is read.
        if self.reads && !queued {
            fds.push(PollFd::new(&stdin, PollFlags::IN));
        }
        wait_for_events(&mut fds, None).map_err(cannot_wait)?;
        let flags = |at: usize| fds.get(at).map_or(PollFlags::empty(), PollFd::revents);
        let readable = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            input: flags(2),
            signalled: !flags(1).is_empty(),
            readable: flags(0).intersects(readable),
        })
    }

    /// Passes signals on. Returns whether the user leaves the job, or its session has ended.
    fn take_signals(&mut self) -> bool {
        while let Some(signal) = self.signals.pending() {
            match signal {
                Signal::HUP | Signal::QUIT => return true,
                // Stops this process only, like any process in front of a job.
                Signal::TSTP => drop(kill_process(getpid(), Signal::STOP)),
                Signal::CONT | Signal::CHILD => {}
                other => self
                    .connection
                    .queue(&AttachRequest::Signal(other.as_raw())),
            }
        }
        false
    }

    /// Whether these events mean that the terminal is lost. The kernel sends SIGHUP to the shell, which may pass it on later;
    /// until then a lost terminal looks like the end of the input, which the job must not get.
    fn is_loss(&self, flags: PollFlags) -> bool {
        self.terminal && flags.intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Passes input on. Returns whether the terminal is lost.
    fn read_input(&mut self) -> bool {
        let mut bytes = vec![0; PIECE];
        let read = rustix::io::read(io::stdin(), &mut bytes);
        let count = match read {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return false,
            Err(_) => 0,
        };
        self.reads = count > 0;
        if !self.reads {
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let now = poll(&mut fds, Some(&Timespec::default()));
            if now.is_ok() && self.is_loss(fds[0].revents()) {
                return true;
            }
        }
        // An error is not the end of the input: a process in the background may not read.
        if read.is_ok() {
            bytes.truncate(count);
            self.connection.queue(&AttachRequest::Input(bytes));
        }
        false
    }

    /// Shows on a terminal the source that a look-up of the launcher waits for, or removes that line.
    fn show_lookup_wait(&mut self, source: Option<String>) {
        self.take_lookup_wait();
        self.lookup_wait = source.filter(|_| io::stderr().is_terminal());
        if let Some(source) = &self.lookup_wait {
            let text = StartupWait::Lookup(source.clone()).text();
            let line = terminal_line::drawn(io::stderr(), &format!("wireup: {text}"));
            // The terminal may be lost.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }

    /// Removes the line about a look-up, and returns the source that the look-up waits for.
    fn take_lookup_wait(&mut self) -> Option<String> {
        let source = self.lookup_wait.take()?;
        let _ = io::stderr().write_all(terminal_line::ERASE.as_bytes());
        Some(source)
    }

    fn show(&mut self, stream: LauncherStream, bytes: &[u8]) -> Result<(), CommandError> {
        let lookup_wait = self.take_lookup_wait();
        let shown = match stream {
            LauncherStream::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            LauncherStream::Stderr => io::stderr().write_all(bytes),
        };
        shown.map_err(|error| {
            let text = format!(
                "cannot show the output of job {}, which continues",
                self.job
            );
            CommandError::system(text, error)
        })?;
        if bytes.ends_with(b"\n") {
            self.show_lookup_wait(lookup_wait);
        }
        self.connection
            .queue(&AttachRequest::Shown(bytes.len() as u64));
        Ok(())
    }
}
