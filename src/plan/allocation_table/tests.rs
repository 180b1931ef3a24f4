//! Allocations that processes request and release.

use super::*;
use wireup_core::job::spawn::SpawnInfo;
use wireup_core::pmix::keys;

const FIRST: JobIndex = JobIndex(0);

fn names() -> Vec<String> {
    ["n0", "n1", "n2"].map(str::to_owned).to_vec()
}

/// Launch with slots and processes.
struct Launch {
    slots: Vec<Option<u32>>,
    live: Vec<u32>,
    holdings: AllocationTable,
    names: Vec<String>,
    /// Number of living processes in allocations.
    inside: BTreeMap<String, Vec<u32>>,
}

impl Launch {
    fn new(nodes: &[(Option<u32>, u32)]) -> Self {
        Self {
            slots: nodes.iter().map(|(slots, _)| *slots).collect(),
            live: nodes.iter().map(|(_, live)| *live).collect(),
            holdings: AllocationTable::default(),
            names: names(),
            inside: BTreeMap::new(),
        }
    }

    fn taken(&self) -> Vec<Option<u32>> {
        let nodes = self.live.len();
        let inside = |id: &str| {
            self.inside
                .get(id)
                .cloned()
                .unwrap_or_else(|| vec![0; nodes])
        };
        let reserved = self.holdings.reserved(inside);
        let ground = SlotUsage {
            live: &self.live,
            reserved: &reserved,
        };
        (0..)
            .map(NodeId)
            .take(nodes)
            .map(|node| ground.used_slots(node))
            .collect()
    }

    fn ask(&mut self, directive: Directive, infos: &[(&str, &str)]) -> Result<String, String> {
        self.ask_for(FIRST, directive, infos)
    }

    /// Text of a granted request, such as `a1: 2 on n0, all on n1`, or of the failure.
    fn ask_for(
        &mut self,
        owner: JobIndex,
        directive: Directive,
        infos: &[(&str, &str)],
    ) -> Result<String, String> {
        let info = |(key, value): &(&str, &str)| SpawnInfo {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            required: true,
        };
        let infos: Vec<_> = infos.iter().map(info).collect();
        let attributes = AllocationAttributes::from_infos(&infos).unwrap();
        let at = |name: &str| self.names.iter().position(|known| known == name).unwrap();
        let node = |name: &str| NodeId(u32::try_from(at(name)).unwrap());
        let named = match attributes.hosts.is_empty() {
            true => Vec::new(),
            false => {
                let hosts = wireup_core::job::hosts::merge(attributes.hosts.clone()).unwrap();
                hosts
                    .iter()
                    .map(|host| (node(&host.name), host.slots))
                    .collect()
            }
        };
        let rooms = self.slots.iter().zip(self.taken());
        let field = AllocationCandidates {
            rooms: rooms
                .map(|(slots, taken)| NodeSlots {
                    slots: *slots,
                    used_slots: taken,
                })
                .collect(),
            names: &self.names,
            named,
        };
        let allocation = self.holdings.decide(directive, &attributes, owner, &field);
        let allocation =
            allocation.map_err(|failure| format!("{:?}: {}", failure.kind, failure.text))?;
        let share = |share: &NodeShare| match share.slots {
            Some(slots) => format!("{slots} on {}", share.name),
            None => format!("all on {}", share.name),
        };
        let shares: Vec<_> = allocation.shares.iter().map(share).collect();
        Ok(format!(
            "{}: {}",
            allocation.id.unwrap_or_default(),
            shares.join(", ")
        ))
    }
}

#[test]
fn free_slots_become_allocations_and_are_taken_for_others() {
    let mut launch = Launch::new(&[(Some(2), 1), (Some(4), 0), (Some(4), 3)]);
    let slots = |n| [(keys::ALLOC_NUM_CPUS, n)];
    assert_eq!(
        launch.ask(Directive::New, &slots("3")),
        Ok("a1: 1 on n0, 2 on n1".to_owned())
    );
    assert_eq!(launch.taken(), [Some(2), Some(2), Some(3)]);
    assert_eq!(
        launch.ask(Directive::New, &slots("3")),
        Ok("a2: 2 on n1, 1 on n2".to_owned())
    );
    assert_eq!(
        launch.ask(Directive::New, &slots("1")).unwrap_err(),
        "NoResources: 1 slot is requested, but there are not enough free slots (0 on n[0-2]); start \
         the launch with more hosts or slots"
    );
    let a1 = (keys::ALLOC_ID, "a1");
    assert_eq!(
        launch.ask(Directive::Release, &[a1]),
        Ok("a1: 1 on n0, 2 on n1".to_owned())
    );
    assert_eq!(launch.taken(), [Some(1), Some(2), Some(4)]);
    let gone = launch.ask(Directive::Release, &[a1]).unwrap_err();
    assert_eq!(gone, "NotFound: no allocation \"a1\"; the launch has a2");
}

