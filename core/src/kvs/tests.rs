use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;

const LIMITS: KvsLimits = KvsLimits {
    key: 64,
    value: 1024,
    total: 1 << 20,
};

fn pairs(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    decode(bytes)
        .map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())))
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn entry_has_documented_bytes() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"ab", b"xyz").unwrap();
    assert_eq!(kvs.take_contribution(), b"\x02\0\0\0\x03\0\0\0abxyz");
}

#[test]
fn contribution_has_last_value_of_each_put_since_previous() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"1").unwrap();
    kvs.put(b"b", b"").unwrap();
    kvs.put(b"a", b"2").unwrap();
    assert_eq!(kvs.get(b"a"), Some(&b"2"[..]));
    assert_eq!(
        pairs(&kvs.take_contribution()),
        [
            (b"a".to_vec(), b"2".to_vec()),
            (b"b".to_vec(), b"".to_vec())
        ]
    );
    assert_eq!(kvs.take_contribution(), b"");
    kvs.put(b"b", b"3").unwrap();
    assert_eq!(
        pairs(&kvs.take_contribution()),
        [(b"b".to_vec(), b"3".to_vec())]
    );
}

#[test]
fn put_after_contribution_survives_merge() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"old").unwrap();
    let contribution = kvs.take_contribution();
    kvs.put(b"a", b"new").unwrap();
    kvs.merge(&contribution).unwrap();
    assert_eq!(kvs.get(b"a"), Some(&b"new"[..]));
    assert_eq!(
        pairs(&kvs.take_contribution()),
        [(b"a".to_vec(), b"new".to_vec())]
    );
}

fn keys(bytes: &[u8]) -> Vec<String> {
    let key = |(key, _)| String::from_utf8(key).unwrap();
    pairs(bytes).into_iter().map(key).collect()
}

#[test]
fn entries_of_partial_exchange_still_go_to_all_at_next_barrier() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"1").unwrap();
    let (bytes, stamp) = kvs.recent(KvsStamp::default());
    assert_eq!(keys(&bytes), ["a"]);
    let mut all = bytes;
    encode_entry(b"far", b"2", &mut all);
    let since = kvs.merge_recent(&all, stamp).unwrap();
    assert_eq!(kvs.get(b"far"), Some(&b"2"[..]));
    // Nodes of the same barrier get no entry twice, other nodes all of them.
    assert_eq!(keys(&kvs.recent(since).0), [""; 0]);
    assert_eq!(keys(&kvs.recent(KvsStamp::default()).0), ["a", "far"]);
    // The node that put `far` contributes it.
    let contribution = kvs.take_contribution();
    assert_eq!(keys(&contribution), ["a"]);
    // Until that is merged the value is unknown to nodes that have not.
    assert_eq!(keys(&kvs.recent(KvsStamp::default()).0), ["a", "far"]);
    kvs.merge(&all).unwrap();
    assert_eq!(keys(&kvs.recent(KvsStamp::default()).0), [""; 0]);
}

#[test]
fn put_during_partial_exchange_is_newer_and_goes_with_next() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"old").unwrap();
    let (bytes, stamp) = kvs.recent(KvsStamp::default());
    kvs.put(b"a", b"new").unwrap();
    kvs.put(b"b", b"1").unwrap();
    let since = kvs.merge_recent(&bytes, stamp).unwrap();
    assert_eq!(kvs.get(b"a"), Some(&b"new"[..]));
    let expected = [
        (b"a".to_vec(), b"new".to_vec()),
        (b"b".to_vec(), b"1".to_vec()),
    ];
    assert_eq!(pairs(&kvs.recent(since).0), expected);
    assert_eq!(pairs(&kvs.take_contribution()), expected);
}

#[test]
fn value_replaced_by_others_is_not_contributed() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"mine").unwrap();
    let (mut all, stamp) = kvs.recent(KvsStamp::default());
    encode_entry(b"a", b"theirs", &mut all);
    kvs.merge_recent(&all, stamp).unwrap();
    assert_eq!(kvs.get(b"a"), Some(&b"theirs"[..]));
    assert_eq!(kvs.take_contribution(), b"");
    kvs.put(b"a", b"mine again").unwrap();
    assert_eq!(keys(&kvs.take_contribution()), ["a"]);
}

#[test]
fn repeated_put_of_key_is_stored_once() {
    let mut kvs = Kvs::new(LIMITS);
    for round in 0..1000_u32 {
        kvs.put(b"a", &round.to_le_bytes()).unwrap();
        kvs.recent(KvsStamp::default());
    }
    assert_eq!((kvs.recent.len(), kvs.len()), (1, 1));
}

