//! Results as the Test Anything Protocol: one line a check, which other programs read.

use std::io::{self, Write};

use wireup_impi_core::kit::conformance_rules::Rule;

/// Result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CheckOutcome {
    /// The rule holds for the tested side.
    Passed,
    /// The rule is violated, for this reason.
    Failed(String),
    /// The rule does not hold, and the specification does not demand it.
    Differs(String),
    /// The check could not be made.
    Skipped(String),
}

/// Checks that have been made.
#[derive(Debug)]
pub struct CheckReport<W> {
    out: W,
    count: usize,
    failed: usize,
}

impl<W: Write> CheckReport<W> {
    /// Creates an empty report.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "TAP version 14")?;
        Ok(Self {
            out,
            count: 0,
            failed: 0,
        })
    }

    /// Adds the result of a check.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, name: &str, outcome: &CheckOutcome) -> io::Result<()> {
        self.count += 1;
        let count = self.count;
        match outcome {
            CheckOutcome::Passed => writeln!(self.out, "ok {count} - {name}"),
            CheckOutcome::Skipped(why) => writeln!(self.out, "ok {count} - {name} # SKIP {why}"),
            CheckOutcome::Differs(what) => {
                writeln!(
                    self.out,
                    "not ok {count} - {name} # TODO not demanded: {what}"
                )
            }
            CheckOutcome::Failed(what) => {
                self.failed += 1;
                writeln!(self.out, "not ok {count} - {name}")?;
                what.lines()
                    .try_for_each(|line| writeln!(self.out, "# {line}"))
            }
        }?;
        self.out.flush()
    }

    /// Adds a check of a rule.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn rule(&mut self, rule: Rule, outcome: &CheckOutcome) -> io::Result<()> {
        let name = format!("{} [{}] {}", rule.name(), rule.section(), rule.text());
        self.add(&name, outcome)
    }

    /// Ends it; whether nothing failed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(mut self) -> io::Result<bool> {
        writeln!(self.out, "1..{}", self.count)?;
        self.out.flush()?;
        Ok(self.failed == 0)
    }
}
