//! A host: the agent that owns the channels to other hosts, for some processes. It forwards packets, acknowledges what
//! its processes have taken, and ends channels in order.
//!
//! ```text
//! channel   open ── sent FINI ──▶ half, local ── got FINI ──▶ closed
//!           open ── got FINI ──▶ half, remote ── sent FINI ──▶ closed
//! process   absent ── connects ──▶ present ── finishes ──▶ finished; packets for it are then dropped and acknowledged
//! ```
//!
//! Matching is left to the processes (`endpoint`). Source: IMPI 2.4, 3.6, 3.8.

use std::collections::HashMap;

use thiserror::Error;

use crate::flow::ReceiveWindow;
use crate::packet::{Packet, PacketHeader, PacketType, ProcId};
use crate::world::ImpiJob;

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChannelPeer {
    /// Another host, by its rank.
    Host(usize),
    /// A process of this host, by its rank in the world.
    Proc(usize),
}

/// Protocol violation of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HostError {
    /// The sender does not belong to the connection, or the receiver is not there.
    #[error("a packet whose processes do not belong to the connection")]
    Misdirected,
    /// A packet with data follows FINI.
    #[error("{0:?} after FINI")]
    AfterFini(PacketType),
    /// The connection ended before FINI.
    #[error("the connection ended before FINI")]
    Ended,
}

