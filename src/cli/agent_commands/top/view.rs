//! The tables of `wireup top`; no I/O.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Add as _;
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::ps::rank_text;
use wireup_core::printable::printable;
use wireup_core::text_table::{bytes, or_dash, time};
use wireup_core::wording::counted;

/// Sample of the activity and resource usage of a job's ranks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    pub job: String,
    /// Number of ranks of the first job, living or not, if it is known.
    pub size: Option<u32>,
    /// Time of the sample; only differences are meaningful.
    pub at: Duration,
    /// Running ranks.
    pub ranks: Vec<RankRow>,
}

/// A rank that runs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RankRow {
    /// Number of its job; 0 for the one the user asked for.
    pub job: u32,
    pub rank: u32,
    pub host: String,
    pub pid: Option<i32>,
    /// The letter of its state; a NUL if its host has not answered.
    pub state: char,
    /// Processor time so far.
    pub cpu: Duration,
    /// Bytes of memory.
    pub resident: u64,
    /// Bytes that it has printed; `None` if that is not known.
    pub output: Option<u64>,
    /// The fence that it waits in, and for how long the first rank there has.
    pub fence: Option<(String, Duration)>,
    /// Last PMI request of the rank, or the reason why its state is unknown.
    pub did: String,
}

/// Sort keys of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SortKey {
    Rank,
    Host,
    Cpu,
    Memory,
    Output,
    Fence,
}

/// Sort order of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SortOrder {
    pub key: SortKey,
    /// The other way round: numbers of use begin with the largest, ranks and hosts with the first.
    pub reversed: bool,
}

impl SortOrder {
    /// By a key, its usual way.
    pub fn by(key: SortKey) -> Self {
        Self {
            key,
            reversed: false,
        }
    }

    /// Returns the new order when the user selects a key.
    #[must_use]
    pub fn chosen(self, key: SortKey) -> Self {
        Self {
            key,
            reversed: self.key == key && !self.reversed,
        }
    }
}

/// Numbers of a line by which it can be sorted.
#[derive(Clone, PartialEq, Debug)]
struct Figures {
    place: (u32, u32),
    host: String,
    /// Processor time in the time between two samples, in hundredths; `None` in the first one.
    cpu: Option<f64>,
    memory: u64,
    /// Bytes in a second.
    output: Option<f64>,
    fence: Option<Duration>,
}

impl Figures {
    fn compare(&self, other: &Self, key: SortKey) -> Ordering {
        let larger = |a: Option<f64>, b: Option<f64>| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        let by_key = match key {
            SortKey::Rank => Ordering::Equal,
            SortKey::Host => self.host.cmp(&other.host),
            SortKey::Cpu => larger(self.cpu, other.cpu),
            SortKey::Memory => other.memory.cmp(&self.memory),
            SortKey::Output => larger(self.output, other.output),
            SortKey::Fence => other.fence.cmp(&self.fence),
        };
        by_key.then_with(|| self.place.cmp(&other.place))
    }
}

const RANKS: [&str; 10] = [
    "RANK", "HOST", "PID", "S", "CPU%", "TIME", "MEMORY", "OUT/s", "WAITS IN", "PMI",
];

const HOSTS: [&str; 7] = [
    "HOST",
    "RANKS",
    "CPU%",
    "TIME",
    "MEMORY",
    "OUT/s",
    "IN A FENCE",
];

/// The line above a table.
pub fn title(now: &Sample) -> String {
    let mut hosts: Vec<&str> = now.ranks.iter().map(|rank| &*rank.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let run = now.ranks.iter().filter(|rank| rank.job == 0).count();
    let spawned = now.ranks.len() - run;
    let of = now
        .size
        .map_or_else(String::new, |size| format!(" of {size}"));
    let spawned = match spawned {
        0 => String::new(),
        spawned => format!(" + {spawned} spawned"),
    };
    // Only what goes through the server of PMI is seen.
    let waiting = match now.ranks.iter().filter(|rank| rank.fence.is_some()).count() {
        0 => "none is known to wait in a fence; waits inside MPI are not seen, wireup stacks shows them".to_owned(),
        waiting => format!("{waiting} wait in a fence"),
    };
    format!(
        "{}: {run}{of}{spawned} ranks run on {}, {waiting}",
        now.job,
        counted(hosts.len(), "host")
    )
}

/// A line for each rank: titles of the columns, and their texts.
pub fn ranks(
    before: Option<&Sample>,
    now: &Sample,
    order: SortOrder,
) -> (&'static [&'static str], Vec<Vec<String>>) {
    let since = SampleDifference::new(before, now);
    let rows = now.ranks.iter().map(|rank| {
        let figures = since.figures(rank);
        let cells = vec![
            rank_text(rank.job, rank.rank),
            printable(&rank.host).into_owned(),
            or_dash(rank.pid),
            match rank.state {
                '\0' => "?".to_owned(),
                state => printable(&state.to_string()).into_owned(),
            },
            percent(figures.cpu),
            time(rank.cpu),
            bytes(rank.resident),
            rate(figures.output),
            match &rank.fence {
                Some((fence, waiting)) => {
                    format!("{}, {:.1} s", printable(fence), waiting.as_secs_f64())
                }
                None => "-".to_owned(),
            },
            printable(&rank.did).into_owned(),
        ];
        (figures, cells)
    });
    (&RANKS, sorted(rows.collect(), order))
}

