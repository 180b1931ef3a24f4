//! Looking into the ranks here with gdb: one for all of them, which attaches to one after another.
//!
//! It is a child like any other of this process: its output and its end are waited for by the loop, and it is
//! ended when it takes too long or when the job ends.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, kill_process, kill_process_group};
use serde::Deserialize;

use super::{LocalBackend, raw};
use crate::backend::inspection::{
    Dump, Inspected, InspectedRank, Inspection, InspectionError, Look,
};
use crate::backend::message::FromBackend;
use crate::sys::poll::{Source, Token};
use crate::sys::procfs;
use crate::sys::spawn::{Child, ChildCommand, Spawner, wait};
use wireup_core::job::ids::{GlobalRank, NodeId};

/// What gdb runs.
const SCRIPT: &str = include_str!("look_at_ranks.py");

/// The descriptor on which it prints what it finds.
const LINES_FD: i32 = 3;

/// How long gdb may take, and for each rank besides.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_PER_RANK: Duration = Duration::from_secs(2);

/// After that it is asked to let go, and then killed.
const FAREWELL: Duration = Duration::from_secs(3);

/// Most bytes that it may print.
const OUTPUT_MAX: usize = 32 * 1024 * 1024;

/// A gdb that runs.
#[derive(Debug)]
struct Gdb {
    child: Child,
    lines: OwnedFd,
    printed: Vec<u8>,
    /// The ranks that it inspects, and whether each was stopped before.
    ranks: Vec<(GlobalRank, i32, bool)>,
    purpose: Purpose,
    /// When it is asked to end, and then killed.
    until: Duration,
    asked: bool,
}

/// What a gdb is started for.
#[derive(Debug)]
enum Purpose {
    Stacks {
        python: bool,
    },
    /// Cores are written into this directory.
    Cores(PathBuf),
    Dump {
        file: PathBuf,
        program: PathBuf,
        /// What is known without gdb.
        text: String,
    },
}

impl Purpose {
    /// As the script names it.
    fn word(&self) -> &'static str {
        match self {
            Self::Stacks { python: false } => "stacks",
            Self::Stacks { python: true } => "python",
            Self::Cores(_) => "core",
            Self::Dump { .. } => "dump",
        }
    }

    /// Where cores go, or the file of the dump.
    fn place(&self) -> Option<&Path> {
        match self {
            Self::Stacks { .. } => None,
            Self::Cores(directory) => Some(directory),
            Self::Dump { file, .. } => Some(file),
        }
    }

    fn program(&self) -> Option<&Path> {
        match self {
            Self::Dump { program, .. } => Some(program),
            Self::Stacks { .. } | Self::Cores(_) => None,
        }
    }

    /// What was found in a rank by a line of the script.
    fn found(
        &self,
        line: Result<Vec<String>, InspectionError>,
    ) -> Result<Inspected, InspectionError> {
        match self {
            Self::Stacks { .. } => line.map(Inspected::Stack),
            Self::Cores(_) => {
                line.map(|mut files| Inspected::Core(files.pop().unwrap_or_default()))
            }
            Self::Dump { text, .. } => Ok(Inspected::Dump(Dump {
                text: text.clone(),
                frames: line.unwrap_or_default(),
            })),
        }
    }
}

/// By ticket.
#[derive(Debug, Default)]
pub(super) struct Inspections(BTreeMap<u32, Gdb>);

impl Inspections {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.0.values().map(|gdb| gdb.until).min()
    }
}

/// A line that the script prints.
#[derive(Deserialize)]
struct Line {
    rank: u32,
    #[serde(default)]
    found: Vec<String>,
    error: Option<String>,
}

/// Where gdb is: by the variable of this process, or where systems have it.
fn find_gdb(path: Option<&OsStr>) -> Option<PathBuf> {
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let named = path.map(|path| std::env::split_paths(path).collect());
    let directories: Vec<PathBuf> = named.unwrap_or_default();
    let mut files = directories.iter().chain(&usual).map(|dir| dir.join("gdb"));
    files.find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
}

