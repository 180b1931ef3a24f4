//! The arguments of `wireup run`, its help, and the parser of a line's options.

use std::ffi::OsString;

mod help;
pub(super) mod topics;

use clap::{FromArgMatches, Parser};

use self::help::{ABOUT, EXAMPLES, SURROUNDINGS, USAGE};
use super::apps::AppArgs;
use super::impi::ImpiSpec;
use super::option_scan::{ArgumentKind, OptionTable};
use super::options::{
    BindingArgs, ContainerArgs, DebugArgs, FabricArgs, HostsArgs, InterfaceArgs, LayoutArgs,
    StatusArgs, StdioArgs, TerminationArgs,
};
use super::short_help::brief;
use super::{exit_status, help_text};
use wireup_sys::log;

/// Arguments of `wireup run`.
#[derive(Debug, Parser)]
#[command(name = "run", bin_name = "wireup run", args_override_self = true)]
#[command(about = "Run a program, or several, as the ranks of one job", long_about = ABOUT)]
#[command(override_usage = USAGE, after_help = EXAMPLES)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{SURROUNDINGS}\n\n{}", exit_status::TABLE))]
pub(super) struct RunArgs {
    /// Print every decision with its reasons and the rejected alternatives; twice: every step too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Log what happens, of the launcher, its steps and PMIx servers: error, warn, info, debug or trace, or a
    /// list of MODULE=LEVEL [default: $WIREUP_LOG, or nothing]
    #[arg(long, value_name = "FILTER", value_parser = log::check, hide_short_help = true)]
    pub(super) log: Option<String>,

    /// Old spelling of `-v`
    #[arg(long, hide = true)]
    explain: bool,

    /// Show what would be done, on standard output, and start nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Be client K of the IMPI job whose server listens there. Further words: address=IP (of this host, for the
    /// others), lam (a client is LAM/MPI), tls-ca=FILE (of the server's certificate, to speak TLS with it), xsize=BYTES (from
    /// which collectives are long), maxlinear=N (clients up to which they are linear), print (lines and errors go to the
    /// print server) [docs/impi.md]
    #[arg(
        long,
        value_name = "HOST:PORT,client=K[,WORD]…",
        hide_short_help = true
    )]
    pub(super) impi: Option<ImpiSpec>,

    /// Read no defaults file
    #[arg(long)]
    pub(super) no_config: bool,

    #[command(flatten)]
    pub(super) app: AppArgs,

    #[command(flatten)]
    pub(super) layout: LayoutArgs,

    #[command(flatten)]
    pub(super) binding: BindingArgs,

    #[command(flatten)]
    pub(super) container: ContainerArgs,

    #[command(flatten)]
    pub(super) fabric: FabricArgs,

    #[command(flatten)]
    pub(super) hosts: HostsArgs,

    #[command(flatten)]
    pub(super) stdio: StdioArgs,

    #[command(flatten)]
    pub(super) ending: TerminationArgs,

    #[command(flatten)]
    pub(super) status: StatusArgs,

    #[command(flatten)]
    pub(super) interface: InterfaceArgs,

    #[command(flatten)]
    pub(super) debug: DebugArgs,
}

impl RunArgs {
    /// Returns the verbosity: 1 for decisions and their reasons, 2 and more for every step.
    pub(super) fn verbosity(&self) -> u8 {
        self.verbose.max(u8::from(self.explain))
    }
}

/// Whether words of `wireup run` have a program after the options.
pub(super) fn names_program(words: &[OsString]) -> bool {
    let own = OptionTable::from_parser::<RunArgs>();
    own.scan(words)
        .any(|(_, kind)| kind == ArgumentKind::Program)
}

/// Parses words that start with the first option.
pub(super) fn parse(own: OptionTable, words: Vec<OsString>) -> Result<RunArgs, clap::Error> {
    let question = words.iter().find(|word| *word == "--help" || *word == "-h");
    let mut command = own.into_parser(&words);
    if question.is_some_and(|word| word == "-h") {
        command = brief(command);
    } else if question.is_some() {
        let below = command.get_after_long_help().map(ToString::to_string);
        let below = format!(
            "{}\n\n{}",
            topics::list(&command),
            below.unwrap_or_default()
        );
        command = help_text::reflowed(command.after_long_help(below));
    }
    let name = std::iter::once(OsString::from("wireup run"));
    let mut matches = command.try_get_matches_from(name.chain(words))?;
    RunArgs::from_arg_matches_mut(&mut matches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use wireup_core::job::directive::DIRECTIVES;

    /// Options of these groups that only the initial job takes.
    const LAUNCH_ALONE: [&str; 1] = ["virtual-nodes"];

    #[test]
    fn spawns_accept_rank_options_only() {
        let own = OptionTable::from_parser::<RunArgs>();
        let options = DIRECTIVES.iter().filter_map(|row| row.option);
        let directives: BTreeSet<&str> = options
            .filter_map(|option| option.split(['=', ' ']).next())
            .collect();
        for option in &directives {
            assert!(own.long(option).is_some(), "there is no option --{option}");
        }
        let groups = [
            "Placement",
            "Binding",
            "Surroundings of the ranks (for each program)",
            "Images",
        ];
        for arg in own.options() {
            let (Some(group), Some(name)) = (arg.get_help_heading(), arg.get_long()) else {
                continue;
            };
            if groups.contains(&group) && !arg.is_hide_set() {
                let alone = LAUNCH_ALONE.contains(&name);
                assert_ne!(
                    directives.contains(name),
                    alone,
                    "--{name} needs a row in core/src/job/directive.rs"
                );
            }
        }
    }
}
