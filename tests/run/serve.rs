//! Ranks whose processes a shell starts by hand, with the variables that `wireup serve` writes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use rustix::process::{Signal, geteuid};
use serde_json::Value;

use crate::common::{Outcome, Output, Run, Running, eventually, mpis, pmi2, skip, wireup};

/// Starts a client for each rank as soon as its variables are there; fails if one fails, or if `wireup serve` does.
const BY_HAND: &str = r#"
wireup=$1 ranks=$2 options=$3; shift 3
"$wireup" serve -n $ranks --env-dir env $options --no-config --oversubscribe & serving=$!
rank=0
while [ $rank -lt $ranks ]; do
  until [ -e env/rank-$rank.env ]; do
    kill -0 $serving 2>/dev/null || { echo "wireup serve has ended" >&2; exit 99; }
    sleep 0.05
  done
  env $(cat env/rank-$rank.env) "$@" & clients="$clients $!"
  rank=$((rank + 1))
done
code=0
for client in $clients; do wait $client || code=$?; done
wait $serving || code=100
exit $code
"#;

pub(crate) fn by_hand(ranks: u32, options: &str, client: &[OsString]) -> Run {
    let words = ["sh", "-c", BY_HAND, "sh"].map(OsString::from);
    let values = [wireup().into(), ranks.to_string().into(), options.into()];
    let words = words.into_iter().chain(values);
    Run::command(words.chain(client.iter().cloned()))
}

#[test]
fn every_mpi_runs_as_processes_started_by_hand() {
    for mpi in mpis() {
        let sidecar = match &mpi.libpmix {
            Some(libpmix) => format!("--libpmix {}", libpmix.display()),
            None => String::new(),
        };
        for nodes in ["", "--virtual-nodes 2"] {
            let program = mpi.dir.join("allreduce").into_os_string();
            let mut run = by_hand(3, &format!("{sidecar} {nodes}"), &[program]);
            for (name, value) in &mpi.env {
                run = run.env(name, value);
            }
            let outcome = run.run().expect(0);
            let expected = [
                "allreduce rank=0 size=3 sum=6",
                "allreduce rank=1 size=3 sum=6",
                "allreduce rank=2 size=3 sum=6",
            ];
            assert_eq!(outcome.sorted_lines(), expected, "{} {outcome:?}", mpi.name);
        }
    }
}

