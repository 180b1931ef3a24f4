//! What ranks see that run in an image: programs, their libraries and directories are looked for there.

use std::sync::Arc;

use super::Variable;
use crate::failure::RunFailure;
use crate::sys::mounts::View;

/// The container of this node, or of all nodes of this machine.
#[derive(Clone, Debug)]
pub struct Inside {
    pub view: Arc<View>,
    /// The variables of the image.
    pub env: Vec<Variable>,
}

/// Looks for something where the ranks will see it.
///
/// # Errors
/// [`RunFailure`] of the work, or when the container cannot be entered.
pub(super) fn look<T: Send>(
    inside: Option<&Inside>,
    work: impl FnOnce() -> Result<T, RunFailure> + Send,
) -> Result<T, RunFailure> {
    match inside {
        None => work(),
        Some(inside) => {
            let entered = inside.view.inside(work);
            entered.map_err(|error| RunFailure::system("cannot enter the container", error))?
        }
    }
}
