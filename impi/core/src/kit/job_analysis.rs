//! Analysis of all connections of one job.

use std::collections::{BTreeMap, BTreeSet};

use super::analysis_log::{AnalysisLog, Party};
use super::conformance_rules::Rule;
use crate::command::words;
use crate::world::{ImpiJob, Label, LabelValues};

/// State of one client's conversation with the server.
#[derive(Debug, Default)]
pub(super) struct ClientConversation {
    pub(super) last_label: Option<i32>,
    pub(super) done: bool,
}

/// One job, as far as it has been seen.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) clients: BTreeMap<u32, ClientConversation>,
    /// Number of clients, from the server.
    pub(super) size: Option<i32>,
    sent: BTreeMap<i32, BTreeMap<u32, Vec<u8>>>,
    /// Replies of the server.
    pub(super) collected: LabelValues,
    pub(super) world: Option<ImpiJob>,
    /// Hosts that have received FINI, with the host it is from.
    pub(super) finis: BTreeSet<(usize, usize)>,
    /// Channels between hosts, the lower rank first.
    pub(super) channels: BTreeSet<(usize, usize)>,
}

impl Job {
    /// Handles a label that a client has sent.
    pub(super) fn sent(&mut self, client: u32, label: i32, data: &[u8], log: &mut AnalysisLog) {
        self.check_value(client, label, data, log);
        let party = Party::Client(client);
        log.check(Rule::NoLabel, party, label != 0, || {
            "IMPI_NO_LABEL was sent".into()
        });
        let known = self.clients.entry(client).or_default();
        let last = known.last_label.replace(label);
        let ascends = last.is_none_or(|last| last < label);
        log.check(Rule::LabelsAscend, party, ascends, || {
            format!("label {label:#x} after {:#x}", last.unwrap_or_default())
        });
        self.sent
            .entry(label)
            .or_default()
            .insert(client, data.to_vec());
    }

    /// Handles the server's answer to a label.
    pub(super) fn answered(&mut self, label: i32, mask: u32, data: &[u8], log: &mut AnalysisLog) {
        let none = BTreeMap::new();
        let values = self.sent.get(&label).unwrap_or(&none);
        let senders = values.keys().fold(0, |mask, client| {
            mask | 1_u32.checked_shl(*client).unwrap_or(0)
        });
        log.check(Rule::CollMask, Party::Server, mask == senders, || {
            format!("label {label:#x}: mask {mask:#x} instead of {senders:#x}")
        });
        let joined: Vec<u8> = values.values().flatten().copied().collect();
        log.check(Rule::CollByRank, Party::Server, joined == data, || {
            format!(
                "label {label:#x}: not the concatenation of {} values",
                values.len()
            )
        });
        let behind = |client: &ClientConversation| {
            !client.done && client.last_label.is_none_or(|last| last < label)
        };
        let waits = self
            .clients
            .iter()
            .find(|(_, client)| behind(client))
            .map(|(rank, _)| *rank);
        log.check(Rule::CollComplete, Party::Server, waits.is_none(), || {
            format!(
                "label {label:#x} was answered before client {} had sent it or a greater one",
                waits.unwrap_or_default()
            )
        });
        self.collected.insert(label, (mask, data.to_vec()));
        let clients = self.size.and_then(|size| usize::try_from(size).ok());
        if let Some(clients) = clients.filter(|_| self.world.is_none()) {
            self.world = ImpiJob::new(clients, &self.collected).ok();
        }
    }

