//! Files of the ranks' streams, as srun and Hydra take them: one for all ranks is the launcher's own stream, one for each
//! rank is opened by a shell that becomes the rank.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::Command;

use super::{hydra, srun};
use crate::cli::foreign_options::ForeignError;
use crate::cli::foreign_options::table::Stream;
use crate::failure::RunFailure;
use crate::report::command_line::quoted;

/// What becomes of the files of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Redirected {
    /// Options of the job.
    pub(super) job: Vec<OsString>,
    /// Options of each program.
    pub(super) program: Vec<OsString>,
    /// Files that the launcher itself has for its streams.
    pub(super) files: Vec<(Stream, String)>,
}

/// The last file of each stream.
///
/// # Errors
/// [`ForeignError`] for a name that cannot be meant.
pub(super) fn redirected(
    redirects: &[(Stream, OsString)],
    is_srun: bool,
) -> Result<Redirected, ForeignError> {
    let mut result = Redirected::default();
    let last = |stream| redirects.iter().rev().find(|(found, _)| *found == stream);
    let pattern = |stream| {
        let Some((_, name)) = last(stream) else {
            return Ok(None);
        };
        let text = name.to_string_lossy();
        let read = match &*text {
            "all" if is_srun => return Ok(None),
            "none" if is_srun => Ok("/dev/null".to_owned()),
            text if is_srun => srun::file(text),
            text => hydra::file(text),
        };
        read.map(Some).map_err(|advice| ForeignError::Instead {
            option: name.clone(),
            advice,
        })
    };
    let input = match last(Stream::Input).map(|(_, name)| name.to_string_lossy()) {
        Some(name) if name == "all" || name == "none" || name.parse::<u32>().is_ok() => {
            result
                .job
                .extend(["--stdin".into(), name.into_owned().into()]);
            None
        }
        _ => pattern(Stream::Input)?,
    };
    let (mut output, mut error) = (pattern(Stream::Output)?, pattern(Stream::Error)?);
    let of_ranks = |name: &Option<String>| name.as_deref().is_some_and(is_of_ranks);
    // Without a file of its own, standard error of srun's tasks goes where standard output goes.
    if of_ranks(&output) && (output == error || is_srun && error.is_none()) {
        let name = output.take().unwrap_or_default();
        result.job.extend(["--output".into(), name.into()]);
        error = None;
    } else if is_srun && error.is_none() && last(Stream::Error).is_none() {
        error.clone_from(&output);
    }
    let mut script = String::from("exec \"$@\"");
    let streams = [
        (Stream::Input, "<", input),
        (Stream::Output, ">", output),
        (Stream::Error, "2>", error),
    ];
    for (stream, sign, name) in streams {
        match name {
            Some(name) if is_of_ranks(&name) => {
                script.push_str(&format!(" {sign}{}", quoted(name.as_ref())));
                result.program = vec![
                    "--wrap".into(),
                    format!("sh -c {} sh", quoted(script.as_ref())).into(),
                ];
            }
            Some(name) => result.files.push((stream, name.replace("%%", "%"))),
            None => {}
        }
    }
    if result
        .files
        .iter()
        .any(|(stream, _)| *stream == Stream::Input)
    {
        result.job.extend(["--stdin".into(), "all".into()]);
    }
    Ok(result)
}

/// Whether each rank opens the file: there are several, or nothing that two of them could spoil.
fn is_of_ranks(name: &str) -> bool {
    ["%r", "%h", "%n"].iter().any(|field| name.contains(field)) || name == "/dev/null"
}

/// Gives a command its streams.
///
/// # Errors
/// [`RunFailure`] for a file that cannot be opened.
pub(super) fn attach(command: &mut Command, files: &[(Stream, String)]) -> Result<(), RunFailure> {
    let failed =
        |name: &str, error: io::Error| RunFailure::request(format!("cannot open {name}: {error}"));
    for (at, (stream, name)) in files.iter().enumerate() {
        let mut options = File::options();
        if *stream == Stream::Input {
            options.read(true);
        } else {
            // Two streams of one file follow each other in it.
            if files[..at].iter().all(|(_, other)| other != name) {
                File::create(name).map_err(|error| failed(name, error))?;
            }
            options.append(true);
        }
        let file = options.open(name).map_err(|error| failed(name, error))?;
        match stream {
            Stream::Input => command.stdin(file),
            Stream::Output => command.stdout(file),
            Stream::Error => command.stderr(file),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(redirects: &[(Stream, &str)], is_srun: bool) -> (String, String, Vec<(Stream, String)>) {
        let redirects: Vec<(Stream, OsString)> = redirects
            .iter()
            .map(|(stream, name)| (*stream, name.into()))
            .collect();
        let found = redirected(&redirects, is_srun).unwrap();
        let joined = |words: Vec<OsString>| words.join(" ".as_ref()).into_string().unwrap();
        (joined(found.job), joined(found.program), found.files)
    }

    #[test]
    fn file_of_each_rank_is_opened_by_rank() {
        use Stream::{Error, Input, Output};
        let none = Vec::new;
        let of_srun = |list: &[(Stream, &str)]| of(list, true);
        assert_eq!(
            of_srun(&[(Output, "o.%t")]),
            ("--output o.%r".into(), String::new(), none())
        );
        let wrap = |script: &str| format!("--wrap sh -c '{script}' sh");
        assert_eq!(
            of_srun(&[(Output, "o.%t"), (Error, "e.%t"), (Input, "i.%t")]),
            (
                String::new(),
                wrap("exec \"$@\" <i.%r >o.%r 2>e.%r"),
                none()
            )
        );
        assert_eq!(
            of_srun(&[(Error, "none")]),
            (String::new(), wrap("exec \"$@\" 2>/dev/null"), none())
        );
        let same = [(Output, "o.%r"), (Error, "o.%r")];
        assert_eq!(
            of(&same, false),
            ("--output o.%r".into(), String::new(), none())
        );
        assert_eq!(
            of(&same[..1], false),
            (String::new(), wrap("exec \"$@\" >o.%r"), none())
        );
    }

    #[test]
    fn file_of_all_ranks_is_stream_of_launcher() {
        use Stream::{Error, Input, Output};
        let files = |list: &[(Stream, &str)]| {
            list.iter()
                .map(|(stream, name)| (*stream, (*name).to_owned()))
                .collect::<Vec<_>>()
        };
        let plain = |list: &[(Stream, &str)], is_srun: bool| of(list, is_srun).2;
        assert_eq!(
            plain(&[(Output, "o")], true),
            files(&[(Output, "o"), (Error, "o")])
        );
        assert_eq!(
            plain(&[(Output, "o"), (Error, "all")], true),
            files(&[(Output, "o")])
        );
        assert_eq!(plain(&[(Output, "o")], false), files(&[(Output, "o")]));
        let (job, _, opened) = of(&[(Input, "i")], true);
        assert_eq!(
            (job.as_str(), opened),
            ("--stdin all", files(&[(Input, "i")]))
        );
        assert_eq!(of(&[(Input, "3")], true).0, "--stdin 3");
        assert!(redirected(&[(Output, "o.%q".into())], true).is_err());
    }
}
