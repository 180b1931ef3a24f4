//! How many ranks each host of a list takes. No I/O.

use crate::plan::reasons::CountReason;
use wireup_core::job::hosts::{HostSpec, compress};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spec::{LayoutSpec, MapBy};

/// What a host takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HostCapacity {
    /// Ranks it should take.
    slots: u32,
    /// Ranks it takes with `--oversubscribe`; not less than `slots`.
    most: u32,
}

/// A number of ranks that the hosts do not take.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum HostCapacityError {
    /// More than `--ppn` allows on all of them.
    #[error("{size} ranks with --ppn {ppn} need {needed} hosts, there {}; raise --ppn or name more hosts", is_or_are(*.hosts))]
    PerNode {
        size: u32,
        ppn: u32,
        needed: u32,
        hosts: u32,
    },
    /// More than slots, without `--oversubscribe`.
    #[error("{size} ranks do not fit in {slots} slot{} ({of}); use --oversubscribe, or -n {slots}", if *.slots == 1 { "" } else { "s" })]
    Slots { size: u32, slots: u32, of: String },
    /// More than the hosts take at most.
    #[error(
        "{size} ranks are more than the hosts take even when oversubscribed ({most}: {of}); raise max_slots or --ppn, or use -n {most}"
    )]
    Most { size: u32, most: u32, of: String },
    /// Every host has 0 slots.
    #[error("the hosts have no slots; give some of them more than 0")]
    None,
}

fn is_or_are(hosts: u32) -> String {
    match hosts {
        1 => "is 1".into(),
        _ => format!("are {hosts}"),
    }
}

/// Ranks of a job without a number of ranks, and the reason: `--ppn` on each host with slots, else
/// all slots; a host with unknown slots counts as one.
pub(super) fn default_size(layout: &LayoutSpec) -> (u32, CountReason) {
    let hosts = &layout.hosts;
    match layout.ppn {
        Some(ppn) => {
            let nodes = hosts.iter().filter(|host| host.slots != Some(0)).count();
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            (
                ppn.saturating_mul(nodes),
                CountReason::PerNode { ppn, nodes },
            )
        }
        None => {
            let slots = hosts.iter().map(|host| host.slots.unwrap_or(1));
            let unknown = hosts.iter().filter(|host| host.slots.is_none()).count();
            let why = CountReason::HostSlots {
                unknown: u32::try_from(unknown).unwrap_or(u32::MAX),
            };
            (slots.fold(0, u32::saturating_add), why)
        }
    }
}

/// Slots to which a job with these `ranks` could grow: the known ones, and its own on hosts with unknown slots; and
/// whether it could grow further, because a host takes more than its slots or these are not known.
pub(super) fn universe(layout: &LayoutSpec, ranks: &ProcessMap) -> (u32, bool) {
    let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.fold(0, u32::saturating_add);
    let hosts = layout.hosts.iter();
    let limits: Option<Vec<u32>> = hosts
        .map(|host| limit(host, layout.oversubscribe))
        .collect();
    let (slots, unlimited) = match limits {
        Some(limits) => (sum(&mut limits.into_iter()), false),
        None => {
            let shares = ranks.node_ids().map(|node| ranks.local_size(node).max(1));
            let hosts = layout.hosts.iter().zip(shares);
            let slots = hosts.map(|(host, share)| host.slots.unwrap_or(share));
            (sum(&mut { slots }), true)
        }
    };
    (slots.max(ranks.size()), unlimited)
}

/// Processes that a host takes, if that is known.
fn limit(host: &HostSpec, oversubscribe: bool) -> Option<u32> {
    match (host.slots, oversubscribe) {
        // Hosts with 0 slots get no ranks.
        (Some(0), _) => Some(0),
        (Some(slots), false) => Some(slots.min(host.most.unwrap_or(u32::MAX))),
        _ => host.most,
    }
}

/// Whether a host with known slots has more ranks than these.
pub(super) fn oversubscribed(layout: &LayoutSpec, shares: &[u32]) -> bool {
    let mut hosts = layout.hosts.iter().zip(shares);
    hosts.any(|(host, share)| host.slots.is_some_and(|slots| *share > slots))
}

