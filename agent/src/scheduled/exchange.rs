//! The exchange of keys between the nodes of a launch for callers that are not ranks; no I/O.
//!
//! A launch has one exchange at a time: it begins with the first node's contribution and ends for all
//! that wait, with the same answer. Then the next can begin.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Values by their keys.
pub type Entries = BTreeMap<String, String>;

/// Most bytes of keys and values of one node.
pub const PART_MAX: usize = 1024 * 1024;
/// Most bytes of keys and values of all: the size that a client accepts in one message, with some reserve.
pub const ALL_MAX: usize = 3 * 1024 * 1024;

/// The exchange of a launch at one node.
#[derive(Debug)]
pub struct KeyExchange<W> {
    nodes: u32,
    /// Whether the exchange ends by itself when all nodes have come.
    collects: bool,
    parts: BTreeMap<u32, (Entries, W)>,
    bytes: usize,
}

/// Reason for which a part is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The node index is too large.
    #[error("invalid node_index {node}: the launch has {nodes} nodes, counted from 0")]
    NoNode {
        /// Index from the request.
        node: u32,
        /// Number of nodes in the launch.
        nodes: u32,
    },
    /// The node takes part already.
    #[error("node {0} already takes part in this exchange: wait for its reply before the next")]
    Twice(u32),
    /// The part has too much data.
    #[error("kvs_entries has {0} bytes: at most {PART_MAX} are allowed for a node")]
    Part(usize),
    /// Too much data of all.
    #[error("the entries of all nodes exceed {ALL_MAX} bytes: use several exchanges")]
    All,
}

/// The answer for all nodes.
pub type Ended<W> = (Vec<W>, Arc<Entries>);

impl<W> KeyExchange<W> {
    /// Makes an exchange for a launch of this number of nodes; `collects` on the head node.
    pub fn new(nodes: u32, collects: bool) -> Self {
        Self {
            nodes,
            collects,
            parts: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Adds a node's contribution, and the waiter for the answer.
    ///
    /// # Errors
    /// [`ExchangeError`]; the exchange continues without it.
    pub fn arrive(
        &mut self,
        node: u32,
        entries: Entries,
        waiter: W,
    ) -> Result<Option<Ended<W>>, ExchangeError> {
        let nodes = self.nodes;
        if node >= nodes {
            return Err(ExchangeError::NoNode { node, nodes });
        }
        if self.parts.contains_key(&node) {
            return Err(ExchangeError::Twice(node));
        }
        let bytes = size(&entries);
        if bytes > PART_MAX {
            return Err(ExchangeError::Part(bytes));
        }
        if self.bytes + bytes > ALL_MAX {
            return Err(ExchangeError::All);
        }
        self.bytes += bytes;
        self.parts.insert(node, (entries, waiter));
        if !self.collects || self.parts.len() < nodes as usize {
            return Ok(None);
        }
        let mut merged = Entries::new();
        let waiters = self.take(|entries| merged.extend(entries));
        Ok(Some((waiters, Arc::new(merged))))
    }

    /// Ends it with a given result; returns the waiters.
    pub fn complete(&mut self) -> Vec<W> {
        self.take(drop)
    }

    /// Removes the part of a node that does not wait any more.
    pub fn leave(&mut self, node: u32) {
        if let Some((entries, _)) = self.parts.remove(&node) {
            self.bytes -= size(&entries);
        }
    }

    /// Returns the nodes that have not come, while some wait.
    pub fn missing(&self) -> Vec<u32> {
        let absent = |node: &u32| !self.parts.contains_key(node);
        (0..self.nodes).filter(absent).collect()
    }

    fn take(&mut self, mut each: impl FnMut(Entries)) -> Vec<W> {
        self.bytes = 0;
        std::mem::take(&mut self.parts)
            .into_values()
            .map(|(entries, waiter)| {
                each(entries);
                waiter
            })
            .collect()
    }
}

fn size(entries: &Entries) -> usize {
    // Each costs a few bytes in a message besides.
    entries
        .iter()
        .map(|(key, value)| key.len() + value.len() + 16)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[(&str, &str)]) -> Entries {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        list.iter().map(own).collect()
    }

    #[test]
    fn exchange_completes_with_all_entries_and_next_starts_empty() {
        let mut exchange = KeyExchange::new(3, true);
        for round in 0..2 {
            let value = round.to_string();
            let part = |key| entries(&[(key, value.as_str()), ("who", key)]);
            assert_eq!(exchange.arrive(2, part("c"), 'c'), Ok(None));
            assert_eq!(exchange.arrive(0, part("a"), 'a'), Ok(None));
            assert_eq!(exchange.missing(), [1]);
            let (waiters, merged) = exchange.arrive(1, part("b"), 'b').unwrap().unwrap();
            assert_eq!(waiters, ['a', 'b', 'c']);
            let expected = [("a", &*value), ("b", &*value), ("c", &*value), ("who", "c")];
            assert_eq!(*merged, entries(&expected));
        }
    }

    #[test]
    fn departed_node_may_return_and_is_awaited() {
        let mut exchange = KeyExchange::new(2, true);
        assert_eq!(exchange.arrive(0, entries(&[("a", "1")]), 1), Ok(None));
        assert_eq!(
            exchange.arrive(0, Entries::new(), 2),
            Err(ExchangeError::Twice(0))
        );
        exchange.leave(0);
        assert_eq!(exchange.arrive(1, Entries::new(), 3), Ok(None));
        let (waiters, merged) = exchange.arrive(0, Entries::new(), 4).unwrap().unwrap();
        assert_eq!((waiters, merged.len()), (vec![4, 3], 0));
    }

    #[test]
    fn exchange_without_collector_is_completed_by_caller() {
        let mut exchange = KeyExchange::new(1, false);
        assert_eq!(exchange.arrive(0, Entries::new(), 7), Ok(None));
        assert_eq!(exchange.complete(), [7]);
        assert_eq!(exchange.complete(), [0; 0]);
    }

    #[test]
    fn too_much_is_refused_and_does_not_count() {
        let mut exchange = KeyExchange::new(8, true);
        let large = || entries(&[("k", &"v".repeat(PART_MAX - 100))]);
        let larger = entries(&[("k", &"v".repeat(PART_MAX))]);
        assert!(matches!(
            exchange.arrive(0, larger, 0),
            Err(ExchangeError::Part(_))
        ));
        for node in 0..3 {
            assert_eq!(exchange.arrive(node, large(), node), Ok(None));
        }
        assert_eq!(exchange.arrive(3, large(), 3), Err(ExchangeError::All));
        exchange.leave(0);
        assert_eq!(exchange.arrive(3, large(), 3), Ok(None));
        assert!(matches!(
            exchange.arrive(8, large(), 8),
            Err(ExchangeError::NoNode { .. })
        ));
    }
}
