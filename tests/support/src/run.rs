//! Runs of `wireup`, to be started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::clean::Sandbox;
use crate::outcome::Outcome;
use crate::running::{self, Running};
use crate::{DEADLINE, eventually, own_memory_peak_kib, pmix, wireup};

/// The variable that marks every process of a run, whatever session or parent it has.
pub const MARK: &str = "WIREUP_TEST_RUN";

/// Number of runs that this process has started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// Returns the number of runs that this process has started.
pub(crate) fn started() -> u32 {
    STARTED.load(Ordering::Relaxed)
}

/// Source of a run's standard input.
#[derive(Debug)]
enum Stdin {
    Empty,
    Bytes(Vec<u8>),
    File(File),
    /// Written by the test, see [`Running::stdin`].
    Held,
    /// A terminal of the run's own, for input and output, see [`Running::type_text`].
    Terminal,
}

/// Destination of a run's standard output.
#[derive(Debug)]
enum Stdout {
    /// Captured for [`Outcome::stdout`], as bytes.
    Captured,
    /// Read by the test, see [`Running::take_stdout`].
    Held,
    /// To a descriptor of the test's.
    To(File),
}

/// A run to be started.
#[derive(Debug)]
pub struct Run {
    command: Vec<OsString>,
    before: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Stdin,
    stdout: Stdout,
    deadline: Duration,
    clean_within: Duration,
    sandbox: Arc<Sandbox>,
    /// Index of the run's host, where there are others than this machine.
    host: usize,
}

