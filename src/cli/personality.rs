//! `mpiexec`, `mpirun`, `mpiexec.hydra` and `srun`: wireup under their names takes their options, and becomes
//! `wireup run`. `prte` is for [`prte`].
//!
//! Each has tables of options, and of the variables and parameters that it reads in place of options. Options without a
//! translation are refused with their replacement; those that `wireup run` accepts of all launchers ([`foreign_options`])
//! are accepted too. The process executes `wireup run` with the translated line, so that `wireup ps` and others see an
//! ordinary launch.

mod hydra;
mod openmpi;
mod option_values;
mod personality_help;
mod redirects;
mod srun;
#[cfg(test)]
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Parser as _, ValueHint};

use self::redirects::redirected;
use super::apps::{NextApp, split_apps};
use super::foreign_options::option_table::OptionTranslation::Show;
use super::foreign_options::option_table::{
    Dialect, ForeignOption, OWN, Page, RedirectedStream, Tag, UNBUFFERED, computed, habit,
    with_dashes,
};
use super::foreign_options::{
    ForeignError, TranslatedLine, TranslatedOption, translate, translate_environment,
};
use super::option_scan::{ArgumentKind, OptionTable};
use super::run;
use super::run_args::{self, RunArgs};
use super::run_usage_errors::lacks_program;
use super::{help_text, prte, singleton};
use crate::plan::HostPlan;
use crate::plan::environment::PERSONALITY;
use wireup_agent_args::usage_errors::{one_line, reason};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;
use wireup_core::job::rank_set::RankSet;
use wireup_core::job::spec::JobSpec;
use wireup_core::printable::printable;
use wireup_sys::access::is_program;

/// Whether these words are options of `wireup run` with valid values.
fn are_options(words: &[OsString]) -> bool {
    let line = ["run".into()].into_iter().chain(words.iter().cloned());
    RunArgs::try_parse_from(line.chain(["program".into()])).is_ok()
}

/// Launcher that wireup replaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Personality {
    /// `mpiexec` of the MPI standard, which Hydra and Open MPI install.
    Mpiexec,
    /// `mpirun` of Open MPI, and of Hydra where that has other options.
    Mpirun,
    /// Hydra of MPICH and Intel MPI.
    Hydra,
    Srun,
    /// `prte`, which programs of Open MPI 5 without a launcher execute to spawn.
    Prte,
}

/// Names of links, and the launchers that they replace.
const NAMES: [(&str, Personality, &str); 5] = [
    (
        "mpiexec",
        Personality::Mpiexec,
        "mpiexec of MPICH, Intel MPI (Hydra) and Open MPI",
    ),
    ("mpirun", Personality::Mpirun, "mpirun of Open MPI"),
    (
        "mpiexec.hydra",
        Personality::Hydra,
        "mpiexec.hydra of MPICH and Intel MPI",
    ),
    ("srun", Personality::Srun, "srun of Slurm"),
    (
        "prte",
        Personality::Prte,
        "prte, as programs of Open MPI 5 that spawn write it",
    ),
];

const GPUS_PER_PROC: ForeignOption = computed(
    &["gpus-per-proc"],
    option_values::gpus,
    "write -gpus-per-proc with a number",
    "--gpus-per-rank {1}",
);

const HOSTS_OF_PROGRAM: &str = "the programs of a job share the hosts, whose slots are given to ranks in order; name all \
    hosts in front of the first program, with their slots";
const NO_AGENTS: &str = "wireup starts the processes itself, or by its agents";
const NO_COUNTERPART: &str = "wireup has no counterpart; leave it out";
const OWN_SOCKETS: &str = "wireup starts processes itself and listens on no port";
const LIST_ONLY: &str =
    "wireup runs on this machine only if it is in the list; leave it out, and name the hosts";

/// Rewords an error of `wireup run` for the launcher that it replaces, if it replaces one.
pub(super) fn reworded(text: String) -> String {
    let names = env::var_os(PERSONALITY).unwrap_or_default();
    reworded_for(&names.to_string_lossy(), text)
}

