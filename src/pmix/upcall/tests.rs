use proptest::collection::vec;
use proptest::prelude::*;

use super::super::arbitrary;
use super::super::wire::{FrameDecoder, HEADER_LEN};
use super::*;

fn frame(bytes: &[u8]) -> Frame {
    let mut frames = Vec::new();
    FrameDecoder::default().push(bytes, &mut frames).unwrap();
    frames.pop().unwrap()
}

#[test]
fn every_kind_has_its_own_operation() {
    for kind in UpcallKind::ALL {
        assert_eq!(UpcallKind::of_op(kind.op()), Some(kind));
        assert_eq!(kind.op() >= 0x0110, kind.wants_answer(), "{kind:?}");
    }
    assert_eq!(UpcallKind::of_op(0), None);
}

#[test]
fn answers_read_as_the_shim_reads_them() {
    let infos = vec![Info::new("k", super::super::value::Value::Bool(true))];
    let (fine, gone) = (Status::SUCCESS, Status::ERR_NOT_FOUND);
    for (answer, read) in [
        (Answer::Status(gone), (gone, Vec::new(), Vec::new())),
        (Answer::Data(vec![1, 2]), (fine, vec![1, 2], Vec::new())),
        (
            Answer::Infos(fine, infos.clone()),
            (fine, Vec::new(), infos),
        ),
    ] {
        let frame = frame(&answer.encode(UpcallKind::Query, 9).unwrap());
        assert_eq!(
            (frame.op, frame.reply, frame.id),
            (UpcallKind::Query.op(), true, 9)
        );
        assert_eq!(Answer::decode(&frame), Ok(read));
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
