use std::path::Path;

use super::*;

fn host(name: &str, address: &str, slots: Option<u32>) -> HostSpec {
    HostSpec {
        name: name.into(),
        address: address.into(),
        slots,
        most: None,
    }
}

fn list(text: &str) -> Result<Vec<HostSpec>, String> {
    let read = text.parse().and_then(|HostList(entries)| merge(entries));
    read.map_err(|problem| problem.to_string())
}

fn file(text: &str) -> Result<Vec<HostSpec>, String> {
    let entries = file::parse(Path::new("hosts"), text.as_bytes());
    let entries = entries.map_err(|error| error.to_string())?;
    merge(entries).map_err(|problem| problem.to_string())
}

/// Names and slots.
fn slots(hosts: Result<Vec<HostSpec>, String>) -> Vec<(String, Option<u32>)> {
    let hosts = hosts.unwrap().into_iter();
    hosts.map(|host| (host.name, host.slots)).collect()
}

#[test]
fn localhost_in_list_gets_name_of_local_agent() {
    let named = |list: &str, alone, address: Option<&str>| {
        let HostList(mut entries) = list.parse().unwrap();
        name_here(&mut entries, alone, || {
            Some(("n1".to_owned(), address.map(str::to_owned)))
        });
        let hosts = merge(entries).unwrap();
        let host = |host: HostSpec| format!("{}@{}", host.name, host.address);
        hosts.into_iter().map(host).collect::<Vec<_>>().join(" ")
    };
    let at = Some("10.0.0.1:7437");
    assert_eq!(
        named("localhost,n2", false, at),
        "n1@10.0.0.1:7437 n2@n2:7437"
    );
    assert_eq!(
        named("n2,127.0.0.1:4", false, None),
        "n2@n2:7437 n1@n1:7437"
    );
    assert_eq!(
        named("n1,n2,[::1]", false, at),
        "n1@n1:7437 n2@n2:7437",
        "named twice"
    );
    assert_eq!(named("localhost", true, at), "n1@10.0.0.1:7437");
    assert_eq!(named("localhost", false, at), "localhost@localhost:7437");
    let port = "localhost@localhost:1,n2";
    assert_eq!(named(port, false, at), "localhost@localhost:1 n2@n2:7437");
}

#[test]
fn list_of_own_names_becomes_localhost() {
    let called = |list: &str| {
        let HostList(mut entries) = list.parse().unwrap();
        call_localhost(&mut entries, |name| ["n1", "10.0.0.1"].contains(&name));
        slots(merge(entries).map_err(|problem| problem.to_string()))
    };
    let here = |slots| [("localhost".to_owned(), slots)];
    for list in ["n1", "10.0.0.1", "127.0.1.1", "n1."] {
        assert_eq!(called(list), here(None), "{list}");
    }
    assert_eq!(called("n1:2,127.0.1.1:1,localhost:1"), here(Some(4)));
    for list in ["n1@10.0.0.1", "n1,n2", "10.0.0.2"] {
        assert_eq!(called(list), slots(self::list(list)), "{list}");
    }
}

#[test]
fn numeric_host_name_needs_address() {
    let check = |text: &str| list(text).unwrap()[0].check_resolvable().is_ok();
    for text in ["222", "0x7f", "1.2", "1.2.3.4.5"] {
        assert!(!check(text), "{text}");
        assert!(check(&format!("{text}@10.0.0.1")), "{text}");
    }
    for text in ["n222", "222n", "10.0.0.1", "1.2.x", "[fd00::1]"] {
        assert!(check(text), "{text}");
    }
}

#[test]
fn user_of_host_is_refused_in_file() {
    for text in ["user@n1 slots=2", "user@n1 max_slots=2\n"] {
        let error = file(text).unwrap_err();
        assert!(
            error.starts_with("hosts:1: invalid host \"user@n1\": a user"),
            "{error}"
        );
    }
    for text in [
        "n1@10.0.0.1 slots=2",
        "n1@h:9000 slots=2",
        "n1@h:9000",
        "n1@h",
    ] {
        assert!(file(text).is_ok(), "{text}");
    }
}

