use super::*;
use crate::job::ids::GlobalRank;
use crate::job::job_table::JobTable;
use crate::job::outcome::EXIT_WIREUP;
use crate::job::process_map::ProcessMap;
use crate::link::agent_protocol::NO_SIGN;
use crate::supervisor::first_failure::LossOrigin;

/// Two ranks on each of three nodes, all of which are ready.
fn decided() -> (NodeTracker, JobTable<ProcessMap>) {
    let map = ProcessMap::from_runs((0..3).map(|node| (NodeId(node), 2)));
    let mut fleet = NodeTracker::new(3, 6, 100);
    let ends = (0..3).map(|node| concluded(|out| fleet.ready(known(&fleet, node), out)));
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends, [vec![], vec![], vec![TrackerAction::Ready]]);
    (fleet, JobTable::new(map))
}

fn known(fleet: &NodeTracker, node: u32) -> KnownNode {
    fleet.look_up(NodeId(node)).unwrap()
}

fn rank_of(jobs: &JobTable<ProcessMap>, rank: u32) -> KnownRank {
    jobs.look_up(GlobalRank(rank)).unwrap()
}

fn concluded(event: impl FnOnce(&mut Vec<TrackerAction>)) -> Vec<TrackerAction> {
    let mut out = Vec::new();
    event(&mut out);
    out
}

#[test]
fn node_lost_before_ready_is_refused_with_own_reason() {
    let jobs = JobTable::new(ProcessMap::from_runs((0..3).map(|node| (NodeId(node), 1))));
    let mut fleet = NodeTracker::new(3, 3, 100);
    let branch = [NodeId(1), NodeId(2)];
    let out = concluded(|out| fleet.lose_branch(&branch, "down", "behind", &jobs, out));
    assert_eq!(
        out,
        [1, 2].map(|rank| TrackerAction::Gone(rank_of(&jobs, rank)))
    );
    let refusal = |message: &str| NodeRefusal {
        code: EXIT_WIREUP,
        message: message.to_owned(),
    };
    let refused = vec![(NodeId(1), refusal("down")), (NodeId(2), refusal("behind"))];
    let out = concluded(|out| fleet.ready(known(&fleet, 0), out));
    assert_eq!(out, [TrackerAction::Refused(refused)]);
}

#[test]
fn node_silent_before_start_may_be_behind_launcher_network() {
    let jobs = JobTable::new(ProcessMap::from_runs((0..3).map(|node| (NodeId(node), 1))));
    let mut fleet = NodeTracker::new(3, 3, 100);
    concluded(|out| fleet.ready(known(&fleet, 0), out));
    concluded(|out| fleet.ready(known(&fleet, 2), out));
    concluded(|out| fleet.lose_branch(&[NodeId(1)], NO_SIGN, "behind", &jobs, out));
    // Node 2 has answered, and may be as silent.
    assert_eq!(fleet.blame(NO_SIGN), LossOrigin::Either);
    assert_eq!(fleet.blame("killed"), LossOrigin::Lost);
    let (mut fleet, jobs) = decided();
    concluded(|out| fleet.lose_branch(&[NodeId(1)], NO_SIGN, "behind", &jobs, out));
    assert_eq!(fleet.blame(NO_SIGN), LossOrigin::Lost);
}

#[test]
fn node_lost_later_fails_job_once_and_its_ranks_exit_once() {
    let (mut fleet, jobs) = decided();
    fleet.rank_done(rank_of(&jobs, 2));
    let lose = |fleet: &mut NodeTracker| {
        concluded(|out| fleet.lose(&[NodeId(1)], "down", "down", &jobs, out))
    };
    let expected = [
        TrackerAction::HostFailed(NodeId(1), "down".into()),
        TrackerAction::Gone(rank_of(&jobs, 3)),
        TrackerAction::NodesLost(vec![NodeId(1)], "down".into()),
    ];
    assert_eq!(lose(&mut fleet), expected);
    assert_eq!(lose(&mut fleet), []);
    let mut out = Vec::new();
    for node in [0, 2] {
        assert_eq!(out, []);
        fleet.node_over(known(&fleet, node), &mut out);
    }
    assert_eq!(out, [TrackerAction::Over]);
}

