//! `wireup config show`: every default of `wireup run`, and where it comes from.

use std::ffi::OsStr;
use std::fmt::Write;

use clap::{Arg, ArgAction, Args, Subcommand};

use super::location::FileLocation;
use super::{Defaults, file_options, read, variable_of};
use crate::cli::negation::{PREFIX, opposite};
use crate::cli::option_scan::OptionTable;
use crate::cli::print;
use crate::cli::run_args::RunArgs;
use wireup_core::failure::CommandError;

const EXAMPLES: &str = "\
Examples:
  wireup config show
  mkdir -p ~/.config && wireup config show > ~/.config/wireup.toml.new    a file to start from:
                                             edit it, and move it to ~/.config/wireup.toml";

const FORMAT: &str = "\
A defaults file is TOML. Its keys are the long names of the options of `wireup run`:

  [run]
  label = true
  timeout = 3600
  pmi = \"pmix\"
  env = [\"OMP_NUM_THREADS=2\", \"SLURM_*\"]

The command line overrides the environment, which overrides the user's file, which overrides the
site's file. Lists are joined. --no-NAME on the command line takes a default back, and --no-config
does without files. Options of a single job (ranks, wdir) have no place in a file.";

const FILES: &str = "\
Files:
  ~/.config/wireup.toml  the user's defaults, or $XDG_CONFIG_HOME/wireup.toml
  /etc/wireup.toml       the site's defaults, or the file that $WIREUP_SITE_CONFIG names";

/// Source of a default that neither a file nor a variable gives.
const BUILT_IN: &str = "built in";

/// Arguments of `wireup config`.
#[derive(Debug, Args)]
#[command(long_about = format!("Show the defaults of `wireup run`\n\n{FORMAT}"))]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{FILES}"))]
#[command(arg_required_else_help = true)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigSubcommand,
}

#[derive(Debug, Subcommand)]
enum ConfigSubcommand {
    /// Print each default as a line of a defaults file, with where it comes from
    #[command(after_help = "Examples:\n  wireup config show")]
    #[command(after_long_help = format!("Examples:\n  wireup config show\n\n{FILES}"))]
    Show,
}

/// Prints the requested part.
pub(crate) fn execute(args: ConfigArgs) -> Result<u8, CommandError> {
    let ConfigSubcommand::Show = args.command;
    let own = OptionTable::from_parser::<RunArgs>();
    let defaults = read(&own).map_err(CommandError::request)?;
    if let Some(line) = defaults.blame() {
        return Err(CommandError::request(line));
    }
    print(table(&own, &defaults).as_bytes())
}

/// The table, itself a defaults file.
fn table(own: &OptionTable, defaults: &Defaults) -> String {
    let mut text = String::new();
    for (whose, place) in [
        ("site", FileLocation::site()),
        ("user", FileLocation::user()),
    ] {
        let state = match &place {
            Some(place) if defaults.files.iter().any(|file| file.path == place.path) => "read",
            Some(_) => "not there",
            None => "none",
        };
        let path = place.map(|place| place.path.display().to_string());
        let _ = writeln!(text, "# {whose}: {} ({state})", path.unwrap_or_default());
    }
    text.push_str("\n[run]\n");
    for arg in file_options(own) {
        let key = arg.get_long().expect("has a long name");
        // An old spelling.
        if arg.is_hide_set() && !defaults.entries().any(|(_, entry)| entry.key == key) {
            continue;
        }
        // Stands under the name of its opposite.
        if key.starts_with(PREFIX) && own.long(&opposite(key)).is_some() {
            continue;
        }
        let (value, from) = effective(own, arg, key, defaults);
        let line = match value {
            // Left out of a file that is made of this: a built-in default is not to hide the site's.
            Some(value) if from == BUILT_IN => format!("# {key} = {value}"),
            Some(value) => format!("{key} = {value}"),
            None => format!("# {key}"),
        };
        let _ = writeln!(text, "{line:<40}  # {from}");
    }
    text
}

/// An option's default in TOML, if it has any, and where it comes from.
fn effective(
    table: &OptionTable,
    arg: &Arg,
    key: &str,
    defaults: &Defaults,
) -> (Option<String>, String) {
    if let Some((name, value)) = variable_of(key) {
        return (Some(quoted(&value)), format!("${name}"));
    }
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let entries = || defaults.entries().filter(|(_, entry)| entry.key == key);
    let Some((last, entry)) = entries().last() else {
        return built_in(table, arg, key);
    };
    let mut from = last.path.display().to_string();
    let value = if is_list {
        let mut files: Vec<String> = entries()
            .map(|(f, _)| f.path.display().to_string())
            .collect();
        files.dedup();
        from = files.join(" and ");
        list(entries().flat_map(|(_, entry)| entry.shown.iter().cloned()))
    } else {
        entry.shown.first().cloned().unwrap_or_default()
    };
    (Some(value), from)
}

fn built_in(own: &OptionTable, arg: &Arg, key: &str) -> (Option<String>, String) {
    let text = match arg.get_action() {
        // Neither of two opposite switches is given: not the same as false.
        _ if own.long(&opposite(key)).is_some() => None,
        ArgAction::SetTrue => Some("false".to_owned()),
        ArgAction::SetFalse => Some("true".to_owned()),
        ArgAction::Count => Some("0".to_owned()),
        ArgAction::Append => Some(list(std::iter::empty())),
        _ => arg
            .get_default_values()
            .first()
            .map(|value| toml_value(value)),
    };
    let from = if text.is_some() { BUILT_IN } else { "not set" };
    (text, from.into())
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// A whole number, or a string.
pub(super) fn toml_value(value: &OsStr) -> String {
    match value.to_str().map(str::parse::<i64>) {
        Some(Ok(number)) => number.to_string(),
        _ => quoted(value),
    }
}

/// A basic string of TOML.
pub(super) fn quoted(value: &OsStr) -> String {
    let mut text = String::from("\"");
    for letter in value.to_string_lossy().chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(text, "\\u{:04X}", u32::from(letter));
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
    text
}
