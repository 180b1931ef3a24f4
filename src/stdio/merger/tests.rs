//! Lines on their way, from pieces to what is shown.

use proptest::prelude::*;

use super::*;
use crate::plan::pattern::PatternFields;
use crate::stdio::output_label::LabelFields;
use wireup_core::job::ids::{JobIndex, Rank};

/// Standard output of a rank of the job the user asked for.
pub(super) const fn voice(rank: u32) -> OutputSource {
    let job = JobIndex(0);
    let rank = Rank(rank);
    (RankId { job, rank }, Stream::Stdout)
}

const A: OutputSource = voice(0);
const B: OutputSource = voice(1);
/// Standard error of the first.
const A_ERR: OutputSource = (A.0, Stream::Stderr);
const T0: Duration = Duration::ZERO;
const LABEL: LineFormat = LineFormat::Prefix {
    label: true,
    clock: None,
};

fn text(out: &[u8]) -> &str {
    std::str::from_utf8(out).unwrap()
}

#[test]
fn lines_written_in_pieces_come_out_whole() {
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    merger.push(A, b"hel", T0, &mut out);
    merger.push(B, b"one\ntwo\nthr", T0, &mut out);
    merger.push(A, b"lo\n", T0, &mut out);
    merger.close(B, &mut out);
    assert_eq!(text(&out), "[1] one\n[1] two\n[0] hello\n[1] thr");
}

#[test]
fn prompt_is_shown_after_delay_without_label_in_mid_line() {
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    merger.push(A, b"name? ", T0, &mut out);
    assert!(out.is_empty());
    assert_eq!(merger.next_deadline(), Some(PARTIAL_DELAY));
    merger.tick(PARTIAL_DELAY, &mut out);
    merger.push(A, b"yes\n", PARTIAL_DELAY, &mut out);
    assert_eq!(text(&out), "[0] name? yes\n");
    out.clear();
    merger.push(A, b"name? ", T0, &mut out);
    merger.tick(PARTIAL_DELAY, &mut out);
    merger.push(B, b"x\n", PARTIAL_DELAY, &mut out);
    merger.push(A, b"yes\n", PARTIAL_DELAY, &mut out);
    assert_eq!(text(&out), "[0] name? \n[1] x\n[0] yes\n");
    assert_eq!(merger.next_deadline(), None);
}

#[test]
fn label_is_dropped_when_stream_is_closed() {
    let fields = PatternFields {
        rank: Rank(0),
        host: "n0",
        job: "ns",
        node: 0,
        local: 0,
        stream: None,
    };
    let process = LabelFields {
        fields,
        size: 2,
        job: JobIndex(0),
        pid: 9,
        clock: WallClock::utc(Duration::ZERO),
    };
    let label = Arc::new(Label::fill("%p %s: ".as_ref(), &process).unwrap());
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    for voice in [A, A_ERR] {
        merger.set_label(voice, Arc::clone(&label));
    }
    merger.push(A, b"end", T0, &mut out);
    merger.close(A, &mut out);
    assert_eq!(
        (merger.has_label(A), merger.has_label(A_ERR)),
        (false, true)
    );
    merger.push(A_ERR, b"error\n", T0, &mut out);
    assert_eq!(text(&out), "9 out: end\n9 err: error\n");
    merger.close(A_ERR, &mut out);
    assert!(!merger.has_label(A_ERR));
    assert_eq!(Arc::strong_count(&label), 1);
}

#[test]
fn line_has_time_of_its_start() {
    let clock = Some(WallClock::utc(Duration::ZERO));
    let second = Duration::from_secs(1);
    let mut merger = Merger::new(LineFormat::Prefix { label: true, clock });
    let mut out = Vec::new();
    merger.push(A, b"be", T0, &mut out);
    merger.push(B, b"x\ny\n", second, &mut out);
    merger.push(A, b"gun\nnext\n", second * 2, &mut out);
    assert_eq!(
        text(&out),
        "1970-01-01T00:00:01.000Z [1] x\n1970-01-01T00:00:01.000Z [1] y\n\
         1970-01-01T00:00:00.000Z [0] begun\n1970-01-01T00:00:02.000Z [0] next\n"
    );
    let mut merger = Merger::new(LineFormat::Prefix {
        label: false,
        clock,
    });
    out.clear();
    merger.push(A, b"name? ", T0, &mut out);
    merger.tick(PARTIAL_DELAY, &mut out);
    assert!(merger.is_mid_line());
    merger.push(A, b"yes\n", second, &mut out);
    assert!(!merger.is_mid_line());
    assert_eq!(text(&out), "1970-01-01T00:00:00.000Z name? yes\n");
}