#[test]
fn port_on_all_interfaces_of_virtual_nodes_has_machine_name() {
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy().into_owned();
    for mpi in mpis().into_iter().filter(|mpi| mpi.libpmix.is_none()) {
        let listen = "--listen 0.0.0.0 --pmi-port-auth none";
        let program = mpi.dir.join("allreduce");
        let script = ["sh", "-c", r#"echo "port ${PMI_PORT%:*}"; exec "$0""#];
        let client = script.map(OsString::from).into_iter();
        let client: Vec<_> = client.chain([program.into_os_string()]).collect();
        let mut run = by_hand(
            2,
            &format!("{listen} --virtual-nodes 2 --pmi pmi1"),
            &client,
        );
        for (name, value) in &mpi.env {
            run = run.env(name, value);
        }
        let outcome = run.run().expect(0);
        let port = format!("port {machine}");
        let expected = [
            "allreduce rank=0 size=2 sum=3",
            "allreduce rank=1 size=2 sum=3",
            &port,
            &port,
        ];
        assert_eq!(outcome.sorted_lines(), expected, "{} {outcome:?}", mpi.name);
    }
}

#[test]
fn intel_mpi_over_slurms_libpmi2_is_started_by_hand() {
    let Some(library) = pmi2().map(|pmi2| pmi2.library) else {
        return;
    };
    for mpi in mpis().into_iter().filter(|mpi| mpi.name == "impi") {
        let mut run = by_hand(2, "--pmi pmi2", &[mpi.dir.join("allreduce").into()]);
        for (name, value) in &mpi.env {
            run = run.env(name, value);
        }
        let outcome = run.env("I_MPI_PMI_LIBRARY", &library).run().expect(0);
        assert_eq!(outcome.sorted_lines().len(), 2, "{outcome:?}");
    }
}

/// Starts two clients for rank 0 and, when one of them has been refused, one for rank 1.
const TWICE: &str = r#"
wireup=$1 libpmix=$2; shift 2
"$wireup" serve -n 2 --env-dir env --pmi pmix --libpmix "$libpmix" --no-config --oversubscribe 2>errors & serving=$!
until [ -e env/rank-0.env ] && [ -e env/rank-1.env ]; do
  kill -0 $serving 2>/dev/null || { cat errors >&2; exit 99; }
  sleep 0.05
done
for client in 1 2; do env $(cat env/rank-0.env) "$@" >said.$client 2>&1 & done
until grep -q 'refused: the rank already has a client' errors; do
  kill -0 $serving 2>/dev/null || { cat errors said.* >&2; exit 98; }
  sleep 0.05
done
env $(cat env/rank-1.env) "$@"
wait $serving || { cat errors said.* >&2; exit 97; }
# A refused client of Open MPI runs on as a program without a launcher. Its shared memory goes when it ends, its session stays.
wait
grep -h 'rank=0 size=2' said.*
rm -rf "$TMPDIR"/ompi.*
"#;

#[test]
fn second_client_of_rank_is_refused_over_pmix() {
    for mpi in mpis().into_iter().filter(|mpi| mpi.libpmix.is_some()) {
        let libpmix = mpi.libpmix.clone().unwrap_or_default();
        let words = ["sh", "-c", TWICE, "sh"].map(OsString::from);
        let program = mpi.dir.join("allreduce");
        let values = [wireup().into(), libpmix.into(), program.into_os_string()];
        let mut run = Run::command(words.into_iter().chain(values));
        for (name, value) in &mpi.env {
            run = run.env(name, value);
        }
        // The refused copy has the rank's name, and so would its shared memory.
        let outcome = run.env("OMPI_MCA_btl", "self,tcp").run().expect(0);
        let expected = [
            "allreduce rank=0 size=2 sum=3",
            "allreduce rank=1 size=2 sum=3",
        ];
        assert_eq!(outcome.sorted_lines(), expected, "{} {outcome:?}", mpi.name);
    }
}

/// Script that starts the clients when silent connections have taken all places at the PMIx port of rank 1, and as many
/// again have been refused.
const SILENT: &str = r#"
wireup=$1 libpmix=$2; shift 2
"$wireup" serve -n 2 --env-dir env --pmi pmix --libpmix "$libpmix" --no-config --oversubscribe 2>errors & serving=$!
until [ -e env/rank-0.env ] && [ -e env/rank-1.env ]; do
  kill -0 $serving 2>/dev/null || { cat errors >&2; exit 99; }
  sleep 0.05
done
port=$(sed -n 's|^PMIX_SERVER_URI.*tcp4://127\.0\.0\.1:\([0-9]*\).*|\1|p' env/rank-1.env | head -n 1)
for silent in $(seq 40); do exec {connection}<>/dev/tcp/127.0.0.1/$port || exit 98; done
until grep -q 'was replaced by a newer connection' errors; do
  kill -0 $serving 2>/dev/null || { cat errors >&2; exit 97; }
  sleep 0.05
done
env $(cat env/rank-0.env) "$@" & first=$!
env $(cat env/rank-1.env) "$@" || exit
wait $first || exit
wait $serving || { cat errors >&2; exit 96; }
"#;

#[test]
fn silent_connections_do_not_block_pmix_client() {
    let mpi = mpis().into_iter().find(|mpi| mpi.libpmix.is_some());
    let Some(mpi) = mpi else {
        return;
    };
    let words = ["bash", "-c", SILENT, "bash"].map(OsString::from);
    let libpmix = mpi.libpmix.clone().unwrap_or_default();
    let program = mpi.dir.join("allreduce");
    let values = [wireup().into(), libpmix.into(), program.into_os_string()];
    let mut run = Run::command(words.into_iter().chain(values));
    for (name, value) in &mpi.env {
        run = run.env(name, value);
    }
    let outcome = run.run().expect(0);
    let expected = [
        "allreduce rank=0 size=2 sum=3",
        "allreduce rank=1 size=2 sum=3",
    ];
    assert_eq!(outcome.sorted_lines(), expected, "{} {outcome:?}", mpi.name);
}

/// Two ranks whose processes the test starts, and connections to the port of rank 1.
struct Pmi1Launch {
    running: Running,
    ports: [String; 2],
}

impl Pmi1Launch {
    fn new(options: &[&str]) -> Self {
        let words = ["serve", "-n", "2", "--json"].iter().chain(options);
        let words = words.chain(&["--no-config", "--pmi", "pmi1", "--oversubscribe"]);
        let words = words.map(OsString::from);
        let running = Run::command(std::iter::once(wireup().into()).chain(words)).start();
        running.wait_for_many(Output::Stdout, "PMI_PORT", 2);
        let text = String::from_utf8(running.so_far(Output::Stdout)).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut ports = [String::new(), String::new()];
        for line in lines {
            let rank = line["rank"].as_u64().unwrap();
            let env = line["env"].as_object().unwrap();
            assert_eq!(env["PMI_ID"], rank.to_string());
            for absent in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"] {
                assert!(!env.contains_key(absent), "{line}");
            }
            let port = env["PMI_PORT"].as_str().unwrap();
            ports[rank as usize] = port.rsplit(':').next().unwrap().to_owned();
        }
        Self { running, ports }
    }

    /// Returns the reply of rank 1's port to a text, until it closes the connection or has sent this
    /// number of bytes.
    fn says(&self, text: &str, enough: usize, under: &[&str]) -> String {
        let script = r#"exec 3<>/dev/tcp/127.0.0.1/$0; printf "$1" >&3; timeout 60 head -c $2 <&3"#;
        let own = [
            "bash",
            "-c",
            script,
            &self.ports[1],
            text,
            &enough.to_string(),
        ]
        .map(str::to_owned);
        let words: Vec<String> = under
            .iter()
            .map(|word| (*word).to_owned())
            .chain(own)
            .collect();
        let mut command = Command::new(&words[0]);
        let output = command
            .args(&words[1..])
            .stderr(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn wait_for_message(&self, words: &str) {
        self.running.wait_for(Output::Stderr, words);
    }

    fn end(self) -> Outcome {
        self.running.signal(Signal::TERM);
        self.running.finish().expect(143)
    }
}

const INIT_2: &str = r"cmd=init pmi_version=2 pmi_subversion=0\n";
const ACK: &str = "cmd=initack rc=0\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n";

#[test]
fn foreign_client_is_refused_with_reason_and_rank_still_waits() {
    let launch = Pmi1Launch::new(&[]);
    let refusal = "cmd=initack rc=-1 msg=refused\n";
    assert_eq!(launch.says(r"cmd=initack pmiid=0\n", 1000, &[]), refusal);
    launch
        .wait_for_message("refused: wrong rank: the client claims rank 0, this port serves rank 1");
    assert_eq!(launch.says(r"GET / HTTP/1.1\r\n", 1000, &[]), refusal);
    launch.wait_for_message("refused: request does not start with cmd= or mcmd=");
    let long = "x".repeat(6000);
    launch.says(&long, 1000, &[]);
    launch.wait_for_message("no start of PMI");
    let other = launch.says(&format!("{INIT_2}    23cmd=fullinit;pmirank=0;"), 1000, &[]);
    assert!(
        other.contains("cmd=fullinit-response;rc=14;errmsg="),
        "{other}"
    );
    if geteuid().is_root() {
        let nobody = ["setpriv", "--reuid", "65534", "--clear-groups"];
        assert_eq!(launch.says(r"cmd=initack pmiid=1\n", 1000, &nobody), "");
        launch.wait_for_message("refused: the client's process belongs to uid 65534");
    } else {
        skip("that another user is refused: needs root");
    }
    // After all that the client itself is admitted, and then no other.
    let start = r"cmd=initack pmiid=1\ncmd=init pmi_version=1 pmi_subversion=1\n";
    let answer = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2\n";
    let whole = ACK.len() + answer.len();
    let mut client = Command::new("bash");
    let script =
        r#"exec 3<>/dev/tcp/127.0.0.1/$0; printf "$1" >&3; head -c $2 <&3 >&2; exec cat <&3"#;
    client.args(["-c", script, &launch.ports[1], start, &whole.to_string()]);
    let mut client = client.stderr(Stdio::piped()).spawn().unwrap();
    let mut reply = vec![0; whole];
    std::io::Read::read_exact(client.stderr.as_mut().unwrap(), &mut reply).unwrap();
    assert_eq!(String::from_utf8(reply).unwrap(), format!("{ACK}{answer}"));
    assert_eq!(launch.says(r"cmd=initack pmiid=1\n", 1000, &[]), "");
    launch.wait_for_message("refused: the rank already has a client");
    // The client has not finalized: that fails the job.
    client.kill().unwrap();
    client.wait().unwrap();
    let outcome = launch.running.finish().expect(1);
    let ended = outcome.err();
    assert!(
        ended.contains("between MPI_Init and MPI_Finalize"),
        "{outcome:?}"
    );
}

#[test]
fn silent_connections_do_not_block_client() {
    let launch = Pmi1Launch::new(&[]);
    let address = format!("127.0.0.1:{}", launch.ports[1]);
    let silent: Vec<_> = (0..100)
        .map(|_| std::net::TcpStream::connect(&address).unwrap())
        .collect();
    launch.wait_for_message(
        "refused: the client has not identified itself, and was replaced by a newer connection",
    );
    // While 8 of them wait, and after a flood of which the lines are bounded.
    assert_eq!(launch.says(r"cmd=initack pmiid=1\n", ACK.len(), &[]), ACK);
    drop(silent);
    let outcome = launch.end();
    let lines = outcome.err().matches(" refused: ").count();
    assert_eq!(lines, 20, "{outcome:?}");
    assert!(
        outcome
            .err()
            .contains("further refusals are counted and not printed")
    );
}

#[test]
fn interface_reachable_by_others_requires_key_by_default() {
    let first = r"cmd=initack pmiid=1\n";
    let launch = Pmi1Launch::new(&["--listen", "0.0.0.0"]);
    assert_eq!(
        launch.says(first, 1000, &[]),
        "cmd=initack rc=-1 msg=refused\n"
    );
    launch.wait_for_message(
        "refused: the client has no key, and this port requires one (--pmi-port-auth)",
    );
    let asks = format!("{INIT_2}    54cmd=fullinit;pmirank=1;authtype=challenge-hmac-sha256;");
    let challenge = launch.says(&asks, 120, &[]);
    assert!(
        challenge.contains("cmd=auth-response;authinfo="),
        "{challenge}"
    );
    launch.end();
    for any in ["0.0.0.0", "::"] {
        let launch = Pmi1Launch::new(&["--listen", any, "--pmi-port-auth", "none"]);
        if geteuid().is_root() {
            let nobody = ["setpriv", "--reuid", "65534", "--clear-groups"];
            assert_eq!(launch.says(first, 1000, &nobody), "", "{any}");
            launch.wait_for_message("refused: the client's process belongs to uid 65534");
        }
        assert_eq!(launch.says(first, ACK.len(), &[]), ACK, "{any}");
        launch.end();
    }
}

/// A client that answers the challenge of PMI-2's draft, and finalizes.
const HASHES: &str = r#"
exec 3<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT##*:}
send() { printf '%6d%s' ${#1} "$1" >&3; }
take() { read -r -N 6 length <&3; read -r -N $((length)) reply <&3; }
printf 'cmd=init pmi_version=2 pmi_subversion=0\n' >&3
read -r line <&3
send "cmd=fullinit;pmirank=$PMI_ID;authtype=challenge-sha256;"; take
number=${reply#cmd=auth-response;authinfo=}
hash=$(printf %s "$PMI_AUTH_KEY${number%;}" | sha256sum)
send "cmd=auth-response-complete;authinfo=${hash%% *};"; take
echo "$reply"
send "cmd=finalize;"; take
"#;

#[test]
fn client_proves_key_by_hash_of_draft() {
    let client = ["bash", "-c", HASHES].map(OsString::from);
    let options = "--listen 0.0.0.0 --pmi pmi2 --pmi-port-auth challenge-sha256";
    let outcome = by_hand(2, options, &client).run().expect(0);
    for (rank, line) in outcome.sorted_lines().iter().enumerate() {
        let start = "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=";
        assert!(line.starts_with(&format!("{start}{rank};")), "{outcome:?}");
    }
    let launch = Pmi1Launch::new(&["--listen", "0.0.0.0"]);
    let asks = format!("{INIT_2}    49cmd=fullinit;pmirank=1;authtype=challenge-sha256;");
    let refused = launch.says(&asks, 1000, &[]);
    assert!(
        refused.contains("unsupported authentication `challenge-sha256`"),
        "{refused}"
    );
    launch.end();
}

#[test]
fn rank_port_error_names_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let port = taken.port().to_string();
    let of_no_host = "192.0.2.1:0: Cannot assign requested address";
    let cases: [(&[&str], &str); 4] = [
        (
            &["-n1", "--pmi-port", &port],
            &format!("rank 0 cannot listen: {taken}: Address already in use"),
        ),
        (
            &["-n2", "--pmi-port", "65535"],
            "rank 1 cannot listen: --pmi-port 65535 leaves no port for it",
        ),
        (&["-n1", "--listen", "192.0.2.1"], of_no_host),
        (
            &["-n1", "--env-dir", "/proc/none"],
            "cannot write the variables of rank 0: /proc/none/rank-0.env: No such file",
        ),
    ];
    for (options, message) in cases {
        let words = ["serve"].iter().chain(options);
        let words = words.chain(&["--no-config", "--pmi", "pmi1", "--oversubscribe"]);
        let words = words.map(OsString::from);
        let outcome = Run::command(std::iter::once(wireup().into()).chain(words)).run();
        let outcome = outcome.expect(125);
        assert!(outcome.err().contains(message), "{outcome:?}");
    }
}

#[test]
fn rank_variables_are_private_and_serve_takes_no_program() {
    let run = Run::command([wireup().into_os_string(), "serve".into(), "./app".into()]);
    run.run().expect(125);
    let words = ["serve", "-n", "1", "sh", "-c", "true"].map(OsString::from);
    let outcome = Run::command(std::iter::once(wireup().into()).chain(words)).run();
    outcome
        .expect(125)
        .expect_one_line(&["takes options of `wireup run` and no program"]);
    let words = [
        "serve",
        "-n",
        "2",
        "--env-dir",
        "env",
        "--no-config",
        "--oversubscribe",
    ];
    let words = words.map(OsString::from);
    let running = Run::command(std::iter::once(wireup().into()).chain(words)).start();
    let file = running.work().join("env/rank-1.env");
    let found = eventually("the file is there", || fs::metadata(&file).ok());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.lines().any(|line| line == "PMI_ID=1"), "{text}");
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

/// A client of PMI-1 that asks for notices, with or without a signal, and prints those that come. Signals of two notices may
/// be one, so the first one's is waited for.
const LISTENER: &str = r#"
import signal, socket, sys
port, name = int(sys.argv[1]), sys.argv[2]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
client = socket.create_connection(("127.0.0.1", port))
client.sendall(b"cmd=initack pmiid=1\n")
client.recv(1024)
aside = socket.create_connection(("127.0.0.1", port))
aside.sendall(b"cmd=init_oob signal=%s pmi_version=2 pmi_subversion=0\n" % name.encode())
signalled = name == "NONE"
for line in aside.makefile():
    if not signalled:
        signal.sigwait([signal.SIGUSR2])
        signalled = True
    print(line.strip(), flush=True)
"#;

#[test]
fn client_that_requests_notices_gets_them_with_signal() {
    for name in ["SIGUSR2", "NONE"] {
        let launch = Pmi1Launch::new(&[]);
        let file = launch.running.work().join("notices");
        let mut client = Command::new("python3");
        client.args(["-c", LISTENER, &launch.ports[1], name]);
        let client = client.stdout(fs::File::create(&file).unwrap());
        let mut client = client.spawn().unwrap();
        let output = || fs::read_to_string(&file).unwrap();
        // No reply shows the client that its notice connection is accepted.
        eventually("a notice comes", || {
            launch.running.signal(Signal::USR1);
            output().starts_with("cmd=checkpoint\n").then_some(())
        });
        launch.running.signal(Signal::TERM);
        eventually("the last notice comes", || {
            output()
                .ends_with("cmd=abort reason=the_job_ends\n")
                .then_some(())
        });
        assert!(client.wait().unwrap().success());
        launch.running.finish().expect(143);
    }
}
