//! An agent that gives up root's rights: its helper keeps them.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use tokio::io::Interest;

use super::settings::AgentSettings;
use crate::local_socket::agent_socket::Socket;
use crate::readiness::watch;
use crate::user::spawn::step_spawner::StepSpawner;
use wireup_core::failure::CommandError;
use wireup_core::link::helper_protocol::{HelperPolicy, UserIds};
use wireup_sys::privileges;

/// Lowest number of a user, unless the system configures another one. Source: login.defs(5).
const LOWEST: u32 = 1000;

/// Changes this process to the agent's account for good. The process has one thread, its sockets and its certificate,
/// and has read no input of others so far.
///
/// # Errors
/// The step that failed. The process must exit then.
pub(super) fn drop_privileges(
    settings: &AgentSettings,
    account: &UserIds,
    steps: &Arc<StepSpawner>,
    socket: &Socket,
) -> Result<(), CommandError> {
    let failed = |error: io::Error| CommandError::system("cannot give up root's rights", error);
    let paths = settings.tls.paths();
    let rules = HelperPolicy {
        agent: account.uid,
        lowest: lowest(),
        root_launches: settings.root_launches,
        credentials: paths
            .map(|path| path.as_os_str().as_bytes().to_vec())
            .into(),
        socket: socket.file.clone(),
    };
    // Every other thread would keep them.
    if std::fs::read_dir("/proc/self/task")
        .map_err(failed)?
        .count()
        != 1
    {
        return Err(failed(io::Error::other(
            "the process already has several threads",
        )));
    }
    steps.separate(rules).map_err(failed)?;
    settings.tls.opened_by(Arc::clone(steps));
    privileges::drop_root(account.uid, account.gid, &account.groups).map_err(|(part, errno)| {
        let error = io::Error::from_raw_os_error(errno);
        CommandError::system(
            format!("cannot give up root's rights: {}", part.words()),
            error,
        )
    })?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    set_no_new_privs(true)
        .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .and_then(|()| setrlimit(Resource::Core, none))
        .map_err(|errno| failed(errno.into()))
}

/// Waits until the helper has gone without which an agent that has given up its rights can start no process.
pub(super) async fn lost(steps: &StepSpawner) -> CommandError {
    if !steps.is_separated() {
        return std::future::pending().await;
    }
    let helper = steps.helper();
    let watched = helper.and_then(|process| watch(process, Interest::READABLE));
    let ended = async {
        match &watched {
            Ok(process) => drop(process.readable().await),
            Err(_) => steps.lost().await,
        }
    };
    tokio::select! {
        () = ended => {}
        () = steps.lost() => {}
    }
    CommandError::system(
        "the agent and its launches end",
        io::Error::other("its privileged helper (wireup steps) has ended or does not answer"),
    )
}

/// Returns the lowest number of a user. Source: `UID_MIN` in login.defs(5).
fn lowest() -> u32 {
    let text = std::fs::read_to_string("/etc/login.defs").unwrap_or_default();
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let found = lines.find_map(|mut words| match words.next() {
        Some("UID_MIN") => words.next()?.parse().ok(),
        _ => None,
    });
    found.unwrap_or(LOWEST)
}
