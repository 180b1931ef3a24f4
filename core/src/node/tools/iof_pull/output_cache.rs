//! Last output of each stream, for subscribers that come after it was printed.
//!
//! Rule: libpmix passes a piece on to all subscribers of its node. So a node gets cached output of a stream only if it
//! was not subscribed to that stream before. Source: `_iofdeliver` of 4.2.2 and 5.0.11.
//! Rule: every launch may get a subscriber, so every launch keeps this cache. Its size does not depend on the number of
//! ranks: [`KEPT_BY_NODE`] bounds it. Within that bound each stream keeps its last [`KEPT`] bytes; then all streams
//! keep half of that, and so on, which shortens only streams that have printed more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{IofPulls, LocalStream};
use crate::job::ids::{JobIndex, NodeId, NodeRank};
use crate::node::context::NodeContext;
use crate::node::service_messages::OutputCacheRequest;

/// Most bytes that are kept of a stream. A power of two, as are its halves.
pub(super) const KEPT: usize = 64 << 10;

/// Most bytes of memory for the output that a node keeps of all streams.
pub(super) const KEPT_BY_NODE: usize = 2 << 20;

/// The last part of a stream's output so far.
#[derive(Debug, Default)]
struct StreamTail {
    /// Last bytes. The capacity is at most twice the length, and equals the length after the end of the stream.
    bytes: VecDeque<u8>,
    has_ended: bool,
}

impl StreamTail {
    /// Adds bytes, and forgets the oldest ones beyond a limit. None are the end of the stream.
    fn add(&mut self, bytes: &[u8], limit: usize) {
        let last = &bytes[bytes.len().saturating_sub(limit)..];
        self.trim_bytes(limit - last.len());
        let length = self.bytes.len() + last.len();
        if length > self.bytes.capacity() {
            let room = length.next_power_of_two();
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend(last);
        if bytes.is_empty() {
            self.has_ended = true;
            self.bytes.shrink_to_fit();
        }
    }

    /// Forgets all but the last bytes.
    fn trim_bytes(&mut self, most: usize) {
        let surplus = self.bytes.len().saturating_sub(most);
        self.bytes.drain(..surplus);
    }
}

/// Last output of each stream of this node's processes.
#[derive(Debug)]
pub(super) struct OutputCache {
    tails: BTreeMap<LocalStream, StreamTail>,
    /// The capacity of all tails: never more than [`KEPT_BY_NODE`].
    room: usize,
    /// Most bytes that are kept of a stream at present: [`KEPT`], or half of it, and so on.
    limit: usize,
}

impl Default for OutputCache {
    fn default() -> Self {
        Self {
            tails: BTreeMap::new(),
            room: 0,
            limit: KEPT,
        }
    }
}

impl OutputCache {
    /// Adds bytes that were read from a stream; none at its end.
    pub(super) fn add(&mut self, stream: LocalStream, bytes: &[u8]) {
        let tail = self.tails.entry(stream).or_default();
        let before = tail.bytes.capacity();
        tail.add(bytes, self.limit);
        self.room = self.room - before + tail.bytes.capacity();
        while self.room > KEPT_BY_NODE {
            self.limit /= 2;
            for tail in self.tails.values_mut() {
                tail.trim_bytes(self.limit);
                tail.bytes.shrink_to(self.limit);
            }
            self.room = self.capacity();
        }
    }

    fn capacity(&self) -> usize {
        self.tails.values().map(|tail| tail.bytes.capacity()).sum()
    }

    /// Returns the requested part of a stream's cache, in pieces; the last one is empty if the stream has ended.
    pub(super) fn pieces(&self, stream: LocalStream, cached: OutputCacheRequest) -> Vec<Vec<u8>> {
        let Some(tail) = self.tails.get(&stream) else {
            return Vec::new();
        };
        let most = usize::try_from(cached.bytes).unwrap_or(usize::MAX);
        let count = tail.bytes.len().min(most);
        let from = match cached.first {
            true => 0,
            false => tail.bytes.len() - count,
        };
        let bytes: Vec<u8> = tail.bytes.range(from..from + count).copied().collect();
        let end = tail.has_ended.then(Vec::new);
        Some(bytes)
            .filter(|b| !b.is_empty())
            .into_iter()
            .chain(end)
            .collect()
    }

    /// Forgets the streams of processes for which this holds.
    pub(super) fn forget(&mut self, whose: impl Fn(LocalStream) -> bool) {
        self.tails.retain(|stream, _| !whose(*stream));
        self.room = self.capacity();
        self.limit = KEPT;
    }
}

impl IofPulls {
    /// Subscribes a node to local streams, and sends it the cached output of those that it did not request before.
    pub(super) fn on_output_request(
        &mut self,
        subscriber: NodeId,
        streams: &[LocalStream],
        cached: OutputCacheRequest,
        cx: &mut NodeContext,
    ) {
        for stream in streams {
            let reader = self.readers.entry(subscriber).or_default();
            if !reader.requested_streams.insert(*stream) {
                continue;
            }
            reader.wants.insert(*stream);
            for piece in self.cache.pieces(*stream, cached) {
                self.forward_output(subscriber, *stream, piece, cx);
            }
        }
    }

