//! Per-rank output files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open as open_file, statvfs};
use rustix::io::Errno;

use crate::plan::HostPlan;
use crate::plan::pattern::{PatternError, PatternFields};
use crate::start_ranks::OutputPlan;
use wireup_core::failure::RequestError;
use wireup_core::job::ids::Rank;
use wireup_sys::access::{creatable, is_program};

/// Files of one rank: for standard output, and for standard error if that is a different file.
type Files = (PathBuf, Option<PathBuf>);

/// Whether the launcher opens the files of all ranks. The files of other hosts are opened there, unless the launcher writes
/// them with the time in front of each line.
pub fn are_opened_by_launcher(plan: &HostPlan) -> bool {
    plan.scope.is_some() || plan.spec.stdio.timestamps
}

/// Opens the output files of all ranks; existing files are emptied. Returns each rank's output, by rank.
///
/// # Errors
/// [`OutputError`] for a pattern that is invalid or gives two ranks the same file, or a file that cannot be written.
pub fn open(plan: &HostPlan) -> Result<Vec<OutputPlan>, OutputError> {
    let Some(pattern) = &plan.spec.stdio.output else {
        let size = plan.job.process_map.size();
        return Ok((0..size).map(|_| OutputPlan::Pipes).collect());
    };
    // All names are checked before the first file is emptied.
    files(pattern, names(plan, pattern)?)
}

fn files(pattern: &OsStr, names: Vec<Files>) -> Result<Vec<OutputPlan>, OutputError> {
    refuse_programs(pattern, &names)?;
    let open = |path: PathBuf| create(&path).map_err(|errno| not_written(pattern, &path, errno));
    names
        .into_iter()
        .map(|(out, err)| {
            Ok(OutputPlan::Files {
                out: open(out)?,
                err: err.map(open).transpose()?,
            })
        })
        .collect()
}

/// Opens the output files of some ranks of a job on several hosts, as [`open`] does, and returns them in the order of the
/// ranks. Files that the launcher writes are not opened.
///
/// # Errors
/// As [`open`].
pub fn open_here(plan: &HostPlan, ranks: &[Rank]) -> Result<Vec<OutputPlan>, OutputError> {
    let pattern = plan.spec.stdio.output.as_ref();
    let Some(pattern) = pattern.filter(|_| !plan.spec.stdio.timestamps) else {
        return Ok(ranks.iter().map(|_| OutputPlan::Pipes).collect());
    };
    let names = names(plan, pattern)?;
    let here = ranks.iter().map(|rank| names[rank.index()].clone());
    files(pattern, here.collect())
}

/// Reports the errors of [`open`] that can be found without creating a file. Each host checks whether its files can be
/// written.
///
/// # Errors
/// The errors of `open`.
pub fn check(plan: &HostPlan) -> Result<(), OutputError> {
    let Some(pattern) = &plan.spec.stdio.output else {
        return Ok(());
    };
    let names = names(plan, pattern)?;
    if !are_opened_by_launcher(plan) {
        return Ok(());
    }
    refuse_programs(pattern, &names)?;
    for (out, err) in names {
        for path in std::iter::once(&out).chain(&err) {
            creatable(path).map_err(|errno| not_written(pattern, path, errno))?;
        }
    }
    Ok(())
}

/// Returns the first file of these ranks on a full file system. Ranks write their files themselves, and few programs check
/// whether all was written.
pub fn without_space(plan: &HostPlan, ranks: impl IntoIterator<Item = Rank>) -> Option<PathBuf> {
    let pattern = plan.spec.stdio.output.as_ref();
    let pattern = pattern.filter(|_| !plan.spec.stdio.timestamps)?;
    let names = names(plan, pattern).ok()?;
    let mut files = ranks.into_iter().filter_map(|rank| {
        let (out, err) = names.get(rank.index())?;
        std::iter::once(out).chain(err).find(|path| is_full(path))
    });
    files.next().cloned()
}