impl Run {
    /// `wireup run` with these arguments.
    pub fn new<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        let run = [wireup().into(), OsString::from("run")];
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        Self::command(run.into_iter().chain(args))
    }

    /// `wireup run` of `count` ranks, more than there are cores if need be.
    pub fn ranks<A: AsRef<OsStr>>(count: u32, args: impl IntoIterator<Item = A>) -> Self {
        let mut run = Self::new(["--oversubscribe", "-n", &count.to_string()]);
        run.command
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        run
    }

    /// Appends arguments to the command.
    pub fn more<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        self.command.extend(args);
        self
    }

    /// Any command in place of `wireup run`: a shell that calls it, for instance.
    pub fn command<A: AsRef<OsStr>>(words: impl IntoIterator<Item = A>) -> Self {
        Self {
            command: words.into_iter().map(|w| w.as_ref().to_owned()).collect(),
            before: Vec::new(),
            env: Vec::new(),
            stdin: Stdin::Empty,
            stdout: Stdout::Captured,
            deadline: DEADLINE,
            clean_within: Duration::ZERO,
            sandbox: Arc::new(Sandbox::new()),
            host: 0,
        }
    }

    /// Runs the command on a host that is not this machine, in a sandbox made for it.
    pub fn on_host(mut self, host: usize, sandbox: &Arc<Sandbox>) -> Self {
        self.sandbox = Arc::clone(sandbox);
        self.host = host;
        self
    }

    /// Puts a command in front that executes the rest of its arguments: `setpriv`, `nohup` or
    /// `sh -c '… exec "$@"' sh`.
    pub fn under<A: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.before
            .extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Runs the rest below a shell that does `what` first.
    pub fn after_shell(self, what: &str) -> Self {
        self.under(["sh", "-c", &format!("{what} exec \"$@\""), "sh"])
    }

    /// Sets one environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.env.push(pair);
        self
    }

    /// Gives these bytes on standard input, through a pipe. Without this it is empty.
    pub fn stdin_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Stdin::Bytes(bytes.into());
        self
    }

    /// Gives a file as standard input.
    pub fn stdin_file(mut self, file: File) -> Self {
        self.stdin = Stdin::File(file);
        self
    }

    /// Leaves standard input, a pipe, to the test.
    pub fn stdin_held(mut self) -> Self {
        self.stdin = Stdin::Held;
        self
    }

    /// Runs on a terminal of its own, as leader of a session. What the terminal shows is captured
    /// as standard output.
    pub fn terminal(mut self) -> Self {
        self.stdin = Stdin::Terminal;
        self
    }

    /// Leaves the reading end of standard output, a pipe, to the test.
    pub fn stdout_held(mut self) -> Self {
        self.stdout = Stdout::Held;
        self
    }

    /// Sends standard output to a file or other descriptor.
    pub fn stdout_to(mut self, file: File) -> Self {
        self.stdout = Stdout::To(file);
        self
    }

    /// The most the run may take, from its start to the end of [`Running::finish`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Lets cleaning up take this long after the process has ended: for processes that are killed
    /// and leave it to their guard. Otherwise everything must be gone before they end.
    pub fn clean_within(mut self, time: Duration) -> Self {
        self.clean_within = time;
        self
    }

    /// Shares `TMPDIR` and `/dev/shm` with another run, for jobs that run at the same time.
    pub fn beside(mut self, other: &Run) -> Self {
        self.sandbox = Arc::clone(&other.sandbox);
        self
    }

    /// The directory the run starts in, and where it looks for the user's defaults file. The test may
    /// put files there; they are removed with it.
    pub fn dir(&self) -> &Path {
        self.sandbox.work()
    }

    /// Runs to the end and checks that nothing is left.
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.start().finish()
    }

    /// Runs until a rank of this name, which asks without end and never reads an answer, is stopped by
    /// a full socket, and fails if the launcher has taken much memory by then.
    #[track_caller]
    pub fn expect_held_back(self, name: &str) {
        let running = self.start();
        let writes = format!("{} ", libc::SYS_write);
        eventually("the rank sleeps in a write", || {
            running.processes().into_iter().find(|process| {
                let call = std::fs::read_to_string(format!("/proc/{}/syscall", process.pid));
                process.name == name && call.is_ok_and(|call| call.starts_with(&writes))
            })
        });
        let peak = own_memory_peak_kib(running.pid());
        assert!(peak < 8 * 1024, "{peak} KiB");
        running.signal(Signal::INT);
        running.finish().expect(130);
    }

    /// Starts, for a test that interacts with the run.
    #[track_caller]
    pub fn start(self) -> Running {
        let started = Instant::now();
        STARTED.fetch_add(1, Ordering::Relaxed);
        let id = self.sandbox.new_run_id();
        let terminal = matches!(self.stdin, Stdin::Terminal).then(running::open_terminal);
        let mut words = self.sandbox.mount_prefix();
        words.extend(self.before);
        if terminal.is_some() {
            words.extend(["setsid", "--ctty"].map(OsString::from));
        }
        words.extend(pmix::with_its_host(self.command));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            // Defaults of this machine and of its user do not count.
            .env("WIREUP_SITE_CONFIG", "")
            .env("XDG_CONFIG_HOME", self.sandbox.work())
            .env(MARK, &id)
            .envs(self.env);
        let mut typed = None;
        match self.stdin {
            Stdin::Empty => drop(command.stdin(Stdio::null())),
            Stdin::File(file) => drop(command.stdin(file)),
            Stdin::Held => drop(command.stdin(Stdio::piped())),
            Stdin::Bytes(bytes) => {
                command.stdin(Stdio::piped());
                typed = Some(bytes);
            }
            Stdin::Terminal => {}
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let held = matches!(self.stdout, Stdout::Held);
        if let Stdout::To(file) = self.stdout {
            command.stdout(file);
        }
        if let Some(terminal) = &terminal {
            let slave = || terminal.slave.try_clone().unwrap();
            command.stdin(slave()).stdout(slave()).stderr(slave());
        } else {
            // So that a Ctrl-C at the tests' own terminal, and the signals of a test, reach only
            // what they are meant for.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        let mut child = self
            .sandbox
            .spawn(self.host, &mut command)
            .unwrap_or_else(|error| panic!("cannot start {:?}: {error}", words[0]));
        if let Some(bytes) = typed {
            let mut pipe = child.stdin.take().unwrap();
            std::thread::spawn(move || {
                // A reader may end before it has read everything: the outcome shows it.
                let _ = pipe.write_all(&bytes);
            });
        }
        // The command holds descriptors of the terminal that must be closed for its end to show.
        drop(command);
        Running::new(running::Started {
            child,
            id,
            held_stdout: held,
            terminal: terminal.map(|terminal| terminal.master),
            started,
            deadline: started + self.deadline,
            clean_within: self.clean_within,
            sandbox: self.sandbox,
        })
    }
}
