//! `wireup serve`: serves the ranks of a job whose processes others start.
//!
//! It becomes `wireup run` of a rank proxy for each rank ([`gate`]), so the options of `wireup run` apply, and `wireup ps`
//! and others see an ordinary launch.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, ValueHint};

use super::foreign_options::option_table::OWN;
use super::foreign_options::translate;
use super::option_scan::{ArgumentKind, OptionTable};
use super::options::choice;
use super::remote_launch::{become_run, option_words, switch_word};
use super::run::more_hosts;
use super::run_args::{RunArgs, names_program};
use crate::inspect::agent_file;
use crate::rank_proxy::{self, PortAuth, Settings};
use wireup_agent_args::usage_errors::one_line;
use wireup_core::executables::AGENT;
use wireup_core::failure::CommandError;
use wireup_core::job::spec::choice_name;

/// Command of a rank proxy; started by launches.
pub(super) const RANK_COMMAND: &str = "serve-rank";

/// Script that executes wireup at this path, or from the host's PATH.
const SCRIPT: &str = r#"[ -x "$0" ] && exec "$0" "$@"; exec wireup "$@""#;

const AFTER_HELP: &str = "\
Each rank has a port of its own, which admits one client: with the variables of that rank, MPICH, Intel MPI, programs on
Slurm's libpmi2 and those on PMIx are ranks of the job. The command ends when they all have (docs/serve.md).

Examples:
  wireup serve -n 2 --env-dir env &
  env $(cat env/rank-0.env) ./app                       in one shell, and rank-1.env in another
  podman run --network host --env-file env/rank-1.env image ./app
  wireup serve -n 4 --json --hosts n1,n2 --ppn 2        each host serves its own ranks";

/// Arguments of the rank proxies.
#[derive(Debug, Args)]
struct PortArgs {
    /// Write the variables of rank N to the file rank-N.env of this directory, on the rank's host [default: print them]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    env_dir: Option<PathBuf>,

    /// Rank N is the process that connects with the abstract socket NAME-N on the rank's host, and gets the variables there
    /// (docs/slurm.md)
    #[arg(long, value_name = "NAME", conflicts_with = "restartable")]
    task_socket: Option<String>,

    /// Print the variables as JSON, one line for each rank
    #[arg(long)]
    json: bool,

    /// Address on which PMI clients connect
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,

    /// Port of rank 0; each further rank has the next one [default: any that are free]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pmi_port: Option<u16>,

    /// Another PMI client may follow one whose connection has ended without a finalize; PMIx is not offered
    #[arg(long)]
    restartable: bool,

    /// Proof that PMI clients give: challenge, by HMAC-SHA-256 that they have their rank's PMI_AUTH_KEY; challenge-sha256, the
    /// same, or by the SHA-256 of PMI-2's draft; tls, by the certificate of their rank, in encrypted connections; none, no
    /// proof, also on interfaces that others reach [default: none if only this host can connect, otherwise challenge]
    #[arg(
        long,
        value_name = "challenge|challenge-sha256|tls|none",
        hide_possible_values = true
    )]
    #[arg(value_parser = choice(&PortAuth::NAMES))]
    pmi_port_auth: Option<PortAuth>,
}

/// Arguments of `wireup serve`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ServeArgs {
    /// Number of ranks
    #[arg(short, long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,

    #[command(flatten)]
    ports: PortArgs,

    /// Options of `wireup run` (--hosts, --ppn, --pmi, --on-failure, …)
    #[arg(value_name = "OPTION")]
    words: Vec<OsString>,
}

impl PortArgs {
    /// Returns the arguments as words of a command line.
    fn words(&self) -> Result<Vec<OsString>, CommandError> {
        let mut words = Vec::new();
        if self.pmi_port_auth == Some(PortAuth::Tls) && self.env_dir.is_none() {
            let text = "--pmi-port-auth tls needs --env-dir DIR, to which it writes the certificates of ranks";
            return Err(CommandError::request(text));
        }
        if let Some(dir) = &self.env_dir {
            let dir = std::path::absolute(dir);
            let dir = dir.map_err(|error| CommandError::system("--env-dir", error))?;
            words.extend(["--env-dir".into(), dir.into_os_string()]);
        }
        words.extend(option_words("--task-socket", self.task_socket.as_ref()));
        words.extend(switch_word("--json", self.json));
        words.extend(["--listen".into(), self.listen.to_string().into()]);
        let port = self.pmi_port.map(|port| port.to_string());
        words.extend(option_words("--pmi-port", port));
        words.extend(switch_word("--restartable", self.restartable));
        let auth = self.pmi_port_auth;
        let auth = auth.map(|auth| choice_name(&PortAuth::NAMES, auth));
        words.extend(option_words("--pmi-port-auth", auth));
        Ok(words)
    }
}

/// Sorts the words of a line: the options of this command first, and those of `wireup run` after `--`.
///
/// # Errors
/// [`CommandError`] for an option that neither has, and for one of another launcher without a translation.
pub(super) fn sorted(line: Vec<OsString>) -> Result<Vec<OsString>, CommandError> {
    let command = ServeArgs::augment_args(clap::Command::new("serve"));
    let serve = OptionTable::from(command.clone());
    let run = RunArgs::command();
    let others = run.get_arguments().filter(|arg| {
        let name = arg.get_long().unwrap_or_default();
        !arg.is_positional() && serve.long(name).is_none()
    });
    let all = OptionTable::from(command.args(others));
    let (name, words) = line.split_at(line.len().min(2));
    let translated = translate(&all, &OWN, words.to_vec()).map_err(CommandError::request)?;
    if let Some(option) = translated.unknown {
        let words = [option];
        let alone = all.into_parser(&words).no_binary_name(true);
        let error = alone.try_get_matches_from(words).err();
        let line = error.map_or_else(String::new, |error| one_line(&error));
        return Err(CommandError::request(line));
    }
    let (mut sorted, mut others) = (name.to_vec(), translated.everywhere);
    let mut words = translated.words.into_iter();
    while let Some(word) = words.next() {
        // Options of `wireup run` follow it.
        if word == "--" {
            others.extend(words.by_ref());
            break;
        }
        let meaning = all.read(&word);
        let target = match serve.knows(&word) {
            true => &mut sorted,
            false => &mut others,
        };
        target.push(word);
        // The line has no program, so options may follow any word.
        if let ArgumentKind::Option { takes_next: true } = meaning {
            target.extend(words.next());
        }
    }
    sorted.push("--".into());
    sorted.append(&mut others);
    Ok(sorted)
}

