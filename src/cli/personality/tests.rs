use super::*;
use crate::report::command_line::quoted;

/// Command lines as the documentation of MPIs, Slurm, programs and centres has them, each with what is executed
/// instead, or with the refusal.
const CORPUS: &str = include_str!("../../../tests/command-lines.txt");

/// As a shell splits it; double quotes only.
fn words(line: &str) -> Vec<OsString> {
    let mut words = vec![String::new()];
    let (mut quoted, mut begun) = (false, false);
    for c in line.chars() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if begun {
                    words.push(String::new());
                }
                begun = false;
            }
            _ => {
                words.last_mut().unwrap().push(c);
                begun = true;
            }
        }
    }
    words.into_iter().map(OsString::from).collect()
}

/// The line of `wireup run`, if its plan is one, or the refusal.
fn outcome(line: &str) -> Result<String, String> {
    let mut words = words(line);
    let personality = Personality::of(&words.remove(0)).unwrap();
    let ours = personality
        .translated(words)
        .map_err(|error| error.to_string())?;
    let first = split_apps(ours.clone()).remove(0);
    let parsed = crate::cli::run::parse(Own::of::<RunArgs>(), first);
    if let Err(error) = parsed {
        return Err(crate::cli::usage_errors::of_run(&error));
    }
    let shown: Vec<String> = ours.iter().map(|word| quoted(word)).collect();
    Ok(shown.join(" "))
}

#[test]
fn command_lines_of_documentation_mean_what_they_say() {
    let mut count = 0;
    // Plans are checked where they can be made: tests/run/command_lines.rs.
    let own = |line: &&str| !line.starts_with('#') && !line.starts_with("    plan ");
    let mut lines = CORPUS.lines().filter(own);
    while let Some(line) = lines.next() {
        let expected = lines.next().unwrap();
        let found = match outcome(line) {
            Ok(ours) => format!("    wireup run {ours}"),
            Err(refusal) => format!("    refused: {refusal}"),
        };
        assert_eq!(found, expected, "{line}");
        count += 1;
    }
    assert!(count >= 200, "{count}");
}

#[test]
fn names_of_links_are_personalities() {
    assert_eq!(
        Personality::of(OsStr::new("/x/mpirun")),
        Some(Personality::Mpiexec)
    );
    assert_eq!(Personality::of(OsStr::new("srun")), Some(Personality::Srun));
    assert_eq!(Personality::of(OsStr::new("wireup")), None);
}

#[test]
fn times_are_srun_s() {
    for (text, seconds) in [
        ("2", "120"),
        ("2:30", "150"),
        ("1:00:01", "3601"),
        ("1-0", "86400"),
        ("1-1:1:1", "90061"),
    ] {
        let expected = ["--timeout", seconds].map(OsString::from).to_vec();
        assert_eq!(values::time(text), Some(expected), "{text}");
    }
    assert_eq!(values::time("0"), Some(Vec::new()));
    assert_eq!(values::time("1:2:3:4"), None);
}
