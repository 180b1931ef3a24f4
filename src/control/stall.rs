//! Finds jobs whose ranks seem to wait for each other forever, and prints once how to find out more.
//!
//! - A rank that has printed a traceback of Python and then neither ends nor prints: mpi4py calls `MPI_Finalize` at
//!   the exit of the interpreter, where the rank may wait for others that wait for it.
//! - All ranks but a few that print nothing and use no processor time, or stay in one fence.
//! - A few such ranks in a job whose other ranks compute or poll, and print nothing. MPIs poll while they wait for a message;
//!   processor time and `/proc` do not distinguish that from computation.

use std::collections::BTreeMap;
use std::time::Duration;

use memchr::memmem;

use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_service::LaunchService;
use crate::backend::inspection::{InspectionError, InspectionResult};
use crate::report::process_names::{listed, with_more};
use crate::report::progress_line::NAMED;
use wireup_core::job::job_table::KnownRank;
use wireup_core::wording::counted;

/// First line of Python's report of an exception.
const TRACEBACK: &[u8] = b"Traceback (most recent call last):";

/// Time in which a traceback is printed as a whole; what follows later is other output.
const TRACEBACK_LENGTH: Duration = Duration::from_secs(2);

/// Time for which a rank may run silently after its traceback.
const TRACEBACK_PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two inspections of all ranks.
const INTERVAL: Duration = Duration::from_secs(30);

/// Longest time between two inspections of all ranks.
const INTERVAL_MAX: Duration = Duration::from_secs(600);

/// Divisor of the job's elapsed time; the quotient is the interval to the next inspection.
const PART: u32 = 4;

/// Smallest number of ranks of which one may behave differently.
const FEW_FROM: usize = 4;

/// Number of ranks in a larger job for each one that may behave differently.
const FEW_SHARE: usize = 16;

/// Result of one inspection of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct RankSample {
    cpu_ms: u64,
    runqueue_ms: u64,
    output: Option<u64>,
    fence: Option<String>,
}

impl RankSample {
    /// Whether the rank did nothing since an earlier sample, `elapsed` ago, but wait. A rank that waited for a processor,
    /// on a host with other work, was about to do something.
    fn has_waited_since(&self, earlier: &Self, elapsed: Duration) -> bool {
        let active_ms = |sample: &Self| sample.cpu_ms.saturating_add(sample.runqueue_ms);
        let active = active_ms(self).checked_sub(active_ms(earlier));
        let is_idle = active.is_some_and(|active| u128::from(active) * 100 < elapsed.as_millis());
        let stays = self.fence.is_some() && self.fence == earlier.fence;
        self.output == earlier.output && (is_idle || stays)
    }

    /// Whether the rank used at least a tenth of a processor, which may be shared, since an earlier sample, `elapsed` ago,
    /// and printed nothing.
    fn may_have_polled_since(&self, earlier: &Self, elapsed: Duration) -> bool {
        let used = self.cpu_ms.checked_sub(earlier.cpu_ms);
        let is_busy = used.is_some_and(|used| u128::from(used) * 10 >= elapsed.as_millis());
        self.output == earlier.output && is_busy
    }
}

/// Returns the number of ranks that may behave differently in a job that stalls.
fn few(running: usize) -> usize {
    match running {
        ..FEW_FROM => 0,
        _ => (running / FEW_SHARE).max(1),
    }
}

/// Whether a job has stalled in which so many ranks have exited, run, and wait.
fn is_stalled(ended: usize, running: usize, waiting: usize) -> bool {
    ended + running > 1 && waiting > 0 && waiting + few(running) >= running
}

/// Whether a few of the running ranks wait, and all others may poll.
fn may_hold_up(running: usize, waiting: usize, polling: usize) -> bool {
    waiting > 0 && waiting <= few(running) && waiting + polling == running
}

