//! The user a launcher runs as.

#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, getgrouplist, setgid, setgroups, setuid};
use tonic::Status;

use crate::proto::v1::RunAs;

/// A user, as the system knows him.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    uid: Uid,
    gid: Gid,
    /// All groups, that of `gid` too.
    groups: Vec<Gid>,
    name: String,
    home: PathBuf,
    shell: PathBuf,
}

impl User {
    /// Looks a user up, and whether he is in the group.
    ///
    /// # Errors
    /// A status with the remedy.
    pub fn find(run_as: RunAs) -> Result<Self, Status> {
        let uid = Uid::from_raw(run_as.uid);
        let found = nix::unistd::User::from_uid(uid)
            .map_err(|error| Status::internal(format!("cannot look up user {uid}: {error}")))?
            .ok_or_else(|| {
                Status::failed_precondition(format!(
                    "user {uid} is not known on this node: users need the same numbers everywhere"
                ))
            })?;
        let name = CString::new(found.name.as_str()).expect("a name the system gave");
        let groups = getgrouplist(&name, found.gid).map_err(|error| {
            Status::internal(format!("cannot look up the groups of user {uid}: {error}"))
        })?;
        let gid = run_as.gid.map_or(found.gid, Gid::from_raw);
        if !groups.contains(&gid) {
            return Err(Status::permission_denied(format!(
                "user {} is not in group {gid}: leave run_as.gid out, or name a group of his",
                found.name
            )));
        }
        Ok(Self {
            uid,
            gid,
            groups,
            name: found.name,
            home: found.dir,
            shell: found.shell,
        })
    }

    /// His number.
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// Where he is at home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What a login sets.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        [
            ("HOME", self.home.clone().into()),
            ("USER", self.name.clone().into()),
            ("LOGNAME", self.name.clone().into()),
            ("SHELL", self.shell.clone().into()),
        ]
    }

    /// Makes a process run as him, if this one runs as somebody else.
    pub fn prepare(&self, process: &mut Command) {
        if self.uid == Uid::effective() && !self.uid.is_root() {
            return;
        }
        let Self { uid, gid, groups, .. } = self.clone();
        let become_user = move || {
            setgroups(&groups)?;
            setgid(gid)?;
            Ok(setuid(uid)?)
        };
        // SAFETY: makes system calls only; the list was allocated before the fork and is only read.
        unsafe { process.pre_exec(become_user) };
    }
}
