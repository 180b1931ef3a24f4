//! Hosts that their agents register, with labels by which launches choose them; no I/O.
//!
//! ```text
//! --register etcd:LABELS[:SLOTS]    --hosts etcd:LABELS[:SLOTS]
//! LABELS    empty, or KEY[=VALUE][,KEY[=VALUE]]...
//! ```
//! A registration is a key with the host's name, which exists as long as a lease of its agent does.
//!
//! Rule: a write that timed out is undecided: it may have been applied, be applied later, or never. So a registration
//! is written only if the key is as it was read, under a lease whose number the agent has chosen itself. Whichever of
//! its attempts are applied, and however late, the key is the same, or ends with the lease.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{HostsProblem, slot_count};

/// Characters of a label, besides letters and digits.
const MARKS: [char; 4] = ['-', '.', '_', '/'];

/// Labels of a host, or those by which hosts are picked.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HostLabels(BTreeMap<String, String>);

/// Text behind `etcd:`. For an agent: the registration of its host; for a launch: the choice of its hosts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EtcdHostSpec {
    pub labels: HostLabels,
    /// In place of those that the agent counts, or registered.
    pub slots: Option<u32>,
}

impl EtcdHostSpec {
    /// Parses `etcd:LABELS[:SLOTS]`; `None` if the text does not begin with `etcd:`, or is a host of that name with
    /// slots: `etcd:4`.
    ///
    /// # Errors
    /// [`HostsProblem`]
    pub fn parse(text: &str) -> Result<Option<Self>, HostsProblem> {
        let Some(rest) = text.strip_prefix("etcd:") else {
            return Ok(None);
        };
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(None);
        }
        let (labels, slots) = match rest.rsplit_once(':') {
            Some((labels, slots)) => (labels, Some(slot_count(text, slots)?)),
            None => (rest, None),
        };
        let labels = labels
            .parse()
            .map_err(|InvalidLabel(label)| HostsProblem::Label {
                word: text.into(),
                label,
            })?;
        Ok(Some(Self { labels, slots }))
    }
}

impl FromStr for EtcdHostSpec {
    type Err = HostsProblem;

    fn from_str(text: &str) -> Result<Self, HostsProblem> {
        Self::parse(text)?.ok_or_else(|| HostsProblem::Registry(text.into()))
    }
}

impl fmt::Display for EtcdHostSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd:{}", self.labels)?;
        match self.slots {
            Some(slots) => write!(f, ":{slots}"),
            None => Ok(()),
        }
    }
}

/// A text that is no label.
#[derive(Debug)]
pub struct InvalidLabel(String);

impl FromStr for HostLabels {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let plain = |text: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || MARKS.contains(&c))
        };
        let mut labels = BTreeMap::new();
        for label in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            let known =
                key.starts_with(|c: char| c.is_ascii_alphabetic()) && plain(key) && plain(value);
            if !known || labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(InvalidLabel(label.to_owned()));
            }
        }
        Ok(Self(labels))
    }
}

impl HostLabels {
    /// Whether a host with these labels has all `required` labels. A required key without a value matches any value.
    pub fn have(&self, required: &Self) -> bool {
        let has = |(key, value): (&String, &String)| match self.0.get(key) {
            Some(own) => value.is_empty() || own == value,
            None => false,
        };
        required.0.iter().all(has)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for HostLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}")?;
            if !value.is_empty() {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

/// Registration of an agent's host, as JSON. Fields that a later version adds are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostRegistration {
    /// The host's name, which is in its agent's certificate.
    pub name: String,
    /// Address at which the agent listens: `HOST:PORT`; `[ADDRESS]:PORT` for IPv6.
    pub address: String,
    pub slots: u32,
    pub labels: HostLabels,
}

/// Key of the registry at the time of a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegisteredKey {
    /// Revision of the key's last change.
    pub revision: i64,
    pub lease: i64,
    pub value: Vec<u8>,
}

