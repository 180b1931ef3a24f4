//! The line that shows what a job is waiting for; no I/O.
//!
//! On a terminal it stands below everything else, is renewed at most once a second, and goes away
//! when the wait is over. Without a terminal it is written with `-v` only, rarely.

use std::fmt::Write as _;
use std::time::Duration;

/// How long a job may take to start before something is said.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// The same for its end.
pub const END_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two looks, and lines on a terminal.
pub const EVERY: Duration = Duration::from_secs(1);

/// Time between two lines in a log.
const EVERY_LOGGED: Duration = Duration::from_secs(10);

/// Things that are named one by one.
pub const NAMED: usize = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wait {
    /// PMIx servers that are not ready.
    Servers { named: Vec<String>, count: usize },
    /// Hosts that are not ready.
    Hosts { named: Vec<String>, count: usize },
    /// Ranks that have not made contact.
    Ranks {
        connected: usize,
        size: usize,
        /// The first few that have not.
        named: Vec<String>,
    },
    /// Ranks that were asked to end.
    Ends {
        named: Vec<String>,
        count: usize,
        /// The signal that they got, `SIGTERM` or `SIGKILL`.
        signal: &'static str,
        /// Time until they are killed.
        kill_in: Option<Duration>,
    },
}

impl Wait {
    /// In words, on one line.
    pub fn text(&self) -> String {
        match self {
            Self::Servers { named, count } => {
                format!("waiting for the PMIx server of {}", list(named, *count))
            }
            Self::Hosts { named, count } => format!("waiting for {}", list(named, *count)),
            Self::Ranks {
                connected,
                size,
                named,
            } => {
                let missing = list(named, size - connected);
                format!("{connected} of {size} ranks connected, waiting for {missing}")
            }
            Self::Ends {
                named,
                count,
                signal,
                kill_in,
            } => {
                let ranks = if *count == 1 { "rank" } else { "ranks" };
                let named = list(named, *count);
                let mut text =
                    format!("waiting for {count} {ranks} to end after {signal}: {named}");
                if let Some(time) = kill_in {
                    let seconds = time.as_secs_f64().ceil();
                    let _ = write!(text, "; SIGKILL in {seconds} s");
                }
                text
            }
        }
    }
}

fn list(named: &[String], count: usize) -> String {
    let more = if count > named.len() { ", …" } else { "" };
    format!("{}{more}", named.join(", "))
}

/// What to do about the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// Nothing.
    Keep,
    /// Show it at the end of the terminal, in place of the last one.
    Draw(String),
    /// Take it away.
    Erase,
    /// Write it for good.
    Log(String),
}

/// Decides when to print which line.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    logged: bool,
    /// When to look next; `None` while nothing is waited for.
    next: Option<Duration>,
    /// The last line, without its countdown, and its time.
    last: Option<(Wait, Duration)>,
}

impl Progress {
    /// Prints on a `terminal`, or else only if `logged`.
    pub fn new(terminal: bool, logged: bool) -> Self {
        Self {
            terminal,
            logged,
            next: (terminal || logged).then_some(PATIENCE),
            last: None,
        }
    }

    /// Something has begun that may take long: looks again after `patience`.
    pub fn expect(&mut self, now: Duration, patience: Duration) {
        if self.terminal || self.logged {
            let at = now + patience;
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    /// When to call [`Progress::look`].
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    /// The time has come: `wait` is the current wait.
    pub fn look(&mut self, now: Duration, wait: Option<Wait>) -> Line {
        let Some(wait) = wait else {
            self.next = None;
            return match self.last.take() {
                Some(_) if self.terminal => Line::Erase,
                _ => Line::Keep,
            };
        };
        self.next = Some(now + EVERY);
        let text = wait.text();
        if self.terminal {
            self.last = Some((wait, now));
            return Line::Draw(text);
        }
        let same = |a: &Wait| match (a, &wait) {
            // The countdown alone is no news.
            (Wait::Ends { named: a, .. }, Wait::Ends { named: b, .. }) => a == b,
            (a, b) => a == b,
        };
        match &self.last {
            Some((last, at)) if same(last) || now < *at + EVERY_LOGGED => Line::Keep,
            _ => {
                self.last = Some((wait, now));
                Line::Log(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(connected: usize) -> Wait {
        Wait::Ranks {
            connected,
            size: 64,
            named: vec!["rank 3 (n, pid 8)".into(), "rank 5 (n, pid 9)".into()],
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_line_names_a_few_and_counts_all() {
        assert_eq!(
            ranks(41).text(),
            "41 of 64 ranks connected, waiting for rank 3 (n, pid 8), rank 5 (n, pid 9), …"
        );
        assert!(ranks(62).text().ends_with("rank 5 (n, pid 9)"));
        let ends = Wait::Ends {
            named: vec!["rank 3 (n, pid 8)".into()],
            count: 1,
            signal: "SIGTERM",
            kill_in: Some(Duration::from_millis(27_300)),
        };
        assert_eq!(
            ends.text(),
            "waiting for 1 rank to end after SIGTERM: rank 3 (n, pid 8); SIGKILL in 28 s"
        );
    }

    #[test]
    fn a_terminal_shows_it_every_second_until_nothing_is_waited_for() {
        let mut progress = Progress::new(true, false);
        assert_eq!(progress.next_deadline(), Some(PATIENCE));
        let line = Line::Draw(ranks(1).text());
        assert_eq!(progress.look(PATIENCE, Some(ranks(1))), line);
        assert_eq!(progress.next_deadline(), Some(PATIENCE + SECOND));
        assert_eq!(progress.look(PATIENCE + SECOND, Some(ranks(1))), line);
        assert_eq!(progress.look(PATIENCE + SECOND * 2, None), Line::Erase);
        assert_eq!(progress.next_deadline(), None);
        progress.expect(SECOND * 9, END_PATIENCE);
        assert_eq!(progress.next_deadline(), Some(SECOND * 10));
        assert_eq!(progress.look(SECOND * 10, None), Line::Keep);
    }

    #[test]
    fn a_log_gets_only_news_and_not_often() {
        let mut progress = Progress::new(false, true);
        let at = |seconds| SECOND * seconds;
        assert_eq!(
            progress.look(at(3), Some(ranks(1))),
            Line::Log(ranks(1).text())
        );
        assert_eq!(progress.look(at(4), Some(ranks(2))), Line::Keep);
        assert_eq!(
            progress.look(at(13), Some(ranks(2))),
            Line::Log(ranks(2).text())
        );
        assert_eq!(progress.look(at(60), Some(ranks(2))), Line::Keep);
        assert_eq!(progress.look(at(61), None), Line::Keep);
    }

    #[test]
    fn without_a_terminal_and_unasked_nothing_is_ever_due() {
        let mut progress = Progress::new(false, false);
        progress.expect(SECOND, PATIENCE);
        assert_eq!(progress.next_deadline(), None);
    }
}
