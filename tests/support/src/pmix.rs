//! Each libpmix that is here, and the test programs that use it without an MPI.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::programs::built;
use crate::{Run, skip};

/// A libpmix of this machine, and test programs that use it without an MPI.
#[derive(Clone, Debug)]
pub struct Pmix {
    /// Directory of the programs.
    pub dir: PathBuf,
    /// Path of the library.
    pub library: PathBuf,
    /// The loader of its C library, where that is not the system's.
    loader: Option<PathBuf>,
}

/// Each libpmix that `scripts/test-programs` found, by its name in our tables.
fn table() -> Vec<(String, Pmix)> {
    let table = built().and_then(|dir| fs::read_to_string(dir.join("pmix.tsv")).ok());
    let table = table.unwrap_or_default();
    table
        .lines()
        .map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().expect("three fields in a line of pmix.tsv");
            let (name, dir, library) = (next().to_owned(), next().into(), next().into());
            let loader = fields.next().map(PathBuf::from);
            let pmix = Pmix {
                dir,
                library,
                loader,
            };
            (name, pmix)
        })
        .collect()
}

/// The libpmix of that name (`pmix4`: the system's, `pmix5`: Open MPI 5's, `pmix7`: of a later Debian);
/// `None`, and the test is ignored, when it is not there.
#[track_caller]
pub fn pmix(name: &str) -> Option<Pmix> {
    let mut known = table().into_iter();
    let found = known.find_map(|(known, pmix)| (known == name).then_some(pmix));
    if found.is_none() {
        skip(&format!(
            "{name} is not there: run scripts/setup and scripts/test-programs"
        ));
    }
    found
}

impl Pmix {
    /// `wireup run` of one of its test programs: options, program, its arguments.
    pub fn run(&self, ranks: u32, options: &[&str], program: &str, args: &[&str]) -> Run {
        let program = self.dir.join(program);
        let words = options.iter().map(OsString::from).chain([program.into()]);
        Run::ranks(ranks, words.chain(args.iter().map(OsString::from)))
    }

    /// The library as an argument.
    pub fn path(&self) -> &str {
        self.library.to_str().expect("a path of our scripts")
    }

    /// The library without symbolic links, as the system shows mappings.
    pub fn real(&self) -> PathBuf {
        self.library.canonicalize().unwrap()
    }

    /// Returns the executable of the sidecar for this libpmix, where that is not the one in the
    /// directory of this `wireup`: the same one on its C library.
    pub fn host(&self, wireup: &Path) -> Option<PathBuf> {
        let loader = self.loader.as_deref()?;
        let host = wireup.with_file_name("wireup-pmix-host");
        let script = format!(
            "#!/bin/sh\nexec {} --library-path {} {} \"$@\"\n",
            loader.display(),
            loader.parent()?.display(),
            host.display()
        );
        let name = format!("wireup-pmix-host-{}", self.dir.file_name()?.display());
        let path = host.with_file_name(name);
        if fs::read_to_string(&path).ok().as_deref() != Some(&*script) {
            // Not in its place before it is whole: other tests may be about to execute it.
            let mut file = tempfile::NamedTempFile::new_in(path.parent()?).unwrap();
            file.write_all(script.as_bytes()).unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755)).unwrap();
            file.into_temp_path().persist(&path).unwrap();
        }
        Some(path)
    }
}

/// `wireup run` on this machine with the PMIx server's process that goes with the libpmix which it names,
/// or with that of a program in our tables.
pub(crate) fn with_its_host(mut words: Vec<OsString>) -> Vec<OsString> {
    let [wireup, run, ..] = &words[..] else {
        return words;
    };
    let wireup = Path::new(wireup);
    if !wireup.ends_with("wireup") || run != "run" || words.iter().any(|word| word == "--hosts") {
        return words;
    }
    let after = |option: &str| words.iter().skip_while(move |word| *word != option).nth(1);
    let named = after("--libpmix");
    let serves = |pmix: &Pmix| match named {
        Some(library) => pmix.library == **library,
        None => words
            .iter()
            .any(|word| Path::new(word).starts_with(&pmix.dir)),
    };
    let host = table().into_iter().find(|(_, pmix)| serves(pmix));
    if let Some(host) = host.and_then(|(_, pmix)| pmix.host(wireup)) {
        let mut word = OsString::from("host=");
        word.push(host);
        words.splice(2..2, ["--libpmix".into(), word]);
    }
    words
}
