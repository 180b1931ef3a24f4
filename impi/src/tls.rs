//! TLS around the conversation with the server: outside the specification.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// Reason for which certificates cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file that is not to be read as PEM.
    #[error("{file}: {error}")]
    File {
        file: String,
        /// Error in the file.
        error: rustls::pki_types::pem::Error,
    },
    /// Certificates and key that do not fit.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |error| TlsError::File {
        file: file.display().to_string(),
        error,
    };
    CertificateDer::pem_file_iter(file)
        .map_err(wrong)?
        .collect::<Result<_, _>>()
        .map_err(wrong)
}

/// Makes a server's side, which authenticates clients by the token or key inside.
///
/// # Errors
/// When the files cannot be used.
pub fn server(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(cert)?;
    let wrong = |error| TlsError::File {
        file: key.display().to_string(),
        error,
    };
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong)?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// Makes a client's side, which trusts the authorities in a file.
///
/// # Errors
/// When the file cannot be used.
pub fn client(authorities: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        roots.add(certificate)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
