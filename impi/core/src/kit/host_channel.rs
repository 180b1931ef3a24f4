//! A channel between two hosts.

mod messages;

use super::analysis_log::{AnalysisLog, Party};
use super::conformance_rules::Rule;
use super::conversation_record::ConversationSide;
use super::job_analysis::Job;
use super::value_text;
use crate::command::Inbox;
use crate::packet::{HEADER, PacketError, PacketHeader, PacketType};
use crate::world::ImpiJob;
use messages::Messages;

/// Bytes and state of one end.
#[derive(Debug, Default)]
struct ChannelEnd {
    inbox: Inbox,
    host: Option<usize>,
    fini: bool,
    is_ended: bool,
    is_out_of_sync: bool,
}

/// One connection between hosts.
#[derive(Debug)]
pub(super) struct RecordedChannel {
    forth: ChannelEnd,
    back: ChannelEnd,
    messages: Messages,
}

impl RecordedChannel {
    /// Makes the channel to the host of this rank.
    pub(super) fn new(acceptor: usize) -> Self {
        let back = ChannelEnd {
            host: Some(acceptor),
            ..ChannelEnd::default()
        };
        Self {
            forth: ChannelEnd::default(),
            back,
            messages: Messages::default(),
        }
    }

    fn side(&mut self, from: ConversationSide) -> &mut ChannelEnd {
        match from {
            ConversationSide::Forth => &mut self.forth,
            ConversationSide::Back => &mut self.back,
        }
    }

    fn hosts(&self, from: ConversationSide) -> (Option<usize>, Option<usize>) {
        match from {
            ConversationSide::Forth => (self.forth.host, self.back.host),
            ConversationSide::Back => (self.back.host, self.forth.host),
        }
    }

    pub(super) fn bytes(
        &mut self,
        from: ConversationSide,
        bytes: &[u8],
        job: &mut Job,
        log: &mut AnalysisLog,
    ) {
        self.side(from).inbox.extend(bytes);
        if from == ConversationSide::Forth && self.forth.host.is_none() {
            self.greeting(job, log);
        }
        while self.packet(from, job, log) {}
    }

    /// Reads the rank of the host that has connected.
    fn greeting(&mut self, job: &mut Job, log: &mut AnalysisLog) {
        let Some(rank) = self.forth.inbox.take(4) else {
            return;
        };
        let rank = value_text::number(&rank) as usize;
        let acceptor = self.back.host.unwrap_or(0);
        log.add_note("2.3.8", format!("the host that connects is host {rank}"));
        let hosts = job
            .world
            .as_ref()
            .map_or(usize::MAX, |world| world.hosts.len());
        let party = job.party(Some(rank), log.connection);
        log.check(Rule::RankFirst, party, rank < hosts, || {
            format!("rank {rank} of {hosts} hosts")
        });
        log.check(Rule::HigherConnects, party, rank > acceptor, || {
            format!("host {rank} connects to host {acceptor}")
        });
        self.forth.host = Some(rank);
        job.channels.insert((acceptor, rank));
    }

    fn packet(&mut self, from: ConversationSide, job: &mut Job, log: &mut AnalysisLog) -> bool {
        let (own, other) = self.hosts(from);
        let party = job.party(own, log.connection);
        let side = self.side(from);
        if side.is_out_of_sync {
            return false;
        }
        let Some(bytes) = side.inbox.peek::<HEADER>() else {
            return false;
        };
        // A length beyond this is garbage rather than one packet.
        let header = match PacketHeader::decode(&bytes, 1 << 28) {
            Ok(header) => header,
            Err(error) => {
                let rule = match error {
                    PacketError::Type(_) => Rule::PacketType,
                    PacketError::TooLong { .. } => Rule::PacketLength,
                };
                log.check(rule, party, false, || error.to_string());
                side.is_out_of_sync = true;
                return false;
            }
        };
        let Some(packet) = side.inbox.take(HEADER + header.length as usize) else {
            return false;
        };
        log.check(Rule::PacketType, party, true, String::new);
        let (section, text) = value_text::packet(&header, job.world.as_ref());
        log.add_note(section, text);
        self.fields(from, &header, &packet, job, log);
        if header.kind == PacketType::Fini {
            let side = self.side(from);
            let first = !std::mem::replace(&mut side.fini, true);
            log.check(Rule::FiniPackets, party, first, || "a second FINI".into());
            job.finis
                .extend(own.zip(other).map(|(own, other)| (other, own)));
            return true;
        }
        let after = self.side(from).fini
            && matches!(
                header.kind,
                PacketType::Data | PacketType::DataSync | PacketType::Cancel
            );
        log.check(Rule::AfterFini, party, !after, || {
            format!("{:?} after FINI", header.kind)
        });
        if let Some(world) = &job.world {
            self.messages.packet(&header, world.limits, party, log);
        }
        true
    }

