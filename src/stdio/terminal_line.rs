//! Progress line at the end of a terminal, which is replaced, and removed at the end.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Control sequence that moves the cursor to the start of the line and erases the line.
pub(crate) const ERASE: &str = "\r\x1b[K";

/// Returns the control sequence and text that replace the line, cut to the width of the terminal.
pub(crate) fn drawn(terminal: impl AsFd, text: &str) -> String {
    // The last column would move the cursor to the next line.
    let width = tcgetwinsize(terminal).map_or(80, |size| usize::from(size.ws_col));
    let width = if width == 0 { 80 } else { width };
    let shown: String = text.chars().take(width - 1).collect();
    format!("{ERASE}{shown}")
}
