//! Per-rank output files.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open as open_file};

use super::plan::Plan;
use super::run::RunFailure;
use crate::agent::start::OutputPlan;
use crate::job::ids::Rank;
use crate::job::outcome::EXIT_WIREUP;

/// What a pattern's fields stand for.
struct Fields<'a> {
    rank: Rank,
    host: &'a str,
    job: &'a str,
    node: u32,
    stream: &'a str,
}

/// Fills a pattern in. `Err` holds the unknown character after a `%`, or nothing at the end.
fn fill(pattern: &OsStr, fields: &Fields<'_>) -> Result<PathBuf, Option<char>> {
    let mut out = Vec::new();
    let mut bytes = pattern.as_bytes().iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'r') => out.extend_from_slice(fields.rank.to_string().as_bytes()),
            Some(b'h') => out.extend_from_slice(fields.host.as_bytes()),
            Some(b'j') => out.extend_from_slice(fields.job.as_bytes()),
            Some(b'n') => out.extend_from_slice(fields.node.to_string().as_bytes()),
            Some(b's') => out.extend_from_slice(fields.stream.as_bytes()),
            Some(b'%') => out.push(b'%'),
            Some(other) => return Err(Some(char::from(*other))),
            None => return Err(None),
        }
    }
    Ok(OsString::from_vec(out).into())
}

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
        let node = plan.job.ranks.node_of(rank).unwrap_or_default();
        let name = |stream| {
            let fields = Fields {
                rank,
                host: &plan.node_names[node.index()],
                job: plan.job.nspace.as_str(),
                node: node.0,
                stream,
            };
            fill(pattern, &fields).map_err(|unknown| match unknown {
                Some(c) => wrong(format!("%{c} is unknown; known are %r %h %j %n %s and %%")),
                None => wrong("a single % at the end; write %% for a percent sign".into()),
            })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_filled_in_and_mistakes_named() {
        let fields = Fields {
            rank: Rank(7),
            host: "h",
            job: "j",
            node: 2,
            stream: "out",
        };
        let fill = |text: &str| fill(OsStr::new(text), &fields);
        assert_eq!(
            fill("a/%r-%h-%j-%n.%s%%"),
            Ok(PathBuf::from("a/7-h-j-2.out%"))
        );
        assert_eq!(fill("%x"), Err(Some('x')));
        assert_eq!(fill("a%"), Err(None));
    }
}
