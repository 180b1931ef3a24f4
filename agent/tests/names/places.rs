//! The stores, and a client of one.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wireup_core::job::ids::{AppNum, NodeId, Nspace, Rank, UserId};
use wireup_core::job::proc::Proc;
use wireup_core::link::agent_protocol::{AgentRequest, VERSION};
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::reassembly::{Envelope, Reassembly, write};
use wireup_core::link::{decode, encode};
use wireup_core::name_server::STORE_COMMAND;
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::names::name_server_requests::{
    NameRequestId, NameServerReply, NameServerRequest, NodeRequestNumber,
};
use wireup_core::names::request::{NameReply, NameRequest, NameRequester};

use crate::common::slapd::{self, Slapd};
use crate::common::{eventually, free_port, skip, wireup};

/// Timeout of a reply on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// User id of another user.
pub(crate) const OTHER: u32 = 12_345;

const ETCD: &str = "/usr/bin/etcd";

const LDAP_SETTINGS: &str = "ldap.toml";

/// A store that runs, or may run.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    /// Value of `--names`; `None` for the name server.
    backend: Option<String>,
    server: std::cell::RefCell<Option<Server>>,
    port: u16,
    tls_port: u16,
    slapd: Option<Slapd>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Agents,
    File,
    Etcd,
    Ldap,
}

