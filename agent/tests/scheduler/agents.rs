//! Agents, and connections to them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use hyper_util::rt::TokioIo;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use tower::service_fn;
use wireup_agent::identity::Role;
use wireup_agent::pki;
use wireup_agent::pki::authority::Validity;
use wireup_agent::proto::v1;
use wireup_agent::proto::v1::node_agent_client::NodeAgentClient;
use wireup_agent::proto::v1::watch_event::Event;

/// Never reached by what works, also on a machine with ten times its work: the longest test takes 13 s.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

pub(crate) type Client = NodeAgentClient<Channel>;

/// Agents `n0`, `n1`, … and certificates of the schedulers `s` and `t` and the observer `o`.
pub(crate) struct Agents {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) agents: Vec<Agent>,
}

/// One agent; ended when this is dropped.
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) socket: PathBuf,
    pub(crate) child: Child,
    log: Arc<Mutex<String>>,
}

/// Path of a program that `cargo build --workspace` builds.
pub(crate) fn built(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_wireup-agent")).with_file_name(name);
    assert!(
        path.exists(),
        "no {}: cargo build --workspace",
        path.display()
    );
    path
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Agents {
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// With these options of agents.
    pub(crate) fn start_with(count: usize, options: &[&str]) -> Self {
        Self::start_program(
            Path::new(env!("CARGO_BIN_EXE_wireup-agent")),
            count,
            options,
        )
    }

    /// Starts agents from this executable.
    pub(crate) fn start_program(program: &Path, count: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Other users connect too.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let pki = directory.path().join("pki");
        let validity = Validity::days(SystemTime::now(), 30);
        pki::init(&pki, "test", validity).unwrap();
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        let issue = |names: &[String], role| pki::issue(&pki, names, &[], role, validity).unwrap();
        issue(&names, Role::Node);
        issue(&["s".into(), "t".into()], Role::Scheduler);
        issue(&["o".into()], Role::Observer);
        let agents = names
            .into_iter()
            .map(|name| Agent::start(program, directory.path(), name, options));
        let agents = agents.collect();
        Self { directory, agents }
    }

    pub(crate) fn tls(&self, name: &str) -> PathBuf {
        self.directory.path().join("pki").join(name)
    }

    /// The first agent over its socket, as the user of the test.
    pub(crate) async fn local(&self) -> Client {
        let socket = self.agents[0].socket.clone();
        let endpoint = Endpoint::from_static("http://localhost");
        let connect = service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        NodeAgentClient::new(endpoint.connect_with_connector(connect).await.unwrap())
    }

    /// Connects as another user, which only root can.
    pub(crate) async fn local_as(&self, uid: u32) -> Client {
        let socket = self.agents[0].socket.clone();
        let connecting = std::thread::spawn(move || {
            let (uid, root) = (Uid::from_raw(uid), Uid::ROOT);
            // Of this thread, which ends.
            set_thread_res_uid(root, uid, root).unwrap();
            std::os::unix::net::UnixStream::connect(socket).unwrap()
        });
        let stream = connecting.join().unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = Some(TokioIo::new(UnixStream::from_std(stream).unwrap()));
        let connect = service_fn(move |_: Uri| {
            let stream = stream.take().ok_or(std::io::ErrorKind::NotConnected);
            std::future::ready(stream.map_err(std::io::Error::from))
        });
        let endpoint = Endpoint::from_static("http://localhost");
        NodeAgentClient::new(endpoint.connect_with_connector(connect).await.unwrap())
    }

    /// An agent over TLS, with the certificate of this name.
    pub(crate) async fn remote(&self, index: usize, certificate: &str) -> Client {
        let agent = &self.agents[index];
        let tls = self.tls(certificate);
        let read = |name: &str| fs::read(tls.join(name)).unwrap();
        let config = ClientTlsConfig::new()
            .domain_name(&agent.name)
            .ca_certificate(Certificate::from_pem(read("ca.pem")))
            .identity(Identity::from_pem(read("cert.pem"), read("key.pem")));
        let endpoint = Endpoint::from_shared(format!("https://{}", agent.address)).unwrap();
        let channel = endpoint.tls_config(config).unwrap().connect().await;
        NodeAgentClient::new(channel.unwrap())
    }

    /// The agents as peers, with these ranks on each.
    pub(crate) fn peers(&self, ranks: &[u32]) -> Vec<v1::PeerInfo> {
        let mut first = 0;
        let peer = |(agent, ranks): (&Agent, &u32)| {
            first += ranks;
            v1::PeerInfo {
                node_id: agent.name.clone(),
                grpc_address: agent.address.clone(),
                first_rank: first - ranks,
                num_ranks: *ranks,
            }
        };
        self.agents.iter().zip(ranks).map(peer).collect()
    }
}

impl Agent {
    fn start(program: &Path, root: &Path, name: String, options: &[&str]) -> Self {
        let socket = root.join(format!("{name}.sock"));
        built("wireup");
        let mut child = Command::new(program)
            .args(["agent", "--listen", "127.0.0.1:0", "--config", "/dev/null"])
            .arg("--tls")
            .arg(root.join("pki").join(&name))
            .arg("--socket")
            .arg(&socket)
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().unwrap().contains(" serves node "));
        let ready = ready.unwrap().unwrap();
        let address = ready.split("(for others ").nth(1).unwrap();
        let address = address.split(')').next().unwrap().to_owned();
        let log = Arc::new(Mutex::new(ready));
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *writer.lock().unwrap() += &format!("\n{line}");
            }
        });
        Self {
            name,
            address,
            socket,
            child,
            log,
        }
    }

    /// A field of its `/proc/PID/status`, in kB: `VmHWM` is the most resident memory it has had, `RssAnon` its own memory of now.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find(|line| line.starts_with(field));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        words[1].parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until it has ended; whether it did so without a failure.
    pub(crate) fn ended(&mut self) -> bool {
        eventually("the agent ends", || self.child.try_wait().unwrap()).success()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.log());
        }
    }
}

