//! Detects the process-management interface that a program needs, from the libraries it would load,
//! or what a static one has inside, without running it, also behind wrappers such as `numactl`.
//! What a shell starts is unknown.
//!
//! Not seen: an MPI that is linked statically into a dynamic program, or opened by it with dlopen.
//! Such a program is [`Wants::Plain`], which is right for MPICH's family and wrong for Open MPI:
//! its user has to choose the interface.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::inspect::ldso::{Loader, System};
use crate::inspect::program::{Kind, Program};

pub(crate) mod agent_file;
pub(crate) mod build_id;
mod constants;
pub(crate) mod core_file;
mod detected;
pub mod elf;
pub(crate) mod group_clients;
pub mod ldso;
pub mod libpmix;
mod libraries;
mod library_names;
pub mod program;
pub mod relocated;
pub mod sidecar_files;
pub(crate) mod symbols;
mod wrapper;

pub use detected::{Clients, Detected, Family, FoundLibrary, Opaque, Wants, Why};

use wrapper::{Behind, ExecContext, WrappedCommand};

/// Wrappers looked behind, one behind the other.
const DEPTH: u8 = 12;

/// The findings, and the dynamic loader for the program.
#[derive(Debug)]
pub struct Inspection {
    pub detected: Detected,
    /// The dynamic loader of the program's environment, which a wrapper may have changed.
    pub loader: Loader,
}

/// The owner of a library, by its file name; `None` for an irrelevant one.
pub fn family_of(name: &OsStr) -> Option<Family> {
    if library_names::matches(name, library_names::OPEN_MPI) {
        Some(Family::OpenMpi)
    } else if library_names::matches(name, library_names::MPICH) {
        Some(Family::Mpich)
    } else if library_names::matches(name, &["libpmix.so"]) {
        Some(Family::Pmix)
    } else if library_names::matches(name, library_names::PMI) {
        Some(Family::Pmi)
    } else {
        None
    }
}

/// Looks at a program that was found, and behind it if it is a wrapper. `argv` is its command line,
/// name included; `env` and `cwd` (absolute) are those of the program.
pub fn inspect(
    program: &Program,
    argv: &[OsString],
    env: &[(OsString, OsString)],
    cwd: &Path,
    system: &System,
) -> Inspection {
    let call = Call { argv, env, cwd };
    Look { system }.at(program, call, 0)
}

/// A command line with its environment and directory.
#[derive(Clone, Copy)]
struct Call<'a> {
    argv: &'a [OsString],
    env: &'a [(OsString, OsString)],
    cwd: &'a Path,
}

impl<'a> From<&'a WrappedCommand> for Call<'a> {
    fn from(command: &'a WrappedCommand) -> Self {
        Self {
            argv: &command.argv,
            env: &command.place.env,
            cwd: &command.place.cwd,
        }
    }
}

struct Look<'a> {
    system: &'a System,
}