    /// Forgets the output of a job whose processes have all ended.
    pub(in crate::node) fn forget_job(&mut self, job: JobIndex, cx: &mut NodeContext) {
        let gone: BTreeSet<NodeRank> = cx
            .jobs
            .processes_of(job)
            .filter_map(|p| cx.local(p))
            .collect();
        self.cache.forget(|(at, _)| gone.contains(&at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::keys;
    use crate::pmix::value::{Channels, Info, Value};

    const STREAM: LocalStream = (NodeRank(1), Channels::STDOUT.0);

    fn cached(infos: &[Info]) -> OutputCacheRequest {
        OutputCacheRequest::from_infos(infos)
    }

    fn size(bytes: u32) -> Info {
        Info::new(keys::IOF_CACHE_SIZE, Value::Uint32(bytes))
    }

    fn yes(key: &str) -> Info {
        Info::new(key, Value::Bool(true))
    }

    #[test]
    fn cache_keeps_last_bytes_and_end_of_stream() {
        let mut cache = OutputCache::default();
        assert!(cache.pieces(STREAM, cached(&[])).is_empty());
        cache.add(STREAM, b"before");
        cache.add(STREAM, &vec![b'x'; KEPT - 3]);
        cache.add((NodeRank(1), Channels::STDERR.0), b"of another");
        let all = [b"ore".to_vec(), vec![b'x'; KEPT - 3]].concat();
        assert_eq!(cache.pieces(STREAM, cached(&[])), [all]);
        let more = vec![b'y'; 2 * KEPT];
        cache.add(STREAM, &more);
        cache.add(STREAM, b"");
        assert_eq!(cache.pieces(STREAM, cached(&[])), [&more[..KEPT], b""]);
        cache.forget(|stream| stream == STREAM);
        assert!(cache.pieces(STREAM, cached(&[])).is_empty());
    }

    #[test]
    fn cache_per_stream_shrinks_with_number_of_full_streams() {
        let mut cache = OutputCache::default();
        let stream = |rank| (NodeRank(rank), Channels::STDOUT.0);
        cache.add(stream(0), b"little");
        let own = |rank: u32, count| vec![rank.to_le_bytes()[0]; count];
        let last = |cache: &OutputCache, rank| cache.pieces(stream(rank), cached(&[])).concat();
        for count in 1..=256_u32 {
            cache.add(stream(count), &own(count, 2 * KEPT));
            assert!(cache.capacity() <= KEPT_BY_NODE && cache.room == cache.capacity());
            let each = last(&cache, count).len();
            let uses_half = 2 * each * count as usize + 8 > KEPT_BY_NODE;
            assert!(each == KEPT || uses_half, "{each} of each of {count}");
            if count % 51 == 1 {
                let mut ranks = 1..=count;
                assert!(ranks.all(|rank| last(&cache, rank) == own(rank, each)));
            }
        }
        // One that has printed little loses nothing.
        assert_eq!(last(&cache, 0), b"little");
        // A rank that goes on has its newest output.
        cache.add(stream(7), b"newest");
        assert!(last(&cache, 7).ends_with(b"\x07newest"));
        // Room again when a job is over.
        cache.forget(|(at, _)| at != NodeRank(7));
        cache.add(stream(7), &vec![b'c'; 2 * KEPT]);
        assert_eq!(last(&cache, 7), vec![b'c'; KEPT]);
    }

    #[test]
    fn cached_stream_uses_only_needed_memory() {
        let mut cache = OutputCache::default();
        for _ in 0..100 {
            cache.add(STREAM, b"a line\n");
            let held = cache.pieces(STREAM, cached(&[])).concat().len();
            assert!(cache.room < 2 * held, "{} for {held}", cache.room);
        }
        cache.add(STREAM, b"");
        assert_eq!(cache.room, 700);
    }

    #[test]
    fn subscriber_selects_size_and_end_of_cached_output() {
        let mut cache = OutputCache::default();
        cache.add(STREAM, b"abcdef");
        for (infos, expected) in [
            (vec![], "abcdef"),
            (vec![size(100)], "abcdef"),
            (vec![size(2)], "ef"),
            (vec![size(2), yes(keys::IOF_DROP_OLDEST)], "ef"),
            (vec![size(2), yes(keys::IOF_DROP_NEWEST)], "ab"),
        ] {
            assert_eq!(cache.pieces(STREAM, cached(&infos)), [expected.as_bytes()]);
        }
        assert!(cache.pieces(STREAM, cached(&[size(0)])).is_empty());
    }
}
