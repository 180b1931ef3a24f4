//! Settings of a site's services in a file, and passwords.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::pki::certificate_files::{self, PkiFileError};
use crate::site_services::{FileError, toml_problem, unusable};

/// Reads the settings in the first of these files that exists; the defaults if none does.
pub(crate) fn settings<T: DeserializeOwned + Default>(
    paths: impl IntoIterator<Item = PathBuf>,
) -> Result<T, FileError> {
    for path in paths {
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let wrong = |error| unusable(&path, toml_problem(&text, &error));
                return toml::from_str(&text).map_err(wrong);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(&path, error)),
        }
    }
    Ok(T::default())
}

/// Reads the password in a file that only its owner may read.
pub(crate) fn password(path: &Path) -> Result<String, PasswordError> {
    let bytes = certificate_files::read_secret(path)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        unusable(
            path,
            "the password is not UTF-8: write it as text in one line",
        )
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Errors in reading a password.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error(transparent)]
    Store(#[from] PkiFileError),
    #[error(transparent)]
    File(#[from] FileError),
}
