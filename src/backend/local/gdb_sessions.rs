//! Inspects local ranks with gdb: one process for all of them, which attaches to one after another.
//!
//! The loop waits for its output and its end. It is ended when it takes too long or when the job ends.

use std::collections::{BTreeMap, VecDeque};
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

use super::step_context::StepContext;
use super::{local_usage, process_traces};
use crate::backend::inspection::{
    Dump, Inspection, InspectionError, InspectionKind, InspectionResult, RankInspection, Stack,
};
use crate::backend::step_messages::StepToLauncher;
use crate::plan::rank_env::entry;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_sys::descriptors::open_null;
use wireup_sys::poll::{PollSource, PollToken};
use wireup_sys::procfs;
use wireup_sys::spawn::{Child, ChildCommand, ProcessSpawner, wait};

/// Python script that gdb runs.
const SCRIPT: &str = include_str!("look_at_ranks.py");

/// Descriptor on which the script prints its results.
const LINES_FD: i32 = 3;

/// Time for the start of gdb and the first rank, on a busy machine.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);

/// Time for each further rank.
const LIMIT_OF_RANK: Duration = Duration::from_secs(30);

/// Time for all ranks of a host; shorter than the time for which the launcher waits.
const LIMIT_OF_HOST: Duration = Duration::from_secs(240);

/// Time between SIGTERM, on which gdb detaches, and SIGKILL.
const FAREWELL: Duration = Duration::from_secs(3);

/// Maximum size of the output in bytes.
const OUTPUT_MAX: usize = 32 * 1024 * 1024;

/// A gdb that runs.
#[derive(Debug)]
struct GdbSession {
    child: Child,
    lines: OwnedFd,
    /// Incomplete last line of the output.
    printed: Vec<u8>,
    /// Size of the output so far in bytes.
    size: usize,
    /// Ranks without a result yet, in the order of inspection, each with its pid and whether it was stopped before.
    ranks: VecDeque<(GlobalRank, i32, bool)>,
    purpose: Purpose,
    /// Time at which it is terminated, and then killed.
    deadline: Duration,
    /// Timeout from which `deadline` is computed.
    limit: Duration,
    end_requested: bool,
    /// Rank that it inspected when it was terminated.
    late: Option<GlobalRank>,
    /// Time after which the remaining ranks are not inspected by another gdb.
    give_up: Duration,
}

impl GdbSession {
    /// Returns the results of the complete lines. Each result extends the deadline for the next rank.
    fn take_findings(&mut self, now: Duration) -> Vec<RankInspection> {
        let Some(end) = self.printed.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.printed.split_off(end + 1);
        let lines = std::mem::replace(&mut self.printed, rest);
        let lines = lines.split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| serde_json::from_slice::<GdbOutput>(line).ok());
        let mut findings = Vec::new();
        for line in lines {
            let at = self
                .ranks
                .iter()
                .position(|(rank, _, _)| rank.0 == line.rank);
            let Some((rank, _, _)) = at.and_then(|at| self.ranks.remove(at)) else {
                continue;
            };
            let result = self.purpose.found(match line.error {
                Some(text) => Err(InspectionError::Gdb(text)),
                None => Ok(Stack {
                    frames: line.found,
                    note: line.note,
                }),
            });
            findings.push(RankInspection { rank, result });
            if !self.end_requested {
                self.limit = LIMIT_OF_RANK;
                self.deadline = now + self.limit;
            }
        }
        findings
    }
}

/// Purpose of a gdb process.
#[derive(Debug)]
enum Purpose {
    Stacks {
        python: bool,
        path: Option<String>,
    },
    /// Core files are written into this directory.
    Cores(PathBuf),
    Dump {
        file: PathBuf,
        program: PathBuf,
        /// Description of the dump that needs no gdb.
        text: String,
    },
}

impl Purpose {
    /// Returns the variables that describe the purpose to the script: its name, the directory of the core files or the file
    /// of the dump, and the program that dumped its memory.
    fn variables(&self) -> Vec<(&'static str, &OsStr)> {
        let look = |name: &'static str| ("WIREUP_LOOK", OsStr::new(name));
        match self {
            Self::Stacks { python: false, .. } => vec![look("stacks")],
            Self::Stacks { python: true, .. } => vec![look("python")],
            Self::Cores(directory) => vec![look("core"), ("WIREUP_PLACE", directory.as_os_str())],
            Self::Dump { file, program, .. } => vec![
                look("dump"),
                ("WIREUP_PLACE", file.as_os_str()),
                ("WIREUP_PROGRAM", program.as_os_str()),
            ],
        }
    }

