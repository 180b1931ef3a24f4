//! Columns for a terminal; no I/O.

use std::time::Duration;

use crate::printable::printable;
use crate::topology;

/// Formats rows as aligned columns of printable characters. The last column is cut at `width`, the width of the terminal,
/// if it is known. Numbers are aligned right.
pub fn render(head: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let cells = |row: &Vec<String>| {
        row.iter()
            .map(|cell| printable(cell).into_owned())
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let all = || std::iter::once(&head).chain(&rows);
    let columns = head.len();
    let wide = |column: usize| {
        let cells = all().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(wide).collect();
    let numeric = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..columns)
        .map(|column| column > 0 && column + 1 < columns && numeric(column))
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            match right[column] {
                true => line.extend([pad.as_str(), cell]),
                false => line.extend([cell, pad.as_str()]),
            }
            line.push_str("  ");
        }
        let line = line.trim_end();
        match width {
            Some(width) => text.extend(line.chars().take(width)),
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// Ascending numbers as ranges, `0-3,7`; after a few `…` stands for the rest.
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    const MOST: usize = 4;
    let all = topology::ranges(numbers);
    match all.match_indices(',').nth(MOST - 1) {
        Some((end, _)) => format!("{},…", &all[..end]),
        None => all,
    }
}

/// A text of at most this number of characters, the last of them `…` if it was cut.
pub fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text
            .chars()
            .take(most.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    }
}

/// A value, or `-` if there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A time as batch systems write it: `M:SS`, `H:MM:SS` or `D-HH:MM:SS`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let seconds = seconds % 60;
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{:02}:{seconds:02}", minutes % 60),
        _ => format!("{days}-{:02}:{:02}:{seconds:02}", hours % 24, minutes % 60),
    }
}

/// A number of bytes with at most four digits.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = bytes as f64;
    while scaled >= 1000.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if scaled < 10.0 => format!("{scaled:.1} {}", UNITS[unit]),
        _ => format!("{scaled:.0} {}", UNITS[unit]),
    }
}

/// Words as a shell would take them, on one line: whatever is not plain is put between quotes,
/// and control characters are written as escapes.
pub fn words(words: &[std::ffi::OsString]) -> String {
    let word = |word: &std::ffi::OsString| {
        let text = word.to_string_lossy();
        let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%^*~".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            return text.into_owned();
        }
        match text.chars().any(char::is_control) {
            true => format!("$'{}'", text.escape_debug()),
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_form_range_and_many_ranges_are_cut() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([3]), "3");
        assert_eq!(ranges([0, 1, 2, 7, u32::MAX]), "0-2,7,4294967295");
        assert_eq!(ranges([0, 2, 4, 6]), "0,2,4,6");
        assert_eq!(ranges((0..100).step_by(2)), "0,2,4,6,…");
        assert_eq!(
            (cut("n[1-3]", 6), cut("n[1-3]", 5)),
            ("n[1-3]".into(), "n[1-…".into())
        );
    }

    #[test]
    fn columns_are_aligned_and_last_is_truncated() {
        let rows = [["a", "7", "one two"], ["long", "1234", "three"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let text = render(&["NAME", "PID", "COMMAND"], &rows, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "NAME   PID  COMMAND",
                "a        7  one two",
                "long  1234  three"
            ]
        );
        let cut = render(&["NAME", "PID", "COMMAND"], &rows, Some(15));
        assert_eq!(cut.lines().nth(1), Some("a        7  one"));
        assert_eq!(render(&["A", "B"], &[], None), "A  B\n");
        let forged = [vec!["\u{1b}[2J".to_owned(), "x\nB".to_owned()]];
        assert_eq!(
            render(&["A", "B"], &forged, None),
            "A        B\n\\x1b[2J  x\\nB\n"
        );
    }

    #[test]
    fn times_are_written_as_batch_systems_do() {
        for (seconds, text) in [
            (0, "0:00"),
            (65, "1:05"),
            (3_600, "1:00:00"),
            (90_061, "1-01:01:01"),
        ] {
            assert_eq!(time(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn sizes_stay_short() {
        for (size, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 KiB"),
            (5_242_880, "5.0 MiB"),
            (1 << 40, "1.0 TiB"),
            (1 << 60, "1048576 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn words_are_quoted_and_stay_on_one_line() {
        let arguments = ["-n", "2", "a b", "", "it's", "x\ny"].map(Into::into);
        assert_eq!(words(&arguments), r"-n 2 'a b' '' 'it'\''s' $'x\ny'");
    }
}
