//! Connections from others. Whoever is refused costs one line in the log.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tracing::warn;

use super::credentials::Tls;
use super::verify;
use crate::identity::Identity;
use crate::stream::{read_through, write_through};

/// So long may a client take to show who it is.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// So many may be about to show it. More wait in the kernel.
const HANDSHAKES: usize = 256;

/// Pause after the system refused to accept, for instance for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of a connection; an extension of every request that comes over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Whose certificate was shown.
    pub identity: Identity,
    /// Where it calls from.
    pub address: SocketAddr,
    /// The address of this node at which it calls.
    pub here: SocketAddr,
}

/// A connection whose other end has shown a certificate.
#[derive(Debug)]
pub struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
}

/// Accepts connections until the stream is dropped. It has no errors, and its end is that of the
/// task that accepts: there is none while the runtime lives.
pub fn server_incoming(
    listener: TcpListener,
    tls: Arc<Tls>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(accept_all(listener, tls, sender));
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: TcpListener,
    tls: Arc<Tls>,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = sender.closed() => return,
        };
        let (stream, address) = match accepted {
            Ok((stream, from)) => (stream, canonical(from)),
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = handshakes.clone().acquire_owned().await else {
            return;
        };
        let (tls, sender) = (tls.clone(), sender.clone());
        tokio::spawn(async move {
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, shake(stream, address, &tls));
            let result = handshake
                .await
                .unwrap_or_else(|_| Err("it did not say who it is in time".to_owned()));
            drop(permit);
            match result {
                Ok(connection) => drop(sender.send(Ok(connection)).await),
                Err(reason) => warn!("refused a connection from {address}: {reason}"),
            }
        });
    }
}

async fn shake(stream: TcpStream, address: SocketAddr, tls: &Tls) -> Result<Connection, String> {
    // Messages are small and waited for.
    let _ = stream.set_nodelay(true);
    let here = stream.local_addr().map_err(|error| words(&error))?;
    let acceptor = TlsAcceptor::from(tls.current().server.clone());
    let stream = acceptor
        .accept(stream)
        .await
        .map_err(|error| words(&error))?;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate: Option<&CertificateDer<'_>> = certificates.and_then(<[_]>::first);
    let identity = Identity::of_der(certificate.ok_or("it shows no certificate")?)
        .map_err(|error| error.to_string())?;
    let here = canonical(here);
    Ok(Connection {
        stream,
        peer: Peer {
            identity,
            address,
            here,
        },
    })
}

/// One socket takes calls over either protocol; IPv4 is to look like itself.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The reason inside an I/O error, in words.
pub(super) fn words(error: &io::Error) -> String {
    match of_tls(error) {
        Some(tls) => verify::theirs(tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it went away before it said who it is".to_owned()
        }
        None => error.to_string(),
    }
}

/// The error of TLS that is inside.
pub(super) fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

impl Connection {
    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

read_through!(Connection, stream);
write_through!(Connection, stream);
