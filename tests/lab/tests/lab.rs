//! The lab itself: what its hosts are, what can happen to them, and that they leave nothing.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wireup_lab::{Host, Lab, Process};
use wireup_test_support::{DEADLINE, eventually, skip};

fn main() -> std::process::ExitCode {
    wireup_test_support::main()
}

/// Time without input after which a peer counts as silent. All here reply in less than a
/// millisecond.
const SILENCE: Duration = Duration::from_millis(150);

/// Whether labs are possible; the test is reported as ignored when not.
#[track_caller]
fn able() -> bool {
    let able = wireup_lab::available();
    if let Err(why) = &able {
        skip(&format!("a lab of hosts: {why}"));
    }
    able.is_ok()
}

/// A lab of `count` hosts; `None`, and the test ignored, where that is not possible.
#[track_caller]
fn lab(count: usize) -> Option<Lab> {
    able().then(|| Lab::new(count).unwrap())
}

/// Returns the output of a shell on the host.
#[track_caller]
fn shell(host: &Host, script: &str) -> String {
    let output = host.command("sh").args(["-c", script]).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {err}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A connection between two hosts, both ends of it.
#[track_caller]
fn connection(from: &Host, to: &Host, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.on_network(|| TcpListener::bind((address, 0))).unwrap();
    let listener = listener.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(address, port), DEADLINE);
    let near = from.on_network(connect).unwrap().unwrap();
    let far = listener.accept().unwrap().0;
    for end in [&near, &far] {
        end.set_read_timeout(Some(DEADLINE)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (near, far)
}

#[track_caller]
fn passes(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"x").unwrap();
    let mut byte = [0];
    to.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

#[track_caller]
fn is_silent(end: &mut TcpStream) {
    end.set_read_timeout(Some(SILENCE)).unwrap();
    let error = end.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    end.set_read_timeout(Some(DEADLINE)).unwrap();
}

/// The one process of a host, `sleep`, once it sleeps.
#[track_caller]
fn asleep(host: &Host) -> Process {
    eventually("it sleeps", || {
        let mut found = host.processes().into_iter();
        found.find(|p| p.name == "sleep" && p.state == 'S')
    })
}

/// Starts a command that sleeps on the host, and finds its process.
#[track_caller]
fn sleeper(host: &Host) -> (std::process::Child, Process) {
    let child = host.command("sleep").arg("1000").spawn().unwrap();
    (child, asleep(host))
}

#[test]
fn hosts_have_names_addresses_and_files_of_their_own() {
    let Some(lab) = lab(3) else { return };
    let machine = std::fs::read_to_string("/etc/hosts").unwrap();
    for host in lab.hosts() {
        let name = host.name();
        assert_eq!(shell(host, "uname -n"), name);
        assert_eq!(shell(host, "cat /etc/hostname"), name);
        let own = format!("{} {name}", host.address());
        assert!(shell(host, "cat /etc/hosts").contains(&own));
        let resolved = shell(host, "getent ahostsv4 node02");
        assert!(resolved.starts_with("10.99.0.2 "), "{resolved}");
        assert_eq!(shell(host, "ls /sys/class/net"), "eth0\nlo");
        let pid: u32 = shell(host, "echo $$").parse().unwrap();
        assert!(pid < 50, "{pid}");
        assert_eq!(shell(host, "cat /proc/1/comm"), "lab-host");
        assert_eq!(host.processes(), []);
        assert_eq!(
            shell(host, "for i in /tmp /dev/shm; do stat -c %a $i; done"),
            "1777\n1777"
        );
        shell(
            host,
            &format!("echo {name} | tee /tmp/f /run/f >/dev/shm/f"),
        );
    }
    for host in lab.hosts() {
        let files = ["/dev/shm/f", "/run/f", "/tmp/f"].map(PathBuf::from);
        assert_eq!(host.files(), files);
        let read = std::fs::read_to_string(host.path("/tmp/f")).unwrap();
        assert_eq!(read.trim(), host.name());
    }
    assert_eq!(std::fs::read_to_string("/etc/hosts").unwrap(), machine);
}

#[test]
fn hosts_have_no_way_out_of_their_lab() {
    let Some(lab) = lab(1) else { return };
    let outside = "192.0.2.1:9".parse().unwrap();
    let connect = || TcpStream::connect_timeout(&outside, DEADLINE);
    let error = lab.host(0).on_network(connect).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
}

#[test]
fn partition_drops_packets_and_heals() {
    let Some(lab) = lab(3) else { return };
    let [one, two, three] = lab.hosts() else {
        panic!()
    };
    for address in [two.address(), two.ipv6().into()] {
        let (mut near, mut far) = connection(one, two, address);
        passes(&mut near, &mut far);
        lab.partition(one, two).unwrap();
        near.write_all(b"1").unwrap();
        is_silent(&mut far);
        far.write_all(b"2").unwrap();
        is_silent(&mut near);
        // The third is not concerned.
        let (mut a, mut b) = connection(one, three, three.address());
        passes(&mut a, &mut b);
        let (mut a, mut b) = connection(two, three, three.address());
        passes(&mut a, &mut b);

        lab.heal(one, two).unwrap();
        let mut byte = [0];
        far.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"1", "sent again");
        near.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"2");
        passes(&mut far, &mut near);
    }
}

