//! What ranks run in: software images that are mounted for them (`uenv`), and the image that they have for their root
//! directory (`image_container`).

mod image_container;
mod uenv;

use std::path::Path;

pub(crate) use image_container::Container;

use crate::failure::CommandError;
use crate::plan::Variable;
use crate::plan::container_root::ContainerRoot;
use crate::plan::packed_files::CleanupSink;
use wireup_core::container;
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::spec::{ContainerSpec, ImageSpec};

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
        let runtime = self.container.as_ref().and_then(Container::runtime);
        self.servers.iter().copied().chain(runtime)
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
        Container::make(image, job, node, cwd, &shown.collect::<Vec<_>>(), tell)
    });
    let container = made.transpose()?;
    Ok(MountedImages { servers, container })
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
    let made = Container::make(image, &job, NodeId(0), cwd, &[], &mut |_, _| {})?;
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