/// The number of ranks of each host.
///
/// Hosts are filled up to their slots in order, or get a rank in turn; those with unknown slots
/// share the rest evenly. Ranks beyond all slots are distributed in turn.
///
/// # Errors
/// [`HostCapacityError`] when they do not fit.
pub(super) fn shares(size: u32, layout: &LayoutSpec) -> Result<Vec<u32>, HostCapacityError> {
    let hosts = u32::try_from(layout.hosts.len()).expect("lists of hosts are bounded");
    if layout.hosts.iter().all(|host| host.slots == Some(0)) {
        return Err(HostCapacityError::None);
    }
    if let Some(ppn) = layout.ppn
        && u64::from(ppn) * u64::from(hosts) < u64::from(size)
    {
        let needed = size.div_ceil(ppn);
        return Err(HostCapacityError::PerNode {
            size,
            ppn,
            needed,
            hosts,
        });
    }
    let rooms = rooms(size, layout);
    let sum = |of: fn(&HostCapacity) -> u32| rooms.iter().map(of).fold(0, u32::saturating_add);
    let (slots, most) = (sum(|room| room.slots), sum(|room| room.most));
    let listed = |of: fn(&HostCapacity) -> u32| list(layout, rooms.iter().map(of));
    if size > slots && !layout.oversubscribe {
        let of = listed(|room| room.slots);
        return Err(HostCapacityError::Slots { size, slots, of });
    }
    if size > most {
        let of = listed(|room| room.most);
        return Err(HostCapacityError::Most { size, most, of });
    }
    let mut shares = vec![0; rooms.len()];
    let mut left = size;
    match layout.map_by {
        MapBy::Slot => {
            for (share, room) in shares.iter_mut().zip(&rooms) {
                *share = room.slots.min(left);
                left -= *share;
            }
        }
        MapBy::Node => left = distribute_round_robin(&mut shares, left, |host| rooms[host].slots),
    }
    distribute_round_robin(&mut shares, left, |host| rooms[host].most);
    Ok(shares)
}

fn rooms(size: u32, layout: &LayoutSpec) -> Vec<HostCapacity> {
    let ppn = layout.ppn.unwrap_or(u32::MAX);
    let room = |slots: u32, most: Option<u32>| {
        // Hosts with 0 slots get no ranks.
        let most = if slots == 0 { Some(0) } else { most };
        let most = most.unwrap_or(u32::MAX).min(ppn);
        HostCapacity {
            slots: slots.min(most),
            most,
        }
    };
    let known = layout
        .hosts
        .iter()
        .filter_map(|host| Some(room(host.slots?, host.most).slots));
    let known = known.fold(0, u32::saturating_add);
    let mut unknown = layout
        .hosts
        .iter()
        .filter(|host| host.slots.is_none())
        .count() as u32;
    let mut rest = size.saturating_sub(known).max(unknown);
    let mut rooms = Vec::with_capacity(layout.hosts.len());
    for host in &layout.hosts {
        rooms.push(match (host.slots, layout.ppn) {
            (Some(slots), _) => room(slots, host.most),
            (None, Some(ppn)) => room(ppn, host.most),
            (None, None) => {
                let even = rest.div_ceil(unknown);
                let room = room(even, host.most);
                rest -= room.slots.min(rest);
                unknown -= 1;
                room
            }
        });
    }
    rooms
}

/// Gives a rank to each host in turn that has fewer than its `limit`, until none are `left`;
/// what no host takes is returned.
pub(super) fn distribute_round_robin(
    shares: &mut [u32],
    mut left: u32,
    limit: impl Fn(usize) -> u32,
) -> u32 {
    let mut open: Vec<usize> = (0..shares.len()).collect();
    while left > 0 {
        open.retain(|host| shares[*host] < limit(*host));
        let Some(least) = open.iter().map(|host| limit(*host) - shares[*host]).min() else {
            break;
        };
        let hosts = u32::try_from(open.len()).expect("lists of hosts are bounded");
        // Whole rounds at once, as long as no host is full.
        let rounds = (left / hosts).min(least);
        if rounds == 0 {
            open.truncate(left as usize);
        }
        for host in &open {
            shares[*host] += rounds.max(1);
        }
        left = left.saturating_sub(rounds.max(1) * hosts);
    }
    left
}

