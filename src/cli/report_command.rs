//! `wireup report`: shows the record of a launch as a page, a trace or a summary.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use super::options::ReportTarget;
use crate::report::page::page;
use crate::report::status_stream::replacement::{FileKind, check_replaceable};
use crate::report::status_stream::report_files::write;
use wireup_core::failure::CommandError;
use wireup_core::printable;
use wireup_core::timeline::{Timeline, summary, trace};
use wireup_sys::signals::ignore_file_size_signal;

const HELP: &str = "\
Examples:
  wireup run --json run.json -n 4 ./app; wireup report run.json             says where the time went
  wireup report run.json -o run.html                                        writes a page for a browser
  wireup report run.json -o run.trace.json                                  writes a trace for Perfetto

The stream may be that of a launch that still runs, or that was killed. `wireup run --report FILE`
and `--report -` do the same when a launch ends.";

/// Arguments of `wireup report`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ReportArgs {
    /// What `wireup run --json` has written; - for standard input
    #[arg(value_name = "STREAM", value_hint = clap::ValueHint::FilePath)]
    stream: PathBuf,

    /// Write a page, or a trace (FILE.json, or trace:FILE for any name), or the summary (-) [default: -]
    #[arg(short, long = "output", value_name = "FILE.html|FILE.json|-", value_hint = clap::ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new().map(ReportTarget::parse))]
    outputs: Vec<ReportTarget>,

    /// Old spelling of `-o trace:FILE`
    #[arg(long, hide = true, value_name = "FILE.json", value_hint = clap::ValueHint::FilePath)]
    trace: Option<PathBuf>,
}

/// Writes the requested outputs.
///
/// # Errors
/// [`CommandError`] naming the file that cannot be read or written.
pub(super) fn execute(args: &ReportArgs) -> Result<u8, CommandError> {
    ignore_file_size_signal();
    let traces = || {
        let named = args.outputs.iter().filter_map(ReportTarget::trace);
        named.chain(&args.trace)
    };
    let pages = || args.outputs.iter().filter_map(ReportTarget::page);
    for path in pages() {
        check_replaceable("-o", path, FileKind::Page)?;
    }
    for path in traces() {
        check_replaceable("-o", path, FileKind::Trace)?;
    }
    let stream = read(&args.stream).map_err(|error| {
        CommandError::request(format!("cannot read {}: {error}", args.stream.display()))
    })?;
    let timeline = Timeline::read(&stream)
        .map_err(|error| CommandError::request(format!("{}: {error}", args.stream.display())))?;
    if timeline.planned.is_none() {
        // The record of a refused launch has only the result.
        let why = timeline.outcome.and_then(|ending| ending.cause);
        let why = why.map_or_else(String::new, |cause| format!(": {}", cause.message));
        let stream = args.stream.display();
        let problem = format!("{stream} records no launch{why}");
        return Err(CommandError::request(problem));
    }
    for path in pages() {
        write(path, page(&timeline).as_bytes())?;
    }
    for path in traces() {
        write(path, trace(&timeline).to_string().as_bytes())?;
    }
    let is_summary_requested = args.outputs.contains(&ReportTarget::Lines);
    if is_summary_requested || args.outputs.is_empty() && args.trace.is_none() {
        show(&summary(&timeline))
            .map_err(|error| CommandError::system("cannot write to standard output", error))?;
    }
    Ok(0)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return std::fs::read(path);
    }
    let mut stream = Vec::new();
    io::stdin().read_to_end(&mut stream)?;
    Ok(stream)
}

/// Writes lines on standard output. A closed reader, such as `head`, is not an error.
fn show(lines: &[String]) -> io::Result<()> {
    let text = printable::lines(lines);
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
