//! Attributes of the launcher's process that ranks inherit, also on other machines.
//!
//! On one machine ranks are children of the launcher and inherit its working directory and umask. The launcher
//! sends the directory, the umask and the variables to other hosts, without variables that are meaningless there
//! ([`environment::is_local`]) unless the user names them; a node adds its own values of a few of these. Resource
//! limits are not sent: each node has its own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::environment::{self, Variable};
use wireup_core::failure::CommandError;
use wireup_core::job::octets;
use wireup_core::job::spec::{AppRequest, EnvInheritance};
use wireup_sys::accounts;

/// Variables, working directory and umask that ranks inherit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InheritedContext {
    /// Variables of the process; the first of two with one name counts.
    #[serde(with = "octets")]
    pub vars: Vec<Variable>,
    /// Working directory as an absolute path.
    #[serde(with = "octets")]
    pub cwd: PathBuf,
    /// File mode creation mask; `None` if ranks inherit it as child processes.
    pub umask: Option<u32>,
}

impl InheritedContext {
    /// Reads the context of this process; `for_hosts` is whether ranks run on other machines.
    ///
    /// If the current directory was removed and all `apps` name an absolute one, that of the first is used.
    ///
    /// # Errors
    /// [`CommandError`] if there is no working directory, or `/proc` does not contain the umask.
    pub fn from_process(for_hosts: bool, apps: &[AppRequest]) -> Result<Self, CommandError> {
        let named = || {
            let mut all = apps.iter().map(|app| app.wdir.as_ref());
            let is_absolute = |dir: Option<&PathBuf>| dir.is_some_and(|dir| dir.is_absolute());
            let first = all.next()?.filter(|dir| dir.is_absolute())?;
            all.all(is_absolute).then(|| first.clone())
        };
        let cwd = std::env::current_dir().or_else(|error| named().ok_or(error));
        let cwd = cwd.map_err(|error| {
            CommandError::system(
                "cannot use the current directory (name another with --wdir)",
                error,
            )
        })?;
        let umask = for_hosts.then(umask).transpose();
        let umask = umask.map_err(|error| CommandError::system("/proc/self/status", error))?;
        let mut vars: Vec<Variable> = std::env::vars_os().collect();
        vars.extend(home_without_account(&vars));
        Ok(Self { vars, cwd, umask })
    }

    /// Whether the context is for ranks on other machines.
    pub(super) fn is_for_hosts(&self) -> bool {
        self.umask.is_some()
    }

    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let mut vars = self.vars.iter();
        let (_, value) = vars.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// Context without local variables and launcher state, for other machines.
    pub fn travelling(&self) -> Self {
        let stays = |(name, _): &&Variable| {
            environment::is_local(name) || environment::is_launcher_state(name)
        };
        let vars = self.vars.iter().filter(|variable| !stays(variable));
        Self {
            vars: vars.cloned().collect(),
            cwd: self.cwd.clone(),
            umask: self.umask,
        }
    }

    /// Names of variables that are not sent to other machines, sorted.
    pub fn left_behind(&self) -> Vec<&OsStr> {
        let names = self.vars.iter().map(|(name, _)| name.as_os_str());
        let names: BTreeSet<_> = names.filter(|name| environment::is_local(name)).collect();
        names.into_iter().collect()
    }

    /// Adds the variables that a node with the environment `own` gives its ranks.
    pub fn on_node(mut self, own: impl IntoIterator<Item = Variable>) -> Self {
        let own = own
            .into_iter()
            .filter(|(name, _)| environment::is_given_by_node(name));
        let known: Vec<Variable> = own
            .filter(|(name, _)| !self.vars.iter().any(|(variable, _)| variable == name))
            .collect();
        self.vars.extend(known);
        self.vars.extend(home_without_account(&self.vars));
        self
    }

    /// Adds the variables of the node to those of its ranks, except those that the ranks have already. Does nothing if the user
    /// selected the inherited variables.
    pub(crate) fn add_local(&self, app: &AppRequest, env: &mut Vec<Variable>) {
        if app.inherited != EnvInheritance::All {
            return;
        }
        for (name, value) in &self.vars {
            if environment::is_given_by_node(name)
                && !env.iter().any(|(variable, _)| variable == name)
            {
                env.push((name.clone(), value.clone()));
            }
        }
    }
}

/// `HOME=/`, as in containers, for a user without `HOME` and without an entry in the account database: libpmix and Open MPI
/// crash without both.
fn home_without_account(vars: &[Variable]) -> Option<Variable> {
    let is_given = vars.iter().any(|(name, _)| name == "HOME");
    let uid = rustix::process::getuid().as_raw();
    let is_missing = !is_given && !matches!(accounts::by_uid(uid), Ok(Some(_)));
    is_missing.then(|| ("HOME".into(), "/".into()))
}

/// Umask of this process. No system call returns it without changing it. Source: proc(5).
fn umask() -> std::io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    mask.ok_or_else(|| std::io::Error::other("no valid line Umask, which Linux 4.7 and later have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inheritance(vars: &[(&str, &str)]) -> InheritedContext {
        let owned = |(name, value): &(&str, &str)| (name.into(), value.into());
        InheritedContext {
            vars: vars.iter().map(owned).collect(),
            cwd: "/work".into(),
            umask: Some(0o27),
        }
    }

    #[test]
    fn machine_specific_variables_come_from_each_host() {
        let here = inheritance(&[
            ("PATH", "/bin"),
            ("TMPDIR", "/scratch/7"),
            ("SSH_AUTH_SOCK", "/tmp/s"),
            ("PMI_RANK", "3"),
            ("OMP_NUM_THREADS", "2"),
            ("DISPLAY", ":0"),
        ]);
        let travels = here.travelling();
        assert_eq!(
            travels,
            inheritance(&[("PATH", "/bin"), ("OMP_NUM_THREADS", "2")])
        );
        assert_eq!(here.left_behind(), ["DISPLAY", "SSH_AUTH_SOCK", "TMPDIR"]);
        let own = [("TMPDIR", "/tmp/n2"), ("PATH", "/sbin"), ("DISPLAY", ":9")];
        let own = own.map(|(name, value)| (name.into(), value.into()));
        let there = travels.on_node(own);
        let mut env = vec![("PATH".into(), "/mine".into())];
        there.add_local(&AppRequest::default(), &mut env);
        let expected = [("PATH", "/mine"), ("TMPDIR", "/tmp/n2")];
        assert_eq!(env, inheritance(&expected).vars);
        assert_eq!(there.variable("PATH"), Some(OsStr::new("/bin")));
    }

    #[test]
    fn umask_is_read() {
        assert!(umask().unwrap() <= 0o777);
    }
}
