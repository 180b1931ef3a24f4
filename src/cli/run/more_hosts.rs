//! `--hosts n01 n02 ./app`: hosts behind a blank, of which the second would be the program.

use std::ffi::OsString;

use crate::cli::option_scan::{ArgumentKind, OptionTable};
use crate::inspect::program::Program;

/// A program that looks like a host.
#[derive(Debug, thiserror::Error)]
#[error("program {program:?} not found; separate hosts by commas, did you mean: --hosts {list}")]
pub(in crate::cli) struct MoreHosts {
    program: OsString,
    /// The hosts with commas between them.
    list: String,
}

/// Names more hosts where the first words behind the options look like some: `--hosts n01 n02 ./app`.
pub(in crate::cli) fn find(own: &OptionTable, words: &[OsString]) -> Option<MoreHosts> {
    let mut scanned = own.scan(words);
    let mut hosts: Option<&str> = None;
    let all = loop {
        let (at, kind) = scanned.next()?;
        match kind {
            ArgumentKind::Option { .. } => {
                let text = words[at].to_str().unwrap_or_default();
                if text == "--hosts" {
                    hosts = words.get(at + 1).and_then(|list| list.to_str());
                } else if let Some(list) = text.strip_prefix("--hosts=") {
                    hosts = Some(list);
                }
            }
            ArgumentKind::Program => break &words[at..],
            ArgumentKind::SingleDash { .. } | ArgumentKind::Unknown => return None,
        }
    };
    let hosts = hosts?;
    // `n01:4` and `n02` are names of the same series.
    let series = |name: &str| {
        let name = name.split([':', '@']).next().unwrap_or_default();
        let letters = name.replace(|char: char| char.is_ascii_digit(), "");
        (letters.len() < name.len()).then_some(letters)
    };
    let last = hosts.trim_end_matches(',').rsplit(',').next()?;
    let is_host = |word: &&OsString| {
        let word = word.to_str().unwrap_or("/");
        !word.contains('/')
            && (hosts.ends_with(',') || series(word).is_some() && series(word) == series(last))
    };
    let program = &all[0];
    let more = all.iter().take_while(is_host).count();
    let path = std::env::var_os("PATH");
    let here = std::env::current_dir().unwrap_or_default();
    if more == 0 || more == all.len() || Program::find(program, path.as_deref(), &here).is_ok() {
        return None;
    }
    let more = all[..more].iter().map(|word| word.to_string_lossy());
    let list: Vec<_> = std::iter::once(hosts.trim_end_matches(',').into())
        .chain(more.map(|word| word.trim_matches(',').to_owned()))
        .collect();
    Some(MoreHosts {
        program: program.clone(),
        list: list.join(","),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run_args::RunArgs;

    fn found(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        find(&OptionTable::from_parser::<RunArgs>(), &words).map(|found| found.list)
    }

    #[test]
    fn hosts_after_blank_are_joined() {
        for (line, list) in [
            ("--hosts n01 n02 ./app", "n01,n02"),
            ("--hosts=n01:2 n02:2 n03:2 ./app x", "n01:2,n02:2,n03:2"),
            ("--hosts n01, n02 ./app", "n01,n02"),
            ("--hosts alpha, beta, ./app", "alpha,beta"),
            ("-n 2 --hosts n01,n02 -l n03 ./app", "n01,n02,n03"),
        ] {
            assert_eq!(found(line).as_deref(), Some(list), "{line}");
        }
    }

    #[test]
    fn programs_are_none() {
        for line in [
            "--hosts n01 ./n02 x",
            "--hosts n01 n02",
            "--hosts alpha beta ./app",
            "--hosts n01 sh n02",
            "--hosts n01 solver2 input",
            "n01 n02 ./app",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }
}
