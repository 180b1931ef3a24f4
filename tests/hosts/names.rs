//! Launches on different hosts, by agents of which each knows nothing of the other launch, that find each other by names outside of
//! wireup (`--names`): in a directory that the hosts share, and in servers on one of them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::slapd::{BASE, LOGIN, Slapd};
use crate::common::{Mpi, Outcome, Output, Run, Running, eventually, field, skip};
use crate::etcd::SERVER as ETCD;

const DEADLINE: Duration = Duration::from_secs(300);

/// The host with the servers, and the addresses that all hosts reach.
const SERVER: usize = 2;
const SERVER_ADDRESS: &str = "10.99.0.3";
const SERVER_NAME: &str = "node03";

/// Hosts of two launches: the index of that of the launcher, and the list of those of the ranks.
const PLACES: [(usize, &str); 2] = [(0, "node01:1,node02:1"), (2, "node03:1,node02:1")];

for_each_mpi!(mpich5 impi openmpi5: {
    launches_on_three_hosts_connect_by_names_in_files => |mpi| meet(mpi, files),
    launches_on_three_hosts_connect_by_names_in_etcd => |mpi| meet(mpi, etcd),
    launches_on_three_hosts_connect_by_names_in_directory => |mpi| meet(mpi, directory),
});

/// A store that the hosts have in common.
struct Store {
    variables: Vec<(&'static str, String)>,
    server: Option<Running>,
}

fn files(cluster: &Cluster) -> Option<Store> {
    let shared = cluster.dir().join("shared");
    fs::create_dir(&shared).unwrap();
    Some(Store {
        variables: vec![("WIREUP_NAMES", format!("file:{}", shared.display()))],
        server: None,
    })
}

#[track_caller]
fn etcd(cluster: &Cluster) -> Option<Store> {
    if !Path::new(ETCD).exists() {
        skip(&format!("no {ETCD}: run scripts/setup"));
        return None;
    }
    let url = format!("http://{SERVER_ADDRESS}:2379");
    let data = cluster.dir().join("etcd").display().to_string();
    let words = [ETCD, "--data-dir", &data, "--listen-client-urls", &url];
    let words = words.into_iter().chain(["--advertise-client-urls", &url]);
    let words = words.chain(["--listen-peer-urls", "http://127.0.0.1:0"]);
    let server = cluster.command(SERVER, words).deadline(DEADLINE).start();
    server.wait_for(Output::Stderr, "ready to serve client requests");
    Some(Store {
        variables: vec![("WIREUP_NAMES", format!("etcd:{SERVER_ADDRESS}:2379"))],
        server: Some(server),
    })
}

/// Over TLS, with the certificate of its host's agent, by a password.
#[track_caller]
fn directory(cluster: &Cluster) -> Option<Store> {
    let certificates = cluster.certificates(SERVER);
    let slapd = Slapd::new(cluster.dir(), Some(&certificates))?;
    let server = cluster.command(SERVER, slapd.words(&[format!("ldaps://{SERVER_ADDRESS}")]));
    let server = server.deadline(DEADLINE).start();
    eventually("the server accepts connections", || {
        std::os::unix::net::UnixStream::connect(slapd.socket()).ok()
    });
    let password = cluster.dir().join("password");
    fs::write(&password, format!("{}\n", LOGIN.1)).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let settings = cluster.dir().join("ldap.toml");
    let text = format!(
        "bind-dn = '{}'\npassword-file = '{}'\ncacert = '{}'\n",
        LOGIN.0,
        password.display(),
        certificates.join("ca.pem").display()
    );
    fs::write(&settings, text).unwrap();
    Some(Store {
        variables: vec![
            ("WIREUP_NAMES", format!("ldaps://{SERVER_NAME}/{BASE}")),
            ("WIREUP_LDAP_SETTINGS", settings.display().to_string()),
        ],
        server: Some(server),
    })
}

/// `launches` in this mode, started at one of the places.
fn launch(
    cluster: &Cluster,
    (mpi, store): (&Mpi, &Store),
    (host, list): (usize, &str),
    options: &[&str],
    mode: &str,
) -> Run {
    let run = cluster
        .run(host, ["--hosts", list, "-n", "2"])
        .more(options);
    let run = run.more([mpi.program("launches")]);
    let run = run.more([mode, "the service"]).deadline(DEADLINE);
    let run = mpi
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    let variables = store.variables.iter();
    variables.fold(run, |run, (name, value)| run.env(name, value))
}

fn meet(mpi: Mpi, store: impl Fn(&Cluster) -> Option<Store>) {
    let mpi = &mpi.with_dynamic_processes();
    // Open MPI connects by way of a name server that both launches know (docs/names.md).
    let Some(cluster) = Cluster::builder(3).names_at("node02").start() else {
        return;
    };
    let Some(store) = store(&cluster) else { return };
    let (first, second) = (PLACES[0], PLACES[1]);
    let both = (mpi, &store);
    let accepts = launch(&cluster, both, first, &[], "accept").start();
    let connects = launch(&cluster, both, second, &[], "connect").start();
    let got = |outcome: &Outcome, text: &str| {
        for line in outcome.by_rank("launches", 2) {
            assert_eq!(field(&line, "got"), Some(text), "{line}");
        }
    };
    for outcome in [accepts.finish(), connects.finish()] {
        got(&outcome.expect(0), "6");
    }

    // The launcher of the first is gone, and all of its processes.
    let leaves = |options: &[&str]| {
        launch(&cluster, both, first, options, "leave")
            .run()
            .expect(0)
    };
    let left = || launch(&cluster, both, second, &[], "left").run();
    leaves(&[]);
    let missing = left();
    assert_ne!(missing.code, 0, "{missing:?}");
    leaves(&["--names=keep"]);
    got(&left().expect(0), "left-behind");
    if let Some(server) = store.server {
        server.signal(Signal::KILL);
        server.finish();
    }
}

#[test]
fn connect_without_common_name_server_is_explained() {
    let Some(mpi) = crate::common::mpi("openmpi5") else {
        return;
    };
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let Some(store) = files(&cluster) else { return };
    let start =
        |host, list, mode| launch(&cluster, (&mpi, &store), (host, list), &[], mode).start();
    let accepts = start(0, "node01:2", "accept");
    let connects = start(1, "node02:2", "connect");
    for run in [accepts, connects] {
        run.wait_for(Output::Stderr, "of another launch for 10 s: PMIx");
        run.signal(Signal::TERM);
        run.finish().expect(143);
    }
}