#[test]
fn host_entry_has_name_with_slots_and_address_with_port() {
    assert_eq!(
        list("n1, n2:4 ,n3@10.0.0.3,n4:2@login:9000,").unwrap(),
        [
            host("n1", "n1:7437", None),
            host("n2", "n2:7437", Some(4)),
            host("n3", "10.0.0.3:7437", None),
            host("n4", "login:9000", Some(2)),
        ]
    );
}

#[test]
fn ipv6_addresses_are_bracketed() {
    assert_eq!(
        list("[fd00::1],[fd00::2]:4,n3@[fd00::3],n4@[fd00::4]:9000").unwrap(),
        [
            host("fd00::1", "[fd00::1]:7437", None),
            host("fd00::2", "[fd00::2]:7437", Some(4)),
            host("n3", "[fd00::3]:7437", None),
            host("n4", "[fd00::4]:9000", None),
        ]
    );
    for bare in ["fd00::1", "fd00::1:4", "n1@fd00::1"] {
        let error = list(bare).unwrap_err();
        assert!(error.contains("in brackets: [fd00::1]"), "{error}");
    }
}

#[test]
fn ranges_expand_to_names_and_addresses() {
    let names = |text: &str| -> Vec<String> {
        let hosts = list(text).unwrap();
        hosts.into_iter().map(|host| host.name).collect()
    };
    assert_eq!(
        names("node[08-10,20]"),
        ["node08", "node09", "node10", "node20"]
    );
    assert_eq!(
        names("r[1-2]n[9-10].x"),
        ["r1n9.x", "r1n10.x", "r2n9.x", "r2n10.x"]
    );
    assert_eq!(
        list("n[1-2]:8@10.0.0.[11-12],m[1-2]@lo:[7001-7002]").unwrap(),
        [
            host("n1", "10.0.0.11:7437", Some(8)),
            host("n2", "10.0.0.12:7437", Some(8)),
            host("m1", "lo:7001", None),
            host("m2", "lo:7002", None),
        ]
    );
    assert_eq!(
        list("n[1-3]@10.0.0.1").unwrap_err(),
        "invalid host \"n[1-3]@10.0.0.1\": it has 3 names and 1 addresses; give each name one address"
    );
    for bad in [
        "n[1-",
        "n1]",
        "n[2-1]",
        "n[a-b]",
        "n[]",
        "n[1-9999999]",
        "n[[1]]",
        "n[1-300]m[1-300]",
    ] {
        let error = list(bad).unwrap_err();
        assert!(
            error.contains("write a range as [01-16,20], ascending and with at most 16384 hosts"),
            "{bad}: {error}"
        );
    }
}