fn reworded_for(names: &str, mut text: String) -> String {
    let mut lines = names.lines();
    let Some(launcher) = lines.next() else {
        return text;
    };
    while let (Some(ours), Some(written)) = (lines.next(), lines.next()) {
        text = text.replace(ours, written);
    }
    if launcher == Personality::Srun.name() {
        // In Slurm the long name means that jobs share nodes.
        text = text.replace("use --oversubscribe", "use -O");
        text = text.replace("or --oversubscribe", "or -O");
        // In Slurm -x names nodes.
        text = text.replace(" -x ", " --export=ALL,");
    }
    text.replace("wireup run ", &format!("{launcher} "))
}

/// Options that all launchers have.
const PAGES: &[ForeignOption] = &[
    habit(&["h", "help"], 0, Show(Page::Help)),
    habit(&["usage"], 0, Show(Page::Usage)),
    habit(&["V", "version"], 0, Show(Page::Version)),
];

/// Translated line of `wireup run`, with its notes.
#[derive(Debug, Default)]
struct PersonalityLine {
    words: Vec<OsString>,
    /// Options without effect.
    notes: Vec<String>,
    /// Each option of the launcher.
    pieces: Vec<TranslatedOption>,
    files: Vec<(RedirectedStream, OsString)>,
    /// The words without redirections of ranks, if the user gives a `--wrap` that runs behind these.
    unredirected: Option<Vec<OsString>>,
    /// Page that is printed in place of a launch.
    page: Option<Page>,
}

impl Personality {
    /// Returns the launcher that a word, which may be a path, names.
    pub(super) fn from_name(word: &OsStr) -> Option<Self> {
        let name = Path::new(word).file_name()?;
        let found = NAMES.iter().find(|(known, ..)| name == *known);
        found.map(|(_, personality, _)| *personality)
    }

    fn entry(self) -> (&'static str, &'static str) {
        let mut names = NAMES.iter();
        let entry = names.find(|(_, personality, _)| *personality == self);
        entry.map_or(("", ""), |(name, _, title)| (*name, *title))
    }