/// `4 on n[1-2]; 2 on n3`.
fn list(layout: &LayoutSpec, numbers: impl Iterator<Item = u32>) -> String {
    let mut groups: Vec<(u32, Vec<&str>)> = Vec::new();
    for (host, number) in layout.hosts.iter().zip(numbers) {
        match groups.iter_mut().find(|(known, _)| *known == number) {
            Some((_, names)) => names.push(&host.name),
            None => groups.push((number, vec![&host.name])),
        }
    }
    let group = |(number, names): &(u32, Vec<&str>)| format!("{number} on {}", compress(names));
    groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::hosts::{HostList, merge};
    use wireup_core::job::ids::NodeId;

    fn layout(hosts: &str, ppn: Option<u32>, map_by: MapBy, oversubscribe: bool) -> LayoutSpec {
        let HostList(entries) = hosts.parse().unwrap();
        LayoutSpec {
            hosts: merge(entries).unwrap(),
            ppn,
            map_by,
            oversubscribe,
            ..LayoutSpec::default()
        }
    }

    #[test]
    fn hosts_are_filled_in_their_order_or_in_turn() {
        use MapBy::{Node, Slot};
        let of =
            |size, hosts, ppn, map_by| shares(size, &layout(hosts, ppn, map_by, false)).unwrap();
        assert_eq!(of(4, "a:4,b:4", None, Slot), [4, 0]);
        assert_eq!(of(6, "b:4,a:1,c:4", None, Slot), [4, 1, 1]);
        assert_eq!(of(4, "a:4,b:4", None, Node), [2, 2]);
        assert_eq!(of(6, "a:4,b:1,c:2", None, Node), [3, 1, 2]);
        assert_eq!(of(6, "a:4,b:8", Some(3), Slot), [3, 3]);
        assert_eq!(of(5, "a:2,b:8", Some(3), Slot), [2, 3]);
        assert_eq!(of(3, "a:0,b:2,c:2", None, Slot), [0, 2, 1]);
        // Hosts of which nothing is known share evenly.
        assert_eq!(of(7, "a,b,c", None, Slot), [3, 2, 2]);
        assert_eq!(of(7, "a,b,c", None, Node), [3, 2, 2]);
        assert_eq!(of(2, "a,b,c", None, Slot), [1, 1, 0]);
        assert_eq!(of(5, "a,b,c", Some(2), Slot), [2, 2, 1]);
        assert_eq!(of(6, "a:4,b", None, Slot), [4, 2]);
        assert_eq!(of(3, "b,a:4", None, Slot), [1, 2]);
    }

    #[test]
    fn what_is_too_much_for_the_slots_goes_round() {
        let of = |size, hosts, ppn| shares(size, &layout(hosts, ppn, MapBy::Slot, true));
        assert_eq!(of(9, "a:4,b:1", None).unwrap(), [6, 3]);
        assert_eq!(of(10, "a:4,b:1", Some(5)).unwrap(), [5, 5]);
        assert_eq!(of(7, "a:2,b:0,c:2", None).unwrap(), [4, 0, 3]);
        let many = of(1_000_000, "n[1-4096]:1", None).unwrap();
        assert_eq!(many.iter().sum::<u32>(), 1_000_000);
        assert_eq!((many[0], many[4095]), (245, 244));
        let error = of(5, "a:0,b:2", Some(4)).unwrap_err().to_string();
        assert!(
            error.starts_with("5 ranks are more than the hosts take"),
            "{error}"
        );
        assert!(error.contains("(4: 0 on a; 4 on b)"), "{error}");
    }

    #[test]
    fn the_universe_is_what_the_hosts_take() {
        let ranks = ProcessMap::from_runs([(NodeId(0), 3), (NodeId(1), 0)]);
        let of = |hosts, oversubscribe, most| {
            let mut layout = layout(hosts, None, MapBy::Slot, oversubscribe);
            layout.hosts[0].most = most;
            universe(&layout, &ranks)
        };
        assert_eq!(of("a:4,b:2", false, None), (6, false));
        assert_eq!(of("a:4,b:2", false, Some(3)), (5, false));
        assert_eq!(of("a:4,b", false, None), (5, true));
        assert_eq!(of("a:2,b:2", true, None), (4, true));
        assert_eq!(of("a:2,b:0", true, Some(8)), (8, false));
        assert_eq!(of("a:1,b:0", true, None), (3, true));
    }

    #[test]
    fn a_host_is_not_oversubscribed_beyond_its_maximum() {
        let mut layout = layout("a:1,b:1,c", None, MapBy::Slot, true);
        layout.hosts[0].most = Some(2);
        layout.hosts[2].most = Some(1);
        assert_eq!(shares(7, &layout).unwrap(), [2, 4, 1]);
        layout.hosts[1].most = Some(2);
        let error = shares(7, &layout).unwrap_err().to_string();
        assert!(
            error.contains("(5: 2 on a,b; 1 on c); raise max_slots"),
            "{error}"
        );
        layout.oversubscribe = false;
        let error = shares(5, &layout).unwrap_err().to_string();
        assert!(
            error.starts_with("5 ranks do not fit in 3 slots (1 on a,b,c)"),
            "{error}"
        );
    }

    #[test]
    fn ranks_without_a_slot_are_refused_with_the_arithmetic() {
        let refused = |size, hosts, ppn| {
            let layout = layout(hosts, ppn, MapBy::Slot, false);
            shares(size, &layout).unwrap_err().to_string()
        };
        assert_eq!(
            refused(9, "n[1-3]:2,m:1", None),
            "9 ranks do not fit in 7 slots (2 on n[1-3]; 1 on m); use --oversubscribe, or -n 7"
        );
        assert_eq!(
            refused(9, "a,b,c,d", Some(2)),
            "9 ranks with --ppn 2 need 5 hosts, there are 4; raise --ppn or name more hosts"
        );
        assert!(refused(1, "a:0,b:0", None).starts_with("the hosts have no slots"));
    }

    #[test]
    fn the_number_of_ranks_follows_from_the_hosts() {
        let of = |hosts, ppn| default_size(&layout(hosts, ppn, MapBy::Slot, false)).0;
        assert_eq!(of("a:4,b:2", None), 6);
        assert_eq!(of("a,b,c", None), 3);
        assert_eq!(of("a:4,b", None), 5);
        assert_eq!(of("a:4,b,c:0", Some(3)), 6);
    }
}
