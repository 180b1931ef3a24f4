//! Tests of the server as a whole. The vocabulary: a [`Job`] of one node, fed by text, whose
//! effects are read back as text.

mod barrier;
mod drafts;
mod frames;
mod groups;
mod pmi2;
mod pmi2_together;
mod random;
mod requests;
mod spawn;
mod transcripts;
mod wire;

use std::collections::VecDeque;

use super::pmi_collective::{BarrierGroup, PmiCollective};
use super::server::{NameAnswer, PmiAction, PmiJobInfo, PmiServer, RemoteKeyRead};
use crate::job::ids::{AppNum, LocalRank, NodeId, Nspace, Rank};
use crate::job::process_map::ProcessMap;
use crate::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnResult};
use crate::kvs;

/// The line every client starts with.
const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

/// That of PMI-2.
const INIT_2: &str = "cmd=init pmi_version=2 pmi_subversion=0\n";

/// The answer to the first.
const INIT_REPLY: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2";

/// A server and the effects not yet looked at, one line of text each.
struct Job {
    server: PmiServer,
    /// Whether the beginning and local end of barriers are noted.
    notes: bool,
    effects: VecDeque<String>,
}

impl Job {
    /// `ranks` ranks of `job.0` on one node.
    fn new(ranks: u32) -> Self {
        Self::with(
            PmiJobInfo {
                kvsname: Nspace::new("job.0").unwrap(),
                appnums: vec![AppNum(0); ranks as usize],
                universe_size: None,
                attributes: Vec::new(),
                preputs: Vec::new(),
                spawner: None,
            },
            &ProcessMap::from_runs([(NodeId(0), ranks)]),
            NodeId(0),
        )
    }

    /// Like `new`, after every rank's init.
    fn initialized(ranks: u32) -> Self {
        let mut job = Self::new(ranks);
        for rank in 0..ranks {
            job.feed(rank, INIT.as_bytes());
        }
        job.effects.clear();
        job
    }

    fn with(job: PmiJobInfo, map: &ProcessMap, node: NodeId) -> Self {
        Self {
            server: PmiServer::new(job, map, node).unwrap(),
            notes: false,
            effects: VecDeque::new(),
        }
    }

    fn feed(&mut self, rank: u32, bytes: &[u8]) {
        self.server.receive(LocalRank(rank), bytes);
        let effects = self.server.take_actions();
        // Only the tests of these three are interested in them.
        let notes = self.notes;
        let noted = |effect: &&PmiAction| {
            notes
                || !matches!(
                    effect,
                    PmiAction::Begun { .. } | PmiAction::Ended { .. } | PmiAction::RecordSegment
                )
        };
        self.effects
            .extend(effects.iter().filter(noted).map(render));
    }

    /// Feeds one line and returns the effects of it.
    fn ask(&mut self, rank: u32, line: &str) -> Vec<String> {
        self.feed(rank, format!("{line}\n").as_bytes());
        self.effects.drain(..).collect()
    }

    /// Feeds one frame and returns the effects of it.
    fn frame(&mut self, rank: u32, pairs: &str) -> Vec<String> {
        self.feed(rank, format!("{:<6}{pairs}", pairs.len()).as_bytes());
        self.effects.drain(..).collect()
    }

    /// Feeds one frame that has exactly one answer, and returns it without its length.
    fn framed_reply(&mut self, rank: u32, pairs: &str) -> String {
        let effects = self.frame(rank, pairs);
        let [reply] = &effects[..] else {
            panic!("{pairs}: {effects:?}");
        };
        let reply = reply.strip_prefix(&format!("{rank} S> ")).expect(reply);
        reply[6..].to_owned()
    }

    /// Starts PMI-2 on these ranks, and leaves the others as they are.
    fn start_pmi2(&mut self, ranks: impl IntoIterator<Item = u32>) {
        for rank in ranks {
            self.feed(rank, INIT_2.as_bytes());
            self.frame(rank, "cmd=fullinit;");
        }
        self.effects.clear();
    }

    /// Feeds one line that has exactly one answer, and returns it without its newline.
    fn reply(&mut self, rank: u32, line: &str) -> String {
        let effects = self.ask(rank, line);
        let [reply] = &effects[..] else {
            panic!("{line}: {effects:?}");
        };
        let reply = reply.strip_prefix(&format!("{rank} S> ")).expect(reply);
        reply.strip_suffix("\\n").expect(reply).to_owned()
    }

    fn release(&mut self, outcome: Result<&[u8], &str>) -> Vec<String> {
        self.end(&PmiCollective::WORLD, outcome)
    }

