//! Finds the program of a wrapper from its command line, which is parsed as the wrapper does.
//!
//! A wrapper is identified by its name. An unknown element, such as an option that the table lacks,
//! makes its target [`DetectionReason::Opaque`]: then every interface is offered, which is never
//! wrong, only slower to start.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use super::detected::{DetectionReason, OpaqueReason};

mod env;
mod known_wrappers;
mod wrapper_options;

use known_wrappers::{Table, Tool};
use wrapper_options::{ParsedOptions, WrapperOptionError};

/// Context in which a command is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ExecContext {
    /// Environment, each name once.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Absolute path of the working directory.
    pub(super) cwd: PathBuf,
}

impl ExecContext {
    /// Returns the value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&OsString> {
        let found = self.env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }

    /// Sets or removes a variable.
    fn set(&mut self, name: OsString, value: Option<OsString>) {
        self.env.retain(|(known, _)| *known != name);
        self.env.extend(value.map(|value| (name, value)));
    }
}

/// A command that a wrapper starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WrappedCommand {
    /// Program and arguments; never empty.
    pub(super) argv: Vec<OsString>,
    /// Context in which it is started.
    pub(super) place: ExecContext,
}

/// The command that a wrapper starts, as far as it can be determined.
type WrapperTarget = Result<WrappedCommand, WrapperOptionError>;

/// A wrapper with a known command line.
#[derive(Clone, Debug)]
pub(super) struct KnownWrapper {
    name: String,
    table: &'static Table,
}

/// Returns the wrapper that a program with these names is, if it is a known one.
pub(super) fn find_wrapper(names: &[String]) -> Option<KnownWrapper> {
    names.iter().find_map(|name| {
        let table = known_wrappers::find(name)?;
        let name = name.clone();
        Some(KnownWrapper { name, table })
    })
}

impl KnownWrapper {
    /// Returns the name by which the wrapper was recognized.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the command that the wrapper starts, from its own command line and context, or why there is none or it is
    /// unknown.
    ///
    /// # Errors
    /// [`DetectionReason::StartsNothing`] and [`DetectionReason::Opaque`]
    pub(super) fn parse_target(
        &self,
        argv: &[OsString],
        context: &ExecContext,
    ) -> Result<WrappedCommand, DetectionReason> {
        let name = || self.name().to_owned();
        let args = &argv[1..];
        let target = match self.table.tool {
            Tool::Env => env::parse_target(self.table, args, context),
            Tool::Perf => perf(args, context),
            Tool::Gdb => gdb(self.table, args, context),
            Tool::Xterm => xterm(self.table, args, context),
            Tool::Plain | Tool::Strace | Tool::Chrt => usual(self.table, args, context),
        };
        target.map_err(|error| match error {
            WrapperOptionError::Missing | WrapperOptionError::NoCommand => {
                DetectionReason::StartsNothing
            }
            WrapperOptionError::Unknown(option) => {
                DetectionReason::Opaque(OpaqueReason::Option(name(), option))
            }
            WrapperOptionError::Script => DetectionReason::Opaque(OpaqueReason::Script(name())),
        })
    }
}

/// Returns the command `argv`, started in `place`.
fn one(argv: &[OsString], place: ExecContext) -> WrapperTarget {
    if argv.is_empty() {
        return Err(WrapperOptionError::Missing);
    }
    let argv = argv.to_vec();
    Ok(WrappedCommand { argv, place })
}

/// Parses options, the wrapper's own arguments, and the command.
fn usual(table: &'static Table, args: &[OsString], context: &ExecContext) -> WrapperTarget {
    let ParsedOptions { options, rest } = wrapper_options::parse(table, args)?;
    let mut place = context.clone();
    if matches!(table.tool, Tool::Strace) {
        for (_, value) in options.iter().filter(|(name, _)| *name == "E") {
            assign(&mut place, value.as_deref().unwrap_or_default());
        }
    }
    let numeric = |word: &OsString| word.as_bytes().iter().all(u8::is_ascii_digit);
    let own = match table.tool {
        // Newer releases need no priority for the policies without one.
        Tool::Chrt => usize::from(rest.first().is_some_and(numeric)),
        _ => table.operands,
    };
    one(rest.get(own..).ok_or(WrapperOptionError::Missing)?, place)
}

/// Sets a variable for `NAME=VALUE`; removes it for `NAME`.
fn assign(place: &mut ExecContext, text: &OsStr) {
    let text = text.as_bytes();
    let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    match text.iter().position(|byte| *byte == b'=') {
        Some(at) => place.set(owned(&text[..at]), Some(owned(&text[at + 1..]))),
        None => place.set(owned(text), None),
    }
}

/// Parses `perf [GLOBAL OPTIONS] record|stat [OPTIONS] COMMAND`.
fn perf(args: &[OsString], context: &ExecContext) -> WrapperTarget {
    let ParsedOptions { rest, .. } = wrapper_options::parse(&known_wrappers::PERF, args)?;
    let (word, rest) = rest.split_first().ok_or(WrapperOptionError::Missing)?;
    let table = match word.to_str() {
        Some("record") => &known_wrappers::PERF_RECORD,
        Some("stat") => &known_wrappers::PERF_STAT,
        _ => return Err(WrapperOptionError::Unknown(word.clone())),
    };
    usual(table, rest, context)
}

/// Parses `gdb [OPTIONS] PROGRAM [CORE|PID]` or `gdb [OPTIONS] --args PROGRAM ARGS`.
fn gdb(table: &'static Table, args: &[OsString], context: &ExecContext) -> WrapperTarget {
    let mut rest = args;
    let mut named = None;
    let mut place = context.clone();
    // Options may also follow the program, unless its arguments do.
    loop {
        let parsed = wrapper_options::parse(table, rest)?;
        rest = parsed.rest;
        for (name, value) in parsed.options {
            match (name, value) {
                ("args", _) => return one(rest, place),
                ("cd", Some(dir)) => place.cwd = place.cwd.join(dir),
                ("exec" | "se", Some(file)) => named = Some(file),
                _ => {}
            }
        }
        match rest.split_first() {
            Some((word, more)) => {
                named = named.or_else(|| Some(word.clone()));
                rest = more;
            }
            None => break,
        }
    }
    match named {
        Some(program) => one(&[program], place),
        // The user names a program at the prompt.
        None => Err(WrapperOptionError::Script),
    }
}

/// Parses `xterm [OPTIONS] -e COMMAND`; a single word with blanks is for the shell.
fn xterm(table: &'static Table, args: &[OsString], context: &ExecContext) -> WrapperTarget {
    let ParsedOptions { options, rest } = wrapper_options::parse(table, args)?;
    if !options.iter().any(|(name, _)| *name == "e") {
        return Err(WrapperOptionError::Script);
    }
    match rest {
        [text] if text.as_bytes().contains(&b' ') => Err(WrapperOptionError::Script),
        _ => one(rest, context.clone()),
    }
}

#[cfg(test)]
mod tests;
