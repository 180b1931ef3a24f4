//! What a shell does itself, and the variables it has without being told.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::super::Command;
use super::super::lexer::{Unfollowed, is_name_byte};
use super::{Shell, Value};

/// A command that the shell carries out itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Builtin {
    /// Starts nothing and changes nothing that matters here.
    Harmless,
    /// Changes the directory.
    Directory,
    /// Sets variables for what is started.
    Export,
    /// Removes variables.
    Unset,
    /// Sets variables to something that is not known.
    Input,
    /// Its arguments are the command.
    Exec,
    /// May replace the shell's own arguments.
    Set,
    /// May do anything.
    Anything,
}

pub(super) fn find(name: &OsStr) -> Option<Builtin> {
    Some(match name.as_bytes() {
        b":" | b"true" | b"false" | b"echo" | b"test" | b"[" | b"pwd" | b"ulimit" | b"umask"
        | b"wait" | b"exit" | b"return" | b"break" | b"continue" | b"kill" | b"jobs" | b"fg"
        | b"bg" | b"times" | b"trap" | b"type" | b"hash" | b"alias" | b"unalias" | b"disown"
        | b"shopt" | b"enable" | b"let" => Builtin::Harmless,
        b"cd" => Builtin::Directory,
        b"export" => Builtin::Export,
        b"unset" => Builtin::Unset,
        b"read" | b"getopts" | b"printf" | b"mapfile" | b"readarray" | b"local" | b"declare"
        | b"typeset" | b"readonly" => Builtin::Input,
        b"exec" | b"command" => Builtin::Exec,
        b"set" => Builtin::Set,
        b"eval" | b"." | b"source" | b"builtin" | b"shift" | b"pushd" | b"popd" => {
            Builtin::Anything
        }
        _ => return None,
    })
}

/// Variables that decide which file a program or library is.
pub(super) fn is_search_path(name: &[u8]) -> bool {
    matches!(name, b"PATH" | b"LD_LIBRARY_PATH" | b"LD_PRELOAD")
}

/// The value of a variable that nobody has set.
pub(super) fn special(name: &[u8]) -> Value {
    const NUMBERS: &[&[u8]] = &[
        b"WIREUP_RANK",
        b"WIREUP_LOCAL_RANK",
        b"WIREUP_SIZE",
        b"WIREUP_NODE",
        b"PMI_RANK",
        b"PMI_SIZE",
        b"PMI_FD",
        b"PMIX_RANK",
        b"MPI_LOCALRANKID",
        b"MPI_LOCALNRANKS",
        b"RANDOM",
        b"SECONDS",
        b"LINENO",
        b"UID",
        b"EUID",
        b"PPID",
    ];
    // Known when the ranks run, or to the shell alone.
    const UNKNOWN: &[&[u8]] = &[
        b"WIREUP_",
        b"PMI_",
        b"PMIX_",
        b"MPI_",
        b"OMPI_",
        b"BASH",
        b"HOST",
        b"MACHTYPE",
        b"OSTYPE",
        b"PWD",
        b"OLDPWD",
        b"IFS",
        b"PS",
        b"OPT",
        b"REPLY",
        b"SHLVL",
        b"GROUPS",
        b"DIRSTACK",
        b"EPOCH",
        b"_",
    ];
    if NUMBERS.contains(&name) {
        Value::Number
    } else if UNKNOWN.iter().any(|start| name.starts_with(start)) {
        Value::Unknown
    } else {
        Value::Known(Vec::new())
    }
}

