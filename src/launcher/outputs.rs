//! Per-rank output files.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open as open_file};

use super::pattern::Fields;
use super::plan::Plan;
use super::run::RunFailure;
use crate::agent::start::OutputPlan;
use crate::job::ids::Rank;
use crate::job::outcome::EXIT_WIREUP;

/// Where each rank's output goes, by rank; files are made, and emptied if they exist.
///
/// # Errors
/// [`RunFailure`] for a pattern that is wrong, gives two ranks the same file, or cannot be written.
pub fn open(plan: &Plan) -> Result<Vec<OutputPlan>, RunFailure> {
    let size = plan.job.ranks.size();
    let Some(pattern) = &plan.spec.stdio.output else {
        return Ok((0..size).map(|_| OutputPlan::Pipes).collect());
    };
    let wrong = |text: String| RunFailure {
        code: EXIT_WIREUP,
        message: format!("--output {}: {text}", pattern.to_string_lossy()),
    };
    // All names are known to be right before the first file loses its old contents.
    let mut taken: BTreeMap<PathBuf, Rank> = BTreeMap::new();
    let mut names = Vec::with_capacity(size as usize);
    for rank in (0..size).map(Rank) {
        let name = |stream| {
            let fields = Fields {
                stream: Some(stream),
                ..Fields::of(plan, rank)
            };
            let name = fields.fill(pattern).map(PathBuf::from);
            name.map_err(|error| wrong(error.to_string()))
        };
        let (out, err) = (name("out")?, name("err")?);
        let err = (err != out).then_some(err);
        for path in [Some(&out), err.as_ref()].into_iter().flatten() {
            if let Some(other) = taken.insert(path.clone(), rank)
                && !is_device(path)
            {
                let path = path.display();
                return Err(wrong(format!(
                    "ranks {other} and {rank} would both write {path}; use %r in the name"
                )));
            }
        }
        names.push((out, err));
    }
    let open = |path: PathBuf| {
        create(&path).map_err(|errno| wrong(format!("cannot write {}: {errno}", path.display())))
    };
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

/// Devices, such as `/dev/null`, hold nothing that a second writer could spoil.
fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.file_type().is_char_device())
}

/// Appending, so that standard output and error in one file do not overwrite each other. A named
/// pipe that nobody reads is an error and no reason to wait.
fn create(path: &Path) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND;
    let mode = Mode::from_raw_mode(0o666);
    let fd = open_file(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, mode)?;
    fcntl_setfl(&fd, OFlags::APPEND)?;
    Ok(fd.into())
}