/// A line for each host.
pub fn hosts(
    before: Option<&Sample>,
    now: &Sample,
    order: SortOrder,
) -> (&'static [&'static str], Vec<Vec<String>>) {
    let since = SampleDifference::new(before, now);
    let mut hosts: BTreeMap<&str, Vec<&RankRow>> = BTreeMap::new();
    for rank in &now.ranks {
        hosts.entry(&rank.host).or_default().push(rank);
    }
    let rows = hosts.into_iter().map(|(host, ranks)| {
        let figures: Vec<Figures> = ranks.iter().map(|rank| since.figures(rank)).collect();
        let sum = Figures {
            place: figures.iter().map(|of| of.place).min().unwrap_or_default(),
            host: host.to_owned(),
            cpu: figures.iter().filter_map(|of| of.cpu).reduce(f64::add),
            memory: figures.iter().map(|of| of.memory).sum(),
            output: figures.iter().filter_map(|of| of.output).reduce(f64::add),
            fence: figures.iter().filter_map(|of| of.fence).max(),
        };
        let waiting = ranks.iter().filter(|rank| rank.fence.is_some()).count();
        let cells = vec![
            printable(&sum.host).into_owned(),
            ranks.len().to_string(),
            percent(sum.cpu),
            time(ranks.iter().map(|rank| rank.cpu).sum()),
            bytes(sum.memory),
            rate(sum.output),
            match sum.fence {
                Some(longest) => format!("{waiting}, {:.1} s", longest.as_secs_f64()),
                None => "0".to_owned(),
            },
        ];
        (sum, cells)
    });
    (&HOSTS, sorted(rows.collect(), order))
}

/// Differences between two samples.
struct SampleDifference<'a> {
    /// Earlier rows, by job, rank and pid. Pids may be reused.
    before: BTreeMap<(u32, u32, Option<i32>), &'a RankRow>,
    /// Zero if there is no other.
    seconds: f64,
}

impl<'a> SampleDifference<'a> {
    fn new(before: Option<&'a Sample>, now: &Sample) -> Self {
        let passed = before.map(|before| now.at.saturating_sub(before.at));
        let known = before.into_iter().flat_map(|before| &before.ranks);
        Self {
            before: known
                .map(|rank| ((rank.job, rank.rank, rank.pid), rank))
                .collect(),
            seconds: passed.unwrap_or_default().as_secs_f64(),
        }
    }

    fn figures(&self, rank: &RankRow) -> Figures {
        let before = self.before.get(&(rank.job, rank.rank, rank.pid));
        let before = before.filter(|_| self.seconds > 0.0);
        let printed = before.and_then(|before| Some(rank.output?.saturating_sub(before.output?)));
        Figures {
            place: (rank.job, rank.rank),
            host: rank.host.clone(),
            // Processes below a rank that have ended take their time with them.
            cpu: before.map(|before| {
                let used = rank.cpu.saturating_sub(before.cpu);
                used.as_secs_f64() / self.seconds * 100.0
            }),
            memory: rank.resident,
            output: printed.map(|bytes| bytes as f64 / self.seconds),
            fence: rank.fence.as_ref().map(|(_, waiting)| *waiting),
        }
    }
}

fn sorted(mut rows: Vec<(Figures, Vec<String>)>, order: SortOrder) -> Vec<Vec<String>> {
    rows.sort_by(|(a, _), (b, _)| {
        let ordering = a.compare(b, order.key);
        if order.reversed {
            ordering.reverse()
        } else {
            ordering
        }
    });
    rows.into_iter().map(|(_, cells)| cells).collect()
}

