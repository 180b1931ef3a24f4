use std::time::Duration;

use super::*;

const LATER: Moment = Moment(Duration::from_secs(10));

fn question() -> NodeQuery {
    NodeQuery {
        jobs: vec![Nspace::new("job").unwrap()],
        memory: false,
    }
}

/// What a node of this number says.
fn part(node: u32) -> NodeQueryReply {
    let process = QueriedProcess {
        rank: Rank(node),
        pid: Some(100 + node),
        executable: b"/bin/x".to_vec(),
        life: ProcessState::Running,
        memory: None,
    };
    NodeQueryReply {
        jobs: vec![vec![process]],
        server: None,
        uri: format!("server.{node};tcp4://127.0.0.1:{node}").into_bytes(),
    }
}

/// Three nodes whose messages are delivered at once; a node that is `mute` says nothing.
struct Nodes {
    engines: Vec<QueryEngine<u32>>,
    mute: Option<NodeId>,
    answers: Vec<(u32, BTreeMap<NodeId, NodeQueryResult>)>,
}

impl Nodes {
    fn new(mute: Option<u32>) -> Self {
        Self {
            engines: (0..3).map(|node| QueryEngine::new(NodeId(node))).collect(),
            mute: mute.map(NodeId),
            answers: Vec::new(),
        }
    }

    fn at(
        &mut self,
        node: u32,
        act: impl FnOnce(&mut QueryEngine<u32>, &mut Vec<QueryAction<u32>>),
    ) {
        let mut out = Vec::new();
        act(&mut self.engines[node as usize], &mut out);
        self.carry_out(node, out);
    }

    fn carry_out(&mut self, node: u32, out: Vec<QueryAction<u32>>) {
        for output in out {
            match output {
                QueryAction::Send { to, message } => {
                    let from = NodeId(node);
                    self.at(to.0, |engine, out| engine.message(from, message, out));
                }
                QueryAction::Look { .. } if self.mute == Some(NodeId(node)) => {}
                QueryAction::Look { query, .. } => {
                    self.at(node, |engine, out| {
                        engine.on_inspected(query, part(node), out)
                    });
                }
                QueryAction::Complete {
                    ticket,
                    results_by_node,
                } => self.answers.push((ticket, results_by_node)),
            }
        }
    }

    fn ask(&mut self, node: u32, ticket: u32, of: &[u32]) {
        let of: Vec<NodeId> = of.iter().copied().map(NodeId).collect();
        self.at(node, |engine, out| {
            engine.start_query(&question(), of, ticket, LATER, out);
        });
    }
}

fn results(of: &[(u32, NodeQueryResult)]) -> BTreeMap<NodeId, NodeQueryResult> {
    let of = of.iter().cloned();
    of.map(|(node, result)| (NodeId(node), result)).collect()
}

#[test]
fn each_node_is_queried_once_and_requester_answered_once() {
    let mut nodes = Nodes::new(None);
    nodes.ask(1, 7, &[2, 1, 0, 1, 2]);
    let all: Vec<_> = (0..3)
        .map(|node| (node, NodeQueryResult::Part(part(node))))
        .collect();
    assert_eq!(nodes.answers, [(7, results(&all))]);
    assert_eq!(nodes.engines[1].next_deadline(), None);
    nodes.ask(1, 8, &[]);
    assert_eq!(nodes.answers[1], (8, BTreeMap::new()));
}

#[test]
fn lost_node_is_reported_and_not_awaited() {
    let mut nodes = Nodes::new(Some(2));
    nodes.ask(0, 1, &[0, 2]);
    assert!(nodes.answers.is_empty());
    nodes.at(0, |engine, out| engine.node_lost(NodeId(2), out));
    let known = results(&[
        (0, NodeQueryResult::Part(part(0))),
        (2, NodeQueryResult::Lost),
    ]);
    assert_eq!(nodes.answers, [(1, known.clone())]);
    nodes.ask(0, 2, &[0, 2]);
    assert_eq!(nodes.answers[1], (2, known));
}

#[test]
fn silent_node_is_awaited_until_deadline() {
    let mut nodes = Nodes::new(Some(2));
    nodes.ask(0, 1, &[1, 2]);
    assert_eq!(nodes.engines[0].next_deadline(), Some(LATER));
    let early = Moment(Duration::from_secs(9));
    nodes.at(0, |engine, out| engine.tick(early, out));
    assert!(nodes.answers.is_empty());
    nodes.at(0, |engine, out| engine.tick(LATER, out));
    let known = results(&[
        (1, NodeQueryResult::Part(part(1))),
        (2, NodeQueryResult::Nothing),
    ]);
    assert_eq!(nodes.answers, [(1, known)]);
}

#[test]
fn late_or_duplicate_reply_is_ignored() {
    let mut nodes = Nodes::new(Some(2));
    nodes.ask(0, 1, &[2]);
    nodes.at(0, |engine, out| engine.tick(LATER, out));
    nodes.ask(0, 2, &[2, 1]);
    assert_eq!(nodes.answers.len(), 1);
    let reply = |serial| QueryMessage::Reply {
        serial,
        part: part(2),
    };
    // Of the first question, from a wrong node, and of the second.
    let two = NodeId(2);
    nodes.at(0, |engine, out| engine.message(two, reply(0), out));
    nodes.at(0, |engine, out| engine.message(NodeId(1), reply(1), out));
    assert_eq!(nodes.answers.len(), 1);
    nodes.at(0, |engine, out| engine.message(two, reply(1), out));
    nodes.at(0, |engine, out| engine.message(two, reply(1), out));
    let known = results(&[
        (1, NodeQueryResult::Part(part(1))),
        (2, NodeQueryResult::Part(part(2))),
    ]);
    assert_eq!(nodes.answers[1..], [(2, known)]);
}

#[test]
fn end_answers_all_pending_queries() {
    let mut nodes = Nodes::new(Some(2));
    nodes.ask(0, 1, &[2]);
    nodes.at(0, QueryEngine::tear_down);
    let known = results(&[(2, NodeQueryResult::Nothing)]);
    assert_eq!(nodes.answers, [(1, known.clone())]);
    nodes.ask(0, 2, &[2]);
    assert_eq!(nodes.answers[1], (2, known));
}
