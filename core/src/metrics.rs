//! Metrics in the text format that Prometheus reads, and the part of HTTP that it needs; no I/O.
//!
//! Source: "Exposition formats", text format 0.0.4; names and units by "Metric and label naming".

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most bytes of a request.
pub const REQUEST_MAX: usize = 16 * 1024;

/// Upper bounds of the buckets of a [`Histogram`], in microseconds.
const BOUNDS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000, 10_000_000,
    60_000_000,
];

/// Durations, counted by their size.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Counts for each of [`BOUNDS`], and one more for longer times.
    counts: [u64; BOUNDS.len() + 1],
    sum_us: u64,
}

impl Histogram {
    /// Adds one duration to its bucket.
    pub fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < us);
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(other);
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Type of a family of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Value that never decreases.
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Labels of a sample, with their values.
pub type MetricLabels<'a> = &'a [(&'a str, &'a str)];

/// A text under way.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> &mut Self {
        let kind = kind.name();
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// Appends a sample of a counter or gauge.
    pub fn sample(&mut self, name: &str, labels: MetricLabels<'_>, value: u64) -> &mut Self {
        let labels = written(labels);
        let _ = writeln!(self.text, "{name}{labels} {value}");
        self
    }

    /// Appends the samples of a histogram, in seconds.
    pub fn histogram(&mut self, name: &str, labels: MetricLabels<'_>, of: &Histogram) -> &mut Self {
        let mut up_to = 0;
        for (bound, count) in BOUNDS.iter().zip(of.counts) {
            up_to += count;
            let bound = seconds(*bound);
            let labels = written(&[labels, &[("le", &bound)]].concat());
            let _ = writeln!(self.text, "{name}_bucket{labels} {up_to}");
        }
        let count = of.count();
        let all = written(&[labels, &[("le", "+Inf")]].concat());
        let labels = written(labels);
        let sum = seconds(of.sum_us);
        let _ = writeln!(
            self.text,
            "{name}_bucket{all} {count}\n{name}_sum{labels} {sum}\n{name}_count{labels} {count}"
        );
        self
    }

    /// Appends a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) -> &mut Self {
        self.family(name, Kind::Counter, help)
            .sample(name, &[], value)
    }

    /// Appends a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: u64) -> &mut Self {
        self.family(name, Kind::Gauge, help)
            .sample(name, &[], value)
    }

    /// Returns the whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

fn seconds(us: u64) -> String {
    let (whole, part) = (us / 1_000_000, us % 1_000_000);
    let text = format!("{whole}.{part:06}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

fn written(labels: MetricLabels<'_>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let label = |(name, value): &(&str, &str)| {
        let value = value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    let labels: Vec<String> = labels.iter().map(label).collect();
    format!("{{{}}}", labels.join(","))
}

/// Result of the bytes of an HTTP request so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HttpAnswer {
    /// The request is incomplete.
    More,
    /// The answer, after which the connection is closed.
    Answer(Vec<u8>),
}

/// Answers a request for `/metrics` with `text`, and any other with an error.
pub fn answer(request: &[u8], text: impl FnOnce() -> String) -> HttpAnswer {
    if !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        return match request.len() > REQUEST_MAX {
            true => HttpAnswer::Answer(response("431 Request Header Fields Too Large", "", false)),
            false => HttpAnswer::More,
        };
    }
    let first = request.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let mut words = first.split(|byte| *byte == b' ');
    let (method, target) = (words.next(), words.next().unwrap_or(&[]));
    let path = target.split(|byte| *byte == b'?').next();
    let head = method == Some(b"HEAD");
    HttpAnswer::Answer(match (method, path) {
        (Some(b"GET" | b"HEAD"), Some(b"/metrics")) => response("200 OK", &text(), head),
        (Some(b"GET" | b"HEAD"), _) => response("404 Not Found", "metrics are at /metrics\n", head),
        _ => response("405 Method Not Allowed", "", false),
    })
}

fn response(status: &str, body: &str, head: bool) -> Vec<u8> {
    let length = body.len();
    let body = if head { "" } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(request: &str) -> String {
        match answer(request.as_bytes(), || "x 1\n".to_owned()) {
            HttpAnswer::Answer(bytes) => String::from_utf8(bytes).unwrap(),
            HttpAnswer::More => String::new(),
        }
    }

    #[test]
    fn only_metrics_are_served() {
        let whole = answered("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
        assert!(whole.contains("Content-Length: 4\r\n") && whole.ends_with("\r\n\r\nx 1\n"));
        assert!(answered("GET /metrics?x=1 HTTP/1.0\r\n\r\n").contains(" 200 "));
        let head = answered("HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\r\n\r\n", "405"),
            ("\0\u{ff} x\r\n\r\n", "405"),
        ] {
            let start = format!("HTTP/1.1 {status} ");
            assert!(answered(request).starts_with(&start), "{request:?}");
        }
        let part = answer(b"GET /metrics HTTP/1.1\r\n", String::new);
        assert_eq!(part, HttpAnswer::More);
        let endless = vec![b'x'; REQUEST_MAX + 1];
        assert!(matches!(
            answer(&endless, String::new),
            HttpAnswer::Answer(_)
        ));
    }

    #[test]
    fn histogram_counts_up_to_each_bound() {
        let mut times = Histogram::default();
        for us in [50, 51, 1_000_000, 99_000_000] {
            times.add(Duration::from_micros(us));
        }
        let mut twice = times.clone();
        twice.merge(&times);
        assert_eq!(twice.count(), 8);
        let mut exposition = Exposition::default();
        exposition
            .family("t_seconds", Kind::Histogram, "Times.")
            .histogram("t_seconds", &[("kind", "a\"\\\nb")], &times);
        let text = exposition.into_text();
        for line in [
            "# HELP t_seconds Times.",
            "# TYPE t_seconds histogram",
            r#"t_seconds_bucket{kind="a\"\\\nb",le="0.00005"} 1"#,
            r#"t_seconds_bucket{kind="a\"\\\nb",le="0.0001"} 2"#,
            r#"t_seconds_bucket{kind="a\"\\\nb",le="1"} 3"#,
            r#"t_seconds_bucket{kind="a\"\\\nb",le="60"} 3"#,
            r#"t_seconds_bucket{kind="a\"\\\nb",le="+Inf"} 4"#,
            r#"t_seconds_sum{kind="a\"\\\nb"} 100.000101"#,
            r#"t_seconds_count{kind="a\"\\\nb"} 4"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
