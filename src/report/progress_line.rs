//! Progress line: shows the event that a job is waiting for. No I/O.
//!
//! On a terminal it is the last line, is renewed at most once a second, and disappears
//! when the wait is over. Without a terminal it is written with `-v` only, and rarely.

use std::fmt::Write as _;
use std::time::Duration;

use wireup_core::wording;

/// Time that the start of a job may take before a wait is shown.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Time that the start of a job on several hosts may take before a wait is shown; more can be late there.
pub const PATIENCE_ACROSS: Duration = Duration::from_secs(1);

/// Time that the end of a job may take before a wait is shown.
pub const END_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two updates, and between two lines on a terminal.
pub const EVERY: Duration = Duration::from_secs(1);

/// Time between two lines in a log.
const EVERY_LOGGED: Duration = Duration::from_secs(10);

/// Maximum number of things that are named one by one.
pub const NAMED: usize = 3;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartupWait {
    /// Reply to a look-up from this source, before the launch.
    Lookup(String),
    /// PMIx servers that are not ready.
    Servers { named: Vec<String>, count: usize },
    /// Hosts that are not ready.
    Hosts {
        preparation: HostPreparation,
        ready: usize,
        hosts: usize,
        /// The first few hosts that are not ready.
        named: Vec<String>,
    },
    /// Ranks that have not been started.
    Starts {
        started: usize,
        size: usize,
        /// Hosts with most of the missing ranks, and their number.
        hosts: Vec<(String, usize)>,
    },
    /// Ranks that have not connected.
    Ranks {
        connected: usize,
        size: usize,
        /// The first few missing ranks; if there are more, `hosts` has those with most of them.
        named: Vec<String>,
        hosts: Vec<(String, usize)>,
    },
    /// Ranks that have not entered the first fence, in which others wait.
    Fence {
        entered: usize,
        size: usize,
        /// Hosts with most of the missing ranks, and their number.
        hosts: Vec<(String, usize)>,
    },
    /// Ranks that were signalled to exit.
    Ends {
        named: Vec<String>,
        count: usize,
        /// Name of the signal that the ranks got, `SIGTERM` or `SIGKILL`.
        signal: &'static str,
        /// Time until they are killed.
        kill_in: Option<Duration>,
    },
}

/// Step of a host before ranks can be started on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostPreparation {
    /// The agent joins, and gets the description of the launch.
    Agents,
    /// The host stores staged files.
    Staging,
    /// The PMIx server starts.
    Servers,
}

impl HostPreparation {
    /// Returns the name of the phase, and the text about hosts that have completed it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Agents => ("agents", "have joined"),
            Self::Staging => ("staging", "have the files"),
            Self::Servers => ("PMIx servers", "are ready"),
        }
    }
}

