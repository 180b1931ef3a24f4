//! Finds the kernel's core dump of a rank, and describes how to debug it. Source: core(5).

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The process that dumped core.
pub struct DumpedProcess<'a> {
    pub pid: i32,
    pub signal: i32,
    /// The program of its command line, which may have executed another one.
    pub program: &'a Path,
    /// Working directory at the start of the process.
    pub directory: &'a Path,
    pub host: &'a str,
}

/// Facts about a core dump.
pub struct CoreDump {
    /// The file if the kernel's settings name it, and the debugger's command line.
    pub text: String,
    /// The core file, if it exists.
    pub file: Option<PathBuf>,
    /// The program that dumped it.
    pub program: PathBuf,
}

/// Looks for the dump of a process. `program_of` reads from a dump which program it is of.
pub fn find(
    dumped: &DumpedProcess<'_>,
    program_of: impl FnOnce(&Path) -> Option<PathBuf>,
) -> CoreDump {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(name));
    let pattern = read("core_pattern").unwrap_or_default();
    let adds_pid = read("core_uses_pid").is_ok_and(|text| text.trim() != "0");
    let nowhere = |text| CoreDump {
        text,
        file: None,
        program: dumped.program.to_owned(),
    };
    match place(pattern.trim_end(), adds_pid, dumped) {
        DumpLocation::File(path) if path.is_file() => {
            // A relative path stays as the user wrote it, unless it is another program.
            let own = dumped.directory.join(dumped.program).canonicalize().ok();
            let other = program_of(&path).filter(|program| own.as_ref() != Some(program));
            let program = other.unwrap_or_else(|| dumped.program.to_owned());
            let (shown, name) = (path.display(), program.display());
            let text = format!("core dump in {shown}, inspect it with gdb {name} {shown}");
            CoreDump {
                text,
                file: Some(path),
                program,
            }
        }
        DumpLocation::Systemd => nowhere(format!(
            "core dumped, inspect it with coredumpctl gdb {}",
            dumped.pid
        )),
        DumpLocation::File(_) | DumpLocation::Unknown => nowhere(format!(
            "core dumped, see /proc/sys/kernel/core_pattern for the location ({})",
            pattern.trim_end()
        )),
    }
}

#[derive(PartialEq, Eq, Debug)]
enum DumpLocation {
    File(PathBuf),
    /// In the journal's keeping.
    Systemd,
    Unknown,
}

fn place(pattern: &str, adds_pid: bool, dumped: &DumpedProcess<'_>) -> DumpLocation {
    if let Some(handler) = pattern.strip_prefix('|') {
        return match handler.contains("systemd-coredump") {
            true => DumpLocation::Systemd,
            false => DumpLocation::Unknown,
        };
    }
    let mut name = Vec::new();
    let mut has_pid = false;
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            name.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match letters.next() {
            Some('%') => name.push(b'%'),
            Some('p' | 'P' | 'i' | 'I') => {
                has_pid = true;
                name.extend_from_slice(dumped.pid.to_string().as_bytes());
            }
            Some('s') => name.extend_from_slice(dumped.signal.to_string().as_bytes()),
            Some('h') => name.extend_from_slice(dumped.host.as_bytes()),
            Some('e') => {
                let file = dumped.program.file_name().unwrap_or_default().as_bytes();
                // The kernel keeps 15 bytes of a process's name.
                name.extend_from_slice(&file[..file.len().min(15)]);
            }
            _ => return DumpLocation::Unknown,
        }
    }
    if adds_pid && !has_pid {
        name.extend_from_slice(format!(".{}", dumped.pid).as_bytes());
    }
    let name = std::ffi::OsStr::from_bytes(&name);
    DumpLocation::File(dumped.directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_file_follows_kernel_pattern() {
        let dumped = DumpedProcess {
            pid: 7,
            signal: 11,
            program: Path::new("/opt/a_program_of_more_than_15"),
            directory: Path::new("/work"),
            host: "n1",
        };
        let of = |pattern, adds_pid| place(pattern, adds_pid, &dumped);
        let file = |path: &str| DumpLocation::File(path.into());
        assert_eq!(of("core", false), file("/work/core"));
        assert_eq!(of("core", true), file("/work/core.7"));
        assert_eq!(
            of("/var/%h/%e.%p.%s%%", true),
            file("/var/n1/a_program_of_mo.7.11%")
        );
        assert_eq!(of("core.%t", false), DumpLocation::Unknown);
        assert_eq!(
            of("|/usr/share/apport/apport %p", false),
            DumpLocation::Unknown
        );
        assert_eq!(
            of("|/lib/systemd/systemd-coredump %P", false),
            DumpLocation::Systemd
        );
    }
}
