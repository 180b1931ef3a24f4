//! Output and exit code of a run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::clean::Sandbox;

/// A run that is over.
#[derive(Clone)]
pub struct Outcome {
    /// Exit code, or 128 plus the signal that ended it, as a shell shows it.
    pub code: i32,
    /// Bytes of standard output, or of the terminal.
    pub stdout: Vec<u8>,
    /// Bytes of standard error.
    pub stderr: Vec<u8>,
    /// From the start to the exit.
    pub elapsed: Duration,
    /// Kept, with what the run wrote into its directory, as long as this.
    pub(crate) sandbox: Arc<Sandbox>,
}

impl Outcome {
    /// The directory the run started in.
    pub fn dir(&self) -> &Path {
        self.sandbox.work()
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The lines of standard output, sorted: ranks print in any order.
    pub fn sorted_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.out().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Fails unless the exit code is this one.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code; {self:?}");
        self
    }

    /// Fails unless the exit code is 0 and wireup printed nothing.
    #[track_caller]
    pub fn expect_quiet_success(self) -> Self {
        assert_eq!(self.err(), "", "standard error; {self:?}");
        self.expect(0)
    }

    /// Fails unless wireup itself printed exactly one line that contains all these words; returns
    /// it.
    #[track_caller]
    pub fn expect_one_line(&self, words: &[&str]) -> String {
        let err = self.err();
        let lines: Vec<&str> = err.lines().filter(|l| l.starts_with("wireup: ")).collect();
        assert_eq!(lines.len(), 1, "lines of wireup's own; {self:?}");
        for word in words {
            assert!(lines[0].contains(word), "no {word:?} in it; {self:?}");
        }
        lines[0].to_owned()
    }
}

/// The value of `key=` in a line of a test program; the text up to the next blank, or between
/// quotes.
pub fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = line.match_indices(key).find(|(at, _)| {
        line[at + key.len()..].starts_with('=') && (*at == 0 || line[..*at].ends_with(' '))
    });
    let rest = &line[at?.0 + key.len() + 1..];
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split(' ').next(),
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {} after {:?}", self.code, self.elapsed)?;
        writeln!(f, "--- stdout\n{}", shortened(&self.stdout))?;
        write!(f, "--- stderr\n{}", shortened(&self.stderr))
    }
}

/// The last part of an output, for messages.
pub(crate) fn shortened(bytes: &[u8]) -> String {
    const SHOWN: usize = 4096;
    match bytes.len().checked_sub(SHOWN) {
        Some(cut) if cut > 0 => {
            format!("({cut} bytes) … {}", String::from_utf8_lossy(&bytes[cut..]))
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}