/// A process that ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sets the mode of a path, so that all users can open it.
fn open(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

impl Place {
    fn new(kind: Kind, backend: impl FnOnce(&Path, u16) -> Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 0o755);
        let port = free_port();
        let place = Self {
            backend: backend(dir.path(), port),
            dir,
            server: None.into(),
            port,
            tls_port: 0,
            slapd: None,
            kind,
        };
        if kind != Kind::Ldap {
            place.come();
        }
        place
    }

    pub(crate) fn agents() -> Option<Self> {
        Some(Self::new(Kind::Agents, |_, _| None))
    }

    pub(crate) fn file() -> Option<Self> {
        Some(Self::new(Kind::File, |dir, _| {
            let shared = dir.join("shared");
            std::fs::create_dir(&shared).unwrap();
            open(&shared, 0o1777);
            Some(format!("file:{}", shared.display()))
        }))
    }

    #[track_caller]
    pub(crate) fn etcd() -> Option<Self> {
        if !Path::new(ETCD).exists() {
            skip(&format!("no {ETCD}: run scripts/setup"));
            return None;
        }
        Some(Self::new(Kind::Etcd, |dir, port| {
            let config = dir.join("wireup");
            std::fs::create_dir(&config).unwrap();
            // What is pruned is pruned soon.
            std::fs::write(config.join("etcd.toml"), "ttl = 2\n").unwrap();
            Some(format!("etcd:127.0.0.1:{port}"))
        }))
    }

    /// Store in a directory whose users the kernel names to the server.
    #[track_caller]
    pub(crate) fn ldap() -> Option<Self> {
        Self::ldap_with(None, "ttl = 6\n")
    }

    /// With these settings, and with TLS if certificates are named.
    #[track_caller]
    pub(crate) fn ldap_with(certificates: Option<&Path>, settings: &str) -> Option<Self> {
        let mut place = Self::new(Kind::Ldap, |_, _| None);
        let slapd = Slapd::new(place.dir.path(), certificates)?;
        place.backend = Some(format!("{}/{}", slapd.url(), slapd::BASE));
        place.set(settings);
        place.slapd = Some(slapd);
        place.tls_port = certificates.map_or(0, |_| free_port());
        place.come();
        Some(place)
    }

    /// Gives the directory other settings.
    pub(crate) fn set(&self, settings: &str) {
        std::fs::write(self.dir.path().join(LDAP_SETTINGS), settings).unwrap();
    }

    /// The directory is reached at another URL from now on.
    pub(crate) fn at(&mut self, scheme: &str, host: &str) {
        let port = if scheme == "ldaps" {
            self.tls_port
        } else {
            self.port
        };
        self.backend = Some(format!("{scheme}://{host}:{port}/{}", slapd::BASE));
    }

    /// Returns the variables that name the settings files of stores.
    pub(crate) fn variables(&self) -> [(&'static str, String); 2] {
        let dir = self.dir.path();
        let of_ldap = dir.join(LDAP_SETTINGS).display().to_string();
        [
            ("XDG_CONFIG_HOME", dir.display().to_string()),
            ("WIREUP_LDAP_SETTINGS", of_ldap),
        ]
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the value of `--names`.
    pub(crate) fn backend(&self) -> &str {
        self.backend.as_deref().unwrap_or("agents")
    }

    pub(crate) fn shared(&self) -> PathBuf {
        self.dir.path().join("shared")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// The store begins, or comes back.
    pub(crate) fn come(&self) {
        let started = match self.kind {
            Kind::Agents => {
                let _ = std::fs::remove_file(self.socket());
                let listener = UnixListener::bind(self.socket()).unwrap();
                let mut command = Command::new("sh");
                command
                    .args(["-c", "exec \"$0\" rendezvous 3<&0"])
                    .arg(wireup());
                command.stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)));
                command.spawn().unwrap()
            }
            Kind::File => {
                let away = self.dir.path().join("away");
                if away.exists() {
                    std::fs::rename(away, self.shared()).unwrap();
                }
                return;
            }
            Kind::Etcd => {
                let url = format!("http://127.0.0.1:{}", self.port);
                let mut command = Command::new(ETCD);
                command.arg("--data-dir").arg(self.dir.path().join("etcd"));
                command.args([
                    "--listen-client-urls",
                    &url,
                    "--advertise-client-urls",
                    &url,
                ]);
                // No other member speaks to it.
                command.args(["--listen-peer-urls", "http://127.0.0.1:0"]);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command.spawn().unwrap()
            }
            Kind::Ldap => {
                let urls = [("ldap", self.port), ("ldaps", self.tls_port)];
                let urls = urls.map(|(scheme, port)| format!("{scheme}://127.0.0.1:{port}"));
                let urls = if self.tls_port == 0 { &[] } else { &urls[..] };
                let words = self.slapd.as_ref().unwrap().words(urls);
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).spawn().unwrap()
            }
        };
        *self.server.borrow_mut() = Some(Server(started));
        match &self.slapd {
            Some(slapd) => {
                eventually("the server accepts connections", || {
                    UnixStream::connect(slapd.socket()).ok()
                });
            }
            None if self.kind == Kind::Etcd => {
                eventually("the server accepts connections", || {
                    std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()
                });
            }
            None => {}
        }
    }

    /// The store is away, as after a crash.
    pub(crate) fn go(&self) {
        match self.kind {
            Kind::File => std::fs::rename(self.shared(), self.dir.path().join("away")).unwrap(),
            Kind::Agents | Kind::Etcd | Kind::Ldap => drop(self.server.borrow_mut().take()),
        }
    }

    /// A launch whose job has this name.
    pub(crate) fn launch(&self, job: &str) -> Launch {
        self.launch_as(job, "", None)
    }

    pub(crate) fn launch_as(&self, job: &str, meet: &str, user: Option<u32>) -> Launch {
        let (socket, keeper) = match &self.backend {
            None => (UnixStream::connect(self.socket()).unwrap(), None),
            Some(backend) => {
                let (own, other) = UnixStream::pair().unwrap();
                let agent = wireup().with_file_name("wireup-agent");
                let mut command = Command::new(agent);
                command.args([STORE_COMMAND, backend, meet]);
                command.env_clear().envs(self.variables());
                command.stdin(Stdio::from(std::os::fd::OwnedFd::from(other)));
                if let Some(user) = user {
                    command.uid(user).gid(user);
                }
                (own, Some(command.spawn().unwrap()))
            }
        };
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut launch = Launch {
            job: job.to_owned(),
            socket,
            frames: FrameReader::default(),
            parts: Reassembly::default(),
            come: Vec::new(),
            last: 0,
            keeper,
        };
        let meet = AgentRequest::Meet {
            version: VERSION,
            name: meet.to_owned(),
        };
        launch.write(FrameClass::Control, &meet);
        assert_eq!(launch.next_report(), NameServerReport::Welcome);
        launch
    }
}

