//! Detects the process-management interface that a program needs, without running it: from the libraries
//! that it would load, or from the constants of a static program, also behind wrappers such as `numactl`.
//! The programs that a shell starts are unknown.
//!
//! Not detected: an MPI that is linked statically into a dynamic program, or that the program opens with dlopen.
//! Such a program is [`DetectedInterface::Plain`], which is right for MPICH's family and wrong for Open MPI:
//! the user has to choose the interface.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::inspect::ldso::{Loader, LoaderFiles};
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
pub(crate) mod mpi4py;
pub(crate) mod mpi_files;
pub mod program;
pub mod relocated;
pub mod sidecar_files;
pub(crate) mod symbols;
mod wrapper;

pub use detected::{
    DetectedInterface, DetectionReason, DetectionResult, FoundLibrary, LibraryFamily, OpaqueReason,
    StaticClients,
};

pub(crate) use libraries::mpi_libraries;
pub use library_names::family_of;

use wrapper::{ExecContext, WrappedCommand};

/// Maximum number of wrappers, one behind the other, that are inspected.
const DEPTH: u8 = 12;

/// Result of inspecting a program, and the dynamic loader for the program.
#[derive(Debug)]
pub struct ProgramInspection {
    pub detected: DetectionResult,
    /// The dynamic loader of the program's environment, which a wrapper may have changed.
    pub loader: Loader,
}

/// Returns the paths of the entries of a directory, sorted; none if it cannot be read.
pub(crate) fn sorted_entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Inspects a program that was found, and the one behind it if it is a wrapper. `argv` is its command line,
/// name included; `env` and `cwd` (absolute) are those of the program.
pub fn inspect(
    program: &Program,
    argv: &[OsString],
    env: &[(OsString, OsString)],
    cwd: &Path,
    system: &LoaderFiles,
) -> ProgramInspection {
    let place = &ExecContext {
        env: env.to_vec(),
        cwd: cwd.to_owned(),
    };
    let call = CommandContext { argv, place };
    ProgramInspector { system }.at(program, call, 0)
}

/// A command line with its environment and directory.
#[derive(Clone, Copy)]
struct CommandContext<'a> {
    argv: &'a [OsString],
    place: &'a ExecContext,
}

struct ProgramInspector<'a> {
    system: &'a LoaderFiles,
}