#[test]
fn events_of_rank_join_to_its_output() {
    let mut merger = Merger::new(LineFormat::Event {
        clock: WallClock::utc(Duration::ZERO),
    });
    let mut out = Vec::new();
    merger.push(A, b"one\ntwo", T0, &mut out);
    merger.push((B.0, Stream::Stderr), b"\xff\n", T0, &mut out);
    merger.close(A, &mut out);
    let lines: Vec<&str> = text(&out).lines().collect();
    let start = |rank, stream| {
        format!(
            r#"{{"time":"1970-01-01T00:00:00.000Z","ms":0,"us":0,"event":"output","rank":{rank},"stream":"{stream}","#
        )
    };
    assert_eq!(
        lines,
        [
            start(0, "stdout") + r#""text":"one\n"}"#,
            start(1, "stderr") + r#""base64":"/wo="}"#,
            start(0, "stdout") + r#""text":"two"}"#,
        ]
    );
}

#[test]
fn line_is_not_shown_early_while_its_end_is_pending() {
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    merger.push(A, b"be", T0, &mut out);
    let later = PARTIAL_DELAY * 5;
    merger.hold(later);
    merger.tick(later, &mut out);
    assert_eq!(
        (text(&out), merger.next_deadline()),
        ("", Some(later + PARTIAL_DELAY))
    );
    merger.push(A, b"gun\n", later, &mut out);
    assert_eq!(text(&out), "[0] begun\n");
}

#[test]
fn two_streams_of_rank_are_merged_like_two_ranks() {
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    merger.push(A, b"out", T0, &mut out);
    merger.push(A_ERR, b"error\n", T0, &mut out);
    merger.tick(PARTIAL_DELAY, &mut out);
    merger.push(A_ERR, b"more\n", PARTIAL_DELAY, &mut out);
    merger.push(A, b"put\n", PARTIAL_DELAY, &mut out);
    assert_eq!(text(&out), "[0] error\n[0] out\n[0] more\n[0] put\n");
    // Without labels none is torn that can be waited for, and no byte is added.
    let mut merger = Merger::new(LineFormat::Plain);
    out.clear();
    merger.push(A, b"out", T0, &mut out);
    merger.push(A_ERR, b"err", T0, &mut out);
    merger.push(A, b"put\n", T0, &mut out);
    merger.push(A_ERR, b"or\n", T0, &mut out);
    assert_eq!(text(&out), "output\nerror\n");
}

#[test]
fn inserted_text_has_own_lines_among_labelled_ones() {
    let mut merger = Merger::new(LABEL);
    let mut out = Vec::new();
    merger.push(A, b"part", T0, &mut out);
    merger.tick(PARTIAL_DELAY, &mut out);
    merger.insert(b"a library", &mut out);
    assert!(merger.is_mid_line());
    merger.push(A, b"rest\n", PARTIAL_DELAY, &mut out);
    assert_eq!(text(&out), "[0] part\na library\n[0] rest\n");
}

#[test]
fn endless_line_is_held_up_to_limit() {
    let mut merger = Merger::new(LineFormat::Plain);
    let mut out = Vec::new();
    let chunk = [b'x'; 4096];
    for pushed in 1..=1000usize {
        merger.push(A, &chunk, T0, &mut out);
        assert!(pushed * chunk.len() - out.len() <= LINE_MAX);
    }
}

proptest! {
    #[test]
    fn without_labels_each_ranks_bytes_arrive_exactly(
        pieces in prop::collection::vec((0u32..3, "[ab\n]{0,12}", prop::bool::ANY), 0..60)
    ) {
        // One merger per rank shows that nothing is added, lost or reordered.
        for rank in 0..3 {
            let mut merger = Merger::new(LineFormat::Plain);
            let (mut out, mut expected) = (Vec::new(), Vec::new());
            let mut now = T0;
            for (_, piece, pause) in pieces.iter().filter(|p| p.0 == rank) {
                expected.extend_from_slice(piece.as_bytes());
                merger.push(voice(rank), piece.as_bytes(), now, &mut out);
                if *pause { now += PARTIAL_DELAY; merger.tick(now, &mut out); }
            }
            merger.close(voice(rank), &mut out);
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn every_labelled_line_is_of_one_rank_in_order(
        pieces in prop::collection::vec((0u32..3, "[ab\n]{0,12}"), 0..60)
    ) {
        let mut merger = Merger::new(LABEL);
        let mut out = Vec::new();
        let mut expected: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (rank, piece) in &pieces {
            merger.push(voice(*rank), piece.as_bytes(), T0, &mut out);
            expected.entry(*rank).or_default().extend_from_slice(piece.as_bytes());
        }
        for rank in 0..3 { merger.close(voice(rank), &mut out); }
        let mut found: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for line in out.split_inclusive(|b| *b == b'\n') {
            let rank = u32::from(line[1] - b'0');
            prop_assert!(line[0] == b'[' && &line[2..4] == b"] ");
            found.entry(rank).or_default().extend_from_slice(&line[4..]);
        }
        for (rank, bytes) in &mut expected {
            // A newline may have been added after the unfinished last line of a rank.
            let mut got = found.remove(rank).unwrap_or_default();
            if got.len() == bytes.len() + 1 { got.pop(); }
            prop_assert_eq!(&got, bytes);
        }
    }
}
