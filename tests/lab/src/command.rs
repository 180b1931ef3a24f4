//! Commands on a host.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Output, Stdio};

use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use crate::host::Host;
use crate::start::before_exec;

/// Command on a host; used like [`std::process::Command`]. The process leads a session of its own
/// and runs as root by default. It is killed with the lab unless it has been reaped.
#[derive(Debug)]
pub struct Command<'host> {
    host: &'host Host,
    inner: std::process::Command,
    directory: CString,
    user: Option<User>,
    ready: bool,
}

/// User of a command.
#[derive(Clone, Debug)]
struct User {
    uid: rustix::process::Uid,
    gid: rustix::process::Gid,
    groups: Vec<rustix::process::Gid>,
}

impl<'host> Command<'host> {
    pub(crate) fn new(host: &'host Host, program: &OsStr) -> Self {
        let mut inner = std::process::Command::new(program);
        // Both tell of the machine.
        inner.env_remove("TMPDIR").env_remove("HOSTNAME");
        Self {
            host,
            inner,
            directory: c"/".to_owned(),
            user: None,
            ready: false,
        }
    }

    /// Adds one argument of the program.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(arg);
        self
    }

    /// Adds several arguments of the program.
    pub fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.inner.args(args);
        self
    }

    /// Sets a variable; the others are those of the lab's owner, without `TMPDIR`.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    /// Sets several environment variables of the program.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        self.inner.envs(variables);
        self
    }

    /// Removes all variables that were not set by [`Command::env`] since.
    pub fn env_clear(&mut self) -> &mut Self {
        self.inner.env_clear();
        self
    }

    /// Starts it in that directory of the host in place of `/`.
    ///
    /// # Panics
    /// When the path has a zero byte.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        let bytes = directory.as_ref().as_os_str().as_bytes();
        self.directory = CString::new(bytes).expect("a path");
        self
    }

    /// Makes it another user's: no account is needed. Numbers as in `/etc/passwd`; supplementary
    /// groups are these alone.
    pub fn user(&mut self, uid: u32, gid: u32, groups: &[u32]) -> &mut Self {
        use rustix::process::{Gid, Uid};
        self.user = Some(User {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
            groups: groups.iter().map(|gid| Gid::from_raw(*gid)).collect(),
        });
        self
    }

    /// Sets the standard input of the program.
    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(from);
        self
    }

    /// Sets the standard output of the program.
    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(to);
        self
    }

    /// Sets the standard error of the program.
    pub fn stderr(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(to);
        self
    }

    /// Starts it. Its process id is the machine's.
    ///
    /// # Errors
    /// When the host has crashed or the program cannot be executed there.
    pub fn spawn(&mut self) -> io::Result<Child> {
        if !self.ready {
            self.ready = true;
            self.host.enter_at(&mut self.inner, self.directory.clone());
            let user = self.user.clone();
            before_exec(&mut self.inner, move || {
                rustix::process::setsid()?;
                if let Some(user) = &user {
                    set_thread_groups(&user.groups)?;
                    set_thread_gid(user.gid)?;
                    set_thread_uid(user.uid)?;
                }
                Ok(())
            });
        }
        self.host.spawn(&mut self.inner)
    }

    /// Runs it to its end, without input, and collects what it prints.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn output(&mut self) -> io::Result<Output> {
        self.inner
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.spawn()?.wait_with_output()
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }
}
