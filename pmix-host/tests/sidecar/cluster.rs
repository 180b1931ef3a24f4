//! A job over a few sidecars, and the agents' part in it: one loop, no threads.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use wireup::job::ids::{NodeId, Nspace, Rank};
use wireup::job::rank_map::RankMap;
use wireup::pmix::control::{Client, Control, ControlReply, ForkEnv};
use wireup::pmix::host::{HostEvent, RequestId, UpcallId};
use wireup::pmix::job_info::{App, JobInfo};
use wireup::pmix::upcall::{Answer, Upcall};
use wireup::pmix::value::{Info, Proc, Status, Text, Value};

use crate::agent::{DEADLINE, Node, SPAWN, client_program, poll_nodes};

/// A node's part of a fence: which node, where to answer, its data.
type Arrival = (usize, UpcallId, Vec<u8>);

/// A job over some nodes, and the agents' part in it.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) nspace: Nspace,
    pub(crate) ranks: RankMap,
    environments: BTreeMap<NodeId, ForkEnv>,
    libpmix: PathBuf,
    pub(crate) clients: Vec<(Rank, Child)>,
    pub(crate) exits: BTreeMap<Rank, ExitStatus>,
    fences: BTreeMap<Vec<Proc>, Vec<Arrival>>,
    /// Control request on the node of the owner, and who waits for it.
    modex: BTreeMap<(usize, RequestId), (usize, UpcallId)>,
    /// Upcalls that the agent only has to know of.
    pub(crate) notices: Vec<Upcall>,
}

