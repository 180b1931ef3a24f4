//! Refusals of an agent, each with one line for the client and one in the log.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::process::geteuid;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};
use wireup_agent::budget::Budgets;
use wireup_agent::identity::Role;
use wireup_agent::launch::descriptor::LaunchDescriptor;
use wireup_agent::launch::launch_members::OPENING_MAX;
use wireup_agent::proto::v1;
use wireup_agent::proto::v1::peer_client::PeerClient;
use wireup_agent::tls::{Heartbeat, TlsConfigs, connect};
use wireup_test_support::skip;

use super::cluster::{Agent, Cluster};
use super::launcher::{Launcher, LauncherEvent, gone};
use wireup_core::link::agent_protocol::{AgentRequest, LaunchTree, VERSION};
use wireup_core::link::frame::{Frame, FrameAddress, FrameClass};

/// Another agent, or who has its certificate.
struct Caller {
    client: PeerClient<tonic::transport::Channel>,
}

/// A stream to an agent, from the side of the parent.
struct Joined {
    down: mpsc::UnboundedSender<v1::PeerDown>,
    up: Streaming<v1::PeerUp>,
}

impl Caller {
    async fn new(certificate: &Path, callee: &Agent) -> Self {
        let tls = TlsConfigs::load(certificate).unwrap();
        let channel = connect(&tls, &callee.name, &callee.address, Heartbeat::default());
        Self {
            client: PeerClient::new(channel.await.unwrap()),
        }
    }

    async fn join(&mut self, hello: v1::Hello) -> Result<Joined, Status> {
        let (down, messages) = mpsc::unbounded_channel();
        send(&down, v1::peer_down::Message::Hello(hello));
        let up = self
            .client
            .join(UnboundedReceiverStream::new(messages))
            .await?;
        let up = up.into_inner();
        Ok(Joined { down, up })
    }
    /// Waits until the callee takes part in no launch.
    async fn idle(&mut self) {
        let request = v1::StatusRequest { version: VERSION };
        while self
            .client
            .status(request)
            .await
            .unwrap()
            .get_ref()
            .launches
            > 0
        {}
    }
}

fn send(down: &mpsc::UnboundedSender<v1::PeerDown>, message: v1::peer_down::Message) {
    let message = Some(message);
    down.send(v1::PeerDown { message }).unwrap();
}

impl Joined {
    async fn next(&mut self) -> Result<v1::peer_up::Message, Status> {
        let message = self.up.message().await?;
        Ok(message.expect("the stream goes on").message.unwrap())
    }

