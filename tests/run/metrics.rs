//! `wireup run --metrics`, as Prometheus reads it. Agents: tests/hosts/metrics.rs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::common::{Output, Run, eventually, free_port, program, skip};

/// Returns the reply of a server to this request; `None` as long as none listens.
fn fetch_reply(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Some(answer)
}

pub(crate) fn scraped(port: u16) -> Option<String> {
    let answer = fetch_reply(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    Some(body.to_owned())
}

/// The value of a sample.
pub(crate) fn value(metrics: &str, sample: &str) -> f64 {
    let mut lines = metrics.lines();
    let found = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    let text = found.unwrap_or_else(|| panic!("no {sample} in\n{metrics}"));
    text.parse().unwrap()
}

#[test]
fn launch_serves_metrics_of_its_ranks() {
    let Some(program) = program("pmi_wireup") else {
        return;
    };
    let port = free_port();
    // Rank 3 is half a second late, so that the others wait for it.
    let script = format!(
        "[ $WIREUP_RANK != 3 ] || sleep 0.5; {}; echo met; exec sleep 1000",
        program.display()
    );
    let address = format!("127.0.0.1:{port}");
    let options = ["--metrics", &address, "--virtual-nodes", "2"];
    let words = [&options[..], &["sh", "-c", &script]].concat();
    let running = Run::ranks(4, words).start();
    running.wait_for_many(Output::Stdout, "met\n", 4);
    let metrics = eventually("the last fence", || {
        let metrics = scraped(port)?;
        let counted = metrics.contains("wireup_launch_fence_seconds_count");
        (counted && value(&metrics, "wireup_launch_ranks_connected") == 4.0).then_some(metrics)
    });
    assert_eq!(
        value(&metrics, r#"wireup_launch_ranks{state="running"}"#),
        4.0
    );
    assert_eq!(
        value(&metrics, r#"wireup_launch_ranks{state="ended"}"#),
        0.0
    );
    let kind = r#"{kind="pmi_barrier"}"#;
    let spread = |what: &str| {
        value(
            &metrics,
            &format!("wireup_launch_fence_spread_seconds_{what}{kind}"),
        )
    };
    assert!(spread("sum") > 0.3, "{metrics}");
    let mut buckets = metrics
        .lines()
        .filter(|line| line.starts_with("wireup_launch_fence_seconds_bucket"));
    let last = buckets.next_back().unwrap();
    let count = value(
        &metrics,
        &format!("wireup_launch_fence_seconds_count{kind}"),
    );
    assert!(
        last.contains(r#"le="+Inf""#) && last.ends_with(&format!(" {count}")),
        "{metrics}"
    );
    assert!(
        value(
            &metrics,
            r#"wireup_launch_output_bytes_total{stream="stdout"}"#
        ) >= 16.0
    );
    let not_found = fetch_reply(port, "GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(not_found.starts_with("HTTP/1.1 404 "), "{not_found}");
    // More silent connections than there are places hinder no reader.
    let _silent: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    assert!(scraped(port).is_some());
    running.signal(rustix::process::Signal::TERM);
    running.finish();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    if Command::new("promtool").arg("--version").output().is_err() {
        return skip("names, types and units of metrics: needs promtool");
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(metrics.as_bytes()).unwrap();
    drop(stdin);
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{checked:?}\n{metrics}");
}

#[test]
fn queue_metric_shows_output_without_reader() {
    const EACH: usize = 8_000_000;
    let port = free_port();
    let script = format!("head -c {EACH} /dev/zero; echo printed >&2; exec sleep 1000");
    let address = format!("127.0.0.1:{port}");
    let words = ["--metrics", &address, "sh", "-c", &script];
    let mut running = Run::ranks(2, words).stdout_held().start();
    let queued = |sample: &str| scraped(port).map(|metrics| value(&metrics, sample));
    let queue = "wireup_launch_queue_bytes";
    eventually("output that waits", || {
        queued(queue).filter(|bytes| *bytes > 10_000.0)
    });
    let mut all = vec![0; 2 * EACH];
    running.take_stdout().read_exact(&mut all).unwrap();
    running.wait_for_many(Output::Stderr, "printed", 2);
    eventually("nothing waits", || {
        queued(queue).filter(|bytes| *bytes == 0.0)
    });
    let printed = queued(r#"wireup_launch_output_bytes_total{stream="stdout"}"#);
    assert_eq!(printed, Some(2.0 * EACH as f64));
    running.signal(rustix::process::Signal::TERM);
    running.finish();
}

#[test]
fn metrics_of_launch_are_served_locally_only() {
    for (address, words) in [
        ("0.0.0.0:9438", &["0.0.0.0:9438", "loopback"][..]),
        ("[::]:9438", &["loopback"]),
        ("127.0.0.1", &["--metrics"]),
    ] {
        let options = ["--metrics", address, "touch", "started"];
        let outcome = Run::ranks(1, options).run().expect(125);
        outcome.expect_one_line(words);
        assert!(!outcome.dir().join("started").exists());
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let outcome = Run::ranks(1, ["--metrics", &address, "true"])
        .run()
        .expect(125);
    outcome.expect_one_line(&[&address, "in use"]);
}
