//! Finds the program of an application as execvp does, once per application and before any rank is started, so
//! that a mistake is one clear message and not an error of every rank.
//!
//! Rule: a name with a slash is taken as it is, relative to the working directory; any other is
//! searched in PATH, where an entry that may not be executed is skipped and remembered, and a
//! directory that may not be entered is skipped as in a shell, unlike execvp. A text
//! without `#!` runs in `/bin/sh`. Source: execvp(3), execve(2).

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use crate::inspect::elf::{self, Elf, ElfError};
use wireup_sys::access;

mod binfmt;
mod program_error;
mod source;

pub use program_error::ProgramError;
use program_error::not_found;
pub use source::{SourceUse, is_assignment, run_line};

/// The search path when PATH is unset. Source: `confstr(_CS_PATH)`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Number of bytes by which the kernel recognizes a file. Source: `BINPRM_BUF_SIZE`.
const HEAD: usize = 256;
/// Maximum number of interpreters that are scripts themselves, one behind the other. Source: execve(2).
const SCRIPT_DEPTH: u8 = 4;
const SHELL: &str = "/bin/sh";
/// Maximum length of a search path that is shown completely.
const PATH_SHOWN_MAX: usize = 200;

/// Form in which the kernel runs a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A native program, with its headers.
    Elf(Elf),
    /// A text that starts with `#!`.
    Script {
        /// Program named on the first line, as written.
        interpreter: PathBuf,
        /// Rest of that line: one argument, blanks included.
        argument: Option<OsString>,
    },
    /// A text without `#!`, run by the shell.
    Text,
    /// A format that is registered with the kernel (binfmt_misc).
    Registered {
        /// Name of the registration.
        handler: String,
    },
    /// Executable but not readable by this process, so the form is unknown.
    Unreadable,
    /// Unknown, since the program is for other hosts.
    Elsewhere,
}

/// Program that can be executed, as far as that can be checked without executing it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    path: PathBuf,
    name: OsString,
    kind: Kind,
}

