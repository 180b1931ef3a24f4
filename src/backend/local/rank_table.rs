//! Table of the local ranks, each with its process, pipes and PMI socket.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, kill_process_group};
use tracing::Span;

use super::pipes::OutputPipes;
use super::push_pipes::PushPipe;
use crate::backend::step_messages::StepToLauncher;
use wireup_sys::channel::Channel;
use wireup_sys::spawn::Child;

/// Process of a rank, from its start until it is reaped.
#[derive(Debug)]
pub(super) struct RunningProcess {
    pub(super) child: Child,
    /// PMI socket of the rank.
    pub(super) pmi: Option<Channel>,
    /// Tracing span from its start to its end.
    pub(super) span: Span,
}

/// State of a rank's process.
#[derive(Debug, Default)]
enum RankProcessState {
    #[default]
    Planned,
    Running(RunningProcess),
    /// The process has ended, or was never started.
    Over,
}

/// Local rank with its process.
#[derive(Debug, Default)]
pub(super) struct RankProcess {
    state: RankProcessState,
    /// Pid of the process, also after its end.
    pid: Option<Pid>,
    /// Signals that are sent when the start of the process is reported.
    pub(super) deferred_signals: Vec<Signal>,
    /// Reports of the rank that wait until its start is reported.
    early_reports: Vec<StepToLauncher>,
    /// Writing end of the pipe to its standard input, until its feeder takes it.
    pub(super) stdin: Option<OwnedFd>,
    /// Pipe to its standard input that other processes fill.
    pub(super) pushed: Option<PushPipe>,
    /// Output pipes of the rank.
    pub(super) output: OutputPipes,
    /// Signal that killed the process, if the kernel dumped its memory.
    pub(super) dump_signal: Option<i32>,
}

impl RankProcess {
    /// Whether the process has not been started yet.
    pub(super) fn is_planned(&self) -> bool {
        matches!(self.state, RankProcessState::Planned)
    }

    /// Whether the process has ended, or was never started.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, RankProcessState::Over)
    }

    /// Returns the process, while it runs.
    pub(super) fn running(&self) -> Option<&RunningProcess> {
        match &self.state {
            RankProcessState::Running(running) => Some(running),
            RankProcessState::Planned | RankProcessState::Over => None,
        }
    }

    /// Returns the pid, while the process runs.
    pub(super) fn running_pid(&self) -> Option<Pid> {
        self.running().map(|running| running.child.pid)
    }

    /// Returns the PMI socket, while the process runs.
    pub(super) fn pmi_mut(&mut self) -> Option<&mut Channel> {
        match &mut self.state {
            RankProcessState::Running(running) => running.pmi.as_mut(),
            RankProcessState::Planned | RankProcessState::Over => None,
        }
    }

    /// Sends a signal to the process group, if the process runs.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.running_pid() {
            // The signal fails only for a group that has ended.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Returns the report if it can be sent now; stores it if the rank's start is not reported yet.
    pub(super) fn report(&mut self, report: StepToLauncher) -> Option<StepToLauncher> {
        if self.is_planned() {
            self.early_reports.push(report);
            return None;
        }
        Some(report)
    }

    /// Takes the reports that waited for the report of the start.
    pub(super) fn take_early_reports(&mut self) -> Vec<StepToLauncher> {
        std::mem::take(&mut self.early_reports)
    }

    /// Sets the started process and sends it the deferred signals.
    pub(super) fn run(&mut self, process: RunningProcess) {
        self.pid = Some(process.child.pid);
        self.state = RankProcessState::Running(process);
        for signal in std::mem::take(&mut self.deferred_signals) {
            self.signal(signal);
        }
    }

    /// Marks the process as never started.
    pub(super) fn skip(&mut self) {
        self.state = RankProcessState::Over;
        self.deferred_signals.clear();
    }

    /// Marks the process as ended, and returns it if it ran.
    pub(super) fn end(&mut self) -> Option<RunningProcess> {
        match std::mem::replace(&mut self.state, RankProcessState::Over) {
            RankProcessState::Running(running) => Some(running),
            RankProcessState::Planned | RankProcessState::Over => None,
        }
    }

    /// Takes the pipe to the rank's standard input, with the pid of its reader.
    pub(super) fn take_stdin(&mut self) -> Option<(Pid, OwnedFd)> {
        self.pid.zip(self.stdin.take())
    }

    /// Returns the pid and the signal, if the kernel dumped the memory of the process.
    pub(super) fn dump(&self) -> Option<(Pid, i32)> {
        self.pid.zip(self.dump_signal)
    }
}

/// Local ranks, by local index.
#[derive(Debug, Default)]
pub(super) struct ProcessTable(Vec<RankProcess>);

impl ProcessTable {
    /// Creates a table of this number of ranks, none of which is started.
    pub(super) fn new(size: u32) -> Self {
        let mut table = Self::default();
        table.grow(size);
        table
    }

    /// Appends this number of ranks.
    pub(super) fn grow(&mut self, ranks: u32) {
        let size = self.0.len() + ranks as usize;
        self.0.resize_with(size, RankProcess::default);
    }

    /// Returns the rank with this local index.
    pub(super) fn at(&self, index: usize) -> &RankProcess {
        &self.0[index]
    }

    /// Returns the rank with this local index, mutably.
    pub(super) fn at_mut(&mut self, index: usize) -> &mut RankProcess {
        &mut self.0[index]
    }

    /// Returns the number of local ranks.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the output pipes of the ranks.
    pub(super) fn outputs_mut(&mut self) -> impl Iterator<Item = &mut OutputPipes> {
        self.0.iter_mut().map(|rank| &mut rank.output)
    }

    /// Whether every process has ended or was never started.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(RankProcess::is_over)
    }

    /// Iterates over the pids of the ranks' processes, ended ones included.
    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.iter().filter_map(|rank| rank.pid)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
mod tests {
    use super::*;
    use wireup_core::job::ids::GlobalRank;
    use wireup_sys::spawn::{ChildCommand, ExitStatus, ProcessSpawner, wait};

    #[test]
    fn rank_report_waits_for_report_of_start() {
        let mut rank = RankProcess::default();
        let report = || StepToLauncher::Finalized {
            rank: GlobalRank(0),
        };
        assert_eq!(rank.report(report()), None);
        assert_eq!(rank.take_early_reports(), [report()]);
        rank.skip();
        assert_eq!(rank.report(report()), Some(report()));
        assert_eq!(rank.take_early_reports(), []);
    }

    #[test]
    fn deferred_signal_is_sent_when_process_runs() {
        let argv = [c"sleep".to_owned(), c"600".to_owned()];
        let command = ChildCommand::new(c"/bin/sleep", &argv);
        let child = ProcessSpawner::default().spawn(&command).unwrap();
        let (pid, span, pmi) = (child.pid, Span::none(), None);
        let mut rank = RankProcess::default();
        rank.deferred_signals.push(Signal::TERM);
        rank.run(RunningProcess { child, pmi, span });
        assert_eq!(rank.running_pid(), Some(pid));
        let ended = rank.end().unwrap();
        let (number, dumped) = (libc::SIGTERM, false);
        let expected = ExitStatus::Signal { number, dumped };
        assert_eq!(wait(&ended.child.pidfd), Ok(expected));
        assert!(rank.is_over() && rank.end().is_none());
        assert_eq!(rank.dump(), None);
        rank.dump_signal = Some(number);
        assert_eq!(rank.dump(), Some((pid, number)));
    }
}
