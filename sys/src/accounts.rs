//! The account database, by getpwuid_r(3) and getgrouplist(3): only the C library knows where accounts are (files,
//! LDAP, SSSD). May ask over a network and wait.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr;

use rustix::io::Errno;

/// An entry of the account database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserAccount {
    pub name: CString,
    /// Numeric id of the user.
    pub uid: u32,
    /// Numeric id of the primary group.
    pub gid: u32,
    pub home: PathBuf,
}

/// The largest entry that is read: more than any database stores for one account.
const ENTRY_MAX: usize = 1 << 20;

/// The most groups that a user has. Source: `NGROUPS_MAX` in the kernel.
const GROUPS_MAX: usize = 65_536;

/// Returns the account of a user number, if there is one.
///
/// # Errors
/// When the database does not answer.
pub fn by_uid(uid: u32) -> Result<Option<UserAccount>, Errno> {
    look_up(|entry, buffer, found| {
        // SAFETY: all three outlive the call, and the size is the buffer's.
        unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })
}

/// Returns the account of a login name, if there is one.
///
/// # Errors
/// When the database does not answer.
pub fn by_name(name: &CStr) -> Result<Option<UserAccount>, Errno> {
    look_up(|entry, buffer, found| {
        let size = buffer.len();
        // SAFETY: all of them outlive the call, and the size is the buffer's.
        unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry,
                buffer.as_mut_ptr().cast(),
                size,
                found,
            )
        }
    })
}

/// Returns the groups of an account, including its primary one.
///
/// # Errors
/// [`Errno::RANGE`] when the account is in more groups than the system permits.
pub fn groups(account: &UserAccount) -> Result<Vec<u32>, Errno> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as c_int;
        // SAFETY: the name ends with a NUL byte, and the list has room for `count` groups.
        let result = unsafe {
            libc::getgrouplist(
                account.name.as_ptr(),
                account.gid,
                groups.as_mut_ptr(),
                &raw mut count,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        if result >= 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        if groups.len() >= GROUPS_MAX {
            return Err(Errno::RANGE);
        }
        let room = count.max(groups.len() * 2).min(GROUPS_MAX);
        groups.resize(room, 0);
    }
}

/// Asks with more and more room for the texts of an entry.
fn look_up(
    ask: impl Fn(*mut libc::passwd, &mut [u8], *mut *mut libc::passwd) -> c_int,
) -> Result<Option<UserAccount>, Errno> {
    let mut buffer = vec![0; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        match ask(entry.as_mut_ptr(), &mut buffer, &raw mut found) {
            // Rule: success, and no entry where there is none. Source: getpwnam(3).
            0 if found.is_null() => return Ok(None),
            0 => {
                // SAFETY: it was found, so `entry` is filled in and its texts are in the buffer.
                return Ok(Some(unsafe { account(entry.assume_init_ref()) }));
            }
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < ENTRY_MAX => buffer.resize(buffer.len() * 2, 0),
            // Some databases report a missing entry in this way. Source: getpwnam(3).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            other => {
                return Err(
                    Errno::from_io_error(&io::Error::from_raw_os_error(other)).unwrap_or(Errno::IO)
                );
            }
        }
    }
}

/// Copies an entry of the account database.
///
/// # Safety
/// The pointers to the entry's texts must be valid.
unsafe fn account(entry: &libc::passwd) -> UserAccount {
    // SAFETY: the caller's promise; they end with a NUL byte.
    let (name, home) = unsafe { (CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir)) };
    UserAccount {
        name: name.to_owned(),
        uid: entry.pw_uid,
        gid: entry.pw_gid,
        home: OsStr::from_bytes(home.to_bytes()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_uid_and_name_with_its_groups() {
        let root = by_uid(0).unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(root.home, PathBuf::from("/root"));
        assert!(groups(&root).unwrap().contains(&0));
        assert_eq!(by_name(c"root"), Ok(Some(root)));
    }

    #[test]
    fn missing_account_is_not_error() {
        assert_eq!(by_uid(54_321), Ok(None));
        assert_eq!(by_name(c"no-such-account"), Ok(None));
    }
}
