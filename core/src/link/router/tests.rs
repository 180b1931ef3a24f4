use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

type Bytes = Vec<u8>;
type Packet = RoutedFrame<Bytes>;
type Growth = GrowthRequest<Bytes>;
type Event = RouterEvent<Bytes>;
type Action = RouterAction<Bytes>;

fn packet(to: FrameAddress, from: FrameAddress, body: &str) -> Packet {
    Packet {
        to,
        from,
        more: false,
        body: body.as_bytes().to_vec(),
    }
}

fn node(node: u32) -> FrameAddress {
    FrameAddress::Node(NodeId(node))
}

fn handle(router: &mut Router, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    router.handle(event, &mut actions);
    actions
}

/// Node 1 of seven in a binary tree: node 0 is above, 3 and 4 are below.
fn middle() -> Router {
    Router::new(TreePosition::Member(NodeId(1)), RoutingTree::new(7, 1, 2))
}

#[test]
fn local_neighbour_has_its_own_address_whatever_it_claims() {
    let tree = RoutingTree::new(7, 1, 2);
    let mut root = Router::new(TreePosition::EntryAndRoot, tree);
    let claimed = packet(node(0), node(5), "x");
    assert_eq!(
        handle(&mut root, Event::Carried(Neighbour::Up, claimed.clone())),
        [Action::Send(
            Neighbour::Step,
            packet(node(0), FrameAddress::Launcher, "x")
        )]
    );
    let claimed = packet(FrameAddress::Launcher, FrameAddress::Launcher, "x");
    assert_eq!(
        handle(&mut middle(), Event::Carried(Neighbour::Step, claimed)),
        [Action::Send(
            Neighbour::Up,
            packet(FrameAddress::Launcher, node(1), "x")
        )]
    );
}

#[test]
fn frame_from_wrong_side_is_refused() {
    let child = |node| Neighbour::Child(NodeId(node));
    for (from, to, source) in [
        // As a node behind another neighbour, or as this node itself.
        (child(3), node(0), node(4)),
        (child(3), node(0), node(1)),
        (child(3), node(0), node(0)),
        (child(3), node(0), FrameAddress::Launcher),
        (child(3), node(0), FrameAddress::EveryNode),
        (Neighbour::Up, node(1), node(3)),
        (Neighbour::Up, node(1), node(1)),
        // To where it came from, or nowhere.
        (Neighbour::Up, node(0), node(2)),
        (Neighbour::Up, FrameAddress::Launcher, node(0)),
        (child(3), node(3), node(3)),
        (Neighbour::Up, node(7), node(2)),
        // To children that only a step has.
        (child(3), FrameAddress::Children, node(3)),
        (Neighbour::Up, FrameAddress::Children, node(0)),
    ] {
        let actions = handle(&mut middle(), Event::Carried(from, packet(to, source, "x")));
        assert!(
            matches!(&actions[..], [Action::Refuse(_)]),
            "{from:?} {to:?} {source:?}: {actions:?}"
        );
    }
}

#[test]
fn lost_child_is_reported_once_with_its_subtree() {
    let mut root = Router::new(TreePosition::EntryAndRoot, RoutingTree::new(7, 1, 2));
    let child = NodeId(1);
    let loss = |nodes: &[u32], reason: &str, step| {
        Action::Report(NodeLoss {
            nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
            reason: reason.to_owned(),
            step,
        })
    };
    // Its step and a node behind it were lost before.
    let reported = |nodes: &[u32], step| {
        Event::Reported(
            child,
            NodeLoss {
                nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
                reason: "first".into(),
                step,
            },
        )
    };
    assert_eq!(
        handle(&mut root, reported(&[1], true)),
        [loss(&[1], "first", true)]
    );
    assert_eq!(
        handle(&mut root, reported(&[3], false)),
        [loss(&[3], "first", false)]
    );
    assert_eq!(handle(&mut root, reported(&[3], false)), []);
    let gone = Event::ChildGone {
        child,
        reason: "then".into(),
    };
    assert_eq!(
        handle(&mut root, gone.clone()),
        [loss(&[1, 4], "then", false)]
    );
    assert_eq!(handle(&mut root, gone), []);
    for to in [node(1), node(3), node(4)] {
        let sent = packet(to, FrameAddress::Launcher, "x");
        assert_eq!(handle(&mut root, Event::Carried(Neighbour::Up, sent)), []);
    }
    let late = packet(node(0), node(4), "x");
    let late = Event::Carried(Neighbour::Child(child), late);
    assert_eq!(handle(&mut root, late), []);
}