#[test]
fn isolated_host_reaches_no_other_until_healed() {
    let Some(lab) = lab(3) else { return };
    let [one, two, three] = lab.hosts() else {
        panic!()
    };
    lab.isolate(two).unwrap();
    for other in [one, three] {
        let target = SocketAddr::new(other.address(), 9);
        let connect = || TcpStream::connect_timeout(&target, SILENCE);
        let error = two.on_network(connect).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    let (mut a, mut b) = connection(one, three, three.address());
    passes(&mut a, &mut b);
    lab.heal_all().unwrap();
    let (mut a, mut b) = connection(two, three, three.address());
    passes(&mut a, &mut b);
}

#[test]
fn slow_network_delays_and_drops_until_reset() {
    let Some(lab) = lab(3) else { return };
    let [one, two, three] = lab.hosts() else {
        panic!()
    };
    let (mut near, mut far) = connection(one, two, two.address());
    let delay = Duration::from_millis(40);
    lab.slow_down(delay, 5).unwrap();
    for _ in 0..5 {
        let start = Instant::now();
        passes(&mut near, &mut far);
        assert!(start.elapsed() >= delay);
        let start = Instant::now();
        passes(&mut far, &mut near);
        assert!(start.elapsed() >= delay);
    }
    // More than fits in a frame, whose division and checksum senders leave to the interface, until some of it is lost.
    // Few are: after eight losses in a row the kernel sends again only after most of a minute.
    let sent: Vec<u8> = (0..300_000_u32).map(|i| (i / 7) as u8).collect();
    let mut received = vec![0; sent.len()];
    eventually("something is lost and sent again", || {
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_all(&sent).unwrap());
            far.read_exact(&mut received).unwrap();
        });
        assert!(sent == received);
        let retransmitted = shell(one, "awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp");
        (retransmitted != "0").then_some(())
    });
    // Both are known to the neighbours only by asking.
    let (mut a, mut b) = connection(two, three, three.ipv6().into());
    passes(&mut a, &mut b);
    lab.partition(one, two).unwrap();
    near.write_all(b"x").unwrap();
    is_silent(&mut far);
    lab.heal_all().unwrap();
    far.read_exact(&mut [0]).unwrap();
    lab.slow_down(Duration::ZERO, 0).unwrap();
    passes(&mut near, &mut far);
    passes(&mut far, &mut near);
    lab.crash(two).unwrap();
    is_silent(&mut near);
}

#[test]
fn pulled_cable_is_seen_by_host_and_can_be_plugged_in() {
    let Some(lab) = lab(2) else { return };
    let [one, two] = lab.hosts() else { panic!() };
    let (mut near, mut far) = connection(one, two, two.address());
    lab.link_down(two).unwrap();
    assert_eq!(shell(two, "cat /sys/class/net/eth0/carrier"), "0");
    near.write_all(b"x").unwrap();
    is_silent(&mut far);
    lab.link_up(two).unwrap();
    let mut byte = [0];
    far.read_exact(&mut byte).unwrap();
    assert_eq!(shell(two, "cat /sys/class/net/eth0/carrier"), "1");
}

