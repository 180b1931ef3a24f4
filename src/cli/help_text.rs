//! Texts below the options of a help page, filled to the width of the terminal: clap breaks long lines again and leaves
//! short ones, so that each paragraph would be ragged.
//!
//! A line that ends in a colon and is not indented is a heading. `Examples:` stay as they are. Two blanks in a line separate
//! a term from its meaning, whose further lines are indented as deep. Other lines of the same indentation are a paragraph.

use std::os::fd::AsFd;

use clap::Command;
use rustix::termios::tcgetwinsize;

/// Maximum width of the help, as in clap.
const WIDTH_MAX: usize = 100;

/// Returns the command and its subcommands with filled texts. Clap fills its own texts to the same width.
pub(super) fn reflowed(command: Command) -> Command {
    let width = width();
    reflowed_to(command.term_width(width), width)
}

/// Returns the width of a help page: that of the terminal, also behind a pager, or `COLUMNS`.
pub(super) fn width() -> usize {
    let variable = || {
        let columns = std::env::var("COLUMNS").ok()?.parse().ok();
        columns.filter(|columns| *columns > 0)
    };
    let columns = columns_of(std::io::stdout())
        .or_else(|| columns_of(std::io::stderr()))
        .or_else(|| columns_of(std::io::stdin()))
        .or_else(variable);
    columns.map_or(WIDTH_MAX, |columns| columns.clamp(1, WIDTH_MAX))
}

/// Columns of a terminal.
pub(super) fn columns_of(file: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(file).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

fn reflowed_to(mut command: Command, width: usize) -> Command {
    let filled = |text: &dyn ToString| fill(&text.to_string(), width);
    if let Some(text) = command.get_long_about().map(|text| filled(&text)) {
        command = command.long_about(text);
    }
    if let Some(text) = command.get_after_help().map(|text| filled(&text)) {
        command = command.after_help(text);
    }
    if let Some(text) = command.get_after_long_help().map(|text| filled(&text)) {
        command = command.after_long_help(text);
    }
    command.mut_subcommands(|sub| reflowed_to(sub, width))
}

/// A paragraph, or a term with its meaning.
struct Block {
    /// Blanks or the term in front of the first line.
    first: String,
    /// Columns in front of the words: in the source, and blanks in the other lines.
    indent: usize,
    words: Vec<String>,
}

impl Block {
    fn new(line: &str) -> Self {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let meaning = text.find("  ").filter(|_| indent > 0);
        let column = meaning.map(|at| {
            let blanks = text[at..].len() - text[at..].trim_start().len();
            indent + at + blanks
        });
        let column = column.unwrap_or(indent);
        Self {
            first: line[..column].to_owned(),
            indent: column,
            words: words(&line[column..]),
        }
    }

    /// Whether this line continues the block.
    fn continues(&self, line: &str) -> bool {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        // A term begins a new block.
        indent == self.indent && (indent == 0 || !text.contains("  "))
    }

    fn write(&self, text: &mut String, width: usize) {
        let mut line = self.first.clone();
        let mut is_empty = true;
        for word in &self.words {
            let blank = usize::from(!is_empty);
            if !is_empty && line.chars().count() + blank + word.chars().count() > width {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(self.indent);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Fills a text to lines of at most this width, except for its examples and longer words.
pub(super) fn fill(source: &str, width: usize) -> String {
    let mut text = String::with_capacity(source.len() + 64);
    let mut block: Option<Block> = None;
    let mut is_verbatim = false;
    for line in source.lines() {
        let is_heading = line.ends_with(':') && !line.starts_with(' ');
        if is_heading {
            is_verbatim = line == "Examples:";
        }
        if let Some(open) = block.as_mut().filter(|open| open.continues(line))
            && !is_heading
            && !line.is_empty()
        {
            open.words.extend(words(line));
            continue;
        }
        if let Some(done) = block.take() {
            done.write(&mut text, width);
        }
        if is_heading || is_verbatim || line.is_empty() {
            text.push_str(line);
            text.push('\n');
        } else {
            block = Some(Block::new(line));
        }
    }
    if let Some(done) = block {
        done.write(&mut text, width);
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    #[test]
    fn paragraphs_and_meanings_are_filled_and_examples_stay() {
        let source = "\
One two three
four five

Examples:
  a  b
  c d e f g h i j k l m n o p q

Exit status:
  0      one two
         three
  128+N  four five six
How:
  one two three four
  five six";
        let filled = "\
One two three four
five

Examples:
  a  b
  c d e f g h i j k l m n o p q

Exit status:
  0      one two
         three
  128+N  four five
         six
How:
  one two three four
  five six";
        assert_eq!(fill(source, 20), filled);
        let wide = fill(source, 80);
        assert!(wide.contains("One two three four five\n"), "{wide}");
        assert!(wide.contains("  0      one two three\n"), "{wide}");
        assert!(wide.contains("  one two three four five six"), "{wide}");
    }

    #[test]
    fn help_lines_fit_terminal() {
        fn check(command: &mut Command) {
            let name = command.get_name().to_owned();
            for text in [command.render_help(), command.render_long_help()] {
                let text = text.to_string();
                let mut lines = text.lines();
                let mut is_verbatim = false;
                let long = lines.find(|line| {
                    is_verbatim = *line == "Examples:" || is_verbatim && !line.is_empty();
                    line.chars().count() > 80 && !is_verbatim && line.trim().contains(' ')
                });
                assert_eq!(long, None, "{name}");
            }
            command.get_subcommands_mut().for_each(check);
        }
        fn narrow(command: Command) -> Command {
            command.term_width(80).mut_subcommands(narrow)
        }
        let mut tree = narrow(reflowed_to(tree(), 80));
        tree.build();
        check(&mut tree);
    }
}
