//! The command line. Nothing below this module knows a flag.
//!
//! `run` is parsed by itself: it is the command whose start-up time counts, its line holds several
//! programs, and defaults files add to it. Another executable parses the words of `impi`. All other commands go through
//! [`tree`].

pub mod agent_commands;
mod apps;
mod attach;
mod command_groups;
mod completions;
mod config;
mod debug;
mod doctor;
mod env_command;
pub mod exit_status;
pub(crate) mod foreign_options;
mod help_text;
mod host_capabilities;
mod host_lookups;
mod host_records;
mod impi;
mod kill;
mod launch_command;
mod launcher_host;
mod lookup_progress;
mod man;
mod mpis;
mod names;
mod negation;
mod nested_launcher;
mod node_status;
mod oci_hook;
mod option_scan;
mod options;
mod personality;
mod pmi;
mod prte;
mod ps;
mod remote_command;
mod remote_launch;
mod report_command;
mod requeue;
mod resize;
mod run;
mod run_args;
pub(crate) mod run_usage_errors;
mod serve;
mod short_help;
mod singleton;
mod stacks_core;
mod topo;
mod unknown_command;
mod unused_nodes;
mod value_error;

use std::ffi::OsString;
use std::io::{self, Write as _};

use clap::{Command, CommandFactory, FromArgMatches, Subcommand};

use self::personality::Personality;
use crate::backend::{name_server_process, step};
use crate::detached;
use wireup_agent_args::AgentSubcommand;
use wireup_agent_args::usage_errors::{answer, one_line, print};
use wireup_core::executables::{AGENT, CAPABILITIES, STEP_SERVER};
use wireup_core::failure::CommandError;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::printable;
use wireup_sys::resource_limits;

const EXAMPLES: &str = "\
Examples:
  wireup run -n 4 ./app       four ranks of ./app on this machine
  wireup run --help binding   options of `wireup run` about one topic; -h: the most common ones
  wireup man run              the manual page of `wireup run`
  wireup config show          defaults of `wireup run`, and where each comes from";

/// Every command but `run`.
#[derive(Debug, Subcommand)]
enum WireupCommand {
    /// Show your jobs on this machine
    Ps(ps::PsArgs),
    /// End jobs of yours on this machine, or send them another signal
    Kill(kill::KillArgs),
    /// Add hosts to a running job, or let hosts leave it
    Resize(resize::ResizeArgs),
    /// Show where the ranks of a job are: their stacks as one tree
    Stacks(stacks_core::StacksArgs),
    /// Open a gdb on each rank of a job, side by side in tmux
    Debug(debug::DebugCommandArgs),
    /// Write cores of the ranks of a job, which go on
    Core(stacks_core::CoreArgs),
    /// Show a host's packages, NUMA nodes, cores, GPUs and NICs
    Topo(topo::TopoArgs),
    /// List the MPIs of a host, which --mpi names
    Mpis(mpis::MpisArgs),
    /// Attach to a job that was started with --detach
    Attach(attach::AttachArgs),
    /// Wait for jobs that were started with --detach
    Wait(attach::WaitArgs),
    /// Show or withdraw names that ranks have published
    Names(names::NamesArgs),
    /// Tell what would make a launch fail, on this machine or on hosts
    Doctor(doctor::DoctorArgs),
    /// Tell where the time of a launch went, from its status stream
    Report(report_command::ReportArgs),
    #[command(flatten)]
    Handed(AgentSubcommand),
    /// Show what the ranks of a job do and use, refreshed
    Top(agent_commands::top::TopArgs),
    /// Make a container ready for a rank: a hook for OCI runtimes
    OciHook(oci_hook::HookArgs),
    /// Ask the PMI server of the launcher of this process
    Pmi(pmi::PmiArgs),
    /// Show the defaults of `wireup run`
    Config(config::show::ConfigArgs),
    /// Show a manual page, or write them all to a directory
    Man(man::ManArgs),
    /// Serve the ranks of a job whose processes others start
    Serve(serve::ServeArgs),
    /// Run a plain command on each of several hosts
    Exec(remote_command::ExecArgs),
    /// Run a command on a host through its agent, as ssh does
    Rsh(remote_command::RshArgs),
    /// Print variables with which other launchers reach hosts
    Env(env_command::EnvArgs),
    /// Make links named mpiexec, mpirun, srun and prte to wireup
    InstallLinks(personality::LinksArgs),
    /// Print the script that makes a shell complete wireup's commands
    Completions(completions::CompletionsArgs),
}

/// The whole command line, for help, manual pages and completions.
fn tree() -> Command {
    let top = Command::new("wireup")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand_value_name("COMMAND")
        .arg_required_else_help(true)
        .subcommand(run_args::RunArgs::command().name("run"));
    // Last, because the other commands' own description would take its place.
    let tree = WireupCommand::augment_subcommands(top)
        .about("Launch unmodified MPI programs, without SSH")
        .after_help(EXAMPLES)
        .subcommand(impi::described());
    let template = command_groups::template(&tree, help_text::width());
    tree.help_template(template)
}

/// Parses the arguments (program name included), runs the command and returns its exit code.
pub fn main(args: Vec<OsString>) -> u8 {
    if let Err(error) = resource_limits::check_stack() {
        eprintln!("wireup: {error}");
        return EXIT_WIREUP;
    }
    execute(args)
}

