//! Wrappers of streams that pass unchanged operations on to the inner stream.

/// Implements reading by the field `$inner`.
macro_rules! read_through {
    ($outer:ty, $inner:ident) => {
        impl tokio::io::AsyncRead for $outer {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::pin::Pin::new(&mut self.$inner).poll_read(context, buffer)
            }
        }
    };
}

/// Has a type write to its field `$inner`.
macro_rules! write_through {
    ($outer:ty, $inner:ident) => {
        impl tokio::io::AsyncWrite for $outer {
            fn poll_write(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                std::pin::Pin::new(&mut self.$inner).poll_write(context, bytes)
            }

            fn poll_flush(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::pin::Pin::new(&mut self.$inner).poll_flush(context)
            }

            fn poll_shutdown(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::pin::Pin::new(&mut self.$inner).poll_shutdown(context)
            }

            fn poll_write_vectored(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                parts: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                std::pin::Pin::new(&mut self.$inner).poll_write_vectored(context, parts)
            }

            fn is_write_vectored(&self) -> bool {
                self.$inner.is_write_vectored()
            }
        }
    };
}

pub(crate) use {read_through, write_through};
