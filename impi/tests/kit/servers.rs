//! `wireup impi check-server`, on our server and on wrong ones.

use std::process::{Command, Stdio};

use wireup_test_support::{Owned, Run};

use crate::IMPI;
use crate::faults::{Change, Fault, front, nothing};

const BOTH: [(&str, &str); 2] = [("IMPI_AUTH_KEY", "5678"), ("IMPI_AUTH_NONE", "")];

/// The results, and the exit code. Nothing that was started may be left.
fn check(words: &[&str]) -> (Option<i32>, String) {
    let run = Run::command([IMPI, "check-server"]).more(words);
    let run = BOTH
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.run();
    let results = outcome.out();
    assert!(results.starts_with("TAP"), "{}", outcome.err());
    (Some(outcome.code), results)
}

fn fails(results: &str, rule: &str) -> bool {
    let name = format!(" - {rule} [");
    let line = results.lines().find(|line| line.contains(&name));
    line.unwrap_or_else(|| panic!("{rule}: {results}"))
        .starts_with("not ok")
}

#[test]
fn our_server_passes_all_checks() {
    for clients in ["2", "5"] {
        let command = ["--", IMPI, "-server", clients, "--address", "127.0.0.1"];
        let (code, results) = check(&[&["--clients", clients][..], &command].concat());
        assert_eq!(code, Some(0), "{results}");
        assert!(
            !results.contains("not ok") && !results.contains("SKIP"),
            "{results}"
        );
    }
}

/// A server of many sessions of two clients.
fn server() -> (Owned, String) {
    let mut command = Command::new(IMPI);
    command
        .args(["server", "2", "--address", "127.0.0.1", "--sessions", "0"])
        .envs(BOTH)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut server = Owned(command.spawn().unwrap());
    let address = server.first_line();
    (server, address)
}

fn is(unit: &[u8], command: &[u8; 4]) -> bool {
    unit.starts_with(command)
}

fn close(unit: &mut Vec<u8>) -> Vec<u8> {
    *unit = b"close".to_vec();
    Vec::new()
}

/// The answer to AUTH: the only unit of a server that is no command.
fn choice(unit: &[u8]) -> bool {
    unit.starts_with(&[0, 0, 0])
}

