//! Jobs over a few sidecars, and the agents' part in them: one loop, no threads.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::job::process_map::ProcessMap;
use wireup_core::pmix::job_info::{PmixAppInfo, PmixJobInfo};
use wireup_core::pmix::sidecar_link::{RequestId, SidecarEvent, UpcallId};
use wireup_core::pmix::sidecar_protocol::{
    ClientRegistration, ControlReply, ForkEnv, SidecarCommand,
};
use wireup_core::pmix::upcall::{Notice, Upcall, UpcallAnswer, UpcallKind, UpcallRequest};
use wireup_core::pmix::value::{Info, PmixProc, Status, Text, Value};

use crate::agent::{DEADLINE, Node, SPAWN, client_program, poll_nodes};

/// A node's part of a collective: which node, where to answer, its data.
type Arrival = (usize, UpcallId, Vec<u8>);

/// A job and its place.
pub(crate) struct Job {
    pub(crate) nspace: Nspace,
    pub(crate) ranks: ProcessMap,
    pub(crate) environments: BTreeMap<NodeId, ForkEnv>,
}

impl Job {
    fn new(ranks: ProcessMap) -> Self {
        static JOBS: Mutex<u32> = Mutex::new(0);
        let mut jobs = JOBS.lock().unwrap();
        *jobs += 1;
        let nspace = Nspace::new(&format!("wireup-test-{}-{jobs}", std::process::id())).unwrap();
        Self {
            nspace,
            ranks,
            environments: BTreeMap::new(),
        }
    }

    /// The request that makes a sidecar know it.
    pub(crate) fn registration(
        &self,
        node: &Node,
        number: NodeId,
        node_names: &[String],
        sizes: &[u32],
    ) -> SidecarCommand {
        let apps: Vec<PmixAppInfo> = sizes
            .iter()
            .map(|size| PmixAppInfo {
                size: *size,
                argv: vec!["pmix_client".into()],
                wdir: "/".into(),
            })
            .collect();
        let (uid, gid) = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        let session = tempfile::tempdir_in(node.dir.path()).unwrap().keep();
        let session = Text::new(session.as_os_str().as_bytes());
        let infos = PmixJobInfo {
            nspace: &self.nspace,
            ranks: &self.ranks,
            node_names,
            node: number,
            apps: &apps,
            universe_size: self.ranks.size() + 4,
            parent: None,
            offset: Default::default(),
            before: &[],
            other_job_procs: &[],
            cpusets: &BTreeMap::new(),
            tmpdir: &session,
            nsdir: &session,
            uid,
            gid,
        };
        let clients = self.ranks.ranks_on(number);
        SidecarCommand::RegisterJob {
            nspace: self.nspace.clone(),
            infos: infos.infos().unwrap(),
            clients: clients
                .map(|rank| ClientRegistration { rank, uid, gid })
                .collect(),
        }
    }
}

/// Jobs over some nodes, and the agents' part in them.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    node_names: Vec<String>,
    /// The first is there from the start.
    pub(crate) jobs: Vec<Job>,
    libpmix: PathBuf,
    /// With the position of the job.
    pub(crate) clients: Vec<(usize, Rank, Child)>,
    /// Exit statuses of the first job's ranks.
    pub(crate) exits: BTreeMap<Rank, ExitStatus>,
    /// Exit statuses of the other jobs' ranks, by job and rank.
    pub(crate) other_exits: BTreeMap<(usize, Rank), ExitStatus>,
    fences: BTreeMap<(UpcallKind, Vec<PmixProc>), Vec<Arrival>>,
    /// Control request on the node of the owner, and who waits for it.
    modex: BTreeMap<(usize, RequestId), (usize, UpcallId)>,
    /// Replies to what the test asked by itself.
    pub(crate) replies: Vec<(RequestId, ControlReply)>,
    /// All of them, in the order in which they came.
    pub(crate) upcalls: Vec<Upcall>,
}

