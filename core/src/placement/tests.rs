use super::*;
use crate::job::hosts::{HostList, merge};

/// Capacities of hosts by their slots and processes.
fn capacities(nodes: &[(Option<u32>, u32)]) -> Vec<NodeCapacity> {
    let node = |(slots, used): &(Option<u32>, u32)| NodeCapacity {
        slots: *slots,
        most: None,
        used: *used,
    };
    nodes.iter().map(node).collect()
}

fn launch<'a>(names: &'a [String], nodes: &[NodeCapacity]) -> LaunchNodes<'a> {
    LaunchNodes {
        names,
        nodes: nodes.to_vec(),
        offered: nodes.to_vec(),
        machine: None,
        processes: nodes.iter().map(|node| node.used).sum(),
    }
}

/// The request of an application on these nodes.
fn app(on: &[u32]) -> AppPlacement {
    AppPlacement {
        count: 0,
        soft: None,
        nodes: on.iter().map(|node| (NodeId(*node), None)).collect(),
        map_by: MapBy::Slot,
        per_node: None,
        oversubscribe: false,
        even: false,
    }
}

fn names() -> Vec<String> {
    ["n0", "n1", "n2"].map(str::to_owned).to_vec()
}

fn ranks(runs: Runs) -> Vec<u32> {
    let ranks = |(node, ranks): (NodeId, u32)| vec![node.0; ranks as usize];
    runs.into_iter().flat_map(ranks).collect()
}

/// Nodes of the ranks, in order, which are then in use.
fn placed(app: &AppPlacement, count: u32, nodes: &mut [NodeCapacity]) -> Result<Vec<u32>, String> {
    let names = names();
    let app = AppPlacement {
        count,
        ..app.clone()
    };
    let placed = place(&PlacementRequest::Apps(vec![&app]), &launch(&names, nodes));
    let nodes_of_ranks = ranks(placed.map_err(|error| error.to_string())?.runs);
    for node in &nodes_of_ranks {
        nodes[*node as usize].used += 1;
    }
    Ok(nodes_of_ranks)
}

/// An application on all of these hosts, and their names and slots.
fn on_hosts(
    hosts: &str,
    per_node: Option<u32>,
    map_by: MapBy,
    oversubscribe: bool,
) -> (AppPlacement, Vec<String>, Vec<NodeCapacity>) {
    let HostList(entries) = hosts.parse().unwrap();
    let hosts = merge(entries).unwrap();
    let nodes: Vec<u32> = (0..).take(hosts.len()).collect();
    let app = AppPlacement {
        per_node,
        map_by,
        oversubscribe,
        ..app(&nodes)
    };
    let slots: Vec<_> = hosts.iter().map(|host| (host.slots, 0)).collect();
    let names = hosts.into_iter().map(|host| host.name).collect();
    (app, names, capacities(&slots))
}

/// Ranks of each node.
fn shares(
    count: u32,
    (mut app, names, nodes): (AppPlacement, Vec<String>, Vec<NodeCapacity>),
) -> Result<Vec<u32>, String> {
    app.count = count;
    let placed = place(&PlacementRequest::Apps(vec![&app]), &launch(&names, &nodes));
    let map = placed
        .map_err(|error| error.to_string())?
        .process_map(nodes.len() as u32);
    Ok(map.node_ids().map(|node| map.local_size(node)).collect())
}

#[test]
fn placement_fills_hosts_in_order_or_in_turn() {
    use MapBy::{Node, Slot};
    let of = |size, hosts, ppn, map_by| shares(size, on_hosts(hosts, ppn, map_by, false)).unwrap();
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
    assert_eq!(of(5, "a,b,c", Some(4), Slot), [4, 1, 0]);
    assert_eq!(of(6, "a:4,b", None, Slot), [4, 2]);
    assert_eq!(of(3, "b,a:4", None, Slot), [1, 2]);
    assert_eq!(of(3, "b,a:4", None, Node), [1, 2]);
    assert_eq!(of(6, "a:4,b", None, Node), [4, 2]);
}

