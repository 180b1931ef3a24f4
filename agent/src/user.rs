//! The users a node's agent works for, and processes that are theirs.
//!
//! A user id identifies a user: for a local caller the kernel gives it, for another agent's caller
//! that agent's certificate vouches. Name, groups and home are those the number has here.

#[allow(unsafe_code, reason = "copies of a process that has one thread")]
pub mod account_lookup;
pub mod files;
pub mod output_log;
pub mod spawn;

use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Gid, getegid, geteuid, getgroups};
use wireup_sys::accounts as database;

/// A user for whom processes can be started here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// Login name, if the number has one.
    pub name: Option<String>,
    /// Home directory, if there is one.
    pub home: Option<PathBuf>,
}

impl User {
    /// Returns the user of this process, without name and home.
    ///
    /// # Errors
    /// The system does not give the groups.
    pub fn current() -> rustix::io::Result<Self> {
        let groups = getgroups()?;
        Ok(Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            name: None,
            home: None,
        })
    }
}

/// Reason for which no process is started for a user.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UserError {
    /// The agent is not root, and serves another user.
    #[error(
        "the agent of this node runs as user id {agent_uid} and cannot start processes as user id {uid}; use an agent \
         of root, which serves all users"
    )]
    NotServed {
        uid: u32,
        /// User id of the agent.
        agent_uid: u32,
    },
    /// The account does not exist.
    #[error(
        "unknown user id {0} on this node; give the account the same number on all nodes of a launch"
    )]
    Unknown(u32),
    /// The account database does not answer.
    #[error("cannot look up user id {uid} on this node: {errno}")]
    Lookup {
        /// The user id that was looked up.
        uid: u32,
        errno: Errno,
    },
}

/// Users that an agent serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServedUsers {
    /// All users: it is root's.
    Everybody,
    /// The user it runs as.
    Only(u32),
}

impl ServedUsers {
    /// Returns the users that this process can serve.
    pub fn by_this_process() -> Self {
        match geteuid() {
            root if root.is_root() => Self::Everybody,
            other => Self::Only(other.as_raw()),
        }
    }

    /// Returns the user whose rights the agent has: root, or the user that it serves.
    pub fn agent_uid(self) -> u32 {
        match self {
            Self::Everybody => 0,
            Self::Only(own) => own,
        }
    }

    /// Refuses users whom this agent does not serve at all. Whether others have an account here is known when they are
    /// [found](Self::find).
    ///
    /// # Errors
    /// [`UserError::NotServed`]
    pub fn check(self, uid: u32) -> Result<(), UserError> {
        match self {
            Self::Only(own) if own != uid => Err(UserError::NotServed {
                uid,
                agent_uid: own,
            }),
            _ => Ok(()),
        }
    }

    /// Finds a user. May ask a directory service, and wait for it: not for a thread for which others wait.
    ///
    /// # Errors
    /// [`UserError`]
    pub fn find(self, uid: u32) -> Result<User, UserError> {
        self.check(uid)?;
        let lookup = |errno| UserError::Lookup { uid, errno };
        let found = database::by_uid(uid).map_err(lookup)?;
        let name = found.as_ref();
        let name = name.map(|found| found.name.to_string_lossy().into_owned());
        let home = found.as_ref().map(|found| found.home.clone());
        // The agent's own user already has its groups, and needs no account: containers
        // run under numbers that have none.
        if let Self::Only(_) = self {
            return Ok(User {
                name,
                home: home.or_else(|| std::env::var_os("HOME").map(PathBuf::from)),
                ..User::current().map_err(lookup)?
            });
        }
        let found = found.ok_or(UserError::Unknown(uid))?;
        let groups = database::groups(&found).map_err(lookup)?;
        Ok(User {
            uid,
            gid: found.gid,
            groups,
            name,
            home,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_in_account_database() {
        let root = ServedUsers::Everybody.find(0).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(root.name.as_deref(), Some("root"));
        assert!(root.groups.contains(&0), "{root:?}");
        assert!(root.home.is_some());
    }

    #[test]
    fn uid_without_account_is_refused_by_number() {
        let error = ServedUsers::Everybody.find(54_321).unwrap_err();
        assert_eq!(error, UserError::Unknown(54_321));
        assert!(error.to_string().contains("unknown user id 54321"));
    }

    #[test]
    fn agent_of_ordinary_user_serves_only_that_user() {
        let own = geteuid().as_raw();
        let served = ServedUsers::Only(own);
        let me = served.find(own).unwrap();
        assert_eq!((me.uid, me.gid), (own, getegid().as_raw()));
        let other = own + 1;
        let refusal = UserError::NotServed {
            uid: other,
            agent_uid: own,
        };
        assert_eq!(served.check(other), Err(refusal.clone()));
        assert_eq!(served.find(other), Err(refusal));
    }
}
