//! Errors in lines of wireup whose first word is no command, most often because `run` was forgotten.

use std::env;
use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::option_scan::OptionTable;
use super::run_args::RunArgs;
use super::tree;
use crate::inspect::program::{Program, ProgramError, is_assignment, run_line};
use wireup_agent_args::usage_errors::{is_near, one_line};
use wireup_core::shell_words::quoted;

/// Commands by the names that other programs have for them.
const SYNONYMS: &[(&[&str], &str)] = &[
    (&["list", "ls", "jobs", "status", "top", "squeue"], "ps"),
    (&["stop", "cancel", "scancel", "end", "signal"], "kill"),
    (
        &[
            "exec", "launch", "start", "mpirun", "mpiexec", "srun", "submit",
        ],
        "run",
    ),
    (&["version"], "--version"),
];

/// The error in one line, with the command that was probably meant.
pub(super) fn advice(error: &clap::Error, words: &[OsString]) -> String {
    let Some(first) = words.first().map(OsString::as_os_str) else {
        return one_line(error);
    };
    let word = first.to_string_lossy();
    let suggested = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().any(|name| is_near(&word, name)),
        _ => false,
    };
    let tree = tree();
    // The wrong word comes later: clap knows what the command has.
    if tree.find_subcommand(&*word).is_some() {
        return one_line(error);
    }
    // Names of the command in other programs.
    let known = SYNONYMS.iter().find(|(others, _)| others.contains(&&*word));
    // Clap does not see that two letters changed places.
    let near = tree.get_subcommands().map(Command::get_name);
    let near = near.filter(|name| strsim::osa_distance(name, &word) <= 1);
    let meant = known.map(|(_, ours)| *ours).or_else(|| near.last());
    if let (ErrorKind::InvalidSubcommand, Some(meant)) = (error.kind(), meant) {
        return format!("unknown command {word:?}; did you mean: wireup {meant}");
    }
    let blamed = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand if is_assignment(first) => format!(
            "unknown command {word:?}; to run a program with this variable: {}",
            run_line(&without_run(words), None)
        ),
        ErrorKind::InvalidSubcommand if let Some(advice) = source_advice(first) => {
            format!("unknown command {word:?}; to run this source: {advice}")
        }
        ErrorKind::InvalidSubcommand if !suggested && first != "help" => format!(
            "unknown command {word:?}; to run a program: wireup run {}",
            quoted(first)
        ),
        // Clap names the first letter only of what it takes for a cluster.
        ErrorKind::UnknownArgument if !blamed.is_empty() && word.starts_with(blamed) => {
            let known = if OptionTable::from_parser::<RunArgs>().knows(first) {
                "is an option of a command"
            } else {
                "is not an option of wireup"
            };
            format!(
                "{word} {known}; to run a program: wireup run {} ...",
                quoted(first)
            )
        }
        _ => one_line(error),
    }
}

/// Words as behind `wireup run`, of a line with variables in front of `run`.
fn without_run(words: &[OsString]) -> Vec<OsString> {
    let command = words.iter().position(|word| !is_assignment(word));
    let mut words = words.to_vec();
    if let Some(at) = command.filter(|at| words[*at] == "run") {
        words.remove(at);
    }
    words
}

/// The advice for a source that the system cannot execute.
fn source_advice(name: &OsStr) -> Option<String> {
    let cwd = env::current_dir().ok()?;
    let path = env::var_os("PATH");
    match Program::find(name, path.as_deref(), &cwd) {
        Err(ProgramError::Source { name, way, .. }) => Some(way.advice(&name, None).to_string()),
        _ => None,
    }
}
