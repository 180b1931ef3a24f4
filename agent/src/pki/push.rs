//! Copies the directories of certificate holders to their nodes.
//!
//! A command such as `ssh NODE` executes a shell there, which reads the files as a script from its standard input: a key is on
//! no command line, and nothing but `sh` is needed. A file takes its place in one step.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{CA, CERTIFICATE, KEY, PkiError, REVOKED, certificate_files};
use crate::identity::check_name;

/// Nodes that are reached at the same time.
const AT_ONCE: usize = 16;

/// Stands for the name of a node in a command or a directory.
const HOST: &str = "{host}";

/// Files of a holder in the order in which they are written: a reader in between detects that the key is not the certificate's.
const FILES: [(&str, u32); 4] = [
    (REVOKED, certificate_files::PUBLIC),
    (KEY, certificate_files::SECRET),
    (CERTIFICATE, certificate_files::PUBLIC),
    (CA, certificate_files::PUBLIC),
];

/// Destination of the certificates.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination<'a> {
    /// The place where a node's agent of this user looks, by a command that executes another one on the node.
    Nodes(&'a str),
    /// A directory of this machine.
    Directory(&'a str),
}

/// Error: the certificate of one node was not copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    #[error("cannot execute {command}: {error}")]
    Execute { command: String, error: io::Error },
    #[error("{command} ended with {status}{}", reason(.stderr))]
    Failed {
        command: String,
        status: std::process::ExitStatus,
        /// Last line of standard error; empty if there is none.
        stderr: String,
    },
    #[error(transparent)]
    Pki(#[from] PkiError),
}

fn reason(line: &str) -> String {
    match line.is_empty() {
        true => String::new(),
        false => format!(": {line}"),
    }
}

/// Copies the directory of each name; calls `done` with the name and the destination, in order. With `root`, the agents
/// are root's.
///
/// # Errors
/// If a name has no certificate; nothing is copied then.
pub(super) fn push(
    dir: &Path,
    names: &[String],
    destination: Destination<'_>,
    root: bool,
    mut done: impl FnMut(&str, Result<String, PushError>),
) -> Result<(), PkiError> {
    if let Destination::Nodes(by) = destination
        && !by.contains(HOST)
    {
        return Err(PkiError::NoHost(by.to_owned()));
    }
    for name in names {
        check_name(name)?;
        if !dir.join(name).join(CERTIFICATE).exists() {
            let path = dir.join(name);
            let name = name.clone();
            return Err(PkiError::NotIssued { name, path });
        }
    }
    for some in names.chunks(AT_ONCE) {
        let copied: Vec<_> = std::thread::scope(|scope| {
            let copying: Vec<_> = some
                .iter()
                .map(|name| scope.spawn(move || copy(dir, name, destination, root)))
                .collect();
            let joined = copying.into_iter().map(|copying| copying.join());
            joined
                .map(|copied| copied.expect("a copy does not panic"))
                .collect()
        });
        for (name, copied) in some.iter().zip(copied) {
            done(name, copied);
        }
    }
    Ok(())
}

fn copy(
    dir: &Path,
    name: &str,
    destination: Destination<'_>,
    root: bool,
) -> Result<String, PushError> {
    let from = dir.join(name);
    match destination {
        Destination::Directory(to) => {
            let to = match to.contains(HOST) {
                true => PathBuf::from(to.replace(HOST, name)),
                false => Path::new(to).join(name),
            };
            Ok(copy_files(&from, &to).map(|()| to.display().to_string())?)
        }
        Destination::Nodes(by) => {
            let script = script(&from, &place(name, root))?;
            let words = by.split_ascii_whitespace();
            let mut words: Vec<String> = words.map(|word| word.replace(HOST, name)).collect();
            words.push("sh".to_owned());
            execute(&words, &script)?;
            let shown = match root {
                true => place(name, root),
                false => format!("~/.config/wireup/tls/{name}"),
            };
            Ok(format!("{name}:{shown}"))
        }
    }
}

/// Returns the directory in which the agent of a node reads its files, quoted for its shell.
fn place(name: &str, root: bool) -> String {
    match root {
        true => "/etc/wireup/tls".to_owned(),
        // Nodes may share the home directory.
        false => format!("${{XDG_CONFIG_HOME:-$HOME/.config}}/wireup/tls/{name}"),
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<(), PkiError> {
    certificate_files::make_private(to)?;
    for (file, mode) in FILES {
        match certificate_files::read_public(&from.join(file)) {
            Ok(bytes) => certificate_files::write(&to.join(file), &bytes, mode)?,
            Err(error) if file == REVOKED && certificate_files::is_missing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns the script that writes the files of a holder to a place.
fn script(from: &Path, place: &str) -> Result<Vec<u8>, PkiError> {
    let mut script = format!(
        "set -e\nd={place}\numask 022\nmkdir -p \"${{d%/*}}\"\numask 077\n[ -d \"$d\" ] || mkdir \"$d\"\n"
    )
    .into_bytes();
    for (file, mode) in FILES {
        let bytes = match certificate_files::read_public(&from.join(file)) {
            Ok(bytes) => bytes,
            Err(error) if file == REVOKED && certificate_files::is_missing(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        // PEM has no line that begins with a dot.
        script.extend(format!("cat >\"$d/.{file}\" <<'.'\n").bytes());
        script.extend(bytes.strip_suffix(b"\n").unwrap_or(&bytes));
        let end =
            format!("\n.\nchmod {mode:o} \"$d/.{file}\"\nmv -f \"$d/.{file}\" \"$d/{file}\"\n");
        script.extend(end.bytes());
    }
    Ok(script)
}

fn execute(words: &[String], script: &[u8]) -> Result<(), PushError> {
    let command = words.join(" ");
    let failed = |error| PushError::Execute {
        command: command.clone(),
        error,
    };
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // A command that exits early reports the reason itself.
    let _ = child.stdin.take().map(|mut input| input.write_all(script));
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    Err(PushError::Failed {
        command,
        status: output.status,
        stderr: last.unwrap_or_default().trim().to_owned(),
    })
}
