//! Build id of an ELF file: a digest that the linker computed from its contents, in a note.

use std::path::Path;

use data_encoding::HEXLOWER;
use object::Endianness;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader as _};

use super::elf::{Class, class, headers, open_regular};

/// Maximum bytes of a file's notes; real ones have about a hundred.
const NOTES_MAX: u64 = 64 * 1024;

/// Returns the build id in hexadecimal, if the file can be read and has one.
pub(crate) fn read_build_id(path: &Path) -> Option<String> {
    let data = ReadCache::new(open_regular(path).ok()?);
    match class(&data).ok()? {
        Class::Narrow => find::<FileHeader32<Endianness>>(&data),
        Class::Wide => find::<FileHeader64<Endianness>>(&data),
    }
}

fn find<H: FileHeader<Endian = Endianness>>(data: &ReadCache<std::fs::File>) -> Option<String> {
    let (_, endian, segments) = headers::<H>(data).ok()?;
    let mut notes = segments.iter().filter(|segment| {
        let (_, size) = segment.file_range(endian);
        segment.p_type(endian) == elf::PT_NOTE && size <= NOTES_MAX
    });
    notes.find_map(|segment| {
        let mut notes = segment.notes(endian, data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(endian) == elf::NT_GNU_BUILD_ID {
                return Some(HEXLOWER.encode(note.desc()));
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_program_has_build_id_and_text_has_none() {
        let id = read_build_id(Path::new("/bin/true")).unwrap();
        assert!(
            id.len() >= 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{id}"
        );
        let file = std::process::Command::new("file")
            .args(["-L", "/bin/true"])
            .output();
        if let Ok(file) = file {
            assert!(
                String::from_utf8_lossy(&file.stdout).contains(&id),
                "{file:?}"
            );
        }
        assert_eq!(read_build_id(Path::new("/etc/passwd")), None);
        assert_eq!(read_build_id(Path::new("/nonexistent")), None);
    }
}
