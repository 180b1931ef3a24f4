//! Attributes of a request for an allocation. No I/O.
//!
//! Rule: the keys are those of PMIx; a list of nodes has the form of `--hosts`, which is also
//! that of Slurm. Unknown keys are passed to the allocator; without an allocator, a required one is refused.

use super::refuse;
use wireup_core::job::allocation::{AllocationFailure, AllocationFailureKind as Kind};
use wireup_core::job::hosts::{HostEntry, HostList};
use wireup_core::job::spawn::SpawnInfo;
use wireup_core::pmix::keys;

/// Attributes of a request for an allocation.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct AllocationAttributes {
    /// Name of the allocation that the request changes.
    pub(crate) id: Option<String>,
    /// Name of the request (`PMIX_ALLOC_REQ_ID`).
    pub(crate) req_id: Option<String>,
    pub(crate) nodes: Option<u32>,
    /// Number of slots on all nodes together.
    pub(crate) slots: Option<u32>,
    /// Number of slots on each node.
    pub(crate) slots_of: Vec<u32>,
    pub(crate) hosts: Vec<HostEntry>,
    pub(crate) seconds: Option<u64>,
    /// Whether the time limit is required.
    pub(crate) seconds_required: bool,
    /// Infos with keys that wireup does not know.
    pub(crate) unknown_infos: Vec<SpawnInfo>,
}

/// Keys about the request itself, not about the resources.
const ABOUT_THE_REQUEST: [&str; 3] = [keys::TIMEOUT, keys::USERID, keys::GRPID];

impl AllocationAttributes {
    /// Reads the infos of a request.
    ///
    /// # Errors
    /// [`AllocationFailure`] for an invalid value, and for infos that contradict each other.
    pub(crate) fn from_infos(infos: &[SpawnInfo]) -> Result<Self, AllocationFailure> {
        let mut attributes = Self::default();
        for info in infos {
            attributes.add(info)?;
        }
        let (nodes, each) = (attributes.nodes, attributes.slots_of.len());
        if each > 0 && nodes.is_some_and(|nodes| nodes as usize != each) {
            let problem = format!(
                "{}: {each} numbers for {} nodes",
                keys::ALLOC_NUM_CPU_LIST,
                nodes.unwrap_or_default()
            );
            return Err(refuse(Kind::BadRequest, problem));
        }
        Ok(attributes)
    }

    fn add(&mut self, info: &SpawnInfo) -> Result<(), AllocationFailure> {
        let SpawnInfo { key, value, .. } = info;
        let wrong = |what: &str| refuse(Kind::BadRequest, format!("{key}: {value:?} {what}"));
        let number = |value: &str| match value.trim().parse() {
            Ok(number @ 1..) => Ok(number),
            _ => Err(wrong("is not a number from 1 on")),
        };
        match key.as_str() {
            keys::ALLOC_ID => self.id = Some(value.clone()),
            keys::ALLOC_REQ_ID => self.req_id = Some(value.clone()),
            keys::ALLOC_NUM_NODES => self.nodes = Some(number(value)?),
            keys::ALLOC_NUM_CPUS => self.slots = Some(number(value)?),
            keys::ALLOC_NUM_CPU_LIST => {
                self.slots_of = value.split(',').map(number).collect::<Result<_, _>>()?;
            }
            keys::ALLOC_NODE_LIST => {
                let list = value.parse::<HostList>();
                let HostList(entries) = list.map_err(|problem| wrong(&problem.to_string()))?;
                self.hosts = entries;
            }
            keys::ALLOC_TIME => {
                let seconds = seconds(value);
                let invalid = || wrong("is not a time such as 1:30:00");
                self.seconds = Some(seconds.ok_or_else(invalid)?);
                self.seconds_required = info.required;
            }
            key if ABOUT_THE_REQUEST.contains(&key) => {}
            _ => self.unknown_infos.push(info.clone()),
        }
        Ok(())
    }

    /// Whether the request has a list of hosts, and neither a name nor an amount.
    pub(crate) fn is_list_alone(&self) -> bool {
        let has_amount = self.nodes.is_some() || self.slots.is_some() || !self.slots_of.is_empty();
        !self.hosts.is_empty() && self.id.is_none() && !has_amount
    }

    /// Refuses required infos that only an allocator supports.
    ///
    /// # Errors
    /// [`AllocationFailure`] with the key.
    pub(crate) fn is_known(&self) -> Result<(), AllocationFailure> {
        match self.unknown_infos.iter().find(|info| info.required) {
            None => Ok(()),
            Some(info) => {
                let problem = format!(
                    "{} is required, but only an allocator supports it (--allocator)",
                    info.key
                );
                Err(refuse(Kind::NotSupported, problem))
            }
        }
    }
}

/// Reads seconds, or `months:days:hours:minutes:seconds` without any number of the first parts. A month has 30 days.
fn seconds(text: &str) -> Option<u64> {
    const UNITS: [u64; 5] = [1, 60, 3_600, 86_400, 30 * 86_400];
    let mut units = UNITS.iter();
    text.trim().rsplit(':').try_fold(0_u64, |sum, number| {
        let unit = units.next()?;
        sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*unit)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(infos: &[(&str, &str)]) -> Result<AllocationAttributes, String> {
        let info = |(key, value): &(&str, &str)| SpawnInfo {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            required: true,
        };
        let infos: Vec<_> = infos.iter().map(info).collect();
        AllocationAttributes::from_infos(&infos).map_err(|failure| failure.text)
    }

    #[test]
    fn numbers_names_and_times_are_read() {
        let read = parse(&[
            (keys::ALLOC_NUM_NODES, "2"),
            (keys::ALLOC_NUM_CPU_LIST, "4, 1"),
            (keys::ALLOC_NODE_LIST, "n[1-3]"),
            (keys::ALLOC_TIME, "1:00:05"),
            (keys::ALLOC_REQ_ID, "mine"),
            (keys::TIMEOUT, "5"),
        ])
        .unwrap();
        assert_eq!((read.nodes, read.slots_of), (Some(2), vec![4, 1]));
        assert_eq!((read.hosts.len(), read.seconds), (3, Some(3_605)));
        assert_eq!(read.req_id.as_deref(), Some("mine"));
        assert_eq!(read.unknown_infos, []);
        assert_eq!(seconds("2:0:0:0:0"), Some(60 * 86_400));
        assert_eq!(seconds("1:2:0:0:0:0"), None);
        assert_eq!(seconds("18446744073709551615:0"), None);
    }

    #[test]
    fn contradictory_request_is_named() {
        let problem = |key, value| parse(&[(key, value)]).unwrap_err();
        assert_eq!(
            problem(keys::ALLOC_NUM_NODES, "0"),
            "pmix.alloc.nnodes: \"0\" is not a number from 1 on"
        );
        assert_eq!(
            problem(keys::ALLOC_TIME, "soon"),
            "pmix.alloc.time: \"soon\" is not a time such as 1:30:00"
        );
        let both = [
            (keys::ALLOC_NUM_NODES, "3"),
            (keys::ALLOC_NUM_CPU_LIST, "1,2"),
        ];
        assert_eq!(
            parse(&both).unwrap_err(),
            "pmix.alloc.ncpulist: 2 numbers for 3 nodes"
        );
        let other = parse(&[("pmix.alloc.queue", "debug")]).unwrap();
        let refused = other.is_known().unwrap_err();
        assert_eq!(refused.kind, Kind::NotSupported);
        assert!(refused.text.starts_with("pmix.alloc.queue is required"));
    }
}
