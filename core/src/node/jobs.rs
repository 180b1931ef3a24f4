//! The jobs of a launch as one node's core knows them: identities of processes, and jobs that start
//! and end.

use std::sync::Arc;

use super::{JobContext, NodeCore, PmixState, Terms, fences};
use crate::direct_modex::ModexInput;
use crate::fence::{Nodes, Series};
use crate::job::ids::{JobNumber, NodeId, NodeRank};
use crate::job::rank_placement::RankMap;
use crate::job::roster::Placed;
use crate::node::event::{Action, Report};
use crate::pmi::server as pmi;
use crate::pmix::control::{Control, ControlRefusal, ForkEnv};
use crate::pmix::sidecar::RequestId;
use crate::pmix::value::Proc;

/// One job, and what serves its ranks on this node.
pub(super) struct JobMember {
    pub(super) context: Arc<JobContext>,
    pub(super) pmi: Option<pmi::Server>,
    /// Participants of the barrier of all its ranks.
    pub(super) world: (Series, Nodes),
    /// Its first process on this node, if it has one there.
    pub(super) first: NodeRank,
    /// All its ranks have ended, everywhere.
    over: bool,
}

impl Placed for JobMember {
    fn ranks(&self) -> &RankMap {
        &self.context.ranks
    }
}

impl JobMember {
    /// A job; `pmi` says whether its local ranks are offered PMI.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub(super) fn new(
        context: Arc<JobContext>,
        node: NodeId,
        pmi: bool,
        first: NodeRank,
        terms: Terms,
    ) -> Result<Self, pmi::SetupError> {
        let server = pmi.then(|| {
            let local = context.ranks.ranks_on(node);
            let info = pmi::JobInfo {
                kvsname: context.nspace.clone(),
                appnums: local.map(|r| context.appnums.of(r)).collect(),
                universe_size: (!context.unlimited).then_some(context.universe_size),
                attributes: Vec::new(),
                preputs: context.preputs.clone(),
                spawner: context.parent.as_ref().map(|parent| parent.nspace.clone()),
            };
            pmi::Server::new(info, &context.ranks, node)
        });
        let server = server.transpose()?.map(|server| match terms.survives {
            true => server.surviving(),
            false => server,
        });
        let server = server.map(|server| match terms.restartable {
            true => server.restartable(),
            false => server,
        });
        Ok(Self {
            pmi: server,
            world: fences::world(&context.nspace, &context.ranks, node),
            first,
            over: false,
            context,
        })
    }
}

impl JobMember {
    /// Its PMI clients here can read an attribute.
    fn describe(&mut self, key: &str, value: &[u8]) {
        if let Some(server) = &mut self.pmi {
            server.describe(key, value);
        }
    }

    /// All its ranks have ended.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}

impl NodeCore {
    /// The same, with an attribute for the PMI clients of all jobs.
    pub fn with_attribute(mut self, key: &'static str, value: &[u8]) -> Self {
        let first = self.cx.jobs.get_mut(JobNumber(0));
        let first = first.expect("there is always a first job");
        first.describe(key, value);
        self.attributes.push((key, value.to_owned()));
        self
    }

    /// A job was spawned: its ranks on this node, if it has any, must be served. `requests` are
    /// those of the sidecar; when it has carried them out it reports that the job is ready.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub fn add_job(
        &mut self,
        context: Arc<JobContext>,
        pmi: bool,
        requests: &[Control],
    ) -> Result<JobNumber, pmi::SetupError> {
        let first = NodeRank(self.cx.jobs.local_size(self.cx.node));
        let mut member = JobMember::new(
            Arc::clone(&context),
            self.cx.node,
            pmi,
            first,
            self.cx.terms,
        )?;
        for (key, value) in &self.attributes {
            member.describe(key, value);
        }
        if let Some(server) = &mut member.pmi {
            server.name_hosts(self.collectives.names());
        }
        let job = self.cx.jobs.add(member);
        let here = self.cx.jobs.local_size(self.cx.node) as usize;
        self.cx.pmix.resize(here, PmixState::default());
        self.cx.last_contact.resize(here, None);
        let added = ModexInput::NspaceAdded {
            nspace: context.nspace.clone(),
            local: context.ranks.ranks_on(self.cx.node).collect(),
        };
        self.modex(added);
        for request in requests {
            let id = self.cx.control(request);
            if matches!(request, Control::RegisterJob { .. }) {
                self.registering.extend(id.map(|id| (id, job)));
            }
        }
        self.outputs.job_added(job, &mut self.cx);
        Ok(job)
    }

    /// Nodes joined the launch: its first job as it is known now, the same but for the number of
    /// nodes. `absent` are nodes that could not join and were not reported before.
    pub fn grow(&mut self, context: Arc<JobContext>, absent: &[NodeId]) {
        let nodes = context.ranks.nodes();
        let first = self.cx.jobs.get_mut(JobNumber(0));
        first.expect("there is always a first job").context = context;
        self.groups.engine.grow(nodes);
        self.fences.engine.of_launch(nodes);
        self.names.grow(nodes, &mut self.cx);
        self.settle();
        let reason = Arc::from("it could not join the launch");
        self.give_up(absent.iter().copied(), &reason);
    }

    /// The spawned job that a request is to register.
    pub(super) fn registers(&self, id: RequestId) -> Option<JobNumber> {
        let mut requests = self.registering.iter();
        let request = requests.find(|(request, _)| *request == id);
        request.map(|(_, job)| *job)
    }

    /// The sidecar has registered a spawned job, or cannot.
    pub(super) fn job_registered(
        &mut self,
        id: RequestId,
        result: Result<ForkEnv, ControlRefusal>,
    ) {
        let Some(job) = self.registers(id) else {
            return;
        };
        self.registering.retain(|(request, _)| *request != id);
        let report = match result {
            Ok(env) => {
                self.queries.note_server(&env);
                Report::SidecarReady { job, env }
            }
            Err(refusal) => Report::JobRefused {
                job,
                error: refusal.to_string(),
            },
        };
        self.cx.order(Action::Report(report));
    }

    /// All ranks of a spawned job have ended, on all nodes.
    pub(super) fn job_over(&mut self, job: JobNumber) {
        let Some(member) = self.cx.jobs.get_mut(job) else {
            return;
        };
        if std::mem::replace(&mut member.over, true) {
            return;
        }
        if job == JobNumber(0) {
            return self.queries.ask_for_end(job, &mut self.cx);
        }
        member.pmi = None;
        let nspace = member.context.nspace.clone();
        let removed = ModexInput::NspaceRemoved {
            nspace: nspace.clone(),
        };
        self.modex(removed);
        self.outputs.drop_unannounced(job, &mut self.cx);
        self.outputs.forget_job(job, &mut self.cx);
        self.queries.ask_for_end(job, &mut self.cx);
        self.settle();
        // The rest of its output may be on its way to processes here.
        if self.cx.sidecar.is_ready() && !self.outputs.is_asking() {
            self.cx.control(&Control::DeregisterJob { nspace });
        }
    }

    /// The processes on this node of all jobs that have not ended.
    pub fn running_here(&self) -> Vec<Proc> {
        let running = self.cx.running_jobs();
        let procs = running.flat_map(|(_, job)| {
            let ranks = job.ranks.ranks_on(self.cx.node);
            ranks.map(|rank| Proc::new(&job.nspace, rank))
        });
        procs.collect()
    }
}
