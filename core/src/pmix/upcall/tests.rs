use proptest::collection::vec;
use proptest::prelude::*;

use super::super::arbitrary;
use super::super::value::Value;
use super::super::wire::{FrameDecoder, HEADER_LEN, SidecarFrame, WireError};
use super::*;
use crate::job::ids::{Nspace, Rank};

fn frame(bytes: &[u8]) -> SidecarFrame {
    let mut frames = Vec::new();
    FrameDecoder::default().push(bytes, &mut frames).unwrap();
    frames.pop().unwrap()
}

#[test]
fn every_kind_has_own_operation() {
    for kind in UpcallKind::ALL {
        assert_eq!(UpcallKind::from_op(kind.op()), Some(kind));
    }
    assert_eq!(UpcallKind::from_op(0), None);
}

#[test]
fn replies_decode_as_in_shim() {
    let infos = vec![Info::new("k", Value::Bool(true))];
    let found = vec![Pdata {
        proc: PmixProc::new(&Nspace::new("job").unwrap(), Rank(3)),
        key: "k".into(),
        value: Value::Bytes(vec![0, 1]),
    }];
    let (fine, gone) = (Status::SUCCESS, Status::ERR_NOT_FOUND);
    let read = |status, data: &[u8], infos: &[Info], found: &[Pdata]| AnswerParts {
        status,
        data: data.to_vec(),
        infos: infos.to_vec(),
        found: found.to_vec(),
    };
    let (query, lookup) = (UpcallKind::Query, UpcallKind::Lookup);
    for (kind, answer, read) in [
        (query, UpcallAnswer::Status(gone), read(gone, &[], &[], &[])),
        (
            query,
            UpcallAnswer::Data(vec![1, 2]),
            read(fine, &[1, 2], &[], &[]),
        ),
        (
            query,
            UpcallAnswer::Infos(fine, infos.clone()),
            read(fine, &[], &infos, &[]),
        ),
        (
            lookup,
            UpcallAnswer::Status(gone),
            read(gone, &[], &[], &[]),
        ),
        (
            lookup,
            UpcallAnswer::Found(fine, found.clone()),
            read(fine, &[], &[], &found),
        ),
        (
            lookup,
            UpcallAnswer::Data(vec![1, 2]),
            read(fine, &[], &[], &[]),
        ),
        (
            UpcallKind::Spawn,
            UpcallAnswer::Spawned(Nspace::new("child").unwrap()),
            read(fine, b"child", &[], &[]),
        ),
        (
            UpcallKind::Spawn,
            UpcallAnswer::Status(fine),
            read(Status::ERROR, &[], &[], &[]),
        ),
    ] {
        let frame = frame(&answer.encode(kind, 9).unwrap());
        assert_eq!((frame.op, frame.reply, frame.id), (kind.op(), true, 9));
        assert_eq!(UpcallAnswer::decode(&frame), Ok(read));
    }
}

proptest! {
    #[test]
    fn upcalls_are_read_as_printed(upcall in arbitrary::upcall()) {
        let bytes = upcall.encode(3).unwrap();
        prop_assert_eq!(Upcall::decode(upcall.kind(), &bytes[HEADER_LEN..]), Ok(upcall));
    }

    #[test]
    fn trailing_bytes_are_refused(upcall in arbitrary::upcall(), extra in 1..5_usize) {
        let mut bytes = upcall.encode(3).unwrap();
        bytes.resize(bytes.len() + extra, 0);
        let read = Upcall::decode(upcall.kind(), &bytes[HEADER_LEN..]);
        prop_assert_eq!(read, Err(WireError::Trailing(extra)));
    }

    #[test]
    fn any_payload_is_decoded_without_panic(bytes in vec(0..40_u8, 0..300)) {
        for kind in UpcallKind::ALL {
            let _ = Upcall::decode(kind, &bytes);
        }
    }
}