    /// Ends a barrier or ring.
    fn end(&mut self, collective: &PmiCollective, outcome: Result<&[u8], &str>) -> Vec<String> {
        let released = self.server.released(collective, outcome);
        let effects = self.server.take_actions();
        assert_eq!(released, Ok(()));
        effects.iter().map(render).collect()
    }

    fn answer(&mut self, rank: u32, answer: NameAnswer<'_>) -> Vec<String> {
        self.server.name_answer(LocalRank(rank), answer);
        let effects = self.server.take_actions();
        effects.iter().map(render).collect()
    }

    fn spawned(&mut self, rank: u32, result: &SpawnResult) -> Vec<String> {
        self.spawned_with(rank, result, &[])
    }

    /// Ends a spawn with this number of ranks of each program.
    fn spawned_with(&mut self, rank: u32, result: &SpawnResult, started: &[u32]) -> Vec<String> {
        self.server.spawned(LocalRank(rank), result, started);
        let effects = self.server.take_actions();
        effects.iter().map(render).collect()
    }

    fn state(&self, rank: u32) -> String {
        self.server.state(LocalRank(rank)).to_string()
    }
}

/// A barrier as a request names its group.
fn barrier(group: &str) -> PmiCollective {
    let BarrierGroup { scope, tag } = BarrierGroup::parse(group.as_bytes()).unwrap();
    PmiCollective::Barrier { scope, tag }
}

/// An effect in the notation of the transcripts.
fn render(effect: &PmiAction) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match effect {
        PmiAction::Withdrawn { collective } => format!("W> {collective}"),
        PmiAction::Renew { rank, .. } => format!("{rank} R>"),
        PmiAction::Send { rank, bytes } => format!("{rank} S> {}", escape(bytes)),
        PmiAction::Entered {
            collective,
            contribution,
        } => {
            let mut line = match collective {
                &PmiCollective::WORLD => String::from("E> barrier"),
                other => format!("E> enter {other}"),
            };
            for entry in kvs::decode(contribution) {
                let (key, value) = entry.unwrap();
                line = format!("{line} {}={}", escape(key), escape(value));
            }
            line
        }
        PmiAction::Begun { collective } => format!("E> begun {collective}"),
        PmiAction::Ended { collective } => format!("E> ended {collective}"),
        PmiAction::Abort {
            rank,
            code,
            message,
        } => format!("E> abort {rank} {code} {message}")
            .trim_end()
            .to_owned(),
        PmiAction::Initialized { rank } => format!("E> initialized {rank}"),
        PmiAction::Finalized { rank } => format!("E> finalized {rank}"),
        PmiAction::Publish {
            rank,
            service,
            port,
            limits,
        } => {
            let mut line = format!("E> publish {rank} <{}> <{}>", text(service), text(port));
            if let Some(expires) = limits.expires {
                line += &format!(" for {expires:?}");
            }
            if let Some(reads) = limits.reads {
                line += &format!(" for {reads} lookups");
            }
            line
        }
        PmiAction::Lookup { rank, service } => format!("E> lookup {rank} <{}>", text(service)),
        PmiAction::Unpublish { rank, service } => {
            format!("E> unpublish {rank} <{}>", text(service))
        }
        PmiAction::DescribeHost => "E> describe host".to_owned(),
        PmiAction::RecordSegment => "E> record segment".to_owned(),
        PmiAction::RemoveAtEnd { resource } => format!("E> remove at end {resource:?}"),
        PmiAction::Spawn { rank, request } => {
            let mut line = format!("E> spawn {rank}");
            for app in &request.apps {
                line += &format!(" {}*{}", app.count, app.program.to_string_lossy());
                for arg in &app.args {
                    line += &format!(" <{}>", escape(arg.as_encoded_bytes()));
                }
                for info in &app.infos {
                    line += &format!(" {}={}", info.key, info.value);
                }
            }
            for (key, value) in &request.preputs {
                line += &format!(" + {}={}", text(key), text(value));
            }
            for info in &request.infos {
                line += &format!(" : {}={}", info.key, info.value);
            }
            line
        }
        PmiAction::Key {
            rank, job, request, ..
        } => match request {
            RemoteKeyRead::Key(key) => format!("E> key {rank} {job} {}", text(key)),
            RemoteKeyRead::Pairs => format!("E> pairs {rank} {job}"),
            RemoteKeyRead::Job => format!("E> connect {rank} {job}"),
        },
        PmiAction::Misbehaved { rank, error } => format!("E> misbehaved {rank}: {error}"),
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        bytes.push(match (byte, byte == b'\\') {
            (_, true) => match chars.next() {
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'\\') => b'\\',
                Some(b'x') => {
                    let digits = [chars.next().unwrap(), chars.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => panic!("escape {other:?} in {text}"),
            },
            (byte, false) => byte,
        });
    }
    bytes
}
