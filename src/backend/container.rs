//! What ranks run in: software images that are mounted for them (`uenv`), and the image that they have for their root
//! directory (`image_container`).

mod image_container;
mod uenv;

use std::path::Path;
use std::sync::Arc;

pub(crate) use image_container::Container;

use crate::plan::Variable;
use crate::plan::container_root::ContainerRoot;
use crate::plan::packed_files::CleanupSink;
use wireup_core::container;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::spec::{ContainerSpec, ImageSpec, Uenv};
use wireup_sys::mounts::{self, MountRights, MountView};

/// What a launch has of images on this host.
#[derive(Debug, Default)]
pub(crate) struct MountedImages {
    /// Processes that serve mounts, which are not of the job. They end with the thread that has made them.
    servers: Vec<i32>,
    pub(crate) container: Option<Container>,
}

impl MountedImages {
    /// Children of this process that are not of the job.
    pub(crate) fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        let of_container = self.container.iter().flat_map(Container::processes);
        self.servers.iter().copied().chain(of_container)
    }

    /// What ranks see, if they run in an image.
    pub(crate) fn inside(&self) -> Option<ContainerRoot> {
        self.container.as_ref().map(Container::inside)
    }
}

/// Makes what the ranks of a node run in, or those of all nodes of this machine; relative paths count from `cwd`. `tell`
/// gets the path of a directory before it exists. Must be called while the process has a single thread.
///
/// # Errors
/// [`CommandError`] with what is missing and the remedy, in words that are the same on every host with this problem.
pub(crate) fn enter(
    spec: &ContainerSpec,
    job: &Nspace,
    node: NodeId,
    cwd: &Path,
    tell: CleanupSink<'_>,
) -> Result<MountedImages, CommandError> {
    let servers = uenv::enter(spec, cwd)?;
    let made = spec.image.as_ref().map(|image| {
        let shown = spec.uenvs.iter().map(|uenv| &*uenv.mount);
        let name = image_container::name(job.as_str(), node);
        Container::make(image, job, &name, cwd, &shown.collect::<Vec<_>>(), tell)
    });
    let container = made.transpose()?;
    Ok(MountedImages { servers, container })
}

/// A container of a spawned job on this host.
#[derive(Debug)]
pub(crate) struct JobContainer<'a> {
    /// The images of the job.
    pub(crate) spec: &'a ContainerSpec,
    /// The software images of the launch, which are mounted.
    pub(crate) launch_uenvs: &'a [Uenv],
    pub(crate) launch: &'a Nspace,
    /// The name under which it is made.
    pub(crate) name: &'a Nspace,
    pub(crate) node: NodeId,
    /// Relative paths count from it.
    pub(crate) cwd: &'a Path,
}

/// The rights for mounts of a thread's own are missing.
#[derive(Debug, thiserror::Error)]
#[error(
    "the images of a spawned job (image, uenv): {0}; an ordinary user's launch has to run in an image from its beginning for them (--uenv or --image)"
)]
struct NoThreadMounts(std::io::Error);

impl RequestError for NoThreadMounts {}

impl JobContainer<'_> {
    /// Makes it in the calling thread, which must live as long as it. `tell` gets the path of a directory before it exists.
    ///
    /// # Errors
    /// As [`enter`].
    pub(crate) fn make(
        &self,
        tell: CleanupSink<'_>,
    ) -> Result<(MountedImages, ContainerRoot), CommandError> {
        mounts::separate_thread().map_err(NoThreadMounts)?;
        let rights = match rustix::process::geteuid().is_root() {
            true => MountRights::System,
            false => MountRights::OwnNamespace,
        };
        let servers = uenv::mount_all(self.spec, self.cwd, || Ok(rights))?;
        let made = self.spec.image.as_ref().map(|image| {
            let uenvs = self.launch_uenvs.iter().chain(&self.spec.uenvs);
            let shown = uenvs.map(|uenv| &*uenv.mount).collect::<Vec<_>>();
            let name = image_container::name(self.name.as_str(), self.node);
            Container::make(image, self.launch, &name, self.cwd, &shown, tell)
        });
        let container = made.transpose()?;
        let root = match &container {
            Some(container) => container.inside(),
            None => {
                let view = MountView::from_thread();
                let view =
                    view.map_err(|error| CommandError::system("/proc/thread-self", error))?;
                let (view, env) = (Arc::new(view), Vec::new());
                ContainerRoot { view, env }
            }
        };
        Ok((MountedImages { servers, container }, root))
    }
}

/// Makes a container as a launch would, looks at what ranks would find in it, with their variables, and removes it. Must be
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
    let made = Container::make(image, &job, &name, cwd, &[], &mut |_, _| {})?;
    let inside = made.inside();
    let own = std::env::vars_os().filter(|(name, _)| !container::is_of_the_image(name));
    let mut env: Vec<Variable> = own.collect();
    container::environment(&mut env, &inside.env);
    let looked = inside.view.inside(|| look(&env));
    looked.map_err(|error| CommandError::system("cannot enter the container", error))
}

/// The job of a container that is made for an attempt, which a random number identifies.
fn attempted(number: u64) -> String {
    format!("wireup-doctor-{number:016x}")
}

/// Removes what a process that was killed left of its [attempt](attempt).
pub(crate) fn remove_attempt(number: u64) {
    let job = attempted(number);
    // It is mounted in the container alone, which has ended with the process.
    let _ = std::fs::remove_dir_all(image_container::directory(&image_container::name(
        &job,
        NodeId(0),
    )));
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
