//! Mounts that only this process and those that it starts see.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// First bytes of a squashfs image, which is little-endian. Source: `SQUASHFS_MAGIC` in Linux's `linux/magic.h`.
const SQUASHFS: [u8; 4] = *b"hsqs";

/// Requests to `/dev/loop-control` and to a loop device. Source: Linux's `linux/loop.h`.
const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_CONFIGURE: u32 = 0x4c0a;
/// The device cannot be written, and is free again when the last process has left its mount.
const READ_ONLY_AND_AUTOCLEAR: u32 = 1 | 4;

/// Attempts to get a loop device that another process takes first.
const LOOP_TRIES: u32 = 16;

/// `struct loop_config` of Linux's `linux/loop.h`, with `struct loop_info64` in it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device_inode_rdevice_offset_limit: [u64; 5],
    number_encryption: [u32; 3],
    flags: u32,
    names: [u8; 128],
    key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Rights with which this process has mounts of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountRights {
    /// Rights of the system's administrator.
    System,
    /// User namespace of its own, in which the process may mount few kinds of file systems.
    OwnNamespace,
}

pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: no flag that is given here is about descriptors.
    unsafe { unshare_unsafe(flags) }
}

/// Gives this process mounts of its own: what is mounted from here on is seen by it and by the processes that it
/// starts. What the system mounts later is seen here too. Must be called while the process has a single thread.
///
/// # Errors
/// When the system permits neither mount namespaces nor user namespaces.
pub fn separate() -> io::Result<MountRights> {
    let rights = match unshare(UnshareFlags::NEWNS) {
        Ok(()) => MountRights::System,
        Err(Errno::PERM) => {
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            fs::write("/proc/self/setgroups", "deny")?;
            let one = |id: u32| format!("{id} {id} 1");
            fs::write("/proc/self/uid_map", one(uid.as_raw()))?;
            fs::write("/proc/self/gid_map", one(gid.as_raw()))?;
            MountRights::OwnNamespace
        }
        Err(errno) => return Err(errno.into()),
    };
    receive_mounts()?;
    Ok(rights)
}

/// Gives the calling thread mounts of its own, as [`separate`] does for a process, where the process has the rights for it.
///
/// # Errors
/// [`Errno::PERM`] where it has not: the system gives a user namespace to processes with one thread only.
pub fn separate_thread() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    receive_mounts()
}

/// Lets what the system mounts be seen here too, and nothing the other way.
pub(crate) fn receive_mounts() -> io::Result<()> {
    let received = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    Ok(mount_change("/", received)?)
}

/// The mounts that another process sees, from its root directory.
#[derive(Debug)]
pub struct MountView {
    namespace: OwnedFd,
    root: OwnedFd,
}

impl MountView {
    /// Opens the view of the calling thread.
    ///
    /// # Errors
    /// Those of opening its files in `/proc`.
    pub fn from_thread() -> io::Result<Self> {
        Self::from_proc(Path::new("/proc/thread-self"))
    }

    /// Opens the view of a process.
    ///
    /// # Errors
    /// When the process has ended, or is another user's.
    pub fn from_pid(pid: i32) -> io::Result<Self> {
        Self::from_proc(&Path::new("/proc").join(pid.to_string()))
    }

    fn from_proc(directory: &Path) -> io::Result<Self> {
        let namespace = File::open(directory.join("ns/mnt"))?;
        let root = File::open(directory.join("root"))?;
        Ok(Self::new(namespace.into(), root.into()))
    }

    /// Makes a value of the mount namespace and root directory of the process that opened these.
    pub fn new(namespace: OwnedFd, root: OwnedFd) -> Self {
        Self { namespace, root }
    }