impl LocalBackend {
    /// Looks into ranks. [`FromBackend::Inspected`] follows, once.
    pub(super) fn inspect(&mut self, inspection: Inspection) {
        let ticket = inspection.ticket;
        let purpose = match inspection.look {
            Look::Stacks { python } => Purpose::Stacks { python },
            Look::Core(directory) => Purpose::Cores(directory),
            Look::Dump => return self.inspect_dump(ticket, &inspection.ranks),
            Look::Usage => {
                let findings = self.usage_of(&self.running(&inspection.ranks));
                return self.tell_found(ticket, findings);
            }
        };
        let running = self.running(&inspection.ranks);
        let path = std::env::var_os("PATH");
        if running.is_empty() {
            return self.tell_found(ticket, Vec::new());
        }
        let started = match find_gdb(path.as_deref()) {
            Some(gdb) => self.start_gdb(gdb, path, &running, ticket, purpose),
            None => Err(InspectionError::NotInstalled),
        };
        let Err(failure) = started else {
            return;
        };
        let nothing = |(rank, _)| InspectedRank {
            rank,
            result: Err(failure.clone()),
        };
        let findings = running.into_iter().map(nothing).collect();
        self.tell_found(ticket, findings);
    }

    /// Looks into the dump of a rank, if there is one here.
    fn inspect_dump(&mut self, ticket: u32, ranks: &[GlobalRank]) {
        let mut ranks = ranks.iter();
        let found = ranks.find_map(|rank| Some((*rank, self.dump_of(*rank)?)));
        let Some((rank, (dump, program))) = found else {
            return self.tell_found(ticket, Vec::new());
        };
        let path = std::env::var_os("PATH");
        if let (Some(file), Some(gdb)) = (dump.file, find_gdb(path.as_deref())) {
            let purpose = Purpose::Dump {
                file,
                program,
                text: dump.text.clone(),
            };
            let started = self.start_gdb(gdb, path, &[(rank, 0)], ticket, purpose);
            if started.is_ok() {
                return;
            }
        }
        let result = Ok(Inspected::Dump(Dump {
            text: dump.text,
            frames: Vec::new(),
        }));
        self.tell_found(ticket, vec![InspectedRank { rank, result }]);
    }

    fn start_gdb(
        &mut self,
        gdb: PathBuf,
        path: Option<OsString>,
        running: &[(GlobalRank, i32)],
        ticket: u32,
        purpose: Purpose,
    ) -> Result<(), InspectionError> {
        let started = self.spawn_gdb(gdb, path, running, ticket, purpose);
        started.map_err(|errno| InspectionError::NotStarted(errno.raw_os_error()))
    }

