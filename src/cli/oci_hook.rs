//! `wireup oci-hook`: called by container runtimes, for ranks that run in containers which the user's own command makes.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::process::geteuid;
use serde_json::json;

use crate::failure::{RequestError, RunFailure};
use crate::sys::mount_into::mount_into;
use wireup_core::container::hook::{self, ANNOTATION, HookError, HookPlan};

const HELP: &str = "\
Examples:
  wireup oci-hook --print > /etc/containers/oci/hooks.d/wireup.json
  wireup run -n 4 podman run --rm --env-host --preserve-fds 1 --pid host --network host \\
      --annotation org.wireup.ranks=yes IMAGE app     each rank in a container of its own
  wireup run -n 4 --image IMAGE app                   all of a node in one, without the hook

How:
  A runtime calls the hook at the stage createContainer, with the state of the container on standard input. If the container has the
  annotation org.wireup.ranks=yes, the hook mounts the host's /dev/shm in it, and the directory of the job where PMIx clients find
  their server. PMI needs the descriptor 3, which --preserve-fds 1 leaves open. crun hides what a hook says, unless the
  annotation run.oci.hooks.stderr names a file for it.

Exit status:
  0    the container is ready, or did not ask for the hook
  125  ranks cannot run in the container, or a mount failed";

/// The stage of the hook: in the mounts of the container, where paths of the host can be used.
const STAGE: &str = "createContainer";

/// No configuration is longer.
const CONFIG_MAX: u64 = 16 * 1024 * 1024;

/// Arguments of `wireup oci-hook`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct HookArgs {
    /// Print the file that makes podman and CRI-O call the hook
    #[arg(long)]
    print: bool,
}

/// A container that cannot be made ready.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Plan(HookError),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is a directory of user {owner}, and the container one of user {user}", path.display())]
    NotOwner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
}

impl RequestError for Problem {}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> Problem + use<> {
    let path = path.to_owned();
    move |error| Problem::Io { path, error }
}

/// Makes a container ready for a rank, or prints the hook's own configuration.
///
/// # Errors
/// [`RunFailure`] with the reason.
pub(super) fn execute(args: &HookArgs) -> Result<u8, RunFailure> {
    if args.print {
        return super::print(description()?.as_bytes());
    }
    let standard_input = Path::new("standard input");
    let mut state = Vec::new();
    let read = io::stdin().lock().take(CONFIG_MAX).read_to_end(&mut state);
    read.map_err(io_at(standard_input))?;
    let bundle = hook::bundle(&state).map_err(Problem::Plan)?;
    let path = bundle.join("config.json");
    let config = fs::read(&path).map_err(io_at(&path))?;
    if let Some(plan) = hook::plan(&config, &bundle).map_err(Problem::Plan)? {
        make_ready(&plan)?;
    }
    Ok(0)
}

fn make_ready(plan: &HookPlan) -> Result<(), Problem> {
    if let Some(node) = &plan.node {
        let owner = fs::symlink_metadata(node).map_err(io_at(node))?.uid();
        // The runtime may be root's, and the variables that name the directory another user's.
        if owner != plan.user && owner != geteuid().as_raw() {
            return Err(Problem::NotOwner {
                path: node.clone(),
                owner,
                user: plan.user,
            });
        }
        mount_into(&plan.root, node).map_err(io_at(node))?;
    }
    let shared = &plan.shared_memory;
    mount_into(&plan.root, shared).map_err(io_at(shared))
}

/// The file for a directory of hooks.
fn description() -> Result<String, RunFailure> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| RunFailure::system("cannot find myself", error))?;
    let (name, value) = ANNOTATION;
    let name = format!("^{}$", name.replace('.', r"\."));
    let object = json!({
        "version": "1.0.0",
        "hook": { "path": own.to_string_lossy(), "args": ["wireup", "oci-hook"] },
        "when": { "annotations": { name: format!("^{value}$") } },
        "stages": [STAGE],
    });
    Ok(format!("{object:#}\n"))
}