impl Cluster {
    /// Starts sidecars and registers a job of two programs with `per_node` ranks on each.
    pub(crate) fn start(names: &[&'static str], per_node: u32, libpmix: &Path) -> Self {
        let ranks = RankMap::from_runs((0..names.len() as u32).map(|n| (NodeId(n), per_node)));
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
        ranks: &RankMap,
        libpmix: &Path,
    ) -> Self {
        let sizes = [ranks.size()];
        Self::of(&[(name, node)], node_names, ranks.clone(), &sizes, libpmix)
    }

    /// Both requests are sent to each sidecar before either reply is read.
    fn of(
        names: &[(&'static str, NodeId)],
        node_names: &[String],
        ranks: RankMap,
        sizes: &[u32],
        libpmix: &Path,
    ) -> Self {
        static JOBS: Mutex<u32> = Mutex::new(0);
        let mut jobs = JOBS.lock().unwrap();
        *jobs += 1;
        let nspace = Nspace::new(&format!("wireup-test-{}-{jobs}", std::process::id())).unwrap();
        drop(jobs);
        let apps: Vec<App> = sizes
            .iter()
            .map(|size| App {
                size: *size,
                argv: vec!["pmix_client".into()],
                wdir: "/".into(),
            })
            .collect();
        let mut nodes: Vec<Node> = names
            .iter()
            .map(|(name, _)| Node::start(name, libpmix))
            .collect();
        let (uid, gid) = (
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        );
        let mut requests = Vec::new();
        for (node, (_, number)) in nodes.iter_mut().zip(names) {
            let session = tempfile::tempdir_in(node.dir.path()).unwrap().keep();
            let session = Text::new(session.as_os_str().as_bytes());
            let infos = JobInfo {
                nspace: &nspace,
                ranks: &ranks,
                node_names,
                node: *number,
                apps: &apps,
                universe_size: ranks.size() + 4,
                parent: None,
                offset: Default::default(),
                before: &[],
                tmpdir: &session,
                nsdir: &session,
                uid,
                gid,
            };
            let clients = ranks
                .ranks_on(*number)
                .map(|rank| Client { rank, uid, gid });
            let init = node.send_init(number.0);
            let register = node.send(&Control::RegisterJob {
                nspace: nspace.clone(),
                infos: infos.infos().unwrap(),
                clients: clients.collect(),
            });
            requests.push((init, register));
        }
        let mut environments = BTreeMap::new();
        for ((node, (init, register)), (_, number)) in nodes.iter_mut().zip(requests).zip(names) {
            assert_eq!(node.reply(init), ControlReply::Init(Ok(())));
            match node.reply(register) {
                ControlReply::RegisterJob(Ok(env)) => environments.insert(*number, env),
                other => panic!("{other:?}"),
            };
        }
        Self {
            nodes,
            nspace,
            ranks,
            environments,
            libpmix: libpmix.to_owned(),
            clients: Vec::new(),
            exits: BTreeMap::new(),
            fences: BTreeMap::new(),
            modex: BTreeMap::new(),
            notices: Vec::new(),
        }
    }

    /// Starts one client per rank.
    pub(crate) fn launch(&mut self, arguments: &[&str]) {
        for rank in (0..self.ranks.size()).map(Rank) {
            self.launch_rank(rank, arguments);
        }
    }

    pub(crate) fn launch_rank(&mut self, rank: Rank, arguments: &[&str]) {
        let node = self.ranks.node_of(rank).unwrap();
        let mut command = Command::new(client_program());
        command.args(arguments).stdin(Stdio::null());
        command.env("LD_LIBRARY_PATH", self.libpmix.parent().unwrap());
        for (name, value) in self.environments[&node].of(rank) {
            let text = |text: &Text| std::ffi::OsStr::from_bytes(text.as_bytes()).to_owned();
            command.env(text(name), text(value));
        }
        let guard = SPAWN.lock().unwrap();
        self.clients.push((rank, command.spawn().unwrap()));
        drop(guard);
    }

    /// Serves the clients until `done` holds.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + DEADLINE;
        while !done(self) {
            self.serve(end);
            let before = self.clients.len();
            let exits = &mut self.exits;
            self.clients
                .retain_mut(|(rank, child)| match child.try_wait().unwrap() {
                    Some(status) => {
                        exits.insert(*rank, status);
                        false
                    }
                    None => true,
                });
            if self.clients.len() < before {
                // What a client said before its exit is in the sockets by now.
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
    }

    fn handle(&mut self, n: usize, event: HostEvent) {
        match event {
            HostEvent::Upcall { id: None, upcall } => self.on_notice(n, upcall),
            HostEvent::Upcall {
                id: Some(id),
                upcall,
            } => self.on_upcall(n, id, upcall),
            HostEvent::Reply {
                id,
                reply: ControlReply::DirectModex(data),
            } => {
                let (requester, upcall) = self.modex.remove(&(n, id)).unwrap();
                self.nodes[requester].answer(upcall, &Answer::Data(data.unwrap()));
            }
            HostEvent::Reply {
                reply: ControlReply::Notify(outcome),
                ..
            } => outcome.unwrap(),
            HostEvent::Hello(_) => {}
            other => panic!("{other:?}"),
        }
    }

    fn on_notice(&mut self, n: usize, upcall: Upcall) {
        if let Upcall::NotifyEvent {
            code: code @ Status(-3333),
            source,
            range,
            infos,
        } = &upcall
        {
            for other in (0..self.nodes.len()).filter(|other| *other != n) {
                self.nodes[other].send(&Control::Notify {
                    code: *code,
                    source: source.clone(),
                    range: *range,
                    infos: infos.clone(),
                });
            }
        }
        self.notices.push(upcall);
    }

    fn on_upcall(&mut self, n: usize, id: UpcallId, upcall: Upcall) {
        match &upcall {
            Upcall::Fence { procs, data, .. } => {
                let arrived = self.fences.entry(procs.clone()).or_default();
                arrived.push((n, id, data.clone()));
                if arrived.len() == self.nodes.len() {
                    let arrived = self.fences.remove(procs).unwrap();
                    let all = arrived
                        .iter()
                        .flat_map(|(.., data)| data)
                        .copied()
                        .collect();
                    let answer = Answer::Data(all);
                    for (node, id, _) in arrived {
                        self.nodes[node].answer(id, &answer);
                    }
                }
            }
            Upcall::DirectModex { proc, .. } => {
                let rank = proc.rank.rank().unwrap();
                let owner = self.ranks.node_of(rank).unwrap().index();
                assert_ne!(owner, n, "libpmix has its own ranks' data");
                let request = self.nodes[owner].send(&Control::DirectModex {
                    nspace: self.nspace.clone(),
                    rank,
                });
                self.modex.insert((owner, request), (n, id));
            }
            Upcall::Query { queries, .. } => {
                let key = queries[0].keys[0].to_string();
                let value = Value::String("42".into());
                let infos = vec![Info::new(&key, value)];
                self.nodes[n].answer(id, &Answer::Infos(Status::SUCCESS, infos));
            }
            _ => self.nodes[n].answer(id, &Answer::Status(Status::SUCCESS)),
        }
        self.notices.push(upcall);
    }

    /// Deregisters the job and stops the sidecars.
    pub(crate) fn finish(mut self) {
        for mut node in self.nodes.drain(..) {
            let id = node.send(&Control::DeregisterJob {
                nspace: self.nspace.clone(),
            });
            assert_eq!(node.reply(id), ControlReply::DeregisterJob(Ok(())));
            for entry in std::fs::read_dir(node.dir.path()).unwrap() {
                let path = entry.unwrap().path();
                // The session directory is ours and empty.
                if path.is_dir() && path.file_name().unwrap().as_bytes().starts_with(b".tmp") {
                    std::fs::remove_dir(path).unwrap();
                }
            }
            node.finalize();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, child) in &mut self.clients {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