/// Action of an agent for the key of its own registration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegistrationAction {
    /// The key is as it should be.
    Held,
    /// Writes it, if its revision is still this one; 0: if there is no such key.
    Write { revision: i64 },
    /// Waits: an agent at this address has registered the host.
    Taken { address: String },
}

/// Returns the action of an agent that registers with this lease. The agent that has registered a host keeps it as long
/// as it lives, so that two agents with one name do not alternate. An agent at the same address was a predecessor of
/// this one.
pub fn claim(
    registration: &HostRegistration,
    lease: i64,
    found: Option<&RegisteredKey>,
) -> RegistrationAction {
    let Some(found) = found else {
        return RegistrationAction::Write { revision: 0 };
    };
    match serde_json::from_slice::<HostRegistration>(&found.value) {
        Ok(other) if found.lease == lease && other == *registration => RegistrationAction::Held,
        Ok(other) if found.lease != lease && other.address != registration.address => {
            RegistrationAction::Taken {
                address: other.address,
            }
        }
        _ => RegistrationAction::Write {
            revision: found.revision,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> HostLabels {
        text.parse().unwrap()
    }

    #[test]
    fn label_display_inverts_parse() {
        for text in [
            "etcd:",
            "etcd::4",
            "etcd:gpu",
            "etcd:gpu,rack=1:8",
            "etcd:example.org/zone=a-1",
        ] {
            let parsed: EtcdHostSpec = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "etcd:4",
            "etcd:4,n2",
            "etcd",
            "n1,etcd:4",
            "etcd.example.org:4",
        ] {
            assert_eq!(EtcdHostSpec::parse(text), Ok(None), "{text}");
        }
        for text in [
            "etcd:gpu:",
            "etcd:gpu:x",
            "etcd:gpu,",
            "etcd:=1",
            "etcd:rack=1,rack=2",
            "etcd:a b",
            "etcd:-a",
        ] {
            assert!(EtcdHostSpec::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_need_all_requested_labels() {
        let host = labels("gpu,rack=1");
        for required in ["", "gpu", "rack", "rack=1", "rack=1,gpu"] {
            assert!(host.have(&labels(required)), "{required}");
        }
        for required in ["rack=2", "gpu=a100", "gpu,ssd"] {
            assert!(!host.have(&labels(required)), "{required}");
        }
    }

    #[test]
    fn registration_belongs_to_agent_that_made_it() {
        let own = HostRegistration {
            name: "n1".into(),
            address: "10.0.0.1:7437".into(),
            slots: 4,
            labels: labels("gpu"),
        };
        let found = |value: &HostRegistration, lease| RegisteredKey {
            revision: 7,
            lease,
            value: serde_json::to_vec(value).unwrap(),
        };
        assert_eq!(
            claim(&own, 1, None),
            RegistrationAction::Write { revision: 0 }
        );
        assert_eq!(
            claim(&own, 1, Some(&found(&own, 1))),
            RegistrationAction::Held
        );
        // It was registered before, with another lease or other slots.
        let write = RegistrationAction::Write { revision: 7 };
        assert_eq!(claim(&own, 1, Some(&found(&own, 2))), write);
        let before = HostRegistration {
            slots: 2,
            ..own.clone()
        };
        assert_eq!(claim(&own, 1, Some(&found(&before, 2))), write);
        assert_eq!(claim(&own, 1, Some(&found(&before, 1))), write);
        let other = HostRegistration {
            address: "10.0.0.2:7437".into(),
            ..own.clone()
        };
        let taken = RegistrationAction::Taken {
            address: other.address.clone(),
        };
        assert_eq!(claim(&own, 1, Some(&found(&other, 2))), taken);
        let mut garbage = found(&own, 2);
        garbage.value = b"?".to_vec();
        assert_eq!(claim(&own, 1, Some(&garbage)), write);
    }

    #[test]
    fn unknown_fields_of_registration_are_ignored() {
        let text = r#"{"name":"n1","address":"a:1","slots":2,"labels":{"rack":"1"},"later":true}"#;
        let read: HostRegistration = serde_json::from_str(text).unwrap();
        assert_eq!(read.labels, labels("rack=1"));
    }
}
