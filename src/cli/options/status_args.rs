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

    /// Write a page about the launch when it has ended: its phases by host and rank, fences, failures
    #[arg(long, value_name = "FILE.html", value_hint = clap::ValueHint::FilePath)]
    report: Option<PathBuf>,

    /// Write the same as a trace that Perfetto shows when it has ended
    #[arg(long, value_name = "FILE.json", value_hint = clap::ValueHint::FilePath, hide_short_help = true)]
    trace: Option<PathBuf>,

    /// Say in a few lines where the time of the launch went when it has ended
    #[arg(long)]
    timing: bool,

    /// Serve metrics of the launch for Prometheus on a loopback address
    #[arg(long, value_name = "ADDRESS:PORT", hide_short_help = true)]
    metrics: Option<SocketAddr>,

    /// Do not show on a terminal what a launch waits for
    #[arg(long, hide_short_help = true)]
    no_progress: bool,
}

impl From<StatusArgs> for StatusSpec {
    fn from(args: StatusArgs) -> Self {
        Self {
            json: args.json,
            control: args.control,
            report: args.report,
            trace: args.trace,
            timing: args.timing,
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
