//! Entry points of the fuzzer, and of the plain tests that run them over a corpus and random input.
//!
//! Input is a list of steps for a server of three ranks, on the first of two nodes. A
//! step is two bytes, the action and the number of bytes that follow, and those bytes: most steps feed them
//! to a rank, some answer what the server asked for. Panics when the server breaks a promise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::challenge::{AuthKey, ClientAuth};
use super::client_multiplexer::{ClientMultiplexer, MultiplexerAction};
use super::limits::{CONTINUED_MAX, FRAME_MAX, REQUEST_LINE_MAX, SPAWN_MAX};
use super::pmi_collective::PmiCollective;
use super::server::{KeyAnswer, NameAnswer, PmiAction, PmiJobInfo, PmiServer};
use super::singleton_handshake::{NO_KEY, SingletonHandshake};
use super::tcp_handshake::{HandshakeOutcome, START_MAX, TcpHandshake};
use super::transcript::TranscriptSide;
use super::wire_v1::Pmi1Line;
use super::wire_v2::{Message, Pmi2Frame, Pmi2Framer};
use crate::job::ids::{AppNum, LocalRank, NodeId, Nspace, Rank};
use crate::job::process_map::ProcessMap;
use crate::job::spawn::{SpawnFailure, SpawnFailureKind};

/// Ranks of the fuzzed job on this node.
const RANKS: u32 = 3;

/// Name of the fuzzed job; inputs that use it get further.
pub const KVSNAME: &str = "job.0";

/// Kinds of a step, in the upper six bits of its first byte; lower values feed.
const SPAWNED: u8 = 58;
const KEY: u8 = 59;
const RELEASE: u8 = 60;
const FAIL: u8 = 61;
const NAME: u8 = 62;
const CLOSE: u8 = 63;

/// Runs one input in which the ranks choose their dialect.
///
/// # Panics
/// When the server breaks a promise that this module checks.
pub fn pmi1(data: &[u8]) {
    for restartable in [false, true] {
        Job::new(restartable).run(data);
    }
}

/// Runs one input whose first two ranks have started PMI-2, and the third PMI-1.
///
/// # Panics
/// As [`pmi1`].
pub fn pmi2(data: &[u8]) {
    for restartable in [false, true] {
        let mut job = Job::new(restartable);
        for rank in (0..RANKS).map(LocalRank) {
            let version = if rank.0 < 2 { "2" } else { "1" };
            let init = format!("cmd=init pmi_version={version} pmi_subversion=0\n");
            job.step(0, rank, init.as_bytes());
            if rank.0 < 2 {
                job.step(0, rank, b"13    cmd=fullinit;");
            }
        }
        job.run(data);
    }
}

/// Runs one input that begins with a byte for the size of its pieces: a connection to the port of a rank, and one to a program
/// without a launcher.
///
/// # Panics
/// When the gate holds more than it may, or what reaches the server is not what the client sent last.
pub fn gate(data: &[u8]) {
    let Some((size, sent)) = data.split_first() else {
        return;
    };
    let pieces = usize::from(*size).max(1);
    singleton(pieces, sent);
    multiplexer(pieces, sent);
    let mut side = TranscriptSide::default();
    let messages = sent
        .chunks(pieces)
        .flat_map(|piece| side.read_messages(piece));
    assert!(messages.map(|message| message.len()).sum::<usize>() <= 16 * sent.len());
    let key = AuthKey::from_text("key");
    let required = size & 1 == 1;
    let job = Nspace::new("job.0").ok();
    let mut gate = TcpHandshake::new(
        Rank(1),
        4,
        job,
        ClientAuth {
            key,
            required,
            has_draft_type: true,
        },
        [7; 16],
    );
    let mut fed = 0;
    for piece in sent.chunks(usize::from(size >> 1).max(1)) {
        fed += piece.len();
        match gate.receive(piece).verdict {
            HandshakeOutcome::Open => assert!(fed <= START_MAX, "it holds {fed} bytes"),
            HandshakeOutcome::Admitted {
                received, greeted, ..
            } => {
                assert!(!required || greeted, "a client of PMI-1 proves nothing");
                assert!(received.len() <= fed && (greeted || sent[..fed].ends_with(&received)));
                return;
            }
            HandshakeOutcome::Aside { .. } => return assert!(!required, "it proves nothing"),
            HandshakeOutcome::Refused(_) => return,
        }
    }
}