#[test]
fn excess_ranks_are_placed_on_hosts_cyclically() {
    let of = |size, hosts, ppn| shares(size, on_hosts(hosts, ppn, MapBy::Slot, true));
    assert_eq!(of(9, "a:4,b:1", None).unwrap(), [6, 3]);
    assert_eq!(of(10, "a:4,b:1", Some(5)).unwrap(), [5, 5]);
    assert_eq!(of(7, "a:2,b:0,c:2", None).unwrap(), [4, 0, 3]);
    let many = of(1_000_000, "n[1-4096]:1", None).unwrap();
    assert_eq!(many.iter().sum::<u32>(), 1_000_000);
    assert_eq!((many[0], many[4095]), (245, 244));
    let error = of(5, "a:0,b:2", Some(4)).unwrap_err();
    assert!(
        error.starts_with("5 ranks are more than the nodes can have"),
        "{error}"
    );
    assert!(error.contains("(4: 0 on a; 4 on b)"), "{error}");
}

#[test]
fn oversubscription_respects_max_slots() {
    let (mut app, names, mut nodes) = on_hosts("a:1,b:1,c", None, MapBy::Slot, true);
    nodes[0].most = Some(2);
    nodes[2].most = Some(1);
    let of = |count, app: &AppPlacement, nodes: &[NodeCapacity]| {
        shares(count, (app.clone(), names.clone(), nodes.to_vec()))
    };
    assert_eq!(of(7, &app, &nodes).unwrap(), [2, 4, 1]);
    nodes[1].most = Some(2);
    let error = of(7, &app, &nodes).unwrap_err();
    assert!(
        error.contains("(5: 2 on a,b; 1 on c); raise max_slots"),
        "{error}"
    );
    app.oversubscribe = false;
    let error = of(5, &app, &nodes).unwrap_err();
    assert!(
        error.starts_with("5 ranks do not fit in 3 slots (1 on a,b,c)"),
        "{error}"
    );
}

#[test]
fn ranks_without_slots_are_refused_with_arithmetic() {
    let refused =
        |size, hosts, ppn| shares(size, on_hosts(hosts, ppn, MapBy::Slot, false)).unwrap_err();
    assert_eq!(
        refused(9, "n[1-3]:2,m:1", None),
        "9 ranks do not fit in 7 slots (2 on n[1-3]; 1 on m); use --oversubscribe, or -n 7"
    );
    assert_eq!(
        refused(9, "a,b,c,d", Some(2)),
        "9 ranks with at most 2 per node (--ppn, ppr) need 5 nodes, but there are 4; allow more per node, or use more nodes"
    );
    assert!(refused(1, "a:0,b:0", None).starts_with("the hosts have no slots"));
    let most = u64::from(u32::MAX);
    assert_eq!(
        refused(u32::MAX, "a:4", None),
        format!(
            "a launch has at most 10000000 processes, but this one would have {most}; request fewer"
        )
    );
}

#[test]
fn universe_is_capacity_of_hosts() {
    let ranks = ProcessMap::from_runs([(NodeId(0), 3), (NodeId(1), 0)]);
    let of = |hosts, oversubscribe, most| {
        let (_, _, mut nodes) = on_hosts(hosts, None, MapBy::Slot, oversubscribe);
        nodes[0].most = most;
        universe(&nodes, &ranks, oversubscribe)
    };
    assert_eq!(of("a:4,b:2", false, None), (6, false));
    assert_eq!(of("a:4,b:2", false, Some(3)), (5, false));
    assert_eq!(of("a:4,b", false, None), (5, true));
    assert_eq!(of("a:2,b:2", true, None), (4, true));
    assert_eq!(of("a:2,b:0", true, Some(8)), (8, false));
    assert_eq!(of("a:1,b:0", true, None), (3, true));
}

#[test]
fn free_slots_are_filled_in_order_of_requested_nodes() {
    let mut nodes = capacities(&[(Some(2), 1), (Some(2), 0), (Some(2), 2)]);
    assert_eq!(
        placed(&app(&[0, 1, 2]), 2, &mut nodes.clone()),
        Ok(vec![0, 1])
    );
    assert_eq!(placed(&app(&[1, 0]), 3, &mut nodes), Ok(vec![1, 1, 0]));
    assert_eq!(
        nodes.iter().map(|node| node.used).collect::<Vec<_>>(),
        [2, 2, 2]
    );
}

