//! Images of the ranks: mounted software images (`uenv`), and images that are the ranks' root directory
//! (`image_container`).

mod image_container;
mod uenv;

use std::path::Path;
use std::sync::Arc;

pub(crate) use image_container::Container;

use crate::plan::container_root::ContainerRoot;
use crate::plan::packed_files::CleanupSink;
use crate::plan::{HostPlan, Variable};
use wireup_core::container;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::spec::{ContainerSpec, ImageSpec};
use wireup_sys::mounts::{self, MountRights, MountView};

/// Images of a launch that are mounted on this host.
#[derive(Debug, Default)]
pub(crate) struct MountedImages {
    /// Pids of the processes that serve mounts, which are not part of the job. They end with the thread that mounted.
    servers: Vec<i32>,
    pub(crate) container: Option<Container>,
}

impl MountedImages {
    /// Returns the pids of children of this process that are not part of the job.
    pub(crate) fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        let of_container = self.container.iter().flat_map(Container::processes);
        self.servers.iter().copied().chain(of_container)
    }

    /// Returns the ranks' view of the file system, if they run in an image.
    pub(crate) fn inside(&self) -> Option<ContainerRoot> {
        self.container.as_ref().map(Container::inside)
    }
}

/// Mounts the images of the ranks of a node, or of all nodes of this machine, and makes their container. Relative paths
/// count from `cwd`. `cleanup` is called with the path of each directory before it is created. Must be called while the
/// process has a single thread.
///
/// # Errors
/// [`CommandError`] with the problem and the remedy; the text is the same on all hosts with this problem.
pub(crate) fn enter(
    spec: &ContainerSpec,
    job: &Nspace,
    node: NodeId,
    cwd: &Path,
    cleanup: CleanupSink<'_>,
) -> Result<MountedImages, CommandError> {
    let servers = uenv::enter(spec, cwd)?;
    let container = spec.image.as_ref().map(|image| {
        let shown = spec.uenvs.iter().map(|uenv| &*uenv.mount);
        let name = image_container::name(job.as_str(), node);
        Container::make(image, job, &name, cwd, &shown.collect::<Vec<_>>(), cleanup)
    });
    let container = container.transpose()?;
    Ok(MountedImages { servers, container })
}

/// Makes the container of a spawned job in the calling thread, which must live as long as the container. The software
/// images of the launch are mounted already. The container's name is derived from that of the job. `cleanup` is called with
/// the path of each directory before it is created.
///
/// # Errors
/// As [`enter`].
pub(crate) fn make_for_spawned_job(
    spec: &ContainerSpec,
    job: &Nspace,
    launch: &HostPlan,
    node: NodeId,
    cleanup: CleanupSink<'_>,
) -> Result<(MountedImages, ContainerRoot), CommandError> {
    mounts::separate_thread().map_err(|error| {
        CommandError::request(format!(
            "the images of a spawned job (image, uenv): {error}; an ordinary user's launch has to run in an image from its beginning for them (--uenv or --image)"
        ))
    })?;
    let rights = match rustix::process::geteuid().is_root() {
        true => MountRights::System,
        false => MountRights::OwnNamespace,
    };
    let cwd = &launch.inheritance.cwd;
    let servers = uenv::mount_all(spec, cwd, || Ok(rights))?;
    let container = spec.image.as_ref().map(|image| {
        let uenvs = launch.spec.container.uenvs.iter().chain(&spec.uenvs);
        let shown = uenvs.map(|uenv| &*uenv.mount).collect::<Vec<_>>();
        let name = image_container::name(job.as_str(), node);
        Container::make(image, &launch.launch.nspace, &name, cwd, &shown, cleanup)
    });
    let container = container.transpose()?;
    let root = match &container {
        Some(container) => container.inside(),
        None => {
            let view = MountView::from_thread();
            let view = view.map_err(|error| CommandError::system("/proc/thread-self", error))?;
            let (view, env) = (Arc::new(view), Vec::new());
            ContainerRoot { view, env }
        }
    };
    Ok((MountedImages { servers, container }, root))
}

/// Makes a container as a launch would, calls a function in it with the variables of a rank, and removes it. Must be
/// called while the process has a single thread.
///
/// # Errors
/// As [`enter`].
pub(crate) fn attempt<T: Send>(
    number: u64,
    image: &ImageSpec,
    cwd: &Path,
    look: impl FnOnce(&[Variable]) -> T + Send,
) -> Result<T, CommandError> {
    let job = Nspace::new(&attempted(number)).map_err(CommandError::request)?;
    let name = image_container::name(job.as_str(), NodeId(0));
    let instance = Container::make(image, &job, &name, cwd, &[], &mut |_, _| {})?;
    let inside = instance.inside();
    let own = std::env::vars_os().filter(|(name, _)| !container::is_of_the_image(name));
    let mut env: Vec<Variable> = own.collect();
    container::environment(&mut env, &inside.env);
    let looked = inside.view.inside(|| look(&env));
    looked.map_err(|error| CommandError::system("cannot enter the container", error))
}

/// Returns the job name of a container of an attempt, which a random number identifies.
fn attempted(number: u64) -> String {
    format!("wireup-doctor-{number:016x}")
}

/// Removes the files of an [attempt](attempt) whose process was killed.
pub(crate) fn remove_attempt(number: u64) {
    let name = image_container::name(&attempted(number), NodeId(0));
    // Mounts existed only in the container, which has ended with the process.
    let _ = std::fs::remove_dir_all(image_container::directory(&name));
}

/// Whether the runtime's program is in PATH.
pub(crate) fn has_runtime(image: &ImageSpec) -> bool {
    image_container::find(image.runtime.program()).is_some()
}

/// Mounts software images for this process, which has ranks on other hosts only. Must be called while the process has a
/// single thread.
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_images(spec: &ContainerSpec, cwd: &Path) -> Result<(), CommandError> {
    uenv::enter(spec, cwd).map(drop)
}
