//! Entry point of the fuzzer, and of the plain test that runs it over a corpus and random input.
//!
//! The first byte of an input picks the socket (even: upcall, odd: control), the second the size of
//! the pieces in which the rest arrives. Panics when the link breaks a promise.

use super::sidecar_protocol::serve;
use super::sidecar_protocol::{ClientRegistration, Init, SidecarCommand};
use super::upcall::{Upcall, UpcallAnswer};
use super::value::{Channels, DataRange, PmixProc, Status};
use super::wire::{FrameDecoder, SidecarFrame};
use crate::job::ids::{Nspace, Rank};
use crate::pmix::sidecar_link::{SidecarEvent, SidecarLink};

/// Runs one input.
///
/// # Panics
/// When the link breaks a promise that this module checks.
pub fn frame(data: &[u8]) {
    let [socket, piece, bytes @ ..] = data else {
        return;
    };
    let pieces = bytes.chunks(usize::from(*piece).max(1));
    match socket % 2 {
        0 => upcalls(pieces),
        _ => replies(pieces),
    }
    requests(bytes);
}

/// Every upcall is printed as it was read, and answered exactly once.
fn upcalls<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let mut link = SidecarLink::default();
    for piece in pieces {
        let Ok(events) = link.on_upcall_bytes(piece) else {
            return;
        };
        for event in events {
            let (id, upcall) = match event {
                SidecarEvent::Notice(notice) => (None, Upcall::Notice(notice)),
                SidecarEvent::Request { id, request } => (Some(id), Upcall::Request(request)),
                _ => panic!("not from this socket: {event:?}"),
            };
            let printed = upcall.encode(1).expect("was within the limit");
            let [frame] = decoded(&printed).try_into().expect("one frame");
            let again = Upcall::decode(upcall.kind(), &frame.payload);
            // By text: a float that is no number differs from itself.
            assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ()>(upcall)));
            if let Some(id) = id {
                let answer = UpcallAnswer::Status(Status::SUCCESS);
                assert!(link.answer(id, &answer).is_some());
                assert!(link.answer(id, &answer).is_none());
            }
        }
    }
    assert_eq!(link.outstanding_upcalls().count(), 0);
}

/// Every reply settles one request.
fn replies<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let mut link = SidecarLink::default();
    for control in every_request() {
        link.control(&control).expect("small");
    }
    for piece in pieces {
        let before = link.outstanding_controls().count();
        let Ok(events) = link.on_control_bytes(piece) else {
            return;
        };
        let is_reply = |event: &&SidecarEvent| matches!(event, SidecarEvent::Reply { .. });
        let settled = events.iter().filter(is_reply).count();
        assert_eq!(link.outstanding_controls().count() + settled, before);
    }
}

/// The host's side reads requests.
fn requests(bytes: &[u8]) {
    for frame in decoded(bytes) {
        let _ = serve::SidecarRequest::decode(&frame);
    }
}

fn decoded(bytes: &[u8]) -> Vec<SidecarFrame> {
    let mut frames = Vec::new();
    let _ = FrameDecoder::default().push(bytes, &mut frames);
    frames
}

/// One request of each kind; their ids are 1 to 8.
pub(super) fn every_request() -> [SidecarCommand; 8] {
    let nspace = Nspace::new("job").expect("a valid name");
    [
        SidecarCommand::Init(Init {
            nspace: nspace.clone(),
            rank: Rank(0),
            hostname: "alpha".into(),
            tmpdir: "/t".into(),
        }),
        SidecarCommand::RegisterJob {
            nspace: nspace.clone(),
            infos: Vec::new(),
            clients: vec![ClientRegistration {
                rank: Rank(0),
                uid: 1,
                gid: 1,
            }],
        },
        SidecarCommand::DirectModex {
            nspace: nspace.clone(),
            rank: Rank(0),
        },
        SidecarCommand::Notify {
            code: Status(-1),
            source: PmixProc::new(&nspace, Rank(0)),
            range: DataRange::SESSION,
            infos: Vec::new(),
        },
        SidecarCommand::DeregisterJob {
            nspace: nspace.clone(),
        },
        SidecarCommand::Finalize,
        SidecarCommand::Probe,
        SidecarCommand::IofDeliver {
            source: PmixProc::new(&nspace, Rank(0)),
            channel: Channels::STDOUT,
            data: b"text".to_vec(),
        },
    ]
}

#[cfg(test)]
mod tests;
