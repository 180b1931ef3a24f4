//! Packets that wait to be written, in a queue for each connection around one [`HostRouter`].

use std::collections::{HashMap, VecDeque};

use wireup_impi_core::host::{ChannelPeer, HostAction, HostRouter};
use wireup_impi_core::packet::{Packet, PacketType};

/// Packets that wait for one connection. Acks overtake the others.
#[derive(Debug, Default)]
struct Outbox {
    urgent: VecDeque<Packet>,
    packets: VecDeque<Packet>,
    /// Whether no more bytes will be queued.
    closing: bool,
}

/// Next action of a writer.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum WriterAction {
    Write(Packet),
    /// Close the connection: the queue is empty, and no further packet follows.
    Close,
    Wait,
}

#[derive(Debug)]
pub(super) struct Outboxes {
    pub(super) host: HostRouter,
    queues: HashMap<ChannelPeer, Outbox>,
    /// Lines of processes that wait to be printed, by rank.
    lines: Vec<(usize, Vec<u8>)>,
}

impl Outboxes {
    pub(super) fn new(host: HostRouter) -> Self {
        Self {
            host,
            queues: HashMap::new(),
            lines: Vec::new(),
        }
    }

    /// Executes the host's orders.
    pub(super) fn fill(&mut self) {
        for order in self.host.take_orders() {
            match order {
                HostAction::Send(end, packet) => {
                    let outbox = self.queues.entry(end).or_default();
                    if packet.header.kind == PacketType::ProtoAck {
                        outbox.urgent.push_back(packet);
                    } else {
                        outbox.packets.push_back(packet);
                    }
                }
                HostAction::Print(rank, text) => self.lines.push((rank, text)),
                HostAction::Close(host) => {
                    let outbox = self.queues.entry(ChannelPeer::Host(host)).or_default();
                    outbox.closing = true;
                }
            }
        }
    }

    /// Returns the lines since the last call.
    pub(super) fn take_lines(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.lines)
    }

    /// Marks all connections: no more bytes will be queued for them.
    pub(super) fn close_all(&mut self) {
        self.queues
            .values_mut()
            .for_each(|outbox| outbox.closing = true);
    }

    /// Returns the next packet for a connection.
    ///
    /// A packet for a process counts as taken from here on: the process may answer, and finish, before its writer runs
    /// again, and the host acknowledges all received packets before it sends FINI.
    pub(super) fn next(&mut self, end: ChannelPeer) -> WriterAction {
        let outbox = self.queues.entry(end).or_default();
        let packet = outbox.urgent.pop_front();
        match packet.or_else(|| outbox.packets.pop_front()) {
            Some(packet) => {
                if let ChannelPeer::Proc(_) = end {
                    self.host.on_packet_taken(&packet.header);
                    self.fill();
                }
                WriterAction::Write(packet)
            }
            None if outbox.closing => WriterAction::Close,
            None => WriterAction::Wait,
        }
    }

    /// Discards the queue of a process that has finished: unread messages count as taken.
    pub(super) fn discard(&mut self, end: ChannelPeer) {
        let left = self.queues.remove(&end).unwrap_or_default();
        for packet in left.packets {
            self.host.on_packet_taken(&packet.header);
        }
        self.fill();
    }
}

#[cfg(test)]
mod tests {
    use wireup_impi_core::packet::{PacketHeader, ProcId};
    use wireup_impi_core::world::{self, ImpiClient, ImpiJob, Limits};

    use super::*;

    const ACK_MARK: u32 = 2;

    /// Two clients with one process each.
    fn world() -> ImpiJob {
        let host = |client| world::ImpiHost {
            client,
            address: [0; 16],
            port: 1,
            first: client,
            size: 1,
        };
        ImpiJob {
            version: (0, 0),
            clients: [0, 1].map(|first| ImpiClient { first, size: 1 }).into(),
            hosts: [0, 1].map(host).into(),
            procs: [0, 1].map(proc).into(),
            limits: Limits {
                data_length: 100,
                tag_upper_bound: 32_767,
                crossover_size: 1024,
                max_linear: 4,
                ack_mark: ACK_MARK,
                high_water: 4,
            },
        }
    }

    fn proc(pid: i64) -> ProcId {
        ProcId { host: [1; 16], pid }
    }

    fn packet(kind: PacketType, from: ProcId, to: ProcId) -> Packet {
        Packet {
            header: PacketHeader::new(kind, from, to),
            data: Vec::new(),
        }
    }

    #[test]
    fn delivered_messages_are_acknowledged_before_fini() {
        let mut outboxes = Outboxes::new(HostRouter::new(1, world()));
        let data = packet(PacketType::Data, proc(0), proc(1));
        for _ in 0..ACK_MARK {
            outboxes
                .host
                .packet(ChannelPeer::Host(0), data.clone())
                .unwrap();
        }
        outboxes.fill();
        for _ in 0..ACK_MARK {
            assert_eq!(
                outboxes.next(ChannelPeer::Proc(1)),
                WriterAction::Write(data.clone())
            );
        }
        // The process reads the last packet and finishes while its writer has not run again.
        outboxes.host.finish(1);
        outboxes.fill();
        let ack = packet(PacketType::ProtoAck, proc(1), proc(0));
        let none = ProcId::default();
        let fini = packet(PacketType::Fini, none, none);
        for expected in [
            WriterAction::Write(ack),
            WriterAction::Write(fini.clone()),
            WriterAction::Wait,
        ] {
            assert_eq!(outboxes.next(ChannelPeer::Host(0)), expected);
        }
        outboxes.host.packet(ChannelPeer::Host(0), fini).unwrap();
        outboxes.fill();
        assert_eq!(outboxes.next(ChannelPeer::Host(0)), WriterAction::Close);
    }

    #[test]
    fn unread_messages_of_finished_process_are_acknowledged() {
        let mut outboxes = Outboxes::new(HostRouter::new(1, world()));
        let data = packet(PacketType::Data, proc(0), proc(1));
        for _ in 0..ACK_MARK {
            outboxes
                .host
                .packet(ChannelPeer::Host(0), data.clone())
                .unwrap();
        }
        outboxes.fill();
        outboxes.discard(ChannelPeer::Proc(1));
        let ack = packet(PacketType::ProtoAck, proc(1), proc(0));
        assert_eq!(
            outboxes.next(ChannelPeer::Host(0)),
            WriterAction::Write(ack)
        );
        assert_eq!(outboxes.next(ChannelPeer::Proc(1)), WriterAction::Wait);
    }
}
