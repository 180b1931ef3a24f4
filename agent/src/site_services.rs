//! What clients of a site's services (etcd, a directory, a fabric's manager) have in common: settings in a file, passwords, and
//! the authorities by which servers are known.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;

use wireup_core::wording::value_problem;

use crate::pki::certificate_files::{self, PkiFileError};

/// The authorities that distributions trust: Debian's file, and Fedora's.
const AUTHORITIES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .path.display())]
pub struct FileError {
    path: PathBuf,
    reason: String,
}

fn unusable(path: &Path, reason: impl ToString) -> FileError {
    FileError {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// The line of a file that is wrong, and the reason, in one line.
pub(crate) fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let before = text.as_bytes().iter().take(at);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    format!("line {line}: {}", value_problem(error.message()))
}

/// The settings in the first of these files that is there; the defaults if none is.
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

/// The password in a file that only its owner may read.
pub(crate) fn password(path: &Path) -> Result<String, PasswordError> {
    let bytes = certificate_files::read_secret(path)?;
    let text = String::from_utf8(bytes).map_err(|_| unusable(path, "this is no text"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Why a password cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error(transparent)]
    Store(#[from] PkiFileError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The file with the authorities of a service.
pub(crate) fn authorities(given: Option<&Path>) -> &Path {
    let mut system = AUTHORITIES.iter().map(Path::new);
    given
        .or_else(|| system.find(|path| path.exists()))
        .unwrap_or_else(|| Path::new(AUTHORITIES[0]))
}

/// TLS to a server whose certificate is of these authorities.
pub(crate) fn tls_client(authorities: &Path) -> Result<ClientConfig, FileError> {
    let wrong = |reason: String| unusable(authorities, reason);
    let certificates =
        CertificateDer::pem_file_iter(authorities).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if roots.is_empty() {
        return Err(wrong("it has no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