/// Numbers of ranks at one inspection.
#[derive(Clone, Copy, Debug)]
struct RankCounts {
    exited: usize,
    running: usize,
    /// Running ranks that wait.
    waiting: usize,
    /// Running ranks that may poll.
    polling: usize,
}

impl RankCounts {
    fn stall_text(self, seconds: u64) -> String {
        format!(
            "{} of {} {} used no processor time, or waited in one fence, for {seconds} s",
            self.waiting,
            counted(self.running, "rank"),
            have(self.running)
        )
    }

    /// Returns the text about the ranks that wait, which are `named`, and all others.
    fn hold_up_text(self, named: &str, seconds: u64) -> String {
        format!(
            "{named} {} used no processor time, or waited in one fence, for {seconds} s while {} used at least a tenth of a \
             processor each and printed nothing: these may compute, or poll for a message",
            have(self.waiting),
            counted(self.polling, "other")
        )
    }
}

fn have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

/// Result of an inspection that is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StallFinding {
    /// All ranks but a few wait.
    Stalled,
    /// A few ranks wait, and all others may poll.
    HeldUp,
}

/// Detects ranks that wait for each other.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    /// The last rank that printed a traceback, and when it did.
    traceback: Option<(KnownRank, Duration)>,
    traceback_reported: bool,
    /// Time at which all ranks had connected.
    connected_at: Duration,
    /// Time of the next inspection; `None` before all ranks have connected, during an inspection and
    /// after the report of a stall.
    next: Option<Duration>,
    /// Whether a few ranks were reported that may hold up the others. The job may still stall later.
    hold_up_reported: bool,
    /// Time of the last inspection, and its samples.
    before: (Duration, BTreeMap<KnownRank, RankSample>),
}

impl LaunchService for StallWatch {
    fn next_deadline(&self) -> Option<Duration> {
        let traceback = self.traceback.map(|(_, at)| at + TRACEBACK_PATIENCE);
        [traceback, self.next].into_iter().flatten().min()
    }

    /// Reports a traceback whose rank still runs, and inspects all ranks when that is due.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        if let Some((rank, at)) = self.traceback
            && now >= at + TRACEBACK_PATIENCE
        {
            self.traceback = None;
            self.report_traceback(cx, rank);
        }
        if self.next.is_none_or(|at| now < at) {
            return;
        }
        self.next = None;
        if !cx.supervisor.is_asked_to_end() {
            let ranks = cx.jobs.all_ranks().collect();
            cx.effects.push(LaunchEffect::InspectStalled(ranks));
        }
    }
}

impl StallWatch {
    /// Searches the output of a rank for a traceback, in both streams: standard error may be standard output, as with `2>&1` or `--pty`.
    pub(super) fn take_output(&mut self, rank: KnownRank, bytes: &[u8], now: Duration) {
        if self.traceback_reported || bytes.is_empty() {
            return;
        }
        if memmem::find(bytes, TRACEBACK).is_some() {
            self.traceback = Some((rank, now));
        } else if let Some((of, at)) = self.traceback
            && of == rank
            && now > at + TRACEBACK_LENGTH
        {
            self.traceback = None;
        }
    }

    /// Returns the finding to report after an inspection, each at most once. Sets the time of the next inspection unless the job stalls.
    fn take_finding(&mut self, counts: RankCounts, now: Duration) -> Option<StallFinding> {
        let RankCounts {
            exited: ended,
            running,
            waiting,
            polling,
        } = counts;
        if is_stalled(ended, running, waiting) {
            return Some(StallFinding::Stalled);
        }
        let interval = (now.saturating_sub(self.connected_at) / PART).clamp(INTERVAL, INTERVAL_MAX);
        self.next = Some(now + interval);
        let is_new = !self.hold_up_reported && may_hold_up(running, waiting, polling);
        self.hold_up_reported |= is_new;
        is_new.then_some(StallFinding::HeldUp)
    }

