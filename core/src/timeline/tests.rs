//! Streams as a launch writes them, and what is made of them.

use super::*;
use crate::job::trace_context::TraceContext;

/// A launch of two ranks on two hosts, of which the second is slow.
const STREAM: &str = r#"
{"time":"t","ms":1,"us":1000,"event":"job","state":"planned","version":1,"job":"w1","pid":7,"size":2,"offered":["pmi"],"nodes":[{"node":0,"host":"a","ranks":1},{"node":1,"host":"b","ranks":1}],"apps":[{"app":0,"program":"/x","ranks":2}]}
{"time":"t","ms":4,"us":4000,"event":"node","node":0,"host":"a"}
{"time":"t","ms":5,"us":5000,"event":"node","node":1,"host":"b"}
{"time":"t","ms":6,"us":6000,"event":"rank","state":"started","rank":0,"node":0,"host":"a","app":0,"pid":10}
{"time":"t","ms":7,"us":7000,"event":"rank","state":"started","rank":1,"node":1,"host":"b","app":0,"pid":11}
{"time":"t","ms":7,"us":7100,"event":"job","state":"running"}
{"time":"t","ms":17,"us":17000,"event":"rank","state":"connected","rank":0,"node":0,"host":"a","app":0,"pid":10}
{"time":"t","ms":27,"us":27000,"event":"rank","state":"connected","rank":1,"node":1,"host":"b","app":0,"pid":11}
{"time":"t","ms":40,"us":40000,"event":"fence","kind":"pmi_barrier","participants":"w1[*]","generation":0,"ranks":2,"nodes":2,"spread_us":9000,"own_us":500,"last":[{"node":1,"host":"b","behind_us":9000,"rank":{"rank":1}},{"node":0,"host":"a","behind_us":0}]}
{"time":"t","ms":90,"us":90000,"event":"rank","state":"ended","rank":0,"node":0,"host":"a","app":0,"pid":10,"code":0,"signal":null,"signal_name":null}
{"time":"t","ms":98,"us":98000,"event":"rank","state":"ended","rank":1,"node":1,"host":"b","app":0,"pid":11,"code":0,"signal":null,"signal_name":null}
{"time":"t","ms":100,"us":100000,"event":"result","version":1,"job":"w1","exit_code":0,"exit_policy":null,"on_failure":null,"requeue":false,"cause":null,"start":"s","end":"e","elapsed_ms":100,"apps":[],"ranks":[]}
"#;

fn timeline() -> Timeline {
    Timeline::read(STREAM.trim_start().as_bytes()).unwrap()
}

