//! Small ELF files for tests, with any needs and any machine.

use std::path::{Path, PathBuf};

use object::elf;

use super::Machine;

/// What to write into a file.
#[derive(Clone)]
pub(crate) struct Sample<'a> {
    pub machine: u16,
    pub needed: &'a [&'a str],
    pub rpath: Option<&'a str>,
    pub runpath: Option<&'a str>,
    pub interpreter: Option<&'a str>,
    pub constants: &'a str,
}

impl Default for Sample<'_> {
    fn default() -> Self {
        Self {
            machine: Machine::OWN.code,
            needed: &[],
            rpath: None,
            runpath: None,
            interpreter: None,
            constants: "",
        }
    }
}

const HEADER: u64 = 64;
const SEGMENT: u64 = 56;

impl Sample<'_> {
    /// The file: header, three program headers, names, constants, dynamic section.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut names = vec![0];
        let mut name = |text: &str| {
            let at = names.len() as u64;
            names.extend(text.bytes().chain([0]));
            at
        };
        let mut entries: Vec<(u32, u64)> = self
            .needed
            .iter()
            .map(|needed| (elf::DT_NEEDED, name(needed)))
            .collect();
        entries.extend(self.rpath.map(|text| (elf::DT_RPATH, name(text))));
        entries.extend(self.runpath.map(|text| (elf::DT_RUNPATH, name(text))));
        let start = HEADER + 3 * SEGMENT;
        entries.extend([(elf::DT_STRTAB, start), (elf::DT_NULL, 0)]);
        let interpreter = name(self.interpreter.unwrap_or_default());
        name(self.constants);
        names.resize(names.len().next_multiple_of(8), 0);

        let dynamic = start + names.len() as u64;
        let dynamic_size = entries.len() as u64 * 16;
        let interpreter_size = self.interpreter.map_or(0, |text| text.len() as u64 + 1);
        let interpreter_type = if interpreter_size > 0 {
            elf::PT_INTERP
        } else {
            elf::PT_NULL
        };

        let mut file = elf::ELFMAG.to_vec();
        let encoding = if Machine::OWN.little_endian {
            elf::ELFDATA2LSB
        } else {
            elf::ELFDATA2MSB
        };
        file.extend([elf::ELFCLASS64, encoding, elf::EV_CURRENT]);
        file.resize(16, 0);
        file.extend(elf::ET_DYN.to_ne_bytes());
        file.extend(self.machine.to_ne_bytes());
        file.extend(1_u32.to_ne_bytes());
        for word in [0, HEADER, 0] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(0_u32.to_ne_bytes());
        for half in [HEADER as u16, SEGMENT as u16, 3, 64, 0, 0] {
            file.extend(half.to_ne_bytes());
        }
        for (kind, at, size) in [
            (elf::PT_LOAD, 0, dynamic + dynamic_size),
            (elf::PT_DYNAMIC, dynamic, dynamic_size),
            (interpreter_type, start + interpreter, interpreter_size),
        ] {
            file.extend(kind.to_ne_bytes());
            file.extend(elf::PF_R.to_ne_bytes());
            for word in [at, at, at, size, size, 8] {
                file.extend(word.to_ne_bytes());
            }
        }
        file.extend(names);
        for (tag, value) in entries {
            file.extend(u64::from(tag).to_ne_bytes());
            file.extend(value.to_ne_bytes());
        }
        file
    }

    /// Writes the file, executable, and makes its directories.
    pub(crate) fn write(&self, path: impl AsRef<Path>) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = path.as_ref();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, self.bytes()).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_owned()
    }
}
