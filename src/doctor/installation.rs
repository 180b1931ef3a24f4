//! The parts of wireup that are installed with this launcher: parts of another build are a fault that a launch would name
//! late or never.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memchr::memmem;

use crate::inspect::{agent_file, sidecar_files};
use wireup_core::doctor::facts::Part;

/// In front of the version in the shim's file. It cannot be loaded without a libpmix, so it is read.
const MARK: &[u8] = b"wireup-shim-version=";

/// All parts that are there; which of them a launch needs is not known here.
pub(super) fn look() -> Vec<Part> {
    let programs = [agent_file::AGENT, agent_file::IMPI].map(agent_file::find);
    let programs = programs.into_iter().flatten();
    let (sidecar, shim) = sidecar_files::installed();
    let programs = programs.chain(sidecar).map(|path| (version(&path), path));
    let shim = shim.map(|path| (version_in(&path), path));
    let part = |(version, path): (Option<String>, PathBuf)| Part {
        path: path.display().to_string(),
        version,
    };
    programs.chain(shim).map(part).collect()
}

/// What a program says to `--version`: its name and that.
fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    let command = command
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_ascii_whitespace().next_back().map(str::to_owned)
}

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
    fn the_version_of_a_library_is_what_follows_the_mark() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"\x7fELF\0wireup-shim-version=1.2.3\0rest").unwrap();
        assert_eq!(version_in(file.path()).as_deref(), Some("1.2.3"));
        fs::write(file.path(), b"\x7fELF\0 of an older build").unwrap();
        assert_eq!(version_in(file.path()), None);
    }
}
