//! `wireup steps`, asked as an agent asks it: what it forks is a step that belongs to the user alone.

#![allow(unsafe_code)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::pipe;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::common::{eventually, skip};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::{AppRequest, JobSpec};
use wireup_core::link::agent_protocol::{StepReport, VERSION};
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::helper_protocol::{
    HelperPolicy, HelperReply, HelperRequest, ProcessOwner, SocketFile, UserIds,
};
use wireup_core::link::reassembly::{Envelope, cut};
use wireup_core::link::{decode, encode, scheduled_launcher};
use wireup_sys::fd_passing::{receive, send};

/// The helper, a child of this process, and its socket.
struct Helper {
    child: Child,
    socket: UnixStream,
}

/// Step that the helper has forked: a child of this process too.
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

    fn make(&self, order: &HelperRequest) -> Step {
        let (link, theirs) = UnixStream::pair().unwrap();
        let (log, says) = pipe().unwrap();
        let descriptors = [theirs.as_fd(), says.as_fd()];
        send(&self.socket, &encode(order), &descriptors).unwrap();
        let (body, mut descriptors) = receive(&self.socket).unwrap().unwrap();
        let HelperReply::Process { pid, .. } = decode(&body).unwrap() else {
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

    /// Sends a request to the helper and returns its reply.
    fn send_request(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> HelperReply {
        send(&self.socket, body, descriptors).unwrap();
        decode(&receive(&self.socket).unwrap().unwrap().0).unwrap()
    }

    /// Returns the reason for which the helper refuses a request.
    #[track_caller]
    fn refused(&self, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> String {
        match self.send_request(body, descriptors) {
            HelperReply::Refused { reason } => reason,
            answer => panic!("{answer:?}"),
        }
    }

    /// Returns exit code and output of the step, once its socket is closed.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.socket);
        let mut text = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut text).unwrap();
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

    /// Returns exit code and output of the launcher.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.link);
        let mut text = String::new();
        self.says.read_to_string(&mut text).unwrap();
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
        let status = status.unwrap().unwrap();
        (status.exit_status(), text)
    }
}

fn order(account: Option<UserIds>) -> HelperRequest {
    step(account.map_or(ProcessOwner::Own, ProcessOwner::Numbers))
}

fn step(owner: ProcessOwner) -> HelperRequest {
    HelperRequest::Step {
        owner,
        environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
    }
}

/// Waits until the step waits for a message of its agent.
fn settled(step: &Step) {
    eventually("the step waits", || {
        step.field("State").starts_with('S').then_some(())
    });
}

#[test]
fn step_is_child_of_requester_with_its_link_and_output() {
    let helper = Helper::start();
    let step = helper.make(&order(None));
    settled(&step);
    assert_eq!(step.field("PPid"), std::process::id().to_string());
    let stat = step.file("stat");
    let session = stat.rsplit(')').next().unwrap();
    let session: i32 = session.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, step.pid);
    // The process name distinguishes it from the helper, whose command line it shares.
    assert_eq!(step.file("comm"), "wireup-step\n");
    let own = fs::read_to_string(format!("/proc/{}/comm", helper.child.id())).unwrap();
    assert_eq!(own, "wireup\n");
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
    let (code, stderr) = other.end();
    assert_ne!(code, Some(0));
    assert!(stderr.contains("the agent's link"), "{stderr}");
    // The helper's end is not its steps'.
    assert_eq!(helper.end(), (Some(0), String::new()));
    assert!(Path::new(&format!("/proc/{}", step.pid)).exists());
    step.end();
}