    /// Starts the inspections, when all ranks have connected and may wait for each other.
    pub(super) fn watch(&mut self, cx: &mut LaunchContext) {
        if cx.plan.job.process_map.size() > 1 {
            let now = cx.now();
            self.connected_at = now;
            self.next = Some(now + INTERVAL);
        }
    }

    fn report_traceback(&mut self, cx: &mut LaunchContext, rank: KnownRank) {
        let life = cx.ranks.get(rank);
        if !life.runs() || !life.connected || cx.supervisor.is_asked_to_end() {
            return;
        }
        let others = cx.jobs.ranks_of_job(rank.job());
        let others: Vec<KnownRank> = others
            .filter(|other| *other != rank && cx.ranks.get(*other).runs())
            .collect();
        if others.is_empty() {
            return;
        }
        let named = others.iter().take(NAMED);
        let named = named.map(|other| cx.name_of(*other)).collect();
        self.traceback_reported = true;
        let text = format!(
            "{} printed a Python traceback {} s ago and has not ended: it may wait in MPI_Finalize for {}, which may wait \
             for it; start Python programs with `python -m mpi4py` to end the job at an uncaught exception; `wireup stacks \
             {} --python` shows where the ranks are",
            cx.name_of(rank),
            TRACEBACK_PATIENCE.as_secs(),
            with_more(named, others.len()),
            std::process::id()
        );
        cx.warn(&text);
    }