impl ProgramInspector<'_> {
    fn at(&self, program: &Program, call: CommandContext<'_>, depth: u8) -> ProgramInspection {
        let path = program.path();
        let names = library_names::program_names(path);
        let wrapper = wrapper::find_wrapper(&names);
        let loader = Loader::new(&call.place.env, &call.place.cwd, self.system.clone());
        let native = match program.kind() {
            // A library preloaded into a wrapper counts for its program, if the wrapper keeps the
            // variable.
            Kind::Elf(elf) if wrapper.is_some() => Some(libraries::inspect_libraries(
                path,
                elf,
                &loader.without_preload(),
            )),
            Kind::Elf(elf) => Some(libraries::inspect_libraries(path, elf, &loader)),
            _ => None,
        };
        if let Some(detected) = native
            .as_ref()
            .filter(|detected| matches!(detected.why, DetectionReason::Library(..)))
        {
            let detected = detected.clone();
            return ProgramInspection { detected, loader };
        }
        // A wrapper may be a script itself: Debian's valgrind is.
        if let Some(wrapper) = wrapper {
            return self.inspect_wrapped(&wrapper, program, call, loader, depth);
        }
        let unknown = |why| DetectionResult::new(DetectedInterface::Unknown, path, why);
        let detected = match program.kind() {
            Kind::Elf(elf) => {
                let mut names = names
                    .iter()
                    .filter(|name| library_names::is_interpreter(name));
                match (names.next(), native) {
                    // Last, since this reads the whole file.
                    (None, Some(_)) if elf.is_static() => constants::inspect_static(path),
                    (None, Some(detected)) => detected,
                    (name, _) => {
                        let name = name.cloned().unwrap_or_default();
                        let mpi4py = mpi4py::inspect_mpi4py(path, &name, call, &loader);
                        mpi4py.unwrap_or_else(|| {
                            unknown(DetectionReason::Opaque(OpaqueReason::Interpreter(name)))
                        })
                    }
                }
            }
            Kind::Script {
                interpreter,
                argument,
            } => {
                let before = argument.iter().cloned();
                if let Some(inspection) =
                    self.interpreter(program, interpreter, before, call, depth)
                {
                    return inspection;
                }
                unknown(DetectionReason::Script {
                    interpreter: interpreter.clone(),
                })
            }
            Kind::Text => unknown(DetectionReason::ShellScript),
            Kind::Registered { handler } => unknown(DetectionReason::Registered {
                handler: handler.clone(),
            }),
            Kind::Unreadable => unknown(DetectionReason::Unreadable),
            Kind::Elsewhere => unknown(DetectionReason::NotHere),
        };
        ProgramInspection { detected, loader }
    }

    /// Returns the result for a script's interpreter, if that is an MPI program itself.
    fn interpreter(
        &self,
        script: &Program,
        interpreter: &Path,
        before: impl Iterator<Item = OsString>,
        call: CommandContext<'_>,
        depth: u8,
    ) -> Option<ProgramInspection> {
        if depth == DEPTH {
            return None;
        }
        let program = Program::find(interpreter.as_os_str(), None, &call.place.cwd).ok()?;
        let argv: Vec<OsString> = std::iter::once(interpreter.as_os_str().to_owned())
            .chain(before)
            .chain([script.path().as_os_str().to_owned()])
            .chain(call.argv.iter().skip(1).cloned())
            .collect();
        let call = CommandContext {
            argv: &argv,
            ..call
        };
        let mut inspection = self.at(&program, call, depth + 1);
        let name = script.path().file_name()?.to_string_lossy().into_owned();
        let detected = &mut inspection.detected;
        detected.behind.insert(0, name);
        let is_mpi = matches!(
            detected.wants,
            DetectedInterface::Pmix | DetectedInterface::Pmi
        );
        is_mpi.then_some(inspection)
    }

    /// Inspects the command that a wrapper starts, if it starts one.
    fn inspect_wrapped(
        &self,
        wrapper: &wrapper::KnownWrapper,
        program: &Program,
        call: CommandContext<'_>,
        loader: Loader,
        depth: u8,
    ) -> ProgramInspection {
        let command = match wrapper.parse_target(call.argv, call.place) {
            Ok(command) => command,
            Err(why) => {
                let wants = match why {
                    DetectionReason::StartsNothing => DetectedInterface::Plain,
                    _ => DetectedInterface::Unknown,
                };
                let detected = DetectionResult::new(wants, program.path(), why);
                return ProgramInspection { detected, loader };
            }
        };
        let mut inspection = if depth == DEPTH {
            let why = DetectionReason::Opaque(OpaqueReason::TooDeep);
            let detected = DetectionResult::new(DetectedInterface::Unknown, program.path(), why);
            ProgramInspection { detected, loader }
        } else {
            self.command(wrapper, program, &command, depth)
        };
        let behind = &mut inspection.detected.behind;
        behind.insert(0, wrapper.name().to_owned());
        inspection
    }

    /// Finds and inspects the command that a wrapper starts.
    fn command(
        &self,
        wrapper: &wrapper::KnownWrapper,
        caller: &Program,
        command: &WrappedCommand,
        depth: u8,
    ) -> ProgramInspection {
        let WrappedCommand { argv, place } = command;
        let search = place.variable("PATH").map(OsString::as_os_str);
        match Program::find(&argv[0], search, &place.cwd) {
            Ok(program) => self.at(&program, CommandContext { argv, place }, depth + 1),
            Err(_) => {
                let why = DetectionReason::NotFound {
                    wrapper: wrapper.name().to_owned(),
                    name: argv[0].clone(),
                };
                let wants = DetectedInterface::Unknown;
                let detected = DetectionResult::new(wants, caller.path(), why);
                let loader = Loader::new(&place.env, &place.cwd, self.system.clone());
                ProgramInspection { detected, loader }
            }
        }
    }
}

#[cfg(test)]
mod tests;