impl StartupWait {
    /// Describes the wait on one line.
    pub fn text(&self) -> String {
        match self {
            Self::Lookup(source) => format!("waiting for {source}"),
            Self::Servers { named, count } => {
                format!("waiting for the PMIx server of {}", list(named, *count))
            }
            Self::Hosts {
                preparation: what,
                ready,
                hosts,
                named,
            } => {
                let (phase, done) = what.words();
                let missing = list(named, hosts - ready);
                format!("{phase}: {ready} of {hosts} hosts {done}, waiting for {missing}")
            }
            Self::Starts {
                started,
                size,
                hosts,
            } => {
                let missing = counted(hosts, size - started);
                format!(
                    "{started} of {} started, waiting for {missing}",
                    wording::counted(*size, "rank")
                )
            }
            Self::Ranks {
                connected,
                size,
                named,
                hosts,
            } => {
                let missing = match hosts.is_empty() {
                    true => list(named, size - connected),
                    false => counted(hosts, size - connected),
                };
                format!(
                    "in init: {connected} of {} connected, waiting for {missing}",
                    wording::counted(*size, "rank")
                )
            }
            Self::Fence {
                entered,
                size,
                hosts,
            } => {
                let missing = counted(hosts, size - entered);
                format!(
                    "in the first fence: {entered} of {}, waiting for {missing}",
                    wording::counted(*size, "rank")
                )
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

/// Returns a few hosts with the highest counts, highest first.
pub fn slowest(counts: impl IntoIterator<Item = (String, usize)>) -> Vec<(String, usize)> {
    let mut hosts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    hosts.sort_by(|(_, a), (_, b)| b.cmp(a));
    hosts.truncate(NAMED);
    hosts
}

/// Names hosts with a number of ranks each, of `count` ranks in all.
fn counted(hosts: &[(String, usize)], count: usize) -> String {
    let shown: usize = hosts.iter().map(|(_, ranks)| ranks).sum();
    let named = hosts.iter().map(|(host, ranks)| match ranks {
        1 => format!("{host} (1 rank)"),
        ranks => format!("{host} ({ranks} ranks)"),
    });
    let more = if count > shown { ", …" } else { "" };
    format!("{}{more}", named.collect::<Vec<_>>().join(", "))
}

fn list(named: &[String], count: usize) -> String {
    let more = if count > named.len() { ", …" } else { "" };
    format!("{}{more}", named.join(", "))
}

/// Change of the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgressUpdate {
    /// Leave the line as it is.
    Keep,
    /// Show this text at the end of the terminal, in place of the last one.
    Draw(String),
    /// Remove the line from the terminal.
    Erase,
    /// Write this text to the log.
    Log(String),
}

/// Decides when to print which line.
#[derive(Debug)]
pub struct ProgressLine {
    terminal: bool,
    logged: bool,
    /// Time of the next update; `None` while the job waits for nothing.
    next: Option<Duration>,
    /// The last line, without its countdown, and its time.
    last_line: Option<(StartupWait, Duration)>,
}

impl ProgressLine {
    /// Creates a line that is shown on a `terminal`, or else only if `logged`; the first update is after `patience`.
    pub fn new(terminal: bool, logged: bool, patience: Duration) -> Self {
        Self {
            terminal,
            logged,
            next: (terminal || logged).then_some(patience),
            last_line: None,
        }
    }

    /// Starts a wait that may take long: the next update is after `patience`.
    pub fn expect(&mut self, now: Duration, patience: Duration) {
        if self.terminal || self.logged {
            let at = now + patience;
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    /// Returns the time at which to call [`ProgressLine::update_line`].
    pub fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Updates the line when this is due; `wait` is the current wait.
    pub fn update_line(&mut self, now: Duration, wait: Option<StartupWait>) -> ProgressUpdate {
        let Some(wait) = wait else {
            self.next = None;
            return match self.last_line.take() {
                Some(_) if self.terminal => ProgressUpdate::Erase,
                _ => ProgressUpdate::Keep,
            };
        };
        self.next = Some(now + EVERY);
        let text = wait.text();
        if self.terminal {
            self.last_line = Some((wait, now));
            return ProgressUpdate::Draw(text);
        }
        let same = |a: &StartupWait| match (a, &wait) {
            // A change of the countdown only is not logged.
            (StartupWait::Ends { named: a, .. }, StartupWait::Ends { named: b, .. }) => a == b,
            (a, b) => a == b,
        };
        match &self.last_line {
            Some((last, at)) if same(last) || now < *at + EVERY_LOGGED => ProgressUpdate::Keep,
            _ => {
                self.last_line = Some((wait, now));
                ProgressUpdate::Log(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(connected: usize) -> StartupWait {
        StartupWait::Ranks {
            connected,
            size: 64,
            named: vec!["rank 3 (n, pid 8)".into(), "rank 5 (n, pid 9)".into()],
            hosts: Vec::new(),
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn progress_line_names_few_and_counts_all() {
        assert_eq!(
            ranks(41).text(),
            "in init: 41 of 64 ranks connected, waiting for rank 3 (n, pid 8), rank 5 (n, pid 9), …"
        );
        assert!(ranks(62).text().ends_with("rank 5 (n, pid 9)"));
        let ends = StartupWait::Ends {
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
    fn slowest_hosts_are_named_first() {
        let counts = [("a", 1), ("b", 9), ("c", 0), ("d", 4), ("e", 2)];
        let hosts = slowest(counts.map(|(host, count)| (host.to_owned(), count)));
        let text = |started| {
            let hosts = hosts.clone();
            let size = 64;
            StartupWait::Starts {
                started,
                size,
                hosts,
            }
            .text()
        };
        let named = "waiting for b (9 ranks), d (4 ranks), e (2 ranks)";
        assert_eq!(text(48), format!("48 of 64 ranks started, {named}, …"));
        assert_eq!(text(49), format!("49 of 64 ranks started, {named}"));
        let hosts = StartupWait::Hosts {
            preparation: HostPreparation::Staging,
            ready: 14,
            hosts: 16,
            named: vec!["n3".into(), "n7".into()],
        };
        let expected = "staging: 14 of 16 hosts have the files, waiting for n3, n7";
        assert_eq!(hosts.text(), expected);
    }

    #[test]
    fn terminal_shows_progress_every_second_until_done() {
        let mut progress = ProgressLine::new(true, false, PATIENCE);
        assert_eq!(progress.next_deadline(), Some(PATIENCE));
        let line = ProgressUpdate::Draw(ranks(1).text());
        assert_eq!(progress.update_line(PATIENCE, Some(ranks(1))), line);
        assert_eq!(progress.next_deadline(), Some(PATIENCE + SECOND));
        assert_eq!(
            progress.update_line(PATIENCE + SECOND, Some(ranks(1))),
            line
        );
        assert_eq!(
            progress.update_line(PATIENCE + SECOND * 2, None),
            ProgressUpdate::Erase
        );
        assert_eq!(progress.next_deadline(), None);
        progress.expect(SECOND * 9, END_PATIENCE);
        assert_eq!(progress.next_deadline(), Some(SECOND * 10));
        assert_eq!(
            progress.update_line(SECOND * 10, None),
            ProgressUpdate::Keep
        );
    }

    #[test]
    fn log_gets_only_changes_and_rarely() {
        let mut progress = ProgressLine::new(false, true, PATIENCE);
        let at = |seconds| SECOND * seconds;
        assert_eq!(
            progress.update_line(at(3), Some(ranks(1))),
            ProgressUpdate::Log(ranks(1).text())
        );
        assert_eq!(
            progress.update_line(at(4), Some(ranks(2))),
            ProgressUpdate::Keep
        );
        assert_eq!(
            progress.update_line(at(13), Some(ranks(2))),
            ProgressUpdate::Log(ranks(2).text())
        );
        assert_eq!(
            progress.update_line(at(60), Some(ranks(2))),
            ProgressUpdate::Keep
        );
        assert_eq!(progress.update_line(at(61), None), ProgressUpdate::Keep);
    }

    #[test]
    fn no_progress_is_due_without_terminal_or_request() {
        let mut progress = ProgressLine::new(false, false, PATIENCE);
        progress.expect(SECOND, PATIENCE);
        assert_eq!(progress.next_deadline(), None);
    }
}
