//! Container of a node. A runtime makes it and starts an idle process in it, the holder; ranks join the holder's mounts.
//! So ranks remain children of this process, with their descriptors, signals and exit codes.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, geteuid, getpid, kill_process_group, pidfd_send_signal};

use crate::plan::Variable;
use crate::plan::container_root::ContainerRoot;
use crate::plan::environment::split_entry;
use crate::plan::packed_files::CleanupSink;
use crate::plan::rank_env::entry;
use wireup_core::container::{
    self, ContainerHolder, EntryKind, HOLDER, ImageEntry, ImageRoot, Layout, LayoutError,
    PODMAN_CONFIGURATION, RuntimeHostFacts, bundle, layout,
};
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::job::outcome::RankEnd;
use wireup_core::job::spec::{BindMount, ImageSpec, Runtime};
use wireup_sys::leftovers::{self, JOB};
use wireup_sys::mounts::{self, MountView};
use wireup_sys::pidfd;
use wireup_sys::procfs;
use wireup_sys::spawn::{self, Child, ChildCommand, ProcessSpawner};

/// The program of the holder; empty if wireup was built without a C compiler.
const HOLDER_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/holder"));

/// Time limit of a runtime to make a container.
const MADE_WITHIN: Duration = Duration::from_secs(60);
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// File that exists where cgroup v2 is mounted in addition to v1.
const HYBRID: &str = "/sys/fs/cgroup/unified/cgroup.controllers";

/// Error: the container cannot be made on this host. The text is the same on all hosts with this problem.
#[derive(Debug, thiserror::Error)]
enum ContainerError {
    #[error("--image {}:…: {} not found in PATH; install it, or choose another runtime", .0.as_str(), .0.program())]
    NoRuntime(Runtime),
    #[error("--image {}: directory not found; copy it to the hosts, or put it on a shared file system", .0.display())]
    NoDirectory(PathBuf),
    #[error("--image {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "--image {}: an ordinary user's ranks run in a root directory; make one of the image (podman export), and name that",
        .0.display()
    )]
    NameOfUser(PathBuf),
    #[error("--image {}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error(
        "--image-mount {0}: {1}; name a directory or file that each host has and the user may read"
    )]
    Mount(BindMount, io::Error),
    #[error("--image: {0}")]
    Layout(LayoutError<io::Error>),
    #[error("--image {}: {} cannot make the container: {reason}", image.display(), runtime.program())]
    Refused {
        image: PathBuf,
        runtime: Runtime,
        reason: String,
    },
    #[error("--image: wireup was built without a C compiler, and cannot hold containers")]
    NoHolder,
}

impl RequestError for ContainerError {}

/// A container; dropping this removes it.
#[derive(Debug)]
pub(crate) struct Container {
    inside: Option<ContainerRoot>,
    runtime: Option<Child>,
    /// Pid of the holder's parent, if that is not this process. podman's monitor does not descend from the runtime: it is a
    /// child of the process that inherits orphans.
    monitor: Option<i32>,
    holder: Option<OwnedFd>,
    /// Writing end of the holder's stdin; the holder ends at its end of file.
    input: Option<OwnedFd>,
    directory: PathBuf,
}

impl Drop for Container {
    fn drop(&mut self) {
        self.input = None;
        if let Some(Child { pid, pidfd }) = self.runtime.take() {
            let mut ended = pidfd::ended_within(&pidfd, REMOVED_WITHIN);
            if let Some(holder) = self.holder.take() {
                // A stopped holder does not notice the end of file; its runtime still removes the container.
                let _ = pidfd_send_signal(&holder, Signal::KILL);
                ended = ended || pidfd::ended_within(&pidfd, REMOVED_WITHIN / 5);
            }
            if !ended {
                // The runtime leads a session of its own.
                let _ = kill_process_group(pid, Signal::KILL);
            }
            // Another part of this process that reaps orphans may have reaped it already.
            let _ = spawn::wait(&pidfd);
        }
        if !geteuid().is_root() {
            // Helper processes of a user's podman would create files there again.
            let theirs = self.directory.join(PODMAN_CONFIGURATION);
            let theirs = theirs.as_os_str().as_bytes();
            leftovers::end_all_with("CONTAINERS_CONF", theirs, REMOVED_WITHIN);
        }
        // Mounts below it exist only in the container.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Container {
    /// Returns the ranks' view of the file system.
    pub(super) fn inside(&self) -> ContainerRoot {
        let inside = self.inside.clone();
        inside.expect("a complete container has a view")
    }

    /// Returns the pids of the processes that keep the container alive.
    pub(super) fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        let child = self.runtime.as_ref();
        let child = child.map(|child| child.pid.as_raw_nonzero().get());
        child.into_iter().chain(self.monitor)
    }

