//! Ends of ranks and jobs: failures, and the exit codes that they give.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{GlobalRank, NodeId};
use super::missing_ranks::MissingRanks;

/// `--on-failure requeue`: a rank, host or server was lost, and the launch may succeed when it is run
/// again; `EX_TEMPFAIL` of sysexits(3).
pub const EXIT_REQUEUE: u8 = 75;
/// A host was lost, or its part of the launch.
pub const EXIT_HOST: u8 = 122;
/// `--strict-pmi`: a program that loads an MPI did not use the offered interface.
pub const EXIT_ALONE: u8 = 123;
/// `--timeout` expired; the code of timeout(1).
pub const EXIT_TIMEOUT: u8 = 124;
/// wireup itself failed, or was called wrongly; the code env(1) and timeout(1) use.
pub const EXIT_WIREUP: u8 = 125;
/// The program exists and cannot be executed.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const EXIT_NOT_FOUND: u8 = 127;
/// Added to a signal's number.
pub const EXIT_SIGNAL: u8 = 128;
/// A failure that has no code of its own: a rank that left without finalizing, an abort with a
/// code that is 0 modulo 256, a broken protocol.
pub const EXIT_FAILURE: u8 = 1;

/// End of a rank's process, as the system reported it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RankEnd {
    /// Called exit with this code.
    Code(u8),
    /// Killed by this signal.
    Signal(i32),
}

impl RankEnd {
    /// Whether a signal killed the rank.
    pub fn is_signal(self) -> bool {
        matches!(self, Self::Signal(_))
    }

    /// Whether the end is likely to follow from that of another rank: an exit code, or a write to a connection that the other
    /// has closed. Other signals are causes of their own.
    pub fn may_follow_another(self) -> bool {
        const SIGPIPE: i32 = 13;
        matches!(self, Self::Code(_) | Self::Signal(SIGPIPE))
    }

    /// Returns the exit code: for a signal, 128 plus its number.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal_exit_code(signal),
        }
    }
}

fn signal_exit_code(signal: i32) -> u8 {
    EXIT_SIGNAL.wrapping_add((signal & 0x7f) as u8)
}

impl fmt::Display for RankEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
        }
    }
}

/// Names of the signals a program commonly dies of; Linux numbers common to x86-64 and aarch64.
pub fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// State of a rank in its process-management interface when it ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct PmiState {
    /// Whether the rank made contact at least once.
    pub contacted: bool,
    /// Whether the rank is between init and finalize.
    pub active: bool,
    /// The last thing it did, for people.
    pub last_activity: String,
}

/// Protocol of a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FenceKind {
    /// A barrier of PMI-1, a fence of PMI-2, or a ring.
    Pmi,
    /// A fence of PMIx.
    Pmix,
}

/// Fence that not all ranks have entered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LateFence {
    pub kind: FenceKind,
    /// Time since the first rank entered.
    pub waited: Duration,
    /// Ranks that take part.
    pub ranks: u32,
    pub absences: MissingRanks,
}