/// Waits until a process is stopped.
pub(crate) fn await_stop(pid: i32) {
    let stat = format!("/proc/{pid}/stat");
    eventually("it is stopped", || {
        let stat = fs::read_to_string(&stat).unwrap();
        stat.contains(") T ").then_some(())
    });
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            start.elapsed() < DEADLINE,
            "{what}: not within {DEADLINE:?}"
        );
        // Between two looks only.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A shell script on `ranks` ranks of one node, as the user of the test.
pub(crate) fn script(id: &str, ranks: u32, script: &str) -> v1::LaunchProcessesRequest {
    v1::LaunchProcessesRequest {
        launch_id: id.into(),
        allocation_id: "alloc-7".into(),
        entrypoint: "sh".into(),
        args: vec!["-c".into(), script.into()],
        tasks_per_node: ranks,
        world_size: ranks,
        pmi_mode: v1::PmiMode::Auto.into(),
        job: Some(v1::JobSpec {
            cwd: "/".into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// All reports about a launch, and its end.
pub(crate) async fn watch(
    client: &mut Client,
    id: &str,
) -> (Vec<v1::WatchEvent>, v1::LaunchCompleteNotification) {
    let request = v1::WatchRequest {
        launch_id: id.into(),
    };
    let mut stream = client.watch(request).await.unwrap().into_inner();
    let mut events = Vec::new();
    let end = async {
        loop {
            let event = stream.message().await.unwrap().unwrap();
            if let Some(Event::Complete(end)) = event.event {
                return end;
            }
            events.push(event);
        }
    };
    let end = tokio::time::timeout(DEADLINE, end).await.unwrap();
    assert_eq!(stream.message().await.unwrap(), None);
    (events, end)
}

/// Waits until a rank is in this state.
pub(crate) async fn rank_is(client: &mut Client, id: &str, rank: u32, state: v1::RankState) {
    let request = v1::WatchRequest {
        launch_id: id.into(),
    };
    let mut stream = client.watch(request).await.unwrap().into_inner();
    let found = async {
        loop {
            match stream.message().await.unwrap().unwrap().event.unwrap() {
                Event::Rank(info) if info.rank == rank && info.state() == state => return,
                Event::Complete(end) => panic!("{end:?}"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(DEADLINE, found).await.unwrap();
}

/// Returns the standard output of the ranks, by rank; output of others is under `None`.
pub(crate) async fn output(
    client: &mut Client,
    id: &str,
    input: &[&str],
) -> BTreeMap<Option<u32>, String> {
    let first = v1::StdioInput {
        launch_id: id.into(),
        ..Default::default()
    };
    let data = input.iter().map(|data| v1::StdioInput {
        data: (*data).to_owned().into(),
        ..Default::default()
    });
    let messages: Vec<_> = std::iter::once(first).chain(data).collect();
    let mut stream = client
        .stdio(tokio_stream::iter(messages))
        .await
        .unwrap()
        .into_inner();
    let mut printed: BTreeMap<_, String> = BTreeMap::new();
    let read = async {
        while let Some(piece) = stream.message().await.unwrap() {
            let text = String::from_utf8(piece.data.to_vec()).unwrap();
            *printed.entry(piece.rank).or_default() += &text;
        }
    };
    tokio::time::timeout(DEADLINE, read).await.unwrap();
    printed
}
