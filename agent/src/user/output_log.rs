//! Messages of a user's process, as lines of the agent's log. The user controls their contents.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tracing::warn;

/// Maximum bytes of a line; the rest is a separate line.
const LINE_MAX: usize = 1024;

/// Most lines; the others are read and dropped.
const LINES_MAX: u32 = 100;

/// Logs all input, until the last writer has gone. `who` is the prefix of each line.
///
/// # Errors
/// When the descriptor is no pipe, or the runtime cannot watch it.
pub fn relay(pipe: OwnedFd, who: String) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut pipe = Receiver::from_owned_fd(pipe)?;
    Ok(async move {
        let mut lines = LogLines::default();
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes).await {
            lines.take(&bytes[..count], |line| warn!("output of {who}: {line}"));
        }
        lines.end(|line| warn!("output of {who}: {line}"));
    })
}

/// Bytes to lines that do no harm in a log.
#[derive(Debug, Default)]
struct LogLines {
    line: Vec<u8>,
    count: u32,
}

impl LogLines {
    fn take(&mut self, bytes: &[u8], mut say: impl FnMut(&str)) {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() == LINE_MAX {
                self.end(&mut say);
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
    }

    fn end(&mut self, mut say: impl FnMut(&str)) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return;
        }
        self.count = self.count.saturating_add(1);
        match self.count {
            ..LINES_MAX => {
                say(&String::from_utf8_lossy(&line).replace(char::is_control, "?"));
            }
            LINES_MAX => say("more than is logged"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_lines(parts: &[&[u8]]) -> Vec<String> {
        let mut lines = LogLines::default();
        let mut logged = Vec::new();
        for part in parts {
            lines.take(part, |line| logged.push(line.to_owned()));
        }
        lines.end(|line| logged.push(line.to_owned()));
        logged
    }

    #[test]
    fn lines_are_whole_and_cannot_imitate_log_lines() {
        assert_eq!(log_lines(&[b"a", b"b\n\nc\nd"]), ["ab", "c", "d"]);
        assert_eq!(
            log_lines(&[b"a\r\x1b[31mWARN refused\n"]),
            ["a??[31mWARN refused"]
        );
        assert_eq!(log_lines(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn long_lines_and_many_lines_do_not_fill_log() {
        let long = log_lines(&[&[b'x'; 3000]]);
        assert_eq!(
            long.iter().map(String::len).collect::<Vec<_>>(),
            [1024, 1024, 952]
        );
        let many = log_lines(&[&b"x\n".repeat(5000)]);
        assert_eq!(many.len(), LINES_MAX as usize);
        assert_eq!(many.last().map(String::as_str), Some("more than is logged"));
    }
}
