//! Address at which an agent listens for the users of its node; agents and launchers compute the same one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::job::ids::UserId;

/// The socket of the agent that serves every user of a node.
pub const OF_SYSTEM: &str = "/run/wireup/agent.sock";

/// Beginning of the abstract name of a launcher's end of its connection. The helper of an agent without root's rights
/// starts root's steps for such connections only: other commands of root connect as well.
pub const LAUNCHER_END: &[u8] = b"wireup-launcher-";

/// Returns the socket of an agent that runs as `user`; `runtime` is its `XDG_RUNTIME_DIR`.
///
/// The owner of directory and socket is not checked: in `/tmp` another user may have created them before. An agent
/// refuses a directory that is not its own, and a launcher gets the user of the answering process from the kernel.
pub fn agent_socket(user: UserId, runtime: Option<&OsStr>) -> PathBuf {
    match (user, runtime) {
        (UserId(0), _) => OF_SYSTEM.into(),
        // Rule: a relative path is invalid and not to be used. Source: XDG Base Directory
        // Specification.
        (_, Some(runtime)) if Path::new(runtime).is_absolute() => {
            Path::new(runtime).join("wireup/agent.sock")
        }
        (UserId(user), _) => format!("/tmp/wireup-{user}/agent.sock").into(),
    }
}

/// Returns the sockets at which a launcher of `user` searches for an agent, the user's own first.
pub fn candidates(user: UserId, runtime: Option<&OsStr>) -> Vec<PathBuf> {
    let mut paths = vec![agent_socket(user, runtime)];
    if user != UserId(0) {
        paths.push(OF_SYSTEM.into());
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_searches_agent_sockets_of_user_and_root() {
        let looks = |user, runtime: Option<&str>| {
            let paths = candidates(UserId(user), runtime.map(OsStr::new));
            let paths = paths.iter().map(|path| path.display().to_string());
            paths.collect::<Vec<_>>()
        };
        assert_eq!(looks(0, Some("/run/user/0")), [OF_SYSTEM]);
        let own = "/run/user/7/wireup/agent.sock";
        assert_eq!(looks(7, Some("/run/user/7")), [own, OF_SYSTEM]);
        for unusable in [None, Some(""), Some("run")] {
            let own = "/tmp/wireup-7/agent.sock";
            assert_eq!(looks(7, unusable), [own, OF_SYSTEM]);
        }
    }
}
