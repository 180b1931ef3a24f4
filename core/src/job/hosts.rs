//! The hosts of a launch, as users list them; no I/O.
//!
//! ```text
//! --hosts    WORD[,WORD]...
//! WORD       NAME[:SLOTS][@ADDRESS[:PORT]]
//! ```
//! What stands in front of an `@` is the node: its name, and behind a colon its slots. What stands
//! behind it is where its agent listens, with a port behind a colon. So `n1:4` has four slots and
//! never the port 4. Names and addresses may have ranges in brackets, `node[01-16,20]`; an IPv6
//! address stands in brackets by itself, `[fd00::1]`. Files are read by [`file`].

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub mod file;
pub mod lookup;
mod merge;
mod names;
pub mod registered;

pub use merge::{call_localhost, merge, name_here};
pub use names::compress;
pub(super) use names::split as words;

/// Default port on which agents listen for each other.
pub const PORT: u16 = 7437;
/// Most hosts of a launch.
pub const HOSTS_MAX: usize = 16_384;
/// Most slots of a host: far beyond any machine, and small enough to add up.
const SLOTS_MAX: u32 = 1_000_000;
/// Longest name of a host, in bytes. Source: RFC 1035, section 2.3.4.
const NAME_MAX: usize = 253;

/// Whether an address ends with a port, which is not 0.
pub fn has_port(address: &str) -> bool {
    let port = address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    matches!(port, Some(Ok(1..)))
}

/// One host of a launch. Its place in the list is its number as a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostSpec {
    /// Name of the host, which is in its agent's certificate and which ranks see.
    pub name: String,
    /// Address at which the host's agent listens: `HOST:PORT`; `[ADDRESS]:PORT` for IPv6.
    pub address: String,
    /// Number of ranks for the host, if the user set one; 0 for no rank.
    pub slots: Option<u32>,
    /// Ranks it takes at most, oversubscribed or not.
    pub most: Option<u32>,
}

impl HostSpec {
    /// Whether it is this machine under a name that every machine has for itself, without an address:
    /// no agent of a network is called so.
    pub fn is_here(&self) -> bool {
        is_name_of_here(&self.name) && !self.has_own_address()
    }

    /// Refuses a name that resolvers read as an address in an old form, such as 222 for 0.0.0.222, unless an address is
    /// given.
    ///
    /// # Errors
    /// [`HostsProblem::Number`]
    pub fn check_resolvable(&self) -> Result<(), HostsProblem> {
        let is_number = |part: &str| {
            let digits = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"));
            match digits {
                Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
                None => !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()),
            }
        };
        let is_address = self.name.parse::<IpAddr>().is_ok();
        match self.name.split('.').all(is_number) && !is_address && !self.has_own_address() {
            true => Err(HostsProblem::Number(self.name.clone())),
            false => Ok(()),
        }
    }

    /// Returns the host as `--hosts` names it, without slots.
    pub fn entry(&self) -> String {
        match self.has_own_address() {
            true => format!("{}@{}", self.name, self.address),
            false => self.name.clone(),
        }
    }

    /// Whether the agent's address is not the host's name with the default port.
    pub fn has_own_address(&self) -> bool {
        self.address != default_address(&self.name)
    }
}

/// Returns the address of an agent that listens at the host's name and the default port.
fn default_address(name: &str) -> String {
    match name.contains(':') {
        true => format!("[{name}]:{PORT}"),
        false => format!("{name}:{PORT}"),
    }
}