#[test]
fn map_by_node_uses_free_slots_in_turn() {
    let mut nodes = capacities(&[(Some(4), 1), (Some(2), 0), (Some(2), 2)]);
    let mut by_node = app(&[0, 1, 2]);
    by_node.map_by = MapBy::Node;
    assert_eq!(placed(&by_node, 5, &mut nodes), Ok(vec![0, 1, 0, 1, 0]));
}

#[test]
fn ranks_beyond_free_slots_are_refused_with_arithmetic() {
    let mut nodes = capacities(&[(Some(2), 1), (Some(2), 1), (Some(4), 4)]);
    let refused = placed(&app(&[0, 1, 2]), 3, &mut nodes).unwrap_err();
    assert_eq!(
        refused,
        "3 ranks do not fit in 2 free slots (1 of 2 on n[0-1]; 0 of 4 on n2); use --oversubscribe, or \
         start the launch with more slots"
    );
    let mut one = app(&[1]);
    one.nodes[0].1 = Some(0);
    let refused = placed(&one, 1, &mut nodes).unwrap_err();
    assert!(
        refused.starts_with("1 rank does not fit in 0 free slots (0 of 2 on n1)"),
        "{refused}"
    );
    let mut half = capacities(&[(Some(2), 1), (Some(1), 0)]);
    let refused = placed(&app(&[0, 1]), 3, &mut half).unwrap_err();
    assert!(
        refused.contains("(1 of 2 on n0; 1 of 1 on n1)"),
        "{refused}"
    );
    let mut each = app(&[0, 1]);
    each.per_node = Some(1);
    each.oversubscribe = true;
    assert_eq!(
        placed(&each, 3, &mut nodes).unwrap_err(),
        "3 ranks with at most 1 per node (--ppn, ppr) need 3 nodes, but there are 2; allow more per node, or use more nodes"
    );
}

#[test]
fn excess_ranks_stop_at_max_slots() {
    let mut nodes = capacities(&[(Some(1), 1), (Some(2), 1), (Some(0), 0)]);
    nodes[0].most = Some(2);
    let mut over = app(&[0, 1, 2]);
    over.oversubscribe = true;
    assert_eq!(placed(&over, 5, &mut nodes), Ok(vec![0, 1, 1, 1, 1]));
    let mut first = over.clone();
    first.nodes.truncate(1);
    let refused = placed(&first, 1, &mut nodes).unwrap_err();
    assert!(
        refused.starts_with("1 rank is more than the nodes can have even when oversubscribed (0: 0 on n0); raise max_slots"),
        "{refused}"
    );
}

/// Nodes of the ranks of applications with the same request, each after the one before.
fn one_by_one(app: &AppPlacement, counts: &[u32], nodes: &[NodeCapacity]) -> Vec<u32> {
    let apps = counts.iter().map(|count| AppPlacement {
        count: *count,
        ..app.clone()
    });
    let apps: Vec<AppPlacement> = apps.collect();
    let request = PlacementRequest::Apps(apps.iter().collect());
    let placed = place(&request, &launch(&names(), nodes)).unwrap();
    assert_eq!(placed.sizes, counts);
    ranks(placed.runs)
}

#[test]
fn application_begins_where_previous_one_ended() {
    let roomy = capacities(&[(Some(4), 0), (Some(4), 0), (Some(4), 0)]);
    let mut by_node = app(&[0, 1, 2]);
    by_node.map_by = MapBy::Node;
    let placed = one_by_one(&by_node, &[1, 1, 2, 3], &roomy);
    assert_eq!(placed, [0, 1, 2, 0, 1, 2, 0]);
    let mut each = app(&[0, 1, 2]);
    each.per_node = Some(1);
    assert_eq!(one_by_one(&each, &[1, 2, 1], &roomy), [0, 1, 2, 0]);
    let by_slot = app(&[0, 1, 2]);
    let placed = one_by_one(&by_slot, &[2, 3, 1], &roomy);
    assert_eq!(placed, [0, 0, 0, 0, 1, 1]);
    let mut over = app(&[0, 1, 2]);
    over.oversubscribe = true;
    let full = capacities(&[(Some(1), 1), (Some(1), 1), (Some(1), 0)]);
    let placed = one_by_one(&over, &[1, 1, 1, 1, 2], &full);
    assert_eq!(placed, [2, 0, 1, 2, 0, 1]);
}

