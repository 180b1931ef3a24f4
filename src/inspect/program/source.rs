//! Sources in place of programs, recognized by the endings of their names.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

use super::{Kind, ProgramError, executable};
use wireup_core::shell_words::quoted;

/// Way to run a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceUse {
    /// Compile it with this compiler.
    Compile(&'static str),
    /// Run it with this interpreter.
    Interpret(&'static str),
}

/// Ways by the endings of names.
const SOURCES: &[(&[&str], SourceUse)] = &[
    (&["c"], SourceUse::Compile("mpicc")),
    (
        &["C", "cc", "cp", "cpp", "cxx", "c++"],
        SourceUse::Compile("mpicxx"),
    ),
    (
        &[
            "f", "F", "for", "FOR", "ftn", "f77", "F77", "f90", "F90", "f95", "F95", "f03", "F03",
            "f08", "F08",
        ],
        SourceUse::Compile("mpifort"),
    ),
    (&["cu"], SourceUse::Compile("nvcc -ccbin mpicxx")),
    (&["rs"], SourceUse::Compile("rustc")),
    (&["chpl"], SourceUse::Compile("chpl")),
    (&["py"], SourceUse::Interpret("python3")),
    (&["jl"], SourceUse::Interpret("julia")),
    (&["R", "r"], SourceUse::Interpret("Rscript")),
    (&["pl"], SourceUse::Interpret("perl")),
    (&["rb"], SourceUse::Interpret("ruby")),
    (&["lua"], SourceUse::Interpret("lua")),
    (&["m"], SourceUse::Interpret("octave")),
    (&["java"], SourceUse::Interpret("java")),
    (&["js"], SourceUse::Interpret("node")),
    (&["tcl"], SourceUse::Interpret("tclsh")),
    (&["sh"], SourceUse::Interpret("sh")),
    (&["bash"], SourceUse::Interpret("bash")),
];

impl SourceUse {
    /// Returns the way for the ending of a name.
    pub(super) fn from_name(name: &OsStr) -> Option<Self> {
        let ending = Path::new(name).extension()?.to_str()?;
        let (_, way) = SOURCES.iter().find(|(known, _)| known.contains(&ending))?;
        Some(*way)
    }

    /// Whether the shell, which runs texts, cannot run the source.
    pub(super) fn needs_other_than_shell(self) -> bool {
        !matches!(self, Self::Interpret("sh" | "bash"))
    }

    /// Returns the command to use instead of the source, for this number of ranks if it is given.
    pub fn advice(self, name: &OsStr, ranks: Option<u32>) -> impl fmt::Display {
        let count = count(ranks);
        let shown = quoted(name);
        match self {
            Self::Interpret(interpreter) => format!("wireup run {count}{interpreter} {shown}"),
            Self::Compile(compiler) => {
                let output = Path::new(name).file_stem().unwrap_or(name);
                let program = Path::new(".").join(output);
                let (output, program) = (quoted(output), quoted(program.as_os_str()));
                format!("{compiler} {shown} -o {output} && wireup run {count}{program}")
            }
        }
    }
}

/// Adds the hints that the name permits to the error for a program that was not found or may not be executed.
pub(super) fn explained(error: ProgramError, name: &OsStr, cwd: &Path) -> ProgramError {
    match error {
        ProgramError::NotFound { name, searched } if is_assignment(&name) => {
            ProgramError::Assignment {
                words: vec![name.clone()],
                name,
                searched,
                ranks: None,
            }
        }
        ProgramError::NotFound { name, searched } if is_number(&name) => {
            let number = name.to_string_lossy();
            ProgramError::NotFound {
                searched: format!("for {number} ranks write -n {number}; {searched}"),
                name,
            }
        }
        ProgramError::NotFound { .. } | ProgramError::NotExecutable { .. } => {
            let is_there = matches!(
                executable(&cwd.join(name)),
                Err(ProgramError::NotExecutable { .. })
            );
            match SourceUse::from_name(name).filter(|_| is_there) {
                Some(way) => source(name, way),
                None => error,
            }
        }
        other => other,
    }
}

/// Refuses a text that is written in another language than the shell's.
pub(super) fn check(name: &OsStr, kind: &Kind) -> Result<(), ProgramError> {
    let way = SourceUse::from_name(name).filter(|way| way.needs_other_than_shell());
    match (kind, way) {
        (Kind::Text, Some(way)) => Err(source(name, way)),
        _ => Ok(()),
    }
}

fn source(name: &OsStr, way: SourceUse) -> ProgramError {
    ProgramError::Source {
        name: name.to_owned(),
        way,
        ranks: None,
    }
}

/// Whether a word is `NAME=VALUE`, as in front of a command of the shell.
pub fn is_assignment(word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    let name = word.split_once('=').map_or("", |(name, _)| name);
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    name.starts_with(|char: char| !char.is_ascii_digit()) && name.chars().all(is_part)
}

/// Whether a word is a number of ranks without its option.
fn is_number(word: &OsStr) -> bool {
    let number = word.to_str().and_then(|word| word.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}

/// Returns the line of `wireup run` for words as a shell takes them: variables in front of a program.
pub fn run_line(words: &[OsString], ranks: Option<u32>) -> String {
    let assigned = words.iter().take_while(|word| is_assignment(word)).count();
    let (variables, command) = words.split_at(assigned);
    let variables = variables.iter().map(|word| format!("-x {} ", quoted(word)));
    let variables: String = variables.collect();
    let shown = match command {
        [] => "PROGRAM".to_owned(),
        // Options are between the variables and the program.
        [first, ..] if first.as_encoded_bytes().starts_with(b"-") => {
            let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
            words.join(" ")
        }
        [program, ..] => quoted(program),
    };
    format!("wireup run {}{variables}{shown}", count(ranks))
}

/// Returns the option for a number of ranks.
fn count(ranks: Option<u32>) -> String {
    ranks.map_or_else(String::new, |ranks| format!("-n {ranks} "))
}
