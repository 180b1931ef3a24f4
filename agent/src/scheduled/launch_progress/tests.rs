use super::*;

fn feed(progress: &mut Progress, line: &str, now: i64) {
    progress.take(serde_json::from_str(line).unwrap(), now);
}

fn planned(size: u32) -> Progress {
    let mut progress = Progress::new(size, 100);
    feed(&mut progress, r#"{"event":"job","state":"planned"}"#, 101);
    progress
}

fn rank(progress: &mut Progress, rank: u32, state: &str, more: &str, now: i64) {
    let line = format!(
        r#"{{"event":"rank","state":"{state}","rank":{rank},"node":1,"host":"h","app":0,"pid":7{more}}}"#
    );
    feed(progress, &line, now);
}

fn result(exit_code: u8, cause: &str) -> String {
    format!(
        r#"{{"event":"result","version":1,"job":"j","exit_code":{exit_code},"exit_policy":"first","on_failure":"abort","requeue":false,"cause":{cause},
            "start":"t","end":"t","elapsed_ms":1,"apps":[],"ranks":[]}}"#
    )
}

fn words(events: &[WatchEvent]) -> Vec<String> {
    let word = |event: &WatchEvent| {
        let past = if event.past { "past " } else { "" };
        match event.event.as_ref().unwrap() {
            Event::Launch(change) => format!("{past}{:?} {}", change.state(), change.reason),
            Event::Rank(rank) => format!(
                "{past}{} {:?} {:?}",
                rank.rank,
                rank.state(),
                rank.exit.map(|e| e.exit_code)
            ),
            Event::Warning(text) => format!("{past}warning {text}"),
            Event::Complete(_) => unreachable!("sent behind the log"),
        }
    };
    events
        .iter()
        .map(|event| word(event).trim_end().to_owned())
        .collect()
}

#[test]
fn watcher_gets_present_state_and_then_every_change() {
    let mut progress = planned(2);
    rank(&mut progress, 0, "started", "", 102);
    let mut cursor = Cursor::default();
    assert_eq!(
        words(&progress.news(&mut cursor, 10)),
        ["past Planned", "past 0 Started None"]
    );
    assert!(progress.news(&mut cursor, 10).is_empty());
    rank(&mut progress, 1, "started", "", 103);
    feed(&mut progress, r#"{"event":"job","state":"running"}"#, 103);
    rank(&mut progress, 1, "ended", r#","code":3"#, 104);
    feed(&mut progress, r#"{"event":"warning","message":"hm"}"#, 104);
    assert_eq!(
        words(&progress.news(&mut cursor, 2)),
        ["1 Started None", "Running"]
    );
    assert_eq!(
        words(&progress.news(&mut cursor, 9)),
        ["1 Ended Some(3)", "warning hm"]
    );
    assert!(!progress.is_over(cursor));
    progress.end("lost", 105);
    assert_eq!(words(&progress.news(&mut cursor, 9)), ["Ended lost"]);
    assert!(progress.is_over(cursor));
}

#[test]
fn watcher_far_behind_gets_present_state_again() {
    let mut progress = planned(2);
    let mut slow = Cursor::default();
    progress.news(&mut slow, 1);
    for round in 0..20_000 {
        rank(
            &mut progress,
            0,
            if round % 2 == 0 {
                "connected"
            } else {
                "finalized"
            },
            "",
            round,
        );
    }
    assert!(progress.log.len() <= LOG + 2 * LOG_PER_RANK);
    assert_eq!(
        words(&progress.news(&mut slow, 1)),
        ["past Planned", "past 0 Finalized None"]
    );
    assert!(progress.news(&mut slow, 1).is_empty());
}

#[test]
fn ranks_of_spawned_jobs_are_reported_separately() {
    let mut progress = planned(1);
    let mut cursor = Cursor::default();
    progress.news(&mut cursor, 9);
    let spawned = r#","spawned_job":2"#;
    rank(&mut progress, 0, "started", spawned, 101);
    rank(&mut progress, 7, "ended", spawned, 102);
    let events = progress.news(&mut cursor, 9).into_iter();
    let ranks: Vec<_> = events
        .filter_map(|event| match event.event {
            Some(Event::Rank(info)) => Some((info.spawned_job, info.rank)),
            _ => None,
        })
        .collect();
    assert_eq!(ranks, [(2, 0), (2, 7)]);
    assert_eq!(progress.ranks()[0].state(), RankState::Unspecified);
}

#[test]
fn end_has_every_rank_without_invented_values() {
    let mut progress = planned(3);
    rank(&mut progress, 0, "ended", r#","code":0"#, 102);
    rank(
        &mut progress,
        1,
        "ended",
        r#","signal":9,"signal_name":"SIGKILL""#,
        102,
    );
    rank(&mut progress, 9, "ended", r#","code":0"#, 102);
    assert!(progress.complete("l", "a").is_empty());
    let cause = r#"{"kind":"rank_failed","message":"m","rank":1,"node":1,"host":"h","app":0}"#;
    feed(&mut progress, &result(137, cause), 103);
    progress.end("lost", 104);
    let [end] = &progress.complete("l", "a")[..] else {
        panic!("one part");
    };
    let ranks: Vec<_> = end
        .ranks
        .iter()
        .map(|r| (r.rank, r.exit_code, r.signaled, r.signal))
        .collect();
    assert_eq!(
        ranks,
        [(0, 0, false, 0), (1, 137, true, 9), (2, -1, false, 0)]
    );
    assert_eq!(
        (end.success, end.exit_code, end.cause_rank, end.more),
        (false, 137, Some(1), false)
    );
    assert_eq!(
        (&*end.cause, &*end.error_message, &*end.allocation_id),
        ("rank_failed", "m", "a")
    );
}

#[test]
fn abort_reason_is_reported_unless_job_had_failed() {
    let interrupted = &result(143, r#"{"kind":"interrupted","message":"m"}"#);
    let failed = &result(1, r#"{"kind":"rank_failed","message":"m"}"#);
    let normal = &result(0, "null");
    for (line, kind, message) in [
        (
            Some(interrupted),
            "abort_requested",
            "ended by AbortProcesses: maintenance",
        ),
        (Some(failed), "rank_failed", "m"),
        (Some(normal), "", ""),
        (
            None,
            "abort_requested",
            "ended by AbortProcesses: maintenance",
        ),
    ] {
        let mut progress = planned(1);
        progress.abort("maintenance");
        progress.abort("another");
        if let Some(line) = line {
            feed(&mut progress, line, 1);
        }
        progress.end("lost", 2);
        let end = &progress.complete("l", "")[0];
        assert_eq!((&*end.cause, &*end.error_message), (kind, message));
    }
}

#[test]
fn end_too_long_for_one_message_comes_in_parts() {
    let mut progress = planned(COMPLETE_RANKS as u32 + 1);
    progress.end("lost", 1);
    let parts = progress.complete("l", "");
    let shape: Vec<_> = parts
        .iter()
        .map(|part| (part.ranks.len(), part.more))
        .collect();
    assert_eq!(shape, [(COMPLETE_RANKS, true), (1, false)]);
    assert_eq!(parts[1].ranks[0].rank, COMPLETE_RANKS as u32);
}