/// An order to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostAction {
    /// Write the packet there; where that is a process, call [`HostRouter::on_packet_taken`] when it is about to be written.
    Send(ChannelPeer, Packet),
    /// The channel is closed in order.
    Close(usize),
    /// Print this text of a process.
    Print(usize, Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct HostChannel {
    sent_fini: bool,
    got_fini: bool,
}

#[derive(Debug)]
pub struct HostRouter {
    me: usize,
    world: ImpiJob,
    ranks: HashMap<ProcId, usize>,
    /// To each other host, those of the own client included.
    channels: Vec<Option<HostChannel>>,
    finished: Vec<bool>,
    received: HashMap<(usize, usize), ReceiveWindow>,
    orders: Vec<HostAction>,
}

impl HostRouter {
    /// Makes host `me` of a world.
    pub fn new(me: usize, world: ImpiJob) -> Self {
        let hosts = 0..world.hosts.len();
        let channels = hosts.map(|host| (host != me).then(HostChannel::default));
        Self {
            me,
            channels: channels.collect(),
            ranks: world.procs.iter().copied().zip(0..).collect(),
            finished: vec![false; world.hosts[me].size],
            received: HashMap::new(),
            orders: Vec::new(),
            world,
        }
    }

    /// Takes a packet from a connection.
    ///
    /// # Errors
    /// When it is against the protocol.
    pub fn packet(&mut self, from: ChannelPeer, packet: Packet) -> Result<(), HostError> {
        if packet.header.kind == PacketType::Fini {
            match from {
                ChannelPeer::Host(host) => self.fini(host)?,
                ChannelPeer::Proc(rank) => self.finish(rank),
            }
            return Ok(());
        }
        // A process sends text to no process: the agent prints it.
        if let ChannelPeer::Proc(rank) = from
            && packet.header.kind == PacketType::Data
            && packet.header.destination == ProcId::default()
        {
            self.orders.push(HostAction::Print(rank, packet.data));
            return Ok(());
        }
        let rank = |id: &ProcId| self.ranks.get(id).copied().ok_or(HostError::Misdirected);
        let (source, destination) = (
            rank(&packet.header.source)?,
            rank(&packet.header.destination)?,
        );
        match from {
            ChannelPeer::Host(host) => {
                if self.world.host_of(source) != host || !self.is_own(destination) {
                    return Err(HostError::Misdirected);
                }
                let kind = packet.header.kind;
                let only_acks = self.channels[host].is_some_and(|channel| channel.got_fini);
                // Rule: after FINI only acknowledgments. Source: IMPI 3.8.
                if only_acks && kind.has_body() {
                    return Err(HostError::AfterFini(kind));
                }
            }
            ChannelPeer::Proc(proc) => {
                if proc != source || self.finished[proc - self.first()] {
                    return Err(HostError::Misdirected);
                }
            }
        }
        self.route(destination, packet)
    }

    /// Handles a packet that a process has taken, or may have taken.
    pub fn on_packet_taken(&mut self, header: &PacketHeader) {
        if let (Some(&source), Some(&destination)) = (
            self.ranks.get(&header.source),
            self.ranks.get(&header.destination),
        ) {
            self.acknowledge(source, destination, header.kind);
        }
    }

    /// Marks a process that needs no more messages.
    pub fn finish(&mut self, rank: usize) {
        let at = rank - self.first();
        self.finished[at] = true;
        if !self.finished.iter().all(|finished| *finished) {
            return;
        }
        for host in 0..self.channels.len() {
            if let Some(channel) = &mut self.channels[host]
                && !channel.sent_fini
            {
                channel.sent_fini = true;
                let none = ProcId::default();
                let header = PacketHeader::new(PacketType::Fini, none, none);
                let fini = HostAction::Send(ChannelPeer::Host(host), header.into());
                self.orders.push(fini);
                self.close_if_over(host);
            }
        }
    }

    /// Handles the end of a connection.
    ///
    /// # Errors
    /// When the connection was not over.
    pub fn ended(&mut self, end: ChannelPeer) -> Result<(), HostError> {
        let over = match end {
            ChannelPeer::Host(host) => self.channels[host].is_none_or(|channel| channel.got_fini),
            ChannelPeer::Proc(rank) => self.finished[rank - self.first()],
        };
        over.then_some(()).ok_or(HostError::Ended)
    }

    /// Whether all processes have finished and all channels are closed.
    pub fn is_over(&self) -> bool {
        let closed = |channel: &HostChannel| channel.sent_fini && channel.got_fini;
        self.finished.iter().all(|finished| *finished) && self.channels.iter().flatten().all(closed)
    }

    /// Returns the orders since the last call.
    pub fn take_orders(&mut self) -> Vec<HostAction> {
        std::mem::take(&mut self.orders)
    }

    fn first(&self) -> usize {
        self.world.hosts[self.me].first
    }

    fn is_own(&self, rank: usize) -> bool {
        self.world.host_of(rank) == self.me
    }

    fn fini(&mut self, host: usize) -> Result<(), HostError> {
        let channel = self.channels[host].as_mut().ok_or(HostError::Misdirected)?;
        if channel.got_fini {
            return Err(HostError::AfterFini(PacketType::Fini));
        }
        channel.got_fini = true;
        self.close_if_over(host);
        Ok(())
    }

    fn close_if_over(&mut self, host: usize) {
        if self.channels[host].is_some_and(|channel| channel.sent_fini && channel.got_fini) {
            self.orders.push(HostAction::Close(host));
        }
    }

    fn route(&mut self, destination: usize, packet: Packet) -> Result<(), HostError> {
        if !self.is_own(destination) {
            let host = self.world.host_of(destination);
            self.orders
                .push(HostAction::Send(ChannelPeer::Host(host), packet));
            return Ok(());
        }
        if !self.finished[destination - self.first()] {
            self.orders
                .push(HostAction::Send(ChannelPeer::Proc(destination), packet));
            return Ok(());
        }
        // Dropping it destroys the message, so a request to cancel it has succeeded.
        let header = packet.header;
        self.on_packet_taken(&header);
        if header.kind == PacketType::Cancel
            && let Some(&source) = self.ranks.get(&header.source)
        {
            let reply = PacketHeader {
                source_request: header.source_request,
                ..PacketHeader::new(PacketType::CancelYes, header.destination, header.source)
            };
            self.route(source, reply.into())?;
        }
        Ok(())
    }

    fn acknowledge(&mut self, source: usize, destination: usize, kind: PacketType) {
        let counter = self.received.entry((source, destination)).or_default();
        if kind.counts() && counter.received(self.world.limits.ack_mark) {
            let header = PacketHeader::new(
                PacketType::ProtoAck,
                self.world.procs[destination],
                self.world.procs[source],
            );
            // A process that has finished needs no acks; a channel that is gone takes none.
            if !self.is_own(source) || !self.finished[source - self.first()] {
                drop(self.route(source, header.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{ImpiClient, Limits};

    /// Two hosts with two processes each.
    fn world() -> ImpiJob {
        let host = |client, first| crate::world::ImpiHost {
            client,
            address: [0; 16],
            port: 1,
            first,
            size: 2,
        };
        ImpiJob {
            version: (0, 0),
            clients: vec![
                ImpiClient { first: 0, size: 2 },
                ImpiClient { first: 2, size: 2 },
            ],
            hosts: vec![host(0, 0), host(1, 2)],
            procs: (0..4).map(|pid| ProcId { host: [1; 16], pid }).collect(),
            limits: Limits {
                data_length: 100,
                tag_upper_bound: 32_767,
                crossover_size: 1024,
                max_linear: 4,
                ack_mark: 2,
                high_water: 4,
            },
        }
    }

    fn packet(kind: PacketType, from: i64, to: i64) -> Packet {
        let id = |pid| ProcId { host: [1; 16], pid };
        Packet {
            header: PacketHeader::new(kind, id(from), id(to)),
            data: Vec::new(),
        }
    }

    #[test]
    fn hosts_of_one_client_have_channel() {
        let mut world = world();
        world.clients = vec![ImpiClient { first: 0, size: 4 }];
        world.hosts[1].client = 0;
        let mut host = HostRouter::new(0, world);
        let data = packet(PacketType::Data, 1, 2);
        host.packet(ChannelPeer::Proc(1), data.clone()).unwrap();
        assert_eq!(
            host.take_orders(),
            [HostAction::Send(ChannelPeer::Host(1), data)]
        );
        host.finish(0);
        host.finish(1);
        assert!(!host.is_over());
        let none = ProcId::default();
        let header = PacketHeader::new(PacketType::Fini, none, none);
        let data = Vec::new();
        host.packet(ChannelPeer::Host(1), Packet { header, data })
            .unwrap();
        assert!(host.is_over());
    }

    #[test]
    fn packets_reach_their_processes_and_are_acknowledged_once() {
        let mut host = HostRouter::new(1, world());
        for _ in 0..2 {
            host.packet(ChannelPeer::Host(0), packet(PacketType::Data, 0, 2))
                .unwrap();
        }
        let to = |orders: &[HostAction]| {
            orders
                .iter()
                .map(|order| match order {
                    HostAction::Send(end, packet) => (*end, packet.header.kind),
                    HostAction::Close(host) => panic!("{host} closed"),
                    HostAction::Print(rank, _) => panic!("{rank} prints"),
                })
                .collect::<Vec<_>>()
        };
        let orders = host.take_orders();
        assert_eq!(to(&orders), [(ChannelPeer::Proc(2), PacketType::Data); 2]);
        host.on_packet_taken(&packet(PacketType::Data, 0, 2).header);
        assert_eq!(host.take_orders(), []);
        host.on_packet_taken(&packet(PacketType::Data, 0, 2).header);
        assert_eq!(
            to(&host.take_orders()),
            [(ChannelPeer::Host(0), PacketType::ProtoAck)]
        );
        host.packet(ChannelPeer::Proc(2), packet(PacketType::Data, 2, 3))
            .unwrap();
        host.packet(ChannelPeer::Proc(3), packet(PacketType::Data, 3, 1))
            .unwrap();
        assert_eq!(
            to(&host.take_orders()),
            [
                (ChannelPeer::Proc(3), PacketType::Data),
                (ChannelPeer::Host(0), PacketType::Data)
            ]
        );
    }

    #[test]
    fn strangers_and_impostors_are_refused() {
        let mut host = HostRouter::new(1, world());
        for (end, from, to) in [
            (ChannelPeer::Host(0), 2, 3),
            (ChannelPeer::Host(0), 0, 1),
            (ChannelPeer::Proc(2), 3, 0),
            (ChannelPeer::Host(0), 9, 2),
        ] {
            let refused = host.packet(end, packet(PacketType::Data, from, to));
            assert_eq!(refused, Err(HostError::Misdirected));
        }
        assert_eq!(host.ended(ChannelPeer::Host(0)), Err(HostError::Ended));
        host.packet(ChannelPeer::Host(0), packet(PacketType::Fini, 0, 0))
            .unwrap();
        assert_eq!(host.ended(ChannelPeer::Host(0)), Ok(()));
        let late = host.packet(ChannelPeer::Host(0), packet(PacketType::Data, 0, 2));
        assert_eq!(late, Err(HostError::AfterFini(PacketType::Data)));
    }

    #[test]
    fn host_sends_fini_after_its_processes_and_still_acknowledges() {
        let mut host = HostRouter::new(1, world());
        host.finish(2);
        assert_eq!(host.take_orders(), []);
        // A cancelled message to a process that has finished is destroyed.
        host.packet(ChannelPeer::Host(0), packet(PacketType::Data, 0, 2))
            .unwrap();
        host.packet(ChannelPeer::Host(0), packet(PacketType::Cancel, 0, 2))
            .unwrap();
        let kinds = |orders: Vec<HostAction>| {
            orders
                .into_iter()
                .map(|order| match order {
                    HostAction::Send(_, packet) => Some(packet.header.kind),
                    HostAction::Close(_) | HostAction::Print(..) => None,
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            kinds(host.take_orders()),
            [Some(PacketType::ProtoAck), Some(PacketType::CancelYes)]
        );
        host.finish(3);
        assert_eq!(kinds(host.take_orders()), [Some(PacketType::Fini)]);
        assert!(!host.is_over());
        host.packet(ChannelPeer::Host(0), packet(PacketType::Fini, 0, 0))
            .unwrap();
        assert_eq!(host.take_orders(), [HostAction::Close(0)]);
        assert!(host.is_over());
    }
}
