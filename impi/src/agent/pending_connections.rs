//! Connections that have to send a number of bytes before they are accepted. None of them delays another: every process
//! that reaches a port can open one, and send nothing or little.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum number of pending connections. Beyond it, the oldest one is closed: legitimate processes send at once.
const MOST: usize = 64;

/// Connections of which each has to send `N` bytes.
#[derive(Debug)]
pub(super) struct PendingConnections<const N: usize> {
    patience: Duration,
    /// Connections in the order in which they came.
    waiting: VecDeque<Stranger<N>>,
}

#[derive(Debug)]
struct Stranger<const N: usize> {
    stream: TcpStream,
    bytes: [u8; N],
    filled: usize,
    deadline: Instant,
}

impl<const N: usize> PendingConnections<N> {
    /// Makes an empty set; each connection has this time for all of its bytes.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the next connection that has sent its bytes, with these.
    ///
    /// # Errors
    /// `TimedOut` when none has until then; errors of the system in accepting and waiting.
    pub(super) fn next(
        &mut self,
        listener: &TcpListener,
        deadline: Option<Instant>,
    ) -> io::Result<(TcpStream, [u8; N])> {
        loop {
            let now = Instant::now();
            self.waiting.retain(|stranger| stranger.deadline > now);
            if deadline.is_some_and(|until| until <= now) {
                return Err(ErrorKind::TimedOut.into());
            }
            let first = self.waiting.front().map(|stranger| stranger.deadline);
            let wakes = deadline.into_iter().chain(first).min();
            if self.wait(listener, wakes.map(|at| at - now))? {
                self.accept(listener)?;
            }
            for at in (0..self.waiting.len()).rev() {
                let done = self.waiting[at].read();
                if matches!(done, Ok(false)) {
                    continue;
                }
                if let (Some(stranger), Ok(_)) = (self.waiting.remove(at), done) {
                    stranger.stream.set_nonblocking(false)?;
                    return Ok((stranger.stream, stranger.bytes));
                }
            }
        }
    }

    /// Waits for any of them; whether there is another one.
    fn wait(&self, listener: &TcpListener, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.map(Timespec::try_from).transpose();
        let timeout = timeout.map_err(io::Error::other)?;
        let streams = self.waiting.iter().map(|stranger| &stranger.stream);
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        fds.extend(streams.map(|stream| PollFd::new(stream, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => return Ok(()),
            // Where no descriptor is left, one of these may have been the last.
            Err(error) => return self.waiting.pop_front().map(drop).ok_or(error),
        };
        stream.set_nonblocking(true)?;
        if self.waiting.len() == MOST {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Stranger {
            stream,
            bytes: [0; N],
            filled: 0,
            deadline: Instant::now() + self.patience,
        });
        Ok(())
    }
}

impl<const N: usize> Stranger<N> {
    /// Reads the available bytes; returns whether all have arrived. An error means that the connection has ended, or is
    /// broken.
    fn read(&mut self) -> io::Result<bool> {
        while self.filled < N {
            match self.stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn active_connection_does_not_wait_for_silent_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = Duration::from_secs(3600);
        let mut strangers = PendingConnections::<4>::new(far);
        let mut others: Vec<TcpStream> = (0..MOST + 3).map(|_| open()).collect();
        others[MOST].write_all(&[1; 3]).unwrap();
        for number in 0..3 {
            let mut speaks = open();
            speaks.write_all(&[number; 4]).unwrap();
            let (mut stream, greeting) = strangers.next(&listener, None).unwrap();
            assert_eq!(greeting, [number; 4]);
            speaks.write_all(b"more").unwrap();
            let mut more = [0; 4];
            stream.read_exact(&mut more).unwrap();
            assert_eq!(&more, b"more");
        }
        // It waits all the same, and the longest-waiting ones had to go.
        others[MOST].write_all(&[1]).unwrap();
        assert_eq!(strangers.next(&listener, None).unwrap().1, [1; 4]);
        assert_eq!(others[0].read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn timeouts_of_one_and_all_connections_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut strangers = PendingConnections::<4>::new(Duration::from_millis(1));
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let until = Instant::now() + Duration::from_millis(500);
        let error = strangers.next(&listener, Some(until)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }
}
