//! Command lines in a form that a shell reads, without the values of secrets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use crate::plan::environment;
use wireup_core::shell_words::quoted;

/// Text in place of a hidden value.
pub(crate) const HIDDEN: &str = "…hidden";

/// Options whose next two words are a variable and its value.
const TWO_WORDS: [&str; 3] = ["-env", "-genv", "--genv"];

/// Returns a whole command line for records and pages that others read. Values of variables that a dry run hides, and of
/// those whose names mark them as secrets, are left out.
pub(crate) fn command_line(words: &[OsString]) -> String {
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            line.push(' ');
        }
        let set_by = index.checked_sub(2).map(|at| &words[at]);
        let is_value = set_by.is_some_and(|option| TWO_WORDS.iter().any(|known| option == known));
        if is_value && environment::is_secret(&words[index - 1]) {
            line.push_str(HIDDEN);
        } else if let Some(at) = environment::secret_value(word) {
            line.push_str(&quoted(OsStr::from_bytes(&word.as_bytes()[..at])));
            line.push_str(HIDDEN);
        } else {
            line.push_str(&quoted(word));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_hides_values_of_secrets() {
        let line = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            command_line(&words)
        };
        for (words, expected) in [
            (&["run", "-x", "A=b c", "./a"][..], "run -x 'A=b c' ./a"),
            (&["-x", "FI_CXI_A=s", "./a"], "-x FI_CXI_A=…hidden ./a"),
            (&["-xSLINGSHOT_VNIS=1,2"], "-xSLINGSHOT_VNIS=…hidden"),
            (&["--env=MY_API_TOKEN=s"], "--env=MY_API_TOKEN=…hidden"),
            (
                &["--export=A=1,DB_PASSWORD=s"],
                "--export=A=1,DB_PASSWORD=…hidden",
            ),
            (
                &["-genv", "FI_CXI_A", "s", "./a"],
                "-genv FI_CXI_A …hidden ./a",
            ),
            (&["-x", "FI_CXI_A", "./a"], "-x FI_CXI_A ./a"),
            (&["-x", "MAX_TOKENS=5"], "-x MAX_TOKENS=5"),
        ] {
            assert_eq!(line(words), expected);
        }
    }
}
