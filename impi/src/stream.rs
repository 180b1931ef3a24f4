//! Blocking streams: packets one after the other, connections from an address of one's own, the server behind TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use wireup_impi_core::packet::{HEADER, Packet, PacketHeader};

/// Reads a packet; nothing at the end of the stream.
///
/// # Errors
/// When the stream breaks, ends within a packet, or has something else.
pub fn read_packet(stream: &mut impl Read, limit: u32) -> io::Result<Option<Packet>> {
    let mut bytes = [0; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let header = PacketHeader::decode(&bytes, limit).map_err(io::Error::other)?;
    let mut data = vec![0; header.length as usize];
    stream.read_exact(&mut data)?;
    Ok(Some(Packet { header, data }))
}

/// Connects from `source` (any address if it is unspecified), and tries again while the other end does not listen yet.
///
/// # Errors
/// The last error when the time is over.
pub fn connect_from(source: IpAddr, to: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let error = match connect_once(source, to, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let passing = matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::Interrupted
        );
        if !passing || Instant::now() >= until {
            return Err(error);
        }
        pause(Duration::from_millis(50));
    }
}

fn connect_once(source: IpAddr, to: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    if source.is_unspecified() || source.is_ipv4() != to.is_ipv4() {
        return TcpStream::connect_timeout(&to, within);
    }
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    bind(&fd, &SocketAddr::new(source, 0))?;
    // A host that answers nothing would otherwise hold this for the two minutes of the kernel.
    let millis = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&fd, millis)?;
    connect(&fd, &to)?;
    sockopt::set_tcp_user_timeout(&fd, 0)?;
    Ok(fd.into())
}

/// Time after which a machine that does not answer counts as lost.
const SILENCE: Duration = Duration::from_secs(60);

/// Sets up a connection: it sends at once, and it breaks when the machine at its other end is lost, which nothing else
/// would show to a reader.
///
/// # Errors
/// When the system refuses.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    const PROBES: u32 = 3;
    stream.set_nodelay(true)?;
    let interval = SILENCE / (PROBES + 1);
    sockopt::set_tcp_keepidle(stream, interval)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // The same for data on their way, during which there are no probes.
    let millis = u32::try_from(SILENCE.as_millis()).map_err(io::Error::other)?;
    Ok(sockopt::set_tcp_user_timeout(stream, millis)?)
}

/// Returns the address of this machine from which packets to `HOST:PORT` are sent.
///
/// # Errors
/// When the text is no address, or no route leads there.
pub fn address_towards(server: &str) -> io::Result<IpAddr> {
    try_addresses(server, |to| {
        let any = match to {
            SocketAddr::V4(_) => IpAddr::from([0; 4]),
            SocketAddr::V6(_) => IpAddr::from([0; 16]),
        };
        // Sends nothing: the system chooses the address when the socket gets its destination.
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    })
}

/// Returns the first success with an address of `HOST:PORT`, or the last error.
fn try_addresses<T>(server: &str, attempt: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::new(ErrorKind::InvalidInput, "no address");
    for address in server.to_socket_addrs()? {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Waits without a condition: between attempts to connect, for which there is none.
pub(crate) fn pause(time: Duration) {
    std::thread::park_timeout(time);
}

/// The connection to the server.
#[derive(Debug)]
pub enum ServerStream {
    /// TCP as in the specification.
    Plain(TcpStream),
    /// TLS, which the specification does not have.
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl ServerStream {
    /// Connects to a server at `HOST:PORT`.
    ///
    /// # Errors
    /// When that is no address, or the server cannot be reached.
    pub fn connect(server: &str, tls: Option<Arc<rustls::ClientConfig>>) -> io::Result<Self> {
        let timeout = Duration::from_secs(20);
        let stream = try_addresses(server, |to| TcpStream::connect_timeout(&to, timeout))?;
        prepare(&stream)?;
        let Some(config) = tls else {
            return Ok(Self::Plain(stream));
        };
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let name = host.trim_matches(['[', ']']).to_owned();
        let name = name.try_into().map_err(io::Error::other)?;
        let connection = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
        let stream = rustls::StreamOwned::new(connection, stream);
        Ok(Self::Tls(Box::new(stream)))
    }

    /// Returns the socket itself.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// Returns the stream of the conversation.
    pub fn stream(&mut self) -> &mut dyn ReadWrite {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream,
        }
    }
}

/// A stream in both directions.
pub trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

#[cfg(test)]
mod tests {
    use rustix::net::listen;

    use super::*;

    /// A full queue of connections drops further ones, as a host does that is not there.
    #[test]
    fn address_without_reply_is_given_up_in_time() {
        let own = IpAddr::from([127, 0, 0, 1]);
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&fd, &SocketAddr::new(own, 0)).unwrap();
        listen(&fd, 0).unwrap();
        let listener = std::net::TcpListener::from(fd);
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).unwrap();
        for source in [own, IpAddr::from([0, 0, 0, 0])] {
            let start = Instant::now();
            let error = connect_from(source, address, Duration::from_secs(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            // The kernel's own limit is more than two minutes.
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
}
