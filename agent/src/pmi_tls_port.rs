//! TLS in front of the PMI port of one rank (`wireup serve --pmi-port-auth tls`).
//!
//! The rank proxy starts this process with its listener and writes the certificate, which comes over a socket, to a file for
//! the rank's client. This process accepts connections and carries their bytes to the rank proxy.
//!
//! Rule: the rank has one certificate and key, for both ends. Each end accepts that certificate alone, so another process,
//! with any certificate, is neither the client nor the port. Source: docs/serve.md#tls.
//! Rule: TLS 1.3 only, and no session is resumed.

use std::fmt;
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DistinguishedName, Error, OtherError, ServerConfig, version};
use tokio::io::{AsyncReadExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::permit_counts::PermitCounts;
use crate::refusals::Refusals;
use crate::tls::accept::take_place;
use crate::tls::verify::tls13_signatures;
use crate::tls::words;
use wireup_core::failure::CommandError;
use wireup_sys::signals::Signals;

/// Name in the certificate, which is known by its contents.
const NAME: &str = "wireup";

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most connections in the handshake. Further ones wait in the kernel.
const HANDSHAKES_MAX: usize = 512;

/// Pause after accept failed, for instance for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Certificate and key of a rank.
struct RankCertificate {
    acceptor: TlsAcceptor,
    /// Both in PEM; a secret.
    pem: String,
}

impl RankCertificate {
    /// Creates a certificate with a new key.
    fn new() -> Result<Self, RankCertificateError> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([NAME.to_owned()])?.self_signed(&key)?;
        let pem = certificate.pem() + &key.serialize_pem();
        let clients = RankVerifier {
            certificate: certificate.der().clone(),
        };
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(Arc::new(clients))
            .with_single_cert(vec![certificate.der().clone()], key.into())?;
        config.send_tls13_tickets = 0;
        Ok(Self {
            acceptor: Arc::new(config).into(),
            pem,
        })
    }
}

/// Error: a rank gets no certificate.
#[derive(Debug, thiserror::Error)]
enum RankCertificateError {
    #[error(transparent)]
    Certificate(#[from] rcgen::Error),
    #[error(transparent)]
    Tls(#[from] Error),
}

/// Error: a client has a certificate, and it is another one.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is not that of this rank")]
struct WrongCertificate;

/// Verifier that accepts the rank's certificate only.
#[derive(Debug)]
struct RankVerifier {
    certificate: CertificateDer<'static>,
}

impl ClientCertVerifier for RankVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match *certificate == self.certificate {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(CertificateError::Other(OtherError(Arc::new(WrongCertificate))).into()),
        }
    }

    tls13_signatures!();
}

/// Runs the process. Its arguments are the abstract socket of the rank proxy and the rank; standard input is the listener,
/// standard output the socket for the certificate, whose end is that of the rank proxy.
///
/// # Errors
/// [`CommandError`]
pub fn main(words: &[String]) -> Result<u8, CommandError> {
    let [socket, rank] = words else {
        let text = "this part of `wireup serve` is started by a rank proxy";
        return Err(CommandError::request(text.to_owned()));
    };
    let failed = |error| CommandError::system("cannot serve PMI over TLS", error);
    // The rank proxy decides about signals, and this process ends with it.
    let _signals = Signals::take(&[], false).map_err(failed)?;
    let duplicate = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let listener = duplicate(io::stdin().as_fd()).map_err(failed)?;
    let proxy = duplicate(io::stdout().as_fd()).map_err(failed)?;
    let certificate = RankCertificate::new();
    let certificate = certificate.map_err(|error| failed(io::Error::other(error)))?;
    let runtime = crate::worker_threads::single_task().map_err(failed)?;
    let served = runtime.block_on(serve(listener, proxy, certificate, socket, rank));
    served.map(|()| 0).map_err(failed)
}

/// Serves until the rank proxy has ended.
async fn serve(
    listener: OwnedFd,
    proxy: OwnedFd,
    certificate: RankCertificate,
    socket: &str,
    rank: &str,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener.into())?;
    let mut proxy = std::os::unix::net::UnixStream::from(proxy);
    proxy.set_nonblocking(false)?;
    proxy.write_all(certificate.pem.as_bytes())?;
    proxy.shutdown(Shutdown::Write)?;
    proxy.set_nonblocking(true)?;
    let mut proxy = UnixStream::from_std(proxy)?;
    tokio::select! {
        () = accept_all(listener, certificate.acceptor, socket, rank) => {}
        _ = proxy.read_u8() => {}
    }
    Ok(())
}

async fn accept_all(listener: TcpListener, acceptor: TlsAcceptor, socket: &str, rank: &str) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    let places = PermitCounts::new();
    let refusals = Arc::new(Refusals::default());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let Ok(permit) = handshakes.clone().acquire_owned().await else {
            return;
        };
        let place = take_place(&places, from.ip());
        let (acceptor, refusals) = (acceptor.clone(), refusals.clone());
        // A name that starts with NUL is abstract.
        let (socket, rank) = (format!("\0{socket}"), rank.to_owned());
        tokio::spawn(async move {
            let refuse = |reason: &dyn fmt::Display| {
                refusals.log(&format!("connections from {}", from.ip()), || {
                    wireup_sys::eprintln!(
                        "wireup: rank {rank}: connection from {from} refused: {reason}"
                    );
                });
            };
            if place.is_none() {
                return refuse(&"too many connections from this address in the TLS handshake");
            }
            let _ = stream.set_nodelay(true);
            let client = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(client)) => client,
                Ok(Err(error)) => return refuse(&format!("TLS: {}", words(&error))),
                Err(_) => return refuse(&"TLS: no certificate in time"),
            };
            drop((permit, place));
            if let Err(error) = carry(client, &socket).await {
                refuse(&error);
            }
        });
    }
}

/// Carries the bytes of a client.
///
/// # Errors
/// If the rank proxy cannot be reached.
async fn carry(
    mut client: tokio_rustls::server::TlsStream<TcpStream>,
    socket: &str,
) -> io::Result<()> {
    let mut port = UnixStream::connect(socket).await?;
    let owner = port.peer_cred()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // The end of either side is that of the connection, also without the end that TLS has.
    let _ = copy_bidirectional(&mut client, &mut port).await;
    Ok(())
}