impl Program {
    /// Finds `name` with the PATH value the ranks will have (`None` if unset) and their working
    /// directory (absolute).
    ///
    /// Permission is checked for the calling user.
    ///
    /// # Errors
    /// [`ProgramError`] if the program does not exist or cannot be executed.
    pub fn find(name: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Result<Self, ProgramError> {
        if name.is_empty() || name.as_bytes().contains(&0) {
            return Err(ProgramError::BadName { name: name.into() });
        }
        let found = Self::file(name, path, cwd);
        let found = found.map_err(|error| source::explained(error, name, cwd))?;
        let kind = kind_of(&found, cwd, 0)?;
        source::check(name, &kind)?;
        Ok(Self {
            path: found,
            name: name.into(),
            kind,
        })
    }

    /// Finds the file that is executed.
    fn file(name: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Result<PathBuf, ProgramError> {
        let found = if name.as_bytes().contains(&b'/') {
            let found = cwd.join(name);
            match executable(&found) {
                Err(ProgramError::NotFound { searched, .. }) => {
                    return Err(not_found(name, searched));
                }
                result => result?,
            }
            found
        } else {
            search(name, path.unwrap_or_else(|| OsStr::new(DEFAULT_PATH)), cwd)?
        };
        Ok(plain(&found))
    }

    /// Finds the program of a spawn request, which may be in the directory of its parent's program: a name is searched
    /// in the directories of the request, in PATH, and in the working directory, in this order. A relative path is searched
    /// from the working directory and from the directories of the request.
    ///
    /// # Errors
    /// [`ProgramError`] if the program does not exist or cannot be executed.
    pub fn find_spawned(
        name: &OsStr,
        search: &[PathBuf],
        path: Option<&OsStr>,
        cwd: &Path,
    ) -> Result<Self, ProgramError> {
        if name.as_bytes().contains(&b'/') {
            let found = Self::find(name, path, cwd);
            let absent = matches!(
                found,
                Err(ProgramError::NotFound { .. } | ProgramError::Assignment { .. })
            );
            if !absent || name.as_bytes().starts_with(b"/") {
                return found;
            }
            let mut others = search
                .iter()
                .map(|dir| Self::find(name, path, &cwd.join(dir)));
            return others.find(Result::is_ok).unwrap_or(found);
        }
        let path = path.unwrap_or_else(|| OsStr::new(DEFAULT_PATH));
        let dirs = search.iter().map(|dir| dir.as_os_str()).chain([path]);
        let mut path: Vec<u8> = Vec::new();
        for dir in dirs {
            path.extend_from_slice(dir.as_bytes());
            path.push(b':');
        }
        // The empty entry at the end is the working directory.
        Self::find(name, Some(OsStr::from_bytes(&path)), cwd)
    }

    /// Creates a program that need not exist on this host, by its name on the other hosts.
    pub fn from_remote_name(name: &OsStr, cwd: &Path) -> Self {
        let path = match name.as_bytes().contains(&b'/') {
            true => plain(&cwd.join(name)),
            false => name.into(),
        };
        Self {
            path,
            name: name.into(),
            kind: Kind::Elsewhere,
        }
    }

    /// Returns the file that was found: absolute, symbolic links unresolved. For a program on other hosts, the name
    /// if it is searched for there.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the form in which the kernel runs it.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns the words with which another program runs it.
    pub fn words(&self) -> Vec<OsString> {
        let path = self.path.clone().into_os_string();
        match self.kind {
            Kind::Text => vec![SHELL.into(), path],
            _ => vec![path],
        }
    }

    /// Returns the path for execve: the program, or the shell for a text.
    pub fn exec_path(&self) -> CString {
        let path = match self.kind {
            Kind::Text => OsStr::new(SHELL),
            _ => self.path.as_os_str(),
        };
        c_string(path)
    }

    /// Returns the argument vector for execve: the name as the user gave it, then `args`; for a text the
    /// shell's name and the file come first. `None` if an argument contains a NUL byte.
    pub fn argv(&self, args: impl IntoIterator<Item = OsString>) -> Option<Vec<CString>> {
        let mut argv = match self.kind {
            Kind::Text => vec![c_string(OsStr::new(SHELL)), c_string(self.path.as_os_str())],
            _ => vec![c_string(&self.name)],
        };
        for arg in args {
            argv.push(CString::new(arg.into_vec()).ok()?);
        }
        Some(argv)
    }
}

fn c_string(text: &OsStr) -> CString {
    CString::new(text.as_bytes())
        .expect("names with NUL were refused, and cwd came from the system")
}

/// Checks that a path leads to an executable file.
fn executable(file: &Path) -> Result<(), ProgramError> {
    let path = || file.to_owned();
    let refused = |why| match why {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP => {
            let searched = format!("{} does not exist", plain(file).display());
            not_found(file.as_os_str(), searched)
        }
        why => ProgramError::NotReachable { path: path(), why },
    };
    let stat = rustix::fs::stat(file).map_err(refused)?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => {}
        rustix::fs::FileType::Directory => return Err(ProgramError::Directory { path: path() }),
        _ => return Err(ProgramError::NotAFile { path: path() }),
    }
    let denied = |why| ProgramError::NotExecutable { path: path(), why };
    access::check(file, Access::EXEC_OK).map_err(denied)
}

fn search(name: &OsStr, path: &OsStr, cwd: &Path) -> Result<PathBuf, ProgramError> {
    let mut refused = None;
    for directory in path.as_bytes().split(|byte| *byte == b':') {
        // An empty entry is the working directory.
        let found = cwd.join(OsStr::from_bytes(directory)).join(name);
        match executable(&found) {
            Ok(()) => return Ok(found),
            // Programs in directories that may not be entered are ignored: PATH often names directories
            // of another user.
            Err(ProgramError::NotFound { .. } | ProgramError::NotReachable { .. }) => {}
            Err(refusal) => {
                refused.get_or_insert(refusal);
            }
        }
    }
    if let Some(refusal) = refused {
        return Err(refusal);
    }
    let mut searched = searched(&path.to_string_lossy());
    if executable(&cwd.join(name)).is_ok() {
        let name = name.to_string_lossy();
        searched += &format!("; the working directory has one: try ./{name}");
    }
    Err(not_found(name, searched))
}

/// Describes the searched places of a program; of a long search path only the number.
fn searched(path: &str) -> String {
    if path.len() <= PATH_SHOWN_MAX {
        return format!("searched PATH={path}");
    }
    let directories = path.split(':').count();
    let first = path.split(':').next().unwrap_or_default();
    format!("none of the {directories} directories of PATH has it ({first}:…)")
}

/// Removes the `.` and the doubled slashes that joining leaves in a path.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

fn kind_of(path: &Path, cwd: &Path, depth: u8) -> Result<Kind, ProgramError> {
    let damaged = |why: ElfError| ProgramError::BadElf {
        path: path.into(),
        why: why.to_string(),
    };
    let file = match elf::open_regular(path) {
        Ok(file) => file,
        Err(ElfError::Io(why)) if why.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(Kind::Unreadable);
        }
        Err(why) => return Err(damaged(why)),
    };
    let mut head = [0; HEAD];
    let length = file
        .read_at(&mut head, 0)
        .map_err(|why| damaged(why.into()))?;
    let head = &head[..length];
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(path, line, cwd, depth);
    }
    match elf::read_file(file) {
        Ok(elf) => native(path, elf, head, cwd),
        Err(ElfError::NotElf) => match binfmt::handler(path, head) {
            Some(handler) => Ok(Kind::Registered { handler }),
            None if looks_like_text(head) => Ok(Kind::Text),
            None => Err(ProgramError::UnknownFormat { path: path.into() }),
        },
        Err(why) => Err(damaged(why)),
    }
}

