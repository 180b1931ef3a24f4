//! Properties of the merger: each rank's bytes are shown as written, for all divisions into pieces, orders of pieces and
//! pauses.

use super::tests::voice;
use super::*;
use data_encoding::BASE64;
use proptest::collection::vec;
use proptest::prelude::*;

const RANKS: u32 = 3;

/// One read from a rank's pipe.
#[derive(Clone, Debug)]
struct OutputRead {
    rank: u32,
    bytes: Vec<u8>,
    /// Whether unfinished lines are shown after it.
    pause: bool,
}

/// Pieces whose bytes are newlines and letters of their rank: `a` and `b` of rank 0, and so on.
/// Some are longer than what is held of a line.
fn pieces(pauses: bool) -> impl Strategy<Value = Vec<OutputRead>> {
    let length = prop_oneof![60 => Just(1), 1 => Just(LINE_MAX / 3)];
    let piece = (0..RANKS, vec(0..4_u8, 0..12), length, any::<bool>());
    let piece = piece.prop_map(move |(rank, shape, times, pause)| OutputRead {
        rank,
        bytes: shape
            .iter()
            .flat_map(|kind| match kind {
                3 => vec![b'\n'],
                2 => vec![b'a' + 2 * rank as u8 + 1; times],
                _ => vec![b'a' + 2 * rank as u8; times],
            })
            .collect(),
        pause: pause && pauses,
    });
    vec(piece, 0..40)
}

/// Returns the output of a merger for these pieces.
fn merged(dress: LineFormat, pieces: &[OutputRead]) -> Vec<u8> {
    let mut merger = Merger::new(dress);
    let (mut out, mut now) = (Vec::new(), Duration::ZERO);
    for piece in pieces {
        merger.push(voice(piece.rank), &piece.bytes, now, &mut out);
        if piece.pause {
            now += PARTIAL_DELAY;
            merger.tick(now, &mut out);
            assert_eq!(merger.next_deadline(), None, "something waits too long");
        }
    }
    for rank in (0..RANKS).map(voice) {
        merger.close(rank, &mut out);
    }
    out
}

/// Returns all bytes that a rank wrote.
fn written(rank: u32, pieces: &[OutputRead]) -> Vec<u8> {
    let own = pieces.iter().filter(|piece| piece.rank == rank);
    own.flat_map(|piece| piece.bytes.iter().copied()).collect()
}

fn is_of(rank: u32, byte: u8) -> bool {
    byte != b'\n' && u32::from(byte - b'a') / 2 == rank
}

/// Returns the number of newlines inserted into `expected` to get `found`; `None` if they differ otherwise.
fn newlines_added(expected: &[u8], found: &[u8]) -> Option<usize> {
    let mut rest = expected;
    for byte in found {
        match rest.split_first() {
            Some((next, after)) if next == byte => rest = after,
            _ if *byte == b'\n' => {}
            _ => return None,
        }
    }
    rest.is_empty().then(|| found.len() - expected.len())
}

proptest! {
    #[test]
    fn plain_output_preserves_bytes_of_each_rank(pieces in pieces(true)) {
        let out = merged(LineFormat::Plain, &pieces);
        let newlines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        let mut all = 0;
        for rank in 0..RANKS {
            let own = written(rank, &pieces);
            all += newlines(&own);
            let letters: Vec<u8> = own.into_iter().filter(|byte| *byte != b'\n').collect();
            let found: Vec<u8> = out.iter().copied().filter(|byte| is_of(rank, *byte)).collect();
            prop_assert!(found == letters, "rank {rank}");
        }
        prop_assert_eq!(newlines(&out), all);
    }

    #[test]
    fn plain_line_is_of_one_rank_unless_shown_early(pieces in pieces(false)) {
        // No piece is so long that it must be.
        let pieces: Vec<OutputRead> = pieces
            .into_iter()
            .filter(|piece| piece.bytes.len() < 100)
            .collect();
        let out = merged(LineFormat::Plain, &pieces);
        let end = memchr::memrchr(b'\n', &out).map_or(0, |at| at + 1);
        for line in out[..end].split_inclusive(|byte| *byte == b'\n') {
            let of = |rank| line[..line.len() - 1].iter().all(|byte| is_of(rank, *byte));
            prop_assert!((0..RANKS).any(of), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn labelled_line_is_of_one_rank_and_only_newlines_are_added(pieces in pieces(true)) {
        let dress = LineFormat::Prefix { label: true, clock: None };
        let out = merged(dress, &pieces);
        let mut found = vec![Vec::new(); RANKS as usize];
        for line in out.split_inclusive(|byte| *byte == b'\n') {
            let label = line.get(..4).filter(|label| label[0] == b'[' && label[2..] == *b"] ");
            prop_assert!(label.is_some(), "{}", line.escape_ascii());
            let rank = u32::from(line[1] - b'0');
            let bytes = line[4..].iter().filter(|byte| **byte != b'\n');
            prop_assert!(bytes.into_iter().all(|byte| is_of(rank, *byte)));
            found[rank as usize].extend_from_slice(&line[4..]);
        }
        for rank in 0..RANKS {
            // A line is cut only where it was shown before its end: at a pause, beyond the limit,
            // or at the end of the rank's output.
            let own = written(rank, &pieces);
            let pauses = pieces.iter().filter(|piece| piece.pause).count();
            let added = newlines_added(&own, &found[rank as usize]);
            let most = pauses + own.len() / LINE_MAX + 1;
            prop_assert!(added.is_some_and(|added| added <= most), "rank {rank}: {added:?}");
        }
    }

    #[test]
    fn as_events_each_ranks_bytes_are_exact(
        pieces in vec((0..RANKS, vec(prop_oneof![any::<u8>(), Just(b'\n')], 0..24)), 0..40),
        text in vec((0..RANKS, "[\u{0}-\u{7f}äß→𝄞]{0,8}\n?"), 0..40),
    ) {
        let texts = text.into_iter().map(|(rank, text)| (rank, text.into_bytes()));
        let pieces: Vec<OutputRead> = pieces
            .into_iter()
            .chain(texts)
            .map(|(rank, bytes)| OutputRead { rank, bytes, pause: rank == 0 })
            .collect();
        let dress = LineFormat::Event { clock: WallClock::utc(Duration::ZERO) };
        let out = merged(dress, &pieces);
        let mut found = vec![Vec::new(); RANKS as usize];
        for line in out.split_inclusive(|byte| *byte == b'\n') {
            let event: serde_json::Value = serde_json::from_slice(line).unwrap();
            let rank = event["rank"].as_u64().unwrap() as usize;
            match event["text"].as_str() {
                Some(text) => found[rank].extend_from_slice(text.as_bytes()),
                None => found[rank].extend(BASE64.decode(event["base64"].as_str().unwrap().as_bytes()).unwrap()),
            }
        }
        for rank in 0..RANKS {
            prop_assert_eq!(&found[rank as usize], &written(rank, &pieces));
        }
    }
}
