use proptest::prelude::*;

use super::*;

fn limits(data_length: u32, ack_mark: u32, high_water: u32) -> Limits {
    Limits {
        data_length,
        tag_upper_bound: 32_767,
        crossover_size: 1024,
        max_linear: 4,
        ack_mark,
        high_water,
    }
}

/// Processes that are connected by channels in order, with hosts that acknowledge.
struct Network {
    endpoints: Vec<Endpoint>,
    /// Packets on their way, by source and destination.
    wires: BTreeMap<(usize, usize), VecDeque<Packet>>,
    received: BTreeMap<(usize, usize), crate::flow::ReceiveWindow>,
    in_flight: BTreeMap<(usize, usize), u32>,
    limits: Limits,
}

impl Network {
    fn new(size: usize, limits: Limits) -> Self {
        let procs: Vec<ProcId> = (0..size)
            .map(|pid| ProcId {
                host: [9; 16],
                pid: pid as i64,
            })
            .collect();
        let endpoints = (0..size)
            .map(|rank| Endpoint::new(rank, procs.clone(), limits))
            .collect();
        Self {
            endpoints,
            wires: BTreeMap::new(),
            received: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            limits,
        }
    }

    fn collect(&mut self) {
        for rank in 0..self.endpoints.len() {
            while let Some(packet) = self.endpoints[rank].next_packet() {
                let to = usize::try_from(packet.header.destination.pid).unwrap();
                let count = self.in_flight.entry((rank, to)).or_default();
                *count += 1;
                assert!(*count <= self.limits.high_water, "the window holds");
                assert!(packet.header.length <= self.limits.data_length);
                self.wires.entry((rank, to)).or_default().push_back(packet);
            }
        }
    }

    /// Delivers one packet of the `choice`-th wire that has one; whether there was one.
    fn deliver(&mut self, choice: usize) -> bool {
        self.collect();
        let busy: Vec<(usize, usize)> = self
            .wires
            .iter()
            .filter(|(_, wire)| !wire.is_empty())
            .map(|(pair, _)| *pair)
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (from, to) = busy[choice % busy.len()];
        let packet = self
            .wires
            .get_mut(&(from, to))
            .unwrap()
            .pop_front()
            .unwrap();
        self.endpoints[to].received(packet).unwrap();
        if self
            .received
            .entry((from, to))
            .or_default()
            .received(self.limits.ack_mark)
        {
            *self.in_flight.get_mut(&(from, to)).unwrap() -= self.limits.ack_mark;
            let procs = &self.endpoints[from].procs;
            let ack = PacketHeader::new(PacketType::ProtoAck, procs[to], procs[from]);
            self.endpoints[from]
                .received(Packet {
                    header: ack,
                    data: Vec::new(),
                })
                .unwrap();
        }
        true
    }

    fn run(&mut self) {
        while self.deliver(0) {}
    }
}

fn to(destination: usize, tag: i32) -> Envelope {
    Envelope {
        destination,
        tag,
        context: 0,
        synchronous: false,
    }
}

fn from(source: usize, tag: i32) -> MatchSpec {
    MatchSpec {
        source: Some(source),
        tag: Some(tag),
        context: 0,
    }
}

#[test]
fn long_message_is_sent_in_packets_of_lam() {
    let mut net = Network::new(2, limits(65_536, 10, 20));
    let data: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
    let send = net.endpoints[0].send(to(1, 6), &data);
    let first = net.endpoints[0].next_packet().unwrap();
    assert_eq!(
        (first.header.kind, first.header.length),
        (PacketType::DataSync, 65_536)
    );
    assert_eq!(first.header.message_length, 200_000);
    assert!(net.endpoints[0].next_packet().is_none());
    net.endpoints[1].received(first).unwrap();
    assert!(
        net.endpoints[1].next_packet().is_none(),
        "no ack before the match"
    );
    let receive = net.endpoints[1].receive(from(0, 6), 200_000);
    let ack = net.endpoints[1].next_packet().unwrap();
    assert_eq!(ack.header.kind, PacketType::SyncAck);
    assert_eq!(
        (ack.header.source_request, ack.header.destination_request),
        (send.0, receive.0)
    );
    net.endpoints[0].received(ack).unwrap();
    let rest: Vec<Packet> = std::iter::from_fn(|| net.endpoints[0].next_packet()).collect();
    let shape: Vec<(PacketType, u32, u64)> = rest
        .iter()
        .map(|p| (p.header.kind, p.header.length, p.header.destination_request))
        .collect();
    assert_eq!(
        shape,
        [65_536, 65_536, 3392].map(|length| (PacketType::Data, length, receive.0))
    );
    assert_eq!(
        net.endpoints[0].take_completion(send),
        Some(Completion::Sent)
    );
    rest.into_iter()
        .for_each(|packet| net.endpoints[1].received(packet).unwrap());
    let status = Status {
        source: 0,
        tag: 6,
        length: 200_000,
    };
    assert_eq!(
        net.endpoints[1].take_completion(receive),
        Some(Completion::Received(status, data))
    );
}

#[test]
fn synchronous_send_completes_when_matched() {
    let mut net = Network::new(2, limits(100, 1, 1));
    let send = net.endpoints[0].send(
        Envelope {
            synchronous: true,
            ..to(1, 1)
        },
        b"x",
    );
    net.run();
    assert!(!net.endpoints[0].is_complete(send));
    let receive = net.endpoints[1].receive(
        MatchSpec {
            source: None,
            tag: None,
            context: 0,
        },
        10,
    );
    net.run();
    assert!(net.endpoints[0].is_complete(send));
    assert!(net.endpoints[1].is_complete(receive));
}

