//! PMIx tools of a launch whose ranks are not offered PMIx: the sidecars start when the first one connects.
//!
//! ```text
//! ranks run ──`PATIENCE`──▶ a listener, and files that name it ──a tool connects──▶ sidecar, which takes it over
//!                                             a tool is attached to another host ──▶ sidecar
//! ```
//! A sidecar that is lost later costs the launch nothing, and what is above begins again for its node.
//!
//! The files are those by which tools find a sidecar that is there from the beginning (`attachment`), so tools
//! see no difference but the time that the sidecar takes to start.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

use super::{LocalBackend, LocalNode, process_start, tool_files};
use crate::backend::step_messages::StepToLauncher;
use crate::failure::CommandError;
use crate::plan::directory::DirectoryError;
use crate::plan::rank_plans::{host_requests, register_request, server_name};
use crate::plan::{HostPlan, rank_env};
use crate::sys::poll::{PollSource, PollToken};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::node::event::NodeAction;
use wireup_core::pmix::sidecar_protocol::SidecarCommand;

/// Connections that wait for the sidecar.
const BACKLOG: i32 = 64;

/// How long ranks run before tools can find them: about the time that it takes until a sidecar could be found
/// which is there from the beginning. A launch that ends before pays nothing for tools.
const PATIENCE: Duration = Duration::from_millis(50);

/// Why tools cannot find a launch.
#[derive(Debug, thiserror::Error)]
enum ToolFilesError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("no file can be written in {}: {error}", place.display())]
    Files { place: PathBuf, error: io::Error },
    #[error("no socket: {0}")]
    Socket(#[from] io::Error),
}

impl LocalBackend {
    /// The ranks are being started: tools will find the launch, if it has no sidecar.
    pub(super) fn await_tools(&mut self) {
        let offer = &self.plan.offer;
        if !offer.pmix && offer.without_pmix.is_none() {
            self.tool_listen_at = Some(self.now() + PATIENCE);
            let nodes = (0..self.nodes.len()).map(|index| self.scope.node_at(index));
            self.nodes_without_sidecar = nodes.collect();
        }
    }

    /// The sidecar of a node is gone: tools that come later get another one, if it was started for tools.
    pub(super) fn await_later_tools(&mut self, node: NodeId) {
        let index = self.scope.index(node);
        let LocalNode {
            core,
            sidecar,
            hello,
            printed,
            ..
        } = &mut self.nodes[index];
        if self.ending || !core.sidecar_may_follow() {
            return;
        }
        (*sidecar, *hello) = (None, None);
        printed.clear();
        self.nodes_without_sidecar.insert(node);
        if index == 0 {
            if let Some(directories) = self.jobs.first().directories.first() {
                tool_files::remove(&directories.server, &tool_files::names(&self.plan, None));
            }
            self.listen();
        }
    }

    /// No tool is served any more that has not come.
    pub(super) fn forget_tools(&mut self) {
        self.tool_listener = None;
        self.tool_listen_at = None;
    }

    /// Lets tools find the launch. One that they cannot find runs all the same.
    pub(super) fn listen(&mut self) {
        self.tool_listen_at = None;
        match self.listen_for_tools() {
            Ok(listener) => self.tool_listener = Some(listener),
            Err(error) if self.plan.spec.verbose > 0 => {
                let text = format!("PMIx tools do not find this job: {error}");
                self.report(StepToLauncher::Tell { text });
            }
            Err(_) => {}
        }
    }

