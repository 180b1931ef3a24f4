//! The messages of LAM's collectives are those of the tables, between clients of uneven sizes.

use std::collections::BTreeMap;

use wireup_impi_core::collective::{CollectiveChannel, CollectiveStep, Operation, Topology};

use super::parts::{Lam, Recorded};
use super::prepared;

/// Tag and context of each message of an ordered pair of processes, in order.
type Messages = BTreeMap<(usize, usize), Vec<(i32, u64)>>;

/// Above the crossover of the specification. LAM gets bcasts wrong that do not fit into one packet.
const LONG: usize = 1000;

/// The operations that LAM serves across clients, and what its program calls them.
fn operations(size: usize) -> Vec<(String, Operation)> {
    let mut all = Vec::new();
    for root in [0, size / 2, size - 1] {
        for count in [1, LONG] {
            all.push((format!("bcast:{root}:{count}"), Operation::Bcast { root }));
        }
        for (name, commutative) in [("reduce", true), ("ordered", false)] {
            let operation = Operation::Reduce { root, commutative };
            all.push((format!("{name}:{root}:1"), operation));
        }
    }
    let allreduce = Operation::Allreduce { commutative: true };
    all.push((format!("allreduce:0:{LONG}"), allreduce));
    // LAM does not always end where the next operation begins before all have ended the last.
    let barrier = ("barrier:0:1".to_owned(), Operation::Barrier);
    all.into_iter()
        .flat_map(|one| [one, barrier.clone()])
        .collect()
}

/// Returns the messages of the tables for these operations and for the barrier of MPI_Finalize.
fn expected(topology: &Topology, operations: &[(String, Operation)], client: &[usize]) -> Messages {
    let mut messages = Messages::new();
    let all = operations.iter().map(|(_, operation)| *operation);
    for operation in all.chain([Operation::Barrier]) {
        for me in 0..client.len() {
            for step in topology.steps(operation, false, me) {
                let CollectiveStep::Send {
                    to, tag, channel, ..
                } = step
                else {
                    continue;
                };
                if client[me] != client[to] {
                    let context = u64::from(channel == CollectiveChannel::Collective);
                    messages.entry((me, to)).or_default().push((tag, context));
                }
            }
        }
    }
    messages
}

/// Parses a line of `wireup impi decode` that shows the start of a message.
fn message(line: &str) -> Option<((usize, usize), (i32, u64))> {
    let (_, text) = line.split_once("] DATA")?;
    if text.ends_with("a further part") {
        return None;
    }
    let text = text.strip_prefix("SYNC").unwrap_or(text).trim_start();
    let (pair, rest) = text.split_once(": ")?;
    let (from, to) = pair.split_once(" -> ")?;
    let of = |name: &str| rest.split(", ").find_map(|part| part.strip_prefix(name));
    let (tag, context) = (of("tag ")?, of("context ")?);
    let pair = (from.parse().ok()?, to.parse().ok()?);
    Some((pair, (tag.parse().ok()?, context.parse().ok()?)))
}

fn compared(sizes: &[usize]) {
    prepared(|lam, dir| {
        let recorded = Recorded::start(dir, sizes.len());
        let client: Vec<usize> = sizes
            .iter()
            .enumerate()
            .flat_map(|(client, size)| std::iter::repeat_n(client, *size))
            .collect();
        let operations = operations(client.len());
        let program = dir.join("collectives");
        let mut words = vec![program.to_str().unwrap()];
        words.extend(operations.iter().map(|(word, _)| word.as_str()));
        let running = sizes.iter().enumerate().map(|(number, size)| {
            let seat = (number, &*Recorded::address(number), *size);
            Lam::start((lam, dir), seat, &recorded.front, &words)
        });
        let running: Vec<_> = running.collect();
        for client in running {
            client.end();
        }
        let mut found = Messages::new();
        for (pair, message) in recorded.end().iter().filter_map(|line| message(line)) {
            found.entry(pair).or_default().push(message);
        }
        let topology = Topology::new(sizes.iter().copied(), 4, CollectiveChannel::PointToPoint);
        assert_eq!(found, expected(&topology, &operations, &client));
    });
}

#[test]
fn of_two_clients() {
    compared(&[2, 3]);
}

#[test]
fn of_three_clients() {
    compared(&[3, 1, 2]);
}

/// Above four clients LAM takes trees; its barrier and its bcast are wrong there where a client has more than one process.
#[test]
fn of_five_clients_in_trees() {
    compared(&[1; 5]);
}