#[test]
fn cancel_removes_only_newest_unmatched_message() {
    let mut net = Network::new(2, limits(10, 4, 8));
    let keep = net.endpoints[0].send(to(1, 1), b"keep");
    for (envelope, data) in [
        (to(1, 2), &b"short"[..]),
        (
            Envelope {
                synchronous: true,
                ..to(1, 2)
            },
            b"sync",
        ),
        (to(1, 2), b"a long message"),
    ] {
        let send = net.endpoints[0].send(envelope, data);
        net.run();
        net.endpoints[0].cancel(send);
        assert!(
            net.endpoints[0].take_completion(send).is_none(),
            "waits for the reply"
        );
        net.run();
        assert_eq!(
            net.endpoints[0].take_completion(send),
            Some(Completion::Cancelled)
        );
    }
    assert_eq!(
        net.endpoints[1]
            .probe(MatchSpec {
                source: None,
                tag: None,
                context: 0
            })
            .unwrap()
            .tag,
        1
    );
    net.endpoints[1].receive(from(0, 1), 4);
    net.endpoints[0].cancel(keep);
    net.run();
    assert_eq!(
        net.endpoints[0].take_completion(keep),
        Some(Completion::Sent),
        "too late"
    );
    // What has not gone is taken back without a question; a receive as well.
    let local = net.endpoints[0].send(to(1, 3), b"");
    net.endpoints[0].cancel(local);
    assert_eq!(
        net.endpoints[0].take_completion(local),
        Some(Completion::Cancelled)
    );
    assert!(net.endpoints[0].next_packet().is_none());
    let receive = net.endpoints[0].receive(from(1, 3), 4);
    net.endpoints[0].cancel(receive);
    assert_eq!(
        net.endpoints[0].take_completion(receive),
        Some(Completion::Cancelled)
    );
}

#[test]
fn closed_window_stops_its_pair_only() {
    let mut net = Network::new(3, limits(10, 2, 3));
    for _ in 0..9 {
        net.endpoints[0].send(to(1, 0), b"");
    }
    net.endpoints[0].send(to(2, 0), b"");
    let sent: Vec<i64> = std::iter::from_fn(|| net.endpoints[0].next_packet())
        .map(|packet| packet.header.destination.pid)
        .collect();
    assert_eq!(sent.iter().filter(|pid| **pid == 1).count(), 3);
    assert_eq!(sent.iter().filter(|pid| **pid == 2).count(), 1);
}

#[test]
fn message_that_is_too_long_is_truncated_and_reported() {
    let mut net = Network::new(2, limits(4, 2, 4));
    net.endpoints[0].send(to(1, 0), b"0123456789");
    let receive = net.endpoints[1].receive(from(0, 0), 6);
    net.run();
    let status = Status {
        source: 0,
        tag: 0,
        length: 10,
    };
    let cut = Completion::Truncated(status, b"012345".to_vec());
    assert_eq!(net.endpoints[1].take_completion(receive), Some(cut));
}

proptest! {
    /// Messages of any lengths between three processes, sent, posted and delivered in any order, arrive as in a model:
    /// for each pair and tag in the order in which they were sent, unharmed, and nothing is left.
    #[test]
    fn any_schedule_delivers_as_model(
        data_length in 1_u32..20,
        ack_mark in 1_u32..5,
        more in 0_u32..5,
        messages in proptest::collection::vec((0_usize..3, 0_usize..3, 0_i32..2, 0_usize..70, any::<bool>()), 0..25),
        order in proptest::collection::vec((0_usize..3, any::<usize>()), 0..300),
    ) {
        let mut net = Network::new(3, limits(data_length, ack_mark, ack_mark + more));
        let mut to_send = messages.clone().into_iter().enumerate().collect::<VecDeque<_>>();
        let mut to_post: VecDeque<_> = messages.clone().into();
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        let body = |number: usize, length: usize| vec![number as u8; length];
        let mut send_next = |net: &mut Network| if let Some((number, (from, dest, tag, length, synchronous))) = to_send.pop_front() {
            let envelope = Envelope { destination: dest, tag, context: 7, synchronous };
            sends.push((from, net.endpoints[from].send(envelope, &body(number, length))));
        };
        let mut post_next = |net: &mut Network| if let Some((source, dest, tag, _, _)) = to_post.pop_front() {
            let spec = MatchSpec { source: Some(source), tag: Some(tag), context: 7 };
            receives.push((source, dest, tag, net.endpoints[dest].receive(spec, 100)));
        };
        for (what, choice) in order {
            match what {
                0 => send_next(&mut net),
                1 => post_next(&mut net),
                _ => drop(net.deliver(choice)),
            }
        }
        for _ in 0..messages.len() {
            send_next(&mut net);
            post_next(&mut net);
        }
        net.run();
        for (from, send) in sends {
            prop_assert_eq!(net.endpoints[from].take_completion(send), Some(Completion::Sent));
        }
        let mut model: BTreeMap<(usize, usize, i32), VecDeque<Vec<u8>>> = BTreeMap::new();
        for (number, (from, dest, tag, length, _)) in messages.into_iter().enumerate() {
            model.entry((from, dest, tag)).or_default().push_back(body(number, length));
        }
        for (source, dest, tag, receive) in receives {
            let data = model.get_mut(&(source, dest, tag)).unwrap().pop_front().unwrap();
            let status = Status { source, tag, length: data.len() as u64 };
            prop_assert_eq!(net.endpoints[dest].take_completion(receive), Some(Completion::Received(status, data)));
        }
        for endpoint in &net.endpoints {
            prop_assert!(endpoint.is_idle() && endpoint.unexpected.is_empty() && endpoint.posted.is_empty());
            prop_assert!(endpoint.sends.is_empty() && endpoint.receives.is_empty());
        }
    }
}
