//! Entry point of the fuzzer, and of the plain test that runs it over a corpus and random input.
//!
//! Input is a list of steps for a server of three ranks. A step is two bytes, what to do and how
//! many bytes follow, and those bytes: most steps feed them to a rank, some answer what the server
//! asked for. Panics when the server breaks a promise.

use super::limits::{REQUEST_LINE_MAX, SPAWN_MAX};
use super::server::{Effect, JobInfo, NameAnswer, Server};
use super::wire_v1::Line;
use crate::job::ids::{AppNum, LocalRank, NodeId, Nspace};
use crate::job::rank_map::RankMap;

/// Ranks of the fuzzed job.
const RANKS: u32 = 3;

/// Name of the fuzzed job; inputs that use it get further.
pub const KVSNAME: &str = "job.0";

/// Kinds of a step, in the upper six bits of its first byte; lower values feed.
const RELEASE: u8 = 60;
const FAIL: u8 = 61;
const NAME: u8 = 62;
const CLOSE: u8 = 63;

/// Runs one input.
///
/// # Panics
/// When the server breaks a promise that this module checks.
pub fn pmi1(data: &[u8]) {
    let mut job = Job::new();
    let mut rest = data;
    while let [head, length, tail @ ..] = rest {
        let (bytes, after) = tail.split_at(tail.len().min(usize::from(*length)));
        job.step(head >> 2, LocalRank(u32::from(head & 3) % RANKS), bytes);
        rest = after;
    }
}

/// The server, and what an observer remembers to judge it by.
struct Job {
    server: Server,
    effects: Vec<Effect>,
    /// Newlines fed to each rank: each can end at most one request, which has at most one answer.
    lines: [usize; RANKS as usize],
    broken: [bool; RANKS as usize],
    contribution: Option<Vec<u8>>,
}

impl Job {
    fn new() -> Self {
        let map = RankMap::from_runs([(NodeId(0), RANKS)]);
        let job = JobInfo {
            kvsname: Nspace::new(KVSNAME).expect("a valid name"),
            appnums: vec![AppNum(0); RANKS as usize],
            universe_size: None,
            attributes: Vec::new(),
        };
        Self {
            server: Server::new(job, &map, NodeId(0)).expect("a valid job"),
            effects: Vec::new(),
            lines: [0; RANKS as usize],
            broken: [false; RANKS as usize],
            contribution: None,
        }
    }

    fn step(&mut self, kind: u8, rank: LocalRank, bytes: &[u8]) {
        match kind {
            RELEASE => self.release(bytes),
            FAIL => {
                let why = String::from_utf8_lossy(bytes);
                let failed = self.server.barrier_released(Err(&why), &mut self.effects);
                assert_eq!(failed, Ok(()), "a failure can always be reported");
                self.contribution = None;
            }
            NAME => {
                let why = String::from_utf8_lossy(bytes);
                let answer = match bytes.len() % 3 {
                    0 => NameAnswer::Done,
                    1 => NameAnswer::Port(bytes),
                    _ => NameAnswer::Refused(&why),
                };
                self.server.name_answer(rank, answer, &mut self.effects);
            }
            CLOSE => self.server.closed(rank, &mut self.effects),
            _ => {
                self.lines[rank.index()] += bytes.iter().filter(|&&byte| byte == b'\n').count();
                self.server.receive(rank, bytes, &mut self.effects);
            }
        }
        self.judge();
    }

    /// Releases with all that was contributed, followed by whatever the input says other nodes sent.
    fn release(&mut self, others: &[u8]) {
        let all = [self.contribution.as_deref().unwrap_or_default(), others].concat();
        let released = self.server.barrier_released(Ok(&all), &mut self.effects);
        if self.contribution.is_none() {
            assert!(released.is_err(), "released a barrier that is not complete");
        } else {
            self.contribution = None;
        }
    }

    fn judge(&mut self) {
        let held = self.server.unfinished();
        assert!(held <= RANKS as usize * (REQUEST_LINE_MAX + SPAWN_MAX));
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Send { rank, bytes } => {
                    assert!(!self.broken[rank.index()], "answer to a broken client");
                    let lines = &mut self.lines[rank.index()];
                    *lines = lines.checked_sub(1).expect("no more answers than lines");
                    assert_well_formed(&bytes);
                }
                Effect::BarrierComplete { contribution } => {
                    let open = self.contribution.replace(contribution);
                    assert_eq!(open, None, "two barriers complete at once");
                }
                Effect::Misbehaved { rank, error } => {
                    assert!(!error.is_empty());
                    assert!(!self.broken[rank.index()], "reported twice");
                    self.broken[rank.index()] = true;
                }
                Effect::Abort { rank, .. }
                | Effect::Initialized { rank }
                | Effect::Finalized { rank }
                | Effect::Publish { rank, .. }
                | Effect::Lookup { rank, .. }
                | Effect::Unpublish { rank, .. } => assert!(!self.broken[rank.index()]),
            }
            // A report must be possible at any time.
            for rank in (0..RANKS).map(LocalRank) {
                assert!(!self.server.state(rank).to_string().is_empty());
            }
        }
    }
}

/// One line, with `rc`, with no empty value.
fn assert_well_formed(bytes: &[u8]) {
    let text = bytes.escape_ascii();
    let line = bytes.strip_suffix(b"\n").expect("a reply ends its line");
    assert!(!line.contains(&b'\n') && !line.contains(&0), "{text}");
    let line = Line::parse(line).expect("a reply is a message");
    let (mut head, mut tail) = line.split_tail(b" value=");
    if tail.is_none() {
        (head, tail) = line.split_tail(b" port=");
    }
    assert_ne!(tail, Some(&b""[..]), "{text}");
    let fields: Vec<_> = head
        .collect::<Result<_, _>>()
        .expect("a reply consists of fields");
    assert!(fields.iter().all(|(_, value)| !value.is_empty()), "{text}");
    let rc = fields.iter().find(|(key, _)| key == b"rc");
    let (_, rc) = rc.expect("a reply has an rc");
    let carries = matches!(line.name, b"get_result" | b"lookup_result");
    assert_eq!(tail.is_some(), carries && rc == b"0", "{text}");
}
