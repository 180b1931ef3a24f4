//! Settings of a site's services (etcd, a directory, a fabric's manager), each in a file of its own, and passwords.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

#[cfg(any(feature = "etcd", feature = "ldap"))]
use crate::pki::certificate_files::{self, PkiFileError};
use crate::pki::default_directory;
use crate::site_services::{FileError, toml_problem, unusable};

/// Directory of the files of all users.
const SYSTEM_DIRECTORY: &str = "/etc/wireup";

/// Reads the settings of a service, the defaults if it has no file: from the first existing file of
/// `$WIREUP_SERVICE_SETTINGS`, `service.toml` in the user's directory of settings and `/etc/wireup/service.toml`. Returns the
/// first of these places too.
///
/// # Errors
/// [`FileError`] with the line that is wrong.
pub(crate) fn settings<T: DeserializeOwned + Default>(
    service: &str,
) -> Result<(T, PathBuf), FileError> {
    let name = format!("{service}.toml");
    let variable = format!("WIREUP_{}_SETTINGS", service.to_uppercase());
    let named = std::env::var_os(variable).filter(|path| !path.is_empty());
    let own = named.map(PathBuf::from);
    let own = own.or_else(|| default_directory(&name, "").ok());
    let system = Path::new(SYSTEM_DIRECTORY).join(name);
    let file = own.unwrap_or_else(|| system.clone());
    for path in [&file, &system] {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let wrong = |error| unusable(path, toml_problem(&text, &error));
                let values = toml::from_str(&text).map_err(wrong)?;
                return Ok((values, file.clone()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(path, error)),
        }
    }
    Ok((T::default(), file))
}

/// Returns the password of a variable, or else that in a file which only its owner may read.
#[cfg(any(feature = "etcd", feature = "ldap"))]
pub(crate) fn password(
    variable: Option<String>,
    file: Option<PathBuf>,
) -> Result<Option<String>, PkiFileError> {
    let (None, Some(path)) = (&variable, file) else {
        return Ok(variable);
    };
    let bytes = certificate_files::read_secret(&path)?;
    let text = String::from_utf8(bytes).map_err(|_| PkiFileError::Encoding(path))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}
