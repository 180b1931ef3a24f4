//! Silence of the other side of a connection. Time in which this process was stopped does not count
//! ([`SteppedTimeout`]): the other side may have been stopped with it, by a batch system or with the machine.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use wireup_core::job::clock::Moment;
use wireup_core::job::stepped_timeout::SteppedTimeout;

/// Stream that fails when no data has arrived for a time. HTTP/2's probes make the other side answer.
#[derive(Debug)]
pub(super) struct SilenceMonitor<S> {
    stream: S,
    limit: Duration,
    origin: Instant,
    patience: SteppedTimeout,
    timer: Pin<Box<Sleep>>,
    /// Time of the last bytes since the timer was last ready.
    received_at: Option<Moment>,
}

impl<S> SilenceMonitor<S> {
    /// Watches a stream that has just received data.
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        let patience = SteppedTimeout::new(limit, Moment::default());
        Self {
            stream,
            limit,
            origin: Instant::now(),
            patience,
            timer: Box::pin(sleep(patience.next().0)),
            received_at: None,
        }
    }

    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    fn poll_silent(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.timer.as_mut().poll(context));
            let now = self.now();
            match self.received_at.take() {
                Some(received_at) => {
                    let passed = now
                        .duration_since(received_at)
                        .min(self.limit / SteppedTimeout::STEPS);
                    self.patience = SteppedTimeout::begun(self.limit, passed, now);
                }
                None if self.patience.exhausted(now) => {
                    return Poll::Ready(io::ErrorKind::TimedOut.into());
                }
                None => {}
            }
            let next = self.origin + self.patience.next().0;
            self.timer.as_mut().reset(next);
        }
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    /// Passes on a write, or fails in its place: a stream that takes no data may not be read.
    fn watch<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        match written {
            Poll::Pending => self.poll_silent(context).map(Err),
            written => written,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SilenceMonitor<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.poll_silent(context).map(Err),
            read => {
                self.received_at = Some(self.now());
                read
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SilenceMonitor<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(shut, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Waits for a future for a time; `None` if it is not ready then.
pub(super) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let origin = Instant::now();
    let mut patience = SteppedTimeout::new(limit, Moment::default());
    while !patience.exhausted(Moment(origin.elapsed())) {
        if let Ok(ready) = timeout_at(origin + patience.next().0, future.as_mut()).await {
            return Some(ready);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(600);

    /// Reads until the stream fails; returns the time that took.
    async fn silence(watched: &mut SilenceMonitor<impl AsyncRead + Unpin>) -> Duration {
        let started = std::time::Instant::now();
        let error = watched.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        started.elapsed()
    }

    #[tokio::test]
    async fn silent_stream_fails_after_whole_limit() {
        let (stream, mut other) = duplex(64);
        let mut watched = SilenceMonitor::new(stream, LIMIT);
        sleep(LIMIT / 2).await;
        // Bytes begin it again.
        other.write_all(b"bytes").await.unwrap();
        let time = silence(&mut watched).await;
        assert!(time >= LIMIT - LIMIT / 100, "{time:?}");
        // A stream that takes nothing fails as well.
        let (stream, _other) = duplex(1);
        let mut watched = SilenceMonitor::new(stream, LIMIT);
        let error = watched.write_all(b"bytes").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn silence_excludes_time_of_stopped_process() {
        let (stream, _other) = duplex(64);
        let mut watched = SilenceMonitor::new(stream, LIMIT);
        // This thread is the whole process of the stream.
        std::thread::park_timeout(2 * LIMIT);
        let time = silence(&mut watched).await;
        assert!(time >= LIMIT / 2, "{time:?}");
        let stopped = async {
            std::thread::park_timeout(2 * LIMIT);
            sleep(LIMIT / 4).await;
        };
        assert_eq!(within(LIMIT, stopped).await, Some(()));
        assert_eq!(within(LIMIT, std::future::pending::<()>()).await, None);
    }
}
