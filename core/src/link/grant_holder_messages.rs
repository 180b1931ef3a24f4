//! Messages between a launcher or step and the grant holder that it started, over the holder's standard input and output.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{decode, encode};
use crate::fabric::grant::FabricGrant;
use crate::fabric::grant_record::GrantRecord;
use crate::fabric::manager_rest::GrantRequest;
use crate::job::spec::FabricSpec;

/// Most bytes of a message.
const MESSAGE_MAX: u32 = 1024 * 1024;

/// Messages to the grant holder.
#[derive(Debug, Serialize, Deserialize)]
pub enum GrantHolderRequest {
    /// Obtains a grant, and revokes it at the end of the process that sends this.
    Obtain(GrantRequest, FabricSpec),
    /// Revokes the grant of another holder, unless [`Finished`](Self::Finished) comes. The number is that of the
    /// node: the others wait for the first one.
    Watch(GrantRecord, u32),
    /// The launch has ended in order.
    Finished,
}

/// Messages of the grant holder.
#[derive(Debug, Serialize, Deserialize)]
pub enum GrantHolderReply {
    /// The grant, and the record of what is to be revoked.
    Provided(Box<FabricGrant>, GrantRecord),
    /// No grant was obtained, for this reason. [`Over`](Self::Over) follows when what may exist of it is revoked.
    Refused(String),
    /// The grant is revoked, or the text names what may be left of it.
    Over(Option<String>),
}

/// Writes a message with its length in front.
///
/// # Errors
/// The errors of the stream.
pub fn write_message(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = Zeroizing::new(encode(message));
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&body)?;
    to.flush()
}

/// Reads a message; `None` at the end of the stream.
///
/// # Errors
/// The errors of the stream, and `Other` for a message that is too long or cannot be decoded.
pub fn read_message<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_MAX {
        return Err(io::Error::other("the message is too long"));
    }
    let mut body = Zeroizing::new(vec![0; length as usize]);
    from.read_exact(&mut body)?;
    decode(&body).map(Some).map_err(io::Error::other)
}