    /// Returns `PATH` of the caller.
    fn path(&self) -> Option<&OsStr> {
        match self {
            Self::Stacks { path, .. } => path.as_deref().map(OsStr::new),
            Self::Cores(_) | Self::Dump { .. } => None,
        }
    }

    /// Returns the result for a rank from a line of the script.
    fn found(
        &self,
        line: Result<Stack, InspectionError>,
    ) -> Result<InspectionResult, InspectionError> {
        match self {
            Self::Stacks { .. } => line.map(InspectionResult::Stack),
            Self::Cores(_) => {
                line.map(|mut line| InspectionResult::Core(line.frames.pop().unwrap_or_default()))
            }
            Self::Dump { text, .. } => Ok(InspectionResult::Dump(Dump {
                text: text.clone(),
                frames: line.map(|line| line.frames).unwrap_or_default(),
            })),
        }
    }
}

/// Running gdb processes, by the ticket of the inspection.
#[derive(Debug, Default)]
pub(super) struct GdbSessions(BTreeMap<u32, GdbSession>);

impl GdbSessions {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.0.values().map(|gdb| gdb.deadline).min()
    }
}

/// Line of the script's output.
#[derive(Deserialize)]
struct GdbOutput {
    rank: u32,
    #[serde(default)]
    found: Vec<String>,
    error: Option<String>,
    note: Option<String>,
}

/// Returns the directories in which debuggers are searched: `PATH` of this process, then that of the caller, then the
/// usual directories.
fn search_path(caller: Option<&OsStr>) -> OsString {
    let own = std::env::var_os("PATH");
    let named = own.as_deref().into_iter().chain(caller);
    let mut directories: Vec<PathBuf> = Vec::new();
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    // A relative directory of the caller would be a different one in this process.
    let named = named.flat_map(std::env::split_paths);
    for directory in named.filter(|dir| dir.is_absolute()).chain(usual) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    std::env::join_paths(directories).unwrap_or_default()
}

/// Returns the path of gdb.
fn find_gdb(path: &OsStr) -> Option<PathBuf> {
    let mut files = std::env::split_paths(path).map(|dir| dir.join("gdb"));
    files.find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
}

impl GdbSessions {
    /// Inspects ranks. Reports [`StepToLauncher::InspectionResult`]; one of them is marked as the last.
    pub(super) fn inspect(&mut self, cx: &mut StepContext, inspection: Inspection) {
        let ticket = inspection.ticket;
        let purpose = match inspection.look {
            InspectionKind::Stacks { python, path } => Purpose::Stacks { python, path },
            InspectionKind::Core(directory) => Purpose::Cores(directory),
            InspectionKind::Dump => return self.inspect_dump(cx, ticket, &inspection.ranks),
            InspectionKind::Usage => {
                let running = local_usage::running(cx, &inspection.ranks);
                let findings = local_usage::usage_of(cx, &running);
                return report_findings(cx, ticket, findings, true);
            }
        };
        let running = local_usage::running(cx, &inspection.ranks);
        let give_up = cx.now() + LIMIT_OF_HOST;
        self.inspect_running(cx, ticket, &running, purpose, give_up);
    }

    /// Inspects these processes, and reports all of them if gdb cannot be started.
    fn inspect_running(
        &mut self,
        cx: &mut StepContext,
        ticket: u32,
        running: &[(GlobalRank, i32)],
        purpose: Purpose,
        give_up: Duration,
    ) {
        if running.is_empty() {
            return report_findings(cx, ticket, Vec::new(), true);
        }
        let Err(failure) = self.start_gdb(cx, ticket, running, purpose, give_up) else {
            return;
        };
        let nothing = |(rank, _): &(GlobalRank, i32)| RankInspection {
            rank: *rank,
            result: Err(failure.clone()),
        };
        let findings = running.iter().map(nothing).collect();
        report_findings(cx, ticket, findings, true);
    }

