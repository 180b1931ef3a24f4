//! Attributes of the launcher's process that ranks inherit, also on other machines.
//!
//! On one machine ranks are children of the launcher and get its directory and mask for nothing. To
//! other hosts travel the directory, the mask and the variables, without those that only mean
//! something on the launcher's machine ([`environment::is_local`]), unless the user asks for one;
//! a node adds its own of a few of these. Limits do not travel: a node has its own.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::environment::{self, Variable};
use wireup_core::failure::CommandError;
use wireup_core::job::octets;
use wireup_core::job::spec::{AppRequest, EnvInheritance};
use wireup_sys::accounts;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InheritedContext {
    /// Variables, as the process has them; of two equal names the first counts.
    #[serde(with = "octets")]
    pub vars: Vec<Variable>,
    /// The working directory, absolute.
    #[serde(with = "octets")]
    pub cwd: PathBuf,
    /// The file mode creation mask, where it is not inherited from process to process.
    pub umask: Option<u32>,
}

impl InheritedContext {
    /// The context of this process; for ranks of other machines if it is `for_hosts`.
    ///
    /// A current directory that was removed is not needed if all `apps` name theirs: that of the first is then the
    /// launch's.
    ///
    /// # Errors
    /// [`CommandError`] if there is no working directory, or no `/proc` with the mask.
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
                "the current directory cannot be used (name another with --wdir)",
                error,
            )
        })?;
        let umask = match for_hosts {
            true => {
                Some(umask().map_err(|error| CommandError::system("/proc/self/status", error))?)
            }
            false => None,
        };
        let mut vars: Vec<Variable> = std::env::vars_os().collect();
        vars.extend(home_without_account(&vars));
        Ok(Self { vars, cwd, umask })
    }

    /// Whether it is for ranks of other machines.
    pub(super) fn is_for_hosts(&self) -> bool {
        self.umask.is_some()
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let mut vars = self.vars.iter();
        let (_, value) = vars.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// The part for other machines.
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

    /// The names of variables that mean nothing elsewhere, sorted.
    pub fn left_behind(&self) -> Vec<&OsStr> {
        let names = self.vars.iter().map(|(name, _)| name.as_os_str());
        let mut names: Vec<_> = names.filter(|name| environment::is_local(name)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// As it is on a node that has these variables itself.
    pub fn on_node(mut self, own: impl IntoIterator<Item = Variable>) -> Self {
        let own = own
            .into_iter()
            .filter(|(name, _)| environment::is_given_by_node(name));
        let known: Vec<Variable> = own
            .filter(|(name, _)| !self.vars.iter().any(|(given, _)| given == name))
            .collect();
        self.vars.extend(known);
        self.vars.extend(home_without_account(&self.vars));
        self
    }

    /// Adds what a node gives to the variables of its ranks, unless the user has, or has selected others.
    pub(crate) fn add_local(&self, app: &AppRequest, env: &mut Vec<Variable>) {
        if app.inherited != EnvInheritance::All {
            return;
        }
        for (name, value) in &self.vars {
            if environment::is_given_by_node(name) && !env.iter().any(|(given, _)| given == name) {
                env.push((name.clone(), value.clone()));
            }
        }
    }
}

/// A home directory for a user without one: libpmix and Open MPI crash if there is neither `HOME` nor an entry for the
/// user in the account database, as in a container with any user number. The root directory, as containers have it.
fn home_without_account(vars: &[Variable]) -> Option<Variable> {
    let is_given = vars.iter().any(|(name, _)| name == "HOME");
    let uid = rustix::process::getuid().as_raw();
    let is_missing = !is_given && !matches!(accounts::by_uid(uid), Ok(Some(_)));
    is_missing.then(|| ("HOME".into(), "/".into()))
}

/// The mask of this process, which no system call returns without setting another. Source: proc(5).
fn umask() -> std::io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    mask.ok_or_else(|| std::io::Error::other("it does not contain the file mode creation mask"))
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
