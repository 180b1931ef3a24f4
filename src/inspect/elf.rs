//! Reads the headers of an ELF file without loading or executing it.
//!
//! Only the headers, the dynamic section and the names it points to are read, at their positions:
//! the cost does not depend on the file's size. Every count in the file is bounded,
//! and a file with inconsistent headers is an error, never a panic.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memchr::memmem::Finder;
use object::Endianness;
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::read::{ReadCache, ReadRef as _};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// Maximum number of program headers; real files have about a dozen.
const PROGRAM_HEADERS_MAX: u16 = 1024;
/// Maximum bytes of a dynamic section; real ones have about 1 KiB.
const DYNAMIC_MAX: u64 = 256 * 1024;
/// Maximum bytes of a name or a list of directories in the dynamic section.
const NAME_MAX: u64 = 256 * 1024;
/// Maximum number of libraries in a dynamic section.
const NEEDED_MAX: usize = 4096;
/// Maximum number of bytes that [`find_in_constants`] searches in one file.
const SEARCH_MAX: u64 = 256 * 1024 * 1024;

/// Reason why a file cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A directory, device, pipe or socket.
    #[error("not a regular file")]
    NotAFile,
    /// The file does not start with ELF's magic number.
    #[error("not an ELF file")]
    NotElf,
    /// The file has more constants than are searched.
    #[error("more than {} MiB of constants", SEARCH_MAX >> 20)]
    TooLarge,
    /// The headers contradict the file or exceed the bounds above.
    #[error("damaged or truncated ELF file ({0})")]
    Damaged(&'static str),
}

/// Processor that an ELF file is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// `e_machine` of the ELF header.
    pub code: u16,
    /// Whether the file has the 64-bit class.
    pub wide: bool,
    /// Whether the data are little-endian.
    pub little_endian: bool,
}

impl Machine {
    /// The machine this program itself was built for.
    pub const OWN: Self = Self {
        code: if cfg!(target_arch = "x86_64") {
            elf::EM_X86_64
        } else if cfg!(target_arch = "aarch64") {
            elf::EM_AARCH64
        } else if cfg!(target_arch = "riscv64") {
            elf::EM_RISCV
        } else if cfg!(target_arch = "powerpc64") {
            elf::EM_PPC64
        } else if cfg!(target_arch = "s390x") {
            elf::EM_S390
        } else if cfg!(target_arch = "loongarch64") {
            elf::EM_LOONGARCH
        } else {
            panic!("unknown target architecture: add its ELF machine code")
        },
        wide: cfg!(target_pointer_width = "64"),
        little_endian: cfg!(target_endian = "little"),
    };

    /// Whether the kernel of this machine runs such programs, if necessary in its 32-bit mode.
    pub fn runs_here(self) -> bool {
        self == Self::OWN
            || (self.little_endian
                && match Self::OWN.code {
                    elf::EM_X86_64 => {
                        !self.wide && matches!(self.code, elf::EM_386 | elf::EM_X86_64)
                    }
                    elf::EM_AARCH64 => !self.wide && self.code == elf::EM_ARM,
                    _ => false,
                })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.code, self.wide, self.little_endian) {
            (elf::EM_X86_64, true, _) => "x86_64",
            (elf::EM_X86_64, false, _) => "x32",
            (elf::EM_386, ..) => "i386",
            (elf::EM_AARCH64, _, true) => "aarch64",
            (elf::EM_AARCH64, _, false) => "aarch64_be",
            (elf::EM_ARM, ..) => "arm",
            (elf::EM_PPC64, _, true) => "ppc64le",
            (elf::EM_PPC64, _, false) => "ppc64",
            (elf::EM_RISCV, true, _) => "riscv64",
            (elf::EM_RISCV, false, _) => "riscv32",
            (elf::EM_S390, ..) => "s390x",
            (elf::EM_LOONGARCH, ..) => "loongarch64",
            _ => return write!(f, "ELF machine {}", self.code),
        };
        f.write_str(name)
    }
}

