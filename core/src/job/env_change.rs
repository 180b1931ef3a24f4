//! Changes of the variables that ranks inherit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde::{Deserialize, Serialize};

use super::octets;

/// A change of one variable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EnvChange {
    how: EnvChangeKind,
    #[serde(with = "octets")]
    name: OsString,
    #[serde(with = "octets")]
    value: OsString,
}

/// The change to an existing value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EnvChangeKind {
    Set,
    Add,
    Unset,
    /// The new value, this separator and the existing one.
    Prepend(u8),
    /// The existing value, this separator and the new one.
    Append(u8),
}

impl EnvChange {
    /// Reads `NAME=VALUE`, or the name of a variable to remove; `None` without a name.
    pub fn parse(how: EnvChangeKind, text: &OsStr) -> Option<Self> {
        let bytes = text.as_bytes();
        let end = bytes.iter().position(|byte| *byte == b'=');
        let (name, value) = match (how, end) {
            (EnvChangeKind::Unset, None) => (bytes, &[][..]),
            (_, Some(at)) => (&bytes[..at], &bytes[at + 1..]),
            (_, None) => return None,
        };
        (!name.is_empty() && !bytes.contains(&0)).then(|| Self {
            how,
            name: OsStr::from_bytes(name).to_owned(),
            value: OsStr::from_bytes(value).to_owned(),
        })
    }

    /// Reads the separator and `NAME=VALUE` behind it.
    pub fn extend(how: fn(u8) -> EnvChangeKind, text: &OsStr) -> Option<Self> {
        let (separator, rest) = text.as_bytes().split_first()?;
        Self::parse(how(*separator), OsStr::from_bytes(rest))
    }

    /// Applies the change to these variables, whose names are unique.
    pub fn apply(&self, variables: &mut Vec<(OsString, OsString)>) {
        let at = variables.iter().position(|(name, _)| *name == self.name);
        let Some(at) = at else {
            if self.how != EnvChangeKind::Unset {
                variables.push((self.name.clone(), self.value.clone()));
            }
            return;
        };
        let joined = |first: &OsStr, separator: u8, second: &OsStr| {
            OsString::from_vec([first.as_bytes(), &[separator], second.as_bytes()].concat())
        };
        let value = &mut variables[at].1;
        match self.how {
            EnvChangeKind::Add => {}
            EnvChangeKind::Unset => drop(variables.remove(at)),
            EnvChangeKind::Set => *value = self.value.clone(),
            EnvChangeKind::Prepend(separator) => *value = joined(&self.value, separator, value),
            EnvChangeKind::Append(separator) => *value = joined(value, separator, &self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_set_preserved_removed_and_extended() {
        let mut variables: Vec<(OsString, OsString)> = [("A", "1"), ("B", "2"), ("PATH", "/bin")]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec();
        let changes = [
            EnvChange::parse(EnvChangeKind::Set, OsStr::new("A=x=y")),
            EnvChange::parse(EnvChangeKind::Add, OsStr::new("A=z")),
            EnvChange::parse(EnvChangeKind::Add, OsStr::new("C=")),
            EnvChange::parse(EnvChangeKind::Unset, OsStr::new("B")),
            EnvChange::parse(EnvChangeKind::Unset, OsStr::new("D")),
            EnvChange::extend(EnvChangeKind::Prepend, OsStr::new(":PATH=/opt")),
            EnvChange::extend(EnvChangeKind::Append, OsStr::new(";C=1")),
            EnvChange::extend(EnvChangeKind::Append, OsStr::new(",L=1")),
        ];
        for change in changes {
            change.unwrap().apply(&mut variables);
        }
        let expected = [("A", "x=y"), ("PATH", "/opt:/bin"), ("C", ";1"), ("L", "1")];
        assert_eq!(
            variables,
            expected.map(|(name, value)| (name.into(), value.into()))
        );
    }

    #[test]
    fn text_without_name_is_not_env_change() {
        for text in ["", "=x", "NAME"] {
            assert_eq!(
                EnvChange::parse(EnvChangeKind::Set, OsStr::new(text)),
                None,
                "{text:?}"
            );
        }
        assert_eq!(
            EnvChange::extend(EnvChangeKind::Append, OsStr::new("")),
            None
        );
    }
}
