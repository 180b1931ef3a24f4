//! Connections to other agents.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use super::accept::{tls_error, words};
use super::connection_silence::{SilenceMonitor, within};
use super::open_connections::ConnectionLife;
use super::tls_certificates::TlsConfigs;
use super::verify::name_of_host;
use super::{CONNECTION_WINDOW, Heartbeat, NO_LIMIT, STREAM_WINDOW};
use crate::stream::write_through;

/// Maximum number of bytes from the other side before it has accepted this one.
const EARLY: usize = 4096;

/// Connections that are begun within the time limit.
const ATTEMPTS: u32 = 12;

/// A host that is found unreachable later than this after the first connection to it was begun has no link address that the
/// kernel has found: it asks three times, a second apart. An earlier answer is that of a route. Source: `mcast_solicit` in arp(7).
const ROUTE_ANSWER: Duration = Duration::from_millis(100);

/// Reason for which a connection failed. The caller adds the name and address.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name cannot be in any certificate.
    #[error("invalid node name {0:?}: use a host name or an IP address")]
    Name(String),
    /// The address cannot be found out.
    #[error(
        "cannot find the address {address}: {}; check the name, or write NAME@ADDRESS",
        reason(error)
    )]
    Address {
        /// Address from the settings or the launch.
        address: String,
        error: io::Error,
    },
    /// No process listens there, or there is no route.
    #[error("cannot connect to {address}: {}{}", reason(.error), remedy(.error))]
    Tcp {
        /// Address of the attempt; the last one of several.
        address: SocketAddr,
        error: io::Error,
    },
    /// One side refuses the other.
    #[error("{0}")]
    Tls(String),
    /// The other side ended the connection before it had accepted this one.
    #[error("{}", words(.0))]
    Ended(io::Error),
    /// The other side did not answer in time.
    #[error("no reply within {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The HTTP/2 connection was not made.
    #[error("cannot start HTTP/2: {0}")]
    Http(tonic::transport::Error),
}

/// Returns the system's text of an error, without the library's additions.
fn reason(error: &io::Error) -> String {
    let whole = error.to_string();
    let text = whole.strip_prefix("failed to lookup address information: ");
    let text = text.unwrap_or(&whole);
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Returns the remedy if no process listens.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; start the agent there (systemctl start wireup-agent, or wireup agent)"
        }
        _ => "",
    }
}

impl ConnectError {
    /// Returns the error of a failed lookup.
    pub fn unknown(address: &str, error: io::Error) -> Self {
        Self::Address {
            address: address.to_owned(),
            error,
        }
    }

    /// Whether the error can be the effect of an agent's restart on its callers.
    pub(crate) fn may_be_restart(&self) -> bool {
        match self {
            Self::Tcp { error, .. } => error.kind() == io::ErrorKind::ConnectionRefused,
            Self::Ended(_) => true,
            _ => false,
        }
    }
}

/// Connects to the agent of the node `name` at `address` (`HOST:PORT`). When this returns, either
/// side has accepted the other's certificate. The channel is that one connection: when it breaks,
/// the channel stays broken, and silence breaks it.
///
/// # Errors
/// [`ConnectError`], after [`Heartbeat::connect`] and [`Heartbeat::handshake`] at the latest, besides the time that the
/// look-up takes.
pub async fn connect(
    tls: &TlsConfigs,
    name: &str,
    address: &str,
    heartbeat: Heartbeat,
) -> Result<Channel, ConnectError> {
    let found = tokio::net::lookup_host(address).await;
    let found = found.map_err(|error| ConnectError::unknown(address, error))?;
    let found: Vec<_> = found.collect();
    let stream = dial(tls, name, address, &found, heartbeat).await?;
    let lost = || std::future::ready(Err(io::Error::other("the connection was lost")));
    channel(stream, lost, heartbeat).await
}

