//! The job record in PMIx keys, for `PMIx_server_register_nspace`.
//!
//! Rule: node and proc arrays are complete or absent; a partial array keeps libpmix from deriving
//! the rest, and one without host name crashes it. We give both maps and, up to [`LISTED_MAX`]
//! ranks, complete arrays. For a larger job libpmix derives the rank data from the maps alone.
//! Rule: every array starts with the key that identifies its node, app or proc. Rule: every node
//! describes the whole job. Source: docs/pmix-server.md#job-description.

use std::collections::BTreeMap;

use super::keys;
use super::value::{self, Info, PmixRank, Text, Value};
use crate::interlaunch::RemoteJob;
use crate::job::ids::{AppNum, GlobalRank, NodeId, Nspace, Rank};
use crate::job::proc::Proc;
use crate::job::process_map::ProcessMap;

/// Maximum number of ranks of one application that are described one by one. libpmix takes the description in pieces of
/// half a kilobyte, nine for each rank, and stores data that it would have derived from the maps. The maps do not
/// contain the application context of a rank, which is needed with several applications, nor the parent of a spawned
/// job.
pub const LISTED_MAX: u32 = 8192;

/// One application context; its ranks follow those of the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PmixAppInfo {
    /// Number of its ranks.
    pub size: u32,
    /// Program's path and its arguments.
    pub argv: Vec<Text>,
    pub wdir: Text,
}

/// Description of a job for one node's PMIx server.
#[derive(Clone, Copy, Debug)]
pub struct PmixJobInfo<'a> {
    pub nspace: &'a Nspace,
    /// Placement of its ranks.
    pub ranks: &'a ProcessMap,
    /// Name of every node of `ranks`, by number.
    pub node_names: &'a [String],
    /// The node that gets the record.
    pub node: NodeId,
    /// The application contexts; their sizes add up to the job's.
    pub apps: &'a [PmixAppInfo],
    /// Slots of the allocation.
    pub universe_size: u32,
    /// The process that spawned it; `None` for the job that the user started.
    pub parent: Option<&'a Proc>,
    /// Number of the first process of the job among those of the launch.
    pub offset: GlobalRank,
    /// By node: processes of the jobs before it; none where the list ends.
    pub before: &'a [u32],
    /// Processes of other jobs on the node that gets the record.
    pub other_job_procs: &'a [value::PmixProc],
    /// CPUs of the bound ranks of the node that gets the record. The sidecar adds their locality strings from its
    /// libpmix; those of other nodes are unknown here.
    pub cpusets: &'a BTreeMap<Rank, Text>,
    /// Session directory, existing, owned by the job's user.
    pub tmpdir: &'a Text,
    /// The job's directory in it, existing, owned by the job's user; the agent removes both.
    pub nsdir: &'a Text,
    /// The user that the ranks run as.
    pub uid: u32,
    /// The group that the ranks run as.
    pub gid: u32,
}

/// A job that must not be shown to libpmix.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JobInfoError {
    /// The number of names differs from the number of nodes.
    #[error("{names} node names for {nodes} nodes")]
    NodeNames {
        names: usize,
        /// Nodes of the job.
        nodes: u32,
    },
    /// libpmix would misread the list of nodes.
    #[error(
        "node name {0:?} is empty or has a character other than letters, digits, '-', '_' and '.'"
    )]
    NodeName(String),
    /// Two nodes have the same name.
    #[error("two nodes have the name {0:?}")]
    SameName(String),
    /// The contexts do not add up to the job.
    #[error("application contexts of {apps} ranks in a job of {size}")]
    Apps {
        /// Sum of the contexts' sizes.
        apps: u64,
        size: u32,
    },
    /// PMIx counts the processes of a node in 16 bits.
    #[error("{0} processes on one node; PMIx allows at most 65535")]
    LocalSize(u32),
}

