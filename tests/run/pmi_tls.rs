//! Clients of `wireup serve --pmi-port-auth tls`, and others that try to take their place.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::Output;
use crate::pmi_forwarding::{LIMIT, Pmi2Launch};

const OPTIONS: &str = "--env-dir env --pmi-port-auth tls";

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Connects with a port, and expects the certificate in one file there; shows the certificate in the other, if any.
fn connect(port: &str, trusted: &str, own: Option<&str>) -> TlsStream {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(trusted).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        Some(file) => {
            let chain = vec![CertificateDer::from_pem_file(file).unwrap()];
            let key = PrivateKeyDer::from_pem_file(file).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("wireup").unwrap();
    let stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    StreamOwned::new(
        ClientConnection::new(Arc::new(config), name).unwrap(),
        stream,
    )
}

/// Sends a text and reads as many bytes as are expected; fails if others come, or none.
fn exchange(stream: &mut TlsStream, text: &str, expected: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()?;
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply)?;
    assert_eq!(String::from_utf8_lossy(&reply), expected);
    Ok(())
}

fn frame(text: &str) -> String {
    format!("{:6}{text}", text.len())
}

fn reply(text: &str) -> String {
    format!("{:>6}{text}", text.len())
}

/// Begins as the client of a rank, in PMI-1.
fn begin(stream: &mut TlsStream, rank: usize) -> io::Result<()> {
    let start = format!("cmd=initack rc=0\ncmd=set size=2\ncmd=set rank={rank}\ncmd=set debug=0\n");
    exchange(stream, &format!("cmd=initack pmiid={rank}\n"), &start)?;
    let init = "cmd=init pmi_version=1 pmi_subversion=1\n";
    let reply = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2\n";
    exchange(stream, init, reply)
}

fn finalize(mut stream: TlsStream) {
    exchange(&mut stream, "cmd=finalize\n", "cmd=finalize_ack rc=0\n").unwrap();
}

#[test]
fn client_with_certificate_of_its_rank_is_admitted() {
    let launch = Pmi2Launch::new(2, OPTIONS);
    for rank in 0..2 {
        assert_eq!(launch.variable(rank, "PMI_SOCKTYPE"), "OpenSSL");
        let file = fs::metadata(launch.variable(rank, "PMI_TLS_FILE")).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
    }
    let files = [0, 1].map(|rank| launch.variable(rank, "PMI_TLS_FILE"));
    let ports = [0, 1].map(|rank| launch.variable(rank, "PMI_PORT"));
    let mut first = connect(&ports[0], &files[0], Some(&files[0]));
    begin(&mut first, 0).unwrap();
    // Neither PMI-1 nor PMI-2 needs another proof.
    let mut second = connect(&ports[1], &files[1], Some(&files[1]));
    let greeting = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    let init = "cmd=init pmi_version=2 pmi_subversion=0\n";
    exchange(&mut second, init, greeting).unwrap();
    let full = reply("cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=2;");
    // The length is that of the whole reply, which has more pairs.
    second
        .write_all(frame("cmd=fullinit;pmirank=1;").as_bytes())
        .unwrap();
    let mut length = [0; 6];
    second.read_exact(&mut length).unwrap();
    let length = str::from_utf8(&length).unwrap().trim().parse().unwrap();
    let mut text = vec![0; length];
    second.read_exact(&mut text).unwrap();
    assert!(text.starts_with(&full.as_bytes()[6..]), "{text:?}");
    exchange(
        &mut second,
        &frame("cmd=finalize;"),
        &reply("cmd=finalize-response;rc=0;"),
    )
    .unwrap();
    finalize(first);
    drop(second);
    launch.running.finish().expect(0);
}

