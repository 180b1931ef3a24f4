//! `wireup doctor --hosts`: faults of one host among several, and of the network between them, are found and their hosts
//! named.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{OLDER_VERSION, copy_older_part, mpi, pmix, skip};

/// All findings of one run: check, hosts and what.
#[derive(Debug)]
pub(crate) struct Findings(Vec<(String, String, String)>);

impl Findings {
    /// Fails unless this check found this, on these hosts and no others.
    #[track_caller]
    pub(crate) fn expect(&self, check: &str, hosts: &str, words: &str) {
        let hit = self
            .0
            .iter()
            .any(|(name, on, what)| name == check && on == hosts && what.contains(words));
        assert!(hit, "{check} on {hosts}, {words}: {self:#?}");
    }

    #[track_caller]
    pub(crate) fn expect_none_of(&self, checks: &[&str]) {
        let found = self
            .0
            .iter()
            .find(|(name, ..)| checks.contains(&name.as_str()));
        assert_eq!(found, None);
    }
}

/// Checks that no host of a lab that is well fails.
const OF_THE_LAB: [&str; 17] = [
    "agent",
    "agent-version",
    "answer",
    "wireup-version",
    "machine",
    "uid",
    "clock",
    "names",
    "names-back",
    "firewall",
    "mtu",
    "same-address",
    "interfaces",
    "own-name",
    "loopback",
    "program-build",
    "libpmix-version",
];

pub(crate) fn doctor(cluster: &Cluster, hosts: &str, words: &[&str]) -> (i32, Findings) {
    let wireup = cluster.wireup().to_str().unwrap();
    let run = cluster.command(0, [wireup, "doctor", "--json", "--hosts", hosts]);
    let outcome = run.more(words).run();
    let report: Value =
        serde_json::from_str(&outcome.out()).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    let findings = report["findings"].as_array().unwrap().iter().map(|it| {
        let hosts = it["hosts"].as_array().unwrap().iter();
        let hosts: Vec<&str> = hosts.map(|host| host.as_str().unwrap()).collect();
        let text = |key: &str| it[key].as_str().unwrap().to_owned();
        (text("check"), hosts.join(","), text("what"))
    });
    (outcome.code, Findings(findings.collect()))
}

#[track_caller]
pub(crate) fn on(cluster: &Cluster, host: usize, script: &str) {
    let mut shell = cluster.host(host).command("sh");
    let output = shell.args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

/// Lets no connection of MPIs reach or leave a host: both directions, since each side of Open MPI tries the other. The port
/// of agents stays open.
pub(crate) fn raise_firewall(cluster: &Cluster, host: usize) {
    on(
        cluster,
        host,
        "for ports in 1024:7000 8000:65535; do for table in iptables ip6tables; do \
           $table -A INPUT -i eth0 -p tcp --syn --dport $ports -j REJECT; \
           $table -A OUTPUT -o eth0 -p tcp --syn --dport $ports -j REJECT; \
         done; done",
    );
}

pub(crate) fn drop_firewall(cluster: &Cluster, host: usize) {
    on(cluster, host, "iptables -F; ip6tables -F");
}

#[test]
fn network_faults_are_found_between_affected_hosts() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let all = "node[01-04]";
    let look = || doctor(&cluster, all, &["--ppn", "1"]).1;
    look().expect_none_of(&OF_THE_LAB);

    let (second, third) = (cluster.host(1), cluster.host(2));
    cluster.lab().cut(second, third).unwrap();
    look().expect("firewall", "node02", "no connection to node03");
    cluster.lab().heal_all().unwrap();

    // The agents' port stays open.
    on(
        &cluster,
        3,
        "iptables -A INPUT -i eth0 -p tcp --syn --dport 32768:65535 -j DROP",
    );
    look().expect("firewall", "node03", "no connection to node04");
    on(&cluster, 3, "iptables -F INPUT");

    on(&cluster, 1, "ip link set eth0 mtu 1400");
    look().expect("mtu", "node02", "an MTU of 1400");
    on(&cluster, 1, "ip link set eth0 mtu 1500");

    for host in [1, 2] {
        let bridge = "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up";
        on(&cluster, host, bridge);
    }
    look().expect("interfaces", "node02,node03", "docker0");
    // A launch that fails names it, unless the user has chosen the interface.
    if let Some(mpi) = mpi("mpich5") {
        let shared = "172.17.0.1 of docker0 is an address of node02 and of node03: ";
        for (options, count) in [(&[][..], 1), (&["-x", "FI_TCP_IFACE=eth0"][..], 0)] {
            let run = cluster.run(0, ["--hosts", "node02,node03", "-n", "2"]);
            let run = run.more(options).more([mpi.program("exitcode")]);
            let stderr = run.more(["1", "finalized", "3"]).run().expect(3).err();
            let lines = stderr.lines().filter(|line| line.contains(shared));
            assert_eq!(lines.count(), count, "{options:?}: {stderr}");
        }
        // Ranks that poll until the timeout are named by no line before.
        let run = cluster.run(0, ["--hosts", "node02,node03", "-n", "2", "--timeout", "8"]);
        let run = run.more([mpi.program("hang_recv")]).more(["1"]);
        let stderr = run.run().expect(124).err();
        let lines = stderr.lines().filter(|line| line.contains(shared));
        assert_eq!(lines.count(), 1, "{stderr}");
        let run = cluster.run(0, ["--hosts", "node02,node03", "-n", "2"]);
        let stderr = run.more([mpi.program("hello")]).run().expect(0).err();
        assert!(!stderr.contains(shared), "{stderr}");
    }
    for host in [1, 2] {
        on(
            &cluster,
            host,
            "ip link del docker0 && ip link add net1 type bridge && ip addr add 10.99.0.1/24 dev net1 && ip link set net1 up",
        );
    }
    look().expect("same-address", "node02,node03", "10.99.0.1 of net1");
    for host in [1, 2] {
        on(&cluster, host, "ip link del net1");
    }

    let file = second.path("/etc/hosts");
    let names = fs::read_to_string(&file).unwrap();
    let address = third.address().to_string();
    fs::write(&file, names.replace(&address, "10.254.254.254")).unwrap();
    look().expect("names", "node02", "node03 resolves to 10.254.254.254");
    let without: Vec<&str> = names
        .lines()
        .filter(|line| !line.contains("node03"))
        .collect();
    fs::write(&file, without.join("\n") + "\n").unwrap();
    look().expect("names", "node02", "no address for node03");
    let renamed = format!("{address} other node03\n{}\n", without.join("\n"));
    fs::write(&file, renamed).unwrap();
    look().expect("names-back", "node02", "has the name other");
    let without = names.lines().filter(|line| !line.contains("node02"));
    let without: Vec<&str> = without.collect();
    let own = format!("127.0.1.1 node02\n{}\n", without.join("\n"));
    fs::write(&file, own).unwrap();
    look().expect("own-name", "node02", "resolves to the loopback");
    fs::write(&file, &names).unwrap();

    cluster.kill_agent(3);
    let (code, findings) = doctor(&cluster, all, &["--ppn", "1"]);
    findings.expect("agent", "node04", "Connection refused");
    findings.expect_none_of(&["answer", "firewall", "names"]);
    assert_eq!(code, 1);
    cluster.start_agent(3);
    look().expect_none_of(&OF_THE_LAB);
}