/// Returns the infos for [`super::sidecar_protocol::SidecarCommand::RegisterJob`] of a job of another launch, none of
/// whose ranks is served here. libpmix derives everything else from them.
///
/// # Errors
/// [`JobInfoError`] when libpmix does not accept the names of its nodes.
pub fn remote_job_infos(job: &RemoteJob) -> Result<Vec<Info>, JobInfoError> {
    check_names(&job.node_names, job.ranks.nodes())?;
    let on = |node: NodeId| job.ranks.ranks_on(node).map(|rank| rank.to_string());
    let nodes = job.ranks.node_ids().zip(&job.node_names);
    let nodes: Vec<(&str, String)> = nodes
        .map(|(node, name)| (name.as_str(), on(node).collect::<Vec<_>>().join(",")))
        .filter(|(_, ranks)| !ranks.is_empty())
        .collect();
    let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
    let ranks: Vec<&str> = nodes.iter().map(|(_, ranks)| ranks.as_str()).collect();
    let size = job.ranks.size();
    Ok(vec![
        Info::new(keys::JOB_SIZE, Value::Uint32(size)),
        Info::new(keys::UNIV_SIZE, Value::Uint32(job.universe_size)),
        Info::new(keys::MAX_PROCS, Value::Uint32(size)),
        Info::new(keys::JOBID, Value::String((&job.nspace).into())),
        Info::new(keys::JOB_NUM_APPS, Value::Uint32(job.programs)),
        Info::new(keys::NUM_NODES, Value::Uint32(count(nodes.len()))),
        Info::new(keys::NODE_MAP, Value::NodeList(names.join(",").into())),
        Info::new(keys::PROC_MAP, Value::PpnList(ranks.join(";").into())),
    ])
}

/// Checks that every node has a name that libpmix accepts, and that all names differ.
fn check_names(names: &[String], nodes: u32) -> Result<(), JobInfoError> {
    if names.len() != nodes as usize {
        return Err(JobInfoError::NodeNames {
            names: names.len(),
            nodes,
        });
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let bad = |name: &&String| name.is_empty() || !name.bytes().all(plain);
    if let Some(name) = names.iter().find(bad) {
        return Err(JobInfoError::NodeName(name.clone()));
    }
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(JobInfoError::SameName(two[0].clone())),
        None => Ok(()),
    }
}