/// Data of an ELF file that determine its loader and libraries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elf {
    /// Processor that the file is made for.
    pub machine: Machine,
    /// Whether it is an executable or a shared object, which the kernel does not distinguish; false for
    /// object files and core dumps.
    pub runnable: bool,
    /// Dynamic loader that the file names; `None` for static programs and most libraries.
    pub interpreter: Option<PathBuf>,
    /// Whether the file has a dynamic section. Without one, the libraries linked into it are unknown.
    pub dynamic: bool,
    /// Names of the libraries that the file needs (DT_NEEDED), in the file's order.
    pub needed: Vec<OsString>,
    /// Library directories for the file and its libraries (DT_RPATH), as written.
    pub rpath: Option<OsString>,
    /// Library directories for the file only (DT_RUNPATH), as written.
    pub runpath: Option<OsString>,
}

impl Elf {
    /// Whether it is a program that loads no libraries. Position-independent static programs are included, which
    /// have a dynamic section for themselves.
    pub fn is_static(&self) -> bool {
        !self.dynamic || self.interpreter.is_none() && self.needed.is_empty()
    }
}

/// Directory of this process's descriptors in `/proc`, once other users choose the files that are read.
static DESCRIPTORS: OnceLock<OwnedFd> = OnceLock::new();

/// Makes [`open_regular`] safe for a root directory whose contents belong to another user: it then opens only
/// regular files, and follows no magic links, which lead to files of other processes. `descriptors` is `/proc/self/fd`.
/// This holds for the whole process, as does its root directory.
pub fn distrust_files(descriptors: OwnedFd) {
    let _ = DESCRIPTORS.set(descriptors);
}

/// Opens a regular file for reading, without ever waiting for a pipe's writer or a device.
///
/// # Errors
/// [`ElfError::Io`] and [`ElfError::NotAFile`].
pub fn open_regular(path: &Path) -> Result<File, ElfError> {
    if let Some(descriptors) = DESCRIPTORS.get() {
        let (place, plain) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_MAGICLINKS);
        let found =
            File::from(openat2(CWD, path, place, Mode::empty(), plain).map_err(io::Error::from)?);
        // Opening a device may have effects.
        if !found.metadata()?.is_file() {
            return Err(ElfError::NotAFile);
        }
        let number = found.as_raw_fd().to_string();
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = openat(descriptors, number, read, Mode::empty()).map_err(io::Error::from)?;
        return Ok(opened.into());
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(ElfError::NotAFile)
    }
}

/// Reads an ELF file's description.
///
/// # Errors
/// [`ElfError`], which distinguishes "not ELF" from "damaged".
pub fn read(path: &Path) -> Result<Elf, ElfError> {
    read_file(open_regular(path)?)
}

/// Reads the description of an open ELF file.
///
/// # Errors
/// [`ElfError`] as for [`read`].
pub fn read_file(file: File) -> Result<Elf, ElfError> {
    let data = ReadCache::new(file);
    match class(&data)? {
        Class::Narrow => describe::<FileHeader32<Endianness>>(&data),
        Class::Wide => describe::<FileHeader64<Endianness>>(&data),
    }
}

