use crate::node::NodeCore;
use std::sync::Arc;

use super::*;
use crate::fence::{FenceOperation, FenceTimeout};
use crate::job::ids::{GlobalRank, Nspace};
use crate::job::spec::FenceTimeoutSpec;
use crate::node::CollectivePolicy;
use crate::node::event::NodeEvent;
use crate::node::served;

const SECOND: Duration = Duration::from_secs(1);

/// The first of two nodes with two ranks each.
fn core(limit: FenceTimeoutSpec) -> NodeCore {
    let terms = CollectivePolicy {
        limit,
        ..CollectivePolicy::default()
    };
    NodeCore::new(
        NodeId(0),
        Arc::new(served::job(&[2, 2])),
        true,
        false,
        terms,
    )
    .unwrap()
}

fn feed_pmi(core: &mut NodeCore, rank: u32, text: &str, at: Duration) -> Vec<NodeAction> {
    let event = NodeEvent::PmiReceived {
        rank: NodeRank(rank),
        bytes: text.as_bytes(),
    };
    let mut actions = Vec::new();
    core.handle(event, Moment(at), &mut actions);
    actions
}

fn cause(actions: Vec<NodeAction>) -> Option<FailureCause> {
    let mut causes = actions.into_iter().filter_map(|action| match action {
        NodeAction::Notify(NodeNotice::Failed(cause)) => Some(cause),
        _ => None,
    });
    causes.next()
}

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

#[test]
fn fence_series_encodes_its_barrier() {
    let job = Nspace::new("job").unwrap();
    let ranks = CollectiveScope::Ranks([1, 2, 3, 7].map(Rank).into());
    let all = [
        (CollectiveScope::World, 0),
        (CollectiveScope::World, 7),
        (CollectiveScope::Node, 0),
        (CollectiveScope::Node, 7),
        (ranks.clone(), 0),
        (ranks, 9),
    ];
    let all = all.map(|(scope, tag)| PmiCollective::Barrier { scope, tag });
    let mut all_series = Vec::new();
    for collective in all.into_iter().chain([PmiCollective::Ring]) {
        let who = series(&job, &collective);
        assert_eq!(collective_of(&who), Some((&job, collective)));
        assert!(!all_series.contains(&who), "{who:?}");
        all_series.push(who);
    }
    for kind in [
        FenceOperation::Pmix,
        FenceOperation::Connect,
        FenceOperation::Disconnect,
    ] {
        let participants = Participants::whole_job(job.clone());
        assert_eq!(collective_of(&FenceSeries { kind, participants }), None);
    }
}

#[test]
fn barrier_of_one_node_times_out_and_its_ranks_are_named() {
    let mut core = core(FenceTimeoutSpec::After(5 * SECOND));
    feed_pmi(&mut core, 0, INIT, SECOND);
    feed_pmi(&mut core, 1, INIT, SECOND);
    feed_pmi(&mut core, 0, "cmd=barrier_in group=NODE:7\n", 2 * SECOND);
    let mut actions = Vec::new();
    while let Some(next) = core.next_deadline() {
        core.handle(NodeEvent::Tick, next, &mut actions);
    }
    let has_failed = actions.iter().any(|action| {
        matches!(action, NodeAction::SendPmi { rank: NodeRank(0), bytes }
            if bytes.starts_with(b"cmd=barrier_out rc=-1 msg=fence_timed_out_after_5_s"))
    });
    assert!(has_failed, "{actions:?}");
    let Some(FailureCause::FenceTimeout(late)) = cause(actions) else {
        panic!("no cause");
    };
    assert_eq!((late.kind, late.waited), (FenceKind::Pmi, 5 * SECOND));
    let [absent] = &late.absences.named[..] else {
        panic!("{late:?}");
    };
    assert_eq!(
        (absent.rank, absent.idle),
        (GlobalRank(1), Some(6 * SECOND))
    );
    assert_eq!(absent.last_request, "connected, last init");
}

#[test]
fn completed_barrier_of_one_node_leaves_no_timeout() {
    let mut core = core(FenceTimeoutSpec::After(5 * SECOND));
    for rank in [0, 1] {
        feed_pmi(&mut core, rank, INIT, SECOND);
    }
    for round in 2..5 {
        for rank in [0, 1] {
            let now = round * SECOND;
            feed_pmi(&mut core, rank, "cmd=barrier_in group=0,1:7\n", now);
        }
        assert_eq!(core.next_deadline(), None);
    }
}

#[test]
fn ranks_in_barrier_get_node_loss_at_once() {
    let mut core = core(FenceTimeoutSpec::Unlimited);
    feed_pmi(&mut core, 0, INIT, SECOND);
    feed_pmi(&mut core, 0, "cmd=barrier_in\n", SECOND);
    let mut actions = Vec::new();
    let lost = NodeEvent::NodesLost {
        nodes: &[NodeId(1)],
        reason: "stream closed".into(),
    };
    core.handle(lost, Moment(SECOND), &mut actions);
    let [NodeAction::SendPmi { rank, bytes }] = &actions[..] else {
        panic!("{actions:?}");
    };
    assert_eq!(*rank, NodeRank(0));
    let text = String::from_utf8_lossy(bytes);
    assert!(
        text.starts_with("cmd=barrier_out rc=-1 msg=fence_failed"),
        "{text}"
    );
}

#[test]
fn timeout_of_program_counts_unless_user_timeout_is_shorter() {
    let terms = |limit| CollectivePolicy {
        limit,
        ..CollectivePolicy::default()
    };
    let program_timeout = Some(30 * SECOND);
    for (limit, program_timeout, expected) in [
        (
            FenceTimeoutSpec::Sensible,
            None,
            Some((60, TimeoutSource::Default)),
        ),
        (
            FenceTimeoutSpec::Sensible,
            program_timeout,
            Some((30, TimeoutSource::Program)),
        ),
        (FenceTimeoutSpec::Unlimited, None, None),
        (
            FenceTimeoutSpec::Unlimited,
            program_timeout,
            Some((30, TimeoutSource::Program)),
        ),
        (
            FenceTimeoutSpec::After(9 * SECOND),
            program_timeout,
            Some((9, TimeoutSource::User)),
        ),
        (
            FenceTimeoutSpec::After(90 * SECOND),
            program_timeout,
            Some((30, TimeoutSource::Program)),
        ),
    ] {
        let timeout = terms(limit).timeout_or(program_timeout);
        let expected = expected.map(|(seconds, kind)| FenceTimeout {
            after: seconds * SECOND,
            kind,
        });
        assert_eq!(timeout, expected, "{limit:?} {program_timeout:?}");
    }
}
