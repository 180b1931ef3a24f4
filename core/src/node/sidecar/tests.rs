use crate::node::NodeCore;
use std::sync::Arc;

use super::DOUBT_LIMIT;
use super::*;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, NodeRank, Nspace, Rank};
use crate::job::outcome::{FailureCause, RankEnd};
use crate::link::liveness::{BUSY_LIMIT, SILENCE};
use crate::node::event::{NodeEvent, NodeReport, SidecarActivity, SidecarEnd};
use crate::node::{CollectivePolicy, served};
use crate::pmix::sidecar_protocol::serve::{self, Body};
use crate::pmix::sidecar_protocol::{ControlKind, ForkEnv, Init};
use crate::pmix::upcall::{Notice, Upcall, UpcallRequest};
use crate::pmix::value::PmixProc;

/// One node with two ranks and a sidecar that was just started.
struct Node {
    core: NodeCore,
    now: Moment,
    nspace: Nspace,
    /// What its process is seen to do.
    doing: SidecarActivity,
}

/// The first requests of a sidecar.
fn requests(nspace: &Nspace) -> [SidecarCommand; 2] {
    [
        SidecarCommand::Init(Init {
            nspace: Nspace::new("job-host").unwrap(),
            rank: Rank(0),
            hostname: "here".into(),
            tmpdir: "/tmp".into(),
        }),
        SidecarCommand::RegisterJob {
            nspace: nspace.clone(),
            infos: Vec::new(),
            clients: Vec::new(),
        },
    ]
}

impl Node {
    fn new() -> Self {
        let job = served::job(&[2]);
        let nspace = job.nspace.clone();
        let mut core = NodeCore::new(
            NodeId(0),
            Arc::new(job),
            false,
            true,
            CollectivePolicy::default(),
        )
        .unwrap();
        let mut actions = Vec::new();
        core.with_actions(Moment::default(), &mut actions, |core| {
            core.start_sidecar(&requests(&nspace))
        });
        assert_eq!(actions.len(), 2);
        Self {
            core,
            now: Moment::default(),
            nspace,
            doing: SidecarActivity::Waits,
        }
    }

    /// A node whose sidecar has registered the job.
    fn ready() -> Self {
        let mut node = Self::new();
        node.reply(ControlKind::Init, 1, Body::Done);
        let env = ForkEnv::default();
        let actions = node.reply(ControlKind::RegisterJob, 2, Body::ForkEnv(&env));
        assert!(matches!(
            actions[..],
            [NodeAction::Notify(NodeNotice::SidecarReady { env: _, .. })]
        ));
        node
    }

    fn handle(&mut self, event: NodeEvent<'_>) -> Vec<NodeAction> {
        let mut actions = Vec::new();
        self.core.handle(event, self.now, &mut actions);
        if matches!(actions[..], [NodeAction::ObserveSidecar]) {
            actions.clear();
            let observation = NodeEvent::SidecarObserved(self.doing);
            self.core.handle(observation, self.now, &mut actions);
        }
        actions
    }

    fn reply(&mut self, kind: ControlKind, id: u64, body: Body<'_>) -> Vec<NodeAction> {
        let frame = serve::reply(kind, id, Ok(body)).unwrap();
        self.handle(NodeEvent::ControlReceived(&frame))
    }

    fn rank_finalized(&mut self, rank: u32) {
        let proc = PmixProc::new(&self.nspace, Rank(rank));
        let frame = Upcall::Notice(Notice::ClientFinalized { proc })
            .encode(0)
            .unwrap();
        let expected = NodeRank(rank);
        assert!(matches!(
            self.handle(NodeEvent::UpcallReceived(&frame))[..],
            [NodeAction::Notify(NodeNotice::RankFinalized { rank })] if rank == expected
        ));
    }

    /// Follows the deadlines until one of them has a consequence, at most for `limit`.
    fn wait(&mut self, limit: Duration) -> Vec<NodeAction> {
        let end = self.now + limit;
        loop {
            match self.core.next_deadline().filter(|at| *at <= end) {
                None => {
                    self.now = end;
                    return Vec::new();
                }
                Some(at) => self.now = at,
            }
            let actions = self.handle(NodeEvent::Tick);
            if !actions.is_empty() {
                return actions;
            }
        }
    }
}

/// Returns the error of a loss of the sidecar for which its process is killed.
#[track_caller]
fn fatal_error(actions: &[NodeAction]) -> &str {
    match actions {
        [
            NodeAction::Notify(NodeNotice::SidecarLost { error }),
            NodeAction::KillSidecar,
        ] => error,
        other => panic!("{other:?}"),
    }
}

fn is_probe(actions: &[NodeAction]) -> bool {
    matches!(actions, [NodeAction::SendControl(_)])
}

const MINUTES: Duration = Duration::from_secs(600);

