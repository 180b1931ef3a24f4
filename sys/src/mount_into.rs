//! Mounts of the host's directories below the root directory of a container, whose files are not trusted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_RECURSIVE);

/// Shows a directory of the host at the same path below `root`. Missing directories are made; links in the container
/// never lead out of it.
///
/// # Errors
/// The system's.
pub fn mount_into(root: &Path, directory: &Path) -> io::Result<()> {
    let tree = open_tree(CWD, directory, CLONE | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?;
    attach(root, &tree, directory)
}

/// Shows an open directory of the host at this path below `root`, as [`mount_into`] does.
///
/// # Errors
/// The system's.
pub fn mount_open_into(root: &Path, opened: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let itself = OpenTreeFlags::from_bits_retain(AtFlags::EMPTY_PATH.bits());
    let tree = open_tree(opened, "", CLONE | itself)?;
    attach(root, &tree, path)
}

fn attach(root: &Path, tree: &OwnedFd, path: &Path) -> io::Result<()> {
    let place = place(root, path)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", &place, "", both)?)
}

/// Opens the directory at this path below `root`, and makes it if need be.
fn place(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    let root = open(root, DIRECTORY, Mode::empty())?;
    let mut so_far = std::path::PathBuf::from("/");
    let enter = |path: &Path| {
        openat2(
            root.as_fd(),
            path,
            DIRECTORY,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )
    };
    let mut here = enter(&so_far)?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        so_far.push(name);
        here = match enter(&so_far) {
            Err(Errno::NOENT) => {
                match mkdirat(&here, name, Mode::from_raw_mode(0o755)) {
                    // Another container with the same root directory was first.
                    Ok(()) | Err(Errno::EXIST) => enter(&so_far)?,
                    Err(errno) => return Err(errno.into()),
                }
            }
            entered => entered?,
        };
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn containers_of_one_root_create_same_mount_point_at_once() {
        const CONTAINERS: usize = 4;
        let root = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let path = format!("/tmp/job-{round}/node/server");
            let together = Barrier::new(CONTAINERS);
            std::thread::scope(|scope| {
                let make = || {
                    together.wait();
                    place(root.path(), Path::new(&path)).map(drop)
                };
                let threads: Vec<_> = (0..CONTAINERS).map(|_| scope.spawn(make)).collect();
                for thread in threads {
                    thread.join().unwrap().unwrap();
                }
            });
        }
    }
}
