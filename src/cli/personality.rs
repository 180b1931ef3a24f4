//! `mpiexec`, `mpirun` and `srun`: wireup under their names takes their options, and becomes `wireup run`. `prte` is for [`prte`].
//!
//! Options that cannot be meant are refused with what to write; those that `wireup run` takes from all launchers
//! ([`foreign_options`]) count too. The process executes `wireup run` with the translated line, so that `wireup ps` and
//! others see an ordinary launch.

mod mpiexec;
mod srun;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueHint};

use super::apps::split_apps;
use super::foreign_options::table::Habit;
use super::foreign_options::{ForeignError, translate};
use super::line::{Own, Word};
use super::run::RunArgs;
use super::{prte, singleton};
use crate::failure::RunFailure;

/// A program whose place wireup takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Personality {
    /// That of MPI's standard, of Hydra and of Open MPI, under either name.
    Mpiexec,
    Srun,
    /// What programs of Open MPI 5 execute that spawn and have no launcher.
    Prte,
}

/// The names of links.
const NAMES: [(&str, Personality); 5] = [
    ("mpiexec", Personality::Mpiexec),
    ("mpirun", Personality::Mpiexec),
    ("mpiexec.hydra", Personality::Mpiexec),
    ("srun", Personality::Srun),
    ("prte", Personality::Prte),
];

const HOSTS_OF_PROGRAM: &str = "the programs of a job share the hosts, whose slots are given to ranks in order; name all \
    hosts in front of the first program, with their slots";

impl Personality {
    /// The one that a word names, which may be a path.
    pub(super) fn of(word: &OsStr) -> Option<Self> {
        let name = Path::new(word).file_name()?;
        let found = NAMES.iter().find(|(known, _)| name == *known);
        found.map(|(_, personality)| *personality)
    }

    fn habits(self) -> &'static [Habit] {
        match self {
            Self::Mpiexec => mpiexec::HABITS,
            Self::Srun => srun::HABITS,
            Self::Prte => &[],
        }
    }

    /// The words of `wireup run` that mean the same as these.
    ///
    /// # Errors
    /// [`ForeignError`] with what to write instead of an option.
    fn translated(self, words: Vec<OsString>) -> Result<Vec<OsString>, ForeignError> {
        let own = Own::of::<RunArgs>();
        let (mut everywhere, mut parts) = (Vec::new(), Vec::new());
        for part in split_apps(words) {
            let one = translate(&own, self.habits(), part)?;
            everywhere.extend(one.everywhere);
            parts.push(one.words);
        }
        if let Some(part) = parts.get(1..) {
            let named = |part: &Vec<OsString>| {
                let mut options = ["--hosts", "--hostfile"].into_iter();
                options.find(|name| option(&own, part, name).is_some())
            };
            if let Some(name) = part.iter().find_map(named) {
                return Err(ForeignError::Instead {
                    option: name.into(),
                    advice: HOSTS_OF_PROGRAM.to_owned(),
                });
            }
        }
        if self == Self::Srun {
            everywhere.extend(srun::defaults(|name| option(&own, &parts[0], name)));
        }
        everywhere.extend(parts.join(&OsString::from(":")));
        Ok(everywhere)
    }

    /// Becomes `wireup run`; these are the words behind the program's name.
    pub(super) fn execute(self, words: Vec<OsString>) -> Result<u8, RunFailure> {
        let first = words.first();
        if first.is_some_and(|word| word == "--version" || word == "-V") {
            let text = format!("wireup {}\n", env!("CARGO_PKG_VERSION"));
            return super::print(text.as_bytes());
        }
        if self == Self::Prte {
            return prte::execute(&words);
        }
        if self == Self::Mpiexec
            && let Some(arguments) = singleton::arguments(&words)
        {
            return Err(singleton::execute(arguments));
        }
        let line = self.translated(words);
        let line = line.map_err(RunFailure::request)?;
        let error = Command::new("/proc/self/exe")
            .arg0("wireup")
            .arg("run")
            .args(line)
            .exec();
        Err(RunFailure::system("cannot execute wireup run", error))
    }
}

/// The value of an option among words of ours, up to the program.
fn option(own: &Own, words: &[OsString], name: &str) -> Option<OsString> {
    let mut words = words.iter();
    let mut found = None;
    while let Some(word) = words.next() {
        let takes_next = match own.read(word) {
            Word::Option { takes_next } | Word::SingleDash { takes_next, .. } => takes_next,
            Word::Unknown | Word::Program => break,
        };
        let value = takes_next.then(|| words.next()).flatten();
        if word == name {
            found = value.cloned();
        }
    }
    found
}

const EXAMPLES: &str = "\
Examples:
  wireup install-links ~/wireup-links
  PATH=~/wireup-links:$PATH mpirun -np 4 ./app";

/// Arguments of `wireup install-links`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LinksArgs {
    /// Directory for links named mpiexec, mpirun, srun and prte, which is made if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Makes the links.
pub(super) fn install_links(args: &LinksArgs) -> Result<u8, RunFailure> {
    let own = |path: &Path, error: io::Error| RunFailure::system(path.display().to_string(), error);
    let target = std::env::current_exe().map_err(|error| own(Path::new("wireup"), error))?;
    std::fs::create_dir_all(&args.dir).map_err(|error| own(&args.dir, error))?;
    for (name, _) in NAMES {
        let link = args.dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        std::os::unix::fs::symlink(&target, &link).map_err(|error| own(&link, error))?;
    }
    Ok(0)
}