#[test]
fn sidecar_that_does_not_start_is_given_up_with_its_activity() {
    let mut node = Node::new();
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(
        text.contains("did not load its libraries within 30 s"),
        "{text}"
    );
    assert_eq!(node.now.0.as_secs(), 30);
    assert_eq!(node.core.next_deadline(), None);

    let mut node = Node::new();
    let hello = serve::notice(&crate::pmix::sidecar_protocol::SidecarNotice::Hello(
        crate::pmix::sidecar_protocol::Hello {
            libpmix: "OpenPMIx".into(),
        },
    ));
    node.handle(NodeEvent::ControlReceived(&hello.unwrap()));
    node.reply(ControlKind::Init, 1, Body::Done);
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(
        text.contains("did not register the job within 30 s"),
        "{text}"
    );
}

#[test]
fn time_of_stopped_launcher_does_not_count() {
    let mut node = Node::new();
    for _ in 0..10 {
        node.now = node.now + MINUTES;
        assert!(node.handle(NodeEvent::Tick).is_empty());
    }
    fatal_error(&node.wait(MINUTES));
}

#[test]
fn sidecar_that_answers_probes_is_never_given_up() {
    let mut node = Node::ready();
    for id in 3..100 {
        assert!(is_probe(&node.wait(MINUTES)));
        node.reply(ControlKind::Probe, id, Body::Done);
    }
    assert!(node.now.0 >= SILENCE / 2 * 97);
    assert!(is_probe(&node.wait(MINUTES)));
    let probed_at = node.now;
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(text.contains("did not answer within 10 s"), "{text}");
    assert!(node.now.duration_since(probed_at) <= SILENCE / 2);
}

#[test]
fn busy_sidecar_may_be_silent_for_one_minute() {
    let mut node = Node::ready();
    node.doing = SidecarActivity::Works;
    assert!(is_probe(&node.wait(MINUTES)));
    let probed_at = node.now;
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(text.contains("did not answer within 6"), "{text}");
    let silent = node.now.duration_since(probed_at);
    assert!(
        (BUSY_LIMIT..BUSY_LIMIT + SILENCE).contains(&silent),
        "{silent:?}"
    );
}

#[test]
fn sidecar_stopped_at_start_is_given_up_before_waiting_one() {
    let mut node = Node::new();
    node.doing = SidecarActivity::Stopped;
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(text.contains("is stopped"), "{text}");
    assert!(node.now.0 < Duration::from_secs(11), "{}", node.now);
}

#[test]
fn failed_rank_waits_for_sidecar_probe_within_limit() {
    let mut node = Node::ready();
    let mut actions = Vec::new();
    node.core
        .with_actions(node.now, &mut actions, |core| core.probe_sidecar());
    assert!(is_probe(&actions) && node.core.sidecar_in_doubt());
    node.reply(ControlKind::Probe, 3, Body::Done);
    assert!(!node.core.sidecar_in_doubt());

    // An answer to an earlier probe proves nothing about the time after.
    node.core
        .with_actions(node.now, &mut actions, |core| core.probe_sidecar());
    node.core
        .with_actions(node.now, &mut actions, |core| core.probe_sidecar());
    node.reply(ControlKind::Probe, 4, Body::Done);
    assert!(node.core.sidecar_in_doubt());
    assert!(node.wait(DOUBT_LIMIT).is_empty());
    assert!(!node.core.sidecar_in_doubt());
}

#[test]
fn closed_socket_waits_for_process_exit() {
    let mut node = Node::ready();
    assert!(node.handle(NodeEvent::SidecarClosed).is_empty());
    assert!(node.core.sidecar_in_doubt());
    let actions = node.handle(NodeEvent::SidecarEnded {
        how: "died".into(),
        end: SidecarEnd::Failed,
    });
    assert!(
        matches!(&actions[..], [NodeAction::Notify(NodeNotice::SidecarLost { error })] if error == "died")
    );
    assert!(!node.core.sidecar_in_doubt());

    let mut node = Node::ready();
    node.handle(NodeEvent::SidecarClosed);
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert!(text.contains("closed its connection"), "{text}");
    assert_eq!(node.now.0, CLOSED_LIMIT);
}

#[test]
fn sidecar_that_does_not_stop_is_killed() {
    let mut node = Node::ready();
    assert!(
        is_probe(&node.handle(NodeEvent::LaunchEnded)),
        "the request to stop"
    );
    let text = fatal_error(&node.wait(MINUTES)).to_owned();
    assert_eq!(text, "it did not stop within 5 s");

    let mut node = Node::ready();
    node.handle(NodeEvent::LaunchEnded);
    node.handle(NodeEvent::SidecarClosed);
    node.reply(ControlKind::Finalize, 3, Body::Done);
    let ended = || NodeEvent::SidecarEnded {
        how: "exited".into(),
        end: SidecarEnd::InOrder,
    };
    assert!(node.handle(ended()).is_empty());
    assert_eq!(node.core.next_deadline(), None);

    // It left before it had heard of the request.
    let mut node = Node::ready();
    node.handle(NodeEvent::LaunchEnded);
    let actions = node.handle(ended());
    assert!(matches!(
        actions[..],
        [NodeAction::Notify(NodeNotice::SidecarLost { .. })]
    ));
}

