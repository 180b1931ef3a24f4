//! Real TLS over real sockets: which peers are admitted, which are refused, what is logged, and which message the
//! caller gets.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tonic::transport::server::Connected as _;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};

use super::*;
use crate::identity::Role;
use crate::pki;
use crate::pki::authority::Validity;

const DEADLINE: Duration = Duration::from_secs(30);

/// Lines of the log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

/// While there is one subscriber in all, tracing asks the thread that first comes to a place whether that
/// place matters, and keeps the answer for all threads: a test without a log would answer for one with.
static SILENT: OnceLock<[Dispatch; 2]> = OnceLock::new();

impl Log {
    fn start() -> (Self, DefaultGuard) {
        SILENT.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Waits for one line with these words, and fails if there is another.
    async fn one(&self, words: &[&str]) -> String {
        let waiting = async {
            while self.lines().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waiting)
            .await
            .expect("a line");
        let lines = self.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        for word in words {
            assert!(lines[0].contains(word), "{word}: {lines:?}");
        }
        lines[0].clone()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// An authority in a directory of its own.
struct Cluster {
    _top: tempfile::TempDir,
    dir: PathBuf,
}

impl Cluster {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("pki");
        pki::init(&dir, "wireup", valid(100)).unwrap();
        Self { _top: top, dir }
    }

    fn issue(&self, name: &str, role: Role, validity: Validity) -> PathBuf {
        let names = [name.to_owned()];
        pki::issue(&self.dir, &names, &[], role, validity)
            .unwrap()
            .remove(0)
    }

    fn node(&self, name: &str) -> Arc<TlsConfigs> {
        TlsConfigs::load(&self.issue(name, Role::Node, valid(100))).unwrap()
    }
}

fn valid(days: u32) -> Validity {
    Validity::days(SystemTime::now(), days)
}

fn expired() -> Validity {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    Validity {
        not_before: SystemTime::now() - days(3),
        not_after: SystemTime::now() - days(1),
    }
}

/// A server with gRPC's health service.
async fn serve(tls: Arc<TlsConfigs>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let incoming = server_incoming(listener, tls, Heartbeat::default(), Arc::default(), ());
    let serving = server(Heartbeat::default(), Arc::default(), Handle::current())
        .add_service(health)
        .serve_with_incoming(incoming);
    tokio::spawn(serving);
    address
}

/// Calls as a client that does not check beforehand whether that can work.
async fn call(
    trusted: &Path,
    shown: Option<&Path>,
    address: SocketAddr,
) -> (SocketAddr, std::io::Result<()>) {
    let read = |path: PathBuf| fs::read(path).unwrap();
    let mut roots = RootCertStore::empty();
    let ca = read(trusted.join(pki::CA));
    roots
        .add(CertificateDer::from_pem_slice(&ca).unwrap())
        .unwrap();
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(dir) => {
            let chain = CertificateDer::from_pem_slice(&read(dir.join(pki::CERTIFICATE))).unwrap();
            let key = PrivateKeyDer::from_pem_slice(&read(dir.join(pki::KEY))).unwrap();
            config.with_client_auth_cert(vec![chain], key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let local = stream.local_addr().unwrap();
    let name = ServerName::try_from("n1").unwrap();
    let using = async {
        let mut stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        stream.read_u8().await.map(drop)
    };
    let result = tokio::time::timeout(DEADLINE, using).await.unwrap();
    (local, result)
}

async fn check(channel: tonic::transport::Channel) -> Result<(), tonic::Status> {
    let request = HealthCheckRequest::default();
    HealthClient::new(channel).check(request).await.map(drop)
}

#[tokio::test]
async fn nodes_connect_and_identify_callers() {
    let (log, _guard) = Log::start();
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("n1"), cluster.node("n2"));
    let address = serve(one.clone()).await;
    let channel = connect(&two, "n1", &address.to_string(), Heartbeat::default())
        .await
        .unwrap();
    check(channel).await.unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut incoming = server_incoming(listener, one, Heartbeat::default(), Arc::default(), ());
    let (reached, accepted) = tokio::join!(
        connect(&two, "n1", &address, Heartbeat::default()),
        tokio_stream::StreamExt::next(&mut incoming)
    );
    reached.unwrap();
    let peer = accepted.unwrap().unwrap().connect_info();
    assert_eq!(peer.identity, two.identity());
    assert_eq!(log.lines(), [""; 0]);
}

#[tokio::test]
async fn certificate_of_other_authority_is_refused_by_either_side() {
    let cluster = Cluster::new();
    let other = Cluster::new();
    let address = serve(cluster.node("n1")).await;
    // A stranger who trusts the node, and a node that does not.
    let stranger = other.issue("n2", Role::Node, valid(1));
    let (log, guard) = Log::start();
    let (from, result) = call(&cluster.dir, Some(&stranger), address).await;
    result.unwrap_err();
    let reason = "no authority of this node (ca.pem) signed its certificate";
    log.one(&[&format!("refused a connection from {from}: "), reason])
        .await;
    drop(guard);
    let (log, _guard) = Log::start();
    let stranger = TlsConfigs::load(&stranger).unwrap();
    let error = connect(&stranger, "n1", &address.to_string(), Heartbeat::default()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with(reason), "{error}");
    log.one(&["it refuses this node's certificate: it does not trust"])
        .await;
}

#[tokio::test]
async fn missing_or_expired_certificate_is_refused() {
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await;
    let late = cluster.issue("late", Role::Node, expired());
    for (shown, reason) in [
        (None, "no certificate sent"),
        (Some(&*late), "its certificate expired"),
    ] {
        let (log, _guard) = Log::start();
        let (from, result) = call(&cluster.dir, shown, address).await;
        result.unwrap_err();
        log.one(&[&format!("refused a connection from {from}: {reason}")])
            .await;
    }
}

#[tokio::test]
async fn connection_without_tls_is_refused() {
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await;
    for words in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let (log, _guard) = Log::start();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let from = stream.local_addr().unwrap();
        stream.write_all(words).await.unwrap();
        let line = format!("refused a connection from {from}: it does not speak TLS");
        log.one(&[&line]).await;
    }
    let (log, _guard) = Log::start();
    drop(TcpStream::connect(address).await.unwrap());
    log.one(&["it disconnected before it sent a certificate"])
        .await;
}

#[tokio::test]
async fn silent_connection_is_given_up() {
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await;
    let (log, _guard) = Log::start();
    let stream = TcpStream::connect(address).await.unwrap();
    let from = stream.local_addr().unwrap();
    let line = format!("refused a connection from {from}: no certificate sent in time");
    log.one(&[&line]).await;
}

#[tokio::test]
async fn refused_caller_gets_reason() {
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await.to_string();
    let caller = cluster.node("n2");
    let because = async |name: &str, address: &str| {
        let error = connect(&caller, name, address, Heartbeat::default()).await;
        error.unwrap_err().to_string()
    };
    let error = because("n3", &address).await;
    assert_eq!(error, "its certificate is not for n3, but for n1");
    let local = serve(cluster.node("localhost")).await;
    let error = because("root", &format!("localhost:{}", local.port())).await;
    assert_eq!(
        error,
        "its certificate is not for root, but for localhost (in NAME@ADDRESS, NAME is the node, not \
         a user: write localhost)"
    );
    let error = because("n1", "127.0.0.1:1").await;
    assert!(
        error.starts_with(
            "cannot connect to 127.0.0.1:1: Connection refused; start the agent there"
        ),
        "{error}"
    );
    let error = because("n1", "no.such.host.invalid:1").await;
    assert!(
        error.starts_with("cannot find the address no.such.host.invalid:1: "),
        "{error}"
    );
    assert!(
        !error.contains("failed to lookup") && error.ends_with("or write NAME@ADDRESS"),
        "{error}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let heartbeat = Heartbeat {
        handshake: Duration::from_secs(1),
        ..Heartbeat::default()
    };
    let error = connect(&caller, "n1", &address, heartbeat).await;
    assert_eq!(error.unwrap_err().to_string(), "no reply within 1 s");
}

#[tokio::test]
async fn only_node_certificate_can_be_called_as_node() {
    let cluster = Cluster::new();
    let caller = cluster.node("n2");
    for role in [Role::Scheduler, Role::Observer] {
        let name = format!("{role:?}").to_lowercase();
        let impostor = TlsConfigs::load(&cluster.issue(&name, role, valid(1))).unwrap();
        let address = serve(impostor).await.to_string();
        let error = connect(&caller, &name, &address, Heartbeat::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("only a node's does"), "{error}");
    }
}

#[tokio::test]
async fn renewed_certificate_is_used_without_restart() {
    let (log, _guard) = Log::start();
    let cluster = Cluster::new();
    let dir = cluster.issue("n1", Role::Node, valid(20));
    let tls = TlsConfigs::load(&dir).unwrap();
    let address = serve(tls.clone()).await.to_string();
    let before = tls.not_after();
    let authority = pki::load(&cluster.dir).unwrap();
    pki::renew(&cluster.dir, &authority, "n1", valid(40)).unwrap();
    tls.reload();
    assert!(tls.not_after() > before);
    log.one(&["was renewed; it is valid until"]).await;
    check(
        connect(&cluster.node("n2"), "n1", &address, Heartbeat::default())
            .await
            .unwrap(),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn certificate_that_does_not_match_its_key_is_not_used() {
    let (log, _guard) = Log::start();
    let cluster = Cluster::new();
    let dir = cluster.issue("n1", Role::Node, valid(20));
    let tls = TlsConfigs::load(&dir).unwrap();
    let address = serve(tls.clone()).await.to_string();
    let other = cluster.issue("n3", Role::Node, valid(20));
    fs::copy(other.join(pki::KEY), dir.join(pki::KEY)).unwrap();
    tls.reload();
    tls.reload();
    log.one(&[
        "cannot use the changed certificate: ",
        "the key does not match",
    ])
    .await;
    check(
        connect(&cluster.node("n2"), "n1", &address, Heartbeat::default())
            .await
            .unwrap(),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn certificate_that_peers_would_refuse_is_not_loaded() {
    let cluster = Cluster::new();
    let refusal = |dir: &Path| TlsConfigs::load(dir).unwrap_err().to_string();
    let error = refusal(&cluster.issue("late", Role::Node, expired()));
    assert!(
        error.ends_with("it expired; renew it (wireup pki renew)"),
        "{error}"
    );
    let error = refusal(&cluster.dir.join("none"));
    assert!(
        error.starts_with("no certificate of this node in "),
        "{error}"
    );
    let dir = cluster.issue("n0", Role::Node, valid(1));
    fs::remove_file(dir.join(pki::KEY)).unwrap();
    let error = refusal(&dir);
    assert!(error.starts_with("key.pem is missing in "), "{error}");
    let dir = cluster.issue("n1", Role::Node, valid(1));
    fs::copy(Cluster::new().dir.join(pki::CA), dir.join(pki::CA)).unwrap();
    let error = refusal(&dir);
    assert!(
        error.ends_with("no authority in ca.pem signed it"),
        "{error}"
    );
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir.join(pki::KEY), fs::Permissions::from_mode(0o640)).unwrap();
    let error = refusal(&dir);
    assert!(error.contains("key.pem may be read by others"), "{error}");
}

#[tokio::test]
async fn certificate_close_to_expiry_is_warned_of() {
    let (log, _guard) = Log::start();
    let cluster = Cluster::new();
    TlsConfigs::load(&cluster.issue("n1", Role::Node, valid(100))).unwrap();
    assert_eq!(log.lines(), [""; 0]);
    TlsConfigs::load(&cluster.issue("n2", Role::Node, valid(1))).unwrap();
    assert_eq!(log.lines(), [""; 0], "it was never meant to live long");
    let old = Validity {
        not_before: SystemTime::now() - Duration::from_secs(90 * 24 * 60 * 60),
        ..valid(3)
    };
    TlsConfigs::load(&cluster.issue("n3", Role::Node, old)).unwrap();
    log.one(&["WARN", "expires on", "in 2 days", "wireup pki renew"])
        .await;
}

#[tokio::test]
async fn message_over_limit_is_refused_and_logged() {
    let (log, _guard) = Log::start();
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await.to_string();
    let channel = connect(&cluster.node("n2"), "n1", &address, Heartbeat::default())
        .await
        .unwrap();
    let request = HealthCheckRequest {
        service: "x".repeat(5 * 1024 * 1024),
    };
    let status = HealthClient::new(channel.clone()).check(request).await;
    assert_eq!(status.unwrap_err().code(), tonic::Code::OutOfRange);
    let line = log
        .one(&["refused /grpc.health.v1.Health/Check of node n2 (127.0.0.1:"])
        .await;
    assert!(line.contains("too large"), "{line}");
    // The connection of a peer lives on.
    check(channel).await.unwrap();
}

#[tokio::test]
async fn peer_that_falls_silent_is_lost() {
    let cluster = Cluster::new();
    let address = serve(cluster.node("n1")).await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = between.local_addr().unwrap().to_string();
    let (fall_silent, is_silent) = tokio::sync::oneshot::channel();
    let carrying = tokio::spawn(async move {
        let (mut near, _) = between.accept().await.unwrap();
        let mut far = TcpStream::connect(address).await.unwrap();
        let copying = tokio::io::copy_bidirectional(&mut near, &mut far);
        // Ends without a message on request; the sockets stay open.
        tokio::select! {
            copied = copying => panic!("{copied:?}"),
            order = is_silent => order.unwrap(),
        }
        std::future::pending::<()>().await;
    });
    let channel = connect(&cluster.node("n2"), "n1", &front, Heartbeat::default())
        .await
        .unwrap();
    let mut client = HealthClient::new(channel);
    let watching = client.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watching = watching.into_inner();
    watching.message().await.unwrap().unwrap();
    fall_silent.send(()).unwrap();
    let lost = tokio::time::timeout(DEADLINE, watching.message()).await;
    lost.expect("within the deadline").unwrap_err();
    carrying.abort();
}

#[tokio::test]
async fn revoked_certificate_is_refused_and_its_connections_end() {
    let cluster = Cluster::new();
    let (one, two) = (cluster.node("n1"), cluster.node("n2"));
    let address = serve(one.clone()).await.to_string();
    let bad = serve(two.clone()).await.to_string();
    let reach = async |tls: &TlsConfigs, name: &str, address: &str| {
        let reached = connect(tls, name, address, Heartbeat::default()).await;
        reached.map_err(|error| error.to_string())
    };
    let mut watching = Vec::new();
    // One connection from the node that is to be revoked, one to it.
    for channel in [
        reach(&two, "n1", &address).await.unwrap(),
        reach(&one, "n2", &bad).await.unwrap(),
    ] {
        let mut client = HealthClient::new(channel);
        let stream = client.watch(HealthCheckRequest::default()).await.unwrap();
        let mut stream = stream.into_inner();
        stream.message().await.unwrap().unwrap();
        watching.push(stream);
    }
    let third = cluster.node("n3");
    let bystander = reach(&third, "n1", &address).await.unwrap();

    let (log, _guard) = Log::start();
    let now = SystemTime::now();
    pki::revocation::revoke(&cluster.dir, &["n2".into()], &[], now).unwrap();
    one.reload();
    for mut stream in watching {
        let ended = tokio::time::timeout(DEADLINE, stream.message()).await;
        ended.expect("within the deadline").unwrap_err();
    }
    let words = "closed a connection with node n2: its certificate was revoked";
    let lines = log.lines();
    let ended = lines.iter().filter(|line| line.contains(words)).count();
    assert_eq!(ended, 2, "{lines:?}");
    assert!(lines[0].contains("1 certificates are revoked"), "{lines:?}");
    check(bystander).await.unwrap();

    let refused = "it refuses this node's certificate: it was revoked";
    assert_eq!(reach(&two, "n1", &address).await.unwrap_err(), refused);
    let words = "its certificate was revoked";
    assert_eq!(reach(&one, "n2", &bad).await.unwrap_err(), words);
    check(reach(&third, "n1", &address).await.unwrap())
        .await
        .unwrap();
    // Its own agent does not begin with it, and does with another one.
    let dir = cluster.dir.join("n2");
    let error = TlsConfigs::load(&dir).unwrap_err().to_string();
    assert!(error.contains("it was revoked (crl.pem)"), "{error}");
    let authority = pki::load(&cluster.dir).unwrap();
    pki::renew(&cluster.dir, &authority, "n2", valid(10)).unwrap();
    let again = TlsConfigs::load(&dir).unwrap();
    check(reach(&again, "n1", &address).await.unwrap())
        .await
        .unwrap();
}

#[tokio::test]
async fn unusable_revocation_list_is_reported_and_previous_stays() {
    let cluster = Cluster::new();
    let one = cluster.node("n1");
    let two = cluster.node("n2");
    let address = serve(one.clone()).await.to_string();
    let now = SystemTime::now();
    pki::revocation::revoke(&cluster.dir, &["n2".into()], &[], now).unwrap();
    one.reload();
    let other = Cluster::new();
    other.node("n1");
    pki::revocation::revoke(&other.dir, &["n1".into()], &[], now).unwrap();
    let (log, _guard) = Log::start();
    let list = cluster.dir.join("n1").join(pki::REVOKED);
    fs::copy(other.dir.join(pki::REVOKED), &list).unwrap();
    one.reload();
    log.one(&[
        "cannot use the changed certificate: ",
        "crl.pem: no authority",
        "its list of CN=wireup",
    ])
    .await;
    let error = connect(&two, "n1", &address, Heartbeat::default()).await;
    assert!(error.unwrap_err().to_string().contains("it was revoked"));
    fs::write(&list, "nonsense").unwrap();
    let error = TlsConfigs::load(&cluster.dir.join("n1"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no list of revoked"), "{error}");
}

#[test]
fn directory_writable_by_others_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let cluster = Cluster::new();
    let dir = cluster.issue("n1", Role::Node, valid(10));
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let refusal = |dir: &Path| TlsConfigs::load(dir).unwrap_err().to_string();
    for mode in [0o770, 0o707, 0o1777] {
        chmod(&dir, mode);
        let error = refusal(&dir);
        let expected = format!(
            "may be changed by others (mode {mode:04o}); run: chmod 700 {}",
            dir.display()
        );
        assert!(error.ends_with(&expected), "{error}");
    }
    chmod(&dir, 0o755);
    TlsConfigs::load(&dir).unwrap();
    // Who can rename what is above it can put another one there.
    chmod(&cluster.dir, 0o777);
    let above = cluster.dir.display().to_string();
    assert!(refusal(&dir).ends_with(&format!("chmod 755 {above}")));
    chmod(&cluster.dir, 0o1777);
    TlsConfigs::load(&dir).unwrap();
    chmod(&cluster.dir, 0o700);
    // A link is as good as where it is.
    let open = tempfile::tempdir().unwrap();
    let link = open.path().join("tls");
    symlink(&dir, &link).unwrap();
    TlsConfigs::load(&link).unwrap();
    chmod(open.path(), 0o777);
    assert!(refusal(&link).contains("may be changed by others"));
    if rustix::process::geteuid().is_root() {
        chown(&dir, Some(65_534), None).unwrap();
        assert!(refusal(&dir).contains("belongs to user id 65534"));
        chown(&dir, Some(0), None).unwrap();
        chown(&cluster.dir, Some(65_534), None).unwrap();
        assert!(refusal(&dir).contains("belongs to user id 65534"));
    }
}