/// First failure of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FailureCause {
    /// A rank ended with a code other than 0, or by a signal.
    RankFailed { rank: GlobalRank, end: RankEnd },
    /// A rank exited with code 0 between init and finalize.
    NotFinalized { rank: GlobalRank },
    /// A rank exited without joining while others wait for all ranks.
    NeverJoined { rank: GlobalRank },
    /// A rank left in order while others wait for it: in a barrier, or for an attribute of their
    /// node that no other rank is left to put.
    ExitedEarly { rank: GlobalRank },
    /// A rank of a program that loads an MPI never used the interface, and the user made that a failure.
    Singleton {
        rank: GlobalRank,
        /// Reason and remedy, for the message.
        why: String,
    },
    /// A rank called abort.
    Aborted {
        rank: GlobalRank,
        /// The code it gave.
        code: i32,
        /// The text it gave, possibly empty.
        message: String,
    },
    /// A rank or a tool had the job ended, by a signal.
    TerminatedBy {
        /// Rank that requested the end; `None` for a tool.
        rank: Option<GlobalRank>,
        signal: i32,
    },
    /// A rank broke its protocol.
    Misbehaved { rank: GlobalRank, error: String },
    /// A rank's process could not be started.
    NotStarted {
        rank: GlobalRank,
        /// Reason and remedy, for the message.
        error: String,
        /// 126, 127 or [`EXIT_WIREUP`].
        code: u8,
    },
    /// The PMIx server of a node could not be started or was lost.
    SidecarFailed {
        node: NodeId,
        /// Reason and remedy, for the message.
        error: String,
    },
    /// A node cannot continue its part of the job, or was lost.
    NodeFailed {
        node: NodeId,
        /// Reason and remedy, for the message.
        error: String,
    },
    /// The launcher has lost all hosts, or all but its own: the fault is not theirs.
    LauncherIsolated {
        /// The lost part, the reason and the remedy.
        error: String,
    },
    /// A fence did not complete.
    FenceFailed { error: String },
    /// A fence timed out because of missing ranks.
    FenceTimeout(Box<LateFence>),
    /// The time of `--timeout` has passed.
    Timeout(Duration),
    /// A signal ended the launcher's run.
    Interrupted(i32),
    /// The launcher's own output could not be written.
    OutputLost {
        error: String,
        /// Whether the reader went away, which is reported by the exit code alone.
        pipe: bool,
    },
}

/// The consequence of a cause for the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consequence {
    /// The kind of the cause, in the status stream.
    pub name: &'static str,
    /// The exit code of the run.
    pub exit_code: u8,
    /// Whether the other ranks continue if the user lets them (`--on-failure continue`).
    pub is_survived: bool,
    /// Whether the launch is requeued if the user requests that (`--on-failure requeue`).
    pub is_requeued: bool,
}

/// Returns the exit code of an abort. Only its low byte exists, and an abort must not look like a success.
fn abort_exit_code(code: i32) -> u8 {
    match (code & 0xff) as u8 {
        0 => EXIT_FAILURE,
        code => code,
    }
}

/// Returns the exit code for output that could not be written: a reader that closed its pipe is reported as SIGPIPE.
fn lost_output_exit_code(pipe: bool) -> u8 {
    match pipe {
        true => signal_exit_code(13),
        false => EXIT_WIREUP,
    }
}

impl FailureCause {
    /// Returns the name, the exit code and the policies of the cause: one row each.
    ///
    /// A launch whose ranks continue survives the loss of a rank or a host, and of the data that only these had. It is
    /// ended by requests of ranks (an abort) and of the user, and by failures of the launch as a whole: a broken
    /// protocol, a PMIx server that fails, an isolated launcher. A requeued launch may well succeed after a loss. An
    /// exit code or an abort is the program's own decision, and an interrupt the user's.
    pub fn consequence(&self) -> Consequence {
        let row = |name, exit_code, is_survived, is_requeued| Consequence {
            name,
            exit_code,
            is_survived,
            is_requeued,
        };
        const NO: bool = false;
        const YES: bool = true;
        #[rustfmt::skip]
        let row = match self {
            //                                     name                  exit code                            survived  requeued
            Self::RankFailed { end, .. } =>    row("rank_failed",        end.exit_code(),                     YES,      end.is_signal()),
            Self::NotFinalized { .. } =>       row("not_finalized",      EXIT_FAILURE,                        YES,      NO),
            Self::NeverJoined { .. } =>        row("never_joined",       EXIT_FAILURE,                        NO,       NO),
            Self::ExitedEarly { .. } =>         row("left_others",        EXIT_FAILURE,                        NO,       NO),
            Self::Singleton { .. } =>           row("ran_alone",          EXIT_ALONE,                          NO,       NO),
            Self::Aborted { code, .. } =>      row("aborted",            abort_exit_code(*code),                     NO,       NO),
            Self::TerminatedBy { signal, .. } =>    row("ended_by_rank",      signal_exit_code(*signal),                  NO,       NO),
            Self::Misbehaved { .. } =>         row("misbehaved",         EXIT_FAILURE,                        NO,       NO),
            Self::NotStarted { code, .. } =>   row("not_started",        *code,                               NO,       NO),
            Self::SidecarFailed { .. } =>      row("pmix_server_failed", EXIT_WIREUP,                         NO,       YES),
            Self::NodeFailed { .. } =>         row("node_failed",        EXIT_HOST,                           YES,      YES),
            Self::LauncherIsolated { .. } =>             row("cut_off",            EXIT_HOST,                           NO,       YES),
            Self::FenceFailed { .. } =>        row("fence_failed",       EXIT_FAILURE,                        NO,       YES),
            Self::FenceTimeout(_) =>           row("fence_timeout",      EXIT_FAILURE,                        NO,       YES),
            Self::Timeout(_) =>                row("timeout",            EXIT_TIMEOUT,                        NO,       NO),
            Self::Interrupted(signal) =>       row("interrupted",        signal_exit_code(*signal),                  NO,       NO),
            Self::OutputLost { pipe, .. } =>   row("output_lost",        lost_output_exit_code(*pipe),               NO,       NO),
        };
        row
    }

