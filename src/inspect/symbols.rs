//! Symbols and versions that an ELF file defines and needs.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use object::Endianness;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader, Sym as _};
use object::read::{ReadCache, StringTable};

use super::elf::{Class, ElfError, class, open_regular};
use wireup_core::container::host_mpi::LibrarySymbols;

/// Maximum bytes that are read of a library; the largest MPI has 100 MB.
const FILE_MAX: u64 = 1 << 30;

/// Reads the symbols and versions of a library.
///
/// # Errors
/// [`ElfError`] if the file cannot be read, or is damaged.
pub(crate) fn read(path: &Path) -> Result<LibrarySymbols, ElfError> {
    let mut data = Vec::new();
    let file = open_regular(path)?;
    // The whole file: the names are many, and spread over it.
    file.take(FILE_MAX).read_to_end(&mut data)?;
    match data.get(..5) {
        Some([0x7f, b'E', b'L', b'F', elf::ELFCLASS32]) => {
            collect::<FileHeader32<Endianness>>(&data)
        }
        Some([0x7f, b'E', b'L', b'F', _]) => collect::<FileHeader64<Endianness>>(&data),
        _ => Err(ElfError::NotElf),
    }
}

fn collect<H: FileHeader<Endian = Endianness>>(data: &[u8]) -> Result<LibrarySymbols, ElfError> {
    let damaged = |_| ElfError::Damaged("sections");
    let header = H::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let sections = header.sections(endian, data).map_err(damaged)?;
    let mut found = LibrarySymbols::default();
    let table = sections
        .symbols(endian, data, elf::SHT_DYNSYM)
        .map_err(damaged)?;
    for symbol in table.iter() {
        let name = table.symbol_name(endian, symbol).map_err(damaged)?;
        let name = String::from_utf8_lossy(name).into_owned();
        match (symbol.is_undefined(endian), symbol.st_bind()) {
            _ if name.is_empty() => {}
            (_, elf::STB_LOCAL) | (true, elf::STB_WEAK) => {}
            (true, _) => {
                found.undefined.insert(name);
            }
            (false, _) => {
                found.defined.insert(name);
            }
        }
    }
    let text = |strings: &StringTable<'_>, offset: u32| {
        let bytes = strings.get(offset);
        let bytes = bytes.map_err(|()| ElfError::Damaged("name of a version"))?;
        Ok::<_, ElfError>(String::from_utf8_lossy(bytes).into_owned())
    };
    if let Some((mut all, link)) = sections.gnu_verdef(endian, data).map_err(damaged)? {
        let strings = sections.strings(endian, data, link).map_err(damaged)?;
        while let Some((_, mut names)) = all.next().map_err(damaged)? {
            // The names after the first are versions that this one follows.
            if let Some(name) = names.next().map_err(damaged)? {
                let name = text(&strings, name.vda_name.get(endian))?;
                found.versions.insert(name);
            }
        }
    }
    if let Some((mut all, link)) = sections.gnu_verneed(endian, data).map_err(damaged)? {
        let strings = sections.strings(endian, data, link).map_err(damaged)?;
        while let Some((of, mut names)) = all.next().map_err(damaged)? {
            let library = text(&strings, of.vn_file.get(endian))?;
            let needed = found.needs.entry(library).or_default();
            while let Some(name) = names.next().map_err(damaged)? {
                // A weak version may be absent.
                if name.vna_flags.get(endian) & elf::VER_FLG_WEAK == 0 {
                    needed.insert(text(&strings, name.vna_name.get(endian))?);
                }
            }
        }
    }
    if let Some((entries, link)) = sections.dynamic(endian, data).map_err(damaged)? {
        let strings = sections.strings(endian, data, link).map_err(damaged)?;
        for entry in entries {
            if entry.tag32(endian) == Some(elf::DT_SONAME)
                && let Some(offset) = entry.val32(endian)
            {
                found.soname = Some(text(&strings, offset)?);
            }
        }
    }
    Ok(found)
}

/// Whether an ELF file imports each of these functions from another library.
///
/// # Errors
/// [`ElfError`] if the file cannot be read, or is damaged.
pub(crate) fn imports<const COUNT: usize>(
    path: &Path,
    names: [&str; COUNT],
) -> Result<[bool; COUNT], ElfError> {
    let data = ReadCache::new(open_regular(path)?);
    match class(&data)? {
        Class::Narrow => imported::<FileHeader32<Endianness>, COUNT>(&data, names),
        Class::Wide => imported::<FileHeader64<Endianness>, COUNT>(&data, names),
    }
}

fn imported<H: FileHeader<Endian = Endianness>, const COUNT: usize>(
    data: &ReadCache<File>,
    names: [&str; COUNT],
) -> Result<[bool; COUNT], ElfError> {
    let damaged = |_| ElfError::Damaged("sections");
    let header = H::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let sections = header.sections(endian, data).map_err(damaged)?;
    let table = sections
        .symbols(endian, data, elf::SHT_DYNSYM)
        .map_err(damaged)?;
    let mut found = [false; COUNT];
    for symbol in table.iter().filter(|symbol| symbol.is_undefined(endian)) {
        let name = table.symbol_name(endian, symbol).map_err(damaged)?;
        for (found, expected) in found.iter_mut().zip(names) {
            *found |= name == expected.as_bytes();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::ldso::{Loader, LoaderFiles};

    #[test]
    fn system_program_uses_symbols_of_its_c_library() {
        let loader = Loader::new(&[], Path::new("/"), LoaderFiles::default());
        let c_library = loader.locate("libc.so.6".as_ref());
        let Some(c_library) = c_library.first() else {
            return;
        };
        let (program, library) = (
            read(Path::new("/bin/ls")).unwrap(),
            read(c_library).unwrap(),
        );
        assert_eq!(library.soname.as_deref(), Some("libc.so.6"));
        assert!(library.defined.contains("puts") && !library.undefined.contains("puts"));
        let needed = &program.needs["libc.so.6"];
        assert!(
            !needed.is_empty() && needed.is_subset(&library.versions),
            "{needed:?}"
        );
        assert!(
            program.undefined.contains("__libc_start_main"),
            "{program:?}"
        );
        assert!(!library.versions.contains("GLIBC_9.9"));
        assert!(read(Path::new("/etc/passwd")).is_err());
    }
}
