//! Lines as their readers see them.

use super::*;

fn line(record: &Record<'_>) -> String {
    let mut out = Vec::new();
    record.write(
        WallClock::utc(Duration::ZERO),
        Duration::from_millis(1500),
        &mut out,
    );
    String::from_utf8(out).unwrap()
}

#[test]
fn a_line_starts_with_time_and_kind_and_ends_with_its_only_newline() {
    let message = "two\nlines";
    let written = line(&Record::Warning { message });
    let start = r#"{"time":"1970-01-01T00:00:01.500Z","ms":1500,"event":"warning","#;
    assert!(written.starts_with(start), "{written}");
    assert_eq!(written.matches('\n').count(), 1);
    assert!(written.ends_with("}\n"));
}

#[test]
fn the_end_of_a_rank_is_a_code_or_a_signal() {
    let change = |end: RankEnd| {
        let place = Place::new((JobNumber(0), Rank(3)).into(), NodeId(1), "h", AppNum(0));
        let change = RankChange {
            state: RankState::Ended,
            place,
            pid: Some(7),
            end: Some(end.into()),
        };
        serde_json::from_str::<serde_json::Value>(&line(&Record::Rank(change))).unwrap()
    };
    let code = change(RankEnd::Code(3));
    assert_eq!((&code["code"], &code["signal"]), (&3.into(), &().into()));
    let signal = change(RankEnd::Signal(11));
    assert_eq!(signal["code"], serde_json::Value::Null);
    assert_eq!(signal["signal_name"], "SIGSEGV");
    assert_eq!((&signal["rank"], &signal["host"]), (&3.into(), &"h".into()));
}
