//! Trace that a launch is a part of, in the terms of W3C Trace Context.
//!
//! Source: "Trace Context", the header `traceparent`. Processes pass it on in the variable `TRACEPARENT`.

use std::fmt;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::ids::{JobIndex, Rank};

/// Name of the environment variable.
pub const TRACEPARENT: &str = "TRACEPARENT";

/// Number of a span.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SpanId(pub [u8; 8]);

/// Position of a launch's spans in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceContext {
    pub trace: [u8; 16],
    /// The span of the launch.
    pub launch: SpanId,
    /// The span of the process that has started it, if it is part of one.
    pub parent: Option<SpanId>,
}

/// Parsed value of `TRACEPARENT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceParent {
    pub trace: [u8; 16],
    pub span: SpanId,
    /// Somebody records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the variable; `None` if it does not follow the standard, in which case it counts as absent.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let (trace, span) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags] = hex(parts.next()?)?;
        let whole = parts.next().is_none();
        let valid = match version {
            [0] => whole,
            [0xff] => false,
            // Later versions may add parts.
            _ => true,
        };
        (valid && trace != [0; 16] && span != [0; 8]).then_some(Self {
            trace,
            span: SpanId(span),
            sampled: flags & 1 != 0,
        })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = HEXLOWER.encode(&self.trace);
        let span = HEXLOWER.encode(&self.span.0);
        write!(f, "00-{trace}-{span}-{:02x}", u8::from(self.sampled))
    }
}

/// Bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

impl TraceContext {
    /// Creates the context of a launch that was started within `parent`, or begins a trace. `random` are bytes that no
    /// other launch has.
    pub fn new(parent: Option<TraceParent>, random: [u8; 24]) -> Self {
        let (mut trace, mut launch) = ([0; 16], [0; 8]);
        trace.copy_from_slice(&random[..16]);
        launch.copy_from_slice(&random[16..]);
        Self {
            trace: parent.map_or(trace, |parent| parent.trace),
            launch: SpanId(launch),
            parent: parent.map(|parent| parent.span),
        }
    }

    /// Returns the span of a process of the launch; every node and the launcher compute the same one.
    pub fn rank_span(&self, job: JobIndex, rank: Rank) -> SpanId {
        self.numbered(((u64::from(job.0) + 1) << 32) | u64::from(rank.0))
    }

    /// Returns a span of the launch by a number below 2^32, which ranks do not use.
    pub fn numbered_span(&self, number: u32) -> SpanId {
        self.numbered(u64::from(number))
    }

    /// Returns the span of a number. Different numbers have different spans, which look random (the finalizer of
    /// MurmurHash3, which is invertible).
    fn numbered(&self, number: u64) -> SpanId {
        let mut bits = u64::from_be_bytes(self.launch.0) ^ (number + 1).rotate_left(20);
        bits ^= bits >> 33;
        bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits ^= bits >> 33;
        bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        bits ^= bits >> 33;
        // Zero is no span.
        SpanId(bits.max(1).to_be_bytes())
    }

    /// Returns the variable for a process of the launch.
    pub fn traceparent(&self, job: JobIndex, rank: Rank) -> TraceParent {
        TraceParent {
            trace: self.trace,
            span: self.rank_span(job, rank),
            sampled: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_is_parsed_as_in_standard() {
        let parent = TraceParent::parse(TEXT).unwrap();
        assert!(parent.sampled);
        assert_eq!(parent.to_string(), TEXT);
        let unsampled = TEXT.replace("-01", "-00");
        assert!(!TraceParent::parse(&unsampled).unwrap().sampled);
        let later = TEXT.replacen("00", "cc", 1) + "-what-comes";
        assert!(TraceParent::parse(&later).is_some());
        for bad in [
            "",
            "00",
            &TEXT.replacen("00", "ff", 1),
            &format!("{TEXT}-x"),
            &TEXT.to_uppercase(),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_process_has_own_span_in_trace() {
        let parent = TraceParent::parse(TEXT);
        let context = TraceContext::new(parent, [7; 24]);
        assert_eq!(context.trace, parent.unwrap().trace);
        assert_eq!(context.parent, Some(parent.unwrap().span));
        let ranks = (0..5000).map(|rank| context.rank_span(JobIndex(rank % 3), Rank(rank)));
        let numbers = (0..5000).map(|number| context.numbered_span(number));
        let all: BTreeSet<SpanId> = ranks.chain(numbers).chain([context.launch]).collect();
        assert_eq!(all.len(), 10_001);
        assert_eq!(TraceContext::new(None, [7; 24]).trace, [7; 16]);
    }
}
