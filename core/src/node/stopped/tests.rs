use super::super::served;
use super::*;
use crate::job::clock::Moment;
use crate::node::NodeCore;
use crate::node::event::Action;
use crate::node::event::Event;
use crate::pmix::control::serve::SidecarRequest;
use crate::pmix::upcall::{Notice, Upcall};
use crate::pmix::wire::Reader;

/// Three nodes with two ranks each, and the ranks that were released on each.
struct Job(Vec<NodeCore>, Vec<(u32, u32)>);

impl Job {
    /// A rank says that it waits; gives the nodes whose servers raise an event then, and whose it is.
    fn waits(&mut self, node: u32, rank: ProcRank) -> Vec<(u32, u32)> {
        let notice = Upcall::Notice(Notice::NotifyEvent {
            code: Status::READY_FOR_DEBUG,
            source: Proc {
                nspace: "job".into(),
                rank,
            },
            range: DataRange::RM,
            infos: vec![Info::new(keys::BREAKPOINT, Value::String(IN_INIT.into()))],
        });
        let frame = notice.encode(0).unwrap();
        let event = Event::UpcallReceived(&frame);
        let mut raised = Vec::new();
        for (node, action) in served::deliver(&mut self.0, node, event, Moment::default()) {
            let Action::SendControl(bytes) = action else {
                continue;
            };
            for frame in served::frames(&bytes) {
                let Ok(SidecarRequest::Notify {
                    code,
                    source,
                    infos,
                    ..
                }) = SidecarRequest::decode(&frame)
                else {
                    continue;
                };
                match code {
                    Status::READY_FOR_DEBUG => raised.push((node, source.rank.0)),
                    code => {
                        assert_eq!(code, Status::DEBUGGER_RELEASE);
                        let mut infos = Reader::new(infos);
                        let infos = Info::decode_list(&mut infos).unwrap();
                        let Some(Value::Proc(whom)) = find(&infos, keys::EVENT_CUSTOM_RANGE) else {
                            panic!("{infos:?}");
                        };
                        self.1.push((node, whom.rank.0));
                    }
                }
            }
        }
        raised
    }
}

#[test]
fn every_server_tells_once_when_the_last_rank_of_the_last_node_waits() {
    let mut job = Job(served::three_nodes(), Vec::new());
    for _ in 0..2 {
        for (node, rank) in [(0, 0), (0, 1), (2, 5), (2, 4), (1, 2), (1, 2)] {
            assert_eq!(job.waits(node, ProcRank(rank)), [], "rank {rank}");
        }
        let mut raised = job.waits(1, ProcRank(3));
        raised.sort_unstable();
        assert_eq!(raised, [(0, 0), (1, 0), (2, 0)]);
    }
}

#[test]
fn a_server_that_counts_by_itself_speaks_for_its_node() {
    let mut job = Job(served::three_nodes(), Vec::new());
    assert_eq!(job.waits(0, ProcRank::LOCAL_PEERS), []);
    assert_eq!(job.waits(1, ProcRank::LOCAL_PEERS), []);
    assert_eq!(job.waits(2, ProcRank::LOCAL_PEERS).len(), 3);
}

#[test]
fn ranks_of_other_nodes_do_not_count() {
    let mut job = Job(served::three_nodes(), Vec::new());
    assert_eq!(job.waits(0, ProcRank(2)), []);
    assert_eq!(job.waits(0, ProcRank(77)), []);
    assert_eq!(job.waits(0, ProcRank(0)), []);
    let stopped = &job.0[0].services.stopped;
    assert_eq!(stopped.ranks[&(JobNumber(0), Place::Init)].len(), 1);
    assert!(stopped.nodes.is_empty());
}

#[test]
fn ranks_that_are_not_to_wait_are_released_and_the_others_counted() {
    let mut cores = served::three_nodes();
    for core in &mut cores {
        let mut context = (**core.cx.job(JobNumber(0))).clone();
        context.debug.in_init = "1,4".parse().map(RankChoice::Only).ok();
        core.cx.jobs.get_mut(JobNumber(0)).unwrap().context = Arc::new(context);
    }
    let mut job = Job(cores, Vec::new());
    for (node, rank) in [(0, 0), (1, 2), (1, 3), (2, 4)] {
        assert_eq!(job.waits(node, ProcRank(rank)), [], "rank {rank}");
    }
    assert_eq!(job.1, [(0, 0), (1, 2), (1, 3)]);
    let mut raised = job.waits(0, ProcRank::LOCAL_PEERS);
    raised.sort_unstable();
    assert_eq!(raised, [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(job.1[3..], [(0, 0)]);
}

/// Handles the release of ranks on a node.
fn released(job: &mut Job, node: usize, infos: &[Info]) {
    let NodeCore { services, cx, .. } = &mut job.0[node];
    services.stopped.rank_released(infos, cx);
}

#[test]
fn ranks_wait_until_a_debugger_has_released_them_or_they_are_let_go() {
    let mut job = Job(served::three_nodes(), Vec::new());
    let holding = |job: &Job| -> Vec<bool> { job.0.iter().map(NodeCore::holds_ranks).collect() };
    for (node, rank) in [(0, 0), (0, 1), (1, 2), (2, 4)] {
        job.waits(node, ProcRank(rank));
    }
    assert_eq!(holding(&job), [true; 3]);
    let range = |rank| {
        let whom = Value::Proc(Proc {
            nspace: "job".into(),
            rank,
        });
        vec![Info::new(keys::EVENT_CUSTOM_RANGE, whom)]
    };
    released(&mut job, 0, &range(ProcRank(0)));
    assert!(job.0[0].holds_ranks());
    released(&mut job, 0, &range(ProcRank(1)));
    released(&mut job, 1, &range(ProcRank::WILDCARD));
    assert_eq!(holding(&job), [false, false, true]);
    let mut actions = Vec::new();
    job.0[2].with_actions(Moment::default(), &mut actions, |core| core.let_go());
    assert!(matches!(actions[..], [Action::SendControl(_)]));
    assert!(!job.0[2].holds_ranks());
}