fn percent(hundredths: Option<f64>) -> String {
    or_dash(hundredths.map(|value| format!("{value:.0}")))
}

fn rate(per_second: Option<f64>) -> String {
    or_dash(per_second.map(|value| bytes(value as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rank: u32, cpu: u64, resident: u64, output: u64) -> RankRow {
        RankRow {
            rank,
            host: format!("n{}", rank / 2),
            pid: Some(100 + rank as i32),
            state: 'R',
            cpu: Duration::from_millis(cpu),
            resident,
            output: Some(output),
            did: "PMIx: connected".into(),
            ..RankRow::default()
        }
    }

    fn sample(at: u64, ranks: Vec<RankRow>) -> Sample {
        Sample {
            job: "wireup-1".into(),
            size: Some(4),
            at: Duration::from_secs(at),
            ranks,
        }
    }

    /// Two seconds in which rank 1 computes, rank 2 prints and rank 3 waits.
    fn samples() -> (Sample, Sample) {
        let before = (0..4).map(|rank| row(rank, 1000, 1 << 20, 0)).collect();
        let mut after: Vec<RankRow> = (0..4).map(|rank| row(rank, 1000, 1 << 20, 0)).collect();
        after[1].cpu = Duration::from_millis(2500);
        after[2].output = Some(4096);
        after[3].fence = Some(("pmix 3 of job[*]".into(), Duration::from_millis(2100)));
        after[0].resident = 5 << 20;
        (sample(1, before), sample(3, after))
    }

    fn first(key: SortKey) -> String {
        let (before, now) = samples();
        let (_, rows) = ranks(Some(&before), &now, SortOrder::by(key));
        rows[0][0].clone()
    }

    #[test]
    fn each_key_sorts_by_its_column() {
        for (key, rank) in [
            (SortKey::Rank, "0"),
            (SortKey::Cpu, "1"),
            (SortKey::Output, "2"),
            (SortKey::Fence, "3"),
            (SortKey::Memory, "0"),
            (SortKey::Host, "0"),
        ] {
            assert_eq!(first(key), rank, "{key:?}");
        }
        let (before, now) = samples();
        let order = SortOrder::by(SortKey::Cpu).chosen(SortKey::Cpu);
        let (_, rows) = ranks(Some(&before), &now, order);
        assert_eq!(rows[3][0], "1");
    }

    #[test]
    fn rates_cover_time_between_two_samples() {
        let (before, now) = samples();
        let (head, rows) = ranks(Some(&before), &now, SortOrder::by(SortKey::Rank));
        let at = |name: &str| head.iter().position(|title| *title == name).unwrap();
        assert_eq!(rows[1][at("CPU%")], "75");
        assert_eq!(rows[2][at("OUT/s")], "2.0 KiB");
        assert_eq!(rows[3][at("WAITS IN")], "pmix 3 of job[*], 2.1 s");
        let (_, rows) = ranks(None, &now, SortOrder::by(SortKey::Rank));
        assert_eq!((&*rows[1][at("CPU%")], &*rows[1][at("OUT/s")]), ("-", "-"));
    }

    #[test]
    fn hosts_are_sums_of_their_ranks() {
        let (before, now) = samples();
        let (_, rows) = hosts(Some(&before), &now, SortOrder::by(SortKey::Fence));
        assert_eq!(rows[0][..3], ["n1", "2", "0"]);
        assert_eq!(rows[0][6], "1, 2.1 s");
        assert_eq!(rows[1][..3], ["n0", "2", "75"]);
        let title = title(&now);
        assert_eq!(
            title,
            "wireup-1: 4 of 4 ranks run on 2 hosts, 1 wait in a fence"
        );
        let title = super::title(&before);
        assert!(title.ends_with("hosts, none is known to wait in a fence; waits inside MPI are not seen, wireup stacks shows them"), "{title}");
    }

    #[test]
    fn top_escapes_texts_of_hosts() {
        let mut now = samples().1;
        now.ranks[0].did = "\u{1b}]0;x\u{7}\n".into();
        let (_, rows) = ranks(None, &now, SortOrder::by(SortKey::Rank));
        assert_eq!(rows[0][9], r"\x1b]0;x\x07\n");
    }
}
