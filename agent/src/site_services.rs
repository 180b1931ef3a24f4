//! The authorities by which clients of a site's services (etcd, a directory, a fabric's manager) verify servers, and
//! errors in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use wireup_core::wording::value_problem;

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

pub(crate) fn unusable(path: &Path, reason: impl ToString) -> FileError {
    FileError {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Returns the line of a file that is wrong, and the reason, in one line.
pub(crate) fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let before = text.as_bytes().iter().take(at);
    let line = 1 + before.filter(|byte| **byte == b'\n').count();
    format!("line {line}: {}", value_problem(error.message()))
}

/// Returns the file with the authorities of a service.
pub(crate) fn authorities(path: Option<&Path>) -> &Path {
    let mut system = AUTHORITIES.iter().map(Path::new);
    path.or_else(|| system.find(|path| path.exists()))
        .unwrap_or_else(|| Path::new(AUTHORITIES[0]))
}

/// Makes the TLS configuration for a server whose certificate is of these authorities.
pub(crate) fn tls_client(authorities: &Path) -> Result<ClientConfig, FileError> {
    let wrong = |reason: String| unusable(authorities, reason);
    let certificates =
        CertificateDer::pem_file_iter(authorities).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    if roots.is_empty() {
        return Err(wrong("no certificate in this file".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
