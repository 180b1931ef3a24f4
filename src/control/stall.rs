//! Finds jobs whose ranks seem to wait for each other for ever, and says once how to find out more.
//!
//! - A rank that has printed a traceback of Python and then neither ends nor prints: mpi4py calls `MPI_Finalize` at
//!   the exit of the interpreter, where the rank may wait for others that wait for it.
//! - All ranks but a few that print nothing and use no processor time, or stay in one fence.
//! - A few such ranks in a job whose other ranks compute or poll, and print nothing: MPIs poll while they wait for a message, and
//!   neither processor time nor `/proc` tells that from computation.

use std::collections::BTreeMap;
use std::time::Duration;

use memchr::memmem;

use super::Controller;
use crate::backend::inspection::{Inspected, InspectionError};
use crate::report::process_names::listed;
use crate::report::progress::NAMED;
use wireup_core::job::ids::GlobalRank;
use wireup_core::record::Stream;
use wireup_core::wording::counted;

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

/// Smallest number of ranks of which one may do otherwise than the rest.
const FEW_FROM: usize = 4;

/// Number of ranks of a larger job for each that may.
const FEW_SHARE: usize = 16;

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

    /// Whether the rank used a tenth of a processor, as on one that is shared, since an earlier sample, `elapsed` ago, and printed nothing.
    fn may_have_polled_since(&self, earlier: &Self, elapsed: Duration) -> bool {
        let used = self.cpu_ms.checked_sub(earlier.cpu_ms);
        let is_busy = used.is_some_and(|used| u128::from(used) * 10 >= elapsed.as_millis());
        self.output == earlier.output && is_busy
    }
}

/// Most ranks of a job of so many that may do otherwise than the rest in one that stalls.
fn few(running: usize) -> usize {
    match running {
        ..FEW_FROM => 0,
        _ => (running / FEW_SHARE).max(1),
    }
}

/// Whether a job stalls in which so many ranks have ended, and so many of those that run wait.
fn is_stalled(ended: usize, running: usize, waiting: usize) -> bool {
    ended + running > 1 && waiting > 0 && waiting + few(running) >= running
}

/// Whether a few of the ranks that run wait, and all others may poll.
fn may_hold_up(running: usize, waiting: usize, polling: usize) -> bool {
    waiting > 0 && waiting <= few(running) && waiting + polling == running
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
        let pair = |rank: &GlobalRank| before.get(rank).zip(samples.get(rank));
        let waits = |rank: &&GlobalRank| {
            pair(rank).is_some_and(|(before, after)| after.has_waited_since(before, elapsed))
        };
        let polls = |rank: &&&GlobalRank| {
            pair(rank).is_some_and(|(before, after)| after.may_have_polled_since(before, elapsed))
        };
        let (waiting, busy): (Vec<&GlobalRank>, Vec<&GlobalRank>) = ranks.iter().partition(waits);
        let polling = busy.iter().filter(polls).count();
        let seconds = elapsed.as_secs();
        let names = |ranks: &[&GlobalRank]| {
            let ranks = ranks.iter().map(|rank| self.jobs.identity(**rank));
            listed(&ranks.collect::<Vec<_>>())
        };
        let ended = self.lives.iter().filter(|life| life.end.is_some()).count();
        let what = if is_stalled(ended, ranks.len(), waiting.len()) {
            let mut others = match busy.is_empty() {
                true => String::new(),
                false => format!(", unlike {}", names(&busy)),
            };
            if ended > 0 {
                others += &format!("; {} ended before", counted(ended, "rank"));
            }
            format!(
                "{} of {} ranks have used no processor time, or waited in one fence, for {seconds} s{others}",
                waiting.len(),
                ranks.len()
            )
        } else if may_hold_up(ranks.len(), waiting.len(), polling) {
            format!(
                "{} {} used no processor time for {seconds} s while {polling} others used theirs and printed nothing: these may \
                 compute, or poll for a message",
                names(&waiting),
                if waiting.len() == 1 { "has" } else { "have" }
            )
        } else {
            let interval =
                (now.saturating_sub(self.stall.since) / PART).clamp(INTERVAL, INTERVAL_MAX);
            self.stall.next = Some(now + interval);
            return;
        };
        let text = format!(
            "{what}; `wireup stacks {}` shows where the ranks are",
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
            assert_eq!(
                is_stalled(0, running, waiting),
                stalls,
                "{running} {waiting}"
            );
        }
        assert!(is_stalled(3, 1, 1), "the last one waits");
        assert!(!is_stalled(3, 1, 0));
    }

    #[test]
    fn few_ranks_hold_up_others_that_may_poll() {
        let earlier = sample(5000, 10, None);
        let polled =
            |later: RankSample| later.may_have_polled_since(&earlier, Duration::from_secs(30));
        assert!(polled(sample(8000, 10, None)));
        assert!(!polled(sample(7999, 10, None)), "a tenth of the time");
        assert!(!polled(sample(35_000, 11, None)), "it has printed");
        for (running, waiting, polling, holds_up) in [
            (4, 1, 3, true),
            (4, 1, 2, false),
            (4, 0, 4, false),
            (4, 2, 2, false),
            (3, 1, 2, false),
            (64, 4, 60, true),
        ] {
            assert_eq!(
                may_hold_up(running, waiting, polling),
                holds_up,
                "{running} {waiting} {polling}"
            );
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
