//! Searches for programs, libraries and directories in the image in which ranks run.

use std::sync::Arc;

use super::Variable;
use wireup_core::failure::CommandError;
use wireup_sys::mounts::MountView;

/// Container of this node, or of all nodes that this machine is.
#[derive(Clone, Debug)]
pub struct ContainerRoot {
    pub view: Arc<MountView>,
    /// Variables of the image.
    pub env: Vec<Variable>,
}

/// Executes `work` in the container of the ranks, if they have one.
///
/// # Errors
/// [`CommandError`] of `work`, or when the container cannot be entered.
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