    /// Inspects the dump of a rank, if this host has one.
    fn inspect_dump(&mut self, cx: &mut StepContext, ticket: u32, ranks: &[GlobalRank]) {
        let mut ranks = ranks.iter();
        let found = ranks.find_map(|rank| Some((*rank, process_traces::dump_of(cx, *rank)?)));
        let Some((rank, (dump, program))) = found else {
            return report_findings(cx, ticket, Vec::new(), true);
        };
        if let Some(file) = dump.file {
            let purpose = Purpose::Dump {
                file,
                program,
                text: dump.text.clone(),
            };
            let now = cx.now();
            let started = self.start_gdb(cx, ticket, &[(rank, 0)], purpose, now);
            if started.is_ok() {
                return;
            }
        }
        let result = Ok(InspectionResult::Dump(Dump {
            text: dump.text,
            frames: Vec::new(),
        }));
        report_findings(cx, ticket, vec![RankInspection { rank, result }], true);
    }

    fn start_gdb(
        &mut self,
        cx: &mut StepContext,
        ticket: u32,
        running: &[(GlobalRank, i32)],
        purpose: Purpose,
        give_up: Duration,
    ) -> Result<(), InspectionError> {
        let path = search_path(purpose.path());
        let gdb = find_gdb(&path).ok_or(InspectionError::NotInstalled)?;
        let ranks = running.iter().map(|(rank, pid)| format!("{rank}:{pid}"));
        let ranks: Vec<String> = ranks.collect();
        let home = std::env::var_os("HOME");
        let own = [
            entry("PATH", path),
            home.and_then(|home| entry("HOME", home)),
            entry("LC_ALL", "C.UTF-8"),
            entry("WIREUP_RANKS", ranks.join(",")),
            entry("WIREUP_LINES", LINES_FD.to_string()),
            entry("WIREUP_SCRIPT", SCRIPT),
        ];
        let variables = purpose.variables().into_iter();
        let described = variables.map(|(name, value)| entry(name, value));
        let env: Vec<CString> = own.into_iter().chain(described).flatten().collect();
        let program = CString::new(gdb.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let run = c"python import os; exec(os.environ['WIREUP_SCRIPT'])";
        let words = [c"-nx", c"-q", c"-batch", c"-ex", run];
        let words = words.into_iter().map(std::ffi::CStr::to_owned);
        let argv: Vec<CString> = std::iter::once(program.clone()).chain(words).collect();
        let null = open_null()?;
        let (lines, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setfl(&lines, OFlags::NONBLOCK)?;
        let reset = cx.inherited_state.signals_to_reset();
        let child = ProcessSpawner::default().spawn(&ChildCommand {
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
        let watched = cx
            .poll
            .add(&lines, PollToken::new(PollSource::Inspection, ticket));
        let stopped = |pid: i32| procfs::process(pid).is_some_and(|process| process.is_stopped());
        let ranks = running
            .iter()
            .map(|(rank, pid)| (*rank, *pid, stopped(*pid)));
        cx.processes.add_owned(child.pid);
        let gdb = GdbSession {
            child,
            lines,
            printed: Vec::new(),
            size: 0,
            ranks: ranks.collect(),
            purpose,
            deadline: cx.now() + LIMIT_OF_FIRST,
            limit: LIMIT_OF_FIRST,
            end_requested: false,
            late: None,
            give_up,
        };
        self.0.insert(ticket, gdb);
        if let Err(errno) = watched {
            self.end_gdb(cx, ticket);
            return Err(errno.into());
        }
        Ok(())
    }

    /// Reads the output of a gdb. The end of the pipe is its end.
    pub(super) fn read(&mut self, cx: &mut StepContext, ticket: u32) {
        let now = cx.now();
        let Some(gdb) = self.0.get_mut(&ticket) else {
            return;
        };
        let mut buffer = [0; 16 * 1024];
        let ended = match rustix::io::read(&gdb.lines, &mut buffer) {
            Ok(0) => true,
            Ok(count) => {
                gdb.printed.extend_from_slice(&buffer[..count]);
                gdb.size += count;
                gdb.size > OUTPUT_MAX
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        };
        let findings = gdb.take_findings(now);
        if !findings.is_empty() {
            report_findings(cx, ticket, findings, false);
        }
        if ended {
            self.finish_gdb(cx, ticket);
        }
    }

    /// Ends a gdb, and reports the ranks without a result. If it took too long for one of them, another gdb inspects the
    /// following ones.
    fn finish_gdb(&mut self, cx: &mut StepContext, ticket: u32) {
        let Some(mut gdb) = self.end_gdb(cx, ticket) else {
            return;
        };
        let unread = |gdb: &GdbSession, rank, error| RankInspection {
            rank,
            result: gdb.purpose.found(Err(error)),
        };
        if gdb.end_requested && cx.now() < gdb.give_up {
            let mut found = Vec::new();
            // It may still have inspected that rank before it ended.
            let is_late = gdb
                .ranks
                .front()
                .is_some_and(|(rank, _, _)| Some(*rank) == gdb.late);
            if is_late && let Some((rank, _, _)) = gdb.ranks.pop_front() {
                let late = InspectionError::Timeout(gdb.limit.as_secs());
                found.push(unread(&gdb, rank, late));
            }
            let ranks: Vec<_> = gdb.ranks.iter().map(|(rank, _, _)| *rank).collect();
            let rest = local_usage::running(cx, &ranks);
            let has_ended = |rank: &&GlobalRank| rest.iter().all(|(running, _)| running != *rank);
            let ended = ranks.iter().filter(has_ended);
            found.extend(ended.map(|rank| unread(&gdb, *rank, InspectionError::NotReached)));
            report_findings(cx, ticket, found, false);
            return self.inspect_running(cx, ticket, &rest, gdb.purpose, gdb.give_up);
        }
        let ranks = gdb.ranks.iter();
        let rest = ranks.map(|(rank, _, _)| unread(&gdb, *rank, InspectionError::NotReached));
        let rest = rest.collect();
        report_findings(cx, ticket, rest, true);
    }

    /// Ends gdb processes that take too long.
    pub(super) fn tick(&mut self, cx: &mut StepContext, now: Duration) {
        let late = self.0.iter_mut();
        let late: Vec<u32> = late
            .filter(|(_, gdb)| gdb.deadline <= now)
            .filter_map(|(ticket, gdb)| {
                if std::mem::replace(&mut gdb.end_requested, true) {
                    return Some(*ticket);
                }
                // gdb detaches from its current rank.
                gdb.late = gdb.ranks.front().map(|(rank, _, _)| *rank);
                let _ = kill_process(gdb.child.pid, Signal::TERM);
                gdb.deadline = now + FAREWELL;
                None
            })
            .collect();
        for ticket in late {
            self.finish_gdb(cx, ticket);
        }
    }

    /// Ends all gdb processes: the job ends, and results are not needed any more.
    pub(super) fn end_all(&mut self, cx: &mut StepContext) {
        for ticket in self.0.keys().copied().collect::<Vec<_>>() {
            self.end_gdb(cx, ticket);
        }
    }

    /// Kills a gdb and reaps it.
    fn end_gdb(&mut self, cx: &mut StepContext, ticket: u32) -> Option<GdbSession> {
        let gdb = self.0.remove(&ticket)?;
        let _ = cx.poll.remove(&gdb.lines);
        let _ = kill_process_group(gdb.child.pid, Signal::KILL);
        let _ = wait(&gdb.child.pidfd);
        cx.processes.remove_owned(gdb.child.pid);
        // A gdb that was killed while attached has left its rank stopped.
        for (rank, pid, was_stopped) in &gdb.ranks {
            let process = procfs::process(*pid);
            if !was_stopped && process.is_some_and(|process| process.is_stopped()) {
                cx.slot(*rank).signal(Signal::CONT);
            }
        }
        cx.reap_orphans();
        Some(gdb)
    }
}

/// Reports results to the launcher, and whether they are the last of this inspection.
fn report_findings(
    cx: &mut StepContext,
    ticket: u32,
    findings: Vec<RankInspection>,
    is_last: bool,
) {
    let node = cx.scope.nodes(cx.jobs.nodes()).next();
    cx.report(StepToLauncher::Inspected {
        node: node.unwrap_or(NodeId(0)),
        ticket,
        findings,
        is_last,
    });
}
