//! Clients of gRPC on the Unix socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use super::Slot;

/// A connection of a user of this machine.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    caller: LocalCaller,
    _slot: Option<Slot>,
}

/// Who is at its other end; an extension of every request that comes over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalCaller {
    /// As the kernel said when the connection was made.
    pub uid: u32,
}

/// Where those that were accepted go.
pub type Clients = mpsc::Sender<io::Result<Client>>;

impl Client {
    /// A connection of this user, which takes one of his places as long as it lasts.
    pub(super) fn new(stream: UnixStream, uid: u32, slot: Option<Slot>) -> Self {
        Self {
            stream,
            caller: LocalCaller { uid },
            _slot: slot,
        }
    }
}

impl Connected for Client {
    type ConnectInfo = LocalCaller;

    fn connect_info(&self) -> LocalCaller {
        self.caller
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Client {
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
