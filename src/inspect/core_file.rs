//! Finds the program that dumped a core file. Source: `fs/binfmt_elf.c` of the kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{self, FileHeader64};
use object::endian::Endian as _;
use object::read::ReadCache;
use object::read::elf::ProgramHeader as _;

use super::elf::{Class, class, headers, open_regular};

/// Maximum bytes of a core file's notes; each mapped file takes some hundred.
const NOTES_MAX: u64 = 16 * 1024 * 1024;

/// Size of a number in the notes of a 64-bit process, in bytes.
const WORD: usize = 8;

/// Returns the file that the dumped process executed; `None` if the core cannot be read, or is of a 32-bit process.
///
/// This is the mapped file that contains the program headers of the executable.
pub(crate) fn program(core: &Path) -> Option<PathBuf> {
    let data = ReadCache::new(open_regular(core).ok()?);
    let Class::Wide = class(&data).ok()? else {
        return None;
    };
    let (_, endian, segments) = headers::<FileHeader64<Endianness>>(&data).ok()?;
    let (mut auxiliary, mut files) = (None, None);
    let notes = segments.iter().filter(|segment| {
        let (_, size) = segment.file_range(endian);
        segment.p_type(endian) == elf::PT_NOTE && size <= NOTES_MAX
    });
    for segment in notes {
        let mut notes = segment.notes(endian, &data).ok()??;
        while let Ok(Some(note)) = notes.next() {
            match note.n_type(endian) {
                elf::NT_AUXV => auxiliary = Some(words(note.desc(), endian)),
                elf::NT_FILE => files = Some(note.desc()),
                _ => {}
            }
        }
    }
    let headers = auxiliary?
        .chunks_exact(2)
        .find_map(|pair| (pair[0] == libc::AT_PHDR).then_some(pair[1]))?;
    file_at(files?, headers, endian)
}

/// Returns the file that is mapped at an address. The note has the number of mappings and the size of a page, then start, end
/// and offset of each, then the name of each file with a NUL behind it.
fn file_at(note: &[u8], address: u64, endian: Endianness) -> Option<PathBuf> {
    let count = usize::try_from(*words(note.get(..WORD)?, endian).first()?).ok()?;
    let names = count.checked_mul(3)?.checked_add(2)?.checked_mul(WORD)?;
    let mappings = words(note.get(2 * WORD..names)?, endian);
    let at = mappings
        .chunks_exact(3)
        .position(|mapping| (mapping[0]..mapping[1]).contains(&address))?;
    let name = note.get(names..)?.split(|byte| *byte == 0).nth(at)?;
    (!name.is_empty()).then(|| OsStr::from_bytes(name).into())
}

fn words(bytes: &[u8], endian: Endianness) -> Vec<u64> {
    let words = bytes.chunks_exact(WORD);
    let words = words.filter_map(|word| word.try_into().ok());
    words.map(|word| endian.read_u64_bytes(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_file_note_names_file_at_address() {
        let endian = Endianness::Little;
        let numbers = [2, 4096, 0x1000, 0x3000, 0, 0x8000, 0x9000, 2];
        let mut note: Vec<u8> = numbers
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        note.extend_from_slice(b"/bin/a b\0/lib/c.so\0");
        assert_eq!(file_at(&note, 0x2fff, endian), Some("/bin/a b".into()));
        assert_eq!(file_at(&note, 0x8000, endian), Some("/lib/c.so".into()));
        assert_eq!(file_at(&note, 0x3000, endian), None);
        for cut in 0..note.len() - 19 {
            assert_eq!(file_at(&note[..cut], 0x2000, endian), None, "{cut}");
        }
        note[7] = 0xff;
        assert_eq!(file_at(&note, 0x2000, endian), None);
        assert_eq!(program(Path::new("/bin/true")), None);
    }
}