#[test]
fn nodes_are_given_whole_or_so_many_slots_of_each() {
    let mut launch = Launch::new(&[(Some(2), 1), (Some(4), 0), (None, 0)]);
    let nodes = |n| [(keys::ALLOC_NUM_NODES, n)];
    let refused = launch.ask(Directive::New, &nodes("3")).unwrap_err();
    assert!(refused.contains("3 whole nodes are requested"), "{refused}");
    assert!(
        refused.contains("(1 on n0, 4 on n1, all on n2)"),
        "{refused}"
    );
    assert_eq!(
        launch.ask(Directive::New, &nodes("2")),
        Ok("a1: 4 on n1, all on n2".to_owned())
    );
    assert_eq!(launch.taken(), [Some(1), Some(4), None]);
    launch
        .ask(Directive::Release, &[(keys::ALLOC_ID, "a1")])
        .unwrap();
    let both = [(keys::ALLOC_NUM_NODES, "2"), (keys::ALLOC_NUM_CPUS, "3")];
    assert_eq!(
        launch.ask(Directive::New, &both),
        Ok("a2: 1 on n0, 2 on n1".to_owned())
    );
    let each = [(keys::ALLOC_NUM_CPU_LIST, "2")];
    assert_eq!(
        launch.ask(Directive::New, &each),
        Ok("a3: 2 on n1".to_owned())
    );
    let named = [(keys::ALLOC_NODE_LIST, "n2")];
    assert_eq!(
        launch.ask(Directive::New, &named),
        Ok("a4: all on n2".to_owned())
    );
    assert!(
        launch
            .ask(Directive::New, &[])
            .unwrap_err()
            .starts_with("BadRequest: no size given")
    );
}

#[test]
fn allocations_grow_shrink_and_end_with_their_owner() {
    let mut launch = Launch::new(&[(Some(4), 0), (Some(4), 0), (Some(4), 0)]);
    let named = [(keys::ALLOC_NODE_LIST, "n1:2,n0:1")];
    assert_eq!(
        launch.ask_for(JobIndex(1), Directive::New, &named),
        Ok("a1: 1 on n0, 2 on n1".to_owned())
    );
    let a1 = (keys::ALLOC_ID, "a1");
    let more = [a1, (keys::ALLOC_NUM_CPUS, "6")];
    assert_eq!(
        launch.ask(Directive::Extend, &more),
        Ok("a1: 4 on n0, 4 on n1, 1 on n2".to_owned())
    );
    let less = [a1, (keys::ALLOC_NUM_CPUS, "3")];
    assert_eq!(
        launch.ask(Directive::Release, &less),
        Ok("a1: 2 on n1, 1 on n2".to_owned())
    );
    let other = [a1, (keys::ALLOC_NODE_LIST, "n2")];
    let refused = launch.ask(Directive::Release, &other).unwrap_err();
    assert_eq!(
        refused,
        "BadRequest: no slots on node n2 to release or reacquire"
    );
    let less = [a1, (keys::ALLOC_NODE_LIST, "n0")];
    assert_eq!(
        launch.ask(Directive::Release, &less),
        Ok("a1: 4 on n0".to_owned())
    );
    assert_eq!(launch.taken(), [Some(0), Some(2), Some(0)]);
    assert_eq!(launch.holdings.owner_gone(FIRST), Vec::<String>::new());
    assert_eq!(launch.holdings.owner_gone(JobIndex(1)), ["a1"]);
    assert_eq!(launch.taken(), [Some(0), Some(0), Some(0)]);
    let again = launch.ask(Directive::New, &[(keys::ALLOC_NUM_CPUS, "1")]);
    assert_eq!(again, Ok("a2: 1 on n0".to_owned()), "no name comes again");
}

#[test]
fn launch_releases_free_slots_and_allocates_them_again() {
    let mut launch = Launch::new(&[(Some(2), 2), (Some(2), 0), (Some(2), 1)]);
    let node = |name| [(keys::ALLOC_NODE_LIST, name)];
    let refused = launch.ask(Directive::Release, &node("n0")).unwrap_err();
    assert!(
        refused.starts_with("NoResources: a whole node is requested"),
        "{refused}"
    );
    assert_eq!(
        launch.ask(Directive::Release, &node("n1")),
        Ok(": 2 on n1".to_owned())
    );
    assert_eq!(launch.taken(), [Some(2), Some(2), Some(1)]);
    assert_eq!(
        launch.ask(Directive::Release, &node("n2:1")),
        Ok(": 1 on n2".to_owned())
    );
    let one = [(keys::ALLOC_NUM_CPUS, "1")];
    assert_eq!(
        launch.ask(Directive::Reacquire, &one),
        Ok(": 1 on n2".to_owned())
    );
    assert_eq!(
        launch.ask(Directive::Reacquire, &[]),
        Ok(": 2 on n1".to_owned())
    );
    let refused = launch.ask(Directive::Reacquire, &[]).unwrap_err();
    assert!(refused.starts_with("NotFound"), "{refused}");
    let extended = launch.ask(Directive::Extend, &one).unwrap_err();
    assert!(
        extended.starts_with("NoResources: cannot extend the launch"),
        "{extended}"
    );
}

#[test]
fn ranks_of_allocation_use_its_slots_first() {
    let mut launch = Launch::new(&[(Some(4), 3), (Some(4), 0), (Some(4), 0)]);
    launch
        .ask(Directive::New, &[(keys::ALLOC_NUM_CPUS, "3")])
        .unwrap();
    assert_eq!(launch.taken(), [Some(4), Some(2), Some(0)]);
    // The allocation has three processes, two of them on n0, where it has one slot.
    launch.live = vec![5, 1, 0];
    launch.inside.insert("a1".to_owned(), vec![2, 1, 0]);
    assert_eq!(launch.taken(), [Some(5), Some(2), Some(0)]);
}