    fn name(self) -> &'static str {
        self.entry().0
    }

    fn title(self) -> &'static str {
        self.entry().1
    }

    /// Whether the launcher has parameters, as Open MPI's does.
    fn reads_parameters(self) -> bool {
        matches!(self, Self::Mpirun | Self::Mpiexec)
    }

    fn dialect(self) -> Dialect {
        let (options, settings, idle): (&[&[ForeignOption]], &[&[_]], &[&[_]]) = match self {
            Self::Mpiexec => (
                &[PAGES, hydra::HABITS, openmpi::HABITS],
                &[hydra::SETTINGS, openmpi::SETTINGS],
                &[hydra::IDLE, openmpi::IDLE],
            ),
            Self::Mpirun => (
                &[PAGES, openmpi::HABITS, hydra::HABITS],
                &[openmpi::SETTINGS, hydra::SETTINGS],
                &[hydra::IDLE, openmpi::IDLE],
            ),
            Self::Hydra => (&[PAGES, hydra::HABITS], &[hydra::SETTINGS], &[hydra::IDLE]),
            Self::Srun => (&[PAGES, srun::HABITS], &[srun::SETTINGS], &[srun::IDLE]),
            Self::Prte => return OWN,
        };
        Dialect {
            options,
            settings,
            idle,
            has_clusters: self == Self::Srun,
        }
    }

    /// Translates words and variables of the launcher to words of `wireup run`.
    ///
    /// # Errors
    /// [`ForeignError`] with the replacement of an option.
    fn translated(
        self,
        words: Vec<OsString>,
        variable: impl Fn(&str) -> Option<OsString> + Copy,
    ) -> Result<PersonalityLine, ForeignError> {
        let own = OptionTable::from_parser::<RunArgs>();
        let dialect = self.dialect();
        let mut parts = Vec::new();
        for part in split_apps(words) {
            let one = translate(&own, &dialect, part)?;
            if one.page.is_some() {
                return Ok(PersonalityLine {
                    page: one.page,
                    ..PersonalityLine::default()
                });
            }
            if let Some(option) = one.unknown {
                let near = dialect.near(&option);
                let near = near.map(|name| format!("; did you mean: {}", with_dashes(name)));
                return Err(ForeignError::Unknown {
                    option,
                    launcher: self.name(),
                    near: near.unwrap_or_default(),
                });
            }
            parts.push(one);
        }
        self.check_next_programs(&own, &parts)?;
        let names = dialect.variables();
        let is_read = |name: &&str| self != Self::Srun || srun::is_read(name, variable);
        let names = names.iter().map(String::as_str).filter(is_read);
        let mut set = translate_environment(&dialect, variable, names, are_options);
        forget_hosts(&own, &mut set, &parts[0].words);
        let mut line = PersonalityLine::default();
        let (everywhere, of_job) = split(&set);
        set.everywhere = everywhere;
        parts[0].words.splice(0..0, of_job);
        for part in &mut parts {
            set.append(part);
        }
        let mut everywhere = set.everywhere;
        line.notes = set.notes;
        line.pieces = set.pieces;
        let files = redirected(&set.redirects, self == Self::Srun);
        let files = files.map_err(|error| line.with_option(error))?;
        line.files = files.files;
        line.words = files.job;
        line.words.extend(label(&set.tags));
        match self {
            Self::Srun => {
                if option(&own, &parts[0].words, "--gpus-per-rank").is_some() {
                    see_gpus_of_ranks(&mut everywhere, &line.pieces);
                    see_gpus_of_ranks(&mut parts[0].words, &line.pieces);
                }
                let option = |name: &str| option(&own, &parts[0].words, name);
                line.words.extend(srun::defaults(option));
            }
            // Hydra has no slots.
            Self::Hydra => line.words.push("--oversubscribe".into()),
            Self::Mpirun => parts
                .iter_mut()
                .for_each(|part| find_here(&own, &everywhere, part)),
            Self::Mpiexec | Self::Prte => {}
        }
        let of_job = std::mem::take(&mut line.words);
        let whole = |parts: &[TranslatedLine]| {
            let parts = parts
                .iter()
                .map(|part| [everywhere.clone(), part.words.clone()].concat());
            let parts: Vec<Vec<OsString>> = parts.collect();
            [of_job.clone(), parts.join(&OsString::from(":"))].concat()
        };
        if !files.ranks.is_empty() {
            let is_wrapped = |part: &TranslatedLine| {
                let mut names = ["--wrap", "--wrap-ranks"].into_iter();
                names.any(|name| option(&own, &part.words, name).is_some())
            };
            if parts.iter().any(is_wrapped) {
                line.unredirected = Some(whole(&parts));
            }
            parts
                .iter_mut()
                .for_each(|part| redirect(&own, &mut part.words, &files.ranks));
        }
        line.words = whole(&parts);
        Ok(line)
    }

    /// Refuses options of the job in front of a later program.
    fn check_next_programs(
        self,
        table: &OptionTable,
        parts: &[TranslatedLine],
    ) -> Result<(), ForeignError> {
        let next = OptionTable::from_parser::<NextApp>();
        for part in parts.iter().skip(1) {
            let hosts = ["--hosts", "--hostfile"].into_iter();
            let mut hosts = hosts.filter(|name| option(table, &part.words, name).is_some());
            if let Some(name) = hosts.next_back() {
                let typed = part
                    .pieces
                    .iter()
                    .find(|piece| piece.words.first().is_some_and(|word| word == name));
                return Err(ForeignError::Instead {
                    option: typed.map_or_else(|| name.into(), |piece| piece.option.clone()),
                    advice: HOSTS_OF_PROGRAM.to_owned(),
                });
            }
            let of_job = |piece: &&TranslatedOption| {
                let word = piece.words.first();
                word.is_some_and(|word| !next.knows(word))
            };
            if let Some(piece) = part.pieces.iter().find(of_job) {
                return Err(ForeignError::Instead {
                    option: piece.option.clone(),
                    advice: format!(
                        "it holds for the whole job; write it in front of the first program, {} [OPTIONS] PROGRAM : …",
                        self.name()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Executes `wireup run`; `words` are those after the program's name.
    pub(super) fn execute(self, words: Vec<OsString>) -> Result<u8, CommandError> {
        if self == Self::Prte {
            let first = words.first();
            if first.is_some_and(|word| word == "--version" || word == "-V") {
                return super::print(self.version().as_bytes());
            }
            return prte::execute(&words);
        }
        if self != Self::Srun
            && let Some(arguments) = singleton::arguments(&words)
        {
            return Err(singleton::execute(arguments));
        }
        let variable = |name: &str| env::var_os(name);
        let line = self
            .translated(words, variable)
            .map_err(CommandError::request)?;
        if let Some(page) = line.page {
            return super::print(self.page(page, help_text::width()).as_bytes());
        }
        let args = line.checked(self.name()).map_err(CommandError::request)?;
        line.check_wraps()?;
        if args.verbosity() > 0 {
            let dialect = self.dialect();
            let names = env::vars_os().map(|(name, _)| name);
            let idle = dialect.idle_variables(names);
            let home = env::home_dir().filter(|_| self.reads_parameters());
            let files = home.map(|home| openmpi::idle_files(&dialect, &home));
            for note in line.notes.iter().chain(&idle).chain(files.iter().flatten()) {
                eprintln!("wireup: {}", printable(note));
            }
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("wireup").arg("run").args(&line.words);
        command.env(PERSONALITY, line.names(self.name()));
        if !args.dry_run {
            redirects::attach(&mut command, &line.files)?;
        }
        Err(CommandError::system(
            "cannot execute wireup run",
            command.exec(),
        ))
    }
}

impl PersonalityLine {
    /// Returns the value of [`PERSONALITY`].
    fn names(&self, launcher: &str) -> OsString {
        // Variables have a maximum length, and errors do not name such long values.
        const LENGTH_MAX: usize = 256;
        let mut names = OsString::from(launcher);
        for piece in &self.pieces {
            let ours = piece.words.join(OsStr::new(" "));
            let is_named = piece.words.len() == 2 && piece.words[0] != "-x";
            if is_named && ours != piece.written && piece.written.len() <= LENGTH_MAX {
                // Some errors name the option without its value.
                let option = &piece.words[0];
                for (ours, end) in [(&ours, ""), (option, ":"), (option, ";")] {
                    for word in [ours, &piece.written] {
                        names.push("\n");
                        names.push(word);
                        names.push(end);
                    }
                }
            }
        }
        names
    }

    /// Returns an error about the file of a redirection, with the option as it was written.
    fn with_option(&self, error: ForeignError) -> ForeignError {
        let ForeignError::Instead {
            option: file,
            advice,
        } = error
        else {
            return error;
        };
        let is_its = |piece: &&TranslatedOption| {
            piece.words.is_empty() && piece.written.as_bytes().ends_with(file.as_bytes())
        };
        let piece = self.pieces.iter().rfind(is_its);
        ForeignError::Instead {
            option: piece.map_or_else(|| file.clone(), |piece| piece.written.clone()),
            advice,
        }
    }

    /// Parses the arguments that `wireup run` gets from `launcher`.
    ///
    /// # Errors
    /// Text with the option that has an invalid value, as it was written.
    fn checked(&self, launcher: &str) -> Result<RunArgs, String> {
        let first = split_apps(self.words.clone()).remove(0);
        let parsed = run_args::parse(OptionTable::from_parser::<RunArgs>(), first);
        parsed.map_err(|error| {
            if lacks_program(&error) {
                return format!(
                    "no program is given; write: {launcher} [OPTIONS] PROGRAM [ARG]..."
                );
            }
            let wrong = self.pieces.iter().find_map(|piece| {
                let alone = piece.words.iter().cloned().chain(["a".into()]);
                let error = run_args::parse(OptionTable::from_parser::<RunArgs>(), alone.collect())
                    .err()?;
                Some(format!("{}: {}", piece.written.display(), reason(&error)))
            });
            wrong.unwrap_or_else(|| one_line(&error))
        })
    }

    /// Checks the user's own `--wrap`, which `wireup run` cannot check behind a redirection. Programs of other hosts and of
    /// images are not searched.
    ///
    /// # Errors
    /// The [`CommandError`] of `wireup run` for the line without redirections.
    fn check_wraps(&self) -> Result<(), CommandError> {
        let Some(words) = &self.unredirected else {
            return Ok(());
        };
        let check = |spec: JobSpec| {
            let nspace = Nspace::new("unredirected").map_err(CommandError::request)?;
            if !spec.container.is_empty() {
                return Ok(());
            }
            match HostPlan::new(spec, nspace, u64::MAX, None) {
                Err(failure @ CommandError::Program { .. }) => Err(failure),
                // The launch itself reports all others.
                _ => Ok(()),
            }
        };
        // The launch looks up its hosts; here they are looked up only for a program that this machine lacks.
        match run::spec_without_lookups(words.clone()).map(check) {
            Ok(Ok(())) => Ok(()),
            _ => check(run::spec_of(words.clone())?),
        }
    }
}

/// Ignores hosts of the environment if the line names hosts.
fn forget_hosts(own: &OptionTable, set: &mut TranslatedLine, words: &[OsString]) {
    const NAMES: [&str; 3] = ["--hosts", "--hostfile", "--rankfile"];
    if NAMES.iter().any(|name| option(own, words, name).is_some()) {
        let of_hosts = |words: &[OsString]| {
            words
                .first()
                .is_some_and(|word| NAMES.iter().any(|name| word == *name))
        };
        set.pieces.retain(|piece| !of_hosts(&piece.words));
    }
}

/// Splits the words from the environment into those of every program and those of the job.
fn split(set: &TranslatedLine) -> (Vec<OsString>, Vec<OsString>) {
    let next = OptionTable::from_parser::<NextApp>();
    let (mut everywhere, mut of_job) = (Vec::new(), Vec::new());
    for TranslatedOption { words, .. } in &set.pieces {
        match words.first() {
            // The number of ranks applies to the first program.
            Some(word) if next.knows(word) && word != "-n" => everywhere.extend_from_slice(words),
            _ => of_job.extend_from_slice(words),
        }
    }
    (everywhere, of_job)
}

/// Returns the label with these parts, as Open MPI writes it: the time, then the last of the others.
fn label(tags: &[Tag]) -> Vec<OsString> {
    if tags.is_empty() {
        return Vec::new();
    }
    let time = tags.iter().find(|tag| **tag == Tag::Time);
    let process = tags.iter().rev().find(|tag| **tag != Tag::Time);
    let parts = time.into_iter().chain(process);
    let parts: String = parts.map(|tag| tag.pattern()).collect();
    vec![format!("--label={parts}<std%s>: ").into()]
}

/// Adds these redirections to the ranks of a program, in front of its own `--wrap`.
fn redirect(own: &OptionTable, words: &mut Vec<OsString>, redirections: &OsStr) {
    let ranks: Option<RankSet> = match option(own, words, "--wrap-ranks") {
        None => None,
        Some(text) => match text.to_str().map(str::parse) {
            Some(Ok(ranks)) => Some(ranks),
            // The parser reports the error.
            _ => return,
        },
    };
    let wrap = option(own, words, "--wrap");
    let Some(command) = redirects::command(redirections, wrap.as_deref(), ranks.as_ref()) else {
        return;
    };
    for name in ["--wrap", "--wrap-ranks"] {
        take(own, words, name);
    }
    words.splice(0..0, ["--wrap".into(), command]);
}

/// Lets the GPUs per rank replace the visible GPUs of a host, if both are given.
fn see_gpus_of_ranks(words: &mut Vec<OsString>, pieces: &[TranslatedOption]) {
    for TranslatedOption { words: piece, .. } in pieces {
        let is_mask = piece
            .get(1)
            .is_some_and(|word| word.as_bytes().starts_with(b"CUDA_VISIBLE_DEVICES="));
        let at = words
            .windows(piece.len().max(1))
            .position(|found| found == &piece[..]);
        if let Some(at) = at.filter(|_| is_mask) {
            words.drain(at..at + piece.len());
        }
    }
}

/// Finds a program in the directory of its ranks without `./`, if `PATH` has no program of this name.
fn find_here(own: &OptionTable, everywhere: &[OsString], part: &mut TranslatedLine) {
    let dir = option(own, &part.words, "--wdir")
        .or_else(|| option(own, everywhere, "--wdir"))
        .map(PathBuf::from)
        .unwrap_or_default();
    let Some(program) = program(own, &part.words) else {
        return;
    };
    let word = &mut part.words[program];
    let paths = env::var_os("PATH").unwrap_or_default();
    let is_found = |name: &OsStr| env::split_paths(&paths).any(|dir| is_program(&dir.join(name)));
    if !word.as_bytes().contains(&b'/') && !is_found(word) && is_program(&dir.join(&word)) {
        *word = Path::new(".").join(&word).into();
    }
}

/// Returns the position of the program among words of wireup.
fn program(own: &OptionTable, words: &[OsString]) -> Option<usize> {
    let (at, kind) = own.scan(words).find(|(_, kind)| !kind.is_option())?;
    match kind {
        ArgumentKind::Program if words[at] == "--" => words.get(at + 1).map(|_| at + 1),
        ArgumentKind::Program => Some(at),
        _ => None,
    }
}

/// Returns the value of an option among words of wireup, up to the program.
fn option(own: &OptionTable, words: &[OsString], name: &str) -> Option<OsString> {
    let last = occurrences(own, words, name).pop();
    last.map(|(_, value)| value)
}

/// Removes an option from the words.
fn take(own: &OptionTable, words: &mut Vec<OsString>, name: &str) {
    for (at, _) in occurrences(own, words, name).into_iter().rev() {
        words.drain(at);
    }
}

/// Returns all values of an option among words of wireup, up to the program, with the ranges of their words.
fn occurrences(own: &OptionTable, words: &[OsString], name: &str) -> Vec<(Range<usize>, OsString)> {
    let mut found = Vec::new();
    let options = own.scan(words).take_while(|(_, kind)| kind.is_option());
    for (at, kind) in options {
        let (word, takes_next) = (&words[at], kind.takes_next());
        let end = at + 1 + usize::from(takes_next);
        let joined = word.as_bytes().strip_prefix(name.as_bytes());
        let joined = joined.and_then(|rest| rest.strip_prefix(b"="));
        if word == name && takes_next {
            found.extend(words.get(at + 1).map(|value| (at..end, value.clone())));
        } else if let Some(value) = joined {
            found.push((at..end, OsStr::from_bytes(value).to_owned()));
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
pub(super) fn install_links(args: &LinksArgs) -> Result<u8, CommandError> {
    let own =
        |path: &Path, error: io::Error| CommandError::system(path.display().to_string(), error);
    let target = env::current_exe().map_err(|error| own(Path::new("wireup"), error))?;
    std::fs::create_dir_all(&args.dir).map_err(|error| own(&args.dir, error))?;
    for (name, ..) in NAMES {
        let link = args.dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        std::os::unix::fs::symlink(&target, &link).map_err(|error| own(&link, error))?;
    }
    Ok(0)
}
