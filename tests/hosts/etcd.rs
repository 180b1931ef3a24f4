//! Hosts that agents register with a real etcd: three members on hosts of the lab, which crash and are cut off.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{Output, Run, Running, eventually, program, skip};
use crate::users::of;

const ENDPOINTS: &str = "ETCDCTL_ENDPOINTS";
pub(crate) const SERVER: &str = "/usr/bin/etcd";
const CLIENT: &str = "/usr/bin/etcdctl";

/// Members on the first three hosts.
const MEMBERS: usize = 3;

/// Time after which a host with a silent agent is certainly lost.
const LEASE: Duration = Duration::from_secs(20);

const DEADLINE: Duration = Duration::from_secs(300);

/// Waits until a lease that is not renewed has expired.
fn past(lease: Duration) {
    #[allow(
        clippy::disallowed_methods,
        reason = "that something lasts has no condition to wait for"
    )]
    std::thread::sleep(lease);
}

/// A cluster of hosts without agents; `None`, and the test is ignored, where there can be none.
#[track_caller]
fn hosts(builder: crate::cluster::Builder) -> Option<Cluster> {
    if let Some(missing) = [SERVER, CLIENT]
        .iter()
        .find(|path| !Path::new(path).exists())
    {
        skip(&format!("no {missing}: run scripts/setup"));
        return None;
    }
    builder.without_agents().start()
}

/// Endpoint at which a member serves clients: by its address, or by its name if it has a
/// certificate.
fn endpoint(member: usize, tls: bool) -> String {
    match tls {
        true => format!("https://node0{}:2379", member + 1),
        false => format!("http://10.99.0.{}:2379", member + 1),
    }
}

fn endpoints(tls: bool) -> String {
    let all: Vec<String> = (0..MEMBERS).map(|member| endpoint(member, tls)).collect();
    all.join(",")
}

/// Starts the members; with the certificates of their hosts, of which clients must have one too.
fn serve(cluster: &Cluster, tls: bool) -> Vec<Running> {
    let peer = |member: usize| format!("http://10.99.0.{}:2380", member + 1);
    let all: Vec<String> = (0..MEMBERS)
        .map(|member| format!("m{member}={}", peer(member)))
        .collect();
    let start = |member: usize| {
        let scheme = if tls { "https" } else { "http" };
        let client = format!("{scheme}://10.99.0.{}:2379", member + 1);
        let data = cluster.dir().join(format!("etcd{member}"));
        let mut words = vec![SERVER.to_owned()];
        for (option, value) in [
            ("--name", format!("m{member}")),
            ("--data-dir", data.display().to_string()),
            ("--listen-peer-urls", peer(member)),
            ("--initial-advertise-peer-urls", peer(member)),
            ("--listen-client-urls", client),
            ("--advertise-client-urls", endpoint(member, tls)),
            ("--initial-cluster", all.join(",")),
        ] {
            words.extend([option.to_owned(), value]);
        }
        if tls {
            let dir = cluster.certificates(member);
            let file = |name: &str| dir.join(name).display().to_string();
            words.push("--client-cert-auth".to_owned());
            words.extend(["--trusted-ca-file".to_owned(), file("ca.pem")]);
            words.extend(["--cert-file".to_owned(), file("cert.pem")]);
            words.extend(["--key-file".to_owned(), file("key.pem")]);
        }
        cluster.command(member, words).deadline(DEADLINE).start()
    };
    let members: Vec<Running> = (0..MEMBERS).map(start).collect();
    for member in &members {
        member.wait_for(Output::Stderr, "ready to serve client requests");
    }
    members
}

fn end(members: Vec<Running>) {
    for member in members {
        // By a polite signal, a member whose peers have just ended may not end for minutes.
        member.signal(Signal::KILL);
        member.finish();
    }
}

/// An agent that is registered so, by way of these members.
#[track_caller]
fn start_agent(cluster: &Cluster, host: usize, register: &str, endpoints: &str) {
    cluster.start_agent_with(host, &["--register", register], &[(ENDPOINTS, endpoints)]);
}

/// `wireup run` there, on these hosts.
fn run(cluster: &Cluster, host: usize, words: &[&str]) -> Run {
    let run = cluster.run(host, ["--hosts"]).more(words);
    run.deadline(DEADLINE).env(ENDPOINTS, endpoints(false))
}