impl Cluster {
    /// Starts sidecars and registers a job of two programs with `per_node` ranks on each.
    pub(crate) fn start(names: &[&'static str], per_node: u32, libpmix: &Path) -> Self {
        let ranks = ProcessMap::from_runs((0..names.len() as u32).map(|n| (NodeId(n), per_node)));
        let node_names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let nodes: Vec<_> = names.iter().copied().zip((0..).map(NodeId)).collect();
        let sizes = [1, ranks.size() - 1];
        Self::of(&nodes, &node_names, ranks, &sizes, libpmix)
    }

    /// Starts the sidecar of one node of a job of one program.
    pub(crate) fn one_of(
        name: &'static str,
        node: NodeId,
        node_names: &[String],
        ranks: &ProcessMap,
        libpmix: &Path,
    ) -> Self {
        let sizes = [ranks.size()];
        Self::of(&[(name, node)], node_names, ranks.clone(), &sizes, libpmix)
    }

    /// Both requests are sent to each sidecar before either reply is read.
    fn of(
        names: &[(&'static str, NodeId)],
        node_names: &[String],
        ranks: ProcessMap,
        sizes: &[u32],
        libpmix: &Path,
    ) -> Self {
        let mut job = Job::new(ranks);
        let mut nodes: Vec<Node> = names
            .iter()
            .map(|(name, _)| Node::start(name, libpmix))
            .collect();
        let mut requests = Vec::new();
        for (node, (_, number)) in nodes.iter_mut().zip(names) {
            let init = node.send_init(number.0);
            let register = job.registration(node, *number, node_names, sizes);
            requests.push((init, node.send(&register)));
        }
        for ((node, (init, register)), (_, number)) in nodes.iter_mut().zip(requests).zip(names) {
            assert_eq!(node.reply(init), ControlReply::Init(Ok(())));
            match node.reply(register) {
                ControlReply::RegisterJob(Ok(env)) => job.environments.insert(*number, env),
                other => panic!("{other:?}"),
            };
        }
        Self {
            nodes,
            node_names: node_names.to_vec(),
            jobs: vec![job],
            libpmix: libpmix.to_owned(),
            clients: Vec::new(),
            exits: BTreeMap::new(),
            other_exits: BTreeMap::new(),
            fences: BTreeMap::new(),
            modex: BTreeMap::new(),
            replies: Vec::new(),
            upcalls: Vec::new(),
        }
    }

    /// A job of one program that no sidecar knows yet, with a number of ranks on each node.
    pub(crate) fn new_job(&self, ranks: &[u32]) -> Job {
        let ranks = (0..).map(NodeId).zip(ranks.iter().copied());
        Job::new(ProcessMap::from_runs(ranks))
    }

    /// Returns the command that registers a job of one program at node `n`.
    pub(crate) fn registration(&self, job: &Job, n: usize) -> SidecarCommand {
        let (node, sizes) = (&self.nodes[n], [job.ranks.size()]);
        job.registration(node, NodeId(n as u32), &self.node_names, &sizes)
    }

    /// Makes every node know one more job; its position.
    pub(crate) fn add_job(&mut self, ranks: &[u32]) -> usize {
        let mut job = self.new_job(ranks);
        for n in 0..self.nodes.len() {
            let request = self.registration(&job, n);
            let id = self.nodes[n].send(&request);
            match self.nodes[n].reply(id) {
                ControlReply::RegisterJob(Ok(env)) => {
                    job.environments.insert(NodeId(n as u32), env)
                }
                other => panic!("{other:?}"),
            };
        }
        self.jobs.push(job);
        self.jobs.len() - 1
    }

    /// Starts one client per rank of the first job.
    pub(crate) fn launch(&mut self, arguments: &[&str]) {
        self.launch_job(0, arguments);
    }

    /// Starts one client per rank of a job.
    pub(crate) fn launch_job(&mut self, job: usize, arguments: &[&str]) {
        for rank in (0..self.jobs[job].ranks.size()).map(Rank) {
            self.launch_rank_of(job, rank, arguments);
        }
    }

    pub(crate) fn launch_rank(&mut self, rank: Rank, arguments: &[&str]) {
        self.launch_rank_of(0, rank, arguments);
    }

    fn launch_rank_of(&mut self, job: usize, rank: Rank, arguments: &[&str]) {
        let Job {
            ranks,
            environments,
            ..
        } = &self.jobs[job];
        let node = ranks.node_of(rank).unwrap();
        let mut command = Command::new(client_program());
        command.args(arguments).stdin(Stdio::null());
        command.env("LD_LIBRARY_PATH", self.libpmix.parent().unwrap());
        for (name, value) in environments[&node].variables_of(rank) {
            let text = |text: &Text| std::ffi::OsStr::from_bytes(text.as_bytes()).to_owned();
            command.env(text(name), text(value));
        }
        let guard = SPAWN.lock().unwrap();
        self.clients.push((job, rank, command.spawn().unwrap()));
        drop(guard);
    }

    /// Serves the clients until `done` holds.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !done(self) {
            self.serve(end);
            let before = self.clients.len();
            let (exits, others) = (&mut self.exits, &mut self.other_exits);
            self.clients.retain_mut(|(job, rank, child)| {
                let status = child.try_wait().unwrap();
                match (*job, status) {
                    (0, Some(status)) => drop(exits.insert(*rank, status)),
                    (job, Some(status)) => drop(others.insert((job, *rank), status)),
                    (_, None) => {}
                }
                status.is_none()
            });
            if self.clients.len() < before {
                // The sockets hold all that a client sent before its exit.
                self.serve(end);
            }
        }
    }

    fn serve(&mut self, end: Instant) {
        poll_nodes(&mut self.nodes, end);
        for n in 0..self.nodes.len() {
            while let Some(event) = self.nodes[n].events.pop_front() {
                self.handle(n, event);
            }
        }
    }

    /// Serves the clients until all have exited, and checks that all succeeded.
    pub(crate) fn run(&mut self) {
        self.run_until(|cluster| cluster.clients.is_empty());
        for (rank, status) in &self.exits {
            assert!(status.success(), "rank {rank}: {status}");
        }
        for ((job, rank), status) in &self.other_exits {
            assert!(status.success(), "rank {rank} of job {job}: {status}");
        }
    }

    fn handle(&mut self, n: usize, event: SidecarEvent) {
        match event {
            SidecarEvent::Notice(notice) => self.on_notice(n, Upcall::Notice(notice)),
            SidecarEvent::Request { id, request } => {
                self.on_request(n, id, Upcall::Request(request));
            }
            SidecarEvent::Reply {
                id,
                reply: ControlReply::DirectModex(data),
            } => match self.modex.remove(&(n, id)) {
                Some((requester, upcall)) => {
                    self.nodes[requester].answer(upcall, &UpcallAnswer::Data(data.unwrap()));
                }
                None => self.replies.push((id, ControlReply::DirectModex(data))),
            },
            SidecarEvent::Reply {
                reply: ControlReply::Notify(outcome),
                ..
            } => outcome.unwrap(),
            SidecarEvent::Reply {
                id,
                reply: reply @ ControlReply::IofDeliver(_),
            } => self.replies.push((id, reply)),
            SidecarEvent::Hello(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn on_notice(&mut self, n: usize, upcall: Upcall) {
        if let Upcall::Notice(Notice::NotifyEvent {
            code: code @ Status(-3333),
            source,
            range,
            infos,
        }) = &upcall
        {
            for other in (0..self.nodes.len()).filter(|other| *other != n) {
                self.nodes[other].send(&SidecarCommand::Notify {
                    code: *code,
                    source: source.clone(),
                    range: *range,
                    infos: infos.clone(),
                });
            }
        }
        self.upcalls.push(upcall);
    }

    fn on_request(&mut self, n: usize, id: UpcallId, upcall: Upcall) {
        match &upcall {
            Upcall::Request(UpcallRequest::Fence { procs, data, .. }) => {
                self.arrive(UpcallKind::Fence, procs, (n, id, data.clone()));
            }
            Upcall::Request(
                UpcallRequest::Connect { procs, .. } | UpcallRequest::Disconnect { procs, .. },
            ) => {
                self.arrive(upcall.kind(), procs, (n, id, Vec::new()));
            }
            Upcall::Request(UpcallRequest::Spawn { apps, .. }) => {
                let ranks = u32::try_from(apps[0].maxprocs).unwrap();
                let mut per_node = vec![0; self.nodes.len()];
                per_node[(n + 1) % self.nodes.len()] = ranks;
                let job = self.add_job(&per_node);
                let arguments: Vec<String> =
                    apps[0].argv[1..].iter().map(Text::to_string).collect();
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                self.launch_job(job, &arguments);
                let answer = UpcallAnswer::Spawned(self.jobs[job].nspace.clone());
                self.nodes[n].answer(id, &answer);
            }
            Upcall::Request(UpcallRequest::DirectModex { proc, .. }) => {
                let rank = proc.rank.rank().unwrap();
                let job = self.job_of(proc);
                let owner = job.ranks.node_of(rank).unwrap().index();
                assert_ne!(owner, n, "libpmix has its own ranks' data");
                let nspace = job.nspace.clone();
                let request = self.nodes[owner].send(&SidecarCommand::DirectModex { nspace, rank });
                self.modex.insert((owner, request), (n, id));
            }
            Upcall::Request(UpcallRequest::Query { queries, .. }) => {
                let key = queries[0].keys[0].to_string();
                let value = Value::String("42".into());
                let infos = vec![Info::new(&key, value)];
                self.nodes[n].answer(id, &UpcallAnswer::Infos(Status::SUCCESS, infos));
            }
            Upcall::Request(UpcallRequest::PushStdin { data, .. }) if data.is_empty() => {
                self.nodes[n].answer(id, &UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED));
            }
            _ => self.nodes[n].answer(id, &UpcallAnswer::Status(Status::SUCCESS)),
        }
        self.upcalls.push(upcall);
    }

    fn job_of(&self, proc: &PmixProc) -> &Job {
        let named = |job: &&Job| proc.nspace == job.nspace.as_str();
        self.jobs.iter().find(named).unwrap()
    }

    /// A node came to a collective, which is complete when all nodes of its participants have.
    fn arrive(&mut self, kind: UpcallKind, procs: &[PmixProc], arrival: Arrival) {
        let mut nodes = BTreeSet::new();
        for proc in procs {
            let ranks = &self.job_of(proc).ranks;
            match proc.rank.rank() {
                Some(rank) => nodes.extend(ranks.node_of(rank)),
                None => nodes.extend(ranks.node_ids().filter(|node| ranks.local_size(*node) > 0)),
            }
        }
        let key = (kind, procs.to_vec());
        let arrived = self.fences.entry(key.clone()).or_default();
        arrived.push(arrival);
        if arrived.len() < nodes.len() {
            return;
        }
        let arrived = self.fences.remove(&key).unwrap();
        let data = arrived.iter().flat_map(|(.., data)| data).copied();
        let answer = match kind {
            UpcallKind::Fence => UpcallAnswer::Data(data.collect()),
            _ => UpcallAnswer::Status(Status::SUCCESS),
        };
        for (node, id, _) in arrived {
            self.nodes[node].answer(id, &answer);
        }
    }

    /// Makes every node forget a job.
    pub(crate) fn deregister(&mut self, job: usize) {
        let nspace = self.jobs[job].nspace.clone();
        for node in &mut self.nodes {
            let id = node.send(&SidecarCommand::DeregisterJob {
                nspace: nspace.clone(),
            });
            assert_eq!(node.reply(id), ControlReply::DeregisterJob(Ok(())));
        }
    }

    /// Deregisters the first job and stops the sidecars.
    pub(crate) fn finish(mut self) {
        self.deregister(0);
        self.stop();
    }

    /// Stops the sidecars of all nodes.
    pub(crate) fn stop(mut self) {
        self.nodes.drain(..).for_each(Node::finalize);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (.., child) in &mut self.clients {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