    fn spawn_gdb(
        &mut self,
        gdb: PathBuf,
        path: Option<OsString>,
        running: &[(GlobalRank, i32)],
        ticket: u32,
        purpose: Purpose,
    ) -> Result<(), Errno> {
        let ranks = running.iter().map(|(rank, pid)| format!("{rank}:{pid}"));
        let ranks: Vec<String> = ranks.collect();
        let home = std::env::var_os("HOME");
        let variables: [(&str, Option<OsString>); 9] = [
            ("PATH", path),
            ("HOME", home),
            ("LC_ALL", Some("C.UTF-8".into())),
            ("WIREUP_LOOK", Some(purpose.word().into())),
            ("WIREUP_RANKS", Some(ranks.join(",").into())),
            ("WIREUP_LINES", Some(LINES_FD.to_string().into())),
            ("WIREUP_PLACE", purpose.place().map(OsString::from)),
            ("WIREUP_PROGRAM", purpose.program().map(OsString::from)),
            ("WIREUP_SCRIPT", Some(SCRIPT.into())),
        ];
        let set = variables.into_iter().filter_map(|(name, value)| {
            let mut variable = OsString::from(name);
            variable.push("=");
            variable.push(value?);
            CString::new(variable.as_bytes()).ok()
        });
        let env: Vec<CString> = set.collect();
        let program = CString::new(gdb.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let run = c"python import os; exec(os.environ['WIREUP_SCRIPT'])";
        let words = [c"-nx", c"-q", c"-batch", c"-ex", run];
        let words = words.into_iter().map(std::ffi::CStr::to_owned);
        let argv: Vec<CString> = std::iter::once(program.clone()).chain(words).collect();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        let (lines, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&lines, OFlags::NONBLOCK)?;
        let reset = self.surroundings.signals_to_reset();
        let child = Spawner::new().spawn(&ChildCommand {
            env: &[&env],
            descriptors: &[
                (null.as_fd(), 0),
                (null.as_fd(), 1),
                (null.as_fd(), 2),
                (theirs.as_fd(), LINES_FD),
            ],
            reset_signals: &reset,
            ..ChildCommand::new(&program, &argv)
        });
        let child = child.map_err(|error| error.errno)?;
        let watched = self
            .poll
            .add(&lines, Token::new(Source::Inspection, ticket));
        let stopped = |pid: i32| procfs::process(pid).is_some_and(|process| process.is_stopped());
        let ranks = running
            .iter()
            .map(|(rank, pid)| (*rank, *pid, stopped(*pid)));
        let limit = LIMIT + LIMIT_PER_RANK * u32::try_from(running.len()).unwrap_or(u32::MAX);
        self.owned.insert(raw(child.pid));
        let gdb = Gdb {
            child,
            lines,
            printed: Vec::new(),
            ranks: ranks.collect(),
            purpose,
            until: self.now() + limit,
            asked: false,
        };
        self.inspections.0.insert(ticket, gdb);
        if let Err(errno) = watched {
            self.end_gdb(ticket);
            return Err(errno);
        }
        Ok(())
    }

    /// Reads what a gdb has found. Its end is that of the pipe.
    pub(super) fn read_inspection(&mut self, ticket: u32) {
        let Some(gdb) = self.inspections.0.get_mut(&ticket) else {
            return;
        };
        let mut buffer = [0; 16 * 1024];
        let ended = match rustix::io::read(&gdb.lines, &mut buffer) {
            Ok(0) => true,
            Ok(count) => {
                gdb.printed.extend_from_slice(&buffer[..count]);
                gdb.printed.len() > OUTPUT_MAX
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        };
        if ended && let Some(gdb) = self.end_gdb(ticket) {
            self.tell_found(ticket, findings(&gdb));
        }
    }

    /// Ends those that take too long.
    pub(super) fn look_at_inspections(&mut self, now: Duration) {
        let late = self.inspections.0.iter_mut();
        let late: Vec<u32> = late
            .filter(|(_, gdb)| gdb.until <= now)
            .filter_map(|(ticket, gdb)| {
                if std::mem::replace(&mut gdb.asked, true) {
                    return Some(*ticket);
                }
                // It lets go of the rank that it is at.
                let _ = kill_process(gdb.child.pid, Signal::TERM);
                gdb.until = now + FAREWELL;
                None
            })
            .collect();
        for ticket in late {
            if let Some(gdb) = self.end_gdb(ticket) {
                self.tell_found(ticket, findings(&gdb));
            }
        }
    }

    /// The job ends: no result is needed any more.
    pub(super) fn end_inspections(&mut self) {
        for ticket in self.inspections.0.keys().copied().collect::<Vec<_>>() {
            self.end_gdb(ticket);
        }
    }

    /// Ends a gdb, whatever it does, and collects it.
    fn end_gdb(&mut self, ticket: u32) -> Option<Gdb> {
        let gdb = self.inspections.0.remove(&ticket)?;
        let _ = self.poll.remove(&gdb.lines);
        let _ = kill_process_group(gdb.child.pid, Signal::KILL);
        let _ = wait(&gdb.child.pidfd);
        self.owned.remove(&raw(gdb.child.pid));
        // One that was killed while it attached has left its rank stopped.
        for (rank, pid, was_stopped) in &gdb.ranks {
            let process = procfs::process(*pid);
            if !was_stopped && process.is_some_and(|process| process.is_stopped()) {
                self.signal_rank(*rank, Signal::CONT);
            }
        }
        self.reap_orphans();
        Some(gdb)
    }

    fn tell_found(&mut self, ticket: u32, findings: Vec<InspectedRank>) {
        let node = self.part.nodes(self.jobs.nodes()).next();
        self.tell(FromBackend::Inspected {
            node: node.unwrap_or(NodeId(0)),
            ticket,
            findings,
        });
    }
}

/// What a gdb that has ended had found.
fn findings(gdb: &Gdb) -> Vec<InspectedRank> {
    let lines = gdb.printed.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let mut printed: BTreeMap<u32, Line> = lines.map(|line| (line.rank, line)).collect();
    let ranks = gdb.ranks.iter().map(|(rank, _, _)| {
        let line = match printed.remove(&rank.0) {
            None => Err(InspectionError::NotReached),
            Some(Line {
                error: Some(text), ..
            }) => Err(InspectionError::Gdb(text)),
            Some(line) => Ok(line.found),
        };
        InspectedRank {
            rank: *rank,
            result: gdb.purpose.found(line),
        }
    });
    ranks.collect()
}
