//! Messages and windows of the processes that use one channel.

use std::collections::{BTreeMap, BTreeSet};

use super::super::analysis_log::{AnalysisLog, Party};
use super::super::conformance_rules::Rule;
use crate::packet::{PacketHeader, PacketType, ProcId};
use crate::world::{ImpiJob, Limits};

/// A message that gets a synchronization ACK.
#[derive(Debug)]
struct Synchronous {
    total: u64,
    arrived: u64,
    /// The receiver's request, once it is acknowledged.
    acknowledged: Option<u64>,
}

/// Packets that count from one process to another, and its acknowledgments.
#[derive(Debug, Default)]
struct Pair {
    packets: u64,
    acks: u64,
}

/// Source, destination and `pk_srqid`.
type Key = (ProcId, ProcId, u64);

#[derive(Debug, Default)]
pub(super) struct Messages {
    pairs: BTreeMap<(ProcId, ProcId), Pair>,
    open: BTreeMap<Key, Synchronous>,
    /// All that could be taken back.
    sent: BTreeSet<Key>,
    cancels: BTreeMap<Key, u64>,
}

impl Messages {
    /// Checks a packet of `party`, except FINI.
    pub(super) fn packet(
        &mut self,
        header: &PacketHeader,
        limits: Limits,
        party: Party,
        log: &mut AnalysisLog,
    ) {
        let (source, destination) = (header.source, header.destination);
        if header.kind == PacketType::ProtoAck {
            // Sent by the destination of the acknowledged message.
            let pair = self.pairs.entry((destination, source)).or_default();
            pair.acks += 1;
            let due = pair.packets / u64::from(limits.ack_mark.max(1));
            let acks = pair.acks;
            return log.check(Rule::AckMark, party, acks <= due, || {
                format!("{acks} ACKs where {due} were due")
            });
        }
        let pair = self.pairs.entry((source, destination)).or_default();
        pair.packets += 1;
        let open = pair
            .packets
            .saturating_sub(pair.acks * u64::from(limits.ack_mark));
        let high = u64::from(limits.high_water);
        log.check(Rule::Window, party, open <= high, || {
            format!("{open} packets without ACK, of at most {high}")
        });
        let own = (source, destination, header.source_request);
        let theirs = (destination, source, header.source_request);
        match header.kind {
            PacketType::Data | PacketType::DataSync => self.data(header, limits, party, log),
            PacketType::SyncAck => {
                self.acknowledged(theirs, header.destination_request, party, log)
            }
            PacketType::Cancel => {
                log.check(Rule::CancelWindow, party, self.sent.contains(&own), || {
                    format!("request {:#x}, of which no message was sent", own.2)
                });
                *self.cancels.entry(own).or_default() += 1;
            }
            PacketType::CancelYes | PacketType::CancelNo => {
                let pending = self.cancels.get_mut(&theirs).filter(|count| **count > 0);
                let holds = pending.is_some_and(|count| {
                    *count -= 1;
                    true
                });
                log.check(Rule::CancelReply, party, holds, || {
                    format!("{:?} to no CANCEL of request {:#x}", header.kind, theirs.2)
                });
                if header.kind == PacketType::CancelYes {
                    self.open.remove(&theirs);
                }
            }
            PacketType::ProtoAck | PacketType::Fini => {}
        }
    }

    fn data(&mut self, header: &PacketHeader, limits: Limits, party: Party, log: &mut AnalysisLog) {
        let key = (header.source, header.destination, header.source_request);
        let (length, total) = (u64::from(header.length), header.message_length);
        let part = length != total;
        if !part || header.kind == PacketType::DataSync {
            self.sent.insert(key);
        }
        if total <= u64::from(limits.data_length) {
            log.check(Rule::ShortMessage, party, !part, || {
                format!("pk_len {length} and pk_msglen {total}")
            });
        }
        if header.kind == PacketType::DataSync {
            if part {
                log.check(Rule::LongFirst, party, true, String::new);
            }
            let message = Synchronous {
                total,
                arrived: length,
                acknowledged: None,
            };
            let other = self.open.insert(key, message);
            return log.check(Rule::SyncAck, party, other.is_none(), || {
                format!("request {:#x} is in use by another message", key.2)
            });
        }
        if !part {
            let fits = total <= u64::from(limits.data_length);
            return log.check(Rule::LongFirst, party, fits, || {
                format!("DATA with a message of {total} bytes")
            });
        }
        let Some(message) = self.open.get_mut(&key) else {
            return log.check(Rule::LongFirst, party, false, || {
                format!(
                    "a part of {total} bytes without a first one, request {:#x}",
                    key.2
                )
            });
        };
        let is_acknowledged = message.acknowledged.is_some();
        log.check(Rule::LongWaits, party, is_acknowledged, || {
            format!("a further part before the ACK, request {:#x}", key.2)
        });
        let request = header.destination_request;
        let acknowledged = message.acknowledged.unwrap_or(request);
        log.check(Rule::LongRequest, party, request == acknowledged, || {
            format!("pk_drqid {request:#x} instead of {acknowledged:#x}")
        });
        message.arrived += length;
        let (arrived, all) = (message.arrived, message.total);
        log.check(Rule::LongSum, party, arrived <= all && total == all, || {
            format!("{arrived} bytes of a message of {all}")
        });
        if arrived >= all {
            self.open.remove(&key);
        }
    }

    fn acknowledged(&mut self, key: Key, request: u64, party: Party, log: &mut AnalysisLog) {
        let message = self.open.get_mut(&key);
        let holds = message
            .as_ref()
            .is_some_and(|message| message.acknowledged.is_none());
        log.check(Rule::SyncAck, party, holds, || {
            format!("an ACK of request {:#x}, which awaits none", key.2)
        });
        if let Some(message) = message {
            message.acknowledged = Some(request);
            if message.arrived >= message.total {
                self.open.remove(&key);
            }
        }
    }

    /// Checks for incomplete messages after both hosts have sent FINI.
    pub(super) fn finish(&self, world: &ImpiJob, log: &mut AnalysisLog) {
        let party_of = |id: ProcId| {
            let client = world.client_of(world.rank_of(id)?);
            u32::try_from(client).ok().map(Party::Client)
        };
        for ((_, destination), pair) in &self.pairs {
            let due = pair.packets / u64::from(world.limits.ack_mark.max(1));
            if let Some(party) = party_of(*destination) {
                log.check(Rule::AcksToTheEnd, party, pair.acks >= due, || {
                    format!("{} ACKs for {} packets", pair.acks, pair.packets)
                });
            }
        }
        for ((source, destination, request), message) in &self.open {
            let (rule, id) = match message.acknowledged {
                Some(_) => (Rule::LongSum, source),
                None => (Rule::SyncAck, destination),
            };
            if let Some(party) = party_of(*id) {
                log.check(rule, party, false, || {
                    format!("the message of request {request:#x} is not complete")
                });
            }
        }
        for ((_, destination, request), count) in &self.cancels {
            if let Some(party) = party_of(*destination) {
                log.check(Rule::CancelReply, party, *count == 0, || {
                    format!("no reply to CANCEL of request {request:#x}")
                });
            }
        }
    }
}