#[test]
fn summary_follows_critical_path() {
    let lines = summary(&timeline());
    assert!(lines.len() <= 10, "{lines:?}");
    let text = lines.join("\n");
    for part in [
        "timing of w1: 2 ranks on 2 hosts, 100.0 ms",
        "4.0 ms   4 %  hosts joined, b last",
        "2.0 ms   2 %  processes were started, rank 1 on b last",
        "20.0 ms  20 %  programs were loaded and contacted PMI, rank 1 on b last",
        "71.0 ms  71 %  ranks ran, rank 1 on b was the last to end",
        "2.0 ms   2 %  the launch was cleaned up",
        "1 fence: 500 µs from the last entry to the release",
        "the others waited 9.0 ms for host b",
        "wireup's share is 10 %, that of the programs and their MPI 90 %",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// The first line of [`STREAM`] that has this part, at another time.
fn line_at(part: &str, us: u64) -> String {
    let line = STREAM.lines().find(|line| line.contains(part)).unwrap();
    let event = line.find(r#""event""#).unwrap();
    format!("{{\"time\":\"t\",\"ms\":0,\"us\":{us},{}\n", &line[event..])
}

#[test]
fn shares_of_critical_path_sum_to_100() {
    for (ended, shares, own) in [
        (2000, [34, 33, 33], 67),
        (1004, [33, 0, 67], 100),
        (2985, [33, 66, 1], 34),
    ] {
        let lines = [
            line_at(r#""state":"planned""#, 1000),
            line_at(r#""state":"ended""#, ended),
            line_at(r#""event":"result""#, 3000),
        ];
        let timeline = Timeline::read(lines.concat().as_bytes()).unwrap();
        let Breakdown { parts, remarks } = breakdown(&timeline);
        let rounded: Vec<u64> = parts.iter().map(|part| part.percent).collect();
        assert_eq!(rounded, shares, "{ended}");
        let share = format!("wireup's share is {own} %, ");
        assert!(remarks[0].starts_with(&share), "{remarks:?}");
    }
}

#[test]
fn program_without_mpi_runs_from_start() {
    let without = |part: &str| {
        let lines = STREAM.trim_start().split_inclusive('\n');
        let stream: String = lines.filter(|line| !line.contains(part)).collect();
        Timeline::read(stream.as_bytes()).unwrap()
    };
    let loaded = |timeline: &Timeline| -> Vec<Option<u64>> {
        timeline.ranks.values().map(|rank| rank.loaded).collect()
    };
    assert_eq!(loaded(&timeline()), [Some(17_000), Some(27_000)]);
    let late = without(r#""state":"connected","rank":1"#);
    assert_eq!(loaded(&late), [Some(17_000), None], "the program has MPI");
    let plain = without(r#""state":"connected""#);
    assert_eq!(loaded(&plain), [Some(6000), Some(7000)]);
    let kinds: Vec<PartKind> = breakdown(&plain)
        .parts
        .iter()
        .map(|part| part.kind)
        .collect();
    let [own, runs] = [PartKind::Wireup, PartKind::Runs];
    assert_eq!(kinds, [own, own, own, runs, own]);
    let trace = trace(&plain);
    let states = ["loads", "runs"].map(|state| {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["name"] == state).count()
    });
    assert_eq!(states, [0, 2]);
}

#[test]
fn awaited_host_is_slowest() {
    let timeline = timeline();
    let slowest = timeline.slowest_host().unwrap();
    assert_eq!(
        (&*slowest.name, slowest.last_arrivals, slowest.held_up),
        ("b", 1, 9000)
    );
}

#[test]
fn usage_and_binding_of_ranks_are_kept() {
    let stream = concat!(
        r#"{"time":"t","ms":1,"us":1,"event":"bindings","node":1,"host":"b","topology":"2 cores","ranks":[{"rank":1,"cpus":"core 3 (CPU 3)"}]}"#,
        "\n",
        r#"{"time":"t","ms":9,"us":9000,"event":"rank","state":"ended","rank":1,"node":1,"host":"b","app":0,"pid":11,"code":0,"signal":null,"signal_name":null,"cpu_user_us":700,"cpu_system_us":20,"rss_max":4096}"#,
        "\n",
    );
    let timeline = Timeline::read(stream.as_bytes()).unwrap();
    let rank = timeline.ranks.values().next().unwrap();
    assert_eq!(rank.cpus.as_deref(), Some("core 3 (CPU 3)"));
    let usage = rank.usage.unwrap();
    assert_eq!((usage.cpu().as_micros(), usage.rss_max), (720, Some(4096)));
    let page = serde_json::to_value(&timeline).unwrap();
    assert_eq!(page["ranks"][0]["cpu_user_us"], 700);
}

#[test]
fn truncated_stream_is_used_up_to_its_end() {
    let stream = STREAM.trim_start();
    for end in 0..stream.len() {
        let timeline = Timeline::read(&stream.as_bytes()[..end]).unwrap();
        let text = summary(&timeline);
        assert!(text.len() <= 10);
        let is_over = timeline.outcome.is_some();
        assert_eq!(text.iter().any(|line| line.contains("cleaned up")), is_over);
        let parts = breakdown(&timeline).parts;
        let shares: u64 = parts.iter().map(|part| part.percent).sum();
        assert_eq!(shares, if parts.is_empty() { 0 } else { 100 });
        let _ = trace(&timeline);
    }
    let strange = format!("{stream}hello\n{stream}");
    let error = Timeline::read(strange.as_bytes()).unwrap_err();
    assert_eq!(error.number, stream.lines().count() + 1);
}

#[test]
fn trace_has_hosts_as_processes_and_ranks_as_threads() {
    let trace = trace(&timeline());
    let events = trace["traceEvents"].as_array().unwrap();
    let complete = |pid: u32, name: &str| {
        let mut found = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["pid"] == pid && event["name"] == name);
        let event = found.next().unwrap_or_else(|| panic!("no {name} of {pid}"));
        (
            event["ts"].as_u64().unwrap(),
            event["dur"].as_u64().unwrap(),
        )
    };
    assert_eq!(complete(1, "loads"), (7000, 20000));
    assert_eq!(complete(1, "runs"), (27000, 71000));
    assert_eq!(complete(0, "pmi_barrier"), (30500, 9500));
    assert_eq!(complete(1, "pmi_barrier"), (39500, 500));
    let name = |pid: u32| {
        events
            .iter()
            .find(|event| event["name"] == "process_name" && event["pid"] == pid)
            .unwrap()["args"]["name"]
            .clone()
    };
    assert_eq!((name(0), name(1)), ("a".into(), "b".into()));
}

#[test]
fn doctor_is_recommended_only_after_failures_it_may_explain() {
    let advice = |kind: &str, more: &[(&str, &str)]| {
        let cause = format!(r#""cause":{{"kind":"{kind}","message":"m"}}"#);
        let mut stream = STREAM.replace(r#""cause":null"#, &cause);
        stream = stream.replace(r#""exit_code":0"#, r#""exit_code":1"#);
        for (old, new) in more {
            assert!(stream.contains(old), "{old}");
            stream = stream.replace(old, new);
        }
        let timeline = Timeline::read(stream.trim_start().as_bytes()).unwrap();
        timeline.outcome.unwrap().advice
    };
    assert_eq!(timeline().outcome.unwrap().advice, None, "a success");
    for kind in ["aborted", "timeout", "fence_timeout"] {
        let advised = advice(kind, &[]).unwrap();
        assert!(
            advised.contains("wireup doctor --hosts 'a,b' /x "),
            "{kind}: {advised}"
        );
    }
    assert_eq!(advice("node_failed", &[]), None);
    let joins: Vec<&str> = STREAM
        .split_inclusive('\n')
        .filter(|line| line.contains(r#""event":"node""#))
        .collect();
    let virtual_nodes: Vec<(&str, &str)> = joins.iter().map(|line| (*line, "")).collect();
    assert_eq!(joins.len(), 2);
    assert_eq!(advice("aborted", &virtual_nodes), None, "virtual nodes");
    let killed = (r#""message":"m""#, r#""message":"m","signal":9"#);
    assert_eq!(advice("rank_failed", &[killed]), None);
    assert!(advice("rank_failed", &[]).is_some());
    let finalized = (
        r#""state":"running"}"#,
        concat!(
            r#""state":"running"}"#,
            "\n",
            r#"{"time":"t","ms":50,"us":50000,"event":"rank","state":"finalized","rank":0,"node":0,"host":"a","app":0,"pid":10}"#
        ),
    );
    assert_eq!(advice("aborted", &[finalized]), None);
    let succeeded = (r#""exit_code":1"#, r#""exit_code":0"#);
    assert_eq!(advice("aborted", &[succeeded]), None);
}

#[test]
fn cause_in_successful_launch_is_not_error_of_span() {
    let cause = r#""cause":{"kind":"rank_failed","message":"m"}"#;
    let failed = STREAM.replace(r#""cause":null"#, cause);
    let error = |code: &str| {
        let stream = failed.replace(r#""exit_code":0"#, code);
        let timeline = Timeline::read(stream.trim_start().as_bytes()).unwrap();
        let context = TraceContext::new(None, [1; 24]);
        spans(&timeline, &context)[0].error.clone()
    };
    assert_eq!(error(r#""exit_code":0"#), None);
    assert_eq!(error(r#""exit_code":1"#).as_deref(), Some("m"));
}

#[test]
fn spawned_jobs_run_and_are_not_cleaned_up() {
    let spawned = r#"{"time":"t","ms":99,"us":99500,"event":"rank","state":"ended","spawned_job":1,"rank":0,"node":1,"host":"b","app":0,"pid":12,"code":0,"signal":null,"signal_name":null}"#;
    let result = STREAM.rfind(r#"{"time""#).unwrap();
    let (front, end) = STREAM.split_at(result);
    let stream = format!("{front}{spawned}\n{end}");
    let timeline = Timeline::read(stream.trim_start().as_bytes()).unwrap();
    let text = summary(&timeline).join("\n");
    assert!(text.contains("72.5 ms  73 %  ranks ran, "), "{text}");
    assert!(
        text.contains("500 µs   0 %  the launch was cleaned up"),
        "{text}"
    );
}