    /// Returns the exit code of the run.
    pub fn exit_code(&self) -> u8 {
        self.consequence().exit_code
    }

    /// Returns the rank that caused the failure, if one did.
    pub fn rank(&self) -> Option<GlobalRank> {
        match self {
            Self::RankFailed { rank, .. }
            | Self::NotFinalized { rank }
            | Self::NeverJoined { rank }
            | Self::ExitedEarly { rank }
            | Self::Singleton { rank, .. }
            | Self::Aborted { rank, .. }
            | Self::Misbehaved { rank, .. }
            | Self::NotStarted { rank, .. } => Some(*rank),
            Self::TerminatedBy { rank, .. } => *rank,
            _ => None,
        }
    }
}

/// Judges how a rank ended by itself; `None` is a normal end.
///
/// Rule: an exit between init and finalize is a failure even with code 0, because the others wait
/// for this rank for ever. Source: docs/pmi-operations.md#barrier.
pub fn judge(rank: GlobalRank, end: RankEnd, pmi: &PmiState) -> Option<FailureCause> {
    match end {
        RankEnd::Code(0) if pmi.active => Some(FailureCause::NotFinalized { rank }),
        RankEnd::Code(0) => None,
        end => Some(FailureCause::RankFailed { rank, end }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_failure_cause() {
        let rank = GlobalRank(1);
        let abort = |code| {
            FailureCause::Aborted {
                rank,
                code,
                message: String::new(),
            }
            .exit_code()
        };
        assert_eq!(abort(42), 42);
        assert_eq!(abort(0), 1);
        assert_eq!(abort(256), 1);
        assert_eq!(abort(-1), 255);
        let ended = |end| FailureCause::RankFailed { rank, end }.exit_code();
        assert_eq!(ended(RankEnd::Code(3)), 3);
        assert_eq!(ended(RankEnd::Signal(11)), 139);
        assert_eq!(
            FailureCause::Timeout(Duration::from_secs(1)).exit_code(),
            124
        );
        assert_eq!(FailureCause::Interrupted(2).exit_code(), 130);
    }

    #[test]
    fn exit_between_init_and_finalize_is_failure_even_with_code_0() {
        let active = PmiState {
            contacted: true,
            active: true,
            last_activity: String::new(),
        };
        let rank = GlobalRank(0);
        assert_eq!(
            judge(rank, RankEnd::Code(0), &active),
            Some(FailureCause::NotFinalized { rank })
        );
        assert_eq!(judge(rank, RankEnd::Code(0), &PmiState::default()), None);
    }
}
