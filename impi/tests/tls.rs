//! TLS with a token: who may be the server, and who may be a client.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use wireup_test_support::Owned;

const TOKEN: &str = "0123456789abcdef";

/// An authority, and the certificate that it gave to the server of this address.
struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let files = Self { directory };
        std::fs::write(files.path("ca.pem"), issuer.pem()).unwrap();
        std::fs::write(files.path("server.pem"), certificate.pem()).unwrap();
        std::fs::write(files.path("server.key"), key.serialize_pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn impi(token: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wireup-impi"));
    command
        .env_remove("IMPI_AUTH_KEY")
        .env_remove("IMPI_AUTH_NONE")
        .env("WIREUP_IMPI_TOKEN", token);
    command
}

/// A server of one session, and its address.
fn server(files: &Files, clients: &str) -> (Owned, String) {
    let child = impi(TOKEN)
        .args(["server", clients, "--address", "127.0.0.1", "--tls-cert"])
        .arg(files.path("server.pem"))
        .arg("--tls-key")
        .arg(files.path("server.key"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut server = Owned(child.unwrap());
    let address = server.first_line();
    (server, address)
}

/// A client whose command prints the size of the world.
fn client(address: &str, rank: &str, token: &str, authorities: Option<&Path>) -> Child {
    let mut command = impi(token);
    command.args(["agent", address, "--client", rank, "-n", "1"]);
    if let Some(authorities) = authorities {
        command.arg("--tls-ca").arg(authorities);
    }
    command
        .args(["--", "sh", "-c", "echo $IMPI_WORLD_SIZE"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn clients_with_token_join_over_tls() {
    let files = Files::new();
    let (server, address) = server(&files, "2");
    let authorities = files.path("ca.pem");
    let clients = ["0", "1"].map(|rank| client(&address, rank, TOKEN, Some(&authorities)));
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert_eq!(texts(&output), ("2\n".to_owned(), String::new()));
        assert_eq!(output.status.code(), Some(0));
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn other_authority_other_token_and_plain_text_are_refused() {
    let (files, others) = (Files::new(), Files::new());
    let (server, address) = server(&files, "1");
    let (own, other) = (files.path("ca.pem"), others.path("ca.pem"));
    for (token, authorities, reason) in [
        (TOKEN, Some(&other), "invalid peer certificate"),
        (TOKEN, None, "disconnected during authentication"),
        ("fedcba9876543210", Some(&own), &*address),
    ] {
        let client = client(&address, "0", token, authorities.map(PathBuf::as_path));
        let output = client.wait_with_output().unwrap();
        let (printed, stderr) = texts(&output);
        assert!(printed.is_empty() && stderr.contains(reason), "{stderr}");
        assert_eq!(output.status.code(), Some(1));
    }
    let output = client(&address, "0", TOKEN, Some(&own))
        .wait_with_output()
        .unwrap();
    assert_eq!(texts(&output).0, "1\n");
    assert_eq!(server.end(), Some(0));
}
