//! Reports about the job.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::cli::value_error::ValueError;
use wireup_core::job::spec::{StatusSpec, StatusTarget};

/// Reports about the job.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Status")]
pub(crate) struct StatusArgs {
    /// Write every change of a rank or the job, and the result, as lines of JSON to a file, to an
    /// inherited descriptor, or to standard output, together with the ranks' output; another option
    /// behind it stands for `-`
    #[arg(long, value_name = "FILE|fd:N|-")]
    #[arg(value_parser = OsStringValueParser::new().try_map(target))]
    json: Option<StatusTarget>,

    /// Read signals for ranks from an inherited descriptor, as lines of JSON; end of file ends the
    /// job
    #[arg(long, value_name = "fd:N", value_parser = descriptor, hide_short_help = true)]
    control: Option<i32>,

    /// Report on the launch when it has ended, its phases by host and rank, fences, failures: as a page (FILE.html), as a
    /// trace that Perfetto shows (FILE.json, or trace:FILE for any name), or in a few lines on standard error (-)
    #[arg(long = "report", value_name = "FILE.html|FILE.json|-", value_hint = clap::ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new().map(ReportTarget::parse))]
    reports: Vec<ReportTarget>,

    /// Old spelling of `--report trace:FILE`
    #[arg(long, hide = true, value_name = "FILE.json", value_hint = clap::ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// Old spelling of `--report -`
    #[arg(long, hide = true)]
    timing: bool,

    /// Serve metrics of the launch for Prometheus on a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", hide_short_help = true)]
    metrics: Option<SocketAddr>,

    /// Do not show on a terminal what a launch waits for
    #[arg(long, hide_short_help = true)]
    no_progress: bool,
}

/// A report on a launch that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) enum ReportTarget {
    Lines,
    Page(PathBuf),
    Trace(PathBuf),
}

impl ReportTarget {
    /// Reads `-`, `FILE`, `FILE.json` or `trace:FILE`.
    pub(in crate::cli) fn parse(text: OsString) -> Self {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Self::Lines;
        }
        match bytes.strip_prefix(b"trace:").map(OsStr::from_bytes) {
            Some(file) => Self::Trace(file.into()),
            None if bytes.ends_with(b".json") => Self::Trace(text.into()),
            None => Self::Page(text.into()),
        }
    }

    /// The file of a page.
    pub(in crate::cli) fn page(&self) -> Option<&PathBuf> {
        match self {
            Self::Page(path) => Some(path),
            Self::Lines | Self::Trace(_) => None,
        }
    }

    /// The file of a trace.
    pub(in crate::cli) fn trace(&self) -> Option<&PathBuf> {
        match self {
            Self::Trace(path) => Some(path),
            Self::Lines | Self::Page(_) => None,
        }
    }
}

impl From<StatusArgs> for StatusSpec {
    fn from(args: StatusArgs) -> Self {
        let latest_first = || args.reports.iter().rev();
        let trace = latest_first().find_map(ReportTarget::trace).cloned();
        Self {
            report: latest_first().find_map(ReportTarget::page).cloned(),
            trace: trace.or(args.trace),
            timing: args.timing || args.reports.contains(&ReportTarget::Lines),
            json: args.json,
            control: args.control,
            metrics: args.metrics,
            no_progress: args.no_progress,
            live: false,
            spans: None,
        }
    }
}

fn descriptor(text: &str) -> Result<i32, ValueError> {
    match target(text.into()) {
        Ok(StatusTarget::Descriptor(number)) => Ok(number),
        _ => Err(ValueError::Descriptor),
    }
}

fn target(text: OsString) -> Result<StatusTarget, ValueError> {
    let number = text.as_bytes().strip_prefix(b"fd:").map(OsStr::from_bytes);
    match number {
        None if text.is_empty() => Err(ValueError::NoTarget),
        None if text == "-" => Ok(StatusTarget::Stdout),
        None => Ok(StatusTarget::File(text.into())),
        Some(number) => match number.to_str().and_then(|number| number.parse().ok()) {
            Some(number @ 3..) => Ok(StatusTarget::Descriptor(number)),
            Some(0..=2) => Err(ValueError::TakenDescriptor),
            _ => Err(ValueError::NoDescriptor),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_page_trace_or_lines() {
        let read = |text: &str| ReportTarget::parse(text.into());
        assert_eq!(read("-"), ReportTarget::Lines);
        assert_eq!(read("./-"), ReportTarget::Page("./-".into()));
        assert_eq!(read("run.html"), ReportTarget::Page("run.html".into()));
        assert_eq!(read("run.json"), ReportTarget::Trace("run.json".into()));
        assert_eq!(read("trace:run"), ReportTarget::Trace("run".into()));
    }

    #[test]
    fn status_target_is_file_descriptor_or_stdout() {
        let parse = |text: &str| target(text.into());
        assert_eq!(parse("-"), Ok(StatusTarget::Stdout));
        assert_eq!(parse("fd:7"), Ok(StatusTarget::Descriptor(7)));
        assert_eq!(parse("./fd:7"), Ok(StatusTarget::File("./fd:7".into())));
        for bad in ["", "fd:", "fd:1", "fd:-1", "fd:x", "fd:99999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