/// Calls `accept` on the text after each occurrence of `pattern` in the file's constant data (the
/// loadable segments that are neither writable nor executable, or in their absence those that are executable), in the
/// file's order, until it returns a value.
///
/// The text holds up to `after` bytes, fewer at the end of a segment.
///
/// # Errors
/// [`ElfError`] as for [`read`]; [`ElfError::TooLarge`] if the searched part of the file has no match.
pub fn find_in_constants<T>(
    path: &Path,
    pattern: &[u8],
    after: usize,
    mut accept: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Option<T>, ElfError> {
    const CHUNK: usize = 256 * 1024;
    let file = open_regular(path)?;
    let ranges = {
        let data = ReadCache::new(file.try_clone()?);
        match class(&data)? {
            Class::Narrow => constants::<FileHeader32<Endianness>>(&data)?,
            Class::Wide => constants::<FileHeader64<Endianness>>(&data)?,
        }
    };
    let finder = Finder::new(pattern);
    let keep = pattern.len() + after;
    let mut budget = SEARCH_MAX;
    let mut buffer = vec![0; CHUNK + keep];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            if budget == 0 {
                return Err(ElfError::TooLarge);
            }
            // Windows overlap by `keep` bytes, so that no occurrence is cut.
            let window =
                usize::try_from(range.end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            let bytes = &mut buffer[..window];
            file.read_exact_at(bytes, at)?;
            for found in finder.find_iter(bytes).take_while(|found| *found < CHUNK) {
                let text = &bytes[found + pattern.len()..window.min(found + keep)];
                if let Some(value) = accept(text) {
                    return Ok(Some(value));
                }
            }
            at += CHUNK as u64;
            budget = budget.saturating_sub(CHUNK as u64);
        }
    }
    Ok(None)
}

pub(super) enum Class {
    Narrow,
    Wide,
}

pub(super) fn class(data: &ReadCache<File>) -> Result<Class, ElfError> {
    let ident = data.read_bytes_at(0, 16).map_err(|()| ElfError::NotElf)?;
    if ident[..4] != elf::ELFMAG {
        return Err(ElfError::NotElf);
    }
    match ident[4] {
        elf::ELFCLASS32 => Ok(Class::Narrow),
        elf::ELFCLASS64 => Ok(Class::Wide),
        _ => Err(ElfError::Damaged("unknown file class")),
    }
}

/// Header, byte order and program headers of a file.
pub(super) type Headers<'a, H> = (&'a H, Endianness, &'a [<H as FileHeader>::ProgramHeader]);

pub(super) fn headers<H: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
) -> Result<Headers<'_, H>, ElfError> {
    let header = H::parse(data).map_err(|_| ElfError::Damaged("header"))?;
    let endian = header
        .endian()
        .map_err(|_| ElfError::Damaged("byte order"))?;
    if header.e_phnum(endian) > PROGRAM_HEADERS_MAX {
        return Err(ElfError::Damaged("number of program headers"));
    }
    let segments = header
        .program_headers(endian, data)
        .map_err(|_| ElfError::Damaged("program headers"))?;
    Ok((header, endian, segments))
}

