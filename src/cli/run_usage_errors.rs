//! Errors in the command line of `wireup run`, in one line: the error and the correction.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use wireup_agent_args::usage_errors::one_line;
use wireup_core::shell_words::quoted;

/// Words for `wireup run`, whose programs are positional and whose files may have set anything.
pub(super) fn run_error_text(error: &clap::Error) -> String {
    if lacks_program(error) {
        return "no program is given; write: wireup run [OPTIONS] PROGRAM [ARG]...".into();
    }
    one_line(error)
}

/// Whether the program is what is missing.
pub(super) fn lacks_program(error: &clap::Error) -> bool {
    let missing = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::Strings(names)) if names.iter().any(|name| name.contains("PROGRAM"))
    );
    error.kind() == ErrorKind::MissingRequiredArgument && missing
}

/// Advice for a line without a program, the last word of which an option takes as its file.
pub(super) fn taken_as_file(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let [.., option, file] = words else {
        return None;
    };
    if !lacks_program(error) {
        return None;
    }
    let file = quoted(file);
    match option.to_str()? {
        "--json" => Some(format!(
            "; --json takes {file} as its file, for standard output write --json - {file}"
        )),
        option @ ("--report" | "--output") => Some(format!(
            "; {option} takes {file} as its file, write {option} FILE {file}"
        )),
        _ => None,
    }
}

/// Words for a further program, whose options are only some of those of the job.
pub(super) fn next_program_error_text(
    error: &clap::Error,
    is_job_option: impl Fn(&OsStr) -> bool,
) -> String {
    let blamed = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    if error.kind() == ErrorKind::UnknownArgument && is_job_option(OsStr::new(blamed)) {
        return format!("{blamed} holds for the whole job: write it in front of the first program");
    }
    run_error_text(error)
}