impl PmixJobInfo<'_> {
    /// Returns the infos for [`super::sidecar_protocol::SidecarCommand::RegisterJob`].
    ///
    /// # Errors
    /// [`JobInfoError`] when the parts contradict each other or libpmix does not accept them.
    pub fn infos(&self) -> Result<Vec<Info>, JobInfoError> {
        self.check()?;
        let nodes: Vec<Node<'_>> = self.nodes();
        let mut infos = self.job_level(&nodes);
        let derived = self.apps.len() == 1 && self.parent.is_none();
        let listed = self.ranks.size() <= LISTED_MAX || !derived;
        if listed {
            infos.extend(nodes.iter().map(|node| {
                let mut infos = node.infos();
                // Only for this node, which knows the jobs that run on it.
                if node.id == self.node {
                    infos.extend(self.local_procs());
                }
                Info::new(keys::NODE_INFO_ARRAY, Value::Infos(infos))
            }));
        }
        let mut first = 0;
        for (appnum, app) in self.apps.iter().enumerate() {
            infos.push(Info::new(
                keys::APP_INFO_ARRAY,
                Value::Infos(app_infos(appnum, app, Rank(first))),
            ));
            first += app.size;
        }
        if listed {
            infos.extend(self.procs(&nodes));
        }
        Ok(infos)
    }

    fn check(&self) -> Result<(), JobInfoError> {
        check_names(self.node_names, self.ranks.nodes())?;
        let apps = self.apps.iter().map(|app| u64::from(app.size)).sum();
        if apps != u64::from(self.ranks.size()) {
            return Err(JobInfoError::Apps {
                apps,
                size: self.ranks.size(),
            });
        }
        let size = |node| {
            self.count_earlier_procs(node)
                .saturating_add(self.ranks.local_size(node))
        };
        let mut sizes = self.ranks.node_ids().map(size);
        match sizes.find(|size| *size > u32::from(u16::MAX)) {
            Some(size) => Err(JobInfoError::LocalSize(size)),
            None => Ok(()),
        }
    }

    /// Processes of other jobs that a node had before.
    fn count_earlier_procs(&self, node: NodeId) -> u32 {
        self.before.get(node.index()).copied().unwrap_or(0)
    }

    /// Returns the nodes that host ranks; PMIx knows no others. A node has one number in all jobs of the launch, since
    /// Open MPI compares those of processes of different jobs.
    fn nodes(&self) -> Vec<Node<'_>> {
        let hosting = |id: &NodeId| self.ranks.local_size(*id) > 0;
        let ids = self.ranks.node_ids().filter(hosting);
        ids.map(|id| Node {
            id,
            before: self.count_earlier_procs(id),
            name: self.node_names[id.index()].as_str(),
            ranks: self.ranks.ranks_on(id).collect(),
        })
        .collect()
    }

    fn job_level(&self, nodes: &[Node<'_>]) -> Vec<Info> {
        let size = self.ranks.size();
        let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
        let peers: Vec<String> = nodes.iter().map(Node::peers).collect();
        let mut infos = vec![
            Info::new(keys::JOB_SIZE, Value::Uint32(size)),
            Info::new(keys::UNIV_SIZE, Value::Uint32(self.universe_size)),
            Info::new(keys::MAX_PROCS, Value::Uint32(size)),
            Info::new(keys::JOBID, Value::String(self.nspace.into())),
            Info::new(keys::JOB_NUM_APPS, Value::Uint32(count(self.apps.len()))),
            Info::new(keys::NUM_NODES, Value::Uint32(count(nodes.len()))),
            Info::new(keys::NPROC_OFFSET, Value::Rank(PmixRank(self.offset.0))),
            Info::new(keys::NODE_MAP, Value::NodeList(names.join(",").into())),
            Info::new(keys::PROC_MAP, Value::PpnList(peers.join(";").into())),
            Info::new(keys::TMPDIR, Value::String(self.tmpdir.clone())),
            Info::new(keys::NSDIR, Value::String(self.nsdir.clone())),
            Info::new(keys::TDIR_RMCLEAN, Value::Bool(true)),
            Info::new(keys::USERID, Value::Uint32(self.uid)),
            Info::new(keys::GRPID, Value::Uint32(self.gid)),
        ];
        if let Some(own) = nodes.iter().find(|node| node.id == self.node) {
            infos.extend(own.local_infos());
        }
        infos
    }

    /// Returns the processes of the node that gets the record.
    fn local_procs(&self) -> Option<Info> {
        let own = self.ranks.ranks_on(self.node);
        let own = own.map(|rank| value::PmixProc::new(self.nspace, rank));
        let procs = self
            .other_job_procs
            .iter()
            .cloned()
            .chain(own)
            .map(Value::Proc);
        let procs = value::Array::new(procs.collect())?;
        Some(Info::new(keys::LOCAL_PROCS, Value::Array(procs)))
    }

    fn procs<'a>(&'a self, nodes: &'a [Node<'a>]) -> impl Iterator<Item = Info> + 'a {
        // By rank, to walk node lists in rank order: libpmix keeps the order it is given.
        let mut places: Vec<(Rank, u32, &Node<'_>)> = nodes
            .iter()
            .flat_map(|node| {
                (0..)
                    .zip(&node.ranks)
                    .map(move |(local, rank)| (*rank, local, node))
            })
            .collect();
        places.sort_by_key(|(rank, ..)| *rank);
        let sizes = self.apps.iter().map(|app| app.size);
        let in_app = (0..)
            .map(AppNum)
            .zip(sizes)
            .flat_map(|(app, size)| (0..size).map(move |app_rank| (app, app_rank)));
        places
            .into_iter()
            .zip(in_app)
            .map(|((rank, local, node), (app, app_rank))| {
                let mut infos = vec![
                    Info::new(keys::RANK, Value::Rank(rank.into())),
                    Info::new(keys::HOSTNAME, Value::String(node.name.into())),
                    Info::new(keys::NODEID, Value::Uint32(node.id.0)),
                    Info::new(keys::LOCAL_RANK, small(local)),
                    Info::new(keys::NODE_RANK, small(node.before + local)),
                    Info::new(keys::APPNUM, Value::Uint32(app.0)),
                    Info::new(keys::APP_RANK, Value::Rank(PmixRank(app_rank))),
                    Info::new(
                        keys::GLOBAL_RANK,
                        Value::Rank(PmixRank(self.offset.0 + rank.0)),
                    ),
                    Info::new(keys::REINCARNATION, Value::Uint32(0)),
                ];
                if let Some(cpus) = self.cpusets.get(&rank) {
                    infos.push(Info::new(keys::CPUSET, Value::String(cpus.clone())));
                }
                if let Some(parent) = self.parent {
                    infos.push(Info::new(keys::SPAWNED, Value::Bool(true)));
                    infos.push(Info::new(
                        keys::PARENT_ID,
                        Value::Proc(value::PmixProc::from(parent)),
                    ));
                }
                Info::new(keys::PROC_INFO_ARRAY, Value::Infos(infos))
            })
    }
}