/// Rules with a change to the client's messages and one to the server's that breaks each.
const WRONG: &[(&str, Change, Change)] = &[
    (
        "UnknownCommand",
        |unit| {
            if is(unit, b"WHAT") {
                close(unit)
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    (
        "AuthFirst",
        |unit| {
            let first = is(unit, b"IMPI") && unit[8..] == [0; 4];
            // The server would close the connection; this one answers.
            if first {
                b"IMPI\0\0\0\x04\0\0\0\x02".to_vec()
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    (
        "AuthMasks",
        |unit| {
            if is(unit, b"AUTH") && unit.len() != 12 {
                close(unit)
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    (
        "AuthChoice",
        |unit| {
            let offered = is(unit, b"AUTH") && unit.len() == 12 && unit[8] == 0x40;
            if offered {
                vec![0, 0, 0, 30, 0, 0, 0, 0]
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    (
        "AuthNoCommon",
        |unit| {
            let alien = is(unit, b"AUTH") && unit[8..] == [0x40, 0, 0, 0];
            if alien { vec![0; 8] } else { Vec::new() }
        },
        nothing,
    ),
    ("AuthNone", nothing, |unit| {
        if unit[..4] == [0; 4] {
            unit.splice(.., [0, 0, 0, 0, 0, 0, 0, 1, 0]);
        }
        Vec::new()
    }),
    ("AuthKey", nothing, |unit| {
        if choice(unit) && unit[3] == 1 {
            unit.splice(.., [0, 0, 0, 1, 0, 0, 0, 8]);
        }
        Vec::new()
    }),
    (
        "AuthWrongKey",
        |unit| {
            if unit[..] == (!5678_u64).to_be_bytes() {
                unit.splice(.., 5678_u64.to_be_bytes());
            }
            Vec::new()
        },
        nothing,
    ),
    (
        "ImpiWaits",
        |unit| {
            if is(unit, b"IMPI") {
                b"IMPI\0\0\0\x04\0\0\0\x02".to_vec()
            } else {
                Vec::new()
            }
        },
        |unit| {
            if is(unit, b"IMPI") {
                unit.clear();
            }
            Vec::new()
        },
    ),
    ("ImpiSize", nothing, |unit| {
        if is(unit, b"IMPI") {
            unit[11] += 1;
        }
        Vec::new()
    }),
    ("CollByRank", nothing, |unit| {
        if is(unit, b"COLL") {
            unit[16..].reverse();
        }
        Vec::new()
    }),
    ("CollMask", nothing, |unit| {
        if is(unit, b"COLL") {
            unit[15] = 3;
        }
        Vec::new()
    }),
    (
        "CollComplete",
        |unit| {
            if is(unit, b"COLL") {
                b"COLL\0\0\0\x0a\0\0\x11\0\0\0\0\x03\x01\x01".to_vec()
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    ("CollAtOnce", nothing, |unit| {
        // Only once DONE is answered, which is too late.
        if is(unit, b"COLL") {
            unit.clear();
        }
        Vec::new()
    }),
    ("CollToAll", nothing, |unit| {
        // Nothing for client 1, to which client 0's label is another's.
        if is(unit, b"COLL") && unit[15] == 1 {
            unit.clear();
        }
        Vec::new()
    }),
    ("CollOpaque", nothing, |unit| {
        if is(unit, b"COLL") && unit[8] == 0x40 {
            unit.clear();
        }
        Vec::new()
    }),
    ("DoneEmpty", nothing, |unit| {
        if is(unit, b"DONE") {
            unit.splice(.., *b"DONE\0\0\0\x01\0");
        }
        Vec::new()
    }),
    (
        "DoneWaits",
        |unit| {
            if is(unit, b"DONE") {
                b"DONE\0\0\0\0".to_vec()
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
    (
        "FiniNoReply",
        |unit| {
            if is(unit, b"FINI") {
                b"FINI\0\0\0\0".to_vec()
            } else {
                Vec::new()
            }
        },
        nothing,
    ),
];

#[test]
fn each_wrong_answer_is_found() {
    // Most of the time passes in waiting for what does not come.
    std::thread::scope(|scope| {
        for faults in WRONG.chunks(WRONG.len().div_ceil(8)) {
            scope.spawn(move || {
                let (_server, address) = server();
                let (code, results) = check(&[&address]);
                assert_eq!(code, Some(0), "{results}");
                for fault in faults {
                    expect_found(&address, fault);
                }
            });
        }
    });
}

/// Expects that the rule fails in a check of the server behind the fault.
fn expect_found(address: &str, (rule, client, wrong): &(&str, Change, Change)) {
    let fault = Fault {
        client: *client,
        server: *wrong,
    };
    let address = front(address, fault).to_string();
    // Unexpected messages of a server are awaited for a moment only; on a busy machine they may come
    // later.
    let mut tries = (0..5).map(|_| check(&["--timeout", "2", &address]));
    let (code, results) = tries.find(|(code, _)| *code != Some(0)).unwrap();
    assert_eq!(code, Some(1), "{rule}: {results}");
    assert!(fails(&results, rule), "{rule}: {results}");
}

#[test]
fn output_and_exit_of_server_are_checked() {
    let start = r#""$0" -server 2 --address 127.0.0.1"#;
    for (rule, script, code) in [
        ("AddressLine", format!("echo hello; exec {start}"), 1),
        (
            "OneLine",
            format!("{start}; code=$?; echo more; exit $code"),
            0,
        ),
        ("ServerExits", format!("{start}; exit 3"), 1),
        ("LostReported", format!("exec {start} 2>/dev/null"), 0),
        ("AuthNoneWarning", format!("exec {start} 2>/dev/null"), 0),
        ("AuthUnavailable", format!("{start} || exit 0"), 1),
    ] {
        let (got, results) = check(&["--timeout", "5", "--", "sh", "-c", &script, IMPI]);
        assert_eq!(got, Some(code), "{rule}: {results}");
        assert!(fails(&results, rule), "{rule}: {results}");
    }
}

#[test]
fn server_that_needs_whole_segments_is_found() {
    // Of units that come in pieces it takes the first bytes for all.
    let (server, address) = server();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let front = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = std::net::TcpStream::connect(&address).unwrap();
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(count @ 8..) = client.read(&mut piece) {
                    if server.write_all(&piece[..count]).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let (code, results) = check(&["--timeout", "2", &front]);
    assert_eq!(code, Some(1), "{results}");
    assert!(fails(&results, "Pieces"), "{results}");
    drop(server);
}
