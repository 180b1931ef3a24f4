//! The hosts of a list: the entries of each, merged.

use std::collections::{HashMap, HashSet};

use super::{HERE, HOSTS_MAX, HostEntry, HostSpec, HostsProblem, SLOTS_MAX, is_name_of_here};

/// Merges the hosts of all entries: each host once, in the order in which they were first named; slots of one host add
/// up.
///
/// A name alone has no number of slots, as on most command lines. If a name is repeated, as in lists of batch systems,
/// every name alone counts for one slot.
///
/// # Errors
/// [`HostsProblem`] when entries contradict each other, or there is none.
pub fn merge(entries: Vec<HostEntry>) -> Result<Vec<HostSpec>, HostsProblem> {
    let mut alone = HashSet::new();
    let counted = entries
        .iter()
        .filter(|entry| entry.slots.is_none())
        .any(|entry| !alone.insert(entry.name.as_str()));
    let mut index: HashMap<String, usize> = HashMap::with_capacity(entries.len());
    let mut merged: Vec<HostEntry> = Vec::new();
    for mut entry in entries {
        if counted {
            entry.slots = entry.slots.or(Some(1));
        }
        match index.get(&entry.name) {
            Some(known) => merged[*known].join(entry)?,
            None => {
                index.insert(entry.name.clone(), merged.len());
                merged.push(entry);
            }
        }
    }
    let hosts: Vec<HostSpec> = merged.into_iter().map(HostSpec::from).collect();
    match hosts.len() {
        0 => return Err(HostsProblem::Empty),
        more if more > HOSTS_MAX => return Err(HostsProblem::TooMany),
        _ => {}
    }
    let mut names: HashMap<&str, &str> = HashMap::with_capacity(hosts.len());
    for host in &hosts {
        if let (Some(slots), Some(most)) = (host.slots, host.most)
            && most < slots
        {
            let name = host.name.clone();
            return Err(HostsProblem::Most { name, slots, most });
        }
        if let Some(one) = names.insert(&host.address, &host.name) {
            return Err(HostsProblem::TwoNames {
                one: one.into(),
                other: host.name.clone(),
                address: host.address.clone(),
            });
        }
    }
    Ok(hosts)
}

/// Replaces `localhost` and similar names, which mean another machine on each host, by the name of this machine's
/// agent. `own` is that name, with the agent's address if known. A list of this machine alone is unchanged unless
/// `must_rename_single`.
pub fn name_here(
    entries: &mut [HostEntry],
    must_rename_single: bool,
    own_host: impl FnOnce() -> Option<(String, Option<String>)>,
) {
    let is_here = |entry: &HostEntry| is_name_of_here(&entry.name) && entry.address.is_none();
    let any = entries.iter().any(is_here);
    if !any || !must_rename_single && entries.iter().all(is_here) {
        return;
    }
    let Some((name, address)) = own_host() else {
        return;
    };
    // The entry in the list takes precedence.
    let known = entries.iter().any(|entry| entry.name == name);
    for entry in entries.iter_mut().filter(|entry| is_here(entry)) {
        entry.name.clone_from(&name);
        entry.address = address.clone().filter(|_| !known);
    }
}

/// Renames this machine to `localhost` in a list of this machine alone; `is_own` tests whether a name or an address is
/// its own.
pub fn call_localhost(entries: &mut [HostEntry], is_own: impl Fn(&str) -> bool) {
    let is_here = |entry: &HostEntry| {
        entry.address.is_none() && (is_name_of_here(&entry.name) || is_own(&entry.name))
    };
    if entries.iter().all(is_here) {
        for entry in entries {
            entry.name = HERE[0].to_owned();
        }
    }
}

impl HostEntry {
    /// Merges another entry for the same host.
    fn join(&mut self, other: Self) -> Result<(), HostsProblem> {
        match (&self.address, other.address) {
            (Some(one), Some(other)) if *one != other => {
                return Err(HostsProblem::TwoAddresses {
                    name: self.name.clone(),
                    one: one.clone(),
                    other,
                });
            }
            (None, Some(other)) => self.address = Some(other),
            _ => {}
        }
        let sum = |one: Option<u32>, other: Option<u32>| match (one, other) {
            (Some(one), Some(other)) => Some((one + other).min(SLOTS_MAX)),
            (one, other) => one.or(other),
        };
        self.slots = sum(self.slots, other.slots);
        self.most = sum(self.most, other.most);
        Ok(())
    }
}