/// Makes a channel of a connection. A call for which it is no longer good, because it broke or its agent [leaves
/// it](crate::daemon), is made over one from `again`. Silence breaks it.
///
/// # Errors
/// [`ConnectError::Http`]
pub async fn channel<E, F>(
    stream: PeerStream,
    again: impl Fn() -> F + Send + 'static,
    heartbeat: Heartbeat,
) -> Result<Channel, ConnectError>
where
    E: std::error::Error + Send + Sync + 'static,
    F: Future<Output = Result<PeerStream, E>> + Send,
{
    let stream = Mutex::new(Some(stream));
    let again = service_fn(move |_: Uri| {
        let stream = stream.lock().ok().and_then(|mut stream| stream.take());
        let other = stream.is_none().then(&again);
        async move {
            match (stream, other) {
                (Some(stream), _) => Ok(TokioIo::new(stream)),
                (None, Some(other)) => other.await.map(TokioIo::new),
                (None, None) => unreachable!("one of the two is there"),
            }
        }
    });
    // The stream encrypts, so the URL has the scheme http; the stream has the address.
    Endpoint::from_static("http://agent")
        .http2_keep_alive_interval(heartbeat.interval)
        .keep_alive_timeout(NO_LIMIT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .connect_with_connector(again)
        .await
        .map_err(ConnectError::Http)
}

/// Makes the bare connection, to the looked-up address.
///
/// # Errors
/// As [`connect`].
pub async fn dial(
    tls: &TlsConfigs,
    name: &str,
    address: &str,
    found: &[SocketAddr],
    heartbeat: Heartbeat,
) -> Result<PeerStream, ConnectError> {
    let expected = ServerName::try_from(name.to_owned());
    let expected = expected.map_err(|_| ConnectError::Name(name.to_owned()))?;
    let stream = tcp(address, found, heartbeat.connect).await?;
    // Messages are small and waited for.
    let _ = stream.set_nodelay(true);
    within(
        heartbeat.handshake,
        shake(tls, expected, address, stream, heartbeat.limit),
    )
    .await
    .unwrap_or(Err(ConnectError::Silent(heartbeat.handshake)))
}

/// Has both sides accept each other.
async fn shake(
    tls: &TlsConfigs,
    expected: ServerName<'static>,
    address: &str,
    stream: TcpStream,
    silence: Duration,
) -> Result<PeerStream, ConnectError> {
    let connector = TlsConnector::from(tls.current().client.clone());
    let shaken = connector.connect(expected, stream).await;
    let stream = shaken.map_err(|error| {
        if tls_error(&error).is_none() {
            return ConnectError::Ended(error);
        }
        let node = tls_error(&error).and_then(|error| name_of_host(error, address));
        // As in ssh's syntax.
        let hint = node
            .map(|node| format!(" (in NAME@ADDRESS, NAME is the node, not a user: write {node})"));
        ConnectError::Tls(words(&error) + &hint.unwrap_or_default())
    })?;
    let mut accepted = PeerStream {
        watched: tls.life(stream.get_ref().1.peer_certificates()),
        stream: SilenceMonitor::new(stream, silence),
        early_data: Vec::new(),
        early_position: 0,
        life: Arc::default(),
    };
    poll_fn(|context| accepted.poll_receipt(context))
        .await
        .map_err(|error| match tls_error(&error) {
            Some(_) => ConnectError::Tls(words(&error)),
            None => ConnectError::Ended(error),
        })?;
    Ok(accepted)
}

/// Connects to one of the addresses of a name. They are tried in turn, so that one that is silent does not hide the others. The
/// kernel asks again after a second, then after two: on a network that loses packets one more connection is begun in the meantime, and the
/// first that is made counts. An address that answers with an error is tried no more, except when its link address was not found: the
/// requests for it may be lost.
async fn tcp(
    address: &str,
    found: &[SocketAddr],
    limit: Duration,
) -> Result<TcpStream, ConnectError> {
    let mut last = ConnectError::unknown(address, io::ErrorKind::NotFound.into());
    let connecting = async {
        let (mut addresses, mut begun) = (found.to_vec(), BTreeMap::new());
        let mut attempts = FuturesUnordered::new();
        for turn in 0.. {
            let Some(&next) = addresses.get(turn % addresses.len().max(1)) else {
                break;
            };
            let first = *begun.entry(next).or_insert_with(Instant::now);
            attempts.push(async move {
                let result = TcpStream::connect(next).await;
                (next, result, first.elapsed())
            });
            let mut turn = pin!(tokio::time::sleep(limit / ATTEMPTS));
            loop {
                let (address, result, after) = tokio::select! {
                    Some(attempt) = attempts.next() => attempt,
                    () = &mut turn => break,
                };
                let error = match result {
                    Ok(stream) => return Some(stream),
                    Err(error) => error,
                };
                let is_lost =
                    error.kind() == io::ErrorKind::HostUnreachable && after > ROUTE_ANSWER;
                last = ConnectError::Tcp { address, error };
                if !is_lost {
                    addresses.retain(|other| *other != address);
                    break;
                }
            }
        }
        None
    };
    match within(limit, connecting).await {
        Some(Some(stream)) => Ok(stream),
        Some(None) => Err(last),
        None => Err(ConnectError::Silent(limit)),
    }
}

/// A connection that the other side has accepted.
#[derive(Debug)]
pub struct PeerStream {
    stream: SilenceMonitor<TlsStream<TcpStream>>,
    /// Data of the connection.
    early_data: Vec<u8>,
    early_position: usize,
    life: Arc<()>,
    /// Ends it when the other side is revoked.
    watched: Arc<ConnectionLife>,
}

impl PeerStream {
    /// Returns a reference that can be upgraded as long as the connection is in use: its user drops it when the other
    /// side ends it.
    pub fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }

    /// Waits until the other side has sent a session ticket, which it does when it has accepted
    /// this one's certificate.
    fn poll_receipt(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.early_data.len() < EARLY {
            let mut bytes = [0; 512];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            let receipt = self.stream.get_ref().get_ref().1.tls13_tickets_received() > 0;
            match read {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Poll::Ready(Ok(())) => self.early_data.extend_from_slice(buffer.filled()),
                Poll::Pending if receipt => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
            if receipt {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Ready(Err(io::Error::other(
            "it sent data before it accepted this node's certificate",
        )))
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.watched.check(context)?;
        let early = &self.early_data[self.early_position..];
        if early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let count = early.len().min(buffer.remaining());
        buffer.put_slice(&early[..count]);
        self.early_position += count;
        Poll::Ready(Ok(()))
    }
}

write_through!(PeerStream, stream);
