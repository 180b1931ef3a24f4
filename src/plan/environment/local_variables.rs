//! Classifies variables that are meaningful on one machine only, and those with secret values. No I/O.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::{EnvForward, Variable, is_meant, starts_with};
use wireup_core::job::spec::EnvInheritance;

/// Prefixes of variables of a login or session on this machine.
const LOCAL_PREFIXES: &[&str] = &["SSH_", "XDG_SESSION_", "SYSTEMD_", "LISTEN_", "WATCHDOG_"];

/// Variables with files, sockets and displays of this machine, or with its name.
const LOCAL: &[&str] = &[
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GPG_AGENT_INFO",
    "ICEAUTHORITY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
    "NOTIFY_SOCKET",
    "SESSION_MANAGER",
    "STY",
    "TMUX",
    "TMUX_PANE",
    "WAYLAND_DISPLAY",
    "WINDOWID",
    "XAUTHORITY",
    "XDG_SEAT",
    "XDG_VTNR",
];

/// Variables of which each node may have its own value.
const GIVEN_BY_NODE: &[&str] = &[
    "HOST",
    "HOSTNAME",
    "TEMP",
    "TEMPDIR",
    "TMP",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Prefixes of variables with a fabric grant. Rule: only the ranks get the values.
const HIDDEN_PREFIXES: &[&str] = &["FI_CXI_", "SLINGSHOT_"];

/// Whether a variable is meaningless to a rank on another machine.
pub fn is_local(name: &OsStr) -> bool {
    LOCAL.iter().any(|local| name == *local)
        || is_given_by_node(name)
        || begins(name, LOCAL_PREFIXES)
}

/// Whether each node may have its own value of a variable.
pub fn is_given_by_node(name: &OsStr) -> bool {
    GIVEN_BY_NODE.iter().any(|variable| name == *variable)
}

/// Whether the value of a variable must not be shown.
pub fn is_hidden(name: &OsStr) -> bool {
    begins(name, HIDDEN_PREFIXES)
}

/// Suffixes of variables with secrets of the user.
const SECRET_SUFFIXES: &[&str] = &[
    "ACCESS_KEY",
    "API_KEY",
    "CREDENTIALS",
    "PASSWD",
    "PASSWORD",
    "PRIVATE_KEY",
    "SECRET",
    "SECRET_KEY",
    "TOKEN",
];

/// Whether the value of a variable must not be in a file that others may read.
pub fn is_secret(name: &OsStr) -> bool {
    let mut suffixes = SECRET_SUFFIXES.iter();
    is_hidden(name) || suffixes.any(|suffix| name.as_bytes().ends_with(suffix.as_bytes()))
}

/// Position of the value in a word of a command line that sets a secret variable: `NAME=VALUE`, alone or after an
/// option or other variables.
pub fn secret_value(word: &OsStr) -> Option<usize> {
    let bytes = word.as_bytes();
    let part_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let ends_name = |at: &usize| {
        let before = &bytes[..*at];
        let length = before
            .iter()
            .rev()
            .take_while(|byte| part_of_name(byte))
            .count();
        let name = &before[at - length..];
        // The letter of an option may precede the name, as in -xNAME=VALUE.
        let mut names = [name, name.get(1..).unwrap_or_default()].into_iter();
        names.any(|name| is_secret(OsStr::from_bytes(name)))
    };
    let mut ends = (0..bytes.len()).filter(|at| bytes[*at] == b'=');
    ends.find(ends_name).map(|at| at + 1)
}

fn begins(name: &OsStr, prefixes: &[&str]) -> bool {
    let mut prefixes = prefixes.iter();
    prefixes.any(|prefix| starts_with(name, prefix.as_bytes()))
}

/// Removes variables of a kind, except those that the user selected by name or set.
pub fn leave(
    variables: &mut Vec<Variable>,
    selected: &EnvInheritance,
    forwards: &[EnvForward],
    is_left: fn(&OsStr) -> bool,
) {
    let is_requested = |name: &OsStr| {
        let selected = match selected {
            EnvInheritance::Only(list) => list.iter().any(|pattern| is_meant(pattern, name)),
            EnvInheritance::All | EnvInheritance::None => false,
        };
        selected
            || forwards.iter().any(|forward| match forward {
                EnvForward::Inherit(variable) | EnvForward::Set(variable, _) => name == variable,
                EnvForward::InheritAll(prefix) => starts_with(name, prefix.as_bytes()),
            })
    };
    variables.retain(|(name, _)| !is_left(name) || is_requested(name));
}
