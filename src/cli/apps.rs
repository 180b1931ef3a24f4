//! Programs on the command line: `[OPTIONS] PROGRAM [ARG]... : [OPTIONS] PROGRAM [ARG]...`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser, ValueHint};

use super::option_scan::OptionTable;
use super::options::ProcessArgs;
use crate::cli::run_usage_errors;
use crate::cli::value_error::ValueError;
use wireup_core::failure::CommandError;
use wireup_core::job::mpi::MpiSpec;
use wireup_core::job::spec::{AppRequest, WrapSpec};

/// Options that may be given for every program of a job.
#[derive(Debug, Args)]
pub(super) struct AppArgs {
    /// Number of ranks; -np is understood too [default: one per usable core; 1 when there are several programs]
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    #[arg(value_parser = parse_count, allow_negative_numbers = true)]
    count: Option<u32>,

    /// Directory the ranks start in [default: this one]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    wdir: Option<PathBuf>,

    /// Program and its arguments; `:` starts the next program of the same job
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    #[arg(value_name = "PROGRAM")]
    argv: Vec<OsString>,

    #[command(flatten)]
    surroundings: ProcessArgs,
}

/// Options and words of a further program of the job.
#[derive(Debug, Parser)]
#[command(
    name = "wireup run … :",
    disable_help_flag = true,
    args_override_self = true
)]
pub(super) struct NextApp {
    #[command(flatten)]
    app: AppArgs,
}

/// Splits the words after `wireup run` at `:` words; the result has at least one part.
pub(super) fn split_apps(words: impl IntoIterator<Item = OsString>) -> Vec<Vec<OsString>> {
    let mut parts = vec![Vec::new()];
    for word in words {
        if word == ":" {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(word);
        }
    }
    parts
}

fn parse_count(text: &str) -> Result<u32, ValueError> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(ValueError::Count),
    }
}

impl From<AppArgs> for AppRequest {
    fn from(args: AppArgs) -> Self {
        let around = args.surroundings;
        let (inherited, env) = around.variables();
        let preload = around.staging();
        Self {
            count: args.count,
            inherited,
            env,
            env_files: around.env_files,
            wdir: args.wdir,
            limits: around.limits,
            umask: around.umask,
            preload,
            rank_tmpdir: around.rank_tmpdir,
            mpi: MpiSpec {
                choice: around.mpi,
                definitions: around.define_mpi,
            },
            wrap: around.wrap.map(|command| WrapSpec {
                command,
                ranks: around.wrap_ranks,
            }),
            argv: args.argv,
            ..Self::default()
        }
    }
}

/// The applications of a job: the first, and the words of the others, which `shared` precedes. `is_job_option` knows the
/// options that only the first may have.
///
/// # Errors
/// [`CommandError`] with the program that has invalid options.
pub(super) fn app_requests(
    first: AppArgs,
    shared: &[OsString],
    rest: Vec<Vec<OsString>>,
    is_job_option: impl Fn(&OsStr) -> bool,
) -> Result<Vec<AppRequest>, CommandError> {
    let mut apps = vec![AppRequest::from(first)];
    for (index, part) in rest.into_iter().enumerate() {
        let number = index + 2;
        let words: Vec<OsString> = shared.iter().cloned().chain(part).collect();
        let app = parse(words).map_err(|error| {
            let line = run_usage_errors::next_program_error_text(&error, &is_job_option);
            CommandError::request(format!("program {number} (after `:`): {line}"))
        })?;
        apps.push(app.into());
    }
    Ok(apps)
}

fn parse(words: Vec<OsString>) -> Result<AppArgs, clap::Error> {
    let command = OptionTable::from_parser::<NextApp>().into_parser(&words);
    let name = std::iter::once(OsString::from("wireup run … :"));
    let mut matches = command.try_get_matches_from(name.chain(words))?;
    NextApp::from_arg_matches_mut(&mut matches).map(|next| next.app)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run_args::RunArgs;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn programs_are_split_at_colon_arguments() {
        let parts = split_apps(words("-l a : -n 3 b a:b"));
        assert_eq!(parts, [words("-l a"), words("-n 3 b a:b")]);
        assert_eq!(split_apps(words("a :")), [words("a"), Vec::new()]);
    }

    #[test]
    fn job_options_after_colon_are_refused() {
        let is_job_option = |word: &OsStr| OptionTable::from_parser::<RunArgs>().knows(word);
        let line = |text| {
            let error = parse(words(text)).unwrap_err();
            run_usage_errors::next_program_error_text(&error, is_job_option)
        };
        assert!(
            line("-l a").contains("in front of the first program"),
            "{}",
            line("-l a")
        );
        let line = line("--lable a");
        assert!(!line.contains("in front of"), "{line}");
    }
}