#[test]
fn step_of_root_helper_runs_entirely_as_user() {
    if !rustix::process::geteuid().is_root() {
        return skip("a step of another user needs root");
    }
    let helper = Helper::start();
    let step = helper.make(&order(Some(UserIds {
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
    // One for a user that it may not become reports that and does not run.
    let nobody = helper.make(&order(Some(UserIds {
        uid: u32::MAX,
        gid: 54_322,
        groups: Vec::new(),
    })));
    let (code, stderr) = nobody.end();
    assert_eq!(code, Some(125));
    assert!(
        stderr.contains("cannot become user id 4294967295"),
        "{stderr}"
    );
    assert_eq!(helper.end(), (Some(0), String::new()));
}

#[test]
fn invalid_command_is_refused_and_ends_nothing() {
    let helper = Helper::start();
    let living = helper.make(&order(None));
    let refused = |body: &[u8], words: &str| {
        let reason = helper.refused(body, &[]);
        assert!(reason.contains(words), "{reason}");
    };
    refused(b"\xff\xff", "invalid request");
    refused(b"", "invalid request");
    // More than a message may have of anything that follows.
    refused(&[encode(&order(None)), vec![0]].concat(), "invalid request");
    // Without descriptors even a good one is none.
    refused(&encode(&order(None)), "without a link");
    let launcher = HelperRequest::Launcher {
        owner: ProcessOwner::Own,
        shown: Vec::new(),
        environment: Vec::new(),
    };
    refused(&encode(&launcher), "invalid launcher request");
    let signal = |signal| encode(&HelperRequest::Signal { id: 1, signal });
    refused(&signal(1000), "unknown signal 1000");
    // Of what it has not made it knows nothing.
    assert_eq!(
        helper.send_request(&encode(&HelperRequest::Signal { id: 99, signal: 9 }), &[]),
        HelperReply::Done
    );
    settled(&living);
    helper.make(&order(None)).end();
    assert_eq!(helper.send_request(&signal(9), &[]), HelperReply::Done);
    let (code, _) = living.end();
    assert_eq!(code, None, "it was killed");
    assert_eq!(helper.end(), (Some(0), String::new()));
    let output = Command::new(env!("CARGO_BIN_EXE_wireup"))
        .arg("steps")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("is started by an agent"), "{stderr}");
}

#[test]
fn oversized_command_ends_helper() {
    let mut helper = Helper::start();
    helper.socket.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let (code, stderr) = helper.end();
    assert_eq!(code, Some(125), "{stderr}");
    assert!(stderr.starts_with("wireup: the agent's socket"), "{stderr}");
}

#[test]
fn step_reports_its_version_to_agent_of_other_version() {
    let helper = Helper::start();
    let mut step = helper.make(&order(None));
    let envelope = |to| Envelope {
        to,
        from: FrameAddress::Launcher,
        class: FrameClass::Control,
    };
    let begin = encode(&(0, VERSION + 1, "what that version says"));
    let mut bytes = Vec::new();
    for (header, body) in cut(envelope(FrameAddress::Node(NodeId(0))), &begin) {
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(body);
    }
    step.link.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    step.link.read_to_end(&mut answer).unwrap();
    let mut reader = FrameReader::default();
    reader.push(&answer);
    let answer = reader.next_frame().unwrap().unwrap();
    assert_eq!(answer.class, FrameClass::Control);
    let own = StepReport::OtherVersion { version: VERSION };
    assert_eq!(decode::<StepReport>(&answer.body).unwrap(), own);
    let (code, stderr) = step.end();
    assert_eq!(code, Some(125));
    let versions = [VERSION, VERSION + 1].map(|version| format!("version {version}"));
    assert!(
        versions.iter().all(|version| stderr.contains(version)),
        "{stderr}"
    );
    assert_eq!(helper.end(), (Some(0), String::new()));
}

/// Returns the output of a launcher whose job is in a file with these bytes.
fn launched(described: &[u8]) -> String {
    let helper = Helper::start();
    let (mut output, says) = pipe()
        .map(|(ours, theirs)| (fs::File::from(ours), theirs))
        .unwrap();
    let mut job = fs::File::from(memfd_create("job", MemfdFlags::CLOEXEC).unwrap());
    job.write_all(described).unwrap();
    let null = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
    let descriptors = [null(), says.try_clone().unwrap(), says, null(), job.into()];
    let launcher = HelperRequest::Launcher {
        owner: ProcessOwner::Own,
        shown: ["some", "words"].map(Into::into).into(),
        environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
    };
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let answer = helper.send_request(&encode(&launcher), &borrowed);
    assert!(matches!(answer, HelperReply::Process { .. }), "{answer:?}");
    drop(descriptors);
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(helper.end(), (Some(0), String::new()));
    text
}

#[test]
fn launcher_runs_described_job_with_its_descriptors() {
    let script = "tr '\\0' ' ' </proc/$PPID/cmdline; readlink /proc/$PPID/fd/3 /proc/$PPID/fd/4";
    let job = JobSpec::from_apps(vec![AppRequest {
        count: Some(1),
        argv: ["sh", "-c", script].map(Into::into).into(),
        ..AppRequest::default()
    }]);
    let text = launched(&scheduled_launcher::describe(&job));
    assert!(text.contains("wireup launch some words"), "{text}");
    assert!(
        text.ends_with("/dev/null\n/memfd:job (deleted)\n"),
        "{text}"
    );
}

#[test]
fn launcher_refuses_job_of_agent_of_other_version() {
    let text = launched(&encode(&(VERSION + 1, "what that version says")));
    let why = format!("link version {}, this wireup has {VERSION}", VERSION + 1);
    assert_eq!(text.matches(&why).count(), 2, "{text}");
    assert!(text.contains(r#""event":"result""#), "{text}");
    assert!(launched(b"").contains("invalid job from the agent"));
}

/// The rules for an agent that has given up its rights, whose socket is nowhere.
fn rules() -> HelperPolicy {
    HelperPolicy {
        agent: 54_390,
        lowest: 1000,
        root_launches: false,
        credentials: vec![b"/etc/hostname".to_vec()],
        socket: SocketFile {
            path: b"/nowhere".to_vec(),
            dev: 0,
            ino: 0,
        },
    }
}

#[test]
fn untrusted_agent_may_name_people_only_without_groups() {
    let helper = Helper::start();
    let separate = encode(&HelperRequest::Separate(rules()));
    let (accounts, theirs) = UnixStream::pair().unwrap();
    let user = |uid| encode(&step(ProcessOwner::User { uid, gid: None }));
    let descriptors = || {
        let (link, theirs) = UnixStream::pair().unwrap();
        let (log, says) = pipe().unwrap();
        (link, log, [OwnedFd::from(theirs), says])
    };
    let refused = |body: &[u8], words: &str| {
        let (_link, _log, descriptors) = descriptors();
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let reason = helper.refused(body, &borrowed);
        assert!(reason.contains(words), "{reason}");
    };
    // Before there are rules no user may be named.
    refused(&user(1000), "has not set its rules");
    assert_eq!(
        helper.send_request(&separate, &[theirs.as_fd()]),
        HelperReply::Done
    );
    drop(theirs);
    let other = rules();
    refused(
        &encode(&HelperRequest::Separate(HelperPolicy {
            root_launches: true,
            ..other
        })),
        "has set its rules already",
    );
    let numbers = UserIds {
        uid: 1000,
        gid: 0,
        groups: vec![0],
    };
    refused(&encode(&order(None)), "must name a user");
    refused(&encode(&order(Some(numbers))), "must name a user");
    refused(&user(0), "--root-launches");
    refused(&user(1), "UID_MIN");
    refused(&user(54_390), "the agent's own");
    // A connection that root has, to something else.
    let (_link, _log, some) = descriptors();
    let (root, _other) = UnixStream::pair().unwrap();
    let borrowed = [some[0].as_fd(), some[1].as_fd(), root.as_fd()];
    let reason = helper.refused(&user(0), &borrowed);
    assert!(
        reason.contains("cannot verify that root requests a launch here"),
        "{reason}"
    );
    // Its files come as root has opened them.
    send(&helper.socket, &encode(&HelperRequest::Credentials), &[]).unwrap();
    let (_, files) = receive(&helper.socket).unwrap().unwrap();
    assert_eq!(files.len(), 1);
    // Who knows accounts was never asked about these; its end is the helper's.
    drop(accounts);
    let (code, stderr) = helper.end();
    assert_eq!(code, Some(125), "{stderr}");
    assert!(
        stderr.contains("the process that knows accounts"),
        "{stderr}"
    );
}

#[test]
fn groups_come_from_account_database_without_delaying_others() {
    if !rustix::process::geteuid().is_root() {
        return skip("a step of another user needs root");
    }
    let helper = Helper::start();
    let (accounts, theirs) = UnixStream::pair().unwrap();
    let separate = encode(&HelperRequest::Separate(rules()));
    assert_eq!(
        helper.send_request(&separate, &[theirs.as_fd()]),
        HelperReply::Done
    );
    let user = |gid| step(ProcessOwner::User { uid: 54_321, gid });
    let waiting = helper.make(&user(None));
    let second = helper.make(&user(Some(54_400)));
    let third = helper.make(&user(Some(0)));
    let mut replies = Vec::new();
    for _ in 0..3 {
        let (body, mut pipes) = receive(&accounts).unwrap().unwrap();
        assert_eq!(decode::<u32>(&body).unwrap(), 54_321);
        replies.push(fs::File::from(pipes.pop().unwrap()));
    }
    let found: Result<UserIds, String> = Ok(UserIds {
        uid: 54_321,
        gid: 54_321,
        groups: vec![54_321, 54_400],
    });
    let say = |mut reply: fs::File| {
        reply.write_all(&encode(&found)).unwrap();
    };
    let (code, stderr) = {
        say(replies.pop().unwrap());
        third.end()
    };
    assert_eq!(code, Some(125));
    assert!(stderr.contains("not a member of group 0"), "{stderr}");
    say(replies.pop().unwrap());
    let is = |step: &Step, gid: u32| {
        let gids = [gid; 4].map(|gid| gid.to_string()).join(" ");
        eventually("it is the user's", || {
            (step.field("Gid") == gids).then_some(())
        });
        eventually("and not root's", || {
            step.field("Uid").starts_with("54321").then_some(())
        });
        assert_eq!(step.field("Groups"), "54321 54400");
        assert_eq!(step.field("CapPrm"), "0000000000000000");
    };
    is(&second, 54_400);
    // The first still waits, as root, and has no link to anything yet.
    assert_eq!(waiting.field("Uid"), "0 0 0 0");
    say(replies.pop().unwrap());
    is(&waiting, 54_321);
    for step in [waiting, second] {
        pidfd_send_signal(&step.pidfd, Signal::KILL).unwrap();
        step.end();
    }
    assert_eq!(helper.end(), (Some(0), String::new()));
}
