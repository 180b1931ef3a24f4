use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::job::clock::Moment;
use crate::job::ids::{Nspace, Rank};
use crate::node::NodeCore;
use crate::node::event::NodeEvent;
use crate::node::served;
use crate::pmix::upcall::{Upcall, UpcallRequest};
use crate::pmix::value::PmixRank;

/// An order to write: on which node, its number, for whom, what.
type Order = (u32, u64, Vec<NodeRank>, Vec<u8>);

/// Three nodes with two ranks each, and what they are to write.
struct Job {
    cores: Vec<NodeCore>,
    orders: VecDeque<Order>,
    answers: Vec<(u32, Status)>,
}

impl Job {
    fn new() -> Self {
        Self {
            cores: served::three_nodes(),
            orders: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    fn feed(&mut self, node: u32, event: NodeEvent<'_>) {
        for (node, action) in served::deliver(&mut self.cores, node, event, Moment::default()) {
            match action {
                NodeAction::WriteStdin {
                    number,
                    ranks,
                    bytes,
                } => self.orders.push_back((node, number, ranks, bytes)),
                NodeAction::SendUpcall(bytes) => {
                    let answers = served::answers(&bytes);
                    self.answers
                        .extend(answers.map(|(_, parts)| (node, parts.status)));
                }
                _ => {}
            }
        }
    }

    fn push(&mut self, node: u32, targets: Vec<PmixProc>, data: &[u8]) {
        let upcall = Upcall::Request(UpcallRequest::PushStdin {
            source: proc(node * 2),
            targets,
            infos: Vec::new(),
            data: data.to_vec(),
        });
        let frame = upcall.encode(7).unwrap();
        self.feed(node, NodeEvent::UpcallReceived(&frame));
    }

    /// The driver has done the oldest order for one of its ranks.
    fn fed(&mut self, order: &Order, at: usize, fed: StdinWriteResult) {
        let (node, number, ranks, _) = order;
        let (number, rank) = (*number, ranks[at]);
        self.feed(
            *node,
            NodeEvent::StdinWritten {
                number,
                rank,
                result: fed,
            },
        );
    }
}

fn proc(rank: u32) -> PmixProc {
    PmixProc::new(&Nspace::new("job").unwrap(), PmixRank::from(Rank(rank)))
}

fn everybody() -> Vec<PmixProc> {
    vec![PmixProc::new(
        &Nspace::new("job").unwrap(),
        PmixRank::WILDCARD,
    )]
}

#[test]
fn push_is_answered_after_every_reader_on_every_node_has_it() {
    let mut job = Job::new();
    job.push(1, everybody(), b"text");
    let orders: Vec<Order> = job.orders.drain(..).collect();
    let both = vec![NodeRank(0), NodeRank(1)];
    let mut nodes: Vec<u32> = orders.iter().map(|order| order.0).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1, 2]);
    for order in &orders {
        assert_eq!((&order.2, &order.3[..]), (&both, &b"text"[..]));
        job.fed(order, 1, StdinWriteResult::Done);
    }
    assert_eq!(job.answers, []);
    for order in &orders {
        job.fed(order, 0, StdinWriteResult::Done);
    }
    assert_eq!(job.answers, [(1, Status::SUCCESS)]);
}

#[test]
fn unreachable_reader_is_reported_to_pusher() {
    for (fed, status) in [
        (StdinWriteResult::NoPipe, Status::ERR_NOT_SUPPORTED),
        (StdinWriteResult::Gone, Status::ERR_UNREACH),
        (StdinWriteResult::Full, Status::ERR_OUT_OF_RESOURCE),
    ] {
        let mut job = Job::new();
        job.push(0, vec![proc(5), proc(4)], b"text");
        let order = job.orders.pop_front().unwrap();
        assert_eq!((order.0, job.orders.len()), (2, 0));
        job.fed(&order, 0, fed);
        job.fed(&order, 1, StdinWriteResult::Done);
        assert_eq!(job.answers, [(0, status)]);
    }
}

#[test]
fn push_without_or_to_unknown_targets_is_refused() {
    let mut job = Job::new();
    job.push(0, Vec::new(), b"text");
    job.push(0, vec![proc(6)], b"text");
    let other = PmixProc::new(&Nspace::new("other").unwrap(), PmixRank::WILDCARD);
    job.push(0, vec![proc(0), other], b"text");
    let not_found = (0, Status::ERR_NOT_FOUND);
    assert_eq!(
        job.answers,
        [(0, Status::ERR_BAD_PARAM), not_found, not_found]
    );
    assert!(job.orders.is_empty());
}

#[test]
fn lost_node_blocks_no_push() {
    let mut job = Job::new();
    job.push(0, vec![proc(1), proc(4)], b"text");
    let here = job.orders.pop_front().unwrap();
    job.fed(&here, 0, StdinWriteResult::Done);
    assert_eq!(job.answers, []);
    let (nodes, reason) = (&[NodeId(2)][..], Arc::from("silent"));
    job.feed(0, NodeEvent::NodesLost { nodes, reason });
    assert_eq!(job.answers, [(0, Status::ERR_UNREACH)]);
}

#[test]
fn end_of_launch_answers_pending_pushes() {
    let mut job = Job::new();
    job.push(0, vec![proc(4)], b"text");
    job.feed(0, NodeEvent::LaunchEnded);
    assert_eq!(job.answers, [(0, Status::ERR_LOST_CONNECTION)]);
}