#[test]
fn child_may_not_report_others() {
    let mut root = Router::new(TreePosition::EntryAndRoot, RoutingTree::new(7, 1, 2));
    let loss = NodeLoss {
        nodes: vec![NodeId(2), NodeId(99)],
        reason: "x".into(),
        step: false,
    };
    let actions = handle(&mut root, Event::Reported(NodeId(1), loss));
    assert!(matches!(&actions[..], [Action::Refuse(_)]), "{actions:?}");
}

#[test]
fn recovery_report_of_lost_node_is_forwarded_without_effect() {
    let mut root = Router::new(TreePosition::EntryAndRoot, RoutingTree::new(7, 1, 2));
    let back = |node| NodeReturned {
        node: NodeId(node),
        rebooted: true,
    };
    let reported = |child, node| Event::ReportedBack(NodeId(child), back(node));
    assert_eq!(handle(&mut root, reported(1, 3)), [], "it was not lost");
    let loss = NodeLoss {
        nodes: vec![NodeId(3)],
        reason: "x".into(),
        step: false,
    };
    handle(&mut root, Event::Reported(NodeId(1), loss));
    assert_eq!(
        handle(&mut root, reported(1, 3)),
        [Action::ReportBack(back(3))]
    );
    let foreign = handle(&mut root, reported(2, 3));
    assert!(matches!(&foreign[..], [Action::Refuse(_)]), "{foreign:?}");
    let gone = Event::ChildGone {
        child: NodeId(1),
        reason: "y".into(),
    };
    handle(&mut root, gone);
    assert_eq!(
        handle(&mut root, Event::Back(back(1))),
        [Action::ReportBack(back(1))]
    );
    let late = packet(node(0), node(1), "x");
    let late = Event::Carried(Neighbour::Child(NodeId(1)), late);
    assert_eq!(handle(&mut root, late), []);
    handle(&mut root, Event::UpGone { reason: "z".into() });
    assert_eq!(handle(&mut root, Event::Back(back(1))), []);
}

#[test]
fn router_is_idle_after_launcher_step_and_children_left() {
    let mut router = middle();
    let up = Event::UpGone { reason: "x".into() };
    assert_eq!(
        handle(&mut router, up.clone()),
        [
            Action::Orphan("x".into()),
            Action::Close(NodeId(3)),
            Action::Close(NodeId(4))
        ]
    );
    assert_eq!(handle(&mut router, up), []);
    let gone = |child| Event::ChildGone {
        child: NodeId(child),
        reason: "y".into(),
    };
    assert_eq!(handle(&mut router, gone(3)), []);
    let step = Event::StepGone { reason: "z".into() };
    assert_eq!(handle(&mut router, step), []);
    assert_eq!(handle(&mut router, gone(4)), [Action::End]);
}

#[test]
fn entry_without_node_ends_with_its_launcher() {
    let mut entry = Router::new(TreePosition::Entry, RoutingTree::new(3, 128, 32));
    assert_eq!(entry.child_nodes(), [NodeId(0)]);
    let up = Event::UpGone { reason: "x".into() };
    assert_eq!(handle(&mut entry, up), [Action::Close(NodeId(0))]);
    let gone = Event::ChildGone {
        child: NodeId(0),
        reason: "y".into(),
    };
    assert_eq!(handle(&mut entry, gone), [Action::End]);
}

