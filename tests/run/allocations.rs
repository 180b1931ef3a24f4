//! Ranks that request nodes and slots from an external allocator: that of the examples, one that exits,
//! one that sends nonsense, and none.

use std::collections::BTreeMap;

use crate::common::{Outcome, Pmix, Run, allocator, field, pmix};
use crate::pmix::SERVERS;
use wireup_core::pmix::value::Status;

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// The allocator of the examples, with two slots.
fn pool() -> String {
    allocator::pool("cloud1:1,cloud2:1")
}

fn steps(client: &Pmix, nodes: &[&str], allocator: &str, steps: &[&str]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("allocator");
    let socket = socket.to_str().unwrap();
    let options = [
        &[
            "--oversubscribe",
            "--allocator",
            socket,
            "--libpmix",
            client.path(),
        ],
        nodes,
    ]
    .concat();
    let run = client.run(2, &options, "pmix_alloc", steps);
    allocator::beside(run, allocator, socket).run()
}

/// Returns the results of all steps.
fn answers(outcome: &Outcome) -> BTreeMap<u32, (Status, String)> {
    let lines = outcome.sorted_lines();
    let answer = |line: &String| {
        let number = |key| field(line, key).unwrap().parse::<i32>().unwrap();
        let (_, rest) = line.split_once(" status=").unwrap();
        let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
        let step = u32::try_from(number("step")).unwrap();
        (step, (Status(number("status")), rest.to_owned()))
    };
    lines.iter().map(answer).collect()
}

#[test]
fn allocator_grants_free_slots_queues_requests_and_reclaims() {
    for client in versions() {
        for nodes in [&[][..], &["--virtual-nodes", "2"]] {
            let outcome = steps(
                &client,
                nodes,
                &pool(),
                &[
                    "new:slots=2;req=first",
                    "&new:slots=1;req=second",
                    "&new:slots=1;req=third",
                    "new:slots=1;timeout=1",
                    "new:!queue=closed;slots=1",
                    "cancel:req=second",
                    "cancel:req=fourth",
                    "release:id=pool-1",
                    "join",
                    "extend:id=pool-2;slots=1",
                    "extend:slots=1",
                    "release:id=pool-7",
                ],
            )
            .expect(0);
            let answers = answers(&outcome);
            let expect_granted = |step: u32, text: &str| {
                let (status, rest) = &answers[&step];
                assert_eq!(
                    (*status, rest.as_str()),
                    (Status::SUCCESS, text),
                    "step {step}"
                );
            };
            expect_granted(
                1,
                "id=pool-1 req=first nodes=2 list=cloud1,cloud2 slots=2 each=1,1",
            );
            expect_granted(3, "id=pool-2 req=third nodes=1 list=cloud1 slots=1 each=1");
            expect_granted(6, "req=second nodes=0 list= slots=0 each=");
            expect_granted(8, "id=pool-1 nodes=2 list=cloud1,cloud2 slots=2 each=1,1");
            expect_granted(10, "id=pool-2 nodes=1 list=cloud2 slots=1 each=1");
            let refused: BTreeMap<u32, Status> = answers
                .iter()
                .map(|(step, (status, _))| (*step, *status))
                .filter(|(_, status)| *status != Status::SUCCESS)
                .collect();
            let expected = [
                (2, Status::ERR_JOB_CANCELED),
                (4, Status::ERR_TIMEOUT),
                (5, Status::ERR_OUT_OF_RESOURCE),
                (7, Status::ERR_NOT_FOUND),
                (11, Status::ERR_OUT_OF_RESOURCE),
                (12, Status::ERR_OUT_OF_RESOURCE),
            ];
            assert_eq!(refused, BTreeMap::from(expected));
            assert_eq!(outcome.err(), "");
        }
    }
}

/// Takes a connection, reads what is asked, answers with `$1` and closes the connection.
const ONCE: &str = r#"python3 -c '
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    while True:
        with listener.accept()[0] as connection, connection.makefile() as lines:
            lines.readline()
            lines.readline()
            connection.sendall(sys.argv[2].encode())
' "$socket" "#;

#[test]
fn failed_or_invalid_allocator_is_error_and_called_again() {
    for client in versions() {
        for (answer, words) in [
            ("''", "connection closed"),
            ("'nonsense\n'", "invalid message \"nonsense\""),
            ("'{\"granted\": {}}\n'", "number is missing"),
        ] {
            let allocator = format!("{ONCE} {answer}");
            let outcome =
                steps(&client, &[], &allocator, &["new:slots=1", "new:slots=1"]).expect(0);
            let answers = answers(&outcome);
            for step in [1, 2] {
                assert_eq!(answers[&step].0, Status::ERR_UNREACH, "{outcome:?}");
            }
            let err = outcome.err();
            let lost = |line: &&str| line.contains("is lost: ") && line.contains(words);
            assert_eq!(err.lines().filter(lost).count(), 2, "{err}");
        }
    }
}

#[test]
fn missing_allocator_is_named_before_start() {
    let refused = |path: &str, words: &str| {
        let run = Run::ranks(1, ["--allocator", path, "true"]);
        run.run()
            .expect(125)
            .expect_one_line(&["--allocator", path, words]);
    };
    refused("/nowhere/allocator", "no such socket");
    refused("/etc/hostname", "not a Unix socket");
}
