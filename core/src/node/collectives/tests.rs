use super::*;
use crate::collective::CollectiveOutput;
use crate::node::NodeCore;
use crate::node::event::{Event, ToNode};
use crate::node::served;
use crate::pmix::control::serve::{self, Body};
use crate::pmix::control::{ControlKind, ForkEnv};
use crate::rendezvous::message::FromRendezvous;

fn far() -> Nspace {
    Nspace::new("far").unwrap()
}

/// Brings what the head node has for node 1, which makes one request of its sidecar.
#[track_caller]
fn bring(node: &mut NodeCore, actions: &mut Vec<Action>) {
    let Some(Action::SendPeer { to, message }) = actions.pop() else {
        panic!("{actions:?}");
    };
    assert_eq!(to, NodeId(1));
    let event = Event::Peer {
        from: HEAD,
        message,
    };
    node.handle(event, Moment::default(), actions);
    let asks = |action: &&Action| matches!(action, Action::SendControl(_));
    assert_eq!(actions.iter().filter(asks).count(), 1, "{actions:?}");
}

#[test]
fn a_job_of_another_launch_is_forgotten_when_that_is_gone() {
    let mut cores = served::three_nodes();
    let (now, mut actions) = (Moment::default(), Vec::new());
    let key = Key {
        act: Act::Connect,
        members: Vec::new(),
        generation: 0,
    };
    let job = Description {
        nspace: far(),
        ranks: RankMap::from_runs([(NodeId(0), 1)]),
        node_names: vec!["elsewhere".to_owned()],
        universe_size: 1,
        programs: 1,
    };
    let register = CollectiveOutput::Register {
        key,
        nodes: [NodeId(1)].into(),
        jobs: vec![job],
    };
    cores[0].with_actions(now, &mut actions, |core| {
        core.services
            .collectives
            .with_hub(|_, out| out.push(register), &mut core.cx)
    });
    bring(&mut cores[1], &mut actions);
    // The job's own registration was request 1.
    let env = ForkEnv::default();
    let done = serve::reply(ControlKind::RegisterJob, 2, Ok(Body::ForkEnv(&env))).unwrap();
    cores[1].handle(Event::ControlReceived(&done), now, &mut actions);
    assert!(cores[1].services.collectives.known.contains(&far()));

    actions.clear();
    let gone = FromRendezvous::Gone(vec![far()]);
    cores[0].handle(Event::Told(ToNode::Rendezvous(gone)), now, &mut actions);
    bring(&mut cores[1], &mut actions);
    assert!(cores[1].services.collectives.known.is_empty());
}
