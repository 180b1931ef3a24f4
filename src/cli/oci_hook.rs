//! `wireup oci-hook`: called by container runtimes, for ranks that run in containers which the user's own command makes.

mod host_mpi;

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid, getppid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::json;

use crate::backend::step;
use wireup_core::container::hook::{self, ANNOTATION, HookError, HookPlan};
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::link::scheduled_launcher::COMMAND;
use wireup_sys::mount_into::{mount_into, mount_open_into};
use wireup_sys::procfs;

const HELP: &str = "\
Examples:
  wireup oci-hook --print > /etc/containers/oci/hooks.d/wireup.json
  wireup run -n 4 podman run --rm --env-host --preserve-fds 1 --pid host --network host \\
      --annotation org.wireup.ranks=yes IMAGE app     each rank in a container of its own
  wireup run -n 4 --image IMAGE app                   all of a node in one, without the hook
  wireup oci-hook --print --mpi /opt/mpi/lib/libmpi.so.12 > /etc/containers/oci/hooks.d/wireup.json
                                                      the host's MPI for --annotation org.wireup.mpi=host

How:
  A runtime calls the hook at the stage createContainer, with the state of the container on standard input. If the container has the
  annotation org.wireup.ranks=yes, the hook mounts the host's /dev/shm in it, and the directory of the job where PMIx clients find
  their server. PMI needs the descriptor 3, which --preserve-fds 1 leaves open. crun hides what a hook says, unless the
  annotation run.oci.hooks.stderr names a file for it.

  With --mpi, a container that also has the annotation org.wireup.mpi=host gets the host's MPI library in the place of its own, if
  both have one interface (MPICH, Intel MPI: libmpi.so.12; Open MPI: libmpi.so.40), with the libraries that it needs and the image
  lacks. The C library stays the image's; one that is too old for the host's MPI is refused.

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

    /// An MPI library of this host for containers that ask for it (repeatable, one for each interface)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    mpi: Vec<PathBuf>,

    /// A directory that the host's MPI opens while it runs, such as that of its plugins: shown at the same place (repeatable)
    #[arg(long, value_name = "DIRECTORY", requires = "mpi", value_hint = ValueHint::DirPath)]
    mpi_directory: Vec<PathBuf>,
}

/// Error: a container cannot be prepared.
#[derive(Debug, thiserror::Error)]
enum OciHookError {
    #[error(transparent)]
    Plan(HookError),
    #[error(transparent)]
    HostMpi(#[from] host_mpi::HostMpiError),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{} is a directory of user {owner}, and the container one of user {user}", path.display())]
    NotOwner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    #[error(
        "{}: symbolic link in the path of a job's directory; set TMPDIR to a path without links for wireup run",
        .0.display()
    )]
    Link(PathBuf),
    #[error(
        "{}: directory of user 0, and no launch of user 0 has started the container; start containers of other users with \
         --user",
        .0.display()
    )]
    Root(PathBuf),
}

impl RequestError for OciHookError {}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OciHookError + use<> {
    let path = path.to_owned();
    move |error| OciHookError::Io { path, error }
}

/// Makes a container ready for a rank, or prints the hook's own configuration.
///
/// # Errors
/// [`CommandError`] with the reason.
pub(super) fn execute(args: &HookArgs) -> Result<u8, CommandError> {
    if args.print {
        host_mpi::check(&args.mpi).map_err(OciHookError::from)?;
        return super::print(description(args)?.as_bytes());
    }
    let standard_input = Path::new("standard input");
    let mut state = Vec::new();
    let read = io::stdin().lock().take(CONFIG_MAX).read_to_end(&mut state);
    read.map_err(io_at(standard_input))?;
    let bundle = hook::bundle(&state).map_err(OciHookError::Plan)?;
    let path = bundle.join("config.json");
    let config = fs::read(&path).map_err(io_at(&path))?;
    if let Some(plan) = hook::plan(&config, &bundle).map_err(OciHookError::Plan)? {
        make_ready(&plan, args)?;
    }
    Ok(0)
}

fn make_ready(plan: &HookPlan, args: &HookArgs) -> Result<(), OciHookError> {
    if let Some(node) = &plan.node {
        let opened = open_node(plan, node)?;
        mount_open_into(&plan.root, opened.as_fd(), node).map_err(io_at(node))?;
    }
    let shared = Path::new(hook::SHARED_MEMORY);
    mount_into(&plan.root, shared).map_err(io_at(shared))?;
    if let Some(program) = &plan.host_mpi {
        for directory in &args.mpi_directory {
            mount_into(&plan.root, directory).map_err(io_at(directory))?;
        }
        // Last: the root directory of this process is the container's from here on.
        host_mpi::put(&args.mpi, &plan.root, program)?;
    }
    Ok(())
}

