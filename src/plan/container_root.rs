//! What ranks see that run in an image: programs, their libraries and directories are looked for there.

use std::sync::Arc;

use super::Variable;
use wireup_core::failure::CommandError;
use wireup_sys::mounts::MountView;

/// The container of this node, or of all nodes of this machine.
#[derive(Clone, Debug)]
pub struct ContainerRoot {
    pub view: Arc<MountView>,
    /// The variables of the image.
    pub env: Vec<Variable>,
}

/// Looks for something where the ranks will see it.
///
/// # Errors
/// [`CommandError`] of the work, or when the container cannot be entered.
pub(super) fn run_in_root<T: Send>(
    inside: Option<&ContainerRoot>,
    work: impl FnOnce() -> Result<T, CommandError> + Send,
) -> Result<T, CommandError> {
    match inside {
        None => work(),
        Some(inside) => {
            let entered = inside.view.inside(work);
            entered.map_err(|error| CommandError::system("cannot enter the container", error))?
        }
    }
}
