//! A link to a local neighbour: frames over a Unix socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use prost::bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio_stream::Stream;

use super::frame_router::{RoutedFrame, frame_bodies};
use super::queue::{LINK_MAX, QueueFull};
use crate::budget::{BudgetAccount, ByteReservation, COPIED};
use crate::readiness::watch;
use wireup_core::link::agent_protocol::AgentReport;
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameError, HEADER, Header};
use wireup_core::link::liveness::LivenessMessage;
use wireup_core::link::{decode, encode};

/// Least room for a read, in bytes.
const READ: usize = 16 * 1024;

/// Most parts of one write.
const PARTS: usize = 16;

/// Input from a neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkInput {
    /// Frame to be routed.
    Carried(RoutedFrame),
    /// A message for this agent, or a part of it.
    Control {
        /// Whether the message continues in the next frame.
        more: bool,
        /// At most [`BODY_MAX`](wireup_core::link::frame::BODY_MAX) bytes.
        body: Bytes,
    },
    /// About the link itself.
    Sign(LivenessMessage),
}

/// Reason for which a link cannot be read any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are no frames.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Invalid message about the link itself.
    #[error("invalid liveness message")]
    Sign,
    /// The neighbour closed the link within a frame.
    #[error("the connection ended within a frame")]
    Cut,
}

/// Makes both directions of a link of a user from a non-blocking socket.
///
/// # Errors
/// The system refuses to watch the socket.
pub fn link(
    socket: UnixStream,
    account: &Arc<BudgetAccount>,
) -> io::Result<(LinkReader, LinkWriter)> {
    let socket = Arc::new(socket);
    let reader = LinkReader {
        socket: watch(Arc::clone(&socket), Interest::READABLE)?,
        bytes: BytesMut::new(),
        failed: false,
    };
    let writer = LinkWriter {
        socket,
        room: None,
        queue: VecDeque::new(),
        tail: BytesMut::new(),
        waiting: 0,
        reservation: account.hold(0),
        broken: false,
    };
    Ok((reader, writer))
}

/// The direction towards this agent. The stream ends with the neighbour's end, or after an error.
#[derive(Debug)]
pub struct LinkReader {
    socket: AsyncFd<Arc<UnixStream>>,
    bytes: BytesMut,
    failed: bool,
}

impl LinkReader {
    /// Has the thread of another runtime wait for the link.
    ///
    /// # Errors
    /// The system refuses to watch the socket.
    pub fn move_to(self, thread: &Handle) -> io::Result<Self> {
        let socket = self.socket.into_inner();
        let _entered = thread.enter();
        Ok(Self {
            socket: watch(socket, Interest::READABLE)?,
            ..self
        })
    }

    /// Parses the next frame of the received bytes.
    fn parse(&mut self) -> Result<Option<LinkInput>, LinkError> {
        let Some(header) = Header::decode(&self.bytes)? else {
            return Ok(None);
        };
        let length = HEADER + header.body;
        if self.bytes.len() < length {
            self.bytes.reserve(length - self.bytes.len());
            return Ok(None);
        }
        let mut frame = self.bytes.split_to(length);
        let body = frame.split_off(HEADER).freeze();
        let Header { to, from, more, .. } = header;
        Ok(Some(match header.class {
            FrameClass::Carried => LinkInput::Carried(RoutedFrame {
                to,
                from,
                more,
                body,
            }),
            FrameClass::Control => LinkInput::Control { more, body },
            FrameClass::Sign => LinkInput::Sign(decode(&body).map_err(|_| LinkError::Sign)?),
        }))
    }