fn is_full(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| {
        let free = match rustix::process::geteuid().is_root() {
            true => found.f_bfree,
            false => found.f_bavail,
        };
        // A file system without a size limit reports 0 blocks.
        found.f_blocks > 0 && free == 0
    })
}

/// Error: the output of ranks cannot be written to files.
#[derive(Debug, thiserror::Error)]
#[error("--output {pattern}: {problem}")]
pub struct OutputError {
    pattern: String,
    problem: OutputProblem,
}

impl RequestError for OutputError {}

#[derive(Debug, thiserror::Error)]
enum OutputProblem {
    #[error("cannot write {}: {errno}", path.display())]
    Unwritable { path: PathBuf, errno: Errno },
    #[error("cannot overwrite the program {}; name a file for the output before the program", .0.display())]
    Program(PathBuf),
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("ranks {first} and {second} would both write {}; use %r in the name", path.display())]
    Shared {
        first: Rank,
        second: Rank,
        path: PathBuf,
    },
}

fn wrong(pattern: &OsStr, problem: impl Into<OutputProblem>) -> OutputError {
    OutputError {
        pattern: pattern.to_string_lossy().into_owned(),
        problem: problem.into(),
    }
}

fn not_written(pattern: &OsStr, path: &Path, errno: Errno) -> OutputError {
    let path = path.to_owned();
    wrong(pattern, OutputProblem::Unwritable { path, errno })
}

/// Returns the files of every rank.
fn names(plan: &HostPlan, pattern: &OsStr) -> Result<Vec<Files>, OutputError> {
    let size = plan.job.process_map.size();
    let mut taken: BTreeMap<PathBuf, Rank> = BTreeMap::new();
    let mut names = Vec::with_capacity(size as usize);
    for rank in (0..size).map(Rank) {
        let name = |stream| {
            let fields = PatternFields {
                stream: Some(stream),
                ..plan.fields(rank)
            };
            let name = fields.fill(pattern).map(PathBuf::from);
            name.map_err(|error| wrong(pattern, error))
        };
        let (out, err) = (name("out")?, name("err")?);
        let err = (err != out).then_some(err);
        for path in std::iter::once(&out).chain(&err) {
            if let Some(other) = taken.insert(path.clone(), rank)
                && !is_device(path)
            {
                let problem = OutputProblem::Shared {
                    first: other,
                    second: rank,
                    path: path.clone(),
                };
                return Err(wrong(pattern, problem));
            }
        }
        names.push((out, err));
    }
    Ok(names)
}

/// Refuses to empty an executable program: `--output ./app` lacks its value.
fn refuse_programs(pattern: &OsStr, names: &[Files]) -> Result<(), OutputError> {
    let is_executable = |path: &Path| {
        let mode = path.metadata().map(|meta| meta.permissions().mode());
        mode.is_ok_and(|mode| mode & 0o111 != 0) && is_program(path)
    };
    let mut paths = names
        .iter()
        .flat_map(|(out, err)| std::iter::once(out).chain(err));
    match paths.find(|path| is_executable(path)) {
        Some(path) => Err(wrong(pattern, OutputProblem::Program(path.clone()))),
        None => Ok(()),
    }
}

/// Whether the path is a device, such as `/dev/null`, which several ranks may write.
fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.file_type().is_char_device())
}

/// Opens a file for appending, so that standard output and error in one file do not overwrite each other. A named pipe
/// without a reader is an error; the open does not wait.
fn create(path: &Path) -> rustix::io::Result<File> {
    match open_new(path) {
        Err(Errno::NOENT) => {
            let result = path.parent().map(std::fs::create_dir_all);
            match result {
                Some(Ok(())) => open_new(path),
                Some(Err(error)) => Err(Errno::from_io_error(&error).unwrap_or(Errno::NOENT)),
                None => Err(Errno::NOENT),
            }
        }
        opened => opened,
    }
}

fn open_new(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND;
    let mode = Mode::from_raw_mode(0o666);
    let fd = open_file(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, mode)?;
    fcntl_setfl(&fd, OFlags::APPEND)?;
    Ok(fd.into())
}
