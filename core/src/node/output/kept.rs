//! The last output of each stream, for those that subscribe when it has been printed already.
//!
//! Rule: libpmix passes a piece on to all subscribers of its node. So a node gets what was kept of a stream only
//! if it has not been subscribed to that stream before. Source: `_iofdeliver` of 4.2.2 and 5.0.11.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::Stream;
use crate::job::clock::Moment;
use crate::job::ids::{JobNumber, NodeId, NodeRank};
use crate::node::NodeCore;
use crate::node::event::Action;
use crate::pmix::keys;
use crate::pmix::value::{Info, Value, find};

/// Most bytes that are kept of a stream.
pub(super) const KEPT: usize = 64 << 10;

/// How much of what was kept a subscriber asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CachedOutput {
    /// At most this number of bytes of each stream.
    pub bytes: u32,
    /// The first of them instead of the last.
    pub first: bool,
}

impl CachedOutput {
    /// From the infos of `PMIx_IOF_pull`: everything unless they say otherwise.
    pub(super) fn wanted(infos: &[Info]) -> Self {
        let bytes = match find(infos, keys::IOF_CACHE_SIZE) {
            Some(Value::Uint32(bytes) | Value::Uint(bytes)) => *bytes,
            Some(Value::Int(bytes) | Value::Int32(bytes)) => u32::try_from(*bytes).unwrap_or(0),
            Some(Value::Size(bytes) | Value::Uint64(bytes)) => {
                u32::try_from(*bytes).unwrap_or(u32::MAX)
            }
            _ => u32::MAX,
        };
        let set = |key| !matches!(find(infos, key), None | Some(Value::Bool(false)));
        let first = set(keys::IOF_DROP_NEWEST) && !set(keys::IOF_DROP_OLDEST);
        Self { bytes, first }
    }
}

/// The end of what a stream has brought so far.
#[derive(Debug, Default)]
struct Tail {
    bytes: VecDeque<u8>,
    ended: bool,
}

/// What is kept of this node's processes.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<Stream, Tail>);

impl Kept {
    /// Adds what was read of a stream; nothing at its end.
    pub(super) fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let tail = self.0.entry(stream).or_default();
        tail.ended |= bytes.is_empty();
        let last = &bytes[bytes.len().saturating_sub(KEPT)..];
        let surplus = (tail.bytes.len() + last.len()).saturating_sub(KEPT);
        tail.bytes.drain(..surplus);
        tail.bytes.extend(last);
    }

    /// What is kept of a stream, in pieces; the last one is empty if the stream has ended.
    pub(super) fn pieces(&self, stream: Stream, cached: CachedOutput) -> Vec<Vec<u8>> {
        let Some(tail) = self.0.get(&stream) else {
            return Vec::new();
        };
        let most = usize::try_from(cached.bytes).unwrap_or(usize::MAX);
        let count = tail.bytes.len().min(most);
        let from = match cached.first {
            true => 0,
            false => tail.bytes.len() - count,
        };
        let bytes: Vec<u8> = tail.bytes.range(from..from + count).copied().collect();
        let end = tail.ended.then(Vec::new);
        Some(bytes)
            .filter(|b| !b.is_empty())
            .into_iter()
            .chain(end)
            .collect()
    }

    /// Forgets the streams of processes for which this holds.
    pub(super) fn forget(&mut self, whose: impl Fn(Stream) -> bool) {
        self.0.retain(|stream, _| !whose(*stream));
    }
}

impl NodeCore {
    /// A node wants these streams of local processes, and what was kept of those that it did not want before.
    pub(super) fn wanted(
        &mut self,
        by: NodeId,
        streams: &[Stream],
        cached: CachedOutput,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        for stream in streams {
            let reader = self.outputs.readers.entry(by).or_default();
            if !reader.known.insert(*stream) {
                continue;
            }
            reader.wants.insert(*stream);
            for piece in self.outputs.kept.pieces(*stream, cached) {
                self.pass_on(by, *stream, piece, now, actions);
            }
        }
    }

    /// All processes of a job have ended: none of it can be asked for any more.
    pub(in super::super) fn forget_output(&mut self, job: JobNumber) {
        let gone: BTreeSet<NodeRank> = self
            .jobs
            .processes_of(job)
            .filter_map(|p| self.local(p))
            .collect();
        self.outputs.kept.forget(|(at, _)| gone.contains(&at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::value::Channels;

    const STREAM: Stream = (NodeRank(1), Channels::STDOUT.0);

    fn cached(infos: &[Info]) -> CachedOutput {
        CachedOutput::wanted(infos)
    }

    fn size(bytes: u32) -> Info {
        Info::new(keys::IOF_CACHE_SIZE, Value::Uint32(bytes))
    }

    fn yes(key: &str) -> Info {
        Info::new(key, Value::Bool(true))
    }

    #[test]
    fn the_last_bytes_are_kept_and_the_end() {
        let mut kept = Kept::default();
        assert!(kept.pieces(STREAM, cached(&[])).is_empty());
        kept.add(STREAM, b"before");
        kept.add(STREAM, &vec![b'x'; KEPT - 3]);
        kept.add((NodeRank(1), Channels::STDERR.0), b"of another");
        let all = [b"ore".to_vec(), vec![b'x'; KEPT - 3]].concat();
        assert_eq!(kept.pieces(STREAM, cached(&[])), [all]);
        let more = vec![b'y'; 2 * KEPT];
        kept.add(STREAM, &more);
        kept.add(STREAM, b"");
        assert_eq!(kept.pieces(STREAM, cached(&[])), [&more[..KEPT], b""]);
        kept.forget(|stream| stream == STREAM);
        assert!(kept.pieces(STREAM, cached(&[])).is_empty());
    }

    #[test]
    fn a_subscriber_chooses_how_much_it_gets_and_of_which_end() {
        let mut kept = Kept::default();
        kept.add(STREAM, b"abcdef");
        for (infos, expected) in [
            (vec![], "abcdef"),
            (vec![size(100)], "abcdef"),
            (vec![size(2)], "ef"),
            (vec![size(2), yes(keys::IOF_DROP_OLDEST)], "ef"),
            (vec![size(2), yes(keys::IOF_DROP_NEWEST)], "ab"),
        ] {
            assert_eq!(kept.pieces(STREAM, cached(&infos)), [expected.as_bytes()]);
        }
        assert!(kept.pieces(STREAM, cached(&[size(0)])).is_empty());
    }
}