    /// Waits for the first bytes, or the end. Takes next to no memory while it waits.
    pub async fn first(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.reserve(HEADER);
            // The next read returns the socket's error. Readiness alone does not show it:
            // a new socket counts as ready until a read shows that it is not.
            let _ = std::future::poll_fn(|cx| self.poll_read(cx)).await;
        }
    }

    /// Returns the next frame that is complete in the socket; `None` without one.
    pub fn next_now(&mut self) -> Option<Result<LinkInput, LinkError>> {
        loop {
            match self.parse() {
                Ok(Some(incoming)) => return Some(Ok(incoming)),
                Err(error) => return Some(Err(error)),
                Ok(None) => {}
            }
            self.bytes.reserve(READ);
            match read(self.socket.get_ref(), &mut self.bytes) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Reads available data, up to the buffer's capacity; 0 is the end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let room = self.bytes.capacity() - self.bytes.len();
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            match read(self.socket.get_ref(), &mut self.bytes) {
                Ok(count) => {
                    // The socket is empty.
                    if 0 < count && count < room {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<LinkInput>, LinkError>> {
        loop {
            if let Some(incoming) = self.parse()? {
                return Poll::Ready(Ok(Some(incoming)));
            }
            if self.bytes.capacity() - self.bytes.len() < READ / 4 {
                self.bytes.reserve(READ);
            }
            let count = match ready!(self.poll_read(cx)) {
                // The neighbour has closed the link before it read all that was sent to it, and everything
                // from it has been read. Source: unix_release_sock in Linux.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                read => read?,
            };
            if count == 0 {
                return Poll::Ready(match self.bytes.is_empty() {
                    true => Ok(None),
                    false => Err(LinkError::Cut),
                });
            }
        }
    }
}

/// Appends available data, up to the buffer's capacity.
fn read(socket: &UnixStream, bytes: &mut BytesMut) -> rustix::io::Result<usize> {
    let (filled, _) = rustix::io::read(socket, bytes.spare_capacity_mut())?;
    let count = filled.len();
    let length = bytes.len() + count;
    // SAFETY: the kernel has written these bytes behind those that there were.
    unsafe { bytes.set_len(length) };
    Ok(count)
}

impl Stream for LinkReader {
    type Item = Result<LinkInput, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let incoming = ready!(self.poll_incoming(cx));
        self.failed = incoming.is_err();
        Poll::Ready(incoming.transpose())
    }
}

/// Returns a frame for the neighbour, whatever the addresses are.
fn neighbour_frame(body: Bytes, more: bool) -> RoutedFrame {
    RoutedFrame {
        to: FrameAddress::EveryNode,
        from: FrameAddress::EveryNode,
        more,
        body,
    }
}

/// The direction towards the neighbour. Nothing is written before [`poll_flush`](Self::poll_flush).
#[derive(Debug)]
pub struct LinkWriter {
    socket: Arc<UnixStream>,
    /// Duplicate of the socket that is watched until it is writable; `None` if nothing waits for that.
    room: Option<AsyncFd<UnixStream>>,
    queue: VecDeque<Bytes>,
    /// Headers and small bodies behind the queue.
    tail: BytesMut,
    waiting: usize,
    /// Bytes of `waiting` that were copied here.
    reservation: ByteReservation,
    /// Whether the neighbour is gone: queued data is dropped.
    broken: bool,
}

impl LinkWriter {
    /// Queues a carried frame.
    ///
    /// # Errors
    /// [`QueueFull`]; the frame is dropped.
    pub fn carry(&mut self, packet: &RoutedFrame) -> Result<(), QueueFull> {
        self.push(FrameClass::Carried, packet)
    }

    /// Queues a message about the link.
    ///
    /// # Errors
    /// [`QueueFull`]; the message is dropped.
    pub fn sign(&mut self, sign: LivenessMessage) -> Result<(), QueueFull> {
        let body = Bytes::from(encode(&sign));
        self.push(FrameClass::Sign, &neighbour_frame(body, false))
    }

    /// Queues a control message, cut as needed.
    ///
    /// # Errors
    /// [`QueueFull`]; the part that is queued already is useless.
    pub fn control(&mut self, message: &Bytes) -> Result<(), QueueFull> {
        frame_bodies(message.clone()).try_for_each(|(body, more)| {
            self.push(FrameClass::Control, &neighbour_frame(body, more))
        })
    }

    /// Sends a report to the neighbour, and waits until it is written.
    pub async fn report(&mut self, report: &AgentReport) {
        if self.control(&Bytes::from(encode(report))).is_ok() {
            self.flush().await;
        }
    }

    /// Answers a probe of the neighbour; false if that does not read.
    pub fn answer(&mut self, sign: LivenessMessage, silence: Duration) -> bool {
        let silence = Some(silence);
        sign != LivenessMessage::Ask || self.sign(LivenessMessage::Alive { silence }).is_ok()
    }

    fn push(&mut self, class: FrameClass, frame: &RoutedFrame) -> Result<(), QueueFull> {
        if self.broken {
            return Ok(());
        }
        let body = &frame.body;
        let header = Header {
            to: frame.to,
            from: frame.from,
            class,
            more: frame.more,
            body: body.len(),
        };
        let bytes = HEADER + body.len();
        if self.waiting + bytes > LINK_MAX {
            return Err(QueueFull::Link);
        }
        if self.waiting > 0 {
            self.reservation.account().check()?;
        }
        self.waiting += bytes;
        let is_copied = body.len() <= COPIED;
        let copied = if is_copied { bytes } else { HEADER };
        self.reservation.set(self.reservation.bytes() + copied);
        self.tail.extend_from_slice(&header.encode());
        // Larger ones are sent from where they are.
        if is_copied {
            self.tail.extend_from_slice(body);
        } else {
            self.queue.push_back(self.tail.split().freeze());
            self.queue.push_back(body.clone());
        }
        Ok(())
    }

    /// Writes queued data; ready when nothing is left. A neighbour that is gone is no error: the read side reports its
    /// end.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.tail.is_empty() {
            self.queue.push_back(self.tail.split().freeze());
        }
        while !self.queue.is_empty() {
            let mut room = match &self.room {
                Some(room) => ready!(room.poll_write_ready(cx)).ok(),
                None => None,
            };
            let mut parts = [IoSlice::new(&[]); PARTS];
            let used = parts.iter_mut().zip(&self.queue).map(|(part, bytes)| {
                *part = IoSlice::new(bytes);
            });
            let count = used.count();
            let written = (&*self.socket).write_vectored(&parts[..count]);
            let failed = match written {
                Ok(written) => {
                    self.written(written);
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &mut room {
                    Some(room) => {
                        room.clear_ready();
                        false
                    }
                    None => self.await_room().is_err(),
                },
                Err(_) => true,
            };
            if failed {
                self.broken = true;
                self.queue.clear();
                self.waiting = 0;
                self.reservation.set(0);
            }
        }
        self.room = None;
        Poll::Ready(())
    }

    fn await_room(&mut self) -> io::Result<()> {
        // The socket itself is watched for reading.
        self.room = Some(watch(self.socket.try_clone()?, Interest::WRITABLE)?);
        Ok(())
    }

    /// Number of queued bytes that the full socket does not take; `None` while it has room.
    pub fn blocked_bytes(&self) -> Option<usize> {
        self.room.as_ref().map(|_| self.waiting)
    }

    /// Number of queued bytes.
    pub fn queued_bytes(&self) -> usize {
        self.waiting
    }

    /// Whether something is queued.
    pub fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Waits until everything queued is written.
    pub async fn flush(&mut self) {
        std::future::poll_fn(|cx| self.poll_flush(cx)).await;
    }

    fn written(&mut self, mut bytes: usize) {
        self.waiting -= bytes;
        // No more than waits is copied.
        self.reservation
            .set(self.reservation.bytes().min(self.waiting));
        while let Some(first) = self.queue.front_mut() {
            if bytes < first.len() {
                let _ = first.split_to(bytes);
                return;
            }
            bytes -= first.len();
            self.queue.pop_front();
        }
    }
}

impl Drop for LinkWriter {
    /// Ends the direction, also if this agent still reads.
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio_stream::StreamExt;
    use wireup_core::job::ids::NodeId;
    use wireup_core::link::frame::BODY_MAX;

    use super::*;

    fn account() -> Arc<BudgetAccount> {
        crate::budget::Budgets::default().account(1)
    }

    /// Returns both ends of a link.
    fn pair() -> ((LinkReader, LinkWriter), (LinkReader, LinkWriter)) {
        let (here, there) = UnixStream::pair().unwrap();
        let end = |socket: UnixStream| {
            socket.set_nonblocking(true).unwrap();
            link(socket, &account()).unwrap()
        };
        (end(here), end(there))
    }

    fn packet(to: u32, body: usize) -> RoutedFrame {
        RoutedFrame {
            to: FrameAddress::Node(NodeId(to)),
            from: FrameAddress::Launcher,
            more: to.is_multiple_of(2),
            body: vec![to as u8; body].into(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn frames_of_any_size_arrive_unchanged(
            sizes in prop::collection::vec(prop_oneof![0..100usize, 4000..5000usize, Just(BODY_MAX)], 1..40)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async {
                let ((_reader, mut writer), (mut reader, _writer)) = pair();
                let sent: Vec<RoutedFrame> = (0..).zip(&sizes).map(|(n, size)| packet(n, *size)).collect();
                for packet in &sent {
                    writer.carry(packet).unwrap();
                }
                let receive = async {
                    for packet in &sent {
                        let incoming = reader.next().await.unwrap().unwrap();
                        assert_eq!(incoming, LinkInput::Carried(packet.clone()));
                    }
                };
                tokio::join!(writer.flush(), receive);
                assert_eq!(writer.waiting, 0);
            });
        }
    }

    #[test]
    fn moved_link_keeps_received_data_and_receives_more() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap()
        };
        let (first, second) = (runtime(), runtime());
        let carried = |n| Some(LinkInput::Carried(packet(n, 10)));
        let (mut reader, mut writer) = first.block_on(async {
            let ((mut reader, _writer), (_reader, mut writer)) = pair();
            writer.carry(&packet(1, 10)).unwrap();
            writer.carry(&packet(2, 10)).unwrap();
            writer.flush().await;
            assert_eq!(reader.next().await.map(Result::unwrap), carried(1));
            (reader.move_to(second.handle()).unwrap(), writer)
        });
        drop(first);
        second.block_on(async {
            assert_eq!(reader.next().await.map(Result::unwrap), carried(2));
            writer.carry(&packet(3, 10)).unwrap();
            let received = async { reader.next().await.map(Result::unwrap) };
            let ((), received) = tokio::join!(writer.flush(), received);
            assert_eq!(received, carried(3));
        });
    }

    #[tokio::test]
    async fn neighbour_leaving_with_unread_data_has_ended_normally() {
        let ((unread, mut writer), (mut reader, mut towards)) = pair();
        writer.carry(&packet(1, 10)).unwrap();
        towards.carry(&packet(2, 10)).unwrap();
        tokio::join!(writer.flush(), towards.flush());
        drop((unread, writer));
        let incoming = reader.next().await.unwrap().unwrap();
        assert_eq!(incoming, LinkInput::Carried(packet(1, 10)));
        assert!(reader.next().await.is_none());
    }

    #[tokio::test]
    async fn long_message_is_cut_and_end_within_frame_is_error() {
        let ((_reader_here, mut writer), (mut reader, _writer)) = pair();
        let message = Bytes::from(vec![7; BODY_MAX + 1]);
        let receive = async {
            let mut got = Vec::new();
            loop {
                match reader.next().await.unwrap().unwrap() {
                    LinkInput::Control { more, body } => {
                        got.extend_from_slice(&body);
                        if !more {
                            return (got, reader);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        writer.control(&message).unwrap();
        let ((), (got, mut reader)) = tokio::join!(writer.flush(), receive);
        assert_eq!(got, message);

        (&*writer.socket).write_all(&[20, 0, 0, 0, 1]).unwrap();
        drop(writer);
        assert!(matches!(reader.next().await, Some(Err(LinkError::Cut))));
        assert!(reader.next().await.is_none());
    }
}