/// Returns the output of etcdctl, connected to the first member.
fn etcdctl(cluster: &Cluster, words: &[&str]) -> String {
    let client = [CLIENT, "--command-timeout=60s"];
    let command = cluster.command(0, client.iter().chain(words));
    let command = command
        .env("ETCDCTL_API", "3")
        .env(ENDPOINTS, endpoint(0, false));
    command.run().expect(0).out()
}

/// The hosts that are registered now.
fn registered(cluster: &Cluster) -> Vec<String> {
    let keys = etcdctl(
        cluster,
        &["get", "--prefix", "/wireup/hosts/", "--keys-only"],
    );
    let keys = keys.lines().filter(|line| !line.is_empty());
    keys.map(|key| key.trim_start_matches("/wireup/hosts/").to_owned())
        .collect()
}

#[track_caller]
fn await_registered(cluster: &Cluster, hosts: &[&str]) {
    eventually("these hosts are registered", || {
        (registered(cluster) == hosts).then_some(())
    });
}

#[test]
fn eight_hosts_are_picked_by_their_labels() {
    let Some(cluster) = hosts(Cluster::builder(8)) else {
        return;
    };
    let Some(wireup) = program("pmi_wireup") else {
        return;
    };
    let wireup = cluster.copy(&wireup);
    let wireup = wireup.to_str().unwrap();
    let members = serve(&cluster, false);
    for host in 0..8 {
        let register = match host {
            0..4 => "etcd:gpu,rack=1:2",
            _ => "etcd:rack=2:2",
        };
        start_agent(&cluster, host, register, &endpoints(false));
    }
    let launch = run(&cluster, 0, &["etcd:", "--nodes", "8", "-n", "16", wireup]);
    let out = launch.run().expect(0).out();
    assert_eq!(out.matches("size=16").count(), 16, "{out}");

    // All that have the labels, with their slots or others.
    let names = |words: &[&str]| {
        let launch = run(&cluster, 7, words).more(["uname", "-n"]);
        launch.run().expect_quiet_success().sorted_lines()
    };
    assert_eq!(
        names(&["etcd:gpu:1"]),
        ["node01", "node02", "node03", "node04"]
    );
    assert_eq!(
        names(&["etcd:rack=2", "-n", "5"]),
        ["node05", "node05", "node06", "node06", "node07"]
    );
    let none = run(
        &cluster,
        0,
        &["etcd:gpu,rack=2", "--wait-hosts", "0", "true"],
    );
    none.run().expect(125).expect_one_line(&[
        "--hosts etcd:gpu,rack=2: no host found within 0 s: none of 8 registered agents has gpu,rack=2",
    ]);
    let unset = cluster.run(0, ["--hosts", "etcd:", "true"]).run();
    unset.expect(125).expect_one_line(&[
        "--hosts etcd:: no endpoints of etcd: set ETCDCTL_ENDPOINTS, or write endpoints",
    ]);
    let shown = [
        cluster.wireup().to_str().unwrap(),
        "ps",
        "--nodes",
        "--hosts",
        "etcd:gpu",
    ];
    let shown = cluster.command(0, shown).env(ENDPOINTS, endpoints(false));
    assert_eq!(
        shown
            .run()
            .expect_quiet_success()
            .out()
            .matches(" ready")
            .count(),
        4
    );

    // One that ends is gone at once, one that is killed after the time of its lease.
    cluster.agent(7).signal(Signal::TERM);
    assert!(cluster.agent_ended(7).success());
    let all = [
        "node01", "node02", "node03", "node04", "node05", "node06", "node07",
    ];
    await_registered(&cluster, &all);
    cluster.kill_agent(6);
    await_registered(&cluster, &all[..6]);
    end(members);
}

