//! Files of the ranks' streams, as srun and Hydra take them: one for all ranks is the launcher's own stream, one for each
//! rank is opened by a shell that becomes the rank.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::Command;

use super::{hydra, srun};
use crate::cli::foreign_options::ForeignError;
use crate::cli::foreign_options::option_table::RedirectedStream;
use wireup_core::failure::CommandError;
use wireup_core::job::rank_set::RankSet;

/// Translation of the files of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Redirected {
    /// Options of the job.
    pub(super) job: Vec<OsString>,
    /// Redirections of each rank, as a shell writes them.
    pub(super) ranks: OsString,
    /// Files that the launcher itself has for its streams.
    pub(super) files: Vec<(RedirectedStream, OsString)>,
}

/// Translates the last file of each stream.
///
/// # Errors
/// [`ForeignError`] for a name that cannot be meant.
pub(super) fn redirected(
    redirects: &[(RedirectedStream, OsString)],
    is_srun: bool,
) -> Result<Redirected, ForeignError> {
    let mut result = Redirected::default();
    let last = |stream| redirects.iter().rev().find(|(found, _)| *found == stream);
    let pattern = |stream| {
        let Some((_, name)) = last(stream) else {
            return Ok(None);
        };
        let read = match name.as_bytes() {
            b"all" if is_srun => return Ok(None),
            b"none" if is_srun => Ok(b"/dev/null".to_vec()),
            name if is_srun => srun::file(name),
            name => hydra::file(name),
        };
        read.map(Some).map_err(|advice| ForeignError::Instead {
            option: name.clone(),
            advice,
        })
    };
    let is_reader = |name: &OsStr| {
        let rank = name
            .to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok());
        name == "all" || name == "none" || rank
    };
    let input = match last(RedirectedStream::Input) {
        Some((_, name)) if is_reader(name) => {
            result.job.extend(["--stdin".into(), name.clone()]);
            None
        }
        _ => pattern(RedirectedStream::Input)?,
    };
    let mut output = pattern(RedirectedStream::Output)?;
    let mut error = pattern(RedirectedStream::Error)?;
    let is_merged = error.is_none() && last(RedirectedStream::Merged).is_some();
    let of_ranks = |name: &Option<Vec<u8>>| name.as_deref().is_some_and(is_opened_by_each_rank);
    // Without a file of its own, standard error of srun's tasks goes where standard output goes.
    if of_ranks(&output) && (output == error || error.is_none() && (is_srun || is_merged)) {
        let name = output.take().unwrap_or_default();
        let name = OsString::from_vec(name);
        result.job.extend(["--output".into(), name]);
        error = None;
    } else if is_srun && error.is_none() && last(RedirectedStream::Error).is_none() {
        error.clone_from(&output);
    }
    let mut script = Vec::new();
    let streams = [
        (RedirectedStream::Input, "<", input),
        (RedirectedStream::Output, ">", output),
        (RedirectedStream::Error, "2>", error),
    ];
    for (stream, sign, name) in streams {
        match name {
            Some(name) if is_opened_by_each_rank(&name) => {
                script.push(b' ');
                script.extend_from_slice(sign.as_bytes());
                script.extend_from_slice(&shell_word(&name));
            }
            Some(name) => result.files.push((stream, plain(&name))),
            None => {}
        }
    }
    if is_merged && result.job.iter().all(|word| word != "--output") {
        script.extend_from_slice(b" 2>&1");
    }
    result.ranks = OsString::from_vec(script);
    if result
        .files
        .iter()
        .any(|(stream, _)| *stream == RedirectedStream::Input)
    {
        result.job.extend(["--stdin".into(), "all".into()]);
    }
    Ok(result)
}

