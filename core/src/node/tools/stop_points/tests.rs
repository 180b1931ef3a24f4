use super::*;
use crate::job::clock::Moment;
use crate::node::NodeCore;
use crate::node::event::NodeAction;
use crate::node::event::NodeEvent;
use crate::node::served;
use crate::pmix::sidecar_protocol::serve::SidecarRequest;
use crate::pmix::upcall::{Notice, Upcall};
use crate::pmix::wire::Reader;

/// Three nodes with two ranks each, and the ranks that were released on each.
struct Job(Vec<NodeCore>, Vec<(u32, u32)>);

impl Job {
    /// A rank says that it waits; gives the nodes whose servers raise an event then, and whose it is.
    fn waits(&mut self, node: u32, rank: PmixRank) -> Vec<(u32, u32)> {
        let notice = Upcall::Notice(Notice::NotifyEvent {
            code: Status::READY_FOR_DEBUG,
            source: PmixProc {
                nspace: "job".into(),
                rank,
            },
            range: DataRange::RM,
            infos: vec![Info::new(keys::BREAKPOINT, Value::String(IN_INIT.into()))],
        });
        let frame = notice.encode(0).unwrap();
        let event = NodeEvent::UpcallReceived(&frame);
        let mut raised = Vec::new();
        for (node, action) in served::deliver(&mut self.0, node, event, Moment::default()) {
            let NodeAction::SendControl(bytes) = action else {
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
fn every_server_reports_once_when_last_rank_waits() {
    let mut job = Job(served::three_nodes(), Vec::new());
    for _ in 0..2 {
        for (node, rank) in [(0, 0), (0, 1), (2, 5), (2, 4), (1, 2), (1, 2)] {
            assert_eq!(job.waits(node, PmixRank(rank)), [], "rank {rank}");
        }
        let mut raised = job.waits(1, PmixRank(3));
        raised.sort_unstable();
        assert_eq!(raised, [(0, 0), (1, 0), (2, 0)]);
    }
}

#[test]
fn server_that_counts_itself_reports_for_its_node() {
    let mut job = Job(served::three_nodes(), Vec::new());
    assert_eq!(job.waits(0, PmixRank::LOCAL_PEERS), []);
    assert_eq!(job.waits(1, PmixRank::LOCAL_PEERS), []);
    assert_eq!(job.waits(2, PmixRank::LOCAL_PEERS).len(), 3);
}

#[test]
fn ranks_of_other_nodes_do_not_count() {
    let mut job = Job(served::three_nodes(), Vec::new());
    assert_eq!(job.waits(0, PmixRank(2)), []);
    assert_eq!(job.waits(0, PmixRank(77)), []);
    assert_eq!(job.waits(0, PmixRank(0)), []);
    let stopped = &job.0[0].services.stopped_ranks;
    assert_eq!(stopped.ranks[&(JobIndex(0), StopPoint::Init)].len(), 1);
    assert!(stopped.nodes.is_empty());
}

#[test]
fn excluded_ranks_are_released_and_others_counted() {
    let mut cores = served::three_nodes();
    for core in &mut cores {
        let mut context = (**core.cx.job(JobIndex(0))).clone();
        context.debug.in_init = "1,4".parse().map(RankChoice::Only).ok();
        core.cx.jobs.get_mut(JobIndex(0)).unwrap().context = Arc::new(context);
    }
    let mut job = Job(cores, Vec::new());
    for (node, rank) in [(0, 0), (1, 2), (1, 3), (2, 4)] {
        assert_eq!(job.waits(node, PmixRank(rank)), [], "rank {rank}");
    }
    assert_eq!(job.1, [(0, 0), (1, 2), (1, 3)]);
    let mut raised = job.waits(0, PmixRank::LOCAL_PEERS);
    raised.sort_unstable();
    assert_eq!(raised, [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(job.1[3..], [(0, 0)]);
}

/// Handles the release of ranks on a node.
fn released(job: &mut Job, node: usize, infos: &[Info]) {
    let NodeCore { services, cx, .. } = &mut job.0[node];
    services.stopped_ranks.rank_released(infos, cx);
}

#[test]
fn ranks_wait_until_released_by_debugger_or_launch() {
    let mut job = Job(served::three_nodes(), Vec::new());
    let holding =
        |job: &Job| -> Vec<bool> { job.0.iter().map(NodeCore::has_stopped_ranks).collect() };
    for (node, rank) in [(0, 0), (0, 1), (1, 2), (2, 4)] {
        job.waits(node, PmixRank(rank));
    }
    assert_eq!(holding(&job), [true; 3]);
    let range = |rank| {
        let whom = Value::Proc(PmixProc {
            nspace: "job".into(),
            rank,
        });
        vec![Info::new(keys::EVENT_CUSTOM_RANGE, whom)]
    };
    released(&mut job, 0, &range(PmixRank(0)));
    assert!(job.0[0].has_stopped_ranks());
    released(&mut job, 0, &range(PmixRank(1)));
    released(&mut job, 1, &range(PmixRank::WILDCARD));
    assert_eq!(holding(&job), [false, false, true]);
    let mut actions = Vec::new();
    job.0[2].with_actions(Moment::default(), &mut actions, |core| {
        core.release_stopped_ranks()
    });
    assert!(matches!(actions[..], [NodeAction::SendControl(_)]));
    assert!(!job.0[2].has_stopped_ranks());
}
