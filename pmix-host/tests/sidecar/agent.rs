//! The agent as these tests play it: one sidecar and the agent's end of its sockets, no threads.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::pmix::sidecar_link::{RequestId, SidecarEvent, SidecarLink, UpcallId};
use wireup_core::pmix::sidecar_protocol::{
    ControlReply, Hello, Init, SidecarCommand, StartupFailure,
};
use wireup_core::pmix::upcall::UpcallAnswer;
use wireup_core::pmix::value::Text;
use wireup_test_support::skip;

/// The longest test takes 7 s; a machine may be busy with ten times its work.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);
const SIDECAR: &str = env!("CARGO_BIN_EXE_wireup-pmix-host");

/// Held while a descriptor is inheritable, so that no other test's child gets it too.
pub(crate) static SPAWN: Mutex<()> = Mutex::new(());

/// The libpmix libraries to test with.
pub(crate) fn libpmix_libraries() -> Vec<PathBuf> {
    let mut found = vec![system_libpmix()];
    match std::env::var_os("WIREUP_TEST_LIBPMIX5") {
        Some(newer) => found.push(newer.into()),
        None => skip("libpmix 5: WIREUP_TEST_LIBPMIX5 is not set"),
    }
    found
}

fn pkg_config(what: &[&str]) -> Vec<String> {
    let output = Command::new("pkg-config")
        .args(what)
        .arg("pmix")
        .output()
        .unwrap();
    assert!(output.status.success(), "pkg-config {what:?} pmix");
    let words = String::from_utf8(output.stdout).unwrap();
    words.split_whitespace().map(str::to_owned).collect()
}

pub(crate) fn system_libpmix() -> PathBuf {
    PathBuf::from(&pkg_config(&["--variable=libdir"])[0]).join("libpmix.so.2")
}

pub(crate) fn shim() -> PathBuf {
    Path::new(SIDECAR).with_file_name(wireup_shim::LIBRARY_NAME)
}

/// The client program, compiled once.
pub(crate) fn client_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = dir.join("pmix_client");
        // Tests in other processes execute the same file.
        let unique_path = dir.join(format!("pmix_client.{}", std::process::id()));
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/programs/pmix_client.c"
        );
        let status = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-pthread", "-o"])
            .arg(&unique_path)
            .arg(source)
            .args(pkg_config(&["--cflags", "--libs"]))
            .status();
        assert!(status.unwrap().success(), "cc {source}");
        std::fs::rename(&unique_path, &program).unwrap();
        program
    })
}

/// One sidecar and the agent's end of its sockets.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) child: Child,
    pub(crate) control: UnixStream,
    pub(crate) upcall: UnixStream,
    pub(crate) link: SidecarLink,
    pub(crate) events: VecDeque<SidecarEvent>,
    /// Whether the control and the upcall socket have ended.
    pub(crate) ended: [bool; 2],
    pub(crate) dir: tempfile::TempDir,
}

impl Node {
    pub(crate) fn start(name: &'static str, libpmix: &Path) -> Self {
        Self::start_with(name, libpmix, &shim())
    }

