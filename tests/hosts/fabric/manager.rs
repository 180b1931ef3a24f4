//! The fabric manager of the tests: a real HTTP service (`tests/fabric/manager.py`), with TLS or without.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::cluster::Cluster;
use crate::common::{Outcome, eventually, repository};

/// A fabric manager on the network of a host.
pub(super) struct Manager {
    pub(super) child: Child,
    /// Directory of the manager: faults to make, its state, its certificate.
    pub(super) dir: PathBuf,
    pub(super) address: String,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Manager {
    pub(super) fn start(cluster: &Cluster, host: usize, token: Option<&str>) -> Self {
        let dir = cluster.dir().join("manager");
        fs::create_dir(&dir).unwrap();
        let address = SocketAddr::new(cluster.host(host).ipv4().into(), 0);
        Self::serve(cluster, host, address, dir, token)
    }

    /// Starts the manager again after its end, with the same state.
    pub(super) fn start_again(self, cluster: &Cluster, host: usize) -> Self {
        let address = self.address.strip_prefix("http://").unwrap();
        Self::serve(
            cluster,
            host,
            address.parse().unwrap(),
            self.dir.clone(),
            None,
        )
    }

    fn serve(
        cluster: &Cluster,
        host: usize,
        address: SocketAddr,
        dir: PathBuf,
        token: Option<&str>,
    ) -> Self {
        let listen = || TcpListener::bind(address).unwrap();
        let listener = cluster.host(host).on_network(listen).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let child = Command::new("python3")
            .arg(repository().join("tests/fabric/manager.py"))
            .arg(&dir)
            .args(token)
            .stdin(OwnedFd::from(listener))
            .spawn();
        let manager = Self {
            child: child.unwrap(),
            dir,
            address,
        };
        eventually("the manager serves", || {
            manager.dir.join("state.json").exists().then_some(())
        });
        manager
    }

    pub(super) fn option(&self) -> String {
        format!("--fabric=cxi={}", self.address)
    }

    pub(super) fn fail(&self, faults: &[[&str; 2]]) {
        let text = serde_json::to_string(faults).unwrap();
        fs::write(self.dir.join("faults.json"), text).unwrap();
    }

    pub(super) fn state(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.dir.join("state.json")).unwrap()).unwrap()
    }

    pub(super) fn services(&self) -> usize {
        self.state()["services"].as_object().unwrap().len()
    }

    pub(super) fn list(&self, what: &str) -> Vec<String> {
        let state = self.state();
        let list = state[what].as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    #[track_caller]
    pub(super) fn expect_revoked(&self) {
        eventually("the service is revoked", || {
            (self.services() == 0).then_some(())
        });
    }

    /// No key is in the messages of wireup.
    #[track_caller]
    pub(super) fn expect_hidden(&self, outcome: &Outcome) {
        for key in self.list("keys") {
            assert!(!outcome.err().contains(&key), "{outcome:?}");
        }
    }
}

/// Has OpenSSL make something in a directory.
#[track_caller]
fn openssl(dir: &Path, words: &str) {
    let mut command = Command::new("openssl");
    let output = command.current_dir(dir).args(words.split(' ')).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// Makes `NAME.pem` and `NAME.key`.
pub(super) fn make_authority(dir: &Path, name: &str) {
    let files = format!("-keyout {name}.key -out {name}.pem");
    openssl(
        dir,
        &format!("req -x509 {NEW_KEY} -subj /CN={name} -days 2 {files}"),
    );
}

/// Gives a manager a certificate of the authority `ca` for an address and that many days, and returns its address with
/// TLS.
pub(super) fn secure(manager: &Manager, address: &str, days: u32) -> String {
    let dir = &manager.dir;
    let name = format!("-subj /CN=manager -addext subjectAltName=IP:{address}");
    openssl(
        dir,
        &format!("req -new {NEW_KEY} {name} -keyout key.pem -out request.pem"),
    );
    let signed = "-CA ca.pem -CAkey ca.key -copy_extensions copyall -out cert.pem";
    openssl(
        dir,
        &format!("x509 -req -in request.pem -days {days} {signed}"),
    );
    let pair = ["key.pem", "cert.pem"].map(|file| fs::read_to_string(dir.join(file)).unwrap());
    fs::write(dir.join("tls.pem"), pair.concat()).unwrap();
    manager.address.replace("http:", "https:")
}
