//! Looking into the ranks here with gdb: one for all of them, which attaches to one after another.
//!
//! It is a child like any other of this process: its output and its end are waited for by the loop, and it is
//! ended when it takes too long or when the job ends.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, kill_process, kill_process_group};
use serde::Deserialize;

use super::{LocalBackend, RankSlot, raw};
use crate::backend::inspection::{Finding, Inspection, Look};
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
    /// What it looks into, and whether that was stopped before.
    ranks: Vec<(GlobalRank, i32, bool)>,
    /// What is known of the dump that it looks into.
    dump: Option<String>,
    /// When it is asked to end, and then killed.
    until: Duration,
    asked: bool,
}

/// What a gdb is started for.
struct What {
    ticket: u32,
    /// As the script names it.
    look: &'static str,
    /// Where cores go, or where the dump is, and its program.
    place: Option<PathBuf>,
    program: Option<PathBuf>,
    /// What is known of the dump.
    dump: Option<String>,
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
        if inspection.look == Look::Dump {
            return self.inspect_dump(&inspection);
        }
        let running = inspection.ranks.iter().filter_map(|rank| {
            let node = self.jobs.node_of(*rank)?;
            if !self.part.holds(node) {
                return None;
            }
            match self.slot(*rank) {
                RankSlot::Running { child, .. } => Some((*rank, raw(child.pid))),
                RankSlot::Planned | RankSlot::Over => None,
            }
        });
        let running: Vec<(GlobalRank, i32)> = running.collect();
        let path = std::env::var_os("PATH");
        let failure = if running.is_empty() {
            String::new()
        } else if let Some(gdb) = find_gdb(path.as_deref()) {
            let (look, directory) = match inspection.look {
                Look::Stacks { python: false } | Look::Dump => ("stacks", None),
                Look::Stacks { python: true } => ("python", None),
                Look::Core(directory) => ("core", Some(directory)),
            };
            let what = What {
                ticket,
                look,
                place: directory,
                program: None,
                dump: None,
            };
            match self.start_gdb(gdb, path, &running, what) {
                Ok(()) => return,
                Err(errno) => format!("gdb cannot be started: {errno}"),
            }
        } else {
            "gdb is not installed there".to_owned()
        };
        let nothing = |(rank, _)| Finding {
            rank,
            found: Err(failure.clone()),
        };
        let findings = running.into_iter().map(nothing).collect();
        self.tell_found(ticket, findings);
    }

    /// Looks into the dump of a rank, if there is one here.
    fn inspect_dump(&mut self, inspection: &Inspection) {
        let ticket = inspection.ticket;
        let mut ranks = inspection.ranks.iter();
        let found = ranks.find_map(|rank| Some((*rank, self.dump_of(*rank)?)));
        let Some((rank, (dump, program))) = found else {
            return self.tell_found(ticket, Vec::new());
        };
        let path = std::env::var_os("PATH");
        if let (Some(file), Some(gdb)) = (dump.file, find_gdb(path.as_deref())) {
            let what = What {
                ticket,
                look: "dump",
                place: Some(file),
                program: Some(program),
                dump: Some(dump.text.clone()),
            };
            if self.start_gdb(gdb, path, &[(rank, 0)], what).is_ok() {
                return;
            }
        }
        let found = Ok(vec![dump.text]);
        self.tell_found(ticket, vec![Finding { rank, found }]);
    }

    fn start_gdb(
        &mut self,
        gdb: PathBuf,
        path: Option<OsString>,
        running: &[(GlobalRank, i32)],
        what: What,
    ) -> Result<(), Errno> {
        let ranks = running.iter().map(|(rank, pid)| format!("{rank}:{pid}"));
        let ranks: Vec<String> = ranks.collect();
        let home = std::env::var_os("HOME");
        let variables: [(&str, Option<OsString>); 9] = [
            ("PATH", path),
            ("HOME", home),
            ("LC_ALL", Some("C.UTF-8".into())),
            ("WIREUP_LOOK", Some(what.look.into())),
            ("WIREUP_RANKS", Some(ranks.join(",").into())),
            ("WIREUP_LINES", Some(LINES_FD.to_string().into())),
            ("WIREUP_PLACE", what.place.map(PathBuf::into_os_string)),
            ("WIREUP_PROGRAM", what.program.map(PathBuf::into_os_string)),
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
            program: &program,
            argv: &argv,
            env: &[&env],
            cwd: None,
            descriptors: &[
                (null.as_fd(), 0),
                (null.as_fd(), 1),
                (null.as_fd(), 2),
                (theirs.as_fd(), LINES_FD),
            ],
            terminal: false,
            limits: &[],
            umask: None,
            reset_signals: &reset,
            namespaces: None,
            group: None,
            oom_score: None,
            crowded: false,
            stopped: false,
        });
        let child = child.map_err(|error| error.errno)?;
        let watched = self
            .poll
            .add(&lines, Token::new(Source::Inspection, what.ticket));
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
            dump: what.dump,
            until: self.now() + limit,
            asked: false,
        };
        self.inspections.0.insert(what.ticket, gdb);
        if let Err(errno) = watched {
            self.end_gdb(what.ticket);
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

    /// The job ends: nobody waits for what is found any more.
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

    fn tell_found(&mut self, ticket: u32, findings: Vec<Finding>) {
        let node = self.part.nodes(self.jobs.nodes()).next();
        self.tell(FromBackend::Inspected {
            node: node.unwrap_or(NodeId(0)),
            ticket,
            findings,
        });
    }
}

/// What a gdb that has ended had found.
fn findings(gdb: &Gdb) -> Vec<Finding> {
    let lines = gdb.printed.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    let mut found: BTreeMap<u32, Result<Vec<String>, String>> = lines
        .map(|line| (line.rank, line.error.map_or(Ok(line.found), Err)))
        .collect();
    let late = || Err("gdb did not come to it, or ended before".to_owned());
    let ranks = gdb.ranks.iter().map(|(rank, _, _)| {
        let found = found.remove(&rank.0).unwrap_or_else(late);
        let found = match &gdb.dump {
            Some(text) => Ok(std::iter::once(text.clone())
                .chain(found.unwrap_or_default())
                .collect()),
            None => found,
        };
        Finding { rank: *rank, found }
    });
    ranks.collect()
}