/// The command under which ranks have these redirections. It runs `wrap`, the user's own, on the ranks that are to have
/// that; `None` if that cannot be split into words, or has none.
pub(super) fn command(
    redirections: &OsStr,
    wrap: Option<&OsStr>,
    ranks: Option<&RankSet>,
) -> Option<OsString> {
    let mut script = Vec::new();
    let mut split = shlex::bytes::Shlex::new(wrap.unwrap_or_default().as_bytes());
    let words: Vec<Vec<u8>> = split.by_ref().collect();
    if split.had_error || wrap.is_some() && words.is_empty() {
        return None;
    }
    let start =
        |command: &[u8]| [&b"exec "[..], command, b"\"$@\"", redirections.as_bytes()].concat();
    if let Some(ranks) = ranks {
        let mut command = Vec::new();
        for word in &words {
            command.extend_from_slice(&shell_word(word));
            command.push(b' ');
        }
        script.extend_from_slice(format!("if {}; then ", write_rank_test(ranks)).as_bytes());
        script.extend_from_slice(&start(&command));
        script.extend_from_slice(b"; fi; ");
    }
    script.extend_from_slice(&start(b""));
    let mut line = [&b"sh -c "[..], &shell_word(&script)[..], b" sh"].concat();
    if ranks.is_none() {
        for word in &words {
            line.push(b' ');
            line.extend_from_slice(&shell_word(word));
        }
    }
    Some(OsString::from_vec(line))
}

/// Writes a shell's test of whether a rank is in the set.
fn write_rank_test(ranks: &RankSet) -> String {
    let tests = ranks.ranges().map(|range| {
        let (first, last) = (range.start(), range.end());
        // `&&` and `||` have the same precedence.
        format!("{{ [ %r -ge {first} ] && [ %r -le {last} ]; }}")
    });
    tests.collect::<Vec<_>>().join(" || ")
}

/// A word as a shell needs it, whatever its bytes.
fn shell_word(word: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return word.to_vec();
    }
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [&b"'"[..], &parts.join(&br"'\''"[..])[..], b"'"].concat()
}

/// A pattern without codes as the name that it stands for.
fn plain(pattern: &[u8]) -> OsString {
    let mut name = Vec::new();
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        name.push(byte);
        if byte == b'%' {
            // The other half of `%%`.
            bytes.next();
        }
    }
    OsString::from_vec(name)
}

/// Whether each rank may open the file: it has a name for each rank, or writers cannot spoil it.
fn is_opened_by_each_rank(name: &[u8]) -> bool {
    let mut bytes = name.iter();
    while let Some(&byte) = bytes.next() {
        if byte == b'%' && matches!(bytes.next(), Some(b'r' | b'h' | b'n')) {
            return true;
        }
    }
    name == b"/dev/null"
}

