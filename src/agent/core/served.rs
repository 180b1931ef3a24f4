//! Cores of a job whose sidecars serve it, for the tests of several parts.

use std::sync::Arc;

use super::{JobContext, NodeCore, Terms};
use crate::agent::event::Event;
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, NodeId, Nspace, UserId};
use crate::job::rank_map::RankMap;
use crate::pmix::control::serve::{self, Body};
use crate::pmix::control::{Control, ControlKind, ForkEnv};

/// Three nodes with two ranks each of a job called `job`.
pub(super) fn three_nodes() -> Vec<NodeCore> {
    let nspace = Nspace::new("job").unwrap();
    let job = Arc::new(JobContext {
        nspace: nspace.clone(),
        ranks: RankMap::from_runs((0..3).map(|node| (NodeId(node), 2))),
        appnums: Appnums::from_sizes([6]),
        universe_size: 6,
        user: UserId(1000),
        psets: Vec::new(),
        parent: None,
        offset: GlobalRank(0),
        preputs: Vec::new(),
    });
    let register = Control::RegisterJob {
        nspace,
        infos: Vec::new(),
        clients: Vec::new(),
    };
    let core = |node| {
        let (node, job) = (NodeId(node), Arc::clone(&job));
        let mut core = NodeCore::new(node, job, false, true, Terms::default()).unwrap();
        let requests = std::slice::from_ref(&register);
        core.start_host(requests, Moment::default(), &mut Vec::new());
        let env = ForkEnv::default();
        let body = Ok(Body::ForkEnv(&env));
        let ready = serve::reply(ControlKind::RegisterJob, 1, body).unwrap();
        let ready = Event::ControlReceived(&ready);
        core.handle(ready, Moment::default(), &mut Vec::new());
        core
    };
    (0..3).map(core).collect()
}