#[test]
fn invalid_host_is_named_with_remedy() {
    for (text, words) in [
        ("", "no host given"),
        ("n1:x", "slots \"x\" is not a number"),
        ("n1:", "slots \"\" is not a number"),
        ("n1:4:5", "slots \"4:5\" is not a number"),
        ("n1:7437", "write NAME@HOST:7437 for a port"),
        ("n1:-1", "slots \"-1\" is not a number"),
        ("-n1", "invalid host name \"-n1\": use"),
        ("a b", "invalid host name \"a b\": use"),
        ("n1@", "address \"\"; write"),
        ("n1@h:0", "address \"h:0\"; write"),
        ("n1@h:70000", "address \"h:70000\"; write"),
        ("n1@[fd00::1]9", "]9\"; write"),
        ("n1@a,n1@b", "n1 has two addresses, a:7437 and b:7437"),
        ("n1@a,n2@a", "n1 and n2 both have the address a:7437"),
    ] {
        let error = list(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn slots_of_one_host_add_up_in_order_of_first_mention() {
    let of = |text| slots(list(text));
    let pair = |name: &str, slots| (name.to_owned(), slots);
    assert_eq!(of("b:2,a:1,b:3"), [pair("b", Some(5)), pair("a", Some(1))]);
    assert_eq!(of("b,a"), [pair("b", None), pair("a", None)]);
    // Where names are repeated, each counts.
    assert_eq!(of("b,b,a"), [pair("b", Some(2)), pair("a", Some(1))]);
    assert_eq!(of("b:4,b,a"), [pair("b", Some(4)), pair("a", None)]);
    assert_eq!(of("a:0"), [pair("a", Some(0))]);
}

#[test]
fn files_of_other_launchers_are_read() {
    let pair = |name: &str, slots| (name.to_owned(), slots);
    let hydra = "# nodes\n\nn1:4 # first\r\nn2\n";
    assert_eq!(slots(file(hydra)), [pair("n1", Some(4)), pair("n2", None)]);
    let open_mpi = "n1 slots=4 max_slots=8\nn2 slots = 2\n  n3 cpus=1\n";
    let hosts = file(open_mpi).unwrap();
    assert_eq!(hosts[0].most, Some(8));
    let expected = [
        pair("n1", Some(4)),
        pair("n2", Some(2)),
        pair("n3", Some(1)),
    ];
    assert_eq!(slots(Ok(hosts)), expected);
    let pbs = "n1\nn1\nn2\nn1\n";
    assert_eq!(slots(file(pbs)), [pair("n1", Some(3)), pair("n2", Some(1))]);
    assert_eq!(
        file("node[1-2]:8\nn3 address=10.0.0.3:9000\nn[4-5] address=10.0.0.[4-5]").unwrap(),
        [
            host("node1", "node1:7437", Some(8)),
            host("node2", "node2:7437", Some(8)),
            host("n3", "10.0.0.3:9000", None),
            host("n4", "10.0.0.4:7437", None),
            host("n5", "10.0.0.5:7437", None),
        ]
    );
}

#[test]
fn invalid_line_of_hostfile_is_named() {
    let known = "after a host: use slots=N, max_slots=N or address=HOST:PORT";
    for (text, words) in [
        (
            "n1\n\nn2 slot=4",
            &format!("hosts:3: unknown word \"slot=4\" {known}")[..],
        ),
        ("n1 4", "hosts:1: unknown word \"4\" after a host"),
        ("n1,n2", "hosts:1: unknown word \",n2\" after a host"),
        (
            "n1\nn2:x",
            "hosts:2: invalid host \"n2:x\": slots \"x\" is not a number",
        ),
        (
            "n1 slots=-3",
            "hosts:1: invalid host \"slots=-3\": slots \"-3\" is not a number",
        ),
        (
            "n[1-2] address=x",
            "hosts:1: invalid host \"n[1-2]\": it has 2 names and 1 addresses",
        ),
        (
            "n1 slots=4 max_slots=2",
            "max_slots=2 of n1 is less than its 4 slots",
        ),
        ("# nothing\n", "no host given"),
    ] {
        let error = file(text).unwrap_err();
        assert!(error.starts_with(words), "{text}: {error}");
    }
    let error = file::parse(Path::new("h"), b"a\n\xff\xfe").unwrap_err();
    assert!(error.to_string().starts_with("h:2: not valid UTF-8"));
}

#[test]
fn host_names_are_compressed_with_brackets() {
    let compressed = |names: &str| compress(names.split(' '));
    assert_eq!(compressed("n1"), "n1");
    assert_eq!(compressed("node03 node05 node06 node07"), "node[03,05-07]");
    assert_eq!(compressed("n8 n9 n10 n12"), "n[8-10,12]");
    assert_eq!(compressed("n08 n09 n10"), "n[08-10]");
    assert_eq!(compressed("a b"), "a,b");
    assert_eq!(compressed("r1n1 r1n2 r2n1"), "r1n[1-2],r2n1");
    assert_eq!(compressed("n1.x n2.x n3.y"), "n[1-2].x,n3.y");
    // The order of the nodes stays.
    assert_eq!(compressed("n2 n1 n3"), "n[2,1,3]");
    assert_eq!(
        compressed("n99999999999 n99999999998"),
        "n99999999999,n99999999998"
    );
    assert_eq!(compress::<&str>([]), "");
}

proptest::proptest! {
    #[test]
    fn compressed_names_expand_to_same_names(
        parts in proptest::collection::vec(("[a-b]?", 0..120_u32, 1..4_usize, "[.]?[c-d]?"), 1..20)
    ) {
        let names = parts.iter().map(|(before, number, width, after)| {
            format!("n{before}{number:0width$}{after}x")
        });
        let names: Vec<String> = names.collect();
        let text = compress(&names);
        let words = names::split(&text).unwrap();
        let read: Vec<String> = words.flat_map(|word| names::expand(word).unwrap()).collect();
        proptest::prop_assert_eq!(read, names, "{}", text);
    }
}