/// Runs a connection for several ranks, of which each port sends back what it gets.
fn multiplexer(pieces: usize, sent: &[u8]) {
    let mut multiplexer = ClientMultiplexer::default();
    let mut ports = BTreeSet::new();
    for piece in sent.chunks(pieces) {
        let Ok(actions) = multiplexer.receive(piece) else {
            return;
        };
        for action in actions {
            match action {
                MultiplexerAction::Connect(rank) => {
                    ports.insert(rank);
                }
                MultiplexerAction::Forward(rank, bytes) => {
                    assert!(ports.contains(&rank), "a port that is not connected");
                    if multiplexer.receive_from_port(rank, &bytes).is_err() {
                        return;
                    }
                }
                MultiplexerAction::Reply(reply) => assert!(reply.len() <= 2 * sent.len() + 256),
            }
        }
    }
    for rank in ports {
        multiplexer.on_port_closed(rank, "closed");
    }
}

/// What a program without a launcher answers.
fn singleton(pieces: usize, sent: &[u8]) {
    let mut singleton = SingletonHandshake::new(NO_KEY, true, KVSNAME);
    let mut fed = 0;
    for piece in sent.chunks(pieces) {
        fed += piece.len();
        match singleton.receive(piece) {
            Ok(None) => assert!(fed < 1024, "it holds {fed} bytes"),
            Ok(Some(agreed)) => {
                return assert!(
                    sent[..fed].ends_with(&agreed.received) && agreed.reply.ends_with('\n')
                );
            }
            Err(_) => return,
        }
    }
}

/// The server, and what an observer remembers to judge it by.
struct Job {
    server: PmiServer,
    /// Bytes fed to each rank that are not accounted for by an answer: no request is shorter than
    /// five bytes, and each has at most one answer.
    fed: [usize; RANKS as usize],
    broken: [bool; RANKS as usize],
    /// Collectives that were entered and not yet released, with their contributions.
    entered: BTreeMap<PmiCollective, Vec<u8>>,
    /// Ranks with a pending request at the name service.
    name_requests: VecDeque<LocalRank>,
    /// Ranks that wait for a job they spawn.
    spawning: VecDeque<LocalRank>,
    /// Ranks that wait for a key of another job.
    keys: VecDeque<(LocalRank, u64)>,
    /// Ranks that wait for an epoch.
    renewals: VecDeque<(LocalRank, u64)>,
    restartable: bool,
}

impl Job {
    fn new(restartable: bool) -> Self {
        let map = ProcessMap::from_runs([(NodeId(0), RANKS), (NodeId(1), 1)]);
        let job = PmiJobInfo {
            kvsname: Nspace::new(KVSNAME).expect("a valid name"),
            appnums: vec![AppNum(0); RANKS as usize],
            universe_size: None,
            attributes: Vec::new(),
            preputs: Vec::new(),
            spawner: None,
        };
        let mut server = PmiServer::new(job, &map, NodeId(0)).expect("a valid job");
        server.name_hosts(&Arc::from(["a".to_owned(), "b".to_owned()]));
        Self {
            server: match restartable {
                true => server.restartable(),
                false => server,
            },
            fed: [0; RANKS as usize],
            broken: [false; RANKS as usize],
            entered: BTreeMap::new(),
            name_requests: VecDeque::new(),
            spawning: VecDeque::new(),
            keys: VecDeque::new(),
            renewals: VecDeque::new(),
            restartable,
        }
    }

    fn run(&mut self, data: &[u8]) {
        let mut rest = data;
        while let [head, length, tail @ ..] = rest {
            let (bytes, after) = tail.split_at(tail.len().min(usize::from(*length)));
            self.step(head >> 2, LocalRank(u32::from(head & 3) % RANKS), bytes);
            rest = after;
        }
    }