#[test]
fn excess_ranks_are_placed_on_least_oversubscribed_nodes() {
    let mut over = app(&[0, 1, 2]);
    over.oversubscribe = true;
    let mut nodes = capacities(&[(Some(1), 2), (Some(1), 2), (Some(1), 1)]);
    let placed: Vec<_> = (0..4)
        .map(|_| placed(&over, 1, &mut nodes).unwrap())
        .collect();
    assert_eq!(placed.concat(), [2, 0, 1, 2]);
}

#[test]
fn placement_time_is_independent_of_rank_count() {
    let mut over = app(&[0, 1, 2]);
    over.oversubscribe = true;
    let mut nodes = capacities(&[(Some(1), 1), (None, 7), (Some(1), 3)]);
    nodes[2].most = Some(5);
    let names = names();
    let place = |app: &AppPlacement, count, nodes: Vec<NodeCapacity>| {
        app.place(count, None, &mut nodes.clone(), &launch(&names, &nodes))
    };
    // Hosts of unknown size take all that is left.
    let runs = place(&over, u32::MAX - 10, nodes.clone()).unwrap();
    assert_eq!(runs[1], (NodeId(1), u32::MAX - 10));
    let mut known = capacities(&[(Some(1), 1), (Some(2), 0), (Some(1), 3)]);
    known[2].most = Some(5);
    let runs = place(&over, 2_000_000_001, known).unwrap();
    let shares: Vec<u32> = runs.into_iter().map(|(_, share)| share).collect();
    assert_eq!(shares, [999_999_999, 1_000_000_000, 2]);
}

#[test]
fn hosts_without_slots_share_rest_evenly() {
    let mut nodes = capacities(&[(None, 3), (Some(2), 1), (None, 1)]);
    let all = app(&[0, 1, 2]);
    assert_eq!(placed(&all, 5, &mut nodes), Ok(vec![0, 1, 2, 2, 2]));
}

/// The user's job on virtual nodes with two slots each, on a machine of two processors.
fn on_virtual_nodes(
    count: u32,
    virtual_nodes: u32,
    per_node: Option<u32>,
    map_by: MapBy,
    oversubscribe: bool,
) -> Result<(Vec<u32>, bool), String> {
    let nodes: Vec<u32> = (0..virtual_nodes).collect();
    let app = AppPlacement {
        count,
        per_node,
        map_by,
        oversubscribe,
        even: true,
        ..app(&nodes)
    };
    let names: Vec<String> = nodes.iter().map(|node| format!("v{node}")).collect();
    let nodes = capacities(&vec![(Some(2), 0); nodes.len()]);
    let launch = LaunchNodes {
        machine: Some(SharedMachine {
            processors: 2,
            slots_origin: Box::new(|| "2 CPUs".to_owned()),
        }),
        ..launch(&names, &nodes)
    };
    let placed = place(&PlacementRequest::Apps(vec![&app]), &launch);
    let placed = placed.map_err(|error| error.to_string())?;
    let oversubscribed = placed.oversubscribed;
    let map = placed.process_map(virtual_nodes);
    assert_eq!(map.nodes(), virtual_nodes);
    let node = |rank| map.node_of(crate::job::ids::Rank(rank)).unwrap().0;
    Ok(((0..count).map(node).collect(), oversubscribed))
}

#[test]
fn virtual_nodes_are_filled_evenly_or_in_turn() {
    use MapBy::{Node, Slot};
    let nodes = |count, virtual_nodes, per_node, map_by| {
        on_virtual_nodes(count, virtual_nodes, per_node, map_by, true)
            .unwrap()
            .0
    };
    assert_eq!(nodes(5, 2, None, Slot), [0, 0, 0, 1, 1]);
    assert_eq!(nodes(5, 2, None, Node), [0, 1, 0, 1, 0]);
    assert_eq!(nodes(5, 3, Some(2), Slot), [0, 0, 1, 1, 2]);
    assert_eq!(nodes(5, 3, Some(2), Node), [0, 1, 2, 0, 1]);
    assert_eq!(nodes(7, 3, Some(3), Slot), [0, 0, 0, 1, 1, 1, 2]);
    assert_eq!(nodes(7, 3, None, Slot), [0, 0, 0, 1, 1, 2, 2]);
}