#[test]
fn sidecar_that_served_tools_can_be_replaced() {
    let job = Arc::new(served::job(&[2]));
    let mut node = Node {
        core: NodeCore::new(
            NodeId(0),
            Arc::clone(&job),
            true,
            false,
            CollectivePolicy::default(),
        )
        .unwrap(),
        now: Moment::default(),
        nspace: job.nspace.clone(),
        doing: SidecarActivity::Waits,
    };
    let ended = |end| NodeEvent::SidecarEnded {
        how: "ended".into(),
        end,
    };
    // The numbers of requests go on with the next one.
    for first in [1, 3] {
        let mut actions = Vec::new();
        let requests = requests(&node.nspace);
        node.core.with_actions(node.now, &mut actions, |core| {
            core.start_sidecar_for_tools(&requests)
        });
        assert_eq!(actions.len(), 2);
        node.reply(ControlKind::Init, first, Body::Done);
        let env = ForkEnv::default();
        node.reply(ControlKind::RegisterJob, first + 1, Body::ForkEnv(&env));
        assert!(!node.core.sidecar_may_follow());
        let actions = node.handle(ended(SidecarEnd::Failed));
        assert!(matches!(
            actions[..],
            [NodeAction::Notify(NodeNotice::SidecarLost { .. })]
        ));
        assert!(node.core.sidecar_may_follow());
    }
    // One that fails at its start would fail again; one that is killed then would not.
    for (end, follows) in [(SidecarEnd::Killed, true), (SidecarEnd::Failed, false)] {
        let requests = requests(&node.nspace);
        let mut actions = Vec::new();
        node.core.with_actions(node.now, &mut actions, |core| {
            core.start_sidecar_for_tools(&requests)
        });
        node.handle(ended(end));
        assert_eq!(node.core.sidecar_may_follow(), follows, "{end:?}");
    }
    // One that was given up is killed by its launch, which says nothing for it.
    let requests = requests(&node.nspace);
    node.core.with_actions(node.now, &mut Vec::new(), |core| {
        core.start_sidecar_for_tools(&requests)
    });
    fatal_error(&node.wait(MINUTES));
    node.handle(ended(SidecarEnd::Killed));
    assert!(!node.core.sidecar_may_follow());
    // And the one that ranks need is not replaced.
    let mut node = Node::ready();
    node.handle(ended(SidecarEnd::Killed));
    assert!(!node.core.sidecar_may_follow());
}

#[test]
fn garbage_ends_sidecar_after_earlier_messages() {
    let mut node = Node::ready();
    node.rank_finalized(0);
    assert!(!node.core.ranks_are_done());
    let proc = PmixProc::new(&node.nspace, Rank(1));
    let mut bytes = Upcall::Notice(Notice::ClientFinalized { proc })
        .encode(0)
        .unwrap();
    bytes.extend([0xa5; 32]);
    let mut actions = node.handle(NodeEvent::UpcallReceived(&bytes));
    let before = actions.remove(0);
    assert!(matches!(
        before,
        NodeAction::Notify(NodeNotice::RankFinalized { rank: NodeRank(1) })
    ));
    assert!(fatal_error(&actions).contains("invalid message from it"));
    assert!(node.core.ranks_are_done());
    // Nothing it still says is heard, and its end is no news.
    assert!(node.handle(NodeEvent::UpcallReceived(&bytes)).is_empty());
    let ended = NodeEvent::SidecarEnded {
        how: "killed".into(),
        end: SidecarEnd::Failed,
    };
    assert!(node.handle(ended).is_empty());
}

#[test]
fn ranks_without_pmix_end_without_sidecar() {
    let mut node = Node::ready();
    node.rank_finalized(0);
    node.handle(NodeEvent::RankEnded {
        rank: NodeRank(1),
        end: RankEnd::Code(0),
    });
    assert!(node.core.ranks_are_done());
}

#[test]
fn abort_of_all_ranks_is_answered_after_their_end() {
    let mut node = Node::ready();
    let abort = |node: &Node, targets| {
        let (proc, message) = (PmixProc::new(&node.nspace, Rank(1)), "no".into());
        let upcall = Upcall::Request(UpcallRequest::Abort {
            proc,
            status: 7,
            message,
            targets,
        });
        upcall.encode(3).unwrap()
    };
    let frame = abort(&node, Vec::new());
    let actions = node.handle(NodeEvent::UpcallReceived(&frame));
    assert!(
        matches!(
            actions[..],
            [NodeAction::Notify(NodeNotice::Failed(
                FailureCause::Aborted { code: 7, .. }
            ))]
        ),
        "{actions:?}"
    );
    let actions = node.handle(NodeEvent::LaunchEnded);
    let answers = actions
        .iter()
        .filter(|action| matches!(action, NodeAction::SendUpcall(_)));
    assert_eq!(answers.count(), 1, "{actions:?}");
    // A rank that aborts another one may want to continue.
    let mut node = Node::ready();
    let frame = abort(&node, vec![PmixProc::new(&node.nspace, Rank(0))]);
    let actions = node.handle(NodeEvent::UpcallReceived(&frame));
    assert!(
        matches!(
            actions[..],
            [
                NodeAction::ReportToLauncher(NodeReport::JobControl(_)),
                NodeAction::SendUpcall(_)
            ]
        ),
        "{actions:?}"
    );
}
