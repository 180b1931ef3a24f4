//! Variables that are meaningful on one machine only, and those with secret values. No I/O.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use super::{EnvForward, is_meant, starts_with};
use wireup_core::container;
use wireup_core::job::spec::EnvInheritance;

/// Names that start so belong to a login or to a session on this machine.
const LOCAL_PREFIXES: &[&str] = &["SSH_", "XDG_SESSION_", "SYSTEMD_", "LISTEN_", "WATCHDOG_"];

/// Names of files, sockets and displays of this machine, or of this machine itself.
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

/// Those of them that every node has, or not, for itself.
const GIVEN_BY_NODE: &[&str] = &[
    "HOST",
    "HOSTNAME",
    "TEMP",
    "TEMPDIR",
    "TMP",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];

/// Credentials for a network card. Rule: only the ranks get their values.
const HIDDEN_PREFIXES: &[&str] = &["FI_CXI_", "SLINGSHOT_"];

/// True for a variable that means nothing to a rank on another machine.
pub fn is_local(name: &OsStr) -> bool {
    LOCAL.iter().any(|local| name == *local)
        || is_given_by_node(name)
        || begins(name, LOCAL_PREFIXES)
}

/// True for a variable of which each node has its own value.
pub fn is_given_by_node(name: &OsStr) -> bool {
    GIVEN_BY_NODE.iter().any(|given| name == *given)
}

/// True for a variable with a value that must not be shown.
pub fn is_hidden(name: &OsStr) -> bool {
    begins(name, HIDDEN_PREFIXES)
}

/// Names that end so belong to secrets of the user's.
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

/// True for a variable whose value is not to be in a file that others may read.
pub fn is_secret(name: &OsStr) -> bool {
    let mut suffixes = SECRET_SUFFIXES.iter();
    is_hidden(name) || suffixes.any(|suffix| name.as_bytes().ends_with(suffix.as_bytes()))
}

/// Where the value of such a variable begins in a word of a command line that sets it: `NAME=VALUE`, alone or behind an
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
        // The letter of an option may stand in front of it.
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

/// Removes what means nothing elsewhere, unless it was selected by name or asked for.
pub fn leave_local(
    variables: &mut Vec<(OsString, OsString)>,
    selected: &EnvInheritance,
    forwards: &[EnvForward],
) {
    leave(variables, selected, forwards, is_local);
}

/// Removes what names files of this machine's system, which an image has others of, unless it was selected by name or
/// asked for.
pub fn leave_files(
    variables: &mut Vec<(OsString, OsString)>,
    selected: &EnvInheritance,
    forwards: &[EnvForward],
) {
    leave(variables, selected, forwards, container::is_of_the_image);
}

fn leave(
    variables: &mut Vec<(OsString, OsString)>,
    selected: &EnvInheritance,
    forwards: &[EnvForward],
    meant: fn(&OsStr) -> bool,
) {
    let wanted = |name: &OsStr| {
        let selected = match selected {
            EnvInheritance::Only(list) => list.iter().any(|wanted| is_meant(wanted, name)),
            EnvInheritance::All | EnvInheritance::None => false,
        };
        selected
            || forwards.iter().any(|forward| match forward {
                EnvForward::Inherit(wanted) | EnvForward::Set(wanted, _) => name == wanted,
                EnvForward::InheritAll(prefix) => starts_with(name, prefix.as_bytes()),
            })
    };
    variables.retain(|(name, _)| !meant(name) || wanted(name));
}
