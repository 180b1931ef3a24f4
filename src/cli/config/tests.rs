use std::path::Path;

use super::*;

fn own() -> OptionTable {
    OptionTable::from_parser::<RunArgs>()
}

fn defaults(texts: &[&str]) -> Result<Defaults, String> {
    let own = own();
    let file = |(index, text): (usize, &&str)| {
        let path = PathBuf::from(format!("f{index}"));
        let entries =
            defaults_file::entries(&own, &path, text).map_err(|error| error.to_string())?;
        Ok(DefaultsFile { path, entries })
    };
    let files = texts
        .iter()
        .enumerate()
        .map(file)
        .collect::<Result<_, String>>()?;
    Ok(Defaults {
        files,
        ..Defaults::default()
    })
}

#[track_caller]
fn words(text: &str) -> Vec<String> {
    let words = defaults(&[text]).unwrap().words();
    words
        .into_iter()
        .map(|word| word.into_string().unwrap())
        .collect()
}

#[track_caller]
fn refusal(text: &str) -> String {
    defaults(&[text])
        .map(|defaults| defaults.words())
        .unwrap_err()
}

#[test]
fn values_become_arguments_in_order_of_file() {
    let text =
        "# site\n[run]\ntimeout = 3600\nlabel = true\nenv = [\"A=1\", \"B=x y\"]\npmi = 'pmix'\n";
    let expected = [
        "--timeout=3600",
        "--label",
        "--env=A=1",
        "--env=B=x y",
        "--pmi=pmix",
    ];
    assert_eq!(words(text), expected);
    assert_eq!(words("run.timeout = 0.5"), ["--timeout=0.5"]);
    assert_eq!(words("run.umask = 0o22"), ["--umask=0o22"]);
    let opposite = words("run.no-kill-on-bad-exit = true");
    assert_eq!(opposite, ["--no-kill-on-bad-exit"]);
    assert_eq!(words("run.kill-on-bad-exit = false"), opposite);
    assert_eq!(words("[run]\nenv = 'A=1'"), ["--env=A=1"]);
    assert_eq!(words("[run]\nlabel = false"), ["--no-label"]);
    assert_eq!(words("[run]\nlabel = '%h: '"), ["--label=%h: "]);
    assert_eq!(
        words("[run]\nstage = [true, 'in.dat']"),
        ["--stage", "--stage=in.dat"]
    );
    assert_eq!(words("[run]\ntiming = true"), ["--timing"]);
    assert_eq!(
        words("[run]\nverbose = 2"),
        ["--no-verbose", "--verbose", "--verbose"]
    );
    assert_eq!(words("[run]\nverbose = false"), ["--no-verbose"]);
    assert_eq!(words(""), [""; 0]);
}

#[test]
fn config_error_names_file_line_and_remedy() {
    for (text, needed) in [
        (
            "[run]\nlable = true",
            "f0:2: unknown key 'lable', did you mean 'label'?",
        ),
        (
            "[run]\nzzz = 1",
            "f0:2: unknown key 'zzz'; keys are the long options",
        ),
        (
            "[run]\nno-label = true",
            "f0:2: unknown key 'no-label', write label = false",
        ),
        (
            "[run]\n\nranks = 4",
            "f0:3: 'ranks' belongs to one job; give --ranks",
        ),
        (
            "label = true",
            "f0:1: 'label' is outside of a table; write [run] above it",
        ),
        (
            "[runs]\nlabel = true",
            "f0:1: unknown table [runs]; write the options in [run]",
        ),
        ("run = 1", "f0:1: write [run]"),
        (
            "[run]\ntimestamps = 'yes'",
            "'timestamps' is a switch; write true or false",
        ),
        ("[run]\nverbose = -1", "'verbose' is counted"),
        ("[run]\nverbose = 1000", "'verbose' is counted"),
        ("[run]\npmi = ['pmix']", "'pmi' takes one value, not a list"),
        (
            "[run]\npmi = true",
            "'pmi' takes a value and true is a boolean",
        ),
        ("[run]\nenv = [['A=1']]", "'env' takes a text or a number"),
        ("[run]\nwdir = '/'", "'wdir' belongs to one job"),
        ("[run]\nargv = 'x'", "unknown key 'argv'"),
        ("[run]\nhelp = true", "unknown key 'help'"),
        (
            "[run]\nlabel = true\nlabel = false",
            "f0:3: invalid TOML: duplicate key",
        ),
        ("[run]\nlabel = maybe", "f0:2: "),
        (
            "[run]\nlibpmix = \"a\\u0000b\"",
            "f0:2: 'libpmix' holds a NUL byte",
        ),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(needed), "{text:?}: {refusal}");
        assert!(!refusal.contains('\n'), "{refusal:?}");
    }
}

#[test]
fn value_refused_by_option_is_reported_with_its_line() {
    let wrong = defaults(&["", "[run]\nlabel = true\npmi = 'pmx'"]).unwrap();
    let line = wrong.blame().unwrap();
    assert!(
        line.starts_with("f1:3: invalid value 'pmx' for '--pmi <PMI>'"),
        "{line}"
    );
    let apart = defaults(&["[run]\nwrap-ranks = '0'"]).unwrap();
    let line = apart.blame().unwrap();
    assert!(
        line.starts_with("f0: --wrap ") && line.ends_with(" is missing"),
        "{line}"
    );
    let together = defaults(&["[run]\nwrap-ranks = '0'\nwrap = 'env'"]).unwrap();
    assert_eq!(together.blame(), None);
    let right = defaults(&["[run]\npmi = 'pmix'", "[run]\npmi = 'pmi1'"]).unwrap();
    assert_eq!(right.blame(), None);
}

#[test]
fn only_options_of_apps_are_repeated_for_each_app() {
    let both = defaults(&["[run]\nlabel = true\nenv = ['A=1']"]).unwrap();
    assert_eq!(both.words_of_every_program(), [OsString::from("--env=A=1")]);
}

#[test]
fn files_are_refused_among_options_only() {
    let refused = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        is_refused(&own(), &words)
    };
    assert!(refused("-n 2 --no-config a"));
    assert!(!refused("-n 2 a --no-config"));
    assert!(!refused("--wdir --no-config a"));
}

#[test]
fn every_option_except_those_of_one_job_is_accepted() {
    let own = own();
    let names: Vec<&str> = file_options(&own).filter_map(clap::Arg::get_long).collect();
    for name in PER_JOB {
        assert!(own.long(name).is_some(), "{name} is no option any more");
        assert!(!names.contains(name));
    }
    for (name, _) in VARIABLES {
        assert!(names.contains(name));
    }
    for name in ["label", "pmi", "timeout", "env", "oversubscribe", "libpmix"] {
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn every_switch_from_file_is_accepted_by_parser() {
    let own = own();
    for arg in file_options(&own).filter(|arg| !arg.get_action().takes_values()) {
        let name = arg.get_long().unwrap();
        for value in ["true", "false"] {
            let defaults = defaults(&[&format!("[run]\n{name} = {value}")]).unwrap();
            assert_eq!(defaults.blame(), None);
        }
    }
}

#[test]
fn entries_have_line_numbers_in_any_order_of_keys() {
    let entries =
        defaults_file::entries(&own(), Path::new("f"), "[run]\npmi = 'all'\n\nlabel = true");
    let lines: Vec<(String, usize)> = entries
        .unwrap()
        .into_iter()
        .map(|e| (e.key, e.line))
        .collect();
    assert_eq!(lines, [("pmi".into(), 2), ("label".into(), 4)]);
}
