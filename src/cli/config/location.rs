//! Locations of the defaults files.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::ConfigError;
use wireup_sys::access::read_settings;

/// The site's file, unless [`SITE_VARIABLE`] names another.
const SITE: &str = "/etc/wireup.toml";
/// Variable that names the site's file; empty: no site's file.
pub(super) const SITE_VARIABLE: &str = "WIREUP_SITE_CONFIG";
/// The user's file, in the user's directory of configurations.
const USER: &str = "wireup.toml";

/// Possible location of a defaults file.
#[derive(Debug)]
pub(super) struct FileLocation {
    pub(super) path: PathBuf,
    /// Whether [`SITE_VARIABLE`] names the file.
    must_exist: bool,
}

impl FileLocation {
    /// The site's.
    pub(super) fn site() -> Option<Self> {
        let named = std::env::var_os(SITE_VARIABLE);
        let must_exist = named.is_some();
        let path = PathBuf::from(named.unwrap_or_else(|| SITE.into()));
        (!path.as_os_str().is_empty()).then_some(Self { path, must_exist })
    }

    /// The user's; `None` for a user without a home.
    pub(super) fn user() -> Option<Self> {
        user_directory(
            std::env::var_os("XDG_CONFIG_HOME"),
            std::env::var_os("HOME"),
        )
        .map(|dir| Self {
            path: dir.join(USER),
            must_exist: false,
        })
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ConfigError`] when it exists and cannot be read, or must exist and does not.
    pub(super) fn read(&self) -> Result<Option<String>, ConfigError> {
        match read_settings(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if is_absent(&self.path, &error) => match self.must_exist {
                true => Err(ConfigError::Missing(self.path.clone())),
                false => Ok(None),
            },
            Err(error) => Err(ConfigError::Unreadable {
                path: self.path.clone(),
                error,
            }),
        }
    }
}

/// Whether a file that cannot be opened counts as missing. A home directory of another user, such as `HOME` after
/// `setpriv` or `sudo`, has no file of this user.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => true,
        ErrorKind::PermissionDenied => path
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied),
        _ => false,
    }
}

/// Rule: `XDG_CONFIG_HOME` counts when it is absolute, else it is `.config` in the home directory.
/// Source: XDG Base Directory Specification.
fn user_directory(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |dir: Option<OsString>| dir.map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute(xdg).or_else(|| absolute(home).map(|home| home.join(".config")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_config_directory_is_absolute_or_absent() {
        let dir = |xdg: Option<&str>, home: Option<&str>| {
            user_directory(xdg.map(Into::into), home.map(Into::into))
        };
        assert_eq!(dir(Some("/x"), Some("/h")), Some("/x".into()));
        assert_eq!(dir(Some(""), Some("/h")), Some("/h/.config".into()));
        assert_eq!(dir(Some("x"), Some("/h")), Some("/h/.config".into()));
        assert_eq!(dir(None, Some("")), None);
        assert_eq!(dir(None, None), None);
    }
}