/// Gives a command its streams.
///
/// # Errors
/// [`CommandError`] for a file that cannot be opened.
pub(super) fn attach(
    command: &mut Command,
    files: &[(RedirectedStream, OsString)],
) -> Result<(), CommandError> {
    let failed = |name: &OsStr, error: io::Error| {
        CommandError::request(format!("cannot open {}: {error}", name.display()))
    };
    for (at, (stream, name)) in files.iter().enumerate() {
        let mut options = File::options();
        if *stream == RedirectedStream::Input {
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
            RedirectedStream::Input => command.stdin(file),
            RedirectedStream::Output => command.stdout(file),
            RedirectedStream::Error | RedirectedStream::Merged => command.stderr(file),
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::ids::Rank;

    fn of(
        redirects: &[(RedirectedStream, &str)],
        is_srun: bool,
    ) -> (String, String, Vec<(RedirectedStream, OsString)>) {
        let redirects: Vec<(RedirectedStream, OsString)> = redirects
            .iter()
            .map(|(stream, name)| (*stream, name.into()))
            .collect();
        let found = redirected(&redirects, is_srun).unwrap();
        let job = found.job.join(" ".as_ref()).into_string().unwrap();
        (job, found.ranks.into_string().unwrap(), found.files)
    }

    #[test]
    fn file_of_each_rank_is_opened_by_rank() {
        use RedirectedStream::{Error, Input, Merged, Output};
        let none = Vec::new;
        let of_srun = |list: &[(RedirectedStream, &str)]| of(list, true);
        let output = || ("--output o.%r".to_owned(), String::new(), none());
        assert_eq!(of_srun(&[(Output, "o.%t")]), output());
        assert_eq!(
            of_srun(&[(Output, "o.%t"), (Error, "e.%t"), (Input, "i.%t")]),
            (String::new(), " <i.%r >o.%r 2>e.%r".into(), none())
        );
        assert_eq!(
            of_srun(&[(Error, "none")]),
            (String::new(), " 2>/dev/null".into(), none())
        );
        let same = [(Output, "o.%r"), (Error, "o.%r")];
        assert_eq!(of(&same, false), output());
        assert_eq!(
            of(&same[..1], false),
            (String::new(), " >o.%r".into(), none())
        );
        assert_eq!(of(&[(Output, "o.%r"), (Merged, "")], false), output());
        assert_eq!(
            of(&[(Merged, "")], false),
            (String::new(), " 2>&1".into(), none())
        );
    }

    #[test]
    fn commands_of_users_run_behind_redirections() {
        let command = |wrap: Option<&str>, ranks: Option<&str>| {
            let ranks = ranks.map(|ranks| ranks.parse().unwrap());
            let command = command(" >o.%r".as_ref(), wrap.map(OsStr::new), ranks.as_ref());
            command.unwrap().into_string().unwrap()
        };
        assert_eq!(command(None, None), r#"sh -c 'exec "$@" >o.%r' sh"#);
        assert_eq!(
            command(Some("env 'A=1 2'"), None),
            r#"sh -c 'exec "$@" >o.%r' sh env 'A=1 2'"#
        );
        assert_eq!(
            command(Some("env A=1"), Some("0,2-3")),
            "sh -c 'if { [ %r -ge 0 ] && [ %r -le 0 ]; } || { [ %r -ge 2 ] && [ %r -le 3 ]; }; then \
             exec env A=1 \"$@\" >o.%r; fi; exec \"$@\" >o.%r' sh"
        );
    }

    #[test]
    fn shell_test_of_rank_agrees_with_rank_set() {
        for text in ["2-3,0", "0-9,2-3", "0,4-7,9", "5", "1-3,2-8"] {
            let set: RankSet = text.parse().unwrap();
            let test = write_rank_test(&set).replace("%r", "$r");
            let ranks: Vec<String> = (0..12).map(|rank| rank.to_string()).collect();
            let ranks = ranks.join(" ");
            let script = format!("for r in {ranks}; do if {test}; then echo $r; fi; done");
            let found = Command::new("sh").args(["-c", &script]).output().unwrap();
            let expected = (0..12).filter(|rank| set.contains(Rank(*rank)));
            let expected: String = expected.map(|rank| format!("{rank}\n")).collect();
            assert_eq!(String::from_utf8(found.stdout).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn unsplittable_commands_are_left_to_parser() {
        for wrap in ["env 'A", "", " "] {
            assert_eq!(command("".as_ref(), Some(wrap.as_ref()), None), None);
        }
    }

    #[test]
    fn percent_sign_before_code_letter_is_no_code() {
        for name in ["o%%r", "o%%h", "o%%n", "o%%"] {
            assert!(!is_opened_by_each_rank(name.as_bytes()), "{name}");
        }
        for name in ["o%r", "o%%%r", "%%%h", "%n", "/dev/null"] {
            assert!(is_opened_by_each_rank(name.as_bytes()), "{name}");
        }
        let (job, ranks, files) = of(&[(RedirectedStream::Output, "o.%%r")], false);
        assert_eq!((job.as_str(), ranks.as_str()), ("", ""));
        assert_eq!(files, [(RedirectedStream::Output, OsString::from("o.%r"))]);
    }

    #[test]
    fn names_preserve_non_utf8_bytes() {
        let name = OsString::from_vec(b"o\xff.%r".to_vec());
        let found = redirected(&[(RedirectedStream::Output, name)], false).unwrap();
        assert_eq!(found.ranks.as_bytes(), b" >'o\xff.%r'");
        let name = OsString::from_vec(b"o\xff%%".to_vec());
        let found = redirected(&[(RedirectedStream::Output, name)], true).unwrap();
        assert_eq!(found.files[0].1.as_bytes(), b"o\xff%");
    }

    #[test]
    fn file_of_all_ranks_is_stream_for_launcher() {
        use RedirectedStream::{Error, Input, Output};
        let files = |list: &[(RedirectedStream, &str)]| {
            list.iter()
                .map(|(stream, name)| (*stream, OsString::from(name)))
                .collect::<Vec<_>>()
        };
        let plain = |list: &[(RedirectedStream, &str)], is_srun: bool| of(list, is_srun).2;
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