    /// Returns the next message of a step to the launcher.
    async fn next_text(&mut self) -> String {
        loop {
            match self.next().await.unwrap() {
                v1::peer_up::Message::Frame(frame) => {
                    return String::from_utf8(frame.body.to_vec()).unwrap();
                }
                v1::peer_up::Message::Welcome(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn carry(&self, to: u32, from: u32, body: Vec<u8>) {
        let frame = v1::Frame {
            to,
            from,
            more: false,
            body: body.into(),
        };
        send(&self.down, v1::peer_down::Message::Frame(frame));
    }
}

const LAUNCHER: u32 = u32::MAX;

/// Returns the message by which an agent takes part in a launch.
fn hello(launch: &str, spread: LaunchTree, node: u32, uid: u32) -> v1::Hello {
    let account = Budgets::default().account(uid);
    let scheduled = String::new();
    let opening =
        LaunchDescriptor::from_launcher(launch.into(), scheduled, uid, spread, vec![1], &account)
            .unwrap();
    v1::Hello {
        version: VERSION,
        agent: "9.9.9".into(),
        launch: launch.into(),
        token: opening.token.to_bytes(),
        uid,
        node,
        opening: opening.bytes,
        more: false,
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(super::cluster::DEADLINE, test)
            .await
            .unwrap();
    });
}

fn uid() -> u32 {
    geteuid().as_raw()
}

/// Refused with this code and these words, which the log has as well.
fn check(result: Result<Joined, Status>, callee: &Agent, code: Code, words: &str) {
    let status = result.map(|_| ()).unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    assert!(status.message().contains(words), "{status:?}");
    callee.logged(&["WARN refused /wireup.v1.Peer/Join of ", words]);
}

#[test]
fn agent_of_other_version_gets_both_versions() {
    run(async {
        let cluster = Cluster::start(2, &[]);
        let callee = &cluster.agents[1];
        let mut caller = Caller::new(&cluster.certificate("n0"), callee).await;
        let mut newer = hello("l", cluster.spread(2, 2), 1, uid());
        newer.version = VERSION + 1;
        let words = format!(
            "it is wireup {} with link version {VERSION}, but the caller wireup 9.9.9 has link version {}",
            env!("CARGO_PKG_VERSION"),
            VERSION + 1
        );
        check(
            caller.join(newer).await,
            callee,
            Code::FailedPrecondition,
            &words,
        );
        let status = caller.client.status(v1::StatusRequest { version: 0 }).await;
        assert_eq!(status.unwrap_err().code(), Code::FailedPrecondition);
        callee.idle();
    });
}

#[test]
fn launch_is_joined_once_and_by_its_token_only() {
    run(async {
        let cluster = Cluster::start(3, &[]);
        let callee = &cluster.agents[1];
        let spread = cluster.spread(2, 2);
        let mut caller = Caller::new(&cluster.certificate("n0"), callee).await;
        let right = hello("l", spread.clone(), 1, uid());
        let mut joined = caller.join(right.clone()).await.unwrap();
        assert!(joined.next_text().await.starts_with("begun 1 2 1 "));

        let again = caller.join(right.clone()).await;
        check(
            again,
            callee,
            Code::AlreadyExists,
            "launch l already exists at this agent",
        );
        let foreign = caller.join(hello("l", spread.clone(), 1, uid())).await;
        let words = "with another token than the caller's";
        check(foreign, callee, Code::PermissionDenied, words);
        // Another node of the cluster, even with the token.
        let mut other = Caller::new(&cluster.certificate("n2"), callee).await;
        let words = "launch l must come to n1 from n0, not from n2";
        check(
            other.join(right.clone()).await,
            callee,
            Code::PermissionDenied,
            words,
        );
        assert!(callee.log().iter().all(|line| !line.contains("token: ")));

        joined.carry(1, LAUNCHER, b"still here".to_vec());
        assert_eq!(joined.next_text().await, "heard still here");
        // The token is worth nothing after the end, and the name is free.
        drop(joined);
        caller.idle().await;
        drop(caller.join(hello("l", spread, 1, uid())).await.unwrap());
    });
}

#[test]
fn misdirected_or_unauthorized_call_is_refused() {
    run(async {
        let cluster = Cluster::start(3, &[]);
        let callee = &cluster.agents[1];
        let mut caller = Caller::new(&cluster.certificate("n0"), callee).await;
        let spread = cluster.spread(3, 2);
        let words = "this is node n1, not n2";
        let elsewhere = caller.join(hello("l", spread.clone(), 2, uid())).await;
        check(elsewhere, callee, Code::InvalidArgument, words);
        if geteuid().is_root() {
            let nobody = caller.join(hello("l", spread.clone(), 1, 54_321)).await;
            let words = "unknown user id 54321";
            check(nobody, callee, Code::PermissionDenied, words);
        }
        let mut node = hello("l", spread.clone(), 1, uid());
        node.node = 3;
        let words = "invalid node 3: the launch has 3 nodes";
        check(
            caller.join(node).await,
            callee,
            Code::InvalidArgument,
            words,
        );
        let mut long = hello("l", spread.clone(), 1, uid());
        long.launch = "l".repeat(256);
        let words = "invalid launch name";
        check(
            caller.join(long).await,
            callee,
            Code::InvalidArgument,
            words,
        );
        let mut garbled = hello("l", spread.clone(), 1, uid());
        garbled.opening = vec![0xff; 100].into();
        let words = "invalid launch request";
        check(
            caller.join(garbled).await,
            callee,
            Code::InvalidArgument,
            words,
        );

        let scheduler = cluster.issue("head", Role::Scheduler);
        let mut scheduler = Caller::new(&scheduler, callee).await;
        let words = "only agents of nodes may call this";
        let refused = scheduler.join(hello("l", spread, 1, uid())).await;
        check(refused, callee, Code::PermissionDenied, words);
        callee.idle();
    });
}

#[test]
fn oversized_descriptor_or_message_is_refused() {
    run(async {
        let cluster = Cluster::start(2, &[]);
        let callee = &cluster.agents[1];
        let mut caller = Caller::new(&cluster.certificate("n0"), callee).await;
        let spread = cluster.spread(2, 2);

        let mut endless = hello("l", spread.clone(), 1, uid());
        endless.more = true;
        let piece = 256 * 1024;
        endless.opening = vec![0; piece].into();
        let (down, messages) = mpsc::unbounded_channel();
        for _ in 0..=OPENING_MAX / piece {
            send(&down, v1::peer_down::Message::Hello(endless.clone()));
        }
        let joining = caller
            .client
            .join(UnboundedReceiverStream::new(messages))
            .await;
        let status = joining.map(|_| ()).unwrap_err();
        assert!(
            status
                .message()
                .contains(&format!("at most {OPENING_MAX} are allowed")),
            "{status:?}"
        );

        let mut large = hello("l", spread.clone(), 1, uid());
        large.opening = vec![0; 2 * 1024 * 1024].into();
        let status = caller.join(large).await.map(|_| ()).unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        callee.logged(&[
            "refused /wireup.v1.Peer/Join of node n0",
            "message length too large",
        ]);

        // In a launch it ends the launch here, and the agent lives.
        for bytes in [256 * 1024 + 1, 2 * 1024 * 1024] {
            let mut joined = caller
                .join(hello("l", spread.clone(), 1, uid()))
                .await
                .unwrap();
            let begun = joined.next_text().await;
            let pid = begun.split(' ').nth(4).unwrap().parse().unwrap();
            joined.carry(1, LAUNCHER, vec![0; bytes]);
            while joined
                .up
                .message()
                .await
                .is_ok_and(|message| message.is_some())
            {}
            gone(&[pid]);
            callee.idle();
        }
        callee.logged(&[
            "ended after",
            "a frame of 262145 bytes (at most 262144 are allowed)",
        ]);
        callee.logged(&["ended after", "message length too large"]);
    });
}

#[test]
fn message_from_wrong_side_is_dropped_and_logged_rarely() {
    run(async {
        let cluster = Cluster::start(4, &[]);
        let callee = &cluster.agents[1];
        let mut caller = Caller::new(&cluster.certificate("n0"), callee).await;
        let mut joined = caller
            .join(hello("l", cluster.spread(4, 2), 1, uid()))
            .await
            .unwrap();
        // Its step and that of node 3, behind it.
        joined.next_text().await;
        joined.next_text().await;
        for _ in 0..100 {
            // As the step itself, as a node behind it; to others above, known or joined.
            for source in [1, 3] {
                joined.carry(1, source, b"lie".to_vec());
            }
            for node in [2, 4] {
                joined.carry(node, 0, b"not here".to_vec());
            }
        }
        joined.carry(1, 0, b"truth".to_vec());
        assert_eq!(joined.next_text().await, "got 0 truth");
        // The last line about the launch is behind all others.
        drop(joined);
        callee.logged(&["ended after"]);
        let dropped = callee
            .log()
            .iter()
            .filter(|line| line.contains("dropped"))
            .count();
        assert_eq!(dropped, 10, "{:#?}", callee.log());
    });
}

#[test]
fn invalid_request_of_launcher_gets_one_line() {
    let cluster = Cluster::start(2, &[]);
    let agent = &cluster.agents[0];
    let spread = cluster.spread(2, 2);
    let open = |version, launch: &str, spread: LaunchTree| AgentRequest::Open {
        version,
        launch: launch.into(),
        scheduled: String::new(),
        spread,
        description: Vec::new(),
    };
    let mut twice = spread.clone();
    twice.nodes[1].name = "n0".into();
    let mut portless = spread.clone();
    portless.nodes[1].address = "n1".into();
    for (request, words) in [
        (
            open(VERSION + 1, "l", spread.clone()),
            "use the same wireup for both",
        ),
        (
            open(VERSION, "a b", spread.clone()),
            "invalid launch name \"a b\"",
        ),
        (open(VERSION, "l", twice), "node n0 occurs twice"),
        (
            open(VERSION, "l", portless),
            "invalid address \"n1\" of node n1: use HOST:PORT",
        ),
    ] {
        let mut launcher = Launcher::connect(agent);
        launcher.ask(&request);
        let reason = launcher.refused();
        assert!(reason.contains(words), "{reason}");
        agent.logged(&["WARN refused a launcher", words]);
    }

    let mut launcher = Launcher::connect(agent);
    launcher.send(FrameAddress::Launcher, "too early");
    assert!(launcher.refused().contains("before a launch was opened"));
    let mut launcher = Launcher::connect(agent);
    launcher.raw(&[0xff; 64]).unwrap();
    assert!(launcher.refused().contains("a frame of 4294967295 bytes"));
    let mut bytes = Vec::new();
    let garbage = Frame {
        to: FrameAddress::Launcher,
        from: FrameAddress::Launcher,
        class: FrameClass::Control,
        more: false,
        body: vec![77; 10],
    };
    garbage.encode(&mut bytes);
    let mut launcher = Launcher::connect(agent);
    launcher.raw(&bytes).unwrap();
    assert!(launcher.refused().contains("invalid request, or more than"));

    // The rest of a message of another version cannot be parsed.
    let mut launcher = Launcher::connect(agent);
    launcher.ask(&(0, VERSION + 7, "what that version says"));
    let reason = launcher.refused();
    for version in [VERSION, VERSION + 7] {
        assert!(reason.contains(&format!("version {version}")), "{reason}");
    }

    // A launch's name is its own while it runs; the second request ends it.
    let mut launcher = Launcher::connect(agent);
    launcher.ask(&open(VERSION, "l", spread.clone()));
    let pids = launcher.begun(2);
    let mut second = Launcher::connect(agent);
    second.ask(&open(VERSION, "l", spread.clone()));
    assert!(
        second
            .refused()
            .contains("launch l already exists at this agent")
    );
    launcher.ask(&open(VERSION, "m", spread));
    assert_eq!(launcher.next_event(), LauncherEvent::End);
    gone(&pids);
}

#[test]
fn connections_of_user_are_limited() {
    let cluster = Cluster::start(1, &[]);
    let agent = &cluster.agents[0];
    let mut held: Vec<Launcher> = (0..256).map(|_| Launcher::connect(agent)).collect();
    let mut one_more = Launcher::connect(agent);
    let reason = one_more.refused();
    assert!(
        reason.contains("already has 256 connections to this agent"),
        "{reason}"
    );
    held.pop();
    // That one is gone is noticed in time.
    let until = std::time::Instant::now() + super::cluster::DEADLINE;
    loop {
        let mut launcher = Launcher::connect(agent);
        // A client may be refused before it has sent anything.
        let garbage = launcher.raw(&[0xff; 64]);
        match launcher.refused() {
            reason if garbage.is_ok() && reason.contains("a frame of") => break,
            reason => assert!(std::time::Instant::now() < until, "{reason}"),
        }
    }
    drop(held);
}

#[test]
fn agent_of_ordinary_user_serves_only_that_user() {
    if !geteuid().is_root() {
        skip("starting an agent as somebody else needs root");
        return;
    }
    run(async {
        let mut cluster = Cluster::start(1, &[]);
        let root = cluster.directory.path().to_owned();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let nobody = 65_534;
        let own = root.join("own");
        std::fs::create_dir(&own).unwrap();
        let certificate = cluster.issue("mine", Role::Node);
        std::fs::rename(&certificate, own.join("tls")).unwrap();
        for path in [own.clone(), own.join("tls")] {
            chown(&path, Some(nobody), Some(nobody)).unwrap();
            for file in std::fs::read_dir(&path).unwrap() {
                chown(file.unwrap().path(), Some(nobody), Some(nobody)).unwrap();
            }
        }
        let mine = cluster.start_as(nobody, "mine", &own.join("tls"), &own.join("sock"));
        let spread = LaunchTree {
            nodes: vec![cluster.agents[0].member(), mine.member()],
            joined: 0,
            star_limit: 128,
            width: 32,
        };
        // Root may connect to every socket, but is not its user.
        let mut launcher = Launcher::open(&mine, spread.clone());
        let words = "runs as user id 65534 and cannot start processes as user id 0";
        let reason = launcher.refused();
        assert!(reason.contains(words), "{reason}");
        let mut caller = Caller::new(&cluster.certificate("n0"), &mine).await;
        let foreign = caller.join(hello("l", spread.clone(), 1, 0)).await;
        check(foreign, &mine, Code::PermissionDenied, words);
        // Its own user's launches run there.
        let mut joined = caller.join(hello("l", spread, 1, nobody)).await.unwrap();
        let begun = joined.next_text().await;
        assert!(begun.ends_with(" 65534"), "{begun}");
        cluster.agents.push(mine);
    });
}
