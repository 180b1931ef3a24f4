//! Stacks of many ranks as one tree. No I/O.
//!
//! Ranks at the same place share a line. Where they diverge, the smallest group comes first: in a job that hangs
//! these are the ranks that the others wait for.

use std::collections::{BTreeMap, BTreeSet};

use super::process_names::{RankKey, listed, pid_text};

/// Result of the inspection of one process.
#[derive(Clone, Copy, Debug)]
pub struct RankStack<'a> {
    pub name: RankKey,
    pub host: &'a str,
    pub pid: Option<i32>,
    /// Stack frames, the outermost first; or the reason why they are unknown.
    pub found: Result<&'a [String], &'a str>,
}

/// Returns the lines that show the results: the tree, and then the processes without a stack.
pub fn lines(stacks: &[RankStack<'_>]) -> Vec<String> {
    let frames = stacks
        .iter()
        .filter_map(|one| Some((one.name, one.found.ok()?)));
    let mut lines = tree(frames);
    lines.extend(stacks.iter().filter_map(missing_stack));
    lines
}

/// Returns the line about a process without a stack.
pub fn missing_stack(stack: &RankStack<'_>) -> Option<String> {
    let why = stack.found.err()?;
    let (name, pid) = (listed(&[stack.name]), pid_text(stack.pid));
    Some(format!("{name} ({}{pid}): {why}", stack.host))
}

/// Ranks that have the same frames up to this one.
#[derive(Default)]
struct Node<'a> {
    /// The ranks, in order.
    names: Vec<RankKey>,
    /// Lines of the function at which they are.
    lines: BTreeSet<u32>,
    /// Functions that they have called from here, by function and file.
    called: BTreeMap<&'a str, Node<'a>>,
}

/// Returns the lines that show the stacks, each with its outermost frame first.
pub fn tree<'a>(stacks: impl IntoIterator<Item = (RankKey, &'a [String])>) -> Vec<String> {
    let mut root = Node::default();
    for (name, frames) in stacks {
        let mut node = &mut root;
        node.names.push(name);
        for frame in frames {
            let (function, line) = place(frame);
            node = node.called.entry(function).or_default();
            node.names.push(name);
            node.lines.extend(line);
        }
    }
    let mut lines = Vec::new();
    root.show(0, &mut lines);
    lines
}

impl Node<'_> {
    /// Formats the line numbers.
    fn numbers(&self) -> String {
        const MOST: usize = 4;
        let numbers = self.lines.iter().take(MOST).map(u32::to_string);
        let more = if self.lines.len() > MOST { ",…" } else { "" };
        numbers.collect::<Vec<_>>().join(",") + more
    }

    fn show(&self, depth: usize, lines: &mut Vec<String>) {
        let mut called: Vec<(&&str, &Self)> = self.called.iter().collect();
        called.sort_by_key(|(_, node)| (node.names.len(), node.names.first().copied()));
        let parts = depth == 0 || called.len() > 1;
        // Some ranks may end at this frame.
        let parts = parts
            || called
                .iter()
                .any(|(_, node)| node.names.len() < self.names.len());
        for (function, node) in called {
            let inner = depth + usize::from(parts);
            let indent = "  ".repeat(inner.saturating_sub(1));
            let names = match parts {
                true => format!("  [{}]", listed(&node.names)),
                false => String::new(),
            };
            let frame = match node.lines.is_empty() {
                true => (*function).to_owned(),
                false => format!("{function}:{})", node.numbers()),
            };
            lines.push(format!("{indent}{frame}{names}"));
            node.show(inner, lines);
        }
    }
}

/// Splits a frame `function (file:line)` into the frame without its line, and the line. Ranks that are in one function may be
/// at many of its lines, if it is a loop.
fn place(frame: &str) -> (&str, Option<u32>) {
    let parts = frame
        .strip_suffix(')')
        .and_then(|text| text.rsplit_once(':'));
    let place = parts.and_then(|(function, line)| Some((function, line.parse().ok()?)));
    place.map_or((frame, None), |(function, line)| (function, Some(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::ids::{JobIndex, Rank};

    fn shown(stacks: &[(u32, u32, &str)]) -> Vec<String> {
        let split = |text: &str| text.split_ascii_whitespace().map(str::to_owned).collect();
        let stacks: Vec<(RankKey, Vec<String>)> = stacks
            .iter()
            .map(|(job, rank, text)| ((JobIndex(*job), Rank(*rank)), split(text)))
            .collect();
        tree(
            stacks
                .iter()
                .map(|(name, frames)| (*name, frames.as_slice())),
        )
    }

    #[test]
    fn equal_stacks_are_shown_once_and_divergent_first() {
        let lines = shown(&[
            (0, 0, "main work recv poll"),
            (0, 1, "main work recv poll"),
            (0, 2, "main elsewhere sleep"),
            (0, 3, "main work recv wait"),
        ]);
        let expected = [
            "main  [ranks 0-3]",
            "  elsewhere  [rank 2]",
            "  sleep",
            "  work  [ranks 0-1,3]",
            "  recv",
            "    wait  [rank 3]",
            "    poll  [ranks 0-1]",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn rank_that_stopped_higher_in_stack_is_shown() {
        let lines = shown(&[(0, 0, "main"), (0, 1, "main work")]);
        assert_eq!(lines, ["main  [ranks 0-1]", "  work  [rank 1]"]);
    }

    #[test]
    fn lines_of_one_function_are_listed() {
        let lines = shown(&[
            (0, 0, "f(a.c:7)"),
            (0, 1, "f(a.c:9)"),
            (0, 2, "f(a.c:7)"),
            (0, 3, "f(lib.so)"),
        ]);
        assert_eq!(lines, ["f(lib.so)  [rank 3]", "f(a.c:7,9)  [ranks 0-2]"]);
    }

    #[test]
    fn different_programs_and_spawned_jobs_are_separated() {
        let lines = shown(&[(0, 0, "main a"), (1, 0, "start a"), (1, 1, "start a")]);
        let expected = [
            "main  [rank 0]",
            "a",
            "start  [ranks 0-1 of spawned job 1]",
            "a",
        ];
        assert_eq!(lines, expected);
        assert!(shown(&[]).is_empty());
        assert!(shown(&[(0, 0, "")]).is_empty());
    }

    #[test]
    fn every_rank_of_large_job_is_in_every_level_once() {
        let text = |rank: u32| match rank {
            17 => "main other".to_owned(),
            rank => format!("main recv f{}", rank % 2),
        };
        let texts: Vec<String> = (0..64).map(text).collect();
        let stacks: Vec<(u32, u32, &str)> = (0..)
            .zip(&texts)
            .map(|(rank, text)| (0, rank, text.as_str()))
            .collect();
        let lines = shown(&stacks);
        assert_eq!(lines[0], "main  [ranks 0-63]");
        assert_eq!(lines[1], "  other  [rank 17]");
        assert_eq!(lines[2], "  recv  [ranks 0-16,18-63]");
        assert_eq!(lines.len(), 5);
    }
}