#[test]
fn later_registrations_are_awaited() {
    let Some(cluster) = hosts(Cluster::builder(3)) else {
        return;
    };
    // Neither etcd nor a host is there.
    let launch = run(
        &cluster,
        0,
        &["etcd:", "--nodes", "3", "--wait-hosts", "200"],
    );
    let launch = launch.more(["uname", "-n"]).start();
    launch.wait_for(
        Output::Stderr,
        "wireup: etcd:: cannot reach etcd (10.99.0.1:2379: Connection refused",
    );
    start_agent(&cluster, 0, "etcd::1", &endpoints(false));
    eventually("the agent tries to register", || {
        let log = cluster.log(0);
        log.contains("cannot register in etcd: cannot reach etcd")
            .then_some(())
    });
    let members = serve(&cluster, false);
    launch.wait_for(Output::Stderr, "etcd:: 1 of 3 hosts; waiting up to");
    for host in 1..3 {
        start_agent(&cluster, host, "etcd::1", &endpoints(false));
    }
    let outcome = launch.finish().expect(0);
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);

    let few = run(
        &cluster,
        0,
        &["etcd:", "--nodes", "4", "--wait-hosts", "1", "true"],
    );
    let err = few.run().expect(125).err();
    let last = "--hosts etcd:: only 3 of 4 hosts found within 1 s (node[01-03]); start more";
    assert!(err.contains(last), "{err}");

    // Another agent does not take the name of one that lives.
    let log = cluster.dir().join("second.log");
    let mut second = cluster.agent_command(1);
    second.args(["--listen", "0.0.0.0:7000", "--socket", "/tmp/second.sock"]);
    second.stderr(fs::File::create(&log).unwrap());
    let mut second = second.spawn().unwrap();
    eventually("the second agent waits", || {
        let log = fs::read_to_string(&log).unwrap();
        let message =
            "the agent at 10.99.0.2:7437 is registered as node02; waiting until it has ended";
        log.contains(message).then_some(())
    });
    let pid = rustix::process::Pid::from_child(&second);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(second.wait().unwrap().success());
    assert_eq!(registered(&cluster), ["node01", "node02", "node03"]);
    end(members);
}

#[test]
fn etcd_works_without_one_member_and_reports_lost_quorum() {
    let Some(cluster) = hosts(Cluster::builder(4)) else {
        return;
    };
    let mut members = serve(&cluster, false);
    for host in [0, 1, 3] {
        start_agent(&cluster, host, "etcd:stays:1", &endpoints(false));
    }
    let launch = |words: &[&str]| {
        let hosts = ["etcd:stays", "--nodes", "3"];
        run(&cluster, 3, &[&hosts[..], words].concat()).more(["uname", "-n"])
    };
    let names = ["node01", "node02", "node04"];
    assert_eq!(launch(&[]).run().expect(0).sorted_lines(), names);
    // A crash, which is not reported.
    cluster.lab().link_down(cluster.host(2)).unwrap();
    let crashed = members.remove(2);
    crashed.signal(Signal::KILL);
    crashed.finish();
    cluster.lab().crash(cluster.host(2)).unwrap();
    assert_eq!(launch(&[]).run().expect(0).sorted_lines(), names);

    cluster.lab().isolate(cluster.host(1)).unwrap();
    let waits = launch(&["--wait-hosts", "200"]).start();
    waits.wait_for(Output::Stderr, "etcd:stays: etcd has no quorum (");
    let err = launch(&["--wait-hosts", "8"]).run().expect(125).err();
    let last = err.lines().last().unwrap();
    assert!(
        last.starts_with(
            "wireup: --hosts etcd:stays: no host found within 8 s: etcd has no quorum ("
        ) && last.contains("it needs more than half of its members"),
        "{err}"
    );
    eventually("the agent notices", || {
        cluster
            .log(0)
            .contains("cannot register in etcd: ")
            .then_some(())
    });
    for host in [0, 3] {
        let (cut_off, other) = (cluster.host(1), cluster.host(host));
        cluster.lab().heal(cut_off, other).unwrap();
    }
    assert_eq!(waits.finish().expect(0).sorted_lines(), names);
    // The agents are still registered, or again.
    past(LEASE);
    assert_eq!(launch(&[]).run().expect(0).sorted_lines(), names);
    end(members);
}

#[test]
fn timed_out_registration_is_made_once_and_ends_with_agent() {
    let Some(cluster) = hosts(Cluster::builder(3)) else {
        return;
    };
    let members = serve(&cluster, false);
    let own = endpoint(1, false);
    let isolate = || cluster.lab().isolate(cluster.host(1)).unwrap();
    let heal = || cluster.lab().heal_all().unwrap();
    let failures = || cluster.log(1).matches("cannot register in etcd: ").count();
    for _ in 0..2 {
        // Its only member does not know yet that it is cut off: requests to it may be executed later.
        isolate();
        start_agent(&cluster, 1, "etcd:", &own);
        eventually("the call has timed out", || (failures() > 0).then_some(()));
        heal();
        await_registered(&cluster, &["node02"]);
        // No lease of an earlier attempt takes the key with it.
        past(LEASE);
        assert_eq!(registered(&cluster), ["node02"]);
        let leases = etcdctl(&cluster, &["lease", "list"]);
        assert!(leases.starts_with("found 1 leases"), "{leases}");

        cluster.agent(1).signal(Signal::TERM);
        assert!(cluster.agent_ended(1).success());
        assert_eq!(registered(&cluster), [""; 0]);
        let leases = etcdctl(&cluster, &["lease", "list"]);
        assert!(leases.starts_with("found 0 leases"), "{leases}");
    }
    // One that is cut off goes, and comes again.
    start_agent(&cluster, 1, "etcd:", &own);
    await_registered(&cluster, &["node02"]);
    isolate();
    await_registered(&cluster, &[]);
    heal();
    await_registered(&cluster, &["node02"]);
    end(members);
}