impl Look<'_> {
    fn at(&self, program: &Program, call: Call<'_>, depth: u8) -> Inspection {
        let path = program.path();
        let names = library_names::of(path);
        let wrapper = wrapper::known(&names);
        let loader = Loader::new(call.env, call.cwd, self.system.clone());
        let native = match program.kind() {
            // A library preloaded into a wrapper counts for its program, if the wrapper keeps the
            // variable.
            Kind::Elf(elf) if wrapper.is_some() => {
                Some(libraries::look(path, elf, &loader.without_preload()))
            }
            Kind::Elf(elf) => Some(libraries::look(path, elf, &loader)),
            _ => None,
        };
        if let Some(detected) = native
            .as_ref()
            .filter(|detected| matches!(detected.why, Why::Library(..)))
        {
            let detected = detected.clone();
            return Inspection { detected, loader };
        }
        // A wrapper may be a script itself: Debian's valgrind is.
        if let Some(wrapper) = wrapper {
            return self.behind(&wrapper, program, call, loader, depth);
        }
        let unknown = |why| Detected::new(Wants::Unknown, path, why);
        let detected = match program.kind() {
            Kind::Elf(elf) => {
                let mut names = names
                    .iter()
                    .filter(|name| library_names::is_interpreter(name));
                match (names.next(), native) {
                    // Only now: this reads the whole file.
                    (None, Some(_)) if elf.is_static() => constants::look(path),
                    (None, Some(detected)) => detected,
                    (name, _) => {
                        let name = name.cloned().unwrap_or_default();
                        unknown(Why::Opaque(Opaque::Interpreter(name)))
                    }
                }
            }
            Kind::Script {
                interpreter,
                argument,
            } => {
                let before = argument.iter().cloned();
                if let Some(seen) = self.interpreter(program, interpreter, before, call, depth) {
                    return seen;
                }
                unknown(Why::Script {
                    interpreter: interpreter.clone(),
                })
            }
            Kind::Text => unknown(Why::ShellScript),
            Kind::Registered { handler } => unknown(Why::Registered {
                handler: handler.clone(),
            }),
            Kind::Unreadable => unknown(Why::Unreadable),
            Kind::Elsewhere => unknown(Why::NotHere),
        };
        Inspection { detected, loader }
    }

    /// The findings for a script's interpreter, if it is an MPI program itself.
    fn interpreter(
        &self,
        script: &Program,
        interpreter: &Path,
        before: impl Iterator<Item = OsString>,
        call: Call<'_>,
        depth: u8,
    ) -> Option<Inspection> {
        if depth == DEPTH {
            return None;
        }
        let program = Program::find(interpreter.as_os_str(), None, call.cwd).ok()?;
        let argv: Vec<OsString> = std::iter::once(interpreter.as_os_str().to_owned())
            .chain(before)
            .chain([script.path().as_os_str().to_owned()])
            .chain(call.argv.iter().skip(1).cloned())
            .collect();
        let call = Call {
            argv: &argv,
            ..call
        };
        let mut seen = self.at(&program, call, depth + 1);
        let name = script.path().file_name()?.to_string_lossy().into_owned();
        seen.detected.behind.insert(0, name);
        matches!(seen.detected.wants, Wants::Pmix | Wants::Pmi).then_some(seen)
    }

    /// What a wrapper starts.
    fn behind(
        &self,
        wrapper: &wrapper::Known,
        program: &Program,
        call: Call<'_>,
        loader: Loader,
        depth: u8,
    ) -> Inspection {
        let only = |wants, why| Detected::new(wants, program.path(), why);
        let command = WrappedCommand {
            argv: call.argv.to_vec(),
            place: ExecContext {
                env: call.env.to_vec(),
                cwd: call.cwd.to_owned(),
            },
        };
        let command = match wrapper.behind(&command) {
            Behind::Nothing => {
                let detected = only(Wants::Plain, Why::StartsNothing);
                return Inspection { detected, loader };
            }
            Behind::Opaque(what) => {
                let detected = only(Wants::Unknown, Why::Opaque(what));
                return Inspection { detected, loader };
            }
            Behind::Command(command) => command,
        };
        let mut seen = if depth == DEPTH {
            let detected = only(Wants::Unknown, Why::Opaque(Opaque::TooDeep));
            Inspection { detected, loader }
        } else {
            self.command(wrapper, program, &command, depth)
        };
        seen.detected.behind.insert(0, wrapper.name().to_owned());
        seen
    }

    /// The command that a wrapper starts.
    fn command(
        &self,
        wrapper: &wrapper::Known,
        by: &Program,
        command: &WrappedCommand,
        depth: u8,
    ) -> Inspection {
        let WrappedCommand { argv, place, .. } = command;
        let search = place.variable("PATH").map(OsString::as_os_str);
        match Program::find(&argv[0], search, &place.cwd) {
            Ok(program) => self.at(&program, command.into(), depth + 1),
            Err(_) => Inspection {
                detected: Detected::new(
                    Wants::Unknown,
                    by.path(),
                    Why::NotFound {
                        by: wrapper.name().to_owned(),
                        name: argv[0].clone(),
                    },
                ),
                loader: Loader::new(&place.env, &place.cwd, self.system.clone()),
            },
        }
    }
}

#[cfg(test)]
mod tests;
