//! Replaces values in the bytes of the server, so that a proxy takes the hosts' places.

use crate::command::{Command, Inbox, int4};
use crate::world::Label;

/// One direction of a connection, from the server to a client.
#[derive(Debug, Default)]
pub struct Rewriter {
    inbox: Inbox,
    is_out_of_sync: bool,
}

impl Rewriter {
    /// Takes bytes of the server; those for the client. `replace` gets each complete value, and returns one of the same
    /// length or nothing.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        mut replace: impl FnMut(Label, &[u8]) -> Option<Vec<u8>>,
    ) -> Vec<u8> {
        self.inbox.extend(bytes);
        let mut out = Vec::new();
        while let Some(mut unit) = self.unit() {
            let coll = unit.starts_with(&Command::Coll.code().to_be_bytes());
            let label = unit.get(8..).and_then(int4).and_then(Label::from_number);
            if let Some(label) = label.filter(|_| coll && unit.len() >= 16)
                && let Some(value) = replace(label, &unit[16..])
                && value.len() == unit.len() - 16
            {
                unit[16..].copy_from_slice(&value);
            }
            out.extend(unit);
        }
        out
    }

    /// Returns the next whole unit, or all bytes once units cannot be separated any more. The answer to AUTH, which has
    /// no command, has its length where units have theirs.
    fn unit(&mut self) -> Option<Vec<u8>> {
        let length = match self.inbox.peek::<8>() {
            _ if self.inbox.is_empty() => return None,
            _ if self.is_out_of_sync => None,
            None => return None,
            Some(head) => int4(&head[4..]).and_then(|length| usize::try_from(length).ok()),
        };
        match length.filter(|length| *length < 1 << 29) {
            Some(length) => self.inbox.take(8 + length),
            None => {
                self.is_out_of_sync = true;
                self.inbox.take(self.inbox.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_in_any_chunks() {
        let unit = |value: &[u8]| {
            let payload = [&0x2100_u32.to_be_bytes()[..], &[0, 0, 0, 3], value].concat();
            Command::Coll.unit(&payload)
        };
        let start = [
            &[0, 0, 0, 1, 0, 0, 0, 0][..],
            &Command::Impi.unit(&[0, 0, 0, 2]),
        ]
        .concat();
        let input = [&start, &unit(b"abcdefgh")[..], &Command::Done.unit(&[])].concat();
        let expected = [&start, &unit(b"ABCDEFGH")[..], &Command::Done.unit(&[])].concat();
        for size in [1, 5, input.len()] {
            let mut rewriter = Rewriter::default();
            let replace = |label, value: &[u8]| {
                assert_eq!(label, Label::HostPort);
                Some(value.to_ascii_uppercase())
            };
            let out = input
                .chunks(size)
                .flat_map(|piece| rewriter.feed(piece, replace));
            assert_eq!(out.collect::<Vec<u8>>(), expected);
        }
        let garbage = b"HTTP\xff\xff\xff\xff and more";
        assert_eq!(Rewriter::default().feed(garbage, |_, _| None), garbage);
    }
}