/// The number of a request, which only the core makes.
fn serial(number: u64) -> NodeRequestNumber {
    decode(&encode(&number)).unwrap()
}

/// A launch, as the store knows it.
pub(crate) struct Launch {
    job: String,
    socket: UnixStream,
    frames: FrameReader,
    parts: Reassembly,
    come: Vec<NameServerReport>,
    last: u64,
    keeper: Option<Child>,
}

/// Closes its connection, and waits until its names are withdrawn.
impl Drop for Launch {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        if let Some(keeper) = &mut self.keeper {
            let _ = keeper.wait();
        } else {
            // The end of the connection shows that the server has processed all that it got.
            while matches!(self.socket.read(&mut [0; 1024]), Ok(1..)) {}
        }
    }
}

impl Launch {
    fn write(&mut self, class: FrameClass, message: &impl serde::Serialize) {
        let mut bytes = Vec::new();
        let envelope = Envelope {
            to: FrameAddress::EveryNode,
            from: FrameAddress::Launcher,
            class,
        };
        write(envelope, message, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
    }

    /// Returns the next message of the name server.
    pub(crate) fn next_report(&mut self) -> NameServerReport {
        loop {
            if !self.come.is_empty() {
                return self.come.remove(0);
            }
            let mut bytes = [0; 64 * 1024];
            let got = self.socket.read(&mut bytes).expect("an answer in time");
            assert_ne!(got, 0, "the store has closed the connection");
            self.frames.push(&bytes[..got]);
            while let Some(frame) = self.frames.next_frame().unwrap() {
                if let Some((envelope, body)) = self.parts.take(frame).unwrap() {
                    match envelope.class {
                        FrameClass::Carried => self.come.push(decode(&body).unwrap()),
                        FrameClass::Control => {
                            panic!("refused: {}", String::from_utf8_lossy(&body))
                        }
                        FrameClass::Sign => {}
                    }
                }
            }
        }
    }

    pub(crate) fn who(&self, rank: u32) -> NameRequester {
        NameRequester {
            proc: Proc::new(Nspace::new(&self.job).unwrap(), Rank(rank)),
            node: NodeId(rank / 2),
            user: UserId(0),
            app: AppNum(0),
            app_size: 4,
        }
    }

    pub(crate) fn say(&mut self, message: NameServerRequest) {
        self.write(FrameClass::Carried, &NameServerCommand::Store(message));
    }

    /// Makes a request of a rank; its number.
    pub(crate) fn begin(&mut self, rank: u32, request: NameRequest) -> NameRequestId {
        self.last += 1;
        let ticket = NameRequestId {
            node: NodeId(rank / 2),
            serial: serial(self.last),
        };
        let who = self.who(rank);
        self.say(NameServerRequest::Ask {
            ticket,
            who,
            request,
        });
        ticket
    }

    /// The answer to a request. What the store reports meanwhile is for the user.
    pub(crate) fn answer(&mut self, ticket: NameRequestId) -> NameReply {
        let mut others = Vec::new();
        let answer = loop {
            match self.next_report() {
                NameServerReport::Store(NameServerReply {
                    ticket: got,
                    answer,
                }) if got == ticket => {
                    break answer;
                }
                NameServerReport::Trouble(_) => {}
                other => others.push(other),
            }
        };
        self.come.extend(others);
        answer
    }

    /// Asks, and confirms an answer that is for this reader alone.
    pub(crate) fn ask(&mut self, rank: u32, request: NameRequest) -> NameReply {
        let ticket = self.begin(rank, request);
        let answer = self.answer(ticket);
        if answer.has_once() {
            self.say(NameServerRequest::Receipt {
                ticket,
                reached: true,
            });
        }
        answer
    }

    /// The launcher and the process that keeps its names are killed.
    pub(crate) fn kill(mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.kill().unwrap();
        }
    }
}
