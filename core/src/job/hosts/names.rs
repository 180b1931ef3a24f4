//! Reads and writes several names in one word: `node[01-16,20]`.

use std::net::Ipv6Addr;
use std::ops::Range;

use super::{HOSTS_MAX, HostsProblem};

/// Places of a character that are not between brackets.
pub(super) fn outside(text: &str, character: char) -> Vec<usize> {
    let mut depth = 0_u32;
    let mut places = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ if c == character && depth == 0 => places.push(at),
            _ => {}
        }
    }
    places
}

/// Splits a list into words: commas between brackets belong to a word.
pub(in crate::job) fn split(text: &str) -> Result<impl Iterator<Item = &str>, HostsProblem> {
    let opened = text.matches('[').count();
    if opened != text.matches(']').count() {
        return Err(HostsProblem::Range(text.into()));
    }
    let mut ends = outside(text, ',');
    ends.push(text.len());
    let mut start = 0;
    let words = ends.into_iter().map(move |end| {
        let word = text[start..end].trim();
        start = end + 1;
        word
    });
    Ok(words.filter(|word| !word.is_empty()))
}

/// Parses an IPv6 address in brackets; `None` for any other text.
pub(super) fn ipv6(text: &str) -> Option<Ipv6Addr> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse().ok()
}

/// Expands a word with ranges, the last range counting fastest. `None` when it is invalid, or has more than
/// [`HOSTS_MAX`] names.
pub(super) fn expand(word: &str) -> Option<Vec<String>> {
    let mut expanded = vec![String::new()];
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('[') {
        let (list, after) = after.split_once(']')?;
        let texts = numbers(list)?;
        if before.contains(']') || expanded.len() * texts.len() > HOSTS_MAX {
            return None;
        }
        let join = |start: &String| {
            let start = format!("{start}{before}");
            texts.iter().map(move |text| format!("{start}{text}"))
        };
        expanded = expanded.iter().flat_map(join).collect();
        rest = after;
    }
    if rest.contains(']') {
        return None;
    }
    for text in &mut expanded {
        text.push_str(rest);
    }
    Some(expanded)
}

/// Expands `01-16,20`; a range whose first number starts with a zero keeps its number of digits.
fn numbers(list: &str) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (number(first)?, number(last)?);
        if from > to || (to - from) as usize >= HOSTS_MAX - texts.len() {
            return None;
        }
        let width = width(first);
        texts.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(texts)
}

/// Names in the form `node[01-03,07]`, in their order; what does not follow each other stands by
/// itself. It is what Slurm and [`expand`] read.
pub fn compress<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut groups: Vec<HostNameGroup> = Vec::new();
    for name in names {
        let name = name.as_ref();
        let taken = groups.last_mut().is_some_and(|group| group.take(name));
        if !taken {
            groups.push(HostNameGroup::new(name));
        }
    }
    let texts: Vec<String> = groups.iter().map(HostNameGroup::text).collect();
    texts.join(",")
}

/// Names that differ in one number.
struct HostNameGroup {
    first: String,
    /// Position of the number in the first name, once there are two names.
    number: Option<Range<usize>>,
    /// First and last number of each run, as written.
    runs: Vec<(String, String)>,
}

impl HostNameGroup {
    fn new(name: &str) -> Self {
        Self {
            first: name.into(),
            number: None,
            runs: Vec::new(),
        }
    }

    /// Takes a name that differs in nothing else.
    fn take(&mut self, name: &str) -> bool {
        let known = self.number.clone();
        let Some(at) = known.or_else(|| number_that_differs(&self.first, name)) else {
            return false;
        };
        let (before, after) = (&self.first[..at.start], &self.first[at.end..]);
        let middle = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after));
        let Some(number) = middle.filter(|text| is_number(text)) else {
            return false;
        };
        if self.runs.is_empty() {
            let first = self.first[at.clone()].to_owned();
            self.runs.push((first.clone(), first));
        }
        self.number = Some(at);
        let Some((first, last)) = self.runs.last_mut() else {
            return false;
        };
        let width = width(first);
        let next = last
            .parse::<u32>()
            .ok()
            .and_then(|last| last.checked_add(1));
        match next.map(|next| format!("{next:0width$}")) {
            Some(next) if next == number => *last = next,
            _ => self.runs.push((number.into(), number.into())),
        }
        true
    }

    fn text(&self) -> String {
        let Some(at) = &self.number else {
            return self.first.clone();
        };
        let run = |(first, last): &(String, String)| match first == last {
            true => first.clone(),
            false => format!("{first}-{last}"),
        };
        let runs: Vec<String> = self.runs.iter().map(run).collect();
        let (before, after) = (&self.first[..at.start], &self.first[at.end..]);
        format!("{before}[{}]{after}", runs.join(","))
    }
}

/// Whether a text is a number that is written back unchanged.
fn is_number(text: &str) -> bool {
    number(text).is_some()
}

/// Parses a number without a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

/// Returns the least number of digits of the numbers after this one: all of its digits if it starts with a zero.
fn width(first: &str) -> usize {
    match first.starts_with('0') {
        true => first.len(),
        false => 0,
    }
}

/// Returns the position of the only number in `one` that differs in `other`.
fn number_that_differs(one: &str, other: &str) -> Option<Range<usize>> {
    let same = |pair: &(u8, u8)| pair.0 == pair.1;
    let digit = |byte: &u8| byte.is_ascii_digit();
    let mut start = one.bytes().zip(other.bytes()).take_while(same).count();
    start -= one.as_bytes()[..start]
        .iter()
        .rev()
        .take_while(|b| digit(b))
        .count();
    let (one_rest, other_rest) = (&one.as_bytes()[start..], &other.as_bytes()[start..]);
    let end = start + one_rest.iter().take_while(|b| digit(b)).count();
    let other_end = start + other_rest.iter().take_while(|b| digit(b)).count();
    let differs =
        end > start && other_end > start && one.as_bytes()[end..] == other.as_bytes()[other_end..];
    let usable = differs && is_number(&one[start..end]) && one != other;
    usable.then_some(start..end)
}
