//! Files of hosts, in the forms that users have; no I/O.
//!
//! One host in a line, `#` starts a comment:
//! ```text
//! n1                      alone; repeated, as batch systems write it, each line counts one slot
//! n2:4                    as MPICH's Hydra reads it
//! n3 slots=4 max_slots=8  as Open MPI reads it
//! node[01-16,20]:8        ranges
//! n4 address=10.0.0.4:7500
//! ```
//! Everything that `--hosts` understands may stand at the beginning of a line.

use std::path::Path;

use super::{
    FileLine, HOSTS_MAX, HostEntry, HostsError, HostsProblem, addresses, entries_of, names,
    slot_count,
};

/// Keywords of other launchers for the slots of a host.
const SLOTS: [&str; 5] = ["slots", "cpu", "cpus", "count", "ncpus"];
/// Keywords for the maximum number of ranks on a host.
const MOST: [&str; 4] = ["max_slots", "max-slots", "cpu_max", "cpus_max"];

/// Reads the text of a file; `path` is its name, for errors.
///
/// # Errors
/// [`HostsError`] with the first line that cannot be read.
pub fn parse(path: &Path, text: &[u8]) -> Result<Vec<HostEntry>, HostsError> {
    let at = |line: usize, problem| HostsError {
        place: Some(FileLine {
            file: path.into(),
            line,
        }),
        problem,
    };
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut entries = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let at = |problem| at(index + 1, problem);
        let line = std::str::from_utf8(line).map_err(|_| at(HostsProblem::NoText))?;
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        entries.extend(hosts_of(line).map_err(at)?);
        if entries.len() > HOSTS_MAX * 16 {
            return Err(at(HostsProblem::TooMany));
        }
    }
    Ok(entries)
}

fn hosts_of(line: &str) -> Result<Vec<HostEntry>, HostsProblem> {
    let line = joined(line);
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    if let Some(rest) = names::outside(first, ',').first() {
        return Err(HostsProblem::Word(first[*rest..].into()));
    }
    let mut hosts = entries_of(first)?;
    let address = first.split_once('@').map(|(_, address)| address);
    // Open MPI's form: an address of wireup's has a port or is a number, or nothing of Open MPI's follows.
    let user_at = address.filter(|address| {
        !address.contains([':', '[']) && address.parse::<std::net::IpAddr>().is_err()
    });
    for word in words {
        let unknown = || HostsProblem::Word(word.into());
        let (key, value) = word.split_once('=').ok_or_else(unknown)?;
        if let Some(host) = user_at
            && (SLOTS.contains(&key) || MOST.contains(&key))
        {
            return Err(HostsProblem::User {
                word: first.into(),
                host: host.into(),
            });
        }
        if SLOTS.contains(&key) {
            let slots = Some(slot_count(word, value)?);
            hosts.iter_mut().for_each(|host| host.slots = slots);
        } else if MOST.contains(&key) {
            let most = Some(slot_count(word, value)?);
            hosts.iter_mut().for_each(|host| host.most = most);
        } else if key == "address" {
            let addresses = addresses(word, value)?;
            if addresses.len() != hosts.len() {
                return Err(HostsProblem::Count {
                    word: first.into(),
                    names: hosts.len(),
                    addresses: addresses.len(),
                });
            }
            for (host, address) in hosts.iter_mut().zip(addresses) {
                host.address = Some(address);
            }
        } else {
            return Err(unknown());
        }
    }
    Ok(hosts)
}

/// Removes blanks around a `=`, which Open MPI allows.
fn joined(line: &str) -> String {
    let mut parts = line.split('=').map(str::trim);
    let mut joined = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        joined.push('=');
        joined.push_str(part);
    }
    joined
}
