//! Starts sidecars on demand for PMIx tools of a launch without PMIx, when the first tool connects.
//!
//! ```text
//! ranks run ──`PATIENCE`──▶ a listener, and files that name it ──a tool connects──▶ sidecar, which takes it over
//!                                             a tool is attached to another host ──▶ sidecar
//! ```
//! The later loss of a sidecar does not affect the launch; the sequence above starts again for its node.
//!
//! The files are the same as for a sidecar that runs from the start (`tool_files`), so the start time of the sidecar is the
//! only difference for tools.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::node_cores::LocalNode;
use super::step_context::StepContext;
use super::tool_files;
use crate::plan::HostPlan;
use crate::plan::directory::DirectoryError;
use crate::plan::rank_plans::{host_requests, register_request, server_name};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::pmix::sidecar_protocol::SidecarCommand;
use wireup_sys::poll::{PollSource, PollToken};

/// Time from the start of the ranks until tools can find them, about that of a sidecar which runs from the start. A
/// shorter launch has no cost for tools.
const PATIENCE: Duration = Duration::from_millis(50);

/// Error: tools cannot find the launch.
#[derive(Debug, thiserror::Error)]
enum ToolFilesError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot write a file in {}: {error}", place.display())]
    Files { place: PathBuf, error: io::Error },
    #[error("cannot create a socket: {0}")]
    Socket(#[from] io::Error),
}

/// Listener by which tools find a launch without sidecars, until sidecars are started for them.
#[derive(Debug, Default)]
pub(super) struct ToolListener {
    /// Socket to which tools connect while no sidecar runs.
    listener: Option<OwnedFd>,
    /// Time at which the socket is opened, since the start of the launch.
    listen_at: Option<Duration>,
    /// Local nodes that get a sidecar when the next tool connects.
    nodes: BTreeSet<NodeId>,
}

/// Local nodes that need a sidecar, since a tool has connected here or on another node.
pub(super) struct ToolArrival {
    pub(super) nodes: BTreeSet<NodeId>,
    /// Socket at which the tools have connected.
    pub(super) listener: Option<OwnedFd>,
}

impl ToolListener {
    /// Schedules the listener when ranks are being started, if the launch has no sidecars.
    pub(super) fn await_tools(&mut self, cx: &StepContext) {
        let offer = &cx.plan.offer;
        if !offer.pmix && offer.without_pmix.is_none() {
            self.listen_at = Some(cx.now() + PATIENCE);
            let nodes = (0..cx.nodes.len()).map(|index| cx.scope.node_at(index));
            self.nodes = nodes.collect();
        }
    }

    /// Handles the loss of a sidecar: if it was started for tools, later tools get another one.
    pub(super) fn await_later_tools(&mut self, cx: &mut StepContext, node: NodeId) {
        let index = cx.scope.index(node);
        let LocalNode {
            core,
            sidecar,
            hello,
            printed,
            ..
        } = &mut cx.nodes[index];
        if cx.ending || !core.sidecar_may_follow() {
            return;
        }
        (*sidecar, *hello) = (None, None);
        printed.clear();
        self.nodes.insert(node);
        if index == 0 {
            if let Some(directories) = cx.jobs.first().directories.first() {
                tool_files::remove(&directories.server, &tool_files::names(&cx.plan, None));
            }
            self.listen(cx);
        }
    }

    /// Closes the listener: later tools are not served.
    pub(super) fn close(&mut self) {
        self.listener = None;
        self.listen_at = None;
    }

    /// Returns the time at which `tick` is due.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.listen_at
    }

    /// Opens the listener when it is due.
    pub(super) fn tick(&mut self, cx: &mut StepContext) {
        if self.listen_at.is_some_and(|at| at <= cx.now()) {
            self.listen(cx);
        }
    }

    /// Opens the listener and writes the files. A failure is reported and does not affect the launch.
    fn listen(&mut self, cx: &mut StepContext) {
        self.listen_at = None;
        match listen_for_tools(cx) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) if cx.plan.spec.verbose > 0 => {
                cx.report_text(format!("PMIx tools cannot find this job: {error}"));
            }
            Err(_) => {}
        }
    }

    /// Takes the nodes that need a sidecar after a tool has connected here or on another node.
    pub(super) fn take_arrival(&mut self, cx: &mut StepContext) -> Option<ToolArrival> {
        if self.listen_at.is_some() {
            self.listen(cx);
        }
        let listener = self.listener.take();
        if let Some(listener) = &listener {
            // The call fails for a socket that is no longer watched.
            let _ = cx.poll.remove(listener);
        }
        let nodes = std::mem::take(&mut self.nodes);
        let deaf = listener.is_none() && nodes.contains(&cx.first_node());
        if cx.ending || nodes.is_empty() || deaf {
            return None;
        }
        Some(ToolArrival { nodes, listener })
    }
}

fn listen_for_tools(cx: &mut StepContext) -> Result<OwnedFd, ToolFilesError> {
    let plan = Arc::clone(&cx.plan);
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.set_nonblocking(true)?;
    let own = socket.local_addr()?;
    let node = cx.first_node();
    let directory = cx.cleanup.make_directory(&plan, cx.scope, &cx.guard)?;
    let place = directory.make_server_directory(node, &plan.job.nspace)?;
    let (nspace, rank) = server_name(&plan, node);
    let uri = format!("{nspace}.{rank};tcp4://{own}");
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // The version of libpmix is not known yet; tools get it from the server.
    let text = tool_files::text(&uri, "", process);
    let names = tool_files::names(&plan, None);
    let written = tool_files::write(&place, &names, &text);
    written.map_err(|error| ToolFilesError::Files { place, error })?;
    let watched = cx.poll.add(&socket, PollToken::new(PollSource::Tools, 0));
    watched.map_err(io::Error::from)?;
    Ok(socket.into())
}

/// Returns the registration commands for the sidecar of a node: the initial job, and the jobs that have not ended.
pub(super) fn requests_for_tools(
    cx: &mut StepContext,
    plan: &HostPlan,
    node: NodeId,
) -> Result<Vec<SidecarCommand>, CommandError> {
    let index = cx.scope.index(node);
    let unmade = |error| CommandError::system("cannot make the job's directories", error);
    let Some(directory) = &cx.cleanup.directory else {
        return Ok(Vec::new());
    };
    let core = &cx.nodes[index].core;
    let running: Vec<JobIndex> = core.running_jobs().map(|(number, _)| number).collect();
    let node_directories = directory.node(node, &plan.job.nspace).map_err(unmade)?;
    let mut requests = Vec::from(host_requests(plan, node, &node_directories)?);
    let mut places = vec![(JobIndex::INITIAL, node_directories)];
    for number in running.into_iter().filter(|number| !number.is_initial()) {
        let job = cx.jobs.get(number).and_then(|job| job.runnable_plan());
        let Some(plan) = job else { continue };
        let node_directories = directory.node(node, &plan.job.nspace).map_err(unmade)?;
        let mut others = core.running_local_processes();
        others.retain(|proc| proc.nspace != *plan.job.nspace.as_str());
        requests.push(register_request(plan, node, &others, &node_directories)?);
        places.push((number, node_directories));
    }
    for (number, node_directories) in places {
        let Some(job) = cx.jobs.get_mut(number) else {
            continue;
        };
        match job.directories.get_mut(index) {
            Some(known) => *known = node_directories,
            None => job.directories.push(node_directories),
        }
    }
    Ok(requests)
}
