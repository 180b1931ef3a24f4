//! Starts process 1 of a host: a fork into new namespaces that arranges the host's files and then
//! waits for the end of its owner.
//!
//! The owner may have many threads, so the child calls system calls only: no allocation, no lock.
//! All it needs is laid out beforehand as [`Preparation`]s.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::network::{address, address6};
use crate::{Builder, Error};

/// Directories each host has of its own, empty at first, and their permissions.
pub(crate) const PRIVATE: [(&str, &str); 3] = [
    ("/tmp", "mode=1777"),
    ("/run", "mode=0755"),
    ("/dev/shm", "mode=1777"),
];

/// Step by which process 1 becomes a host.
enum Preparation {
    /// No mount made from here on is seen by the machine.
    Private,
    Mount {
        kind: CString,
        target: CString,
        options: CString,
    },
    Directory(CString),
    File(CString, Vec<u8>),
    /// Puts the first file in place of the second, if there is a second.
    Cover(CString, CString),
    /// Shows a directory that has been hidden.
    Show(OwnedFd, CString),
    Name(CString),
}

impl Preparation {
    /// Describes the step for error messages.
    fn describe(&self) -> String {
        let (verb, what) = match self {
            Self::Private => ("mount namespace of its own", c""),
            Self::Mount { target, .. } => ("mount on", target.as_c_str()),
            Self::Directory(path) => ("create", path.as_c_str()),
            Self::File(path, _) => ("write", path.as_c_str()),
            Self::Cover(_, path) => ("replace", path.as_c_str()),
            Self::Show(_, path) => ("share", path.as_c_str()),
            Self::Name(name) => ("set name", name.as_c_str()),
        };
        format!("{verb} {}", what.to_string_lossy())
    }

    /// Called in the child: system calls only.
    fn carry_out(&self) -> rustix::io::Result<()> {
        match self {
            Self::Private => rustix::mount::mount_change(
                c"/",
                MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
            ),
            Self::Mount {
                kind,
                target,
                options,
            } => rustix::mount::mount(
                kind.as_c_str(),
                target.as_c_str(),
                kind.as_c_str(),
                MountFlags::NOSUID | MountFlags::NODEV,
                options.as_c_str(),
            ),
            Self::Directory(path) => {
                match rustix::fs::mkdir(path.as_c_str(), Mode::from_raw_mode(0o755)) {
                    Err(rustix::io::Errno::EXIST) => Ok(()),
                    result => result,
                }
            }
            Self::File(path, content) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
                let file = rustix::fs::open(path.as_c_str(), flags, Mode::from_raw_mode(0o644))?;
                rustix::io::write(&file, content).map(drop)
            }
            Self::Cover(by, path) => {
                match rustix::mount::mount_bind(by.as_c_str(), path.as_c_str()) {
                    Err(rustix::io::Errno::NOENT) => Ok(()),
                    result => result,
                }
            }
            Self::Show(tree, path) => {
                rustix::mount::move_mount(
                    tree,
                    c"",
                    rustix::fs::CWD,
                    path.as_c_str(),
                    MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
                )?;
                rustix::mount::mount_change(
                    path.as_c_str(),
                    MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
                )
            }
            Self::Name(name) => rustix::system::sethostname(name.to_bytes()),
        }
    }
}

/// A host whose process 1 exists and is at its steps.
pub(crate) struct Starting {
    name: String,
    steps: Vec<Preparation>,
    own: Vec<PathBuf>,
    status: OwnedFd,
    init: Option<Init>,
}

/// Process 1 of a host.
#[derive(Debug)]
pub(crate) struct Init {
    /// Number of the process on the machine. It is a child of the lab's owner, so the number is not
    /// reused until it is reaped.
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
}

