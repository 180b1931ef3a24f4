//! Formats that an administrator has registered with the kernel, such as emulators for other machines.
//!
//! Rule: one file per format; its lines are `enabled`, then `interpreter …`, `flags: …`, and
//! either `extension .x`, or `offset N`, `magic HEX` and perhaps `mask HEX`.
//! Source: the kernel's admin-guide/binfmt-misc.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE;

use crate::inspect::elf::open_regular;

const DIRECTORY: &str = "/proc/sys/fs/binfmt_misc";

/// Returns the registered format that accepts this file, by its first bytes or the end of its name.
pub(super) fn handler(path: &Path, head: &[u8]) -> Option<String> {
    handler_in(Path::new(DIRECTORY), path, head)
}

fn handler_in(directory: &Path, path: &Path, head: &[u8]) -> Option<String> {
    std::fs::read_dir(directory)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name() != "register" && entry.file_name() != "status")
        .find_map(|entry| {
            let mut text = String::new();
            let mut file = open_regular(&entry.path()).ok()?;
            file.read_to_string(&mut text).ok()?;
            takes(&text, path, head).then(|| entry.file_name().to_string_lossy().into_owned())
        })
}

/// Whether the format described by `text` is enabled and accepts the file.
fn takes(text: &str, path: &Path, head: &[u8]) -> bool {
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
    };
    if text.lines().next() != Some("enabled") {
        return false;
    }
    if let Some(extension) = value("extension") {
        return path.extension().map(OsStr::as_bytes)
            == Some(extension.trim_start_matches('.').as_bytes());
    }
    let Some(magic) = value("magic").and_then(hex) else {
        return false;
    };
    let offset = value("offset").and_then(|text| text.parse::<usize>().ok());
    let mask = value("mask").and_then(hex);
    let start = offset.unwrap_or(0);
    let end = start.saturating_add(magic.len());
    head.get(start..end).is_some_and(|bytes| {
        bytes
            .iter()
            .zip(&magic)
            .enumerate()
            .all(|(at, (byte, expected))| {
                let mask = mask.as_ref().and_then(|mask| mask.get(at)).unwrap_or(&0xff);
                byte & mask == expected & mask
            })
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_takes_file_by_magic_or_extension_while_enabled() {
        let directory = tempfile::tempdir().unwrap();
        let arm = "enabled\ninterpreter /usr/bin/qemu-arm\nflags: F\noffset 1\nmagic 454c460000\nmask ffffff00ff\n";
        std::fs::write(directory.path().join("qemu-arm"), arm).unwrap();
        std::fs::write(directory.path().join("jar"), "enabled\nextension .jar\n").unwrap();
        let off = "disabled\ninterpreter /x\noffset 0\nmagic 4d5a\n";
        std::fs::write(directory.path().join("dos"), off).unwrap();
        let handler = |path: &str, head: &[u8]| handler_in(directory.path(), Path::new(path), head);

        assert_eq!(
            handler("/a", b"\x7fELF\x99\0rest").as_deref(),
            Some("qemu-arm")
        );
        assert_eq!(handler("/a", b"\x7fELF\x99\x01rest"), None);
        assert_eq!(handler("/a", b"\x7fEL"), None, "shorter than the magic");
        assert_eq!(handler("/a.jar", b"PK").as_deref(), Some("jar"));
        assert_eq!(handler("/a", b"MZ"), None, "disabled");
    }
}