    /// Checks each of the fields by itself.
    fn fields(
        &self,
        from: ConversationSide,
        header: &PacketHeader,
        packet: &[u8],
        job: &Job,
        log: &mut AnalysisLog,
    ) {
        let (own, other) = self.hosts(from);
        let party = job.party(own, log.connection);
        let used = match header.kind {
            PacketType::Data | PacketType::DataSync => 120,
            PacketType::SyncAck => 72,
            PacketType::Cancel | PacketType::CancelYes | PacketType::CancelNo => 64,
            PacketType::ProtoAck => 56,
            PacketType::Fini => 4,
        };
        let mut unused = packet[..HEADER].to_vec();
        unused[..used].fill(0);
        // Only packets with data use pk_len.
        if !header.kind.has_body() {
            unused[4..8].copy_from_slice(&packet[4..8]);
        }
        let at = unused.iter().position(|byte| *byte != 0);
        log.check(Rule::UnusedFields, party, at.is_none(), || {
            format!(
                "{:?} has a byte that is not 0 at {}",
                header.kind,
                at.unwrap_or(0)
            )
        });
        let Some(world) = job
            .world
            .as_ref()
            .filter(|_| header.kind != PacketType::Fini)
        else {
            return;
        };
        let source = world.rank_of(header.source);
        let destination = world.rank_of(header.destination);
        let host = |rank: Option<usize>| rank.map(|rank| world.host_of(rank));
        let holds = host(source) == own && host(destination) == other;
        log.check(Rule::PacketProcs, party, holds, || {
            format!(
                "{:?}, on the channel from host {own:?} to {other:?}",
                value_text::packet(header, None).1
            )
        });
        if header.kind.has_body() {
            data_fields(header, world, party, log);
            let client = |rank: Option<usize>| rank.map(|rank| world.client_of(rank));
            // How the processes of one client take part in a collective is its own affair.
            if log.program && client(source) != client(destination) {
                program_fields(header, &packet[HEADER..], party, log);
            }
        }
    }

    pub(super) fn end(&mut self, from: ConversationSide, job: &Job, log: &mut AnalysisLog) {
        let (own, other) = self.hosts(from);
        log.add_note(
            "2.4",
            format!("host {} closes the channel", own.unwrap_or(usize::MAX)),
        );
        let received = match from {
            ConversationSide::Forth => self.back.fini,
            ConversationSide::Back => self.forth.fini,
        };
        let side = self.side(from);
        side.is_ended = true;
        let sent = side.fini;
        if own.zip(other).is_some() {
            let party = job.party(own, log.connection);
            log.check(Rule::FiniPackets, party, sent && received, || {
                format!("the channel was closed; FINI sent: {sent}, received: {received}")
            });
        }
    }

    /// Checks for incomplete operations at the end of the record.
    pub(super) fn finish(&mut self, job: &Job, log: &mut AnalysisLog) {
        let Some(world) = job
            .world
            .as_ref()
            .filter(|_| self.forth.fini && self.back.fini)
        else {
            return;
        };
        self.messages.finish(world, log);
    }
}

/// Range of the tags that LAM/MPI 7.1.4 uses in a context of the world's collectives.
const COLLECTIVE_TAGS: std::ops::RangeInclusive<i32> = 110..=230;

/// The first message of the check program: an integer whose bytes show their order.
pub(super) const INTEGER_TAG: i32 = 11;
pub(super) const INTEGER: u32 = 0x1122_3344;

fn data_fields(header: &PacketHeader, world: &ImpiJob, party: Party, log: &mut AnalysisLog) {
    let limit = world.limits.data_length;
    let length = header.length;
    log.check(Rule::PacketLength, party, length <= limit, || {
        format!("{length} bytes; at most {limit} were agreed on")
    });
    let tags = 0..=world.limits.tag_upper_bound;
    log.check(Rule::TagRange, party, tags.contains(&header.tag), || {
        format!("tag {}", header.tag)
    });
    if header.context <= 1 {
        let rank = world.rank_of(header.source);
        let same = rank.and_then(|rank| i32::try_from(rank).ok()) == Some(header.rank);
        log.check(Rule::LocalRank, party, same, || {
            format!("pk_lsrank {} of process {rank:?}", header.rank)
        });
    }
}

/// Checks the fields of a packet of the check program.
fn program_fields(header: &PacketHeader, data: &[u8], party: Party, log: &mut AnalysisLog) {
    log.check(Rule::WorldContext, party, header.context <= 1, || {
        format!("context {}", header.context)
    });
    if COLLECTIVE_TAGS.contains(&header.tag) {
        log.check(Rule::CollectiveContext, party, header.context == 1, || {
            format!("tag {} on context {}", header.tag, header.context)
        });
    }
    if header.tag == INTEGER_TAG && header.context == 0 {
        let holds = data == INTEGER.to_be_bytes();
        log.check(Rule::External32, party, holds, || {
            format!("the integer {INTEGER:#x} was sent as {data:02x?}")
        });
    }
}
