use super::*;
use crate::interlaunch::InterlaunchAction;
use crate::name_server::message::NameServerReport;
use crate::node::NodeCore;
use crate::node::event::NodeAction;
use crate::node::event::{NodeCommand, NodeEvent};
use crate::node::served;
use crate::pmix::sidecar_protocol::serve::{self, Body};
use crate::pmix::sidecar_protocol::{ControlKind, ForkEnv};

fn far() -> Nspace {
    Nspace::new("far").unwrap()
}

/// Brings what the head node has for node 1, which makes one request of its sidecar.
#[track_caller]
fn bring(node: &mut NodeCore, actions: &mut Vec<NodeAction>) {
    let Some(NodeAction::SendPeer { to, message }) = actions.pop() else {
        panic!("{actions:?}");
    };
    assert_eq!(to, NodeId(1));
    let event = NodeEvent::Peer {
        from: HEAD,
        message,
    };
    node.handle(event, Moment::default(), actions);
    let asks = |action: &&NodeAction| matches!(action, NodeAction::SendControl(_));
    assert_eq!(actions.iter().filter(asks).count(), 1, "{actions:?}");
}

#[test]
fn job_of_other_launch_is_forgotten_with_its_launch() {
    let mut cores = served::three_nodes();
    let (now, mut actions) = (Moment::default(), Vec::new());
    let key = InterlaunchId {
        act: InterlaunchOperation::Connect,
        members: Vec::new(),
        generation: 0,
    };
    let job = RemoteJob {
        nspace: far(),
        ranks: ProcessMap::from_runs([(NodeId(0), 1)]),
        node_names: vec!["elsewhere".to_owned()],
        universe_size: 1,
        programs: 1,
    };
    let register = InterlaunchAction::Register {
        key,
        nodes: [NodeId(1)].into(),
        jobs: vec![job],
    };
    cores[0].with_actions(now, &mut actions, |core| {
        core.services
            .interlaunch
            .with_hub(&mut core.cx, |hub| hub.actions.push(register))
    });
    bring(&mut cores[1], &mut actions);
    // The job's own registration was request 1.
    let env = ForkEnv::default();
    let done = serve::reply(ControlKind::RegisterJob, 2, Ok(Body::ForkEnv(&env))).unwrap();
    cores[1].handle(NodeEvent::ControlReceived(&done), now, &mut actions);
    assert!(
        cores[1]
            .services
            .interlaunch
            .registered_jobs
            .contains(&far())
    );

    actions.clear();
    let gone = NameServerReport::Gone(vec![far()]);
    cores[0].handle(
        NodeEvent::Command(NodeCommand::Rendezvous(gone)),
        now,
        &mut actions,
    );
    bring(&mut cores[1], &mut actions);
    assert!(cores[1].services.interlaunch.registered_jobs.is_empty());
}