#[test]
fn nodes_that_miss_kill_or_end_deadline_are_given_up() {
    let (mut fleet, jobs) = decided();
    let now = Duration::from_secs(1);
    fleet.kill(now);
    assert_eq!(fleet.next_deadline(), None, "the job is not being ended");
    assert!(fleet.end() && !fleet.end());
    fleet.kill(now);
    for rank in [0, 1, 4, 5] {
        fleet.rank_ended(rank_of(&jobs, rank));
    }
    assert_eq!(concluded(|out| fleet.tick(&jobs, now, out)), []);
    let at = fleet.next_deadline().unwrap();
    let out = concluded(|out| fleet.tick(&jobs, at, out));
    assert_eq!(out[0], TrackerAction::Late(NodeId(1), "kill its ranks"));
    assert_eq!(concluded(|out| fleet.finish(now, at, out)), []);
    assert_eq!(concluded(|out| fleet.node_over(known(&fleet, 0), out)), []);
    let at = fleet.next_deadline().unwrap();
    let out = concluded(|out| fleet.tick(&jobs, at, out));
    let late = TrackerAction::Late(NodeId(2), "end its part of the job");
    assert_eq!(out[0], late);
    assert_eq!(out.last(), Some(&TrackerAction::Over));
}

#[test]
fn lost_joining_node_fails_nothing() {
    let (mut fleet, jobs) = decided();
    fleet.add_nodes(5);
    let guest = NodeId(3);
    assert!(fleet.is_joining(known(&fleet, 3)));
    let out = concluded(|out| fleet.lose(&[guest], "down", "down", &jobs, out));
    assert!(matches!(&out[..], [TrackerAction::Joined(node, Some(_))] if *node == guest));
    let out = concluded(|out| fleet.ready(known(&fleet, 4), out));
    assert_eq!(out, [TrackerAction::Joined(NodeId(4), None)]);
    assert!(!fleet.is_joining(known(&fleet, 4)));
    assert_eq!(fleet.look_up(NodeId(5)), None);
}

#[test]
fn node_without_running_ranks_leaves_and_its_loss_fails_nothing() {
    let (mut fleet, jobs) = decided();
    let node = NodeId(1);
    assert!(!fleet.release(node, &jobs), "its ranks run");
    for rank in [2, 3] {
        fleet.rank_done(rank_of(&jobs, rank));
    }
    assert!(fleet.release(node, &jobs) && !fleet.release(node, &jobs));
    // A job that is started meanwhile has no rank there.
    fleet.add_job(JobIndex(1), 6);
    for other in [0, 2] {
        assert_eq!(
            concluded(|out| fleet.started(known(&fleet, other), JobIndex(0), out)),
            []
        );
    }
    let start = |fleet: &mut NodeTracker, node| {
        concluded(|out| fleet.started(known(fleet, node), JobIndex(1), out))
    };
    assert_eq!(start(&mut fleet, 0), []);
    assert_eq!(
        start(&mut fleet, 2),
        [TrackerAction::AllStarted(JobIndex(1))]
    );
    assert_eq!(concluded(|out| fleet.node_over(known(&fleet, 1), out)), []);
    let lose =
        |fleet: &mut NodeTracker| concluded(|out| fleet.lose(&[node], "down", "down", &jobs, out));
    assert_eq!(lose(&mut fleet), [TrackerAction::Left(node)]);
    assert_eq!(lose(&mut fleet), []);
    assert!(fleet.is_lost(node) && !fleet.release(node, &jobs));
}

#[test]
fn end_does_not_wait_for_joining_node() {
    let (mut fleet, _) = decided();
    fleet.add_nodes(4);
    let now = Duration::from_secs(1);
    assert_eq!(concluded(|out| fleet.finish(now, now, out)), []);
    let over =
        |fleet: &mut NodeTracker, node| concluded(|out| fleet.node_over(known(fleet, node), out));
    assert_eq!(over(&mut fleet, 0), []);
    assert_eq!(over(&mut fleet, 1), []);
    assert_eq!(over(&mut fleet, 2), [TrackerAction::Over]);
}
