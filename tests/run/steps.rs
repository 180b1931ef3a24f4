//! `wireup steps`, asked as an agent asks it: what it forks is a step, the user's and nobody else's.

#![allow(unsafe_code)]

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::pipe::pipe;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use wireup::agent::handover::{receive, send};
use wireup::link::steps::{Account, Answer, Order};
use wireup::link::{decode, encode};

use crate::common::{eventually, skip};

/// The helper, a child of this process, and its socket.
struct Helper {
    child: Child,
    socket: UnixStream,
}

/// What it has made: a child of this process too.
struct Step {
    pid: i32,
    pidfd: OwnedFd,
    link: UnixStream,
    says: fs::File,
}

impl Helper {
    fn start() -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_wireup"));
        command.arg("steps").env("SECRET", "of the agent");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let source = theirs.as_raw_fd();
        // SAFETY: a system call on descriptors that are open.
        unsafe {
            command.pre_exec(move || match libc::dup2(source, 3) {
                3 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        let child = command.spawn().unwrap();
        Self { child, socket }
    }

    fn make(&self, order: &Order) -> Step {
        let (link, theirs) = UnixStream::pair().unwrap();
        let (log, says) = pipe().unwrap();
        let descriptors = [theirs.as_fd(), says.as_fd()];
        send(&self.socket, &encode(order), &descriptors).unwrap();
        let (body, mut descriptors) = receive(&self.socket).unwrap().unwrap();
        let Answer::Made { pid } = decode(&body).unwrap() else {
            panic!("none is made");
        };
        let pidfd = descriptors.pop().unwrap();
        assert!(descriptors.is_empty());
        Step {
            pid,
            pidfd,
            link,
            says: log.into(),
        }
    }

    /// Its exit code and what it said, once its socket is closed.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.socket);
        let mut text = String::new();
        let mut said = self.child.stderr.take().unwrap();
        said.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

impl Step {
    fn file(&self, name: &str) -> String {
        let bytes = fs::read(format!("/proc/{}/{name}", self.pid)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn field(&self, name: &str) -> String {
        let status = self.file("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap().split_whitespace().skip(1);
        words.collect::<Vec<_>>().join(" ")
    }

    /// Its exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.link);
        let mut text = String::new();
        self.says.read_to_string(&mut text).unwrap();
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = status.unwrap().unwrap();
        (status.exit_status(), text)
    }
}

fn order(account: Option<Account>) -> Order {
    Order {
        account,
        environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
    }
}

/// Until it waits for what its agent has to say.
fn settled(step: &Step) {
    eventually("the step waits", || {
        step.field("State").starts_with('S').then_some(())
    });
}

#[test]
fn a_step_is_a_child_of_who_ordered_it_with_its_link_and_what_it_says() {
    let helper = Helper::start();
    let step = helper.make(&order(None));
    settled(&step);
    assert_eq!(step.field("PPid"), std::process::id().to_string());
    let stat = step.file("stat");
    let session = stat.rsplit(')').next().unwrap();
    let session: i32 = session.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, step.pid);
    // As `ps` shows it: not as the helper.
    let line = step.file("cmdline");
    let words: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
    assert_eq!(words[1..], ["step"]);
    let own = fs::read_to_string(format!("/proc/{}/cmdline", helper.child.id())).unwrap();
    assert!(own.ends_with("\0steps\0"), "{own}");
    // Standard descriptors, its link, what it waits with, and the low numbers it keeps free; the
    // socket of the helper is not among them.
    let sockets = fs::read_dir(format!("/proc/{}/fd", step.pid)).unwrap();
    let sockets = sockets.filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        let target = fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with("socket:")
    });
    assert_eq!(sockets.count(), 1);
    // Another one while the first lives.
    let other = helper.make(&order(None));
    assert_ne!(other.pid, step.pid);
    let (code, said) = other.end();
    assert_ne!(code, Some(0));
    assert!(said.contains("the agent's link"), "{said}");
    // The helper's end is not its steps'.
    assert_eq!(helper.end(), (Some(0), String::new()));
    assert!(Path::new(&format!("/proc/{}", step.pid)).exists());
    step.end();
}

#[test]
fn a_step_of_root_s_helper_is_wholly_the_user_s() {
    if !rustix::process::geteuid().is_root() {
        return skip("a step of another user needs root");
    }
    let helper = Helper::start();
    let step = helper.make(&order(Some(Account {
        uid: 54_321,
        gid: 54_322,
        groups: vec![54_322, 54_323],
    })));
    settled(&step);
    assert_eq!(step.field("Uid"), "54321 54321 54321 54321");
    assert_eq!(step.field("Gid"), "54322 54322 54322 54322");
    assert_eq!(step.field("Groups"), "54322 54323");
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(step.field(set), "0000000000000000");
    }
    // The user may look at it, as at every process of his.
    let directory = fs::metadata(format!("/proc/{}/fd", step.pid)).unwrap();
    assert_eq!(directory.uid(), 54_321);
    pidfd_send_signal(&step.pidfd, Signal::KILL).unwrap();
    step.end();
    // One that nobody may become says so and does not run.
    let nobody = helper.make(&order(Some(Account {
        uid: u32::MAX,
        gid: 54_322,
        groups: Vec::new(),
    })));
    let (code, said) = nobody.end();
    assert_eq!(code, Some(125));
    assert!(said.contains("cannot become user id 4294967295"), "{said}");
    assert_eq!(helper.end(), (Some(0), String::new()));
}

#[test]
fn what_is_no_order_ends_the_helper_with_a_reason() {
    for body in [&b"\xff\xff"[..], &encode(&order(None))] {
        let helper = Helper::start();
        // Without descriptors even a good one is none.
        send(&helper.socket, body, &[]).unwrap();
        let (code, said) = helper.end();
        assert_eq!(code, Some(125), "{said}");
        assert!(said.starts_with("wireup: the agent's socket"), "{said}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_wireup"))
        .arg("steps")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is started by an agent"), "{said}");
}
