//! Requests of PMI-2 in several messages: their pairs become those of one frame.
//!
//! ```text
//! NAME ... concat=ID       concat concatid=ID ...            any request, until a part without `concat`
//! spawn ncmds=N ...        spawn-cmd ...         N times     each starts a block, with its own name
//! kvs-putall npair=N ...   kvs-putall-pair ...   N times
//! ```
//! Rule: the parts of a spawn follow each other. Parts of other requests have an id or a thread, and those of several
//! threads may be mixed. Source: docs/pmi2-wire.md#pmi-2-requests-in-several-messages.

use std::collections::BTreeMap;

use super::command::PmiCommand;
use super::limits::{CONTINUED_MAX, OPEN_REQUESTS_MAX};
use super::wire_v1::{ProtocolError, number};
use super::wire_v2::{FrameBuilder, Pmi2Frame};

/// Part of a request that a message contains.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FragmentKind {
    /// A request of its own.
    Whole,
    /// A part; more parts must follow.
    More,
    /// The last part: the text of a frame with the pairs of all.
    Last(Vec<u8>),
}

/// A request whose further messages have a name of their own.
#[derive(Debug)]
struct FollowOnRequest {
    /// Name of the further messages.
    next: Vec<u8>,
    /// Whether no other message may come between its messages.
    is_exclusive: bool,
    thrid: Option<Vec<u8>>,
    missing: u32,
    text: FrameBuilder,
}

/// Requests of one connection that have not ended.
#[derive(Debug, Default)]
pub(super) struct FragmentedRequests {
    /// Requests in several messages, by their ids.
    concatenated: BTreeMap<Vec<u8>, FrameBuilder>,
    followed: Vec<FollowOnRequest>,
}

impl FragmentedRequests {
    /// Takes a message; one that continues nothing is a request of its own.
    pub(super) fn take(&mut self, frame: &Pmi2Frame<'_>) -> Result<FragmentKind, ProtocolError> {
        let part = match self.concatenate(frame)? {
            FragmentKind::Whole => self.follow(frame)?,
            FragmentKind::More => FragmentKind::More,
            FragmentKind::Last(text) => match self.follow(&Pmi2Frame::parse(&text)?)? {
                FragmentKind::Whole => FragmentKind::Last(text),
                part => part,
            },
        };
        let open = self.concatenated.len() + self.followed.len();
        match open > OPEN_REQUESTS_MAX || self.unfinished() > CONTINUED_MAX {
            true => Err(ProtocolError::Parts("too many unfinished requests")),
            false => Ok(part),
        }
    }

    /// Returns the number of bytes of incomplete requests.
    pub(super) fn unfinished(&self) -> usize {
        let followed = self.followed.iter().map(|open| open.text.unframed().len());
        let concatenated = self.concatenated.iter();
        followed.sum::<usize>()
            + concatenated
                .map(|(id, text)| id.len() + text.unframed().len())
                .sum::<usize>()
    }

    fn concatenate(&mut self, frame: &Pmi2Frame<'_>) -> Result<FragmentKind, ProtocolError> {
        let id = frame.last().filter(|(key, _)| *key == b"concat");
        let begun = match frame.name {
            b"concat" => self
                .concatenated
                .remove(frame.get("concatid").unwrap_or_default()),
            name => id.map(|_| FrameBuilder::command(name)),
        };
        let Some(begun) = begun else {
            return Ok(FragmentKind::Whole);
        };
        let pairs = frame.pairs();
        let pairs = pairs.filter(|(key, _)| !matches!(*key, b"concat" | b"concatid"));
        let text = pairs.fold(begun, |text, (key, value)| text.maybe_empty(key, value));
        let Some((_, id)) = id else {
            return Ok(FragmentKind::Last(text.unframed().to_vec()));
        };
        match self.concatenated.insert(id.to_vec(), text) {
            Some(_) => Err(ProtocolError::Parts(
                "an earlier one with this id is unfinished",
            )),
            None => Ok(FragmentKind::More),
        }
    }

    fn follow(&mut self, frame: &Pmi2Frame<'_>) -> Result<FragmentKind, ProtocolError> {
        let thrid = frame.get("thrid").filter(|thrid| !thrid.is_empty());
        let own = |open: &FollowOnRequest| open.is_exclusive || open.thrid.as_deref() == thrid;
        let Some(at) = self.followed.iter().position(own) else {
            return Ok(self.begin(frame, thrid));
        };
        if frame.name == b"abort" {
            return Ok(FragmentKind::Whole);
        }
        let mut open = self.followed.swap_remove(at);
        if frame.name != open.next || open.thrid.as_deref() != thrid {
            return Err(ProtocolError::Parts("another request came in between"));
        }
        if open.is_exclusive {
            open.text = open.text.maybe_empty(&open.next, b"");
        }
        let pairs = frame.pairs();
        open.text = pairs.fold(open.text, |text, (key, value)| text.maybe_empty(key, value));
        open.missing -= 1;
        if open.missing == 0 {
            return Ok(FragmentKind::Last(open.text.unframed().to_vec()));
        }
        self.followed.push(open);
        Ok(FragmentKind::More)
    }

    fn begin(&mut self, frame: &Pmi2Frame<'_>, thrid: Option<&[u8]>) -> FragmentKind {
        let (count, end, alone) = match PmiCommand::from_frame(frame.name) {
            // The other form has all its commands with it.
            PmiCommand::Spawn if frame.get("subcmd").is_none() => ("ncmds", "-cmd", true),
            PmiCommand::PutAll => ("npair", "-pair", false),
            _ => return FragmentKind::Whole,
        };
        // A count that is none is refused as that of a whole request is.
        let count = frame.get(count).and_then(number);
        let Some(missing) = count.filter(|&count: &u32| count > 0) else {
            return FragmentKind::Whole;
        };
        let text = FrameBuilder::command(frame.name);
        let pairs = frame.pairs();
        self.followed.push(FollowOnRequest {
            next: [frame.name, end.as_bytes()].concat(),
            is_exclusive: alone,
            thrid: thrid.map(<[u8]>::to_vec),
            missing,
            text: pairs.fold(text, |text, (key, value)| text.maybe_empty(key, value)),
        });
        FragmentKind::More
    }
}
