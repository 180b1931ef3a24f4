//! `wireup run -h`: the most used options, on one screen. `--help` and the manual page have all options.

use clap::Command;

/// Options that it shows, with shorter texts than in `--help`.
const SHOWN: &[(&str, &str)] = &[
    ("ranks", "Number of ranks [default: one per usable core]"),
    ("hosts", "Run on these hosts: n1:2,n2 or node[01-16]:8"),
    ("hostfile", "Read the hosts from a file"),
    ("ppn", "Most ranks on a node"),
    (
        "oversubscribe",
        "Allow more ranks than cores, or than slots of a host",
    ),
    ("env", "Set a variable for the ranks, or pass one on"),
    ("wdir", "Directory the ranks start in"),
    ("label", "Put the rank in front of every output line"),
    ("output", "Write each rank's output to a file: out/%r.txt"),
    ("timeout", "End the job after this many seconds"),
    ("dry-run", "Show the plan, and start nothing"),
    ("verbose", "Show decisions and their reasons"),
];

const EXAMPLES: &str = "\
Examples:
  wireup run -n 4 ./app input.dat
  wireup run -n 1 ./master : -n 3 -x DEBUG=1 ./worker
  wireup run --hosts n1:2,n2:2 ./app

All options: wireup run --help, or wireup man run; of one topic: wireup run --help binding";

const TEMPLATE: &str = "\
{about}

{usage-heading} {usage}

Options:
{options}{after-help}";

/// Returns the command of `wireup run` with the help of one screen.
pub(super) fn brief(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let name = arg.get_long().map(str::to_owned);
            let shown = SHOWN
                .iter()
                .find(|(long, _)| name.as_deref() == Some(*long));
            match shown {
                Some((_, help)) => {
                    let takes_value = arg.get_action().takes_values();
                    arg.help(*help)
                        .help_heading(None)
                        .hide_default_value(takes_value)
                        .hide_possible_values(takes_value)
                }
                None if arg.is_positional() => arg,
                None => arg.hide(true),
            }
        })
        .help_template(TEMPLATE)
        .after_help(EXAMPLES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::option_scan::OptionTable;
    use super::super::run_args::RunArgs;
    use super::*;

    #[test]
    fn short_help_fits_on_screen_and_shows_existing_options() {
        let own = OptionTable::from_parser::<RunArgs>();
        for (name, _) in SHOWN {
            assert!(own.long(name).is_some(), "{name}");
        }
        let text = brief(RunArgs::command()).render_help().to_string();
        assert!(text.lines().count() <= 25, "{text}");
        assert!(text.lines().all(|line| line.len() <= 96), "{text}");
        for (name, _) in SHOWN {
            assert!(text.contains(&format!("--{name}")), "{name}: {text}");
        }
    }
}