fn describe<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> Result<Elf, ElfError> {
    let (header, endian, segments) = headers::<H>(data)?;
    let mut found = Elf {
        machine: Machine {
            code: header.e_machine(endian),
            wide: header.is_class_64(),
            little_endian: header.is_little_endian(),
        },
        runnable: matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN),
        interpreter: None,
        dynamic: false,
        needed: Vec::new(),
        rpath: None,
        runpath: None,
    };
    for segment in segments {
        let (offset, size) = segment.file_range(endian);
        match segment.p_type(endian) {
            elf::PT_INTERP => {
                let text = (size <= libc::PATH_MAX as u64)
                    .then(|| data.read_bytes_at(offset, size).ok())
                    .flatten()
                    .ok_or(ElfError::Damaged("loader's name"))?;
                let end = text.iter().position(|byte| *byte == 0);
                let end = end.unwrap_or(text.len());
                found.interpreter = Some(OsString::from_vec(text[..end].to_vec()).into());
            }
            elf::PT_DYNAMIC => {
                if size > DYNAMIC_MAX {
                    return Err(ElfError::Damaged("size of the dynamic section"));
                }
                let entries = segment
                    .dynamic(endian, data)
                    .map_err(|_| ElfError::Damaged("dynamic section"))?
                    .unwrap_or_default();
                found.dynamic = true;
                read_dynamic::<H>(&mut found, entries, endian, segments, data)?;
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the text at the beginning of a range, up to its NUL byte. Does not use the search of a crate: its query of the
/// processor's features takes longer in a virtual machine than all other steps here.
fn name_in(data: &ReadCache<File>, range: Range<u64>) -> Option<&[u8]> {
    let longest = NAME_MAX.min(range.end - range.start);
    let mut size = longest.min(256);
    loop {
        let text = data.read_bytes_at(range.start, size).ok()?;
        match text.iter().position(|byte| *byte == 0) {
            Some(end) => return Some(&text[..end]),
            None if size == longest => return None,
            None => size = longest.min(size * 16),
        }
    }
}

fn read_dynamic<H: FileHeader<Endian = Endianness>>(
    found: &mut Elf,
    entries: &[H::Dyn],
    endian: Endianness,
    segments: &[H::ProgramHeader],
    data: &ReadCache<File>,
) -> Result<(), ElfError> {
    // Entries after DT_NULL are padding.
    let entries = || {
        entries
            .iter()
            .map(|entry| (entry.tag32(endian), entry.d_val(endian).into()))
            .take_while(|(tag, _)| *tag != Some(elf::DT_NULL))
    };
    let wants_names = |tag| matches!(tag, elf::DT_NEEDED | elf::DT_RPATH | elf::DT_RUNPATH);
    if !entries().any(|(tag, _)| tag.is_some_and(wants_names)) {
        return Ok(());
    }
    let names = entries()
        .find_map(|(tag, value)| (tag == Some(elf::DT_STRTAB)).then_some(value))
        .and_then(|address| file_range_from::<H>(segments, endian, address))
        .ok_or(ElfError::Damaged("no table of names"))?;
    let length = data.len().map_err(|()| ElfError::Damaged("length"))?;
    let name = |offset: u64| {
        let start = names.start.saturating_add(offset);
        let text = name_in(data, start..names.end.min(length).max(start));
        let text = text.ok_or(ElfError::Damaged("name of a library"))?;
        Ok::<_, ElfError>(OsString::from_vec(text.to_vec()))
    };
    for (tag, value) in entries() {
        match tag {
            Some(elf::DT_NEEDED) if found.needed.len() == NEEDED_MAX => {
                return Err(ElfError::Damaged("number of libraries"));
            }
            Some(elf::DT_NEEDED) => found.needed.push(name(value)?),
            Some(elf::DT_RPATH) => found.rpath = Some(name(value)?),
            Some(elf::DT_RUNPATH) => found.runpath = Some(name(value)?),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the bytes of the file from a virtual address to the end of its segment.
fn file_range_from<H: FileHeader<Endian = Endianness>>(
    segments: &[H::ProgramHeader],
    endian: Endianness,
    address: u64,
) -> Option<Range<u64>> {
    segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let (offset, size) = segment.file_range(endian);
            let skipped = address.checked_sub(segment.p_vaddr(endian).into())?;
            (skipped < size).then_some(())?;
            Some(offset.checked_add(skipped)?..offset.checked_add(size)?)
        })
}

fn constants<H: FileHeader<Endian = Endianness>>(
    data: &ReadCache<File>,
) -> Result<Vec<Range<u64>>, ElfError> {
    let (_, endian, segments) = headers::<H>(data)?;
    let length = data.len().map_err(|()| ElfError::Damaged("length"))?;
    let with_access = |access: u32| -> Vec<_> {
        let loaded = segments.iter().filter(|segment| {
            let flags = segment.p_flags(endian) & (elf::PF_W | elf::PF_X);
            segment.p_type(endian) == elf::PT_LOAD && flags == access
        });
        let ranges = loaded.map(|segment| {
            let (offset, size) = segment.file_range(endian);
            offset.min(length)..offset.saturating_add(size).min(length)
        });
        ranges.collect()
    };
    let mut ranges = with_access(0);
    if ranges.is_empty() {
        // Older linkers put constants and code into one segment.
        ranges = with_access(elf::PF_X);
    }
    ranges.sort_by_key(|range| range.start);
    Ok(ranges)
}

#[cfg(any(test, fuzzing))]
pub mod fuzzing;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
