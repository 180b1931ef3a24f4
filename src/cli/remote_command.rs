//! Plain commands on other hosts, through their agents: `wireup exec` on each of several, and `wireup rsh`, which launchers
//! use in place of ssh. Both become a launch without a process-management interface.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::Args;

use super::option_scan::OptionTable;
use super::remote_launch::{become_run, host_options};
use super::run_args::{self, RunArgs};
use super::run_usage_errors::lacks_program;
use wireup_core::failure::CommandError;

const EXEC_USAGE: &str = "wireup exec --hosts LIST [OPTION]... COMMAND [ARG]...";

const EXEC_EXAMPLES: &str = "\
Examples:
  wireup exec --hosts n1,n2 uptime        the lines are labelled with the number of the host in the list";

const RSH_EXAMPLES: &str = "\
Examples:
  wireup rsh n2 'cd /tmp && ls'
  mpirun --mca plm_rsh_agent 'wireup rsh' -H n1,n2 ./app     or, for all launchers: wireup env";

/// Options of ssh whose value is a separate word. Source: ssh(1).
const WITH_VALUE: &[u8] = b"BbcDEeFIiJLlmOopQRSWw";

/// Arguments of `wireup exec`.
#[derive(Debug, Args)]
#[command(override_usage = EXEC_USAGE)]
#[command(after_help = EXEC_EXAMPLES)]
pub(super) struct ExecArgs {
    /// Options of `wireup run` for hosts (--hosts, --hostfile, --timeout), the command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "COMMAND")]
    words: Vec<OsString>,
}

/// Arguments of `wireup rsh`.
#[derive(Debug, Args)]
#[command(override_usage = "wireup rsh HOST COMMAND...")]
#[command(after_help = RSH_EXAMPLES)]
pub(super) struct RshArgs {
    /// Options of ssh, which have no effect, the host, and words that its shell gets with blanks between them
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "HOST")]
    pub(super) words: Vec<OsString>,
}

/// Runs a command on each host.
pub(super) fn exec(args: ExecArgs) -> CommandError {
    let first = ["--pmi", "none", "--ppn", "1", "--label"].map(OsString::from);
    let words: Vec<OsString> = first.into_iter().chain(args.words).collect();
    let parsed = run_args::parse(OptionTable::from_parser::<RunArgs>(), words.clone());
    if parsed.is_err_and(|error| lacks_program(&error)) {
        return CommandError::request(format!("COMMAND is missing; write: {EXEC_USAGE}"));
    }
    become_run(words.into_iter())
}

/// Whether a line of wireup that begins with this word is one of `wireup rsh`: launchers accept one word as their agent,
/// and call it with options of ssh.
pub(super) fn is_ssh_option(word: &OsStr) -> bool {
    word == "-x" || word == "-q"
}

/// Runs a command line of the shell on a host; the words are those of `wireup rsh`.
///
/// Executes the command in the user's home directory, as ssh does: the current directory need not exist on the host.
pub(super) fn rsh(words: Vec<OsString>) -> CommandError {
    let Some((host, line)) = line(words) else {
        return CommandError::request("wireup rsh needs a host and a command");
    };
    let mut words: Vec<OsString> = ["--no-config", "--pmi", "none", "-n", "1", "--wdir", "/"]
        .map(OsString::from)
        .into();
    words.extend(host_options(&host));
    words.extend(["sh".into(), "-c".into(), at_home(line)]);
    become_run(words.into_iter())
}

/// Returns the line, preceded by a change to the home directory if it exists.
fn at_home(line: OsString) -> OsString {
    let mut all = OsString::from("cd 2>/dev/null\n");
    all.push(line);
    all
}

/// Returns the host and the line of its shell.
fn line(words: Vec<OsString>) -> Option<(OsString, OsString)> {
    let mut words = words.into_iter();
    let host = loop {
        let word = words.next()?;
        match word.as_bytes() {
            [b'-', letter] if WITH_VALUE.contains(letter) => drop(words.next()),
            [b'-', ..] => {}
            _ => break word,
        }
    };
    let rest: Vec<OsString> = words.collect();
    (!rest.is_empty()).then(|| (host, rest.join(OsStr::new(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_after_host_form_one_shell_line() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect();
        let expected = Some(("n1".into(), "a \"b\" -c".into()));
        assert_eq!(line(words("-q -x -p 22 n1 a \"b\" -c")), expected);
        assert_eq!(line(words("n1")), None);
    }
}
