use super::*;
use crate::job::ids::Rank;

/// Launches of two nodes, each with one job of two ranks, one on each node.
struct Launches {
    hubs: Vec<InterlaunchHub>,
    /// Packets on their way.
    packets: Vec<(usize, HeadNodeMessage)>,
    registering: Vec<(usize, NodeId, InterlaunchId, Vec<RemoteJob>)>,
    released: Vec<(usize, NodeId, InterlaunchResult)>,
}

fn job(launch: usize) -> Nspace {
    Nspace::new(&format!("job-{launch}")).unwrap()
}

fn own(launch: usize) -> LocalParticipants {
    let nodes = [NodeId(0), NodeId(1)];
    LocalParticipants {
        nodes: nodes.into(),
        jobs: vec![RemoteJob {
            nspace: job(launch),
            ranks: ProcessMap::from_runs(nodes.map(|node| (node, 1))),
            node_names: vec!["a".into(), "b".into()],
            universe_size: 2,
            programs: 1,
        }],
    }
}

fn members() -> InterlaunchMembers {
    vec![
        (job(0), RankOrWildcard::Wildcard),
        (job(1), RankOrWildcard::One(Rank(0))),
        (job(1), RankOrWildcard::One(Rank(1))),
    ]
}

impl Launches {
    fn new() -> Self {
        Self {
            hubs: vec![InterlaunchHub::default(), InterlaunchHub::default()],
            packets: Vec::new(),
            registering: Vec::new(),
            released: Vec::new(),
        }
    }

    fn on(&mut self, launch: usize, what: impl FnOnce(&mut InterlaunchHub)) {
        what(&mut self.hubs[launch]);
        for output in self.hubs[launch].take_actions() {
            match output {
                InterlaunchAction::Send { to, packet } => {
                    let to = usize::from(to == job(1));
                    assert_ne!(to, launch);
                    self.packets.push((to, packet));
                }
                InterlaunchAction::Register { key, nodes, jobs } => {
                    for node in nodes {
                        let registering = (launch, node, key.clone(), jobs.clone());
                        self.registering.push(registering);
                    }
                }
                InterlaunchAction::Release { nodes, outcome, .. } => {
                    let nodes = nodes.into_iter();
                    self.released
                        .extend(nodes.map(|node| (launch, node, outcome.clone())));
                }
            }
        }
    }

    fn arrive(&mut self, launch: usize, node: u32, act: InterlaunchOperation) {
        let data = vec![launch as u8, node as u8];
        let deadline = Some(Moment(Duration::from_secs(9)));
        self.on(launch, |hub| {
            let arrival = NodeArrival {
                node: NodeId(node),
                status: 0,
                data,
                deadline,
            };
            hub.arrive(act, members(), own(launch), arrival);
        });
    }

    fn deliver(&mut self) {
        for (to, packet) in std::mem::take(&mut self.packets) {
            self.on(to, |hub| match packet {
                HeadNodeMessage::Arrived {
                    key,
                    jobs,
                    status,
                    data,
                } => {
                    let data = &data;
                    let arrival = LaunchArrival { jobs, status, data };
                    hub.arrived(&key, own(to), arrival);
                }
                HeadNodeMessage::Ready { key, jobs } => hub.ready(&key, &jobs),
                other => panic!("{other:?}"),
            });
        }
    }

    fn register(&mut self, count: usize) {
        for (launch, node, key, _) in self.registering.drain(..count).collect::<Vec<_>>() {
            self.on(launch, |hub| hub.registered(&key, node, Ok(())));
        }
    }
}

#[test]
fn fence_ends_with_data_of_all_after_last_arrival() {
    for round in 0..2 {
        let mut launches = Launches::new();
        for _ in 0..=round {
            launches.released.clear();
            for (launch, node) in [(1, 0), (0, 1), (1, 1)] {
                launches.arrive(launch, node, InterlaunchOperation::Fence);
                launches.deliver();
                assert!(launches.released.is_empty());
            }
            launches.arrive(0, 0, InterlaunchOperation::Fence);
            launches.deliver();
            launches.deliver();
            assert_eq!(launches.released.len(), 4);
            for (_, _, outcome) in &launches.released {
                let (status, data) = outcome.clone().unwrap();
                let mut parts: Vec<&[u8]> = data.chunks(2).collect();
                parts.sort_unstable();
                assert_eq!(
                    (status, parts),
                    (0, vec![&[0, 0][..], &[0, 1], &[1, 0], &[1, 1]])
                );
            }
        }
    }
}

#[test]
fn connect_completes_after_all_servers_know_other_jobs() {
    let mut launches = Launches::new();
    for (launch, node) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        launches.arrive(launch, node, InterlaunchOperation::Connect);
    }
    launches.deliver();
    assert_eq!(launches.registering.len(), 4);
    for (launch, _, _, jobs) in &launches.registering {
        assert_eq!(jobs[0].nspace, job(1 - launch));
    }
    launches.register(3);
    launches.deliver();
    assert!(launches.released.is_empty());
    launches.register(1);
    launches.deliver();
    assert_eq!(launches.released.len(), 4);
    assert!(
        launches
            .released
            .iter()
            .all(|(_, _, outcome)| outcome.is_ok())
    );
}

#[test]
fn failed_server_lost_launch_or_deadline_ends_operation() {
    let begin = || {
        let mut launches = Launches::new();
        for node in [0, 1] {
            launches.arrive(0, node, InterlaunchOperation::Connect);
        }
        launches
    };
    let mut launches = begin();
    let gone = |nspace: &Nspace| *nspace == job(1);
    launches.on(0, |hub| hub.gone(gone, -7));
    assert_eq!(
        launches.released,
        [0, 1].map(|node| (0, NodeId(node), Err(-7)))
    );

    let mut launches = begin();
    let due = launches.hubs[0].next_deadline().unwrap();
    launches.on(0, |hub| hub.tick(due, -8));
    assert_eq!(
        launches.released,
        [0, 1].map(|node| (0, NodeId(node), Err(-8)))
    );
    assert_eq!(launches.hubs[0].next_deadline(), None);

    let mut launches = begin();
    for node in [0, 1] {
        launches.arrive(1, node, InterlaunchOperation::Connect);
    }
    launches.deliver();
    let (launch, node, key, _) = launches.registering.remove(0);
    launches.on(launch, |hub| hub.registered(&key, node, Err(-9)));
    assert_eq!(
        launches.released,
        [0, 1].map(|node| (launch, NodeId(node), Err(-9)))
    );
}
