//! `wireup run`: raw arguments to a [`JobSpec`].

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};

use super::exit;
use crate::job::ids::Rank;
use crate::job::outcome::EXIT_WIREUP;
use crate::job::spec::{AppSpec, JobSpec, PmiChoice, StdinTarget};
use crate::launcher::run::{RunFailure, run};

const EXAMPLES: &str = "\
Examples:
  wireup run -n 4 ./app input.dat
  wireup run -n 1 ./master : -n 3 -x DEBUG=1 ./worker
  wireup run --virtual-nodes 2 -n 4 ./app      two nodes with two ranks each, on this machine
  wireup run -l --output 'out/%r.txt' ./app    one file per rank";

/// Options that may be given for every program of a job.
#[derive(Debug, Args)]
struct AppArgs {
    /// Number of ranks [default: one per usable core; 1 when there are several programs]
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    #[arg(value_parser = parse_count, allow_negative_numbers = true)]
    count: Option<u32>,

    /// Set a variable for the ranks, or pass on one (or 'PREFIX*') of an outer launcher
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,

    /// Directory the ranks start in [default: this one]
    #[arg(long, value_name = "DIR")]
    wdir: Option<PathBuf>,

    /// Program and its arguments; `:` starts the next program of the same job
    #[arg(required = true, trailing_var_arg = true)]
    #[arg(value_name = "PROGRAM [ARG]... [: [OPTIONS] PROGRAM [ARG]...]")]
    argv: Vec<OsString>,
}

/// A further program of the job.
#[derive(Debug, Parser)]
#[command(name = "wireup run … :", disable_help_flag = true)]
struct NextApp {
    #[command(flatten)]
    app: AppArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pmi {
    /// what the programs need, found by inspecting them
    Auto,
    /// PMI-1 (MPICH, Intel MPI)
    Pmi1,
    /// PMIx (Open MPI)
    Pmix,
    /// PMI-1 and PMIx
    All,
    /// nothing: plain processes
    None,
}

/// Arguments of `wireup run`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::TABLE))]
pub(super) struct RunArgs {
    #[command(flatten)]
    app: AppArgs,

    /// Put the rank in front of every output line
    #[arg(short, long)]
    label: bool,

    /// Write each rank's output to a file: %r rank, %h host, %j job, %n node, %s out or err
    #[arg(long, value_name = "PATTERN")]
    output: Option<OsString>,

    /// Who reads standard input: none, all, or a rank
    #[arg(long, value_name = "none|RANK|all", default_value = "0", value_parser = parse_stdin)]
    stdin: StdinTarget,

    /// End the job after this many seconds (fractions allowed), with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    #[arg(allow_negative_numbers = true)]
    timeout: Option<Duration>,

    /// Allow more ranks than usable cores
    #[arg(long)]
    oversubscribe: bool,

    /// Tell what is decided and why; twice: every step
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Act as this many nodes: names, PMIx servers and node-local memory of their own
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    virtual_nodes: u32,

    /// Process-management interface to offer
    #[arg(long, value_enum, default_value_t = Pmi::Auto)]
    pmi: Pmi,

    /// libpmix for the PMIx server [default: the program's own, $WIREUP_LIBPMIX, the system's]
    #[arg(long, value_name = "FILE")]
    libpmix: Option<PathBuf>,

    /// PMIx server process [default: wireup-pmix-host beside wireup or in ../lib/wireup]
    #[arg(long, value_name = "FILE")]
    pmix_host: Option<PathBuf>,

    /// Library between PMIx and wireup [default: libwireup-pmix-host.so, found the same way]
    #[arg(long, value_name = "FILE")]
    shim: Option<PathBuf>,
}

/// Splits a command line at `:` words and spells `-np` the way the parser knows.
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
        respell_np(&mut part, if index == 0 { 2 } else { 0 });
        part
    });
    let first = parts.next().unwrap_or_default();
    (first, parts.collect())
}

/// Replaces `-np` by `-n` among the options in front of the program.
fn respell_np(args: &mut [OsString], options_from: usize) {
    const WITH_VALUE: [&str; 13] = [
        "-n",
        "--ranks",
        "-x",
        "--env",
        "--wdir",
        "--output",
        "--stdin",
        "--timeout",
        "--virtual-nodes",
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

fn parse_stdin(text: &str) -> Result<StdinTarget, String> {
    match text {
        "none" => Ok(StdinTarget::None),
        "all" => Ok(StdinTarget::All),
        number => number
            .parse()
            .map(|rank| StdinTarget::Rank(Rank(rank)))
            .map_err(|_| "give none, all or the number of a rank".into()),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "give a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("give a number of seconds greater than 0".into()),
    }
}

fn app_spec(args: AppArgs) -> AppSpec {
    AppSpec {
        count: args.count,
        env: args.env,
        wdir: args.wdir,
        argv: args.argv,
    }
}

/// Runs the job and returns its exit code.
pub(super) fn execute(args: RunArgs, rest: Vec<Vec<OsString>>) -> Result<u8, RunFailure> {
    let mut apps = vec![app_spec(args.app)];
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
        apps.push(app_spec(next.app));
    }
    run(JobSpec {
        apps,
        label: args.label,
        output: args.output,
        stdin: args.stdin,
        timeout: args.timeout,
        oversubscribe: args.oversubscribe,
        verbose: args.verbose,
        virtual_nodes: args.virtual_nodes,
        pmi: match args.pmi {
            Pmi::Auto => PmiChoice::Auto,
            Pmi::Pmi1 => PmiChoice::Pmi1,
            Pmi::Pmix => PmiChoice::Pmix,
            Pmi::All => PmiChoice::All,
            Pmi::None => PmiChoice::None,
        },
        libpmix: args.libpmix,
        pmix_host: args.pmix_host,
        shim: args.shim,
    })
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
        let (first, _) = split_apps(words("wireup run --wdir -np -np 2 a"));
        assert_eq!(first, words("wireup run --wdir -np -n 2 a"));
    }

    #[test]
    fn every_option_with_a_value_is_known_to_the_respelling() {
        use clap::CommandFactory;
        #[derive(Parser)]
        struct Whole {
            #[command(flatten)]
            run: RunArgs,
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
                respell_np(&mut line, 2);
                assert_eq!(line[3] == "-np", takes, "{name}");
            }
        }
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(parse_stdin("3"), Ok(StdinTarget::Rank(Rank(3))));
        assert!(parse_stdin("some").is_err());
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "x", "inf", "NaN"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
