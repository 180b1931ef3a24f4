//! Lines about refused connections. Their number in a period is limited: a flood of connections must not fill the output.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::rank_port::{NODE, Refusal};

/// Maximum number of lines in a [`PERIOD`].
const LINES: u64 = 20;

/// Period after which lines are printed again.
const PERIOD: Duration = Duration::from_secs(60);

/// Counter of the refusals of one rank.
#[derive(Debug, Default)]
pub(super) struct RefusalLines {
    /// Start of the period, and number of refusals in it.
    recent: Option<(Instant, u64)>,
}

impl RefusalLines {
    /// Returns the lines to print for a refusal: none, one, or one more with the number of lines that were or will be left out.
    pub(super) fn add(&mut self, from: SocketAddr, refusal: &Refusal, now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        let (start, count) = match self.recent {
            Some((start, count)) if now.duration_since(start) < PERIOD => (start, count),
            earlier => {
                let hidden = earlier.map_or(0, |(_, count)| count.saturating_sub(LINES));
                if hidden > 0 {
                    lines.push(format!("{hidden} more connections were refused"));
                }
                (now, 0)
            }
        };
        if count < LINES {
            let from = match from == NODE {
                true => "this node".to_owned(),
                false => from.to_string(),
            };
            lines.push(format!("connection from {from} refused: {refusal}"));
        }
        if count + 1 == LINES {
            let seconds = PERIOD.as_secs();
            lines.push(format!(
                "{LINES} connections refused within {seconds} s: further refusals are counted and not printed"
            ));
        }
        self.recent = Some((start, count + 1));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_lines_are_bounded_in_each_period() {
        let start = Instant::now();
        let from = SocketAddr::from(([192, 0, 2, 1], 7));
        let mut lines = RefusalLines::default();
        let mut add = |seconds| {
            let now = start + Duration::from_secs(seconds);
            lines.add(from, &Refusal::Taken, now)
        };
        let line = "connection from 192.0.2.1:7 refused: the rank already has a client";
        for _ in 1..LINES {
            assert_eq!(add(0), [line]);
        }
        let last =
            "20 connections refused within 60 s: further refusals are counted and not printed";
        assert_eq!(add(30), [line, last]);
        for _ in 0..1000 {
            assert_eq!(add(59), [""; 0]);
        }
        assert_eq!(add(60), ["1000 more connections were refused", line]);
        assert_eq!(add(120), [line]);
        let other = lines.add(NODE, &Refusal::Taken, start + Duration::from_secs(121));
        assert_eq!(
            other,
            ["connection from this node refused: the rank already has a client"]
        );
    }
}