    /// Returns a label of version 0.0 that a client has not sent.
    pub(super) fn missing_label(&self, client: u32) -> Option<&'static str> {
        let sent = |label: &Label| {
            let values = self.sent.get(&(*label as i32));
            values.is_some_and(|values| values.contains_key(&client))
        };
        let missing = Label::ALL.into_iter().find(|label| !sent(label));
        missing.map(Label::name)
    }

    /// Returns a channel of a client whose other end has not sent FINI: the client's host, and the other one.
    pub(super) fn open_channel(&self, client: u32) -> Option<(usize, usize)> {
        let own = |host| self.party(Some(host), 0) == Party::Client(client);
        let mut ends = self
            .channels
            .iter()
            .flat_map(|(low, high)| [(*low, *high), (*high, *low)]);
        ends.find(|end| own(end.0) && !self.finis.contains(end))
    }

    /// Returns the client of a host.
    pub(super) fn party(&self, host: Option<usize>, connection: u32) -> Party {
        let client = self
            .world
            .as_ref()
            .zip(host)
            .and_then(|(world, host)| world.hosts.get(host))
            .and_then(|host| u32::try_from(host.client).ok());
        client.map_or(Party::Stranger(connection), Party::Client)
    }

    fn words(&self, client: u32, label: Label) -> Vec<u32> {
        let data = self
            .sent
            .get(&(label as i32))
            .and_then(|values| values.get(&client));
        data.map(|data| words(data)).unwrap_or_default()
    }

    fn check_value(&self, client: u32, number: i32, data: &[u8], log: &mut AnalysisLog) {
        let Some(label) = Label::from_number(number) else {
            return;
        };
        let party = Party::Client(client);
        let values = words(data);
        let one = |least: u32| data.len() == 4 && values[0] >= least;
        let what = || {
            format!(
                "{}: {}",
                label.name(),
                super::value_text::value(label, data)
            )
        };
        let first = |label| self.words(client, label).first().copied().unwrap_or(0) as usize;
        let (hosts, procs) = (first(Label::Hosts), first(Label::Procs));
        match label {
            Label::Version => {
                let pairs: Vec<&[u32]> = values.chunks(2).collect();
                let ascends = pairs.windows(2).all(|pair| pair[0] < pair[1]);
                let holds =
                    data.len().is_multiple_of(8) && pairs.first() == Some(&&[0, 0][..]) && ascends;
                log.check(Rule::Versions, party, holds, what);
            }
            Label::Hosts => log.check(Rule::HostCount, party, one(1), what),
            Label::Procs => log.check(Rule::ProcCount, party, one(1), what),
            Label::DataLength => log.check(Rule::DataLength, party, one(1), what),
            Label::TagUpperBound => {
                let holds = one(32_767) && values[0] <= 0x7fff_ffff;
                log.check(Rule::Limits, party, holds, what);
            }
            Label::CrossoverSize | Label::MaxLinear => {
                let mut agree = data.len() == 4 && values[0].cast_signed() >= -1;
                let default = match label {
                    Label::CrossoverSize => crate::world::CROSSOVER_SIZE,
                    _ => crate::world::MAX_LINEAR,
                };
                let meant = |values: &[u32]| {
                    values.first().map(|value| match value.cast_signed() {
                        -1 => default,
                        value => value,
                    })
                };
                let others = self.sent.get(&number).into_iter().flatten();
                agree &= others
                    .into_iter()
                    .all(|(_, other)| meant(&words(other)) == meant(&values));
                log.check(Rule::Crossover, party, agree, what);
            }
            Label::HostAddress => {
                log.check(Rule::HostCount, party, data.len() == hosts * 16, what);
            }
            Label::HostPort => log.check(Rule::HostCount, party, data.len() == hosts * 4, what),
            Label::HostProcs => {
                log.check(Rule::HostCount, party, data.len() == hosts * 4, what);
                let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
                log.check(Rule::ProcCount, party, sum == procs as u64, what);
            }
            Label::AckMark => {
                log.check(Rule::HostCount, party, data.len() == hosts * 4, what);
                let holds = values.iter().all(|value| *value >= 1);
                log.check(Rule::Limits, party, holds, what);
            }
            Label::HighWater => {
                log.check(Rule::HostCount, party, data.len() == hosts * 4, what);
                let marks = self.words(client, Label::AckMark);
                let holds = values.iter().zip(marks).all(|(high, mark)| *high >= mark);
                log.check(Rule::Limits, party, holds, what);
            }
            Label::ProcAddress => {
                log.check(Rule::ProcCount, party, data.len() == procs * 16, what);
            }
            Label::ProcPid => {
                log.check(Rule::ProcCount, party, data.len() == procs * 8, what);
                self.check_pids(client, data, log);
            }
        }
    }

    fn check_pids(&self, client: u32, data: &[u8], log: &mut AnalysisLog) {
        let addresses = self.sent.get(&(Label::ProcAddress as i32));
        let pids = self.sent.get(&(Label::ProcPid as i32));
        let ids = |client: u32, pids: &[u8]| {
            let hosts = addresses
                .and_then(|values| values.get(&client))
                .map_or(&[][..], Vec::as_slice);
            hosts
                .chunks(16)
                .map(<[u8]>::to_vec)
                .zip(pids.chunks(8).map(<[u8]>::to_vec))
                .collect::<Vec<_>>()
        };
        let mut known: BTreeSet<_> = pids
            .into_iter()
            .flatten()
            .flat_map(|(other, pids)| ids(*other, pids))
            .collect();
        let unique = ids(client, data).into_iter().all(|id| known.insert(id));
        log.check(Rule::PidUnique, Party::Client(client), unique, || {
            "two processes have the same IMPI_P_IPV6 and IMPI_P_PID".into()
        });
    }
}