    /// Makes the container of this [`name`] for a launch. The ranks' working directory and the directories `shown` have the
    /// host's paths in it.
    pub(super) fn make(
        image: &ImageSpec,
        launch: &Nspace,
        name: &str,
        cwd: &Path,
        shown: &[&Path],
        cleanup: CleanupSink<'_>,
    ) -> Result<Self, CommandError> {
        if HOLDER_PROGRAM.is_empty() {
            return Err(ContainerError::NoHolder.into());
        }
        let runtime = image.runtime;
        find(runtime.program()).ok_or(ContainerError::NoRuntime(runtime))?;
        let path = image.directory().map(|path| cwd.join(path));
        let file = path
            .clone()
            .filter(|path| runtime.has_files() && path.is_file());
        let root = path.filter(|_| file.is_none());
        if !geteuid().is_root() && image.directory().is_none() {
            return Err(ContainerError::NameOfUser((&image.image).into()).into());
        }
        if let Some(root) = &root {
            check_root(root, Path::new(&image.image))?;
        }
        let user = !geteuid().is_root();
        if user {
            // Root joins the mounts of the container directly; other users can join them only from a user namespace around it.
            mounts::separate()
                .map_err(|error| CommandError::system("cannot make a mount namespace", error))?;
        }
        let mut mounts = bind_mounts(image, cwd, shown)?;
        if let (Some(root), Runtime::Podman) = (&root, runtime) {
            mounts.extend(files_of_podman(root, &mounts));
        }
        let directory = directory(name);
        cleanup(&directory, None);
        let broken = |error| CommandError::system(directory.display().to_string(), error);
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(broken)?;
        let mut instance = Self {
            inside: None,
            runtime: None,
            monitor: None,
            holder: None,
            input: None,
            directory: directory.clone(),
        };
        let text = container::podman_configuration(&format!("{JOB}={launch}"));
        fs::write(directory.join(PODMAN_CONFIGURATION), text).map_err(broken)?;
        let program = directory.join("holder");
        write_program(&program).map_err(broken)?;
        let holder = ContainerHolder {
            program: &program,
            watches: getpid().as_raw_nonzero().get().unsigned_abs(),
            name,
            bundle: &directory,
        };
        let words = match &root {
            Some(root) => {
                let planned = layout(root, &mounts, entries).map_err(ContainerError::Layout)?;
                let new_root = directory.join("root");
                make_places(&new_root, &planned).map_err(broken)?;
                let config = bundle(&new_root, &planned, holder);
                fs::write(directory.join("config.json"), config).map_err(broken)?;
                let root = ImageRoot::Directory(&new_root, &planned);
                container::command(runtime, root, holder, facts(user))
            }
            None => {
                let mounts: Vec<BindMount> = mounts.into_iter().map(|(mount, _)| mount).collect();
                let file = file.as_ref().map(|file| file.as_os_str());
                let root = ImageRoot::Image(file.unwrap_or(&image.image), &mounts);
                container::command(runtime, root, holder, facts(user))
            }
        };
        let log = directory.join("log");
        let pid = instance
            .start(&words, &log)
            .map_err(|error| ContainerError::Refused {
                image: (&image.image).into(),
                runtime,
                reason: reason(&log, &error),
            })?;
        let env = match root {
            Some(_) => Vec::new(),
            None => variables(pid).map_err(broken)?,
        };
        let view = Arc::new(MountView::from_pid(pid).map_err(broken)?);
        instance.inside = Some(ContainerRoot { view, env });
        Ok(instance)
    }