#[test]
fn client_without_certificate_of_rank_is_refused() {
    let launch = Pmi2Launch::new(2, OPTIONS);
    let files = [0, 1].map(|rank| launch.variable(rank, "PMI_TLS_FILE"));
    let port = launch.variable(0, "PMI_PORT");
    let mut plain = TcpStream::connect(&port).unwrap();
    plain.set_read_timeout(Some(LIMIT)).unwrap();
    plain.write_all(b"cmd=initack pmiid=0\n").unwrap();
    let mut received = Vec::new();
    // The port may reset the connection.
    let _ = plain.read_to_end(&mut received);
    assert!(!received.starts_with(b"cmd="), "{received:?}");
    launch
        .running
        .wait_for(Output::Stderr, "refused: TLS: it does not speak TLS");
    let mut other = connect(&port, &files[0], Some(&files[1]));
    begin(&mut other, 0).unwrap_err();
    launch.running.wait_for(
        Output::Stderr,
        "refused: TLS: its certificate is not accepted: the certificate is not that of this rank",
    );
    let mut without = connect(&port, &files[0], None);
    begin(&mut without, 0).unwrap_err();
    launch
        .running
        .wait_for(Output::Stderr, "refused: TLS: no certificate sent");
    // A client refuses a port with another certificate: it sends that port nothing.
    let mut astray = connect(&port, &files[1], Some(&files[1]));
    let refusal = begin(&mut astray, 0).unwrap_err();
    assert_eq!(refusal.kind(), io::ErrorKind::InvalidData, "{refusal}");
    // The client of the rank is still admitted.
    let mut client = connect(&port, &files[0], Some(&files[0]));
    begin(&mut client, 0).unwrap();
    launch.running.signal(Signal::TERM);
    launch.running.finish().expect(143);
}

/// A host in the middle of one connection.
struct Middle {
    port: String,
    /// Bytes of both directions.
    carried: Arc<Mutex<Vec<u8>>>,
    /// Whether bytes of the client are altered.
    alters: Arc<AtomicBool>,
}

impl Middle {
    fn new(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().to_string();
        let middle = Self {
            port,
            carried: Arc::default(),
            alters: Arc::default(),
        };
        let (carried, alters) = (middle.carried.clone(), middle.alters.clone());
        thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(target).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let carried_back = carried.clone();
            thread::spawn(move || carry(back, &carried_back, &AtomicBool::new(false)));
            carry((client, server), &carried, &alters);
        });
        middle
    }
}

fn carry(
    (mut from, mut to): (TcpStream, TcpStream),
    carried: &Mutex<Vec<u8>>,
    alters: &AtomicBool,
) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if alters.load(Ordering::SeqCst) {
            buffer[count - 1] ^= 1;
        }
        carried.lock().unwrap().extend(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn host_in_middle_reads_and_alters_nothing() {
    let launch = Pmi2Launch::new(2, OPTIONS);
    let files = [0, 1].map(|rank| launch.variable(rank, "PMI_TLS_FILE"));
    let kvsname = launch.variable(0, "PMI_JOBID");
    let put = format!("cmd=put kvsname={kvsname} key=secret value=of-rank\n");
    let middle = Middle::new(launch.variable(0, "PMI_PORT"));
    let mut client = connect(&middle.port, &files[0], Some(&files[0]));
    begin(&mut client, 0).unwrap();
    exchange(&mut client, &put, "cmd=put_result rc=0").unwrap();
    let carried = middle.carried.lock().unwrap().clone();
    assert!(carried.len() > put.len(), "{}", carried.len());
    for word in ["cmd=", "secret", "of-rank", &kvsname] {
        let found = carried
            .windows(word.len())
            .any(|text| text == word.as_bytes());
        assert!(!found, "{word}");
    }
    // A changed request is not executed, and the client is lost.
    middle.alters.store(true, Ordering::SeqCst);
    exchange(&mut client, &put, "cmd=put_result rc=0").unwrap_err();
    let outcome = launch.running.finish().expect(1);
    let ended = outcome.err();
    assert!(
        ended.contains("between MPI_Init and MPI_Finalize"),
        "{outcome:?}"
    );
}