#[test]
fn virtual_node_has_slots_of_machine() {
    let of = |count, virtual_nodes, per_node| {
        on_virtual_nodes(count, virtual_nodes, per_node, MapBy::Slot, false)
    };
    assert_eq!(of(2, 2, None), Ok((vec![0, 1], false)));
    assert_eq!(of(4, 2, None), Ok((vec![0, 0, 1, 1], true)));
    assert_eq!(
        of(3, 1, None).unwrap_err(),
        "3 ranks do not fit in 2 slots (2 CPUs); use --oversubscribe, or -n 2"
    );
    assert_eq!(
        of(4, 2, Some(3)).unwrap_err(),
        "on v0, 3 ranks do not fit in 2 slots (2 CPUs); use --oversubscribe, or --ppn 2"
    );
    assert_eq!(
        of(4, 3, Some(2)).unwrap_err(),
        "4 ranks with --ppn 2 leave nodes empty; 2 virtual nodes are enough"
    );
    assert_eq!(
        of(1, 2, None).unwrap_err(),
        "--virtual-nodes 2 needs at least one rank per node, but there is 1 rank"
    );
}

#[test]
fn layout_places_ranks_as_written() {
    let names = names();
    let nodes = capacities(&[(Some(1), 0), (Some(2), 0), (None, 0)]);
    let place = |list: &[(u32, u32)], size, oversubscribe, even| {
        let runs = list.iter().map(|(node, ranks)| (NodeId(*node), *ranks));
        let request = PlacementRequest::Runs {
            runs: runs.collect(),
            size,
            oversubscribe,
            even,
        };
        let placed = place(&request, &launch(&names, &nodes));
        let placed = placed.map_err(|error| error.to_string())?;
        Ok::<_, String>((ranks(placed.runs), placed.oversubscribed))
    };
    let list = [(1, 1), (0, 1), (1, 1), (2, 2)];
    assert_eq!(
        place(&list, 5, false, true),
        Ok((vec![1, 0, 1, 2, 2], false))
    );
    assert_eq!(place(&[(0, 2)], 2, true, false), Ok((vec![0, 0], true)));
    let refused = |list: &[(u32, u32)], size| place(list, size, false, true).unwrap_err();
    assert_eq!(
        place(&[(0, 2)], 2, false, false).unwrap_err(),
        "on n0, 2 ranks do not fit in 1 slot; use --oversubscribe, or give that node fewer ranks"
    );
    assert!(refused(&list, 4).starts_with("--layout has 5 ranks, but the programs have 4"));
    assert!(
        refused(&[(3, 1)], 1).starts_with("--layout gives ranks to node 3, but there are only 3")
    );
    assert!(refused(&[(0, 1), (2, 1)], 2).contains("no rank to virtual node 1"));
}

#[test]
fn daemons_are_placed_on_nodes_of_debugged_processes() {
    let names = names();
    let nodes = capacities(&[(Some(2), 2), (Some(2), 0), (Some(4), 3)]);
    let launch = launch(&names, &nodes);
    let placed = |count| {
        let daemons = DaemonPlacement {
            debugged: BTreeMap::from([(NodeId(0), 2), (NodeId(2), 3)]),
            count,
        };
        place(&PlacementRequest::Daemons(&daemons), &launch)
    };
    let on = |placement: Placement| (placement.sizes.clone(), ranks(placement.runs));
    let per_node = placed(DaemonCount::PerNode(1)).map(on);
    assert_eq!(per_node, Ok((vec![2], vec![0, 2])));
    let per_process = placed(DaemonCount::PerProcess(2)).map(on);
    let expected = [[0; 4].as_slice(), &[2; 6]].concat();
    assert_eq!(per_process, Ok((vec![10], expected)));
    // Whatever a tool asks for is bounded before there is a map of it.
    let too_many = placed(DaemonCount::PerProcess(u32::MAX)).unwrap_err();
    assert!(
        matches!(too_many, PlacementError::TooMany { .. }),
        "{too_many}"
    );
}