/// Executes `wireup run`; returns only if that fails.
pub(super) fn execute(args: ServeArgs) -> CommandError {
    // The hosts of a line without a program may be its last words.
    let line: Vec<OsString> = args.words.iter().cloned().chain(["/".into()]).collect();
    if let Some(problem) = more_hosts::find(&OptionTable::from_parser::<RunArgs>(), &line) {
        return CommandError::request(problem);
    }
    if names_program(&args.words) {
        let text =
            "wireup serve takes options of `wireup run` and no program: others start the processes";
        return CommandError::request(text);
    }
    let words = match args.ports.words() {
        Ok(words) => words,
        Err(failure) => return failure,
    };
    let mut options: Vec<OsString> = vec!["-n".into(), args.n.to_string().into()];
    options.extend(switch_word("--restartable", args.ports.restartable));
    options.extend(args.words);
    become_proxies(options, RANK_COMMAND, words)
}

/// Executes `wireup run` with these options and the program of [`proxy_program`], which gets these words; returns only if
/// that fails.
pub(super) fn become_proxies(
    options: impl IntoIterator<Item = OsString>,
    command: &str,
    words: impl IntoIterator<Item = OsString>,
) -> CommandError {
    match proxy_program(command) {
        Ok(program) => become_run(options.into_iter().chain(program).chain(words)),
        Err(error) => CommandError::system("cannot find wireup", error),
    }
}

/// Returns the program of ranks that are rank proxies: this command of wireup.
pub(super) fn proxy_program(command: &str) -> io::Result<[OsString; 5]> {
    let own = std::env::current_exe()?.into_os_string();
    let [shell, option, script] = ["sh", "-c", SCRIPT].map(OsString::from);
    Ok([shell, option, script, own, command.into()])
}

/// Runs the proxy of one rank; `words` are those after the command.
pub(super) fn rank(words: &[OsString]) -> Result<u8, CommandError> {
    let command = PortArgs::augment_args(clap::Command::new(RANK_COMMAND).no_binary_name(true));
    let matches = command.try_get_matches_from(words);
    let args = matches.and_then(|matches| PortArgs::from_arg_matches(&matches));
    let args = args.map_err(|error| CommandError::request(error.to_string()))?;
    let tls_program = match args.pmi_port_auth {
        Some(PortAuth::Tls) => agent_file::find(AGENT).map_err(CommandError::request)?,
        _ => PathBuf::new(),
    };
    rank_proxy::serve(&Settings {
        listen: args.listen,
        first_port: args.pmi_port,
        auth: args.pmi_port_auth,
        env_dir: args.env_dir,
        task_socket: args.task_socket,
        json: args.json,
        restartable: args.restartable,
        tls_program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_both_commands_may_be_mixed() {
        for (line, expected) in [
            (
                "--hosts a,b -n 2 --env-dir d --ppn 1",
                "-n 2 --env-dir d -- --hosts a,b --ppn 1",
            ),
            ("-np2 --json --label", "-n 2 --json -- --label"),
            ("-n=2 -l --pmi-port=7", "-n=2 --pmi-port=7 -- -l"),
            ("--ppn 2 --help", "--help -- --ppn 2"),
            ("-n 2 ./app --json", "-n 2 --json -- ./app"),
            ("--hosts n01 n02 -n 2", "-n 2 -- --hosts n01 n02"),
        ] {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            let found = sorted(words(&format!("wireup serve {line}"))).unwrap();
            assert_eq!(found[2..], words(expected), "{line}");
        }
    }

    #[test]
    fn unknown_option_is_refused_without_ranks() {
        for line in ["--frob", "-n 2 --frob --json"] {
            let words = "wireup serve ".to_owned() + line;
            let words = words.split(' ').map(OsString::from).collect();
            let text = sorted(words).unwrap_err().to_string();
            assert!(text.contains("'--frob'"), "{line}: {text}");
        }
    }

    #[test]
    fn proxy_processes_get_same_settings() {
        let line = "--env-dir /e --json --listen 10.0.0.1 --pmi-port 7000 --pmi-port-auth none";
        let parsed = |words: Vec<OsString>| {
            let command = PortArgs::augment_args(clap::Command::new("x").no_binary_name(true));
            PortArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
        };
        for line in [
            line,
            "--listen ::1",
            "--pmi-port-auth challenge",
            "--pmi-port-auth challenge-sha256",
            "--env-dir /e --pmi-port-auth tls",
            "--restartable",
            "--task-socket s",
        ] {
            let args = parsed(line.split(' ').map(OsString::from).collect());
            let again = parsed(args.words().unwrap());
            assert_eq!(format!("{args:?}"), format!("{again:?}"));
        }
        let line = ["--pmi-port-auth", "tls"].map(OsString::from);
        let refusal = parsed(line.to_vec()).words().unwrap_err().to_string();
        assert!(refusal.contains("needs --env-dir"), "{refusal}");
    }
}
