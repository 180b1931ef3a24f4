//! Finds jobs whose ranks seem to wait for each other for ever, and says once how to find out more.
//!
//! - A rank that has printed a traceback of Python and then neither ends nor prints: mpi4py calls `MPI_Finalize` at
//!   the exit of the interpreter, where the rank may wait for others that wait for it.
//! - All ranks but a few that print nothing and use no processor time, or stay in one fence.

use std::collections::BTreeMap;
use std::time::Duration;

use memchr::memmem;

use super::Controller;
use crate::backend::inspection::{Inspected, InspectionError};
use crate::report::process_names::listed;
use crate::report::progress::NAMED;
use wireup_core::job::ids::GlobalRank;
use wireup_core::record::Stream;

/// First line of Python's report of an exception.
const TRACEBACK: &[u8] = b"Traceback (most recent call last):";

/// Time in which a traceback is printed as a whole; what follows later is other output.
const TRACEBACK_LENGTH: Duration = Duration::from_secs(2);

/// Time a rank may run on silently after its traceback.
const TRACEBACK_PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two looks at all ranks.
const INTERVAL: Duration = Duration::from_secs(30);

/// Longest time between two looks at all ranks.
const INTERVAL_MAX: Duration = Duration::from_secs(600);

/// Part of the time of the job that the next look is away.
const PART: u32 = 4;

/// Smallest number of ranks of which one may be busy in a job that stalls.
const BUSY_FROM: usize = 4;

/// Number of ranks of a larger job for each that may be busy.
const BUSY_SHARE: usize = 16;

/// Facts of one look at one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RankSample {
    cpu_ms: u64,
    output: Option<u64>,
    fence: Option<String>,
}

impl RankSample {
    /// Whether the rank did nothing since an earlier sample, `elapsed` ago, but wait.
    fn has_waited_since(&self, earlier: &Self, elapsed: Duration) -> bool {
        let used = self.cpu_ms.checked_sub(earlier.cpu_ms);
        let is_idle = used.is_some_and(|used| u128::from(used) * 100 < elapsed.as_millis());
        let stays = self.fence.is_some() && self.fence == earlier.fence;
        self.output == earlier.output && (is_idle || stays)
    }
}

/// Whether a job stalls in which so many ranks run and so many of them wait.
fn is_stalled(running: usize, waiting: usize) -> bool {
    let busy = match running {
        ..BUSY_FROM => 0,
        _ => (running / BUSY_SHARE).max(1),
    };
    running > 1 && waiting + busy >= running
}

/// Detects ranks that wait for each other.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    /// The last rank that printed a traceback, and when it did.
    traceback: Option<(GlobalRank, Duration)>,
    traceback_reported: bool,
    /// Time at which all ranks had made contact.
    since: Duration,
    /// Time of the next look at all ranks; `None` before contact, during a look and after the report.
    next: Option<Duration>,
    /// Time of the last look, and its samples.
    before: (Duration, BTreeMap<GlobalRank, RankSample>),
}

impl StallWatch {
    /// Takes output of a rank.
    pub(super) fn take_output(
        &mut self,
        rank: GlobalRank,
        stream: Stream,
        bytes: &[u8],
        now: Duration,
    ) {
        if self.traceback_reported || bytes.is_empty() {
            return;
        }
        if stream == Stream::Stderr && memmem::find(bytes, TRACEBACK).is_some() {
            self.traceback = Some((rank, now));
        } else if let Some((of, at)) = self.traceback
            && of == rank
            && now > at + TRACEBACK_LENGTH
        {
            self.traceback = None;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let traceback = self.traceback.map(|(_, at)| at + TRACEBACK_PATIENCE);
        [traceback, self.next].into_iter().flatten().min()
    }
}

impl Controller {
    /// All ranks have made contact: from now on they may wait for each other.
    pub(super) fn watch_for_stalls(&mut self, now: Duration) {
        if self.plan.job.ranks.size() > 1 {
            self.stall.since = now;
            self.stall.next = Some(now + INTERVAL);
        }
    }

    /// Reports a traceback whose rank runs on, and looks at all ranks when that is due.
    pub(super) fn look_for_stalls(&mut self, now: Duration) {
        if let Some((rank, at)) = self.stall.traceback
            && now >= at + TRACEBACK_PATIENCE
        {
            self.stall.traceback = None;
            self.report_traceback(rank);
        }
        if self.stall.next.is_none_or(|at| now < at) {
            return;
        }
        self.stall.next = None;
        if !self.supervisor.is_asked_to_end() {
            let ranks = (0..self.jobs.size()).map(GlobalRank).collect();
            self.look_for_stall(ranks);
        }
    }