/// Files for Alice, and what etcdctl needs to be etcd's administrator.
fn secured(cluster: &Cluster) -> (PathBuf, Vec<(&'static str, String)>) {
    let config = cluster.dir().join("config");
    let dir = config.join("wireup");
    fs::create_dir_all(&dir).unwrap();
    let certificates = cluster.certificates(1);
    let file = |name: &str| certificates.join(name).display().to_string();
    let own = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chown(path, Some(ALICE), Some(ALICE)).unwrap();
    };
    let password = dir.join("password");
    fs::write(&password, "secret\n").unwrap();
    let quoted: Vec<String> = endpoints(true)
        .split(',')
        .map(|one| format!("\"{one}\""))
        .collect();
    let text = format!(
        "endpoints = [{}]\ncacert = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\nuser = \"wireup\"\n\
         password-file = \"{}\"\nprefix = \"/site\"\nttl = 3\n",
        quoted.join(", "),
        file("ca.pem"),
        file("cert.pem"),
        file("key.pem"),
        password.display(),
    );
    fs::write(dir.join("etcd.toml"), text).unwrap();
    for (path, mode) in [
        (&config, 0o755),
        (&dir, 0o755),
        (&password, 0o600),
        (&dir.join("etcd.toml"), 0o644),
    ] {
        own(path, mode);
    }
    let variables = vec![
        ("ETCDCTL_API", "3".to_owned()),
        (ENDPOINTS, endpoint(0, true)),
        ("ETCDCTL_CACERT", file("ca.pem")),
        ("ETCDCTL_CERT", file("cert.pem")),
        ("ETCDCTL_KEY", file("key.pem")),
    ];
    (config, variables)
}

#[test]
fn etcd_settings_file_configures_tls_and_users() {
    let Some(cluster) = hosts(Cluster::builder(3).agents_of(ALICE)) else {
        return;
    };
    let members = serve(&cluster, true);
    let (config, variables) = secured(&cluster);
    let script = "set -e
        etcdctl user add root:administrator
        etcdctl user grant-role root root
        etcdctl role add hosts
        etcdctl role grant-permission hosts readwrite --prefix=true /site/
        etcdctl user add wireup:secret
        etcdctl user grant-role wireup hosts
        etcdctl user add other:secret
        etcdctl auth enable";
    let mut command = cluster.command(0, ["sh", "-c", script]);
    for (name, value) in &variables {
        command = command.env(name, value);
    }
    command.run().expect(0);
    let config = config.to_str().unwrap();
    for host in 0..3 {
        cluster.start_agent_with(
            host,
            &["--register", "etcd:"],
            &[("XDG_CONFIG_HOME", config)],
        );
    }
    let launch = |words: &[&str]| {
        let run = cluster
            .run(0, ["--hosts", "etcd::1", "--nodes", "3"])
            .more(words);
        of(ALICE, run).env("XDG_CONFIG_HOME", config)
    };
    let outcome = launch(&["uname", "-n"]).run().expect(0);
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);

    let refused = |name: &str, value: &str, words: &[&str]| {
        let run = launch(&["--wait-hosts", "0", "true"]).env(name, value);
        run.run().expect(125).expect_one_line(words);
    };
    let password = [
        "etcd refused the request (node0",
        ":2379: ",
        "authentication failed, invalid user ID or password",
    ];
    refused("ETCDCTL_PASSWORD", "wrong", &password);
    refused(
        "ETCDCTL_USER",
        "other:secret",
        &[
            "etcd refused the request (node0",
            ":2379: permission denied)",
        ],
    );
    refused(
        "ETCDCTL_CACERT",
        "/etc/ssl/certs/ca-certificates.crt",
        &[
            "cannot reach etcd (node01:2379: ",
            "invalid peer certificate",
        ],
    );
    refused(
        "ETCDCTL_ENDPOINTS",
        "http://node01:2379",
        &["cannot reach etcd (node01:2379: "],
    );
    end(members);
}
