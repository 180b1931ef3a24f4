//! Flow control of the ranks' output between hosts: a step sends a stream's bytes on credit, and the
//! launcher gives new credit for bytes that it has written. So no queue in between grows with what
//! ranks print.

use crate::record::Stream;

/// Bytes of one stream that a step may send before it gets more credit: so much that the way to the
/// launcher and back costs nothing on a few nodes, and a bounded amount on many.
pub fn window(nodes: u32) -> u32 {
    const TOTAL: u32 = 32 * 1024 * 1024;
    (TOTAL / nodes.max(1)).clamp(16 * 1024, 512 * 1024)
}

/// At a step: bytes of each stream that it may still send. One read may exceed it.
#[derive(Debug)]
pub struct SendCredit([i64; 2]);

impl SendCredit {
    /// Creates the initial credit, with such a [`window`].
    pub fn new(window: u32) -> Self {
        Self([i64::from(window); 2])
    }

    /// Uses credit for sent bytes; false if the stream must pause.
    pub fn spend(&mut self, stream: Stream, bytes: usize) -> bool {
        let credit = &mut self.0[stream as usize];
        *credit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        *credit > 0
    }

    /// Adds credit from the launcher; true if the stream may continue.
    pub fn add(&mut self, stream: Stream, bytes: u32) -> bool {
        let credit = &mut self.0[stream as usize];
        *credit += i64::from(bytes);
        *credit > 0
    }
}

/// At the launcher: bytes of each stream of a node that have arrived without new credit.
#[derive(Clone, Debug, Default)]
pub struct UncreditedBytes([u32; 2]);

impl UncreditedBytes {
    /// Counts bytes that have arrived.
    pub fn add(&mut self, stream: Stream, bytes: u32) {
        self.0[stream as usize] += bytes;
    }

    /// Takes the credit to send now: all that is owed, once that is half of the [`window`].
    pub fn take(&mut self, stream: Stream, window: u32) -> Option<u32> {
        let owed = &mut self.0[stream as usize];
        (*owed >= window / 2).then(|| std::mem::take(owed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_bounded_for_any_number_of_nodes() {
        assert_eq!(window(2), 512 * 1024);
        assert_eq!(window(1000), 33554);
        for nodes in [0, 1, 64, 4096, u32::MAX] {
            assert!((16 * 1024..=512 * 1024).contains(&window(nodes)));
        }
    }

    #[test]
    fn stream_pauses_without_credit_and_resumes_with_new_credit() {
        let (half, stream) = (100, Stream::Stderr);
        let window = 2 * half;
        let (mut credit, mut owed) = (SendCredit::new(window), UncreditedBytes::default());
        owed.add(stream, half - 1);
        assert_eq!(owed.take(stream, window), None);
        owed.add(stream, half + 1);
        assert!(credit.spend(stream, window as usize - 1) && !credit.spend(stream, 1));
        assert!(credit.spend(Stream::Stdout, 1), "each stream has its own");
        let bytes = owed.take(stream, window).unwrap();
        assert_eq!((bytes, owed.take(stream, window)), (window, None));
        assert!(credit.add(stream, bytes));
    }
}