    fn report_traceback(&mut self, rank: GlobalRank) {
        let life = &self.lives[rank.index()];
        if !life.runs() || !life.connected || self.supervisor.is_asked_to_end() {
            return;
        }
        let job = self.jobs.identity(rank).0;
        let others = self.jobs.processes_of(job);
        let others: Vec<GlobalRank> = others
            .filter(|other| *other != rank && self.lives[other.index()].runs())
            .collect();
        if others.is_empty() {
            return;
        }
        let named = others.iter().take(NAMED);
        let mut named: Vec<String> = named.map(|other| self.name_of(*other)).collect();
        if others.len() > named.len() {
            named.push(format!("{} more", others.len() - named.len()));
        }
        self.stall.traceback_reported = true;
        let text = format!(
            "{} printed a Python traceback {} s ago and has not ended: it may wait in MPI_Finalize for {}, which may wait \
             for it; start Python programs with `python -m mpi4py` to end the job at an uncaught exception; `wireup stacks \
             {} --python` shows where the ranks are",
            self.name_of(rank),
            TRACEBACK_PATIENCE.as_secs(),
            named.join(", "),
            std::process::id()
        );
        self.warn(&text);
    }

    /// Compares what a look at all ranks has found with the one before.
    pub(super) fn judge_stall(
        &mut self,
        ranks: &[GlobalRank],
        found: BTreeMap<GlobalRank, Result<Inspected, InspectionError>>,
    ) {
        let now = self.now();
        let samples: BTreeMap<GlobalRank, RankSample> = found
            .into_iter()
            .filter_map(|(rank, found)| match found {
                // What is stopped waits for whoever stopped it.
                Ok(Inspected::Usage(usage)) if !matches!(usage.state, 'T' | 't') => {
                    let sample = RankSample {
                        cpu_ms: usage.cpu_ms,
                        output: usage.output,
                        fence: usage.fence,
                    };
                    Some((rank, sample))
                }
                _ => None,
            })
            .collect();
        let (at, before) = std::mem::replace(&mut self.stall.before, (now, samples));
        let elapsed = now.saturating_sub(at);
        let samples = &self.stall.before.1;
        let waits = |rank: &&GlobalRank| {
            let pair = before.get(*rank).zip(samples.get(*rank));
            pair.is_some_and(|(before, after)| after.has_waited_since(before, elapsed))
        };
        let (waiting, busy): (Vec<&GlobalRank>, Vec<&GlobalRank>) = ranks.iter().partition(waits);
        if !is_stalled(ranks.len(), waiting.len()) {
            let interval =
                (now.saturating_sub(self.stall.since) / PART).clamp(INTERVAL, INTERVAL_MAX);
            self.stall.next = Some(now + interval);
            return;
        }
        let busy: Vec<_> = busy
            .into_iter()
            .map(|rank| self.jobs.identity(*rank))
            .collect();
        let others = match busy.is_empty() {
            true => String::new(),
            false => format!(", unlike {}", listed(&busy)),
        };
        let text = format!(
            "{} of {} ranks have used no processor time, or waited in one fence, for {} s{others}; `wireup stacks {}` shows \
             where the ranks are",
            waiting.len(),
            ranks.len(),
            elapsed.as_secs(),
            std::process::id()
        );
        self.tell(&text);
        self.name_shared_address();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_ms: u64, output: u64, fence: Option<&str>) -> RankSample {
        RankSample {
            cpu_ms,
            output: Some(output),
            fence: fence.map(str::to_owned),
        }
    }

    #[test]
    fn rank_waits_without_processor_time_or_in_one_fence() {
        let earlier = sample(5000, 10, Some("PMI 3"));
        let waited = |later: RankSample| later.has_waited_since(&earlier, Duration::from_secs(30));
        assert!(waited(sample(5299, 10, None)));
        assert!(!waited(sample(5300, 10, None)), "a hundredth of the time");
        assert!(!waited(sample(5000, 11, None)), "it has printed");
        assert!(!waited(sample(4000, 10, None)), "another process was seen");
        assert!(waited(sample(35_000, 10, Some("PMI 3"))));
        assert!(!waited(sample(35_000, 10, Some("PMI 4"))));
    }

    #[test]
    fn stall_needs_all_ranks_but_few() {
        for (running, waiting, stalls) in [
            (1, 1, false),
            (2, 1, false),
            (2, 2, true),
            (4, 3, true),
            (4, 2, false),
            (64, 60, true),
            (64, 59, false),
        ] {
            assert_eq!(is_stalled(running, waiting), stalls, "{running} {waiting}");
        }
    }

    #[test]
    fn traceback_is_forgotten_when_rank_prints_on() {
        let mut watch = StallWatch::default();
        let (rank, other) = (GlobalRank(1), GlobalRank(0));
        let second = Duration::from_secs;
        let head = [TRACEBACK, b"\n"].concat();
        watch.take_output(rank, Stream::Stdout, &head, second(1));
        assert_eq!(watch.next_deadline(), None);
        watch.take_output(rank, Stream::Stderr, &head, second(1));
        watch.take_output(rank, Stream::Stderr, b"ValueError: x\n", second(2));
        watch.take_output(other, Stream::Stdout, b"on\n", second(9));
        assert_eq!(watch.next_deadline(), Some(second(11)));
        watch.take_output(rank, Stream::Stdout, b"on\n", second(9));
        assert_eq!(watch.next_deadline(), None);
    }
}