/// Has a host execute this in place of wireup, which is `$REAL`; until it is undone.
fn replaced(cluster: &Cluster, host: usize, line: &str) {
    let real = cluster.dir().join("real");
    if !real.exists() {
        fs::copy(cluster.wireup(), &real).unwrap();
    }
    let script = cluster.dir().join("replacement");
    fs::write(
        &script,
        format!("#!/bin/sh\nREAL={}\n{line}\n", real.display()),
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (script, wireup) = (script.display(), cluster.wireup().display());
    on(cluster, host, &format!("mount -n --bind {script} {wireup}"));
}

fn restored(cluster: &Cluster, host: usize) {
    on(
        cluster,
        host,
        &format!("umount -n {}", cluster.wireup().display()),
    );
}

/// A library that has the clock of what it is loaded into an hour ahead.
const AHEAD: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec += 3600;
    return result;
}
";

fn library(dir: &Path) -> std::path::PathBuf {
    let (source, library) = (dir.join("ahead.c"), dir.join("ahead.so"));
    fs::write(&source, AHEAD).unwrap();
    let mut cc = Command::new("cc");
    let status = cc
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(status.unwrap().success());
    library
}

#[test]
fn deviations_of_one_host_are_found_on_that_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let all = "node[01-03]";
    let look = |words: &[&str]| doctor(&cluster, all, words).1;
    let app = "/tmp/app";
    let install = |host: usize, text: &str| {
        let path = cluster.host(host).path(app);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    (0..3).for_each(|host| cluster.excuse(host));
    (0..3).for_each(|host| install(host, "#!/bin/sh\nexit 0\n"));
    look(&["--ppn", "1", app]).expect_none_of(&OF_THE_LAB);
    install(1, "#!/bin/sh\nexit 1\n");
    look(&[app]).expect("program-build", "node02", "another build of /tmp/app");
    fs::remove_file(cluster.host(1).path(app)).unwrap();
    look(&[app]).expect("program", "node02", "/tmp/app does not exist");

    on(&cluster, 1, "mount -n -o remount,size=8m /dev/shm");
    look(&["--ppn", "4"]).expect("shm", "node02", "MB free of 8 MB");
    on(&cluster, 2, "mount -n -o remount,size=8m /dev/shm");
    look(&["--ppn", "4"]).expect("shm", "node02,node03", "MB free of 8 MB");

    let passwd = cluster.host(1).path("/etc/passwd");
    let accounts = fs::read_to_string(&passwd).unwrap();
    fs::write(&passwd, accounts.replace("root:x:0:", "toor:x:0:")).unwrap();
    look(&[]).expect("uid", "node02", "user number 0 is toor, on the others root");
    fs::write(&passwd, accounts).unwrap();

    replaced(
        &cluster,
        1,
        "\"$REAL\" \"$@\" | sed -u 's/\"wireup\":\"[^\"]*\"/\"wireup\":\"9.9.9\"/'",
    );
    look(&[]).expect("wireup-version", "node02", "wireup 9.9.9, on the others");
    restored(&cluster, 1);
    replaced(&cluster, 1, "exec setarch i686 \"$REAL\" \"$@\"");
    look(&[]).expect("machine", "node02", "a processor i686, on the others");
    restored(&cluster, 1);
    replaced(&cluster, 1, "exit 3");
    look(&[]).expect("answer", "node02", "ended with status 3");
    restored(&cluster, 1);
    let library = library(cluster.dir());
    replaced(
        &cluster,
        1,
        &format!("LD_PRELOAD={} exec \"$REAL\" \"$@\"", library.display()),
    );
    look(&[]).expect("clock", "node02", "60 minutes ahead of");
    restored(&cluster, 1);
    if let Some(newer) = pmix("pmix5") {
        replaced(
            &cluster,
            1,
            &format!("WIREUP_LIBPMIX={} exec \"$REAL\" \"$@\"", newer.path()),
        );
        look(&[]).expect("libpmix-version", "node02", "on the others");
        restored(&cluster, 1);
    }
    if let Some(mpi) = mpi("openmpi5") {
        let hello = mpi.program("hello");
        let hello = hello.to_str().unwrap();
        let (_, well) = doctor(&cluster, all, &[hello]);
        well.expect_none_of(&["mpi-build", "program-build", "program", "libraries"]);
        let library =
            "$(readlink -f $(ldd $0 | sed -n 's/.*libmpi[.]so[^ ]* => \\([^ ]*\\) .*/\\1/p'))";
        let copy = format!(
            "library={library}; cp $library /tmp/libmpi; echo >>/tmp/libmpi; mount -n --bind /tmp/libmpi $library"
        );
        let mut shell = cluster.host(1).command("sh");
        let output = shell.args(["-c", &copy, hello]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        look(&[hello]).expect("mpi-build", "node02", "libmpi");
    }
    for host in 0..3 {
        on(
            &cluster,
            host,
            "umount -n $(sed -n 's/^[^ ]* \\([^ ]*libmpi[^ ]*\\) .*/\\1/p' /proc/mounts) 2>/dev/null; rm -f /tmp/app /tmp/libmpi",
        );
        cluster.expect_clean(host);
    }
}

#[test]
fn agent_not_restarted_after_upgrade_is_found_on_its_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let check = || doctor(&cluster, "node[01-03]", &["--ppn", "1"]);
    let agent = cluster.wireup().with_file_name("wireup-agent");
    let older = cluster.dir().join("older-agent");
    copy_older_part(&agent, &older);
    let (agent, older) = (agent.display(), older.display());
    cluster.kill_agent(1);
    on(&cluster, 1, &format!("mount -n --bind {older} {agent}"));
    cluster.start_agent(1);
    let own = env!("CARGO_PKG_VERSION");
    let words = format!("the agent is {OLDER_VERSION}, on the others {own}");
    let (code, found) = check();
    assert_eq!(code, 1);
    found.expect("agent-version", "node02", &words);
    let words_of_part = format!("{agent} is {OLDER_VERSION}, but wireup is {own}");
    found.expect("parts", "node02", &words_of_part);

    on(&cluster, 1, &format!("umount -n -l {agent}"));
    let (code, found) = check();
    assert_eq!(code, 1);
    found.expect("agent-version", "node02", &words);
    found.expect_none_of(&["parts"]);
    // Its link version is the launcher's.
    let run = cluster.run(0, ["--hosts", "node01,node02", "-n", "2", "true"]);
    run.run().expect_quiet_success();

    cluster.kill_agent(1);
    cluster.start_agent(1);
    check().1.expect_none_of(&OF_THE_LAB);
}

#[test]
fn doctor_ranks_exchange_messages_unless_firewall_blocks_them() {
    let default = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid().as_raw());
    let directory = std::env::var("WIREUP_MPI_DIR").unwrap_or_else(|_| default());
    let compiler = format!("{directory}/openmpi5/bin/mpicc");
    if !Path::new(&compiler).exists() {
        return skip("messages between hosts: scripts/setup");
    }
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let words = ["--ppn", "1", "--run", "--mpicc", &compiler];
    let look = || doctor(&cluster, "node[01-04]", &words).1;
    // On a busy machine some pair may be slow, which is no failure.
    let failed = |(check, _, what): &&(String, String, String)| {
        check == "ping-pong" && what.starts_with("no messages with")
    };
    let well = look();
    assert_eq!(well.0.iter().find(failed), None);
    raise_firewall(&cluster, 3);
    let found = look();
    let of_fourth = |it: &&(String, String, String)| {
        failed(it) && (it.1.contains("node04") || it.2.contains("node04"))
    };
    assert!(found.0.iter().any(|it| of_fourth(&it)), "{found:#?}");
    drop_firewall(&cluster, 3);
}
