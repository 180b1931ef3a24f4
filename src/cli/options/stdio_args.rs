//! The ranks' input and output.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use crate::cli::value_error::ValueError;
use crate::plan::pattern::PatternError;
use crate::stdio::output_label::Label;
use wireup_core::job::ids::Rank;
use wireup_core::job::spec::{LabelSpec, StdinTarget, StdioSpec};

/// The ranks' input and output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input and output")]
pub(crate) struct StdioArgs {
    /// Put the rank in brackets in front of every output line, or the text =PATTERN: %r rank, %R rank with blanks in
    /// front, %l local rank, %h host, %p process id, %j name of the job, %J its number from 1, %g from 0, %n node, %s
    /// out or err, %t seconds since the start, %c date and time
    #[arg(short, long, value_name = "PATTERN", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_label))]
    label: Option<Option<OsString>>,

    /// Old spelling of `--label=PATTERN`
    #[arg(long, hide = true, value_name = "PATTERN")]
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_label))]
    label_pattern: Option<OsString>,

    /// Put the local time in front of every output line, in files too
    #[arg(long)]
    timestamps: bool,

    /// Write each rank's output to a file: %r rank, %l local rank, %h host, %j job, %n node, %s out
    /// or err; missing directories are created
    #[arg(long, value_name = "PATTERN")]
    output: Option<PathBuf>,

    /// Ranks that read standard input: none, all, or a rank
    #[arg(long, value_name = "none|RANK|all", default_value = "0", value_parser = parse_stdin)]
    stdin: StdinTarget,

    /// Give this rank its own terminal, connected to yours: Ctrl-C goes to the rank
    #[arg(long, value_name = "RANK", conflicts_with = "stdin")]
    pty: Option<u32>,
}

impl From<StdioArgs> for StdioSpec {
    fn from(args: StdioArgs) -> Self {
        Self {
            label: match (args.label_pattern, args.label) {
                (Some(pattern), _) | (None, Some(Some(pattern))) => {
                    Some(LabelSpec::Pattern(pattern))
                }
                (None, Some(None)) => Some(LabelSpec::Rank),
                (None, None) => None,
            },
            timestamps: args.timestamps,
            output: args.output.map(PathBuf::into_os_string),
            stdin: match args.pty {
                Some(_) => StdinTarget::None,
                None => args.stdin,
            },
            pty: args.pty.map(Rank),
        }
    }
}

fn parse_label(pattern: OsString) -> Result<OsString, PatternError> {
    Label::check(&pattern).map(|()| pattern)
}

fn parse_stdin(text: &str) -> Result<StdinTarget, ValueError> {
    match text {
        "none" => Ok(StdinTarget::None),
        "all" => Ok(StdinTarget::All),
        number => number
            .parse()
            .map(|rank| StdinTarget::Rank(Rank(rank)))
            .map_err(|_| ValueError::Stdin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdin_target_is_validated() {
        assert_eq!(parse_stdin("3"), Ok(StdinTarget::Rank(Rank(3))));
        assert!(parse_stdin("some").is_err());
    }
}