/// Names that every machine has for itself.
pub const HERE: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Whether every machine has this name for itself: one of [`HERE`], or another address of its loopback interface.
fn is_name_of_here(name: &str) -> bool {
    HERE.contains(&name)
        || name
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Host as one entry of a list, which may name it several times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostEntry {
    name: String,
    /// Address of the agent, as in [`HostSpec`].
    address: Option<String>,
    slots: Option<u32>,
    most: Option<u32>,
}

impl HostEntry {
    /// Whether no number of slots is named with the host.
    pub fn is_whole(&self) -> bool {
        self.slots.is_none()
    }

    /// Creates a host with slots whose agent has the host's name and the default port.
    pub fn new(name: &str, slots: u32) -> Self {
        Self {
            name: name.to_owned(),
            address: None,
            slots: Some(slots),
            most: None,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host with this number of slots.
    pub fn with_slots(self, slots: Option<u32>) -> Self {
        Self { slots, ..self }
    }
}

/// Hosts of one `--hosts` option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostList(pub Vec<HostEntry>);

/// Line of a file, for errors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLine {
    /// The file, as named.
    pub file: PathBuf,
    /// Line number, counted from 1.
    pub line: usize,
}

/// Hosts that cannot be used, in one line with the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{problem}", .place.as_ref().map_or_else(String::new, |at| format!("{}:{}: ", at.file.display(), at.line)))]
pub struct HostsError {
    /// In which file; on the command line when absent.
    pub place: Option<FileLine>,
    pub problem: HostsProblem,
}

/// Errors in a list of hosts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostsProblem {
    /// No host at all.
    #[error("no host given: write NAME or NAME:SLOTS, separated by commas")]
    Empty,
    /// A name that no host has.
    #[error(
        "invalid host name {name:?}{}: use letters, digits, dots and hyphens, and commas between hosts",
        in_word(word, name)
    )]
    Name {
        /// Word of the list.
        word: String,
        /// The part that is wrong.
        name: String,
    },
    /// A bracket that does not end, or begins nowhere, or has something else in it.
    #[error(
        "invalid brackets in host {0:?}: write a range as [01-16,20], ascending and with at most {HOSTS_MAX} hosts, and an IPv6 address as [fd00::1]"
    )]
    Range(String),
    /// An IPv6 address without an unambiguous end.
    #[error("invalid host {0:?}: put the IPv6 address in brackets: [fd00::1] or [fd00::1]:SLOTS")]
    Bare6(String),
    /// Something else where a number of slots should be.
    #[error(
        "invalid host {word:?}: slots {slots:?} is not a number; write NAME:SLOTS, or NAME@HOST:PORT for a port"
    )]
    Slots {
        word: String,
        /// The part that is wrong.
        slots: String,
    },
    /// The port of agents where slots are written.
    #[error(
        "invalid host {0:?}: the number after the colon is the number of slots; write NAME@HOST:{PORT} for a port"
    )]
    Port(String),
    /// An address that none can be.
    #[error("invalid host {word:?}: address {address:?}; write HOST, HOST:PORT or [IPV6]:PORT")]
    Address {
        word: String,
        /// The part that is wrong.
        address: String,
    },
    /// Ranges of different length.
    #[error(
        "invalid host {word:?}: it has {names} names and {addresses} addresses; give each name one address"
    )]
    Count {
        word: String,
        names: usize,
        addresses: usize,
    },
    /// A file has an unknown word.
    #[error("unknown word {0:?} after a host: use slots=N, max_slots=N or address=HOST:PORT")]
    Word(String),
    /// A label that none can be.
    #[error(
        "invalid host {word:?}: label {label:?}; write KEY or KEY=VALUE, separated by commas, each key once, of \
         letters, digits and the characters -._/"
    )]
    Label {
        word: String,
        /// The part that is wrong.
        label: String,
    },
    /// Invalid registry in place of a host.
    #[error(
        "invalid registry {0:?}: write etcd:LABELS or etcd:LABELS:SLOTS, or etcd: without labels"
    )]
    Registry(String),
    /// Fewer than the host's own slots.
    #[error("max_slots={most} of {name} is less than its {slots} slots; correct one of them")]
    Most {
        name: String,
        slots: u32,
        /// Maximum that the user set.
        most: u32,
    },
    /// Different addresses of one name.
    #[error(
        "{name} has two addresses, {one} and {other}; give it one (in NAME@ADDRESS, NAME is a node and not a user)"
    )]
    TwoAddresses {
        name: String,
        one: String,
        other: String,
    },
    /// Different names of one address.
    #[error(
        "{one} and {other} both have the address {address}; an agent is one node: name it once"
    )]
    TwoNames {
        one: String,
        other: String,
        address: String,
    },
    /// A name that resolvers take for an address.
    #[error(
        "invalid host {0:?}: resolvers read this number as an address; write {0}@ADDRESS with the address of its agent"
    )]
    Number(String),
    /// A user in front of a host, as other launchers have it.
    #[error(
        "invalid host {word:?}: a user is not supported, since ranks run as you on every host; write {host}, or NAME \
         address={host} for a node with another name"
    )]
    User {
        word: String,
        /// Part behind the `@`.
        host: String,
    },
    /// The list has more hosts than a launch can have.
    #[error("the list has more than {HOSTS_MAX} hosts; name fewer")]
    TooMany,
    /// A file that is no text.
    #[error("not valid UTF-8; name a file with one host on each line")]
    NoText,
}

/// Returns the text about the word that has `part`, unless it is the whole word.
fn in_word(word: &str, part: &str) -> String {
    match word == part {
        true => String::new(),
        false => format!(" in {word:?}"),
    }
}

impl From<HostsProblem> for HostsError {
    fn from(problem: HostsProblem) -> Self {
        let place = None;
        Self { place, problem }
    }
}

impl FromStr for HostList {
    type Err = HostsProblem;

    fn from_str(text: &str) -> Result<Self, HostsProblem> {
        let mut entries = Vec::new();
        for word in names::split(text)? {
            entries.extend(entries_of(word)?);
            if entries.len() > HOSTS_MAX {
                return Err(HostsProblem::TooMany);
            }
        }
        match entries.is_empty() {
            true => Err(HostsProblem::Empty),
            false => Ok(Self(entries)),
        }
    }
}

