//! LAM with cancelled messages, synchronous sends, and messages that are never received.

use wireup_impi_core::endpoint::Completion;
use wireup_impi_io::agent::process_handshake::{AGENT, TICKET_VARIABLE};
use wireup_impi_io::peer::{ElementType, Peer};

use super::parts::{Agent, Lam, Recorded};
use super::prepared;

const BYTE: ElementType = ElementType::Byte;

/// Plays the counterpart of cancel.c.
fn other(peer: &Peer) {
    let start = |length: usize, tag: u8, synchronous| {
        let data = vec![tag; length];
        peer.start_send(&data, BYTE, 0, tag.into(), synchronous)
            .unwrap()
    };
    let send = |length, tag| {
        let request = start(length, tag, false);
        assert_eq!(peer.wait(request).unwrap(), Completion::Sent);
    };
    let receive = |tag| {
        let request = peer.start_receive(10, BYTE, Some(0), Some(tag)).unwrap();
        let Completion::Received(status, _) = peer.wait(request).unwrap() else {
            panic!()
        };
        assert_eq!((status.source, status.length), (0, 10));
    };
    let requests = [(10, 1, false), (10, 2, true), (200_000, 3, false)]
        .map(|(length, tag, synchronous)| start(length, tag, synchronous));
    // They have gone when this one has.
    send(0, 14);
    for request in requests {
        peer.cancel(request).unwrap();
    }
    // LAM answers, though its process has not taken the message.
    assert_eq!(peer.wait(requests[0]).unwrap(), Completion::Sent);
    send(0, 4);
    assert_eq!(peer.wait(requests[1]).unwrap(), Completion::Sent);
    assert_eq!(peer.wait(requests[2]).unwrap(), Completion::Sent);
    receive(5);
    receive(0);
    receive(13);
    send(0, 7);
    receive(13 << 24);
    send(0, 8);
    let left = peer.probe(Some(0), Some(9), true).unwrap().unwrap();
    assert_eq!(left.length, 10);
    // Nobody takes this one either.
    send(10, 10);
}

#[test]
fn lam_cancels_nothing_and_ends_with_unreceived_messages() {
    prepared(|lam, dir| {
        let recorded = Recorded::start(dir, 2);
        let program = dir.join("cancel");
        let words = [program.to_str().unwrap()];
        let address = Recorded::address(0);
        let client = Lam::start((lam, dir), (0, &address, 2), &recorded.front, &words);
        let address = Recorded::address(1);
        let mut agent = Agent::start(1, &address, &recorded.front, &["--lam"]);
        let variables = agent.variables();
        std::thread::scope(|scope| {
            for index in 0..2 {
                let (door, ticket) = (&variables[AGENT], &variables[TICKET_VARIABLE]);
                scope.spawn(move || {
                    let peer = Peer::connect(door, ticket, index).unwrap();
                    if index == 0 {
                        other(&peer);
                    }
                    peer.close().unwrap();
                });
            }
        });
        let output = client.end();
        assert_eq!(output.matches("of 4 is done").count(), 2, "{output}");
        agent.end();
        let lines = recorded.end();
        let count = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
        assert_eq!(count("[3.7.4] CANCEL 2 -> 0"), 3);
        assert_eq!(count("[3.7.4] CANCELNO 0 -> 2"), 3);
        assert_eq!(count("[3.7.4] CANCEL 0"), 0, "LAM cancels nothing");
        assert_eq!(count("[3.7.4]"), 6);
        assert_eq!(count("[3.7.1] DATASYNC 0 -> 2"), 3);
        assert_eq!(count("[3.7] SYNCACK 2 -> 0"), 3);
        assert_eq!(count("[3.8] FINI"), 2);
        assert_eq!(count("[2.3.7] FINI: client"), 2);
    });
}