impl Init {
    /// Ends it, and so everything on the host; does not wait.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Waits for its end. The system delays that until everything else on the host is collected.
    pub(crate) fn collect(&self) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let _ = rustix::io::retry_on_intr(|| {
            waitid(
                WaitId::PidFd(rustix::fd::AsFd::as_fd(&self.pidfd)),
                WaitIdOptions::EXITED,
            )
        });
    }
}

fn text(path: impl AsRef<std::ffi::OsStr>) -> CString {
    CString::new(path.as_ref().as_bytes()).expect("no path has a zero byte")
}

/// The tree of mounts at a directory, to be shown again after the directory was hidden.
fn tree(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(rustix::fs::CWD, path, flags)
        .map_err(|error| Error::system(path.display().to_string(), error))
}

/// Returns the hosts file with the names of all hosts.
fn hosts_file(names: &[String]) -> String {
    let mut file = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (index, name) in names.iter().enumerate() {
        file += &format!("{} {name}\n{} {name}\n", address(index), address6(index));
    }
    file
}

/// The steps of a host, and what of its own directories is the lab's.
fn plan(
    name: &str,
    names: &[String],
    builder: &Builder,
) -> Result<(Vec<Preparation>, Vec<PathBuf>), Error> {
    let mount = |kind: &str, target: &str, options: &str| Preparation::Mount {
        kind: text(kind),
        target: text(target),
        options: text(options),
    };
    let hidden = |path: &Path| PRIVATE.iter().any(|(private, _)| path.starts_with(private));
    let mut steps = vec![Preparation::Private, Preparation::Name(text(name))];
    let cgroups = Path::new("/sys/fs/cgroup");
    let cgroups = cgroups.is_dir().then(|| tree(cgroups)).transpose()?;
    let mut shown = Vec::new();
    for path in &builder.shared {
        let path = std::fs::canonicalize(path)
            .map_err(|error| Error::system(path.display().to_string(), error))?;
        if hidden(&path) {
            shown.push((tree(&path)?, path));
        }
    }
    steps.push(mount("proc", "/proc", ""));
    // Shows the interfaces of the namespace it is mounted in.
    steps.push(mount("sysfs", "/sys", ""));
    if let Some(cgroups) = cgroups {
        steps.push(Preparation::Show(cgroups, text("/sys/fs/cgroup")));
    }
    for (target, mode) in PRIVATE {
        steps.push(mount("tmpfs", target, mode));
    }
    let mut own = vec![PathBuf::from("/run/lab")];
    for (tree, path) in shown {
        own.extend(path.ancestors().map(Path::to_owned));
        let mut above: Vec<&Path> = path.ancestors().filter(|dir| hidden(dir)).collect();
        above.reverse();
        let above = above
            .into_iter()
            .map(|dir| Preparation::Directory(text(dir)));
        steps.extend(above);
        steps.push(Preparation::Show(tree, text(&path)));
    }
    steps.push(Preparation::Directory(text("/run/lab")));
    let of_the_lab = [
        ("/etc/hosts".into(), hosts_file(names).into_bytes()),
        ("/etc/hostname".into(), format!("{name}\n").into_bytes()),
    ];
    let files = of_the_lab.into_iter().chain(builder.files.iter().cloned());
    for (number, (path, content)) in files.enumerate() {
        let from = text(format!("/run/lab/{number}"));
        steps.push(Preparation::File(from.clone(), content));
        steps.push(Preparation::Cover(from, text(&path)));
    }
    Ok((steps, own))
}

/// Makes process 1 of a host.
pub(crate) fn start(
    name: &str,
    names: &[String],
    builder: &Builder,
    life: &OwnedFd,
) -> Result<Starting, Error> {
    let (steps, own) = plan(name, names, builder)?;
    let (status, say) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| Error::system("pipe", error))?;
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::SIGCHLD;
    // SAFETY: a fork, without shared memory and on the caller's own stack; the child calls `init`,
    // which makes system calls only and does not return.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if pid == 0 {
        init(&steps, rustix::fd::AsFd::as_fd(life), &say);
    }
    if pid < 0 {
        let error = io::Error::last_os_error();
        return Err(Error::system("new namespaces", error));
    }
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a fork returns a process id");
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|error| Error::system("pidfd_open", error))?;
    Ok(Starting {
        name: name.to_owned(),
        steps,
        own,
        status,
        init: Some(Init { pid, pidfd }),
    })
}

