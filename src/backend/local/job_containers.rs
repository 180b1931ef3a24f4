//! The containers of spawned jobs. A thread makes one and keeps it until it is removed: the processes that serve its mounts end with
//! the thread that has started them, and the removal takes time.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::backend::container::{self, Container};
use crate::backend::guard::GuardLine;
use crate::backend::step_messages::{NodeRefusal, StepToLauncher};
use crate::plan::container_root::ContainerRoot;
use crate::plan::packed_files::FileIdentity;
use crate::plan::{HostPlan, SpawnedJobPlan};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{NodeId, Nspace};

/// A container as its thread has made it: the view of its ranks, and the processes that serve it.
type MadeContainer = Result<(ContainerRoot, Vec<i32>), CommandError>;

/// All containers of a launch on this host.
#[derive(Debug)]
pub(super) struct JobContainers {
    /// The container of the launch.
    pub(super) of_launch: Option<Container>,
    /// Containers by the name under which they are made.
    by_name: BTreeMap<Nspace, NamedContainer>,
    container_tx: Sender<(Nspace, MadeContainer)>,
    container_rx: Receiver<(Nspace, MadeContainer)>,
    threads: Vec<JoinHandle<()>>,
    node: NodeId,
    guard: GuardLine,
    wake: Arc<OwnedFd>,
}

#[derive(Debug)]
struct NamedContainer {
    /// The thread removes the container when this is dropped.
    _thread: Sender<()>,
    /// The view of its ranks, once it is made.
    root: Option<ContainerRoot>,
}

impl JobContainers {
    /// Makes none. Threads that have made one wake the loop by `wake`, and `node` is the first one here.
    pub(super) fn new(node: NodeId, guard: GuardLine, wake: Arc<OwnedFd>) -> Self {
        let (container_tx, container_rx) = channel();
        Self {
            of_launch: None,
            by_name: BTreeMap::new(),
            container_tx,
            container_rx,
            threads: Vec::new(),
            node,
            guard,
            wake,
        }
    }

    /// Removes a container, if there is one of this name.
    pub(super) fn remove(&mut self, name: &Nspace) {
        self.by_name.remove(name);
    }

    /// Removes all of spawned jobs, and waits for that.
    pub(super) fn clear(&mut self) {
        self.by_name.clear();
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Prepares this host for a job that will be spawned. Returns the report about it, unless a thread makes a container first.
    /// `launch` is the plan of the initial job.
    pub(super) fn prepare(
        &mut self,
        job: &SpawnedJobPlan,
        launch: &Arc<HostPlan>,
    ) -> Option<StepToLauncher> {
        match self.start(job, launch) {
            Ok(true) => None,
            Ok(false) => Some(self.report(None)),
            Err(error) => Some(self.report(Some(error))),
        }
    }

    /// Has a thread make the container of a job, if it has one of its own.
    fn start(
        &mut self,
        job: &SpawnedJobPlan,
        launch: &Arc<HostPlan>,
    ) -> Result<bool, CommandError> {
        let (Some(spec), Some(name)) = (job.container.clone(), job.prepared_as.clone()) else {
            return Ok(false);
        };
        let (launch, guard, wake) = (
            Arc::clone(launch),
            self.guard.clone(),
            Arc::clone(&self.wake),
        );
        let (node, container_tx) = (self.node, self.container_tx.clone());
        let (holder, removal) = channel();
        let container = NamedContainer {
            _thread: holder,
            root: None,
        };
        self.by_name.insert(name.clone(), container);
        let make = move || {
            let cleanup = &mut |path: &Path, identity: Option<FileIdentity>| {
                guard.charge(path, identity);
            };
            let container = container::make_for_spawned_job(&spec, &name, &launch, node, cleanup);
            let (images, result) = match container {
                Ok((images, root)) => {
                    let processes = images.processes().collect();
                    (Some(images), Ok((root, processes)))
                }
                Err(error) => (None, Err(error)),
            };
            // Fails when the launch is over.
            let _ = container_tx.send((name, result));
            let _ = rustix::io::write(wake.as_fd(), &1_u64.to_ne_bytes());
            if images.is_some() {
                // Nothing is sent: this fails when the container is to be removed.
                let _ = removal.recv();
            }
        };
        let thread = thread::Builder::new().name("container".into());
        let thread = thread.spawn(make);
        let thread = thread.map_err(|error| CommandError::system("no thread", error))?;
        self.threads.push(thread);
        Ok(true)
    }

    /// Takes the results of threads: reports, and processes that are not the job's. The launcher waits for the report also of a
    /// container that is removed.
    pub(super) fn take_results(&mut self) -> Vec<(StepToLauncher, Vec<i32>)> {
        let mut results = Vec::new();
        while let Ok((name, result)) = self.container_rx.try_recv() {
            let (error, processes) = match result {
                Ok((root, processes)) => {
                    if let Some(container) = self.by_name.get_mut(&name) {
                        container.root = Some(root);
                    }
                    (None, processes)
                }
                Err(error) => {
                    self.remove(&name);
                    (Some(error), Vec::new())
                }
            };
            results.push((self.report(error), processes));
        }
        results
    }

    fn report(&self, error: Option<CommandError>) -> StepToLauncher {
        let refusal = error.map(|error| NodeRefusal {
            code: error.code(),
            message: error.to_string(),
        });
        let node = self.node;
        StepToLauncher::Prepared { node, refusal }
    }

    /// The view of a spawned job's ranks here, if they run in an image. `launch` is the plan of the initial job.
    pub(super) fn root(&self, job: &SpawnedJobPlan, launch: &HostPlan) -> Option<ContainerRoot> {
        match (&job.container, &job.prepared_as) {
            (None, _) => launch.container_root.clone(),
            (Some(_), name) => self.by_name.get(name.as_ref()?)?.root.clone(),
        }
    }
}