fn native(path: &Path, elf: Elf, head: &[u8], cwd: &Path) -> Result<Kind, ProgramError> {
    let path = || path.to_owned();
    if !elf.machine.runs_here() {
        return match binfmt::handler(&path(), head) {
            Some(handler) => Ok(Kind::Registered { handler }),
            None => Err(ProgramError::WrongMachine {
                path: path(),
                program: elf.machine,
            }),
        };
    }
    if !elf.runnable {
        let why = "it is an object file or a core dump, link it first".into();
        return Err(ProgramError::BadElf { path: path(), why });
    }
    match &elf.interpreter {
        Some(loader) if !cwd.join(loader).exists() => Err(ProgramError::NoLoader {
            path: path(),
            loader: loader.clone(),
        }),
        _ => Ok(Kind::Elf(elf)),
    }
}

fn script(path: &Path, line: &[u8], cwd: &Path, depth: u8) -> Result<Kind, ProgramError> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | 0);
    let line = line.trim_ascii_start();
    let end = line.iter().position(blank).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    let interpreter = OsStr::from_bytes(interpreter);
    let argument = rest.trim_ascii();
    let argument = (!argument.is_empty()).then(|| OsStr::from_bytes(argument).to_owned());
    let bad = |why: String| ProgramError::BadInterpreter {
        path: path.into(),
        interpreter: interpreter.into(),
        why,
    };
    if interpreter.is_empty() {
        return Err(bad("the first line names none".into()));
    }
    let target = cwd.join(interpreter);
    match executable(&target) {
        Ok(()) => {}
        Err(ProgramError::NotFound { .. }) if interpreter.as_bytes().ends_with(b"\r") => {
            return Err(bad(
                "the script has Windows line ends; try: sed -i 's/\\r$//'".into(),
            ));
        }
        Err(ProgramError::NotFound { .. }) => {
            return Err(bad("the file does not exist".into()));
        }
        Err(refusal) => return Err(bad(refusal.to_string())),
    }
    if depth == SCRIPT_DEPTH {
        return Err(bad("too many interpreters that are scripts".into()));
    }
    match kind_of(&target, cwd, depth + 1) {
        // The kernel does not run a text in the shell on behalf of a script.
        Ok(Kind::Text) => Err(bad("it is a text without `#!`".into())),
        Ok(_) => Ok(Kind::Script {
            interpreter: interpreter.into(),
            argument,
        }),
        Err(why) => Err(bad(why.to_string())),
    }
}

/// Whether the first line has no NUL byte: the test that shells make.
fn looks_like_text(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    !line.contains(&0)
}

#[cfg(test)]
mod tests;