/// One node that hosts ranks.
struct Node<'a> {
    id: NodeId,
    /// Processes of other jobs before these.
    before: u32,
    name: &'a str,
    /// Ascending, at least one.
    ranks: Vec<Rank>,
}

impl Node<'_> {
    fn peers(&self) -> String {
        let ranks: Vec<String> = self.ranks.iter().map(Rank::to_string).collect();
        ranks.join(",")
    }

    fn infos(&self) -> Vec<Info> {
        let mut infos = vec![
            Info::new(keys::HOSTNAME, Value::String(self.name.into())),
            Info::new(keys::NODEID, Value::Uint32(self.id.0)),
        ];
        infos.extend(self.local_infos());
        infos
    }

    fn local_infos(&self) -> [Info; 4] {
        let leader = self.ranks.first().expect("a hosting node has a rank");
        [
            Info::new(keys::LOCAL_SIZE, Value::Uint32(count(self.ranks.len()))),
            Info::new(
                keys::NODE_SIZE,
                Value::Uint32(self.before + count(self.ranks.len())),
            ),
            Info::new(keys::LOCALLDR, Value::Rank((*leader).into())),
            Info::new(keys::LOCAL_PEERS, Value::String(self.peers().into())),
        ]
    }
}

fn app_infos(appnum: usize, app: &PmixAppInfo, leader: Rank) -> Vec<Info> {
    let argv: Vec<&[u8]> = app.argv.iter().map(Text::as_bytes).collect();
    vec![
        Info::new(keys::APPNUM, Value::Uint32(count(appnum))),
        Info::new(keys::APP_SIZE, Value::Uint32(app.size)),
        Info::new(keys::APPLDR, Value::Rank(leader.into())),
        Info::new(keys::APP_ARGV, Value::String(Text::new(argv.join(&b' ')))),
        Info::new(keys::WDIR, Value::String(app.wdir.clone())),
    ]
}

/// Places on a node are bounded by the check of its size.
fn small(place: u32) -> Value {
    Value::Uint16(u16::try_from(place).expect("nodes of more processes were refused"))
}

/// Counts here are bounded by the job's size, a u32.
fn count(len: usize) -> u32 {
    u32::try_from(len).expect("bounded by the job's size")
}

#[cfg(test)]
mod tests;
