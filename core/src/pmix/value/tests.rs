use proptest::collection::vec;
use proptest::prelude::*;

use super::super::arbitrary;
use super::super::wire::{HEADER_LEN, MAX_DEPTH};
use super::*;

fn encoded(infos: &[Info]) -> Vec<u8> {
    let mut out = Writer::frame();
    Info::encode_list(infos, &mut out);
    out.finish(1, false, 1).unwrap().split_off(HEADER_LEN)
}

fn decoded(bytes: &[u8]) -> Result<Vec<Info>, WireError> {
    let mut from = Reader::new(bytes);
    let infos = Info::decode_list(&mut from)?;
    from.end().map(|()| infos)
}

#[test]
fn text_ends_at_first_nul_and_must_not_contain_one() {
    assert_eq!(Text::new(*b"ab\0cd"), Text::from("ab"));
    let mut from = Reader::new(b"\x03\0\0\0a\0b");
    assert!(matches!(Text::decode(&mut from), Err(WireError::Bad(_))));
}

#[test]
fn only_processes_have_rank() {
    assert_eq!(PmixRank(0).rank(), Some(Rank(0)));
    assert_eq!(PmixRank(u32::MAX - 51).rank(), Some(Rank(u32::MAX - 51)));
    for special in [
        PmixRank::UNDEF,
        PmixRank::WILDCARD,
        PmixRank::LOCAL_NODE,
        PmixRank::LOCAL_PEERS,
    ] {
        assert_eq!(special.rank(), None);
    }
}

#[test]
fn arrays_hold_one_simple_type() {
    assert!(Array::new(vec![Value::Uint32(1), Value::Uint32(2)]).is_some());
    assert!(Array::new(vec![Value::Uint32(1), Value::Int32(2)]).is_none());
    assert!(Array::new(vec![Value::Infos(Vec::new())]).is_none());
    assert!(Array::new(vec![Value::Foreign(31)]).is_none());
    assert!(Array::new(Vec::new()).is_none());
}

#[test]
fn names_over_their_limits_are_refused() {
    let long = |len: usize| Text::new(vec![b'x'; len]);
    let info = |len| Info {
        key: long(len),
        required: false,
        value: Value::Undef,
    };
    assert!(decoded(&encoded(&[info(511)])).is_ok());
    assert_eq!(
        decoded(&encoded(&[info(512)])),
        Err(WireError::Bad("key: too long"))
    );
    let proc = |len| {
        Info::new(
            "p",
            Value::Proc(PmixProc {
                nspace: long(len),
                rank: PmixRank(0),
            }),
        )
    };
    assert!(decoded(&encoded(&[proc(255)])).is_ok());
    assert_eq!(
        decoded(&encoded(&[proc(256)])),
        Err(WireError::Bad("nspace: too long"))
    );
}

#[test]
fn nesting_ends_at_limit() {
    let nested = |levels: u32| {
        let wrap = |value, _| Value::Infos(vec![Info::new("level", value)]);
        encoded(&[Info::new("top", (0..levels).fold(Value::Undef, wrap))])
    };
    assert!(decoded(&nested(MAX_DEPTH)).is_ok());
    assert_eq!(decoded(&nested(MAX_DEPTH + 1)), Err(WireError::Nested));
}

#[test]
fn unknown_tags_and_flags_are_refused() {
    let mut bytes = encoded(&[Info::new("k", Value::Undef)]);
    let last = bytes.len() - 1;
    for tag in [32, 37, 255] {
        bytes[last] = tag;
        assert_eq!(decoded(&bytes), Err(WireError::Tag(tag)));
    }
    bytes[last] = 0;
    bytes[last - 4] = 2;
    assert_eq!(decoded(&bytes), Err(WireError::Bad("info flags")));
}

proptest! {
    #[test]
    fn infos_are_read_as_printed(infos in arbitrary::infos()) {
        prop_assert_eq!(decoded(&encoded(&infos)), Ok(infos));
    }

    #[test]
    fn every_truncation_is_noticed(infos in arbitrary::infos(), cut in 0..10_000_usize) {
        let bytes = encoded(&infos);
        let cut = cut % bytes.len();
        prop_assert!(decoded(&bytes[..cut]).is_err());
    }

    #[test]
    fn decoded_values_encode_to_same_bytes(
        infos in arbitrary::infos(),
        changes in vec((0..10_000_usize, 0..40_u8), 1..4),
    ) {
        let mut bytes = encoded(&infos);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(read) = decoded(&bytes) {
            prop_assert_eq!(encoded(&read), bytes);
        }
    }
}
