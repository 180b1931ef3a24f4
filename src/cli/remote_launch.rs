//! Builds lines of `wireup run` that execute commands of wireup and of the user on other hosts.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use wireup_core::failure::CommandError;

/// Variable with the command that starts agents, for launches within a launch that name only their hosts.
pub(super) const AGENTS: &str = "WIREUP_LAUNCH_AGENTS";

/// Variable with the hosts whose agents have other addresses than their names, in the form of `--hosts`.
pub(super) const ADDRESSES: &str = "WIREUP_ADDRESSES";

/// Options of `wireup run` for a command that is no program of MPI: defaults files and batch systems do not matter.
pub(super) const WITHOUT_MPI: [&str; 5] = ["--no-config", "--engine", "none", "--pmi", "none"];

/// Script that executes wireup on a host, by the path of this one or by PATH.
pub(super) const SCRIPT: &str = r#"export WIREUP_PASSED_ON=1
for own in "$0" "$(command -v wireup)"; do
  [ -x "$own" ] && exec "$own" "$@"
done
echo "no $0 on $(uname -n), and no wireup in PATH" >&2
exit 127"#;

/// Returns the words of an option with its value; none without a value.
pub(super) fn option_words(
    name: &str,
    value: Option<impl Into<OsString>>,
) -> impl Iterator<Item = OsString> {
    let words = value.map(|value| [OsString::from(name), value.into()]);
    words.into_iter().flatten()
}

/// Returns the word of an option that takes no value, if it is set.
pub(super) fn switch_word(name: &str, is_set: bool) -> Option<OsString> {
    is_set.then(|| name.into())
}

/// Returns options of `wireup run` for one host, from the addresses and the agent command of `wireup env`.
pub(super) fn host_options(host: &OsStr) -> Vec<OsString> {
    let addresses = env::var(ADDRESSES).unwrap_or_default();
    let entry = addresses.split(',').find(|entry| {
        let name = entry.split_once('@').map(|(name, _)| OsStr::new(name));
        name == Some(host)
    });
    let entry = entry.map_or_else(|| host.to_owned(), OsString::from);
    let mut words = vec!["--hosts".into(), entry];
    let command = env::var_os(AGENTS).filter(|command| !command.is_empty());
    words.extend(option_words("--launch-agents", command));
    words
}

/// Executes `wireup run` with these words; returns only if that fails.
pub(super) fn become_run(words: impl Iterator<Item = OsString>) -> CommandError {
    let mut command = Command::new("/proc/self/exe");
    let error = command.arg0("wireup").arg("run").args(words).exec();
    CommandError::system("cannot execute wireup run", error)
}
