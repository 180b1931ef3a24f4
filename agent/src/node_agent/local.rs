//! Callers of this machine, over a Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// A connection of a user of this machine.
#[derive(Debug)]
pub struct LocalConnection {
    stream: UnixStream,
    peer: LocalPeer,
}

/// Who is at its other end; an extension of every request that comes over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalPeer {
    /// As the kernel said when the connection was made.
    pub uid: u32,
}

impl LocalConnection {
    /// A connection that was accepted.
    ///
    /// # Errors
    /// When the kernel does not say who it is.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        let uid = stream.peer_cred()?.uid();
        Ok(Self {
            stream,
            peer: LocalPeer { uid },
        })
    }
}

impl Connected for LocalConnection {
    type ConnectInfo = LocalPeer;

    fn connect_info(&self) -> LocalPeer {
        self.peer
    }
}

impl AsyncRead for LocalConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LocalConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
