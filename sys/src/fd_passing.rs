//! Messages with descriptors over a Unix socket between processes of one program: a length, the
//! body; the passed descriptors accompany their first byte.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of a message. Source: `SCM_MAX_FD` in Linux's `include/net/scm.h`.
pub const DESCRIPTORS_MAX: usize = 253;

/// Longest body in bytes: as much as a program may have of arguments and variables.
const BODY_MAX: u32 = 4 * 1024 * 1024;

/// Sends a message; waits until the socket has taken it.
///
/// # Errors
/// When the other end is gone, or the message is longer than 4 MiB or has more than 253
/// descriptors.
pub fn send(socket: impl AsFd, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    // The space for descriptors is rounded up: more than these may fit at one end and not at the other.
    if length > BODY_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let piece = [IoSlice::new(rest)];
        let sent = retry_on_intr(|| sendmsg(&socket, &piece, &mut ancillary, SendFlags::NOSIGNAL))?;
        // They went with the first piece.
        ancillary.clear();
        rest = &rest[sent..];
    }
    Ok(())
}

/// Waits for the next message; `None` when the other end was closed between two.
///
/// # Errors
/// When the other end is closed in the middle of a message, or announces more than is allowed.
pub fn receive(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut descriptors = Vec::new();
    let mut length = [0; 4];
    if !fill(&socket, &mut length, &mut descriptors)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length);
    if length > BODY_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    match fill(&socket, &mut body, &mut descriptors)? {
        true => Ok(Some((body, descriptors))),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads as many bytes as there is room for; returns false at the end of the input before the first byte.
fn fill(socket: impl AsFd, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut piece = [IoSliceMut::new(&mut bytes[done..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| recvmsg(&socket, &mut piece, &mut ancillary, flags))?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = part {
                descriptors.extend(some);
            }
        }
        match received.bytes {
            0 if done == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_are_whole_and_ordered_with_their_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let long = vec![7; BODY_MAX as usize];
        let sender = std::thread::spawn({
            let long = long.clone();
            move || {
                send(&one, b"first", &[]).unwrap();
                send(&one, &long, &[theirs.as_fd()]).unwrap();
                send(&one, b"", &[]).unwrap();
            }
        });
        let (body, descriptors) = receive(&other).unwrap().unwrap();
        assert_eq!((&body[..], descriptors.len()), (&b"first"[..], 0));
        let (body, mut descriptors) = receive(&other).unwrap().unwrap();
        assert!(body == long);
        let mut received = UnixStream::from(descriptors.remove(0));
        assert!(descriptors.is_empty());
        received.write_all(b"here").unwrap();
        let mut text = [0; 4];
        ours.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"here");
        assert_eq!(receive(&other).unwrap().unwrap().0, b"");
        sender.join().unwrap();
        assert!(receive(&other).unwrap().is_none());
    }

    #[test]
    fn oversized_or_truncated_message_is_error() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let too_long = vec![0; BODY_MAX as usize + 1];
        assert!(send(&one, &too_long, &[]).is_err());
        let fd = one.as_fd();
        assert!(send(&one, b"", &[fd; DESCRIPTORS_MAX + 1]).is_err());
        one.write_all(&[5, 0, 0, 0, b'x']).unwrap();
        drop(one);
        assert!(receive(&other).is_err());
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive(&other).is_err());
        drop(other);
        assert!(send(&one, b"x", &[]).is_err());
    }
}