/// Expands the names of a list whose names are not hosts of ranks.
///
/// # Errors
/// [`HostsProblem`]; the caller checks whether a host can have such a name.
pub fn expand(text: &str) -> Result<Vec<String>, HostsProblem> {
    let mut found = Vec::new();
    for word in names::split(text)? {
        found.extend(expand_names(word, word)?);
        if found.len() > HOSTS_MAX {
            return Err(HostsProblem::TooMany);
        }
    }
    match found.is_empty() {
        true => Err(HostsProblem::Empty),
        false => Ok(found),
    }
}

/// Expands the names in a word, which are all of it or a part.
fn expand_names(word: &str, part: &str) -> Result<Vec<String>, HostsProblem> {
    match names::ipv6(part) {
        Some(address) => Ok(vec![address.to_string()]),
        None => names::expand(part).ok_or_else(|| HostsProblem::Range(word.into())),
    }
}

/// Returns the hosts of one word.
fn entries_of(word: &str) -> Result<Vec<HostEntry>, HostsProblem> {
    let (node, address) = match word.split_once('@') {
        Some((node, address)) => (node, Some(address)),
        None => (word, None),
    };
    let (name, slots) = name_and_slots(word, node)?;
    let mut names = expand_names(word, name)?;
    for name in &mut names {
        check_name(word, name)?;
        // The end of a whole name of DNS, which is in no certificate.
        if name.ends_with('.') {
            name.pop();
        }
    }
    let addresses = address.map(|text| addresses(word, text)).transpose()?;
    let count = addresses.as_ref().map_or(names.len(), Vec::len);
    if count != names.len() {
        return Err(HostsProblem::Count {
            word: word.into(),
            names: names.len(),
            addresses: count,
        });
    }
    let mut addresses = addresses.into_iter().flatten();
    let entry = |name| HostEntry {
        name,
        address: addresses.next(),
        slots,
        most: None,
    };
    Ok(names.into_iter().map(entry).collect())
}

/// Splits a `NAME[:SLOTS]` into name and slots.
fn name_and_slots<'a>(word: &str, node: &'a str) -> Result<(&'a str, Option<u32>), HostsProblem> {
    let colons = names::outside(node, ':');
    let Some(colon) = colons.first().copied() else {
        return Ok((node, None));
    };
    if colons.len() > 1 && node.parse::<Ipv6Addr>().is_ok() {
        return Err(HostsProblem::Bare6(word.into()));
    }
    let slots = &node[colon + 1..];
    if slots == PORT.to_string() {
        return Err(HostsProblem::Port(word.into()));
    }
    Ok((&node[..colon], Some(slot_count(word, slots)?)))
}

/// Parses the slots in a word.
fn slot_count(word: &str, text: &str) -> Result<u32, HostsProblem> {
    number(text).ok_or_else(|| HostsProblem::Slots {
        word: word.into(),
        slots: text.into(),
    })
}

fn number(text: &str) -> Option<u32> {
    names::number(text).filter(|number| *number <= SLOTS_MAX)
}

fn check_name(word: &str, name: &str) -> Result<(), HostsProblem> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let host = name.len() <= NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(known);
    match host || name.parse::<Ipv6Addr>().is_ok() {
        true => Ok(()),
        false => Err(HostsProblem::Name {
            word: word.into(),
            name: name.into(),
        }),
    }
}

/// Reads the addresses behind an `@`, one for each host, each with its own port or the default one.
fn addresses(word: &str, text: &str) -> Result<Vec<String>, HostsProblem> {
    let wrong = || HostsProblem::Address {
        word: word.into(),
        address: text.into(),
    };
    let port = |text: &str| match text.parse() {
        Ok(port @ 1_u16..) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(wrong()),
    };
    let end = text.find(']').map_or(0, |end| end + 1);
    if let Some(address) = names::ipv6(&text[..end]) {
        let port = match text[end..].strip_prefix(':') {
            Some(text) => port(text)?,
            None if text.len() == end => PORT,
            None => return Err(wrong()),
        };
        return Ok(vec![format!("[{address}]:{port}")]);
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(HostsProblem::Bare6(word.into()));
    }
    let expanded = names::expand(text).ok_or_else(|| HostsProblem::Range(word.into()))?;
    let whole = |text: &String| {
        let (host, port) = match text.split_once(':') {
            Some((host, text)) => (host, port(text)?),
            None => (text.as_str(), PORT),
        };
        check_name(word, host).map_err(|_| wrong())?;
        Ok(format!("{host}:{port}"))
    };
    expanded.iter().map(whole).collect()
}

impl From<HostEntry> for HostSpec {
    fn from(entry: HostEntry) -> Self {
        let HostEntry {
            name,
            address,
            slots,
            most,
        } = entry;
        Self {
            address: address.unwrap_or_else(|| default_address(&name)),
            name,
            slots,
            most,
        }
    }
}

#[cfg(test)]
mod tests;