/// The ends of links that have a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Party {
    Launcher,
    Entry,
    Agent(u32),
    Step(u32),
}

enum Message {
    Carried(Packet),
    Report(NodeLoss),
    Grow(Growth),
    End,
}

/// A launch with all its agents, whose links are queues.
struct Launch {
    tree: RoutingTree,
    /// The launcher is at the root's agent.
    short: bool,
    routers: BTreeMap<Party, Router>,
    links: BTreeMap<(Party, Party), VecDeque<Message>>,
    /// What arrived: at whom, from whom, which of the source's.
    arrived: Vec<(Party, FrameAddress, u32)>,
    reported: Vec<NodeLoss>,
    ended: BTreeSet<Party>,
}

#[derive(Clone, Debug)]
enum Deed {
    Send { from: u32, to: u32 },
    Deliver(prop::sample::Index),
    StepEnds(u32),
    AgentDies(u32),
}

impl Launch {
    /// A launch of `nodes` nodes, which `joined` further ones have joined.
    fn new(nodes: u32, joined: u32, width: u32, short: bool) -> Self {
        let mut launch = Self::of_first(nodes, width, short);
        let names: Vec<_> = (nodes..nodes + joined).map(|n| format!("n{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let first = if short { Party::Agent(0) } else { Party::Entry };
        launch.tree = launch.tree.grown(nodes + joined);
        launch.push(Party::Launcher, first, Message::Grow(growth(&names)));
        while launch.deliver_first() {}
        launch
    }

    fn of_first(nodes: u32, width: u32, short: bool) -> Self {
        let tree = RoutingTree::new(nodes, 1, width);
        let mut routers = BTreeMap::new();
        if !short {
            routers.insert(Party::Entry, Router::new(TreePosition::Entry, tree));
        }
        for node in 0..nodes {
            let place = match (node, short) {
                (0, true) => TreePosition::EntryAndRoot,
                _ => TreePosition::Member(NodeId(node)),
            };
            routers.insert(Party::Agent(node), Router::new(place, tree));
        }
        Self {
            tree,
            short,
            routers,
            links: BTreeMap::new(),
            arrived: Vec::new(),
            reported: Vec::new(),
            ended: BTreeSet::new(),
        }
    }

    fn party(&self, at: Party, neighbour: Neighbour) -> Party {
        match (at, neighbour) {
            (_, Neighbour::Child(node)) => Party::Agent(node.0),
            (Party::Agent(node), Neighbour::Step) => Party::Step(node),
            (Party::Agent(node), Neighbour::Up) => match self.tree.parent(NodeId(node)) {
                Some(parent) => Party::Agent(parent.0),
                None if self.short => Party::Launcher,
                None => Party::Entry,
            },
            (_, _) => Party::Launcher,
        }
    }

    fn neighbour(&self, at: Party, party: Party) -> Neighbour {
        match party {
            Party::Step(_) => Neighbour::Step,
            Party::Agent(node) if self.party(at, Neighbour::Up) != party => {
                Neighbour::Child(NodeId(node))
            }
            _ => Neighbour::Up,
        }
    }

    fn push(&mut self, from: Party, to: Party, message: Message) {
        self.links.entry((from, to)).or_default().push_back(message);
    }

    /// A node at the edge sends a message with false claims.
    fn say(&mut self, from: Party, to: FrameAddress, count: u32) {
        let lie = FrameAddress::Node(NodeId(count % self.tree.nodes()));
        let packet = packet(to, lie, &count.to_string());
        let at = match from {
            Party::Step(node) => Party::Agent(node),
            _ if self.short => Party::Agent(0),
            _ => Party::Entry,
        };
        self.push(from, at, Message::Carried(packet));
    }

    fn act(&mut self, at: Party, event: Event) {
        let Some(router) = self.routers.get_mut(&at) else {
            return;
        };
        for action in handle(router, event) {
            match action {
                Action::Send(to, packet) => {
                    self.push(at, self.party(at, to), Message::Carried(packet));
                }
                Action::Report(loss) => {
                    self.push(at, self.party(at, Neighbour::Up), Message::Report(loss));
                }
                // A step that is notified ends.
                Action::Orphan(_) => self.push(at, self.party(at, Neighbour::Step), Message::End),
                Action::Close(child) => self.push(at, Party::Agent(child.0), Message::End),
                // Only local neighbours ask, and none does here.
                Action::Answer(_) => {}
                Action::Refuse(what) => panic!("{what}"),
                Action::PassOn(growth) => self.push(at, Party::Agent(0), Message::Grow(growth)),
                Action::Join(first, growth) => {
                    let last = first.0 + growth.members.len() as u32;
                    for node in first.0..last {
                        let router = Router::new(TreePosition::Member(NodeId(node)), self.tree);
                        self.routers.insert(Party::Agent(node), router);
                    }
                }
                Action::ReportBack(returned) => panic!("{returned:?}, whose agent was not asked"),
                Action::End => {
                    self.ended.insert(at);
                    self.die(at);
                }
            }
        }
    }

    /// Everybody it was connected to notices, after what it had sent.
    fn die(&mut self, at: Party) {
        if let Some(router) = self.routers.remove(&at) {
            let below = router.child_nodes().into_iter().map(Neighbour::Child);
            let all = below.chain([Neighbour::Up]);
            let parties: Vec<Party> = all.map(|n| self.party(at, n)).collect();
            for party in parties {
                self.push(at, party, Message::End);
            }
        }
    }

    /// Moves one message over one of the links that have some.
    fn deliver(&mut self, which: &prop::sample::Index) -> bool {
        let full: Vec<_> = self.links.iter().filter(|(_, q)| !q.is_empty()).collect();
        if full.is_empty() {
            return false;
        }
        let (from, to) = *full[which.index(full.len())].0;
        self.deliver_over(from, to);
        true
    }

    fn deliver_first(&mut self) -> bool {
        let mut full = self.links.iter().filter(|(_, q)| !q.is_empty());
        let Some((&(from, to), _)) = full.next() else {
            return false;
        };
        self.deliver_over(from, to);
        true
    }

    fn deliver_over(&mut self, from: Party, to: Party) {
        let message = self
            .links
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        match (to, message.unwrap()) {
            (Party::Launcher | Party::Step(_), Message::Carried(packet)) => {
                let count = std::str::from_utf8(&packet.body).unwrap().parse().unwrap();
                self.arrived.push((to, packet.from, count));
            }
            (Party::Launcher, Message::Report(loss)) => self.reported.push(loss),
            (Party::Step(node), Message::End) => self.step_ends(node),
            (_, Message::Grow(growth)) => self.act(to, Event::Grow(growth)),
            (_, Message::Carried(packet)) => {
                let neighbour = self.neighbour(to, from);
                self.act(to, Event::Carried(neighbour, packet));
            }
            (_, message) => {
                let event = match (self.neighbour(to, from), message) {
                    (Neighbour::Child(child), Message::Report(loss)) => {
                        Event::Reported(child, loss)
                    }
                    (Neighbour::Child(child), _) => Event::ChildGone {
                        child,
                        reason: "gone".into(),
                    },
                    (Neighbour::Step, _) => Event::StepGone {
                        reason: "ended".into(),
                    },
                    (Neighbour::Up, _) => Event::UpGone {
                        reason: "gone".into(),
                    },
                };
                self.act(to, event);
            }
        }
    }

    fn step_ends(&mut self, node: u32) {
        self.push(Party::Step(node), Party::Agent(node), Message::End);
    }

    fn settle(&mut self, order: &prop::sample::Index) {
        while self.deliver(order) {}
    }

    /// The nodes that are cut off when an agent dies.
    fn behind(&self, node: u32) -> BTreeSet<NodeId> {
        self.tree.subtree(NodeId(node)).into_iter().collect()
    }
}

fn deeds(faults: bool) -> impl Strategy<Value = Vec<Deed>> {
    let who = any::<u32>();
    let send = (who, any::<u32>()).prop_map(|(from, to)| Deed::Send { from, to });
    let deliver = any::<prop::sample::Index>().prop_map(Deed::Deliver);
    let weight = u32::from(faults);
    prop::collection::vec(
        prop_oneof![
            20 => send,
            60 => deliver,
            weight * 2 => any::<u32>().prop_map(Deed::StepEnds),
            weight => any::<u32>().prop_map(Deed::AgentDies),
        ],
        0..200,
    )
}

/// What should arrive, or may when there are faults.
type Expected = Vec<(Party, FrameAddress, u32)>;

fn run(
    launch: &mut Launch,
    deeds: &[Deed],
    order: &prop::sample::Index,
) -> (Expected, BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let nodes = launch.tree.nodes();
    let mut expected = Vec::new();
    let (mut cut, mut stepless) = (BTreeSet::new(), BTreeSet::new());
    for (count, deed) in (0..).zip(deeds) {
        match deed {
            Deed::Send { from, to } => {
                let from = match from % (nodes + 1) {
                    n if n == nodes => Party::Launcher,
                    n => Party::Step(n),
                };
                if let Party::Step(n) = from
                    && (stepless.contains(&NodeId(n)) || cut.contains(&NodeId(n)))
                {
                    continue;
                }
                let source = match from {
                    Party::Step(n) => node(n),
                    _ => FrameAddress::Launcher,
                };
                let to = match to % (nodes + 3) {
                    n if n == nodes => FrameAddress::EveryNode,
                    n if n == nodes + 1 && from != Party::Launcher => FrameAddress::Launcher,
                    n if n == nodes + 2 && from != Party::Launcher => FrameAddress::Children,
                    n => node(n % nodes),
                };
                match to {
                    FrameAddress::Launcher => expected.push((Party::Launcher, source, count)),
                    FrameAddress::Node(NodeId(n)) => expected.push((Party::Step(n), source, count)),
                    FrameAddress::Children => {
                        let Party::Step(n) = from else {
                            panic!("only steps have children");
                        };
                        let below = launch.tree.first_children(NodeId(n));
                        expected.extend(below.map(|child| (Party::Step(child.0), source, count)));
                    }
                    FrameAddress::EveryNode => {
                        let all = (0..nodes).map(Party::Step).filter(|step| *step != from);
                        expected.extend(all.map(|step| (step, source, count)));
                    }
                }
                launch.say(from, to, count);
            }
            Deed::Deliver(which) => {
                launch.deliver(which);
            }
            Deed::StepEnds(n) if stepless.insert(NodeId(n % nodes)) => launch.step_ends(n % nodes),
            Deed::AgentDies(n) => {
                launch.die(Party::Agent(n % nodes));
                cut.extend(launch.behind(n % nodes));
            }
            Deed::StepEnds(_) => {}
        }
    }
    launch.settle(order);
    (expected, cut, stepless)
}

/// What came from one source to one destination, in order.
fn by_pair(all: &[(Party, FrameAddress, u32)]) -> BTreeMap<(Party, FrameAddress), Vec<u32>> {
    let mut pairs: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for (at, from, count) in all {
        pairs.entry((*at, *from)).or_default().push(*count);
    }
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_frame_arrives_once_in_order_of_its_source(
        nodes in 1..40_u32, joined in 0..4_u32, width in 2..6_u32, short: bool, deeds in deeds(false),
        order: prop::sample::Index,
    ) {
        let mut launch = Launch::new(nodes, joined, width, short);
        let (expected, ..) = run(&mut launch, &deeds, &order);
        prop_assert_eq!(by_pair(&launch.arrived), by_pair(&expected));
        prop_assert!(launch.reported.is_empty());
        let first = if short { Party::Agent(0) } else { Party::Entry };
        launch.push(Party::Launcher, first, Message::End);
        launch.settle(&order);
        prop_assert_eq!(launch.ended.len(), (nodes + joined) as usize + usize::from(!short));
    }

    #[test]
    fn each_loss_is_reported_once_and_rest_ends_with_launcher(
        nodes in 1..40_u32, joined in 0..4_u32, width in 2..6_u32, short: bool, deeds in deeds(true),
        order: prop::sample::Index,
    ) {
        let mut launch = Launch::new(nodes, joined, width, short);
        let (expected, cut, stepless) = run(&mut launch, &deeds, &order);

        let expected = by_pair(&expected);
        for (pair, counts) in by_pair(&launch.arrived) {
            // Some may be missing; none is out of order, twice, or somewhere else.
            let mut sent = expected[&pair].iter();
            for count in counts {
                prop_assert!(sent.any(|s| *s == count), "{:?}: {}", pair, count);
            }
        }

        // A root that dies takes its launcher's connection with it when it is the entry.
        if !(short && cut.contains(&NodeId(0))) {
            let with = |step| {
                let losses = launch.reported.iter().filter(move |loss| loss.step == step);
                losses.flat_map(|loss| loss.nodes.clone()).collect::<Vec<_>>()
            };
            let (agents, steps) = (with(false), with(true));
            for list in [&agents, &steps] {
                let once: BTreeSet<_> = list.iter().collect();
                prop_assert_eq!(once.len(), list.len(), "reported twice: {:?}", list);
            }
            let all: BTreeSet<NodeId> = agents.iter().chain(&steps).copied().collect();
            let lost: BTreeSet<NodeId> = cut.union(&stepless).copied().collect();
            prop_assert_eq!(all, lost);
            prop_assert!(agents.iter().all(|node| cut.contains(node)));
            prop_assert!(steps.iter().all(|node| stepless.contains(node)));
            let first = if short { Party::Agent(0) } else { Party::Entry };
            launch.push(Party::Launcher, first, Message::End);
        }
        launch.settle(&order);
        // Those that were cut off have ended as well, each by itself.
        prop_assert!(launch.routers.is_empty(), "{:?}", launch.routers.keys());
    }
}

fn growth(names: &[&str]) -> Growth {
    let member = |name: &&str| NodeAddress {
        name: (*name).to_owned(),
        address: format!("{name}:7437"),
    };
    Growth {
        members: names.iter().map(member).collect(),
        description: Bytes::new(),
    }
}

#[test]
fn joining_nodes_are_below_root_and_after_all_others() {
    let child = |node| Neighbour::Child(NodeId(node));
    let carried = |router: &mut Router, from, to, source| {
        handle(router, Event::Carried(from, packet(to, source, "x")))
    };
    let two = growth(&["n7", "n8"]);
    let tree = RoutingTree::new(7, 1, 2);
    for place in [TreePosition::EntryAndRoot, TreePosition::Member(NodeId(0))] {
        let mut root = Router::new(place, tree);
        let early = carried(&mut root, Neighbour::Step, node(7), node(0));
        assert!(matches!(&early[..], [Action::Refuse(_)]), "{early:?}");
        assert_eq!(
            handle(&mut root, Event::Grow(two.clone())),
            [Action::Join(NodeId(7), two.clone())]
        );
        assert_eq!(
            carried(&mut root, Neighbour::Step, node(8), node(0)),
            [Action::Send(child(8), packet(node(8), node(0), "x"))]
        );
        assert_eq!(
            carried(&mut root, child(8), node(4), node(8)),
            [Action::Send(child(1), packet(node(4), node(8), "x"))]
        );
        // As another node that joined.
        let foreign = carried(&mut root, child(8), node(4), node(7));
        assert!(matches!(&foreign[..], [Action::Refuse(_)]), "{foreign:?}");
        // What a step has for its children is for those it knows.
        let down = carried(&mut root, Neighbour::Step, FrameAddress::Children, node(0));
        let to = |node_: u32| Action::Send(child(node_), packet(node(node_), node(0), "x"));
        assert_eq!(down, [to(1), to(2)]);
        // Everybody is everybody.
        let all = packet(FrameAddress::EveryNode, FrameAddress::Launcher, "x");
        let all = handle(&mut root, Event::Carried(Neighbour::Up, all));
        let reached = |at| {
            all.iter()
                .any(|a| matches!(a, Action::Send(to, _) if *to == at))
        };
        assert!([1, 2, 7, 8].into_iter().all(|at| reached(child(at))));
        assert_eq!(all.len(), 5);
        // The loss of one is the loss of it alone.
        let reason = "gone".to_owned();
        let lost = handle(
            &mut root,
            Event::ChildGone {
                child: NodeId(7),
                reason: reason.clone(),
            },
        );
        let loss = NodeLoss {
            nodes: vec![NodeId(7)],
            reason,
            step: false,
        };
        assert_eq!(lost, [Action::Report(loss)]);
        assert_eq!(carried(&mut root, Neighbour::Step, node(7), node(0)), []);
        // More may come.
        let one = growth(&["n9"]);
        assert_eq!(
            handle(&mut root, Event::Grow(one.clone())),
            [Action::Join(NodeId(9), one)]
        );
    }
    // Others need no notice.
    let mut middle = middle();
    assert_eq!(
        carried(&mut middle, Neighbour::Up, node(3), node(8)),
        [Action::Send(child(3), packet(node(3), node(8), "x"))]
    );
    assert_eq!(
        carried(&mut middle, child(3), node(8), node(3)),
        [Action::Send(Neighbour::Up, packet(node(8), node(3), "x"))]
    );
    let refused = handle(&mut middle, Event::Grow(two));
    assert!(matches!(&refused[..], [Action::Refuse(_)]), "{refused:?}");
}

#[test]
fn entry_agent_forwards_joins_and_loses_them_with_root() {
    let mut entry = Router::new(TreePosition::Entry, RoutingTree::new(2, 128, 32));
    let one = growth(&["n2"]);
    assert_eq!(
        handle(&mut entry, Event::Grow(one.clone())),
        [Action::PassOn(one)]
    );
    let gone = Event::ChildGone {
        child: NodeId(0),
        reason: "gone".to_owned(),
    };
    let Action::Report(loss) = handle(&mut entry, gone).remove(0) else {
        panic!("nothing was reported");
    };
    assert_eq!(loss.nodes, [0, 1, 2].map(NodeId));
}

#[test]
fn link_to_child_is_closed_when_last_node_behind_it_is_lost() {
    // 0 has the children 1 and 2, and 1 has 3 and 4.
    let mut root = Router::new(TreePosition::Member(NodeId(0)), RoutingTree::new(5, 1, 2));
    let lost = |nodes: &[u32]| NodeLoss {
        nodes: nodes.iter().copied().map(NodeId).collect(),
        reason: "ended".into(),
        step: true,
    };
    let mut closes = |nodes: &[u32]| {
        let child = NodeId(if nodes == [2] { 2 } else { 1 });
        let actions = handle(&mut root, Event::Reported(child, lost(nodes)));
        let closed = actions.into_iter().filter_map(|action| match action {
            Action::Close(child) => Some(child.0),
            _ => None,
        });
        closed.collect::<Vec<_>>()
    };
    assert_eq!(closes(&[1]), [0; 0]);
    assert_eq!(closes(&[3]), [0; 0]);
    assert_eq!(closes(&[3]), [0; 0]);
    assert_eq!(closes(&[2]), [2]);
    assert_eq!(closes(&[4]), [1]);
}