    /// Starts the runtime, and waits until the holder has printed its pid.
    fn start(&mut self, words: &[std::ffi::OsString], log: &Path) -> io::Result<i32> {
        let program = find(&words[0].to_string_lossy()).ok_or(io::ErrorKind::NotFound)?;
        let c_string = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::other);
        let program = c_string(program.as_os_str())?;
        let argv = words.iter().map(|word| c_string(word));
        let argv = argv.collect::<io::Result<Vec<_>>>()?;
        let env = environment();
        let (input, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let log = File::create(log)?;
        let descriptors = [(input.as_fd(), 0), (theirs.as_fd(), 1), (log.as_fd(), 2)];
        let command = ChildCommand {
            env: &[&env],
            descriptors: &descriptors,
            ..ChildCommand::new(&program, &argv)
        };
        let child = ProcessSpawner::default().spawn(&command)?;
        self.runtime = Some(child);
        self.input = Some(ours);
        drop(theirs);
        let line = first_line(output).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.end_of_runtime(error),
            _ => error,
        })?;
        let pid = line.trim().parse().map_err(io::Error::other)?;
        self.holder = Some(holder(pid)?);
        let parent = procfs::process(pid).map(|process| process.parent);
        let own = getpid().as_raw_nonzero().get();
        self.monitor = parent.filter(|parent| *parent != own);
        Ok(pid)
    }

    /// Returns the exit status of the runtime, which has closed its output, as an error; `error` if it still runs.
    fn end_of_runtime(&mut self, error: io::Error) -> io::Error {
        let ended = |child: &mut Child| pidfd::ended_within(&child.pidfd, REMOVED_WITHIN);
        let Some(child) = self.runtime.take_if(ended) else {
            return error;
        };
        let status = spawn::wait(&child.pidfd);
        status.map_or(error, |status| {
            io::Error::other(RankEnd::from(status).to_string())
        })
    }
}

/// Returns the name of a node's container.
pub(super) fn name(job: &str, node: NodeId) -> String {
    format!("{job}.n{node}.image")
}

/// Returns the directory with the files of a container.
pub(super) fn directory(name: &str) -> PathBuf {
    env::temp_dir().join(name)
}

pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut found = env::split_paths(&path).map(|dir| dir.join(program));
    found.find(|program| program.is_file())
}

fn check_root(root: &Path, named: &Path) -> Result<(), ContainerError> {
    let named = named.to_owned();
    match fs::read_dir(root) {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound => ContainerError::NoDirectory(named),
            io::ErrorKind::NotADirectory => ContainerError::NotADirectory(named),
            _ => ContainerError::Unreadable { path: named, error },
        }),
    }
}

/// Returns the bind mounts of the container, each with whether its source is a directory.
fn bind_mounts(
    image: &ImageSpec,
    cwd: &Path,
    shown: &[&Path],
) -> Result<Vec<(BindMount, bool)>, ContainerError> {
    let temporary = env::temp_dir();
    let also = [&*temporary, cwd].into_iter().chain(shown.iter().copied());
    let also: Vec<PathBuf> = also.filter_map(|path| path.canonicalize().ok()).collect();
    let also: Vec<&Path> = also.iter().map(PathBuf::as_path).collect();
    let all = container::mounts(&image.mounts, &also).into_iter();
    let known = all.map(|mount| match fs::metadata(&mount.source) {
        Ok(meta) => Ok((mount, meta.is_dir())),
        Err(error) => Err(ContainerError::Mount(mount, error)),
    });
    known.collect()
}

