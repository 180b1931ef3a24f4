//! Mounts software images in a mount namespace. The launcher (on one machine) or the step of a node enters the namespace
//! before it looks for programs. So a program in an image is found and inspected like any other, the PMIx server can
//! load the libpmix of an image, and the mounts end with the processes of the launch.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tracing::info;

use super::image_container::find;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::spec::{ContainerSpec, Uenv};
use wireup_sys::mounts::{self, MountRights};
use wireup_sys::spawn::{ChildCommand, ProcessSpawner};

/// Program that serves an image where the user may not use the kernel's driver.
const SQUASHFUSE: &str = "squashfuse_ll";
/// Descriptor of the mount in that program.
const FUSE_FD: i32 = 3;

/// Error: an image cannot be mounted on this host. The text is the same on all hosts with this problem.
#[derive(Debug, thiserror::Error)]
enum UenvProblem {
    #[error("--uenv {}: file not found; copy it to the hosts, or put it on a shared file system", .0.display())]
    NoFile(PathBuf),
    #[error("--uenv {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("--uenv {}: not a squashfs image (mksquashfs makes one)", .0.display())]
    NoImage(PathBuf),
    #[error("--uenv {}: the directory {} does not exist; make it, or name another (--uenv FILE:DIRECTORY)", file.display(), mount.display())]
    NoDirectory { file: PathBuf, mount: PathBuf },
    #[error("--uenv {}: cannot be mounted on {}: {error}", file.display(), mount.display())]
    Mount {
        file: PathBuf,
        mount: PathBuf,
        error: io::Error,
    },
    #[error(
        "--uenv {}: cannot be mounted: {SQUASHFUSE} does not read it ({error}); the file may be damaged or not whole, or be compressed in a way that this {SQUASHFUSE} does not know",
        file.display()
    )]
    Unserved { file: PathBuf, error: io::Error },
    #[error(
        "--uenv {}: {SQUASHFUSE} not found in PATH; install squashfuse, which mounts images for ordinary users",
        .0.display()
    )]
    NoSquashfuse(PathBuf),
    #[error("--uenv: users of this system may not make mount namespaces: {0}")]
    Namespace(io::Error),
}

impl RequestError for UenvProblem {}

/// Mounts the images for this process and those that it will start, relative paths from `cwd`. Returns the children
/// that serve them, which end with the calling thread. Must be called while the process has a single thread.
///
/// # Errors
/// [`CommandError`] with the image and the remedy; the text is the same on all hosts with this problem.
pub(super) fn enter(spec: &ContainerSpec, cwd: &Path) -> Result<Vec<i32>, CommandError> {
    if spec.uenvs.is_empty() {
        return Ok(Vec::new());
    }
    mount_all(spec, cwd, mounts::separate)
}

/// Mounts the images where `separate` gives the calling thread mounts of its own. Returns and fails as [`enter`] does.
pub(super) fn mount_all(
    spec: &ContainerSpec,
    cwd: &Path,
    separate: impl FnOnce() -> io::Result<MountRights>,
) -> Result<Vec<i32>, CommandError> {
    let images = spec.uenvs.iter().map(|uenv| open(uenv, cwd));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let rights = separate().map_err(UenvProblem::Namespace)?;
    let mut servers = Vec::new();
    for (uenv, image) in spec.uenvs.iter().zip(images) {
        servers.extend(mount(uenv, &cwd.join(&uenv.file), &image, rights)?);
    }
    Ok(servers)
}

/// Opens a file that must be a squashfs image.
fn open(uenv: &Uenv, cwd: &Path) -> Result<File, UenvProblem> {
    let path = cwd.join(&uenv.file);
    let file = || uenv.file.clone();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => UenvProblem::NoFile(file()),
        _ => UenvProblem::Unreadable {
            file: file(),
            error,
        },
    };
    // To open a pipe would wait for a writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let image = File::options().read(true).custom_flags(flags).open(path);
    let image = image.map_err(unreadable)?;
    let regular = image.metadata().map_err(unreadable)?.is_file();
    if !regular || !mounts::is_squashfs(&image).map_err(unreadable)? {
        return Err(UenvProblem::NoImage(file()));
    }
    Ok(image)
}

/// Mounts one image. Returns the pid of its server if the kernel cannot mount it itself.
fn mount(
    uenv: &Uenv,
    path: &Path,
    image: &File,
    rights: MountRights,
) -> Result<Option<i32>, UenvProblem> {
    let Uenv { file, mount } = uenv;
    // The directory may be in an image that was mounted before.
    if !mount.is_dir() {
        return Err(UenvProblem::NoDirectory {
            file: file.clone(),
            mount: mount.clone(),
        });
    }
    let failed = |error| UenvProblem::Mount {
        file: file.clone(),
        mount: mount.clone(),
        error,
    };
    if rights == MountRights::System {
        match mounts::by_loop_device(image, mount) {
            Ok(()) => return Ok(None),
            // A container around the launch may have FUSE without loop devices.
            Err(error) if find(SQUASHFUSE).is_none() => return Err(failed(error)),
            Err(error) => info!("{}: {error}; squashfuse is tried", file.display()),
        }
    }
    let program = find(SQUASHFUSE).ok_or_else(|| UenvProblem::NoSquashfuse(file.clone()))?;
    let device = mounts::by_fuse(mount).map_err(failed)?;
    let server = serve(&program, path, device).map_err(failed)?;
    // This call returns when the server serves, and fails when the server has ended.
    std::fs::read_dir(mount).map_err(|error| UenvProblem::Unserved {
        file: file.clone(),
        error,
    })?;
    Ok(Some(server))
}

/// Starts the server of a mount.
fn serve(program: &Path, image: &Path, device: OwnedFd) -> io::Result<i32> {
    let c_string = |text: &[u8]| CString::new(text).map_err(io::Error::other);
    let program = c_string(program.as_os_str().as_bytes())?;
    let argv = [
        program.clone(),
        c"-f".into(),
        c_string(image.as_os_str().as_bytes())?,
        c_string(format!("/dev/fd/{FUSE_FD}").as_bytes())?,
    ];
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let descriptors = [
        (null.as_fd(), 0),
        (null.as_fd(), 1),
        (null.as_fd(), 2),
        (device.as_fd(), FUSE_FD),
    ];
    let command = ChildCommand {
        descriptors: &descriptors,
        ..ChildCommand::new(&program, &argv)
    };
    let child = ProcessSpawner::default().spawn(&command)?;
    Ok(child.pid.as_raw_nonzero().get())
}
