//! Parts of wireup that are installed with this launcher, and their versions. A part of another version is a fault that a
//! launch would report late or never.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use wireup_core::executables::{AGENT, IMPI};

use memchr::memmem;

use super::run_within;
use crate::inspect::{agent_file, sidecar_files};
use wireup_core::doctor::facts::InstalledPart;

/// Text in front of the version in the shim's file. The file is read: it cannot be loaded without a libpmix.
const MARK: &[u8] = b"wireup-shim-version=";

/// Time after which a program that is to print its version is killed.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns all installed parts; a launch may not need all of them.
pub(super) fn find_parts() -> Vec<InstalledPart> {
    let programs = [AGENT, IMPI].map(agent_file::find);
    let programs = programs.into_iter().flatten();
    let (sidecar, shim) = sidecar_files::installed();
    let programs = programs.chain(sidecar).map(|path| (version(&path), path));
    let shim = shim.map(|path| (version_in(&path), path));
    let part = |(version, path): (Option<String>, PathBuf)| InstalledPart {
        path: path.display().to_string(),
        version,
    };
    programs.chain(shim).map(part).collect()
}

/// Returns the version that a program prints after its name; `None` if it fails or takes too long.
fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    let (_, output) = run_within(command.arg("--version"), VERSION_TIMEOUT).ok()?;
    output.status.success().then_some(())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_ascii_whitespace().next_back().map(str::to_owned)
}

/// Returns the version in the file of a library.
fn version_in(library: &Path) -> Option<String> {
    let bytes = fs::read(library).ok()?;
    let text = &bytes[memmem::find(&bytes, MARK)? + MARK.len()..];
    let end = memchr::memchr(0, text)?;
    String::from_utf8(text[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_version_follows_mark() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x7fELF\0wireup-shim-version=1.2.3\0rest").unwrap();
        assert_eq!(version_in(file.path()).as_deref(), Some("1.2.3"));
        fs::write(file.path(), b"\x7fELF\0 of an older build").unwrap();
        assert_eq!(version_in(file.path()), None);
    }
}