/// Returns the files of the host that are mounted for podman because the image lacks one of the names that podman
/// creates. podman would create them in the image's directory, or fail if it may not write there. With a mount in
/// `/etc`, the mount points there are not the image's.
fn files_of_podman(root: &Path, mounts: &[(BindMount, bool)]) -> Vec<(BindMount, bool)> {
    const FILES: [&str; 3] = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];
    let lacks = |name: &str| root.join(name).symlink_metadata().is_err();
    // A symbolic link cannot be a mount point.
    let is_link = |name: &str| root.join(name).is_symlink();
    if is_link("etc") || !FILES.into_iter().chain(["etc/mtab"]).any(lacks) {
        return Vec::new();
    }
    let files = FILES.into_iter().filter(|name| !is_link(name));
    let files = files.map(|name| Path::new("/").join(name));
    let is_covered = |path: &Path| {
        mounts
            .iter()
            .any(|(known, _)| path.starts_with(&known.target))
    };
    let paths = files.filter(|path| path.is_file() && !is_covered(path));
    let mounted = paths.map(|path| BindMount {
        read_only: true,
        ..BindMount::from_path(&path)
    });
    mounted.map(|mount| (mount, false)).collect()
}

/// Returns a directory's entries; none if it does not exist.
fn entries(path: &Path) -> io::Result<Vec<ImageEntry>> {
    let listed = match fs::read_dir(path) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for entry in listed {
        let entry = entry?;
        let found = entry.file_type()?;
        let kind = match (found.is_dir(), found.is_symlink()) {
            (true, _) => EntryKind::Directory,
            (_, true) => EntryKind::Link(fs::read_link(entry.path())?),
            _ => EntryKind::File,
        };
        let name = entry.file_name();
        all.push(ImageEntry { name, kind });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Creates the mount points below the new root directory, and the holder's file in it.
fn make_places(root: &Path, layout: &Layout) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(root)?;
    for place in &layout.directories {
        fs::create_dir(root.join(place))?;
    }
    for place in &layout.files {
        File::create(root.join(place))?;
    }
    for (place, text) in &layout.links {
        symlink(text, root.join(place))?;
    }
    write_program(&root.join(HOLDER.trim_start_matches('/')))
}

fn write_program(path: &Path) -> io::Result<()> {
    fs::write(path, HOLDER_PROGRAM)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn facts(user: bool) -> RuntimeHostFacts {
    let second = fs::read_to_string(HYBRID).is_ok_and(|text| !text.trim().is_empty());
    RuntimeHostFacts {
        hybrid_cgroups: second,
        user,
    }
}

/// Returns the environment of a runtime: that of this process, with `USER`, which Charliecloud requires.
fn environment() -> Vec<CString> {
    let mut all: Vec<CString> = env::vars_os()
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    if env::var_os("USER").is_none() {
        all.extend(entry("USER", geteuid().as_raw().to_string()));
    }
    all
}

/// Returns a pidfd of the holder with this pid. In another pid namespace the number could belong to a different process.
fn holder(pid: i32) -> io::Result<OwnedFd> {
    let held = Pid::from_raw(pid).and_then(|pid| pidfd::open_pidfd(pid).ok());
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let held = held.filter(|_| name.trim_end() == HOLDER.trim_start_matches('/'));
    held.ok_or_else(|| io::Error::other("the container has a pid namespace of its own"))
}

/// Waits for the first line of the runtime's output.
fn first_line(output: OwnedFd) -> io::Result<String> {
    let until = Instant::now() + MADE_WITHIN;
    let mut output = File::from(output);
    let (mut line, mut byte) = (Vec::new(), [0]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok();
        if poll(&mut [PollFd::new(&output, PollFlags::IN)], left.as_ref())? == 0 {
            let text = format!("no output within {} s", MADE_WITHIN.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        if output.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match byte {
            [b'\n'] => return String::from_utf8(line).map_err(io::Error::other),
            [other] => line.push(other),
        }
    }
}

/// Returns the last line of the runtime's log, or the error if the log is empty.
fn reason(log: &Path, error: &io::Error) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(str::trim).rev();
    let last = lines.find(|line| !line.is_empty());
    last.map_or_else(|| error.to_string(), str::to_owned)
}

/// Returns the environment of a process.
fn variables(pid: i32) -> io::Result<Vec<Variable>> {
    let text = fs::read(format!("/proc/{pid}/environ"))?;
    let entries = text.split(|byte| *byte == 0);
    Ok(entries.filter_map(split_entry).collect())
}