    pub(crate) fn start_with(name: &'static str, libpmix: &Path, shim: &Path) -> Self {
        let (control, control_host) = UnixStream::pair().unwrap();
        let (upcall, upcall_host) = UnixStream::pair().unwrap();
        let dir = tempfile::Builder::new().prefix("wu").tempdir().unwrap();
        let guard = SPAWN.lock().unwrap();
        for end in [&control_host, &upcall_host] {
            fcntl_setfd(end, FdFlags::empty()).unwrap();
        }
        let child = Command::new(SIDECAR)
            .arg("--libpmix")
            .arg(libpmix)
            .arg("--shim")
            .arg(shim)
            .args(["--control-fd", &control_host.as_raw_fd().to_string()])
            .args(["--upcall-fd", &upcall_host.as_raw_fd().to_string()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        drop((control_host, upcall_host));
        drop(guard);
        Self {
            name,
            child,
            control,
            upcall,
            link: SidecarLink::default(),
            events: VecDeque::new(),
            ended: [false; 2],
            dir,
        }
    }

    pub(crate) fn send(&mut self, control: &SidecarCommand) -> RequestId {
        let (id, bytes) = self.link.control(control).unwrap();
        self.control.write_all(&bytes).unwrap();
        id
    }

    pub(crate) fn send_init(&mut self, rank: u32) -> RequestId {
        let init = Init {
            nspace: Nspace::new("wireup-test-server").unwrap(),
            rank: Rank(rank),
            hostname: self.name.into(),
            tmpdir: Text::new(self.dir.path().as_os_str().as_bytes()),
        };
        self.send(&SidecarCommand::Init(init))
    }

    pub(crate) fn answer(&mut self, id: UpcallId, answer: &UpcallAnswer) {
        let bytes = self.link.answer(id, answer).unwrap();
        self.upcall.write_all(&bytes).unwrap();
    }

    /// Reads what is there; the caller polled.
    fn read(&mut self, socket: usize) {
        let mut buffer = vec![0; 256 * 1024];
        let stream = [&mut self.control, &mut self.upcall];
        match stream.into_iter().nth(socket).unwrap().read(&mut buffer) {
            Ok(0) | Err(_) => self.ended[socket] = true,
            Ok(len) => {
                let events = match socket {
                    0 => self.link.on_control_bytes(&buffer[..len]),
                    _ => self.link.on_upcall_bytes(&buffer[..len]),
                };
                self.events.extend(events.unwrap());
            }
        }
    }

    /// Reads until `select` returns a value for an event; the others stay in order.
    pub(crate) fn wait_for<T>(&mut self, select: impl Fn(&SidecarEvent) -> Option<T>) -> T {
        let end = Instant::now() + DEADLINE;
        loop {
            for (position, event) in self.events.iter().enumerate() {
                if let Some(found) = select(event) {
                    self.events.remove(position);
                    return found;
                }
            }
            assert!(
                !self.ended[0],
                "{}: control socket ended; {:?}",
                self.name, self.events
            );
            poll_nodes(std::slice::from_mut(self), end);
        }
    }

    pub(crate) fn hello(&mut self) -> Hello {
        self.wait_for(|event| match event {
            SidecarEvent::Hello(hello) => Some(hello.clone()),
            _ => None,
        })
    }

    pub(crate) fn failed(&mut self) -> StartupFailure {
        self.wait_for(|event| match event {
            SidecarEvent::Failed(failed) => Some(failed.clone()),
            _ => None,
        })
    }

    pub(crate) fn reply(&mut self, request_id: RequestId) -> ControlReply {
        self.wait_for(|event| match event {
            SidecarEvent::Reply { id, reply } if *id == request_id => Some(reply.clone()),
            _ => None,
        })
    }

    /// Reads until both sockets have ended, then reaps.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        while self.ended != [true; 2] {
            poll_nodes(std::slice::from_mut(self), end);
        }
        self.child.wait().unwrap()
    }

    /// Asks for the end and sees it happen.
    pub(crate) fn finalize(mut self) {
        let id = self.send(&SidecarCommand::Finalize);
        assert_eq!(self.reply(id), ControlReply::Finalize(Ok(())));
        assert_eq!(self.end().code(), Some(0), "{}", self.name);
        let entries = || std::fs::read_dir(self.dir.path()).unwrap();
        for path in entries().map(|entry| entry.unwrap().path()) {
            // The session directories are the agent's, and empty.
            if path.file_name().unwrap().as_bytes().starts_with(b".tmp") {
                std::fs::remove_dir(path).unwrap();
            }
        }
        let left: Vec<_> = entries().collect();
        assert!(left.is_empty(), "{}: left behind: {left:?}", self.name);
    }

    /// The agent's own end, as when it dies.
    pub(crate) fn hang_up(&self) {
        self.control.shutdown(Shutdown::Both).unwrap();
        self.upcall.shutdown(Shutdown::Both).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for bytes of any node and reads them; fails the test after `end`.
pub(crate) fn poll_nodes(nodes: &mut [Node], end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    assert!(!left.is_zero(), "nothing happened until the deadline");
    let mut ready = Vec::new();
    let mut which = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        for (socket, stream) in [&node.control, &node.upcall].into_iter().enumerate() {
            if !node.ended[socket] {
                ready.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
                which.push((n, socket));
            }
        }
    }
    // A client's exit is noticed by its sidecar's silence: look again now and then.
    let step = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    poll(&mut ready, Some(&step)).unwrap();
    let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
    for ((n, socket), ready) in which.into_iter().zip(ready) {
        if ready {
            nodes[n].read(socket);
        }
    }
}
