//! Schedules the files that hosts lack: the next piece that the launcher sends, and its nodes. No I/O.
//!
//! Every node reports once which files it lacks. Then the files are sent in order: down the tree to all nodes if
//! several lack one, otherwise to the only node. A node reports the bytes that it has taken; at most [`WINDOW`]
//! unreported bytes are in transit to a node.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::ids::NodeId;
use crate::link::frame::{BODY_MAX, FrameAddress};

/// Most bytes of a piece, so that its message fits into one frame.
pub const PIECE: usize = BODY_MAX - 64;

/// Most bytes on the way to a node. They are in the memory of each agent on the way.
pub const WINDOW: u64 = 8 * 1024 * 1024;

/// A node reports when it has taken this number of bytes since its last report.
pub const REPORT: u64 = WINDOW / 4;

/// A part of a file to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileChunk {
    pub to: FrameAddress,
    /// Index of the file.
    pub file: u32,
    /// Offset of the part in the file.
    pub offset: u64,
    /// At most [`PIECE`] bytes.
    pub length: usize,
}

/// Files to send, the nodes that lack each, and the bytes in transit.
#[derive(Debug)]
pub struct StagingScheduler {
    sizes: Vec<u64>,
    /// Nodes that have not reported their missing files.
    silent: BTreeSet<NodeId>,
    /// By file: the nodes that lack it.
    lacking: Vec<BTreeSet<NodeId>>,
    /// Bytes that nodes were sent and have not reported.
    on_the_way: BTreeMap<NodeId, u64>,
    file: usize,
    offset: u64,
}

impl StagingScheduler {
    /// Creates the schedule of files with these sizes; the nodes must report their missing files.
    pub fn new(sizes: Vec<u64>, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        Self {
            lacking: vec![BTreeSet::new(); sizes.len()],
            sizes,
            silent: nodes.into_iter().collect(),
            on_the_way: BTreeMap::new(),
            file: 0,
            offset: 0,
        }
    }

    /// Notes the files that a node lacks. Only its first report counts.
    pub fn lacks(&mut self, node: NodeId, files: &[u32]) {
        if self.silent.remove(&node) {
            for file in files {
                if let Some(lacking) = self.lacking.get_mut(*file as usize) {
                    lacking.insert(node);
                }
            }
        }
    }

    /// Notes that a node has taken this number of further bytes.
    pub fn on_bytes_taken(&mut self, node: NodeId, bytes: u64) {
        if let Some(sent) = self.on_the_way.get_mut(&node) {
            *sent = sent.saturating_sub(bytes);
        }
    }

    /// Removes a node that takes no part any more.
    pub fn gone(&mut self, node: NodeId) {
        self.silent.remove(&node);
        self.on_the_way.remove(&node);
        self.lacking.iter_mut().for_each(|nodes| {
            nodes.remove(&node);
        });
    }

    /// Returns the next part to send; `None` without one, or if a report must come first.
    pub fn send(&mut self) -> Option<FileChunk> {
        if !self.silent.is_empty() {
            return None;
        }
        let (nodes, rest) = loop {
            let (size, nodes) = (*self.sizes.get(self.file)?, &self.lacking[self.file]);
            match size.saturating_sub(self.offset) {
                rest if rest > 0 && !nodes.is_empty() => break (nodes, rest),
                _ => (self.file, self.offset) = (self.file + 1, 0),
            }
        };
        let length = rest.min(PIECE as u64);
        let sent = |node: &NodeId| self.on_the_way.get(node).copied().unwrap_or_default();
        if nodes.iter().any(|node| sent(node) + length > WINDOW) {
            return None;
        }
        let to = match nodes.first() {
            Some(only) if nodes.len() == 1 => FrameAddress::Node(*only),
            _ => FrameAddress::EveryNode,
        };
        for node in nodes {
            *self.on_the_way.entry(*node).or_default() += length;
        }
        let offset = self.offset;
        self.offset += length;
        Some(FileChunk {
            to,
            file: self.file as u32,
            offset,
            length: length as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);

    fn sent(distribution: &mut StagingScheduler) -> Vec<FileChunk> {
        std::iter::from_fn(|| distribution.send()).collect()
    }

    #[test]
    fn staging_starts_after_every_node_reported_missing_files() {
        let mut all = StagingScheduler::new(vec![10, 20], [ONE, TWO]);
        all.lacks(ONE, &[1]);
        assert_eq!(all.send(), None);
        all.lacks(TWO, &[]);
        let piece = FileChunk {
            to: FrameAddress::Node(ONE),
            file: 1,
            offset: 0,
            length: 20,
        };
        assert_eq!(sent(&mut all), [piece]);
    }

    #[test]
    fn shared_file_goes_down_tree_once_and_unneeded_file_stays() {
        let mut all = StagingScheduler::new(vec![PIECE as u64 + 5, 7, 9], [ONE, TWO]);
        all.lacks(ONE, &[0, 2, 77]);
        all.lacks(TWO, &[0]);
        let pieces = sent(&mut all);
        let places = pieces.iter().map(|p| (p.to, p.file, p.offset, p.length));
        let expected = [
            (FrameAddress::EveryNode, 0, 0, PIECE),
            (FrameAddress::EveryNode, 0, PIECE as u64, 5),
            (FrameAddress::Node(ONE), 2, 0, 9),
        ];
        assert_eq!(places.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn slowest_receiver_of_file_sets_pace() {
        let size = 3 * WINDOW;
        let mut all = StagingScheduler::new(vec![size], [ONE, TWO]);
        all.lacks(ONE, &[0]);
        all.lacks(TWO, &[0]);
        let bytes = |pieces: Vec<FileChunk>| pieces.iter().map(|p| p.length as u64).sum::<u64>();
        let first = bytes(sent(&mut all));
        assert!(first <= WINDOW && first > WINDOW - PIECE as u64, "{first}");
        all.on_bytes_taken(ONE, first);
        assert_eq!(all.send(), None);
        all.on_bytes_taken(TWO, REPORT);
        assert!(bytes(sent(&mut all)) >= REPORT - PIECE as u64);
        all.gone(TWO);
        all.on_bytes_taken(ONE, u64::MAX);
        assert!(all.send().is_some());
        all.gone(ONE);
        assert_eq!(all.send(), None);
    }
}