impl Starting {
    /// Waits until the host is arranged.
    pub(crate) fn finish(mut self) -> Result<(Init, Vec<PathBuf>), Error> {
        let mut report = [0_u8; 8];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&self.status, &mut report));
        let (step, errno) = report.split_at(4);
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        if count != Ok(8) {
            let error = io::Error::other("its first process died");
            return Err(Error::system(self.name.clone(), error));
        }
        match self.steps.get(number(step) as usize) {
            None => {
                let init = self.init.take().expect("taken once");
                Ok((init, std::mem::take(&mut self.own)))
            }
            Some(failed) => Err(Error::system(
                format!("{}: {}", self.name, failed.describe()),
                io::Error::from_raw_os_error(number(errno).cast_signed()),
            )),
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(init) = &self.init {
            init.kill();
            init.collect();
        }
    }
}

/// Process 1, for its whole life: system calls only.
fn init(steps: &[Preparation], life: BorrowedFd<'_>, say: &OwnedFd) -> ! {
    let end = |code| -> ! {
        // SAFETY: ends this process without running anything of the owner's it is a copy of.
        unsafe { libc::_exit(code) }
    };
    let report = |step: u32, errno: i32| {
        let mut report = [0; 8];
        report[..4].copy_from_slice(&step.to_ne_bytes());
        report[4..].copy_from_slice(&errno.to_ne_bytes());
        let _ = rustix::io::write(say, &report);
    };
    // Whatever is orphaned here is collected by the system.
    // SAFETY: sets a disposition of this process's own, no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"lab-host");
    for (step, index) in steps.iter().zip(0_u32..) {
        if let Err(errno) = step.carry_out() {
            report(index, errno.raw_os_error());
            end(1);
        }
    }
    report(u32::MAX, 0);
    // Nothing of the owner's may stay open here: other labs' pipes above all, or their hosts would
    // outlive them.
    let life_fd = life.as_raw_fd();
    // SAFETY: this process uses no descriptor but `life` any more, and closes its own copies only.
    unsafe {
        if libc::dup2(life_fd, 0) != 0 {
            end(1);
        }
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
    }
    // SAFETY: descriptor 0 has just been made, and stays open to the end.
    let life = unsafe { BorrowedFd::borrow_raw(0) };
    let mut byte = [0];
    while let Err(rustix::io::Errno::INTR) = rustix::io::read(life, &mut byte) {}
    end(0)
}

/// Joins the namespaces of a host, all but that of its processes, and enters a directory there.
/// Called between fork and exec: system calls only.
pub(crate) fn join(init: BorrowedFd<'_>, directory: &CStr) -> io::Result<()> {
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;
    enter(init, flags)?;
    rustix::process::chdir(directory)?;
    Ok(())
}

/// Joins namespaces of a process, or one namespace by its own descriptor.
pub(crate) fn enter(of: BorrowedFd<'_>, kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: changes what this thread sees and no memory; the descriptor is open.
    match unsafe { libc::setns(of.as_raw_fd(), kinds) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs this between fork and exec of a command.
pub(crate) fn before_exec(
    command: &mut std::process::Command,
    call: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    use std::os::unix::process::CommandExt;
    // SAFETY: every caller in this crate makes system calls only.
    unsafe { command.pre_exec(call) };
}

/// A network namespace with nothing in it, which lives as long as the descriptor.
pub(crate) fn network_namespace() -> io::Result<OwnedFd> {
    let thread = std::thread::spawn(|| {
        // SAFETY: changes the network this thread sees, and it ends at once.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
    });
    thread.join().expect("it does not panic")
}