fn execute(args: Vec<OsString>) -> u8 {
    let named = |at: usize| args.get(at).and_then(|word| Personality::from_name(word));
    let rest = args.get(2..).unwrap_or_default();
    let result = match args.get(1) {
        _ if let Some(personality) = named(0) => personality.execute(args[1..].to_vec()),
        Some(word) if word == "run" => run::line(args),
        Some(word) if word == "help" && args.get(2).is_some_and(|word| word == "run") => {
            let mut line: Vec<OsString> = ["wireup", "run", "--help"].map(Into::into).to_vec();
            line.extend_from_slice(&args[3..]);
            run::line(line)
        }
        Some(word) if word == impi::NAME => impi::execute(rest),
        Some(word) if remote_command::is_ssh_option(word) => {
            Err(remote_command::rsh(args[1..].to_vec()))
        }
        _ if let Some(personality) = named(1) => personality.execute(args[2..].to_vec()),
        // Started by agents, not by people: no part of the command line as it is described.
        Some(word) if word == "step" => step::run(),
        Some(word) if word == detached::COMMAND => detached::attach_server::serve_launcher(rest),
        Some(word) if word == serve::RANK_COMMAND => serve::rank(rest),
        Some(word) if word == singleton::RANK_COMMAND => singleton::rank(rest),
        Some(word) if word == prte::RANK_COMMAND => prte::rank(rest),
        Some(word) if word == STEP_SERVER => step::serve(),
        Some(word) if word == CAPABILITIES => host_capabilities::execute(),
        Some(word) if word == "serve" => serve::sorted(args).and_then(run_subcommand),
        Some(word) if word == wireup_core::link::scheduled_launcher::COMMAND => {
            launch_command::execute()
        }
        Some(word) if word == wireup_core::name_server::COMMAND => rendezvous_process(),
        _ => run_subcommand(args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            // In one write: what reads it through a pipe, as Hydra does from its launcher of hosts, may end after the first.
            let text = personality::reworded(failure.to_string());
            eprint!("{}", printable::lines([format!("wireup: {text}")]));
            failure.code()
        }
    }
}

/// Started by a launch for itself and others.
fn rendezvous_process() -> Result<u8, CommandError> {
    let served = name_server_process::serve();
    served.map_err(|error| {
        CommandError::system("`wireup rendezvous` is started by launches", error)
    })?;
    Ok(0)
}

/// Writes a text to standard output. A reader that stops early is not a failure.
fn show(text: &str) {
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

fn run_subcommand(args: Vec<OsString>) -> Result<u8, CommandError> {
    let mut matches = match help_text::reflowed(tree()).try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => {
            return answer(&error, || {
                unknown_command::advice(&error, args.get(1..).unwrap_or_default())
            });
        }
    };
    match WireupCommand::from_arg_matches_mut(&mut matches) {
        Ok(WireupCommand::Ps(args)) => ps::execute(args),
        Ok(WireupCommand::Kill(args)) => kill::execute(args),
        Ok(WireupCommand::Resize(args)) => resize::execute(args),
        Ok(WireupCommand::Stacks(args)) => stacks_core::show_stacks(args),
        Ok(WireupCommand::Debug(args)) => debug::execute(args),
        Ok(WireupCommand::Core(args)) => stacks_core::write_cores(args),
        Ok(WireupCommand::Topo(args)) => topo::execute(&args),
        Ok(WireupCommand::Mpis(args)) => mpis::execute(args),
        Ok(WireupCommand::Attach(args)) => attach::attach(&args),
        Ok(WireupCommand::Wait(args)) => attach::wait(&args),
        Ok(WireupCommand::Names(args)) => names::names(args),
        Ok(WireupCommand::Doctor(args)) => doctor::execute(args),
        Ok(WireupCommand::Report(args)) => report_command::execute(&args),
        Ok(WireupCommand::Top(top)) => match top.pass_on() {
            Ok(()) if !top.is_interactive() => agent_commands::top::plain(&top),
            Ok(()) => Err(agent_commands::become_it(AGENT, &args)),
            Err(failure) => Err(failure),
        },
        Ok(WireupCommand::Handed(_)) => Err(agent_commands::become_it(AGENT, &args)),
        Ok(WireupCommand::OciHook(args)) => oci_hook::execute(&args),
        Ok(WireupCommand::Config(args)) => config::show::execute(args),
        Ok(WireupCommand::Man(args)) => man::execute(&args),
        Ok(WireupCommand::Pmi(args)) => pmi::execute(args),
        Ok(WireupCommand::Serve(args)) => Err(serve::execute(args)),
        Ok(WireupCommand::Exec(args)) => Err(remote_command::exec(args)),
        Ok(WireupCommand::Rsh(args)) => Err(remote_command::rsh(args.words)),
        Ok(WireupCommand::Env(args)) => env_command::execute(args),
        Ok(WireupCommand::InstallLinks(args)) => personality::install_links(&args),
        Ok(WireupCommand::Completions(args)) => completions::execute(&args),
        Err(error) => answer(&error, || one_line(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        tree().debug_assert();
        negation::with_negations(tree().find_subcommand("run").unwrap().clone()).debug_assert();
    }

    #[test]
    fn every_command_has_examples_with_its_name() {
        fn check(command: &Command) {
            let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
            let help = command
                .get_after_long_help()
                .or_else(|| command.get_after_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            let examples = help
                .lines()
                .skip_while(|line| *line != "Examples:")
                .skip(1)
                .take_while(|line| line.starts_with("  "));
            let own = examples.filter(|line| line.contains(name)).count();
            assert!(own >= 1, "{name}: {help:?}");
            for sub in command.get_subcommands() {
                check(sub);
            }
        }
        let mut tree = tree().disable_help_subcommand(true);
        tree.build();
        check(&tree);
    }
}
