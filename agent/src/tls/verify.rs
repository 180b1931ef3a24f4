//! Accepted certificates, and the texts of refusals.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{StoresServerSessions, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DistinguishedName, Error, OtherError,
    RootCertStore, ServerConfig, version,
};

use crate::identity::{Identity, IdentityError, Role};
use crate::revocation_lists::RevocationLists;

/// Implements the checks of signatures in a verifier of certificates: TLS 1.3 only, with the algorithms of ring.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Err(rustls::PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let ring = rustls::crypto::ring::default_provider();
            let algorithms = &ring.signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            let ring = rustls::crypto::ring::default_provider();
            ring.signature_verification_algorithms.supported_schemes()
        }
    };
}

pub(crate) use tls13_signatures;

/// The protocol on top, as TLS calls it.
const ALPN: &[u8] = b"h2";

fn unwanted(reason: IdentityError) -> Error {
    CertificateError::Other(OtherError(Arc::new(reason))).into()
}

/// Refuses a chain of which one has been revoked.
fn check_revoked(
    revoked: &RevocationLists,
    certificate: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> Result<(), Error> {
    let mut chain = std::iter::once(certificate).chain(rest);
    match chain.any(|one| revoked.contains(one)) {
        true => Err(CertificateError::Revoked.into()),
        false => Ok(()),
    }
}

/// Checks of both sides, from the same authorities.
#[derive(Debug)]
pub(super) struct Verifiers {
    provider: Arc<CryptoProvider>,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<dyn ServerCertVerifier>,
}

impl Verifiers {
    /// Makes a verifier that accepts the certificates which one of these authorities signed, and none has revoked.
    pub(super) fn new(
        roots: RootCertStore,
        revoked: Arc<RevocationLists>,
    ) -> Result<Self, VerifierBuilderError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots);
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        let servers =
            WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?;
        Ok(Self {
            provider,
            clients: Arc::new(ClientVerifier(clients, revoked.clone())),
            servers: Arc::new(ServerVerifier(servers, revoked)),
        })
    }

    /// Refuses a certificate that others would refuse.
    pub(super) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        let now = UnixTime::now();
        self.clients
            .verify_client_cert(certificate, rest, now)
            .map(drop)
    }

    /// Creates the configurations for serving and for calling.
    pub(super) fn configs(
        self,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(ServerConfig, ClientConfig), Error> {
        let versions = &[&version::TLS13];
        let mut server = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(self.clients)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(TicketReceipts);
        server.send_tls13_tickets = 1;
        let mut client = ClientConfig::builder_with_provider(self.provider)
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(self.servers)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        Ok((server, client))
    }
}

/// Sessions that are not stored. In TLS 1.3 a client is done before the server has looked at
/// its certificate; the ticket, which no session can be resumed with, is the receipt that it was
/// accepted.
#[derive(Debug)]
struct TicketReceipts;

impl StoresServerSessions for TicketReceipts {
    fn put(&self, _: Vec<u8>, _: Vec<u8>) -> bool {
        true
    }

    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn can_cache(&self) -> bool {
        true
    }
}

/// Clients: any certificate with an identity.
#[derive(Debug)]
struct ClientVerifier(Arc<dyn ClientCertVerifier>, Arc<RevocationLists>);

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(certificate, rest, now)?;
        check_revoked(&self.1, certificate, rest)?;
        Identity::from_der(certificate).map_err(unwanted)?;
        Ok(verified)
    }

    tls13_signatures!();
}

/// Servers: nodes, by one of their names.
#[derive(Debug)]
struct ServerVerifier(Arc<WebPkiServerVerifier>, Arc<RevocationLists>);

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .0
            .verify_server_cert(certificate, rest, name, ocsp, now)?;
        check_revoked(&self.1, certificate, rest)?;
        let identity = Identity::from_der(certificate).map_err(unwanted)?;
        match identity.role {
            Role::Node => Ok(verified),
            _ => Err(unwanted(IdentityError::Role(identity))),
        }
    }

    tls13_signatures!();
}

/// Returns the reason for which this node's own certificate cannot be used.
pub(super) fn own_error_text(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "no authority in ca.pem signed it".to_owned(),
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "it expired; renew it (wireup pki renew)".to_owned(),
        Error::InvalidCertificate(CertificateError::Revoked) => {
            "it was revoked (crl.pem); create another one (wireup pki renew --name NAME)".to_owned()
        }
        _ => theirs(error),
    }
}

/// Returns the error text for the other side of a connection.
pub(crate) fn theirs(error: &Error) -> String {
    use CertificateError as Bad;
    match error {
        Error::NoCertificatesPresented => "no certificate sent".to_owned(),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "it does not speak TLS".to_owned()
        }
        Error::NoApplicationProtocol => "it does not offer HTTP/2".to_owned(),
        Error::PeerIncompatible(_) => format!("it does not support TLS 1.3 as required ({error})"),
        Error::AlertReceived(alert) => {
            format!("it refuses this node's certificate: {}", refusal(*alert))
        }
        Error::InvalidCertificate(bad) => match bad {
            // Another authority of the same name looks like a forged signature.
            Bad::UnknownIssuer | Bad::BadSignature => {
                "no authority of this node (ca.pem) signed its certificate".to_owned()
            }
            Bad::Expired | Bad::ExpiredContext { .. } => "its certificate expired".to_owned(),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "its certificate is not valid yet; compare the clocks".to_owned()
            }
            Bad::Revoked => "its certificate was revoked".to_owned(),
            Bad::NotValidForName => "its certificate is for another name".to_owned(),
            Bad::NotValidForNameContext {
                expected,
                presented,
            } => format!(
                "its certificate is not for {}, but for {}",
                expected.to_str(),
                names(presented)
            ),
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                "its certificate does not allow this use; only a node's does".to_owned()
            }
            Bad::Other(OtherError(reason)) => format!("its certificate is not accepted: {reason}"),
            bad => format!("its certificate is not valid: {bad}"),
        },
        error => format!("TLS failed: {error}"),
    }
}

/// Converts `DnsName("n1")`, `IpAddress(10.0.0.1)` and the like to `n1, 10.0.0.1`.
fn names(presented: &[String]) -> String {
    let names: Vec<&str> = plain(presented)
        .filter(|name| !name.contains("://"))
        .map(|name| {
            let address = name.strip_prefix("IpAddress(");
            address.map_or(name, |address| address.trim_end_matches(')'))
        })
        .collect();
    match names[..] {
        [] => "no name".to_owned(),
        _ => names.join(", "),
    }
}

fn plain(presented: &[String]) -> impl Iterator<Item = &str> {
    presented
        .iter()
        .map(|name| name.split('"').nth(1).unwrap_or(name))
}

/// Returns the name of a certificate that is for the host at this address, where another was expected.
pub(super) fn name_of_host<'a>(error: &'a Error, address: &str) -> Option<&'a str> {
    let Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) =
        error
    else {
        return None;
    };
    let (host, _port) = address.rsplit_once(':')?;
    let short = host.split('.').next();
    plain(presented).find(|name| *name == host || Some(*name) == short)
}

/// Returns the text for an alert with which the other side refused our certificate.
fn refusal(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => "none was shown".to_owned(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it does not trust the authority that signed it; compare ca.pem".to_owned()
        }
        AlertDescription::CertificateExpired => "it expired".to_owned(),
        AlertDescription::CertificateRevoked => "it was revoked".to_owned(),
        other => format!("{other:?}"),
    }
}