    fn listen_for_tools(&mut self) -> Result<OwnedFd, ToolFilesError> {
        let plan = Arc::clone(&self.plan);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let socket = socket.map_err(io::Error::from)?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bind(&socket, &any).map_err(io::Error::from)?;
        listen(&socket, BACKLOG).map_err(io::Error::from)?;
        let own = getsockname(&socket).and_then(SocketAddr::try_from);
        let own = own.map_err(io::Error::from)?;
        let directory = match self.directory.take() {
            Some(directory) => directory,
            None => process_start::job_directory(&plan, self.scope, &self.guard)?,
        };
        let node = self.first_node();
        let place = directory.make_server_directory(node, &plan.job.nspace);
        self.directory = Some(directory);
        let place = place?;
        let (nspace, rank) = server_name(&plan, node);
        let uri = format!("{nspace}.{rank};tcp4://{own}");
        let process = rustix::process::getpid().as_raw_nonzero().get();
        // Which libpmix will serve is not known yet; tools learn that from it.
        let text = tool_files::text(&uri, "", process);
        let names = tool_files::names(&plan, None);
        let written = tool_files::write(&place, &names, &text);
        written.map_err(|error| ToolFilesError::Files { place, error })?;
        let watched = self.poll.add(&socket, PollToken::new(PollSource::Tools, 0));
        watched.map_err(io::Error::from)?;
        Ok(socket)
    }

    /// Tools are here or on another node: every node here gets a sidecar.
    pub(super) fn serve_tools(&mut self) {
        if self.tool_listen_at.is_some() {
            self.listen();
        }
        let listener = self.tool_listener.take();
        if let Some(listener) = &listener {
            // Fails for what is not watched any more.
            let _ = self.poll.remove(listener);
        }
        let nodes = std::mem::take(&mut self.nodes_without_sidecar);
        let deaf = listener.is_none() && nodes.contains(&self.first_node());
        if self.ending || nodes.is_empty() || deaf {
            return;
        }
        let started = self.start_sidecars_for_tools(&nodes, listener.as_ref());
        if let Err(failure) = started {
            let text = format!("PMIx tools cannot be served: {failure}");
            self.report(StepToLauncher::Tell { text });
        }
    }

    fn start_sidecars_for_tools(
        &mut self,
        nodes: &BTreeSet<NodeId>,
        listener: Option<&OwnedFd>,
    ) -> Result<(), CommandError> {
        let plan = Arc::clone(&self.plan);
        let parts = plan.server_for_tools()?;
        let env: Vec<CString> = rank_env::sidecar_variables(&plan, &parts.libpmix);
        let reset = self.inherited_state.signals_to_reset();
        for node in nodes.iter().copied() {
            let index = self.scope.index(node);
            let requests = self.requests_for_tools(&plan, node)?;
            let listener = listener.filter(|_| index == 0).map(AsFd::as_fd);
            self.start_sidecar(node, &parts, &env, &reset, listener)?;
            let (mut actions, now): (Vec<NodeAction>, _) = (Vec::new(), Moment(self.now()));
            let core = &mut self.nodes[index].core;
            core.with_actions(now, &mut actions, |core| {
                core.start_sidecar_for_tools(&requests)
            });
            self.execute_actions(node, actions);
        }
        Ok(())
    }

    /// What the sidecar of a node is to know: the first job and those that have not ended.
    fn requests_for_tools(
        &mut self,
        plan: &HostPlan,
        node: NodeId,
    ) -> Result<Vec<SidecarCommand>, CommandError> {
        let index = self.scope.index(node);
        let unmade = |error| CommandError::system("cannot make the job's directories", error);
        let Some(directory) = &self.directory else {
            return Ok(Vec::new());
        };
        let core = &self.nodes[index].core;
        let running: Vec<JobIndex> = core.running_jobs().map(|(number, _)| number).collect();
        let made = directory.node(node, &plan.job.nspace).map_err(unmade)?;
        let mut requests = Vec::from(host_requests(plan, node, &made)?);
        let mut places = vec![(JobIndex::INITIAL, made)];
        for number in running.into_iter().filter(|number| !number.is_initial()) {
            let job = self.jobs.get(number).and_then(|job| job.runnable_plan());
            let Some(plan) = job else { continue };
            let made = directory.node(node, &plan.job.nspace).map_err(unmade)?;
            let mut others = core.running_local_processes();
            others.retain(|proc| proc.nspace != *plan.job.nspace.as_str());
            requests.push(register_request(plan, node, &others, &made)?);
            places.push((number, made));
        }
        for (number, made) in places {
            let Some(job) = self.jobs.get_mut(number) else {
                continue;
            };
            match job.directories.get_mut(index) {
                Some(known) => *known = made,
                None => job.directories.push(made),
            }
        }
        Ok(requests)
    }
}