#[test]
fn exceeded_limit_is_named_and_leaves_kvs_unchanged() {
    let mut kvs = Kvs::new(KvsLimits {
        key: 2,
        value: 3,
        total: 2 * ENTRY_COST,
    });
    assert_eq!(kvs.put(b"", b"x"), Err(KvsError::EmptyKey));
    assert_eq!(
        kvs.put(b"abc", b"x").unwrap_err().to_string(),
        "key of 3 bytes; at most 2 are allowed"
    );
    assert_eq!(
        kvs.put(b"a", b"1234"),
        Err(KvsError::ValueTooLong {
            length: 4,
            limit: 3
        })
    );
    kvs.put(b"a", b"1").unwrap();
    assert_eq!(
        kvs.put(b"b", b"2"),
        Err(KvsError::Full {
            limit: 2 * ENTRY_COST
        })
    );
    kvs.put(b"a", b"2").unwrap();
    assert_eq!((kvs.len(), kvs.get(b"b")), (1, None));
}

#[test]
fn invalid_entry_after_valid_ones_merges_nothing() {
    let mut bytes = Vec::new();
    encode_entry(b"a", b"1", &mut bytes);
    for tail in [
        &b"\x01"[..],
        b"\x01\0\0\0\xff\xff\xff\xffa",
        b"\x41\0\0\0\0\0\0\0",
    ] {
        let mut kvs = Kvs::new(LIMITS);
        let garbage = [&bytes, tail].concat();
        assert_eq!(
            kvs.merge(&garbage),
            Err(KvsError::Truncated {
                offset: bytes.len(),
                length: garbage.len()
            })
        );
        assert!(kvs.is_empty());
    }
    let mut long = bytes.clone();
    encode_entry(&[b'k'; 65], b"1", &mut long);
    let mut kvs = Kvs::new(LIMITS);
    assert!(matches!(kvs.merge(&long), Err(KvsError::KeyTooLong { .. })));
    assert!(kvs.is_empty());
}

proptest! {
    #[test]
    fn contributions_of_different_nodes_merge_in_any_order(
        all in btree_map(vec(any::<u8>(), 1..8), vec(any::<u8>(), 0..16), 0..24),
        cut in 0_usize..24,
    ) {
        let (mut left, mut right) = (Kvs::new(LIMITS), Kvs::new(LIMITS));
        for (index, (key, value)) in all.iter().enumerate() {
            let node = if index < cut { &mut left } else { &mut right };
            node.put(key, value).unwrap();
        }
        let (a, b) = (left.take_contribution(), right.take_contribution());
        left.merge(&[&a[..], &b].concat()).unwrap();
        right.merge(&[&b[..], &a].concat()).unwrap();
        for (key, value) in &all {
            prop_assert_eq!(left.get(key), Some(&value[..]));
            prop_assert_eq!(right.get(key), Some(&value[..]));
        }
        prop_assert_eq!((left.len(), right.len()), (all.len(), all.len()));
    }

    #[test]
    fn arbitrary_bytes_decode_to_error_or_contribution(bytes in vec(any::<u8>(), 0..64)) {
        let mut kvs = Kvs::new(LIMITS);
        if kvs.merge(&bytes).is_ok() {
            let mut again = Vec::new();
            for entry in decode(&bytes) {
                let (key, value) = entry.unwrap();
                encode_entry(key, value, &mut again);
            }
            prop_assert_eq!(again, bytes);
        } else {
            prop_assert!(kvs.is_empty());
        }
    }
}

#[test]
fn forwarded_entries_do_not_hide_later_puts() {
    let [mut first, mut second] = [Kvs::new(LIMITS), Kvs::new(LIMITS)];
    first.put(b"a", b"old").unwrap();
    let (all, _) = first.recent(KvsStamp::default());
    second.merge_recent(&all, KvsStamp::default()).unwrap();
    first.put(b"a", b"new").unwrap();
    let (own, first_stamp) = first.recent(KvsStamp::default());
    let (passed_on, second_stamp) = second.recent(KvsStamp::default());
    assert_eq!(pairs(&passed_on), [(b"a".to_vec(), b"old".to_vec())]);
    let all = [own, passed_on].concat();
    first.merge_recent(&all, first_stamp).unwrap();
    second.merge_recent(&all, second_stamp).unwrap();
    for kvs in [first, second] {
        assert_eq!(kvs.get(b"a"), Some(&b"new"[..]));
    }
}

#[test]
fn withdrawn_contribution_is_part_of_next_one() {
    let mut kvs = Kvs::new(LIMITS);
    kvs.put(b"a", b"1").unwrap();
    kvs.put(b"b", b"1").unwrap();
    kvs.take_contribution();
    kvs.put(b"a", b"").unwrap();
    kvs.take_back_contribution();
    let expected = [
        (b"b".to_vec(), b"1".to_vec()),
        (b"a".to_vec(), b"".to_vec()),
    ];
    assert_eq!(pairs(&kvs.take_contribution()), expected);
    assert_eq!(kvs.take_contribution(), b"");
}
