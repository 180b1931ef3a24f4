//! Connections from others. Each refusal is one line in the log, with a bounded number per address.
//!
//! Until a caller has shown its certificate, it takes one of a bounded number of places, and its address one of
//! fewer: strangers at one address cannot keep out others.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tracing::warn;

use super::connection_silence::{SilenceMonitor, within};
use super::open_connections::ConnectionLife;
use super::tls_certificates::TlsConfigs;
use super::{Heartbeat, verify};
use crate::caller_identity::RemoteCaller;
use crate::identity::{Identity, IdentityError};
use crate::permit_counts::{CountedPermit, PermitCounts};
use crate::refusals::Refusals;
use crate::stream::write_through;

/// Timeout of a connection's first byte.
const FIRST_BYTE: Duration = Duration::from_secs(2);

/// Most connections in the handshake. Further ones wait in the kernel.
const HANDSHAKES: usize = 1024;

/// Most of these from one address; for IPv6, from one network of the size that a host may have. Further ones are refused.
const PER_SOURCE: usize = 128;

/// Pause after accept failed, for instance for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection whose other end has shown a certificate.
#[derive(Debug)]
pub struct TlsConnection {
    stream: SilenceMonitor<TlsStream<TcpStream>>,
    life: Arc<ConnectionLife>,
    peer: RemoteCaller,
}

/// Accepts connections until the stream is dropped. It has no errors, and its end is that of the
/// task that accepts: it runs as long as the runtime. `open` is dropped when the listener has been closed.
pub fn server_incoming(
    listener: TcpListener,
    tls: Arc<TlsConfigs>,
    heartbeat: Heartbeat,
    refusals: Arc<Refusals>,
    open: impl Send + 'static,
) -> ReceiverStream<io::Result<TlsConnection>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        accept_all(listener, tls, heartbeat, refusals, sender).await;
        drop(open);
    });
    ReceiverStream::new(receiver)
}

async fn accept_all(
    listener: TcpListener,
    tls: Arc<TlsConfigs>,
    heartbeat: Heartbeat,
    refusals: Arc<Refusals>,
    sender: mpsc::Sender<io::Result<TlsConnection>>,
) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let places = PermitCounts::new();
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
        let refused = move |refusals: &Refusals, reason: &HandshakeRefusal| {
            refusals.log(&format!("connections from {}", address.ip()), || {
                warn!("refused a connection from {address}: {reason}");
            });
        };
        let Some(place) = take_place(&places, address.ip()) else {
            refused(&refusals, &HandshakeRefusal::Places);
            continue;
        };
        let (tls, refusals, sender) = (tls.clone(), refusals.clone(), sender.clone());
        tokio::spawn(async move {
            let shaking = shake(stream, address, &tls, heartbeat.limit);
            let shaken = within(heartbeat.handshake, shaking).await;
            let result = shaken.unwrap_or(Err(HandshakeRefusal::Late));
            drop((permit, place));
            match result {
                Ok(connection) => drop(sender.send(Ok(connection)).await),
                Err(reason) => refused(&refusals, &reason),
            }
        });
    }
}

/// Reason for which a connection is refused; the caller is always at fault.
#[derive(Debug, thiserror::Error)]
enum HandshakeRefusal {
    /// The address has too many connections in the handshake.
    #[error("too many connections from this address without a certificate ({PER_SOURCE})")]
    Places,
    #[error("no certificate sent in time")]
    Late,
    #[error("{}", words(.0))]
    Handshake(#[from] io::Error),
    #[error("no certificate sent")]
    NoCertificate,
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Takes a place in the handshake for a connection from an address; `None` if all of its network are taken.
pub(crate) fn take_place(
    places: &Arc<PermitCounts<IpAddr>>,
    address: IpAddr,
) -> Option<CountedPermit<IpAddr>> {
    places.enter(network(address), PER_SOURCE)
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

async fn shake(
    stream: TcpStream,
    address: SocketAddr,
    tls: &TlsConfigs,
    silence: Duration,
) -> Result<TlsConnection, HandshakeRefusal> {
    // Messages are small and waited for.
    let _ = stream.set_nodelay(true);
    let here = stream.local_addr()?;
    let speaks = within(FIRST_BYTE, stream.readable()).await;
    speaks.ok_or(HandshakeRefusal::Late)??;
    let acceptor = TlsAcceptor::from(tls.current().server.clone());
    let stream = acceptor.accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate: Option<&CertificateDer<'_>> = certificates.and_then(<[_]>::first);
    let identity = Identity::from_der(certificate.ok_or(HandshakeRefusal::NoCertificate)?)?;
    let here = canonical(here);
    Ok(TlsConnection {
        life: tls.life(certificates),
        stream: SilenceMonitor::new(stream, silence),
        peer: RemoteCaller {
            identity,
            address,
            local_address: here,
        },
    })
}

/// One socket takes calls over either protocol; IPv4 is to look like itself.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the reason inside an I/O error as a text.
pub(crate) fn words(error: &io::Error) -> String {
    match tls_error(error) {
        Some(tls) => verify::theirs(tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it disconnected before it sent a certificate".to_owned()
        }
        None => error.to_string(),
    }
}

/// Returns the TLS error inside an I/O error.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

impl Connected for TlsConnection {
    type ConnectInfo = RemoteCaller;

    fn connect_info(&self) -> RemoteCaller {
        self.peer.clone()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.life.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

write_through!(TlsConnection, stream);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_share_places() {
        let places = |text: &str| network(text.parse().unwrap());
        assert_eq!(places("fd00::1"), places("fd00::ffff"));
        for other in ["fd00:0:0:1::1", "10.0.0.1"] {
            assert_ne!(places("fd00::1"), places(other));
        }
        assert_ne!(places("10.0.0.1"), places("10.0.0.2"));
    }
}
