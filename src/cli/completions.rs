//! `wireup completions`: scripts that make a shell complete wireup's commands and options.

use clap::Args;
use clap_complete::{Shell, generate};

use super::option_scan::{OptionTable, takes_next};
use super::options::choice;
use super::run_args::RunArgs;
use super::{print, tree};
use wireup_core::failure::CommandError;

const EXAMPLES: &str = "\
Examples:
  source <(wireup completions bash)      in this shell, and in ~/.bashrc for every one
  wireup completions zsh > _wireup       in a directory of zsh's fpath
  wireup completions fish | source";

/// Arguments of `wireup completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompletionsArgs {
    /// Shell to write for
    #[arg(value_parser = choice(&SHELLS))]
    shell: Shell,
}

const SHELLS: [(&str, Shell); 3] = [
    ("bash", Shell::Bash),
    ("zsh", Shell::Zsh),
    ("fish", Shell::Fish),
];

/// Prints the script.
pub(super) fn execute(args: &CompletionsArgs) -> Result<u8, CommandError> {
    let mut script = Vec::new();
    generate(args.shell, &mut tree(), "wireup", &mut script);
    if args.shell == Shell::Bash {
        script.extend_from_slice(in_front().as_bytes());
    }
    print(&script)
}

/// Returns the bash code in front of the generated function: it completes jobs and signals, and finds the program.
fn in_front() -> String {
    let own = OptionTable::from_parser::<RunArgs>();
    let options = own.options().filter(|arg| takes_next(arg));
    let names = options.flat_map(|arg| {
        let long = arg.get_long().map(|name| format!("--{name}"));
        long.into_iter()
            .chain(arg.get_short().map(|letter| format!("-{letter}")))
    });
    let names: Vec<String> = names.collect();
    include_str!("completions.bash").replace("@OPTIONS@", &names.join(" "))
}