impl Shell {
    pub(super) fn builtin(
        &mut self,
        builtin: Builtin,
        argv: &[OsString],
        cut: bool,
    ) -> Result<(), Unfollowed> {
        let args = &argv[1..];
        match builtin {
            Builtin::Harmless => Ok(()),
            Builtin::Anything => Err("a command that can do anything (eval, source, shift, …)"),
            Builtin::Directory => self.change_directory(args, cut),
            // The command may be anything that the shell finds at that time.
            Builtin::Exec => self.exec(argv, cut),
            Builtin::Set => {
                let option =
                    |arg: &OsString| arg.len() > 1 && matches!(arg.as_bytes()[0], b'-' | b'+');
                let first = args.iter().position(|arg| !option(arg));
                let names = args.iter().any(|arg| arg == "--");
                // `set -o NAME` has a word too.
                let named =
                    first.is_none_or(|at| at > 0 && args[at - 1].as_bytes().ends_with(b"o"));
                match !cut && !names && named {
                    true => Ok(()),
                    false => Err("set with arguments"),
                }
            }
            Builtin::Export => {
                for arg in args.iter().filter(|arg| !arg.as_bytes().starts_with(b"-")) {
                    self.export(arg.as_bytes())?;
                }
                // What follows would be exported with a value that is not known.
                match cut {
                    true => Err("a variable that is computed"),
                    false => Ok(()),
                }
            }
            Builtin::Unset => {
                for arg in args {
                    self.place.set(arg.clone(), None);
                    self.variables
                        .insert(arg.as_bytes().to_vec(), Some(Vec::new()));
                }
                match cut || self.depth > 0 {
                    true => Err("a variable that is computed"),
                    false => Ok(()),
                }
            }
            Builtin::Input => {
                for arg in args {
                    let bytes = arg.as_bytes();
                    let end = bytes.iter().position(|byte| !is_name_byte(*byte));
                    let name = &bytes[..end.unwrap_or(bytes.len())];
                    if is_search_path(name) {
                        return Err("a search path that is computed");
                    }
                    self.forget(name);
                }
                match cut {
                    // `printf` of something unknown changes nothing; the others might.
                    true if argv[0] != "printf" => Err("a variable that is computed"),
                    _ => Ok(()),
                }
            }
        }
    }

    fn change_directory(&mut self, args: &[OsString], cut: bool) -> Result<(), Unfollowed> {
        let home = self.place.variable("HOME").cloned();
        let target = match args {
            [] if !cut => home,
            [one] if !cut && !one.as_bytes().starts_with(b"-") => Some(one.clone()),
            _ => None,
        };
        match target {
            Some(target) if self.depth == 0 => {
                self.place.cwd = self.place.cwd.join(target);
                Ok(())
            }
            _ => Err("a directory that is not known"),
        }
    }

    fn exec(&mut self, argv: &[OsString], cut: bool) -> Result<(), Unfollowed> {
        let mut rest = &argv[1..];
        while let Some((word, more)) = rest.split_first() {
            rest = match word.as_bytes() {
                b"--" => {
                    rest = more;
                    break;
                }
                b"-v" | b"-V" => return Ok(()),
                b"-p" | b"-c" | b"-l" | b"-cl" => more,
                b"-a" => more.get(1..).unwrap_or_default(),
                _ => break,
            };
        }
        match rest.split_first() {
            None if cut => Err("a command whose name is not known"),
            // Redirections for the rest of the text.
            None => Ok(()),
            Some((name, _)) => match find(name).filter(|_| argv[0] == "command") {
                Some(builtin) => self.builtin(builtin, rest, cut),
                None => {
                    let place = self.place.clone();
                    let argv = rest.to_vec();
                    self.found.push(Command { argv, cut, place });
                    Ok(())
                }
            },
        }
    }

    /// `NAME=VALUE` or `NAME`, as expanded.
    fn export(&mut self, text: &[u8]) -> Result<(), Unfollowed> {
        let (name, value) = match text.iter().position(|byte| *byte == b'=') {
            Some(at) => (&text[..at], Some(text[at + 1..].to_vec())),
            None => match self.variables.get(text) {
                // Exported already, or not set.
                None => return Ok(()),
                Some(value) => (text, value.clone()),
            },
        };
        if self.depth > 0 || value.is_none() {
            if is_search_path(name) {
                return Err("a search path that is computed");
            }
            self.place.set(OsString::from_vec(name.to_vec()), None);
            self.forget(name);
            return Ok(());
        }
        self.variables.remove(name);
        self.place.set(
            OsString::from_vec(name.to_vec()),
            value.map(OsString::from_vec),
        );
        Ok(())
    }
}