/// Opens the directory of a rank's node, which a variable of the container names. With root's runtime, users of containers
/// choose the variable: the path must have no links and be open to the container's user, who owns the node's directory and
/// that of its job.
fn open_node(plan: &HookPlan, node: &Path) -> Result<OwnedFd, OciHookError> {
    let own = geteuid().as_raw();
    let is_roots = own == 0 && !root_is_ordinary_user();
    if is_roots && plan.user == 0 && !is_of_roots_launch() {
        return Err(OciHookError::Root(node.to_owned()));
    }
    let (Some(job), Some(name)) = (node.parent(), node.file_name()) else {
        return Err(OciHookError::Plan(HookError::NoJob(node.to_owned())));
    };
    let open = || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // A runtime of the user's own can open no more than the user.
        let above = match is_roots {
            true => plain,
            false => ResolveFlags::NO_MAGICLINKS,
        };
        let job = openat2(CWD, job, flags, Mode::empty(), above)?;
        let node = openat2(&job, name, flags, Mode::empty(), plain)?;
        Ok((job, node))
    };
    let opened = match is_roots && plan.user != 0 {
        true => with_rights_of(plan.user, plan.group, open),
        false => open(),
    };
    let (job_fd, node_fd) = opened.map_err(|errno| match errno {
        Errno::LOOP => OciHookError::Link(node.to_owned()),
        errno => io_at(node)(errno.into()),
    })?;
    for (path, fd) in [(job, &job_fd), (node, &node_fd)] {
        let owner = fstat(fd).map_err(|errno| io_at(path)(errno.into()))?.st_uid;
        if owner != plan.user && (is_roots || owner != own) {
            return Err(OciHookError::NotOwner {
                path: path.to_owned(),
                owner,
                user: plan.user,
            });
        }
    }
    Ok(node_fd)
}

/// Whether user 0 here is one ordinary user of the host, as for a runtime that root has not started. Source:
/// user_namespaces(7).
fn root_is_ordinary_user() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        matches!(words[..], ["0", outside, "1"] if outside != "0")
    })
}

/// Whether the process was started by a rank of a launch of root's. A rank's processes, and those that it leaves behind, are
/// below the launcher or step that serves it.
fn is_of_roots_launch() -> bool {
    const RUN: &str = "run";
    let file = |pid: &str| {
        let meta = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some((meta.dev(), meta.ino()))
    };
    let own = file("self");
    let mut pid = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    while let Some(process) = procfs::process(pid) {
        // The name alone is any program's to choose.
        if own.is_some() && file(&pid.to_string()) == own {
            // A launcher that was called as mpiexec has another name.
            let words = procfs::command_line(pid);
            let launches = words
                .get(1)
                .is_some_and(|word| word == RUN || word == COMMAND);
            let serves = launches || step::NAME.to_str() == Ok(&process.name);
            return serves && procfs::real_user(pid) == Some(0);
        }
        pid = process.parent;
    }
    false
}

/// Does something as root with what a user may do to files.
fn with_rights_of<T>(
    user: u32,
    group: u32,
    work: impl FnOnce() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    set_thread_groups(&[])?;
    set_thread_res_gid(None, Gid::from_raw(group), None)?;
    set_thread_res_uid(None, Uid::from_raw(user), None)?;
    let done = work();
    // Not before the user: only root can change the group.
    set_thread_res_uid(None, Uid::ROOT, None)?;
    set_thread_res_gid(None, Gid::ROOT, None)?;
    done
}

/// The file for a directory of hooks.
fn description(args: &HookArgs) -> Result<String, CommandError> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| CommandError::system("cannot find myself", error))?;
    let mut words = vec!["wireup".to_owned(), "oci-hook".to_owned()];
    let files = args.mpi.iter().map(|file| ("--mpi", file));
    let directories = args.mpi_directory.iter();
    for (option, path) in files.chain(directories.map(|path| ("--mpi-directory", path))) {
        let path = std::path::absolute(path).map_err(io_at(path))?;
        words.extend([option.to_owned(), path.to_string_lossy().into_owned()]);
    }
    let (name, value) = ANNOTATION;
    let name = format!("^{}$", name.replace('.', r"\."));
    let object = json!({
        "version": "1.0.0",
        "hook": { "path": own.to_string_lossy(), "args": words },
        "when": { "annotations": { name: format!("^{value}$") } },
        "stages": [STAGE],
    });
    Ok(format!("{object:#}\n"))
}