    fn step(&mut self, kind: u8, rank: LocalRank, bytes: &[u8]) {
        match kind {
            RELEASE => self.release(bytes),
            FAIL => {
                let why = String::from_utf8_lossy(bytes);
                let entered = self.entered.pop_first();
                let collective = entered.map_or(PmiCollective::WORLD, |(entered, _)| entered);
                let failed = self.server.released(&collective, Err(&why));
                assert_eq!(failed, Ok(()), "a failure can always be reported");
            }
            NAME => {
                let why = String::from_utf8_lossy(bytes);
                let answer = match bytes.len() % 3 {
                    0 => NameAnswer::Done,
                    1 => NameAnswer::Port(bytes),
                    _ => NameAnswer::Refused(&why),
                };
                let rank = self.name_requests.pop_front().unwrap_or(rank);
                self.server.name_answer(rank, answer);
            }
            SPAWNED => {
                let rank = self.spawning.pop_front().unwrap_or(rank);
                let result = match std::str::from_utf8(bytes).ok().map(Nspace::new) {
                    Some(Ok(name)) => Ok(name),
                    _ => Err(SpawnFailure {
                        kind: SpawnFailureKind::Failed,
                        text: String::from_utf8_lossy(bytes).into_owned(),
                    }),
                };
                let started: Vec<u32> = bytes.iter().map(|&count| count.into()).collect();
                self.server.spawned(rank, &result, &started);
            }
            KEY => {
                let answer = match bytes.len() % 3 {
                    0 => KeyAnswer::NoKey,
                    1 => KeyAnswer::Value(bytes),
                    _ => KeyAnswer::NoJob,
                };
                let (asker, number) = self.keys.pop_front().unwrap_or((rank, 0));
                self.server.key_answer(asker, number, answer);
            }
            CLOSE => self.server.closed(rank),
            _ => {
                self.fed[rank.index()] += bytes.len();
                self.server.receive(rank, bytes);
            }
        }
        self.judge();
    }

    /// Releases with all contributions, followed by those of other nodes from the input.
    ///
    /// Where ranks restart, every other one has its fence withdrawn, and an epoch begins with each.
    fn release(&mut self, others: &[u8]) {
        if let Some((rank, number)) = self.renewals.pop_front() {
            return self.server.renewed(rank, number);
        }
        let entered = self.entered.pop_first();
        if self.restartable && others.len() % 2 == 1 {
            let collective = entered.map_or(PmiCollective::WORLD, |(entered, _)| entered);
            return self.server.begin_again(&collective);
        }
        let is_early = entered.is_none();
        let (collective, own) = entered.unwrap_or((PmiCollective::WORLD, Vec::new()));
        let all = [&own, others].concat();
        let released = self.server.released(&collective, Ok(&all));
        assert!(
            !is_early || released.is_err(),
            "released what is not complete"
        );
    }

    fn judge(&mut self) {
        let held = self.server.unfinished();
        assert!(
            held <= RANKS as usize * (REQUEST_LINE_MAX.max(FRAME_MAX) + SPAWN_MAX + CONTINUED_MAX)
        );
        for effect in self.server.take_actions() {
            match effect {
                PmiAction::Send { rank, bytes } => {
                    assert!(!self.broken[rank.index()], "answer to a broken client");
                    let fed = &mut self.fed[rank.index()];
                    *fed = fed.checked_sub(5).expect("no more answers than requests");
                    assert_well_formed(&bytes);
                }
                PmiAction::Entered {
                    collective,
                    contribution,
                } => {
                    let open = self.entered.insert(collective, contribution);
                    assert_eq!(open, None, "entered twice at once");
                }
                PmiAction::Begun { collective } => {
                    assert!(!self.entered.contains_key(&collective), "begun twice");
                }
                PmiAction::Ended { collective } => {
                    assert!(
                        !self.entered.contains_key(&collective),
                        "not of this node only"
                    );
                }
                PmiAction::Withdrawn { collective } => {
                    assert!(self.restartable && self.entered.contains_key(&collective));
                }
                PmiAction::Renew { rank, number } => {
                    assert!(self.restartable);
                    self.renewals.push_back((rank, number));
                }
                PmiAction::Misbehaved { rank, error } => {
                    assert!(!error.is_empty());
                    assert!(!self.broken[rank.index()], "reported twice");
                    self.broken[rank.index()] = true;
                }
                PmiAction::Publish { rank, .. }
                | PmiAction::Lookup { rank, .. }
                | PmiAction::Unpublish { rank, .. } => {
                    assert!(!self.broken[rank.index()]);
                    self.name_requests.push_back(rank);
                }
                PmiAction::DescribeHost
                | PmiAction::RecordSegment
                | PmiAction::RemoveAtEnd { .. } => {}
                PmiAction::Spawn { rank, request } => {
                    assert!(!self.broken[rank.index()]);
                    assert!(!request.apps.is_empty());
                    assert!(request.apps.iter().all(|app| app.count > 0));
                    self.spawning.push_back(rank);
                }
                PmiAction::Key {
                    rank, number, job, ..
                } => {
                    assert!(!self.broken[rank.index()]);
                    assert_ne!(job.as_str(), KVSNAME);
                    self.keys.push_back((rank, number));
                }
                PmiAction::Abort { rank, .. }
                | PmiAction::Initialized { rank }
                | PmiAction::Finalized { rank } => assert!(!self.broken[rank.index()]),
            }
            // A report must be possible at any time.
            for rank in (0..RANKS).map(LocalRank) {
                assert!(!self.server.state(rank).to_string().is_empty());
            }
        }
    }
}

