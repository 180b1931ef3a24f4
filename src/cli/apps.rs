//! Programs on the command line: `[OPTIONS] PROGRAM [ARG]... : [OPTIONS] PROGRAM [ARG]...`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::{Args, Parser};

use super::options::{SurroundingsArgs, means_x};
use crate::job::outcome::EXIT_WIREUP;
use crate::job::spec::{AppSpec, WrapSpec};
use crate::launcher::run::RunFailure;

/// Options that may be given for every program of a job.
#[derive(Debug, Args)]
pub(super) struct AppArgs {
    /// Number of ranks [default: one per usable core; 1 when there are several programs]
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    #[arg(value_parser = parse_count, allow_negative_numbers = true)]
    count: Option<u32>,

    /// Directory the ranks start in [default: this one]
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,

    /// Program and its arguments; `:` starts the next program of the same job
    #[arg(required = true, trailing_var_arg = true)]
    #[arg(value_name = "PROGRAM [ARG]... [: [OPTIONS] PROGRAM [ARG]...]")]
    argv: Vec<OsString>,

    #[command(flatten)]
    surroundings: SurroundingsArgs,
}

/// A further program of the job.
#[derive(Debug, Parser)]
#[command(name = "wireup run … :", disable_help_flag = true)]
struct NextApp {
    #[command(flatten)]
    app: AppArgs,
}

/// Splits a command line at `:` words and spells `-np` and `--env` the way the parser knows.
///
/// Returns the first program's arguments (with everything before it) and those of the others.
pub(super) fn split_apps(args: Vec<OsString>) -> (Vec<OsString>, Vec<Vec<OsString>>) {
    let mut parts = vec![Vec::new()];
    for arg in args {
        if arg == ":" {
            parts.push(Vec::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(arg);
        }
    }
    let mut parts = parts.into_iter().enumerate().map(|(index, mut part)| {
        // The first part starts with the command's own name and `run`.
        respell(&mut part, if index == 0 { 2 } else { 0 });
        part
    });
    let first = parts.next().unwrap_or_default();
    (first, parts.collect())
}

/// Replaces `-np` by `-n`, and `--env` by `-x` where it means that, among the options in front of
/// the program.
fn respell(args: &mut [OsString], options_from: usize) {
    const WITH_VALUE: &[&str] = &[
        "-n",
        "--ranks",
        "-x",
        "--env",
        "--env-file",
        "--wdir",
        "--umask",
        "--wrap",
        "--wrap-ranks",
        "--rlimit",
        "--output",
        "--stdin",
        "--pty",
        "--timeout",
        "--exit-policy",
        "--grace",
        "--json",
        "--virtual-nodes",
        "--ppn",
        "--map-by",
        "--pmi",
        "--libpmix",
        "--pmix-host",
        "--shim",
    ];
    let mut index = options_from;
    while let Some(arg) = args.get_mut(index) {
        if arg == "-np" {
            *arg = "-n".into();
        }
        if let Some(value) = arg.as_bytes().strip_prefix(b"--env=")
            && means_x(value)
        {
            *arg = OsString::from_vec([b"-x", value].concat());
        } else if arg == "--env"
            && let Some([option, value]) = args.get_mut(index..index + 2)
            && means_x(value.as_bytes())
        {
            *option = "-x".into();
        }
        let Some(arg) = args.get(index) else { return };
        if arg == "--" || !arg.as_bytes().starts_with(b"-") {
            return;
        }
        index += if WITH_VALUE.iter().any(|option| arg == option) {
            2
        } else {
            1
        };
    }
}

fn parse_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("give a number from 1 to {}", u32::MAX)),
    }
}

impl From<AppArgs> for AppSpec {
    fn from(args: AppArgs) -> Self {
        let ranks = args.surroundings.wrap_ranks;
        let wrap = args.surroundings.wrap;
        Self {
            wrap: wrap.map(|command| WrapSpec { command, ranks }),
            count: args.count,
            inherited: args.surroundings.inherited.unwrap_or_default(),
            env_files: args.surroundings.env_files,
            env: args.surroundings.env,
            wdir: args.wdir,
            limits: args.surroundings.limits,
            umask: args.surroundings.umask,
            argv: args.argv,
        }
    }
}

/// The applications of a job: the first, and the arguments of the others.
///
/// # Errors
/// [`RunFailure`] naming the program whose options are wrong.
pub(super) fn app_specs(
    first: AppArgs,
    rest: Vec<Vec<OsString>>,
) -> Result<Vec<AppSpec>, RunFailure> {
    let mut apps = vec![AppSpec::from(first)];
    for (index, part) in rest.into_iter().enumerate() {
        let words = std::iter::once(OsString::from("wireup run … :")).chain(part);
        let next = NextApp::try_parse_from(words).map_err(|error| RunFailure {
            code: EXIT_WIREUP,
            message: format!(
                "program {} (after `:`): {}",
                index + 2,
                error.to_string().trim_start_matches("error: ").trim_end()
            ),
        })?;
        apps.push(next.app.into());
    }
    Ok(apps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn programs_are_split_and_np_is_respelled_only_among_options() {
        let (first, rest) = split_apps(words("wireup run -l -np 2 a -np : -np 3 b -np 1"));
        assert_eq!(first, words("wireup run -l -n 2 a -np"));
        assert_eq!(rest, [words("-n 3 b -np 1")]);
        let (first, _) = split_apps(words("wireup run --env A --env=B=1 --env none --env C,D a"));
        assert_eq!(first, words("wireup run -x A -xB=1 --env none --env C,D a"));
        let (first, _) = split_apps(words("wireup run --wdir -np -np 2 a"));
        assert_eq!(first, words("wireup run --wdir -np -n 2 a"));
    }

    #[test]
    fn every_option_with_a_value_is_known_to_the_respelling() {
        use clap::CommandFactory;
        #[derive(Parser)]
        struct Whole {
            #[command(flatten)]
            run: super::super::run::RunArgs,
        }
        for arg in Whole::command()
            .get_arguments()
            .filter(|arg| !arg.is_positional())
        {
            let takes = arg.get_action().takes_values();
            for name in arg.get_long().map(|l| format!("--{l}")).into_iter().chain(
                arg.get_short_and_visible_aliases()
                    .unwrap_or_default()
                    .into_iter()
                    .map(|s| format!("-{s}")),
            ) {
                let mut line = words(&format!("w run {name} -np -n"));
                respell(&mut line, 2);
                assert_eq!(line[3] == "-np", takes, "{name}");
            }
        }
    }
}
