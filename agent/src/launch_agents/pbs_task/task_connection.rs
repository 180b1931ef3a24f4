//! The connection of a task with its caller, and the proof that each of them gives.

use std::io;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, Error, ServerConfig, version};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::tls::verify::tls13_signatures;

/// The name in the certificate, which is known by its fingerprint.
const NAME: &str = "wireup";

/// Label of the TLS key export for a task's connection.
const LABEL: &[u8] = b"EXPORTER-wireup-task";

type Digest = [u8; 32];

/// Returns the proof that a task sends. It needs the cookie, and is invalid on another connection.
fn proof(exported: Digest, cookie: &[u8]) -> Digest {
    let digest = Sha256::new().chain_update(exported).chain_update(cookie);
    digest.finalize().into()
}

/// The side that waits for its task.
#[derive(Clone)]
pub(super) struct TaskCaller {
    acceptor: TlsAcceptor,
    fingerprint: Digest,
}

impl TaskCaller {
    /// Makes a caller with a key of its own, which is in no file.
    ///
    /// # Errors
    /// When no key can be made.
    pub(super) fn new() -> io::Result<Self> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let params = CertificateParams::new([NAME.to_owned()]).map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let der = certificate.der().clone();
        let fingerprint = Sha256::digest(&der).into();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![der], key.into())
            .map_err(io::Error::other)?;
        Ok(Self {
            acceptor: Arc::new(config).into(),
            fingerprint,
        })
    }

    /// Returns the fingerprint of its certificate, as [`Task::new`] takes it.
    pub(super) fn fingerprint(&self) -> String {
        HEXLOWER.encode(&self.fingerprint)
    }

    /// Returns the connection, if it is that of a task of the job with this cookie.
    ///
    /// # Errors
    /// When the connection is not the task's.
    pub(super) async fn admit(
        &self,
        stream: TcpStream,
        cookie: &[u8],
    ) -> io::Result<server::TlsStream<TcpStream>> {
        let mut task = self.acceptor.accept(stream).await?;
        let mut sent = Digest::default();
        task.read_exact(&mut sent).await?;
        let (_, connection) = task.get_ref();
        let exported = connection.export_keying_material(Digest::default(), LABEL, None);
        let expected = proof(exported.map_err(io::Error::other)?, cookie);
        match sent == expected {
            true => Ok(task),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// The side that was started by its caller.
pub(super) struct Task(TlsConnector);

impl Task {
    /// Creates a task for the caller with this fingerprint.
    ///
    /// # Errors
    /// If the text is not a fingerprint.
    pub(super) fn new(fingerprint: &str) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not a fingerprint");
        let bytes = HEXLOWER.decode(fingerprint.as_bytes()).ok();
        let fingerprint = bytes.and_then(|bytes| bytes.try_into().ok());
        let verifier = PinnedCertificate {
            fingerprint: fingerprint.ok_or_else(invalid)?,
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self(Arc::new(config).into()))
    }

    /// Connects to the caller, and proves that this process belongs to the job.
    ///
    /// # Errors
    /// When the caller cannot be reached, or another process has taken its place.
    pub(super) async fn connect(
        &self,
        address: &str,
        cookie: &[u8],
    ) -> io::Result<client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let mut caller = self.0.connect(name, stream).await?;
        let (_, connection) = caller.get_ref();
        let exported = connection.export_keying_material(Digest::default(), LABEL, None);
        let proof = proof(exported.map_err(io::Error::other)?, cookie);
        caller.write_all(&proof).await?;
        caller.flush().await?;
        Ok(caller)
    }
}

/// Verifier that accepts one certificate only.
#[derive(Debug)]
struct PinnedCertificate {
    fingerprint: Digest,
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match Digest::from(Sha256::digest(certificate)) == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    tls13_signatures!();
}

#[cfg(test)]
mod tests {
    use super::proof;

    #[test]
    fn proof_is_valid_for_one_connection_and_one_job() {
        assert_eq!(proof([1; 32], b"a"), proof([1; 32], b"a"));
        assert_ne!(proof([1; 32], b"a"), proof([2; 32], b"a"));
        assert_ne!(proof([1; 32], b"a"), proof([1; 32], b"b"));
    }
}