    /// Returns the namespace that a process joins, and the directory that it then makes its root.
    pub fn descriptors(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.namespace.as_fd(), self.root.as_fd())
    }

    /// Does something in a thread that sees these mounts.
    ///
    /// # Errors
    /// When the system does not let this process join them.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let join = || -> io::Result<()> {
            // Of the thread's own: root and working directory are those of the whole process otherwise.
            unshare(UnshareFlags::FS)?;
            let kind = Some(LinkNameSpaceType::Mount);
            move_into_link_name_space(self.namespace.as_fd(), kind)?;
            fchdir(&self.root)?;
            Ok(chroot(".")?)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let thread = thread.spawn_scoped(scope, || join().map(|()| work()))?;
            match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Whether a file begins like a squashfs image.
///
/// # Errors
/// Those of reading it.
pub fn is_squashfs(file: &File) -> io::Result<bool> {
    let mut start = Vec::new();
    file.take(SQUASHFS.len() as u64).read_to_end(&mut start)?;
    Ok(start == SQUASHFS)
}

const IMAGE_FLAGS: MountFlags = MountFlags::RDONLY
    .union(MountFlags::NOSUID)
    .union(MountFlags::NODEV);

/// Mounts a squashfs image with the kernel's own driver, on a loop device.
///
/// # Errors
/// The system's, with the part that failed.
pub fn by_loop_device(image: &File, target: &Path) -> io::Result<()> {
    let (device, name) = loop_device(image)?;
    let mounted = mount(&name, target, "squashfs", IMAGE_FLAGS, None);
    // The mount has it now; without one, this was the last to use the device, and it is free again.
    drop(device);
    mounted.map_err(|errno| named(&format!("cannot mount {name}"), errno.into()))
}

/// Attaches the image to a loop device, and returns the device and its name.
fn loop_device(image: &File) -> io::Result<(File, String)> {
    let open = |name: &str| {
        let opened = OpenOptions::new()
            .read(true)
            .write(name == LOOP_CONTROL)
            .custom_flags(libc::O_CLOEXEC)
            .open(name);
        opened.map_err(|error| named(name, error))
    };
    let control = open(LOOP_CONTROL)?;
    // SAFETY: it has numbers only, and zeros for all that is not requested.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = image.as_raw_fd().unsigned_abs();
    config.flags = READ_ONLY_AND_AUTOCLEAR;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..LOOP_TRIES {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(named(LOOP_CONTROL, io::Error::last_os_error()));
        }
        let name = format!("/dev/loop{number}");
        let device = open(&name)?;
        // SAFETY: the request reads a `struct loop_config`, which outlives the call.
        let done =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
        if done == 0 {
            return Ok((device, name));
        }
        last = named(&name, io::Error::last_os_error());
        if last.kind() != io::ErrorKind::ResourceBusy {
            break;
        }
    }
    Err(last)
}

const LOOP_CONTROL: &str = "/dev/loop-control";

fn named(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Mounts a file system that the process with the returned descriptor will serve, by FUSE.
///
/// # Errors
/// The system's, with the part that failed.
pub fn by_fuse(target: &Path) -> io::Result<OwnedFd> {
    const FUSE: &str = "/dev/fuse";
    let device = OpenOptions::new().read(true).write(true).open(FUSE);
    let device = device.map_err(|error| named(FUSE, error))?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    mount(
        "squashfuse",
        target,
        "fuse",
        IMAGE_FLAGS,
        options.as_c_str(),
    )
    .map_err(|errno| named("cannot mount", errno.into()))?;
    Ok(device.into())
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn struct_layout_equals_kernel() {
        // Source: linux/loop.h: 8 + sizeof(struct loop_info64) = 232 + 64.
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(offset_of!(LoopConfig, flags), 8 + 52);
        assert_eq!(offset_of!(LoopConfig, init), 8 + 216);
    }

    #[test]
    fn image_is_recognized_by_its_first_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let looks = |contents: &[u8]| {
            let path = dir.path().join("image");
            fs::write(&path, contents).unwrap();
            is_squashfs(&File::open(path).unwrap()).unwrap()
        };
        assert!(looks(b"hsqs and more"));
        for other in [&b""[..], b"hsq", b"\x7fELF", b"sqsh"] {
            assert!(!looks(other), "{other:?}");
        }
    }
}
