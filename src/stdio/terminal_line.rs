//! The line at the end of a terminal that is renewed, and taken away when it is over.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Back to the start of the line, and nothing behind it.
pub(crate) const ERASE: &str = "\r\x1b[K";

/// Shows a text in place of the last one, as much of it as the terminal has columns.
pub(crate) fn drawn(terminal: impl AsFd, text: &str) -> String {
    // The last column would move the cursor to the next line.
    let width = tcgetwinsize(terminal).map_or(80, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    let shown: String = text.chars().take(width - 1).collect();
    format!("{ERASE}{shown}")
}