    /// Compares the results of an inspection of all ranks with those of the one before.
    pub(super) fn judge(
        &mut self,
        cx: &mut LaunchContext,
        ranks: &[KnownRank],
        found: BTreeMap<KnownRank, Result<InspectionResult, InspectionError>>,
    ) {
        let now = cx.now();
        let samples: BTreeMap<KnownRank, RankSample> = found
            .into_iter()
            .filter_map(|(rank, found)| match found {
                // A stopped process waits for the process that stopped it.
                Ok(InspectionResult::Usage(usage)) if !matches!(usage.state, 'T' | 't') => {
                    let sample = RankSample {
                        cpu_ms: usage.cpu_ms,
                        runqueue_ms: usage.runqueue_ms,
                        output: usage.output,
                        fence: usage.fence,
                    };
                    Some((rank, sample))
                }
                _ => None,
            })
            .collect();
        let (at, before) = std::mem::replace(&mut self.before, (now, samples));
        let elapsed = now.saturating_sub(at);
        let samples = &self.before.1;
        let pair = |rank: &KnownRank| before.get(rank).zip(samples.get(rank));
        let waits = |rank: &&KnownRank| {
            pair(rank).is_some_and(|(before, after)| after.has_waited_since(before, elapsed))
        };
        let polls = |rank: &&&KnownRank| {
            pair(rank).is_some_and(|(before, after)| after.may_have_polled_since(before, elapsed))
        };
        let (waiting, busy): (Vec<&KnownRank>, Vec<&KnownRank>) = ranks.iter().partition(waits);
        let counts = RankCounts {
            exited: cx.ranks.iter().filter(|life| life.end.is_some()).count(),
            running: ranks.len(),
            waiting: waiting.len(),
            polling: busy.iter().filter(polls).count(),
        };
        let Some(finding) = self.take_finding(counts, now) else {
            return;
        };
        let seconds = elapsed.as_secs();
        let names = |ranks: &[&KnownRank]| {
            let ranks = ranks.iter().map(|rank| (rank.job(), rank.rank()));
            listed(&ranks.collect::<Vec<_>>())
        };
        let what = match finding {
            StallFinding::Stalled => {
                let mut what = counts.stall_text(seconds);
                if !busy.is_empty() {
                    what += &format!(", unlike {}", names(&busy));
                }
                if counts.exited > 0 {
                    what += &format!("; {} ended before", counted(counts.exited, "rank"));
                }
                what
            }
            StallFinding::HeldUp => counts.hold_up_text(&names(&waiting), seconds),
        };
        let text = format!(
            "{what}; `wireup stacks {}` shows where the ranks are",
            std::process::id()
        );
        cx.print_line(&text);
        cx.effects.push(LaunchEffect::NameSharedAddress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::ids::{GlobalRank, NodeId};
    use wireup_core::job::job_table::JobTable;
    use wireup_core::job::process_map::ProcessMap;

    fn sample(cpu_ms: u64, output: u64, fence: Option<&str>) -> RankSample {
        RankSample {
            cpu_ms,
            runqueue_ms: 0,
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
        assert!(!waited(sample(4000, 10, None)), "another process");
        assert!(waited(sample(35_000, 10, Some("PMI 3"))));
        assert!(!waited(sample(35_000, 10, Some("PMI 4"))));
    }

    #[test]
    fn rank_that_waits_for_processor_does_not_wait_for_others() {
        let earlier = sample(5000, 10, None);
        let later = |runqueue_ms| RankSample {
            runqueue_ms,
            ..sample(5010, 10, None)
        };
        let elapsed = Duration::from_secs(30);
        assert!(later(289).has_waited_since(&earlier, elapsed));
        assert!(!later(290).has_waited_since(&earlier, elapsed));
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
    fn few_ranks_can_block_polling_others() {
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
    fn stall_is_reported_after_blocking_ranks() {
        let mut watch = StallWatch::default();
        let counts = |waiting, polling| RankCounts {
            exited: 0,
            running: 4,
            waiting,
            polling,
        };
        let second = Duration::from_secs;
        for (at, counts, finding, next) in [
            (30, counts(0, 4), None, Some(60)),
            (60, counts(1, 3), Some(StallFinding::HeldUp), Some(90)),
            (90, counts(1, 3), None, Some(120)),
            (400, counts(2, 2), None, Some(500)),
            (500, counts(3, 1), Some(StallFinding::Stalled), None),
        ] {
            // As at the start of an inspection.
            watch.next = None;
            assert_eq!(watch.take_finding(counts, second(at)), finding, "{at} s");
            assert_eq!(watch.next_deadline(), next.map(second), "{at} s");
        }
    }

    #[test]
    fn stall_text_agrees_with_number_of_ranks() {
        let counts = |running, waiting| RankCounts {
            exited: 0,
            running,
            waiting,
            polling: running - waiting,
        };
        let used = "used no processor time, or waited in one fence, for 30 s";
        assert_eq!(
            counts(1, 1).stall_text(30),
            format!("1 of 1 rank has {used}")
        );
        assert_eq!(
            counts(4, 3).stall_text(30),
            format!("3 of 4 ranks have {used}")
        );
        let others = "used at least a tenth of a processor each and printed nothing: these may compute, or poll for a message";
        assert_eq!(
            counts(4, 1).hold_up_text("rank 2", 30),
            format!("rank 2 has {used} while 3 others {others}")
        );
        assert_eq!(
            counts(64, 4).hold_up_text("ranks 0-3", 30),
            format!("ranks 0-3 have {used} while 60 others {others}")
        );
    }

    #[test]
    fn traceback_is_forgotten_when_rank_prints_on() {
        let mut watch = StallWatch::default();
        let jobs = JobTable::new(ProcessMap::from_runs([(NodeId(0), 2)]));
        let [other, rank] = [0, 1].map(|rank| jobs.look_up(GlobalRank(rank)).unwrap());
        let second = Duration::from_secs;
        let head = [TRACEBACK, b"\n"].concat();
        watch.take_output(rank, b"begins\n", second(1));
        assert_eq!(watch.next_deadline(), None);
        watch.take_output(rank, &head, second(1));
        watch.take_output(rank, b"ValueError: x\n", second(2));
        watch.take_output(other, b"on\n", second(9));
        assert_eq!(watch.next_deadline(), Some(second(11)));
        watch.take_output(rank, b"on\n", second(9));
        assert_eq!(watch.next_deadline(), None);
    }
}