#[test]
fn paused_host_stands_still_until_resumed() {
    let Some(lab) = lab(2) else { return };
    let [one, two] = lab.hosts() else { panic!() };
    let count = "i=0; while :; do i=$((i+1)); echo $i >/tmp/new; mv /tmp/new /tmp/count; done";
    let mut counting = one.command("sh").args(["-c", count]).spawn().unwrap();
    let (mut other, sleeping) = sleeper(two);
    let counted = || std::fs::read_to_string(one.path("/tmp/count")).ok();
    eventually("a count", counted);
    one.pause().unwrap();
    assert!(two.processes().contains(&sleeping), "not the other host");
    let stopped_at = counted();
    // The moment in which it would count on.
    shell(one, "sleep 0.1");
    assert_eq!(counted(), stopped_at);
    one.resume().unwrap();
    eventually("it counts on", || (counted() != stopped_at).then_some(()));
    for (host, child) in [(one, &mut counting), (two, &mut other)] {
        host.kill_all().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn killing_all_processes_closes_their_connections() {
    let Some(lab) = lab(2) else { return };
    let [one, two] = lab.hosts() else { panic!() };
    let serve = "import socket, time
s = socket.create_server(('', 700)); c = s.accept()[0]; c.send(b'x'); time.sleep(1000)";
    let mut server = two
        .command("/usr/bin/python3")
        .args(["-c", serve])
        .spawn()
        .unwrap();
    let address = SocketAddr::new(two.address(), 700);
    let mut near = eventually("it listens", || {
        let connect = || TcpStream::connect_timeout(&address, DEADLINE);
        one.on_network(connect).unwrap().ok()
    });
    near.read_exact(&mut [0]).unwrap();
    two.kill_all().unwrap();
    assert_eq!(near.read(&mut [0]).unwrap(), 0, "the end of the stream");
    assert!(two.processes().is_empty());
    server.wait().unwrap();
    assert_eq!(shell(two, "echo lives"), "lives");
}

#[test]
fn crashed_host_is_silent_and_accepts_no_command() {
    let Some(lab) = lab(2) else { return };
    let [one, two] = lab.hosts() else { panic!() };
    let serve = "import socket, time
s = socket.create_server(('', 700)); c = s.accept()[0]; c.send(b'x'); time.sleep(1000)";
    let mut server = two
        .command("/usr/bin/python3")
        .args(["-c", serve])
        .spawn()
        .unwrap();
    let address = SocketAddr::new(two.address(), 700);
    let mut near = eventually("it listens", || {
        let connect = || TcpStream::connect_timeout(&address, DEADLINE);
        one.on_network(connect).unwrap().ok()
    });
    near.read_exact(&mut [0]).unwrap();
    lab.crash(two).unwrap();
    is_silent(&mut near);
    assert!(two.has_crashed() && two.processes().is_empty());
    let error = two.command("true").status().unwrap_err().to_string();
    assert_eq!(error, "node02 has crashed");
    server.wait().unwrap();
}

#[test]
fn labs_do_not_disturb_each_other() {
    let (Some(first), Some(second)) = (lab(2), lab(2)) else {
        return;
    };
    // The same addresses; in the second no process listens there.
    let listener = TcpListener::bind("10.99.0.2:700");
    assert!(listener.is_err(), "not an address of the machine");
    let there = SocketAddr::new(first.host(1).address(), 700);
    let listening = first.host(1).on_network(|| TcpListener::bind(there));
    let _listening = listening.unwrap().unwrap();
    let connect = || TcpStream::connect_timeout(&there, DEADLINE);
    first.host(0).on_network(connect).unwrap().unwrap();
    let refused = second.host(0).on_network(connect).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    first.isolate(first.host(1)).unwrap();
    let (mut a, mut b) = connection(second.host(0), second.host(1), there.ip());
    shell(first.host(0), "touch /tmp/f; sleep 1000 >/dev/null 2>&1 &");
    assert!(second.host(0).files().is_empty());
    assert!(second.host(0).processes().is_empty());
    drop(first);
    passes(&mut a, &mut b);
}

#[test]
fn commands_of_other_user_run_as_that_user() {
    let Some(lab) = lab(1) else { return };
    let host = lab.host(0);
    let mut command = host.command("sh");
    command.args([
        "-c",
        "id -u; id -g; id -G; pwd; echo $TMPDIR$A; touch /tmp/f",
    ]);
    command.user(54321, 54322, &[54323]).current_dir("/tmp");
    let output = command.env("A", "a").output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(out, "54321\n54322\n54322 54323\n/tmp\na\n");
    let owner = std::fs::metadata(host.path("/tmp/f")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 54321);
    let error = host.command("true").current_dir("/none").status();
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn directory_below_tmp_can_be_shared() {
    if !able() {
        return;
    }
    let directory = tempfile::Builder::new()
        .tempdir_in("/tmp")
        .expect("a directory below /tmp");
    std::fs::write(directory.path().join("f"), "shared").unwrap();
    let builder = Lab::builder(2).share(directory.path()).share("/usr");
    let lab = builder.start().unwrap();
    let path = directory.path().join("f").display().to_string();
    for host in lab.hosts() {
        assert_eq!(
            shell(host, &format!("cat {path}; ls -A /tmp | wc -l")),
            "shared1"
        );
    }
    shell(
        lab.host(0),
        &format!("echo new >{path}; mkdir /tmp/d; touch /tmp/d/f"),
    );
    let left = ["/tmp/d", "/tmp/d/f"].map(PathBuf::from);
    assert_eq!(lab.host(0).files(), left, "what is shared is not left");
    assert_eq!(shell(lab.host(1), &format!("cat {path}")), "new");
}

#[test]
fn hosts_may_have_other_files_than_machine() {
    if !able() {
        return;
    }
    let known = "root:x:0:0::/root:/bin/sh\nalice:x:54321:54321::/tmp:/bin/sh\n";
    let lab = Lab::builder(1).file("/etc/passwd", known).start().unwrap();
    assert_eq!(shell(lab.host(0), "id -u alice"), "54321");
    let machine = std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(!machine.contains("54321"));
}

#[test]
fn leftover_processes_are_listed_and_end_with_lab() {
    let Some(lab) = lab(1) else { return };
    let host = lab.host(0);
    shell(host, "(setsid sleep 1000 >/dev/null 2>&1 &)");
    let left = asleep(host);
    assert_eq!(left.words, "sleep 1000");
    assert!(left.inner_pid < 20, "{left:?}");
    // An orphan that has ended is collected.
    shell(host, "(true &)");
    eventually("only the other is left", || {
        (host.processes() == [left.clone()]).then_some(())
    });
    let pid = left.pid;
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(lab);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn unfinished_commands_of_failed_test_do_not_block_lab_end() {
    let Some(lab) = lab(2) else { return };
    for host in lab.hosts() {
        std::mem::forget(host.command("sleep").arg("1000").spawn().unwrap());
    }
    lab.crash(lab.host(0)).unwrap();
    drop(lab);
}

#[test]
fn eight_hosts_start_at_once() {
    let Some(lab) = lab(8) else { return };
    for (index, host) in lab.hosts().iter().enumerate() {
        assert_eq!(shell(host, "uname -n"), format!("node0{}", index + 1));
    }
}

#[test]
fn lab_with_zero_or_too_many_hosts_is_refused() {
    for count in [0, 251] {
        let error = Lab::new(count).unwrap_err().to_string();
        assert_eq!(error, format!("a lab has 1 to 250 hosts, not {count}"));
    }
}

/// `lab` by hand, with its standard input and its output as lines.
fn by_hand() -> (std::process::Child, impl Iterator<Item = String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map(Result::unwrap))
}

#[test]
fn lab_runs_interactively() {
    if !able() {
        return;
    }
    let (mut child, lines) = by_hand();
    let connect = |to: &str| {
        format!(
            "/usr/bin/python3 -c \"import socket; socket.create_connection(('{to}', 700), 0.3); \
             print('connected')\" 2>&1 | tail -1"
        )
    };
    let script = format!(
        "node02 echo on $(uname -n)
node02 /usr/bin/python3 -c 'import socket, time; s = socket.create_server((str(), 700)); time.sleep(1000)' & while ! ss -ltn | grep -q :700; do :; done
ps node02
node01 {connect}
partition node01 node02
node01 {connect}
heal node01 node02
node01 {connect}
isolate node02
node01 {connect}
heal
pause node02
node02 ps -o state= -C python3
resume node02
node02 ps -o state= -C python3 | tr R S
down node02
node02 cat /sys/class/net/eth0/carrier
up node02
node02 cat /sys/class/net/eth0/carrier
node01 touch /tmp/f
files node01
kill node02
ps node02
crash node02
hosts
node02 true
node03 true
partition node01
",
        connect = connect("node02")
    );
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    let output: Vec<String> = lines.collect();
    let mut errors = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success(), "{errors}");
    let expected = [
        "node01 10.99.0.1 ",
        "node02 10.99.0.2 ",
        "on node02",
        " (python3) state ",
        "connected",
        "timed out",
        "connected",
        "timed out",
        "T",
        "S",
        "0",
        "1",
        "/tmp/f",
        "node01 10.99.0.1 ",
        " crashed",
    ];
    assert_eq!(output.len(), expected.len(), "{output:#?}\n{errors}");
    for (line, part) in output.iter().zip(expected) {
        assert!(line.contains(part), "no {part:?} in {output:#?}\n{errors}");
    }
    let expected = "lab: node02 has crashed
lab: no command or host \"node03\": try help
lab: no command or host \"partition\": try help
";
    assert_eq!(errors, expected);
}

#[test]
fn hosts_reach_each_other_as_with_ssh() {
    let Some(lab) = lab(2) else { return };
    let rsh = |words: &[&str]| {
        let mut command = lab.host(0).command(env!("CARGO_BIN_EXE_lab"));
        command.arg("rsh").args(words).env("GONE", "x");
        command.output().unwrap()
    };
    let unserved = rsh(&["node02", "true"]);
    assert_eq!(unserved.status.code(), Some(255));
    lab.with_remote_shell(|| {
        let script = "'echo $(uname -n)[$GONE]$HOME; cat; echo err >&2; exit 7'";
        let outcome = rsh(&["-q", "-x", "-l", "root", "node02", "eval", script]);
        assert_eq!(outcome.status.code(), Some(7));
        assert_eq!(outcome.stdout, b"node02[]/root\n");
        assert_eq!(outcome.stderr, b"err\n");
        let killed = rsh(&["node02", "kill -TERM $$"]);
        assert_eq!(killed.status.code(), Some(128 + 15));
        let unknown = rsh(&["node03", "true"]);
        assert_eq!(unknown.status.code(), Some(255));
        assert_eq!(unknown.stderr, b"lab: no host is called node03\n");

        // What it started ends with the caller.
        let mut call = lab.host(0).command(env!("CARGO_BIN_EXE_lab"));
        let mut call = call.args(["rsh", "node02", "sleep 1000"]).spawn().unwrap();
        asleep(lab.host(1));
        call.kill().unwrap();
        call.wait().unwrap();
        eventually("its command ends", || {
            lab.host(1).processes().is_empty().then_some(())
        });
    })
    .unwrap();
}

#[test]
fn killed_lab_owner_leaves_nothing() {
    if !able() {
        return;
    }
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let (mut child, mut lines) = by_hand();
    let hosts: Vec<String> = lines.by_ref().take(2).collect();
    let mut input = child.stdin.take().unwrap();
    // Both a child of the owner's and an orphan on the host.
    writeln!(
        input,
        "node01 setsid sleep 1000 & echo ready; exec sleep 1001"
    )
    .unwrap();
    assert_eq!(lines.next().unwrap(), "ready");
    let inits = hosts.iter().map(|line| line.rsplit(' ').next().unwrap());
    let namespaces: Vec<PathBuf> = inits
        .flat_map(|pid| ["net", "mnt"].map(|kind| format!("/proc/{pid}/ns/{kind}")))
        .map(|path| std::fs::read_link(path).unwrap())
        .collect();
    // Of living processes: the machine collects the ended ones when it likes.
    let inside = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let of = |path: PathBuf| {
            ["net", "mnt"].map(|kind| std::fs::read_link(path.join("ns").join(kind)).ok())
        };
        let all = entries.flat_map(|entry| of(entry.path())).flatten();
        all.filter(|namespace| namespaces.contains(namespace))
            .count()
    };
    assert!(inside() >= 8, "they run");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("all is gone", || (inside() == 0).then_some(()));
    assert_eq!(mounts(), before);
}