/// One message, with `rc`, with no empty value.
fn assert_well_formed(bytes: &[u8]) {
    let text = bytes.escape_ascii();
    if !bytes.starts_with(b"cmd=") {
        return assert_frame(bytes);
    }
    let line = bytes.strip_suffix(b"\n").expect("a reply ends its line");
    // The only reply of two lines.
    if line.starts_with(b"cmd=put_ranks2hosts ")
        && let Some(end) = memchr::memchr(b'\n', line)
    {
        let length = format!(" {} ", bytes.len() - end);
        let head = String::from_utf8_lossy(&line[..end]);
        return assert!(head.contains(&length), "{text}");
    }
    assert!(!line.contains(&b'\n') && !line.contains(&0), "{text}");
    let line = Pmi1Line::parse(line).expect("a reply is a message");
    let (head, tail) = line.split_tail(match line.name {
        b"lookup_result" => b" port=",
        _ => b" value=",
    });
    assert_ne!(tail, Some(&b""[..]), "{text}");
    let fields: Vec<_> = head
        .collect::<Result<_, _>>()
        .expect("a reply consists of fields");
    assert!(fields.iter().all(|(_, value)| !value.is_empty()), "{text}");
    let rc = fields.iter().find(|(key, _)| key == b"rc");
    let (_, rc) = rc.expect("a reply has an rc");
    let carries = matches!(line.name, b"get_result" | b"lookup_result");
    assert_eq!(tail.is_some(), carries && rc == b"0", "{text}");
    let tagged = fields.iter().any(|(key, _)| key == b"tag");
    assert_eq!(tagged, line.name == b"barrier_out", "{text}");
}

fn assert_frame(bytes: &[u8]) {
    let text = bytes.escape_ascii();
    let mut framer = Pmi2Framer::default();
    let mut rest = bytes;
    let Ok(Some(Message::Frame(frame))) = framer.next(&mut rest) else {
        panic!("not a frame: {text}");
    };
    let frame = Pmi2Frame::parse(frame).expect("a reply is a message");
    assert!(frame.name.ends_with(b"-response"), "{text}");
    let mut pairs = frame.pairs();
    let is_pair = frame.name.ends_with(b"-pair-response");
    let of_documents = is_pair || frame.name == b"ring-response";
    assert!(
        of_documents || pairs.all(|(_, value)| !value.is_empty()),
        "{text}"
    );
    if !rest.is_empty() {
        assert_eq!(frame.get("rc"), None, "{text}");
        assert!(is_pair || frame.get("npair").is_some(), "{text}");
        return assert_frame(rest);
    }
    let rc = frame.get("rc").expect("a reply has an rc");
    let found = frame.get("found") == Some(b"TRUE");
    assert_eq!(frame.get("value").is_some(), found && rc == b"0", "{text}");
}
