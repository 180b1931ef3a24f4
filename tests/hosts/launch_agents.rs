//! Agents that a launch starts for itself, with a command that reaches the hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Output, eventually};

/// Returns the command that runs a command on a host.
fn lab() -> String {
    let lab = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name("lab");
    assert!(lab.exists(), "no lab: run cargo build --workspace");
    lab.display().to_string()
}

/// With what a host is reached.
fn command() -> String {
    format!("{} rsh {{host}}", lab())
}

#[test]
fn launch_agents_exit_with_their_launch() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let before = || cluster.host(1).processes().len();
    let idle = before();
    let command = command();
    let hosts = ["--hosts", "node02:2,node03:1", "--launch-agents", &command];
    let shell = || {
        let outcome = cluster.run(0, hosts).more(["hostname"]).run();
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let mut lines: Vec<String> = outcome.out().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["node02", "node02", "node03"]);
        // Not by the agent that runs there.
        assert!(
            !cluster.log(1).contains("begins as node"),
            "{}",
            cluster.log(1)
        );

        let failed = ["--hosts", "node02", "--launch-agents", "false {host}"];
        let outcome = cluster.run(0, failed).more(["true"]).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        outcome.expect_one_line(&["node02", "false has ended"]);

        let wait = ["sh", "-c", "echo up; exec sleep 100"];
        let running = cluster.run(0, hosts).more(wait).start();
        running.wait_for_many(Output::Stdout, "up", 3);
        running.signal(Signal::KILL);
        running.finish();
        eventually("no agent of the launch is left", || {
            (before() == idle).then_some(())
        });
    };
    cluster.lab().with_remote_shell(shell).unwrap();
}

#[test]
fn missing_agent_message_names_launch_agents() {
    let Some(cluster) = Cluster::builder(2).without_agents().start() else {
        return;
    };
    let outcome = cluster.run(0, ["--hosts", "node02", "true"]).run();
    outcome.expect(125).expect_one_line(&[
        "no agent serves this machine",
        "`wireup run --launch-agents ssh`",
    ]);
}

#[test]
fn default_of_ssh_starts_agents_where_hosts_need_them() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let bin = cluster.dir().join("ssh-stand-in");
    fs::create_dir(&bin).unwrap();
    let ssh = bin.join("ssh");
    let calls = bin.join("calls");
    let script = format!(
        "#!/bin/sh\necho >>{}\nexec {} rsh \"$@\"\n",
        calls.display(),
        lab()
    );
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let shell = || {
        let default = "[run]\nlaunch-agents = \"ssh\"\n";
        for (hosts, defaults, expected, agents) in [
            (&["--hosts", "node02"][..], default, "node02", true),
            (&[], default, "node01", false),
            (&["--hosts", "localhost"], default, "node01", false),
            (
                &["--hosts", "node02", "--launch-agents", "ssh"],
                "",
                "node02",
                true,
            ),
        ] {
            let words = [hosts, &["-n", "1", "hostname"]].concat();
            let run = cluster.run(0, words).env("PATH", &path);
            fs::write(run.dir().join("wireup.toml"), defaults).unwrap();
            let outcome = run.run().expect(0);
            assert_eq!(outcome.out().trim_end(), expected, "{outcome:?}");
            assert_eq!(fs::remove_file(&calls).is_ok(), agents, "{outcome:?}");
        }
    };
    cluster.lab().with_remote_shell(shell).unwrap();
}

/// Replacements of commands of batch systems that cannot be installed. Arguments, standard input and output, and exit
/// are as documented.
const STAND_INS: [(&str, &str); 4] = [
    (
        "qrsh",
        "[ \"$1\" = -inherit ] || exit 1; shift; exec LAB rsh \"$@\"",
    ),
    ("blaunch", "exec LAB rsh \"$@\""),
    // tm_spawn: the environment of the job and not the caller's, no standard input, output in the job's file.
    (
        "pbs_tmrsh",
        "host=$1; shift
         exec LAB rsh $host env -i PATH=/usr/bin:/bin HOME=$HOME PBS_JOBID=7.node02 PBS_JOBCOOKIE=$PBS_JOBCOOKIE \"$@\" \
             </dev/null >>\"$PBS_OUTPUT\" 2>&1",
    ),
    (
        "flux",
        "case $1-$2 in
         getattr-hostlist) echo 'node[02-04]' ;;
         exec---rank=*) rank=${2#--rank=}; shift 2; exec LAB rsh node0$((rank + 2)) \"$@\" ;;
         *) exit 1 ;;
         esac",
    ),
];

/// Prints the signals that it gets. SIGTERM ends it.
pub(crate) const SIGNALLED: &str = "
import os, signal
def got(number, _): print(os.environ['WIREUP_HOST'], 'got', number, flush=True)
for number in 1, 2, 6, 10, 12, 14, 24: signal.signal(number, got)
print('up', flush=True)
while True: signal.pause()";

/// Signals the agents that a launch has started, as the batch system does with processes that it has started.
fn signal_agents(cluster: &Cluster, signal: Signal) {
    for host in cluster.lab().hosts() {
        let is_agent =
            |name: &str, words: &str| name == "wireup-agent" && words.contains("for-launch");
        let agents = host.processes().into_iter();
        let agents = agents.filter(|process| is_agent(&process.name, &process.words));
        agents.for_each(|agent| agent.signal(signal));
    }
}

#[test]
fn jobs_of_other_batch_systems_are_used_without_options() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let bin = cluster.dir().join("stand-ins");
    fs::create_dir(&bin).unwrap();
    for (name, text) in STAND_INS {
        let file = bin.join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n").replace("LAB", &lab())).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = cluster.dir().join("list");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let list_of = list.display().to_string();
    let grid = [("JOB_ID", "7"), ("PE_HOSTFILE", &*list_of)];
    let lsf = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", &*list_of)];
    let output = cluster.dir().join("output").display().to_string();
    let pbs = [
        ("PBS_JOBID", "7.node02"),
        ("PBS_NODEFILE", &*list_of),
        ("PBS_JOBCOOKIE", "0123456789ABCDEF"),
        ("PBS_OUTPUT", &output),
    ];
    let flux = [("FLUX_URI", "local:///run/flux/local")];
    let lines = "node02 1 q U\nnode03 2 q U\nnode04 1 q U\n";
    let once = "node02\nnode03\nnode03\nnode04\n";
    let two = ["node02", "node03", "node03", "node04"];
    let one = ["node02", "node03", "node04"];
    let all = [
        ("Grid Engine", lines, &grid[..], &two[..]),
        ("LSF", once, &lsf, &two),
        ("PBS", once, &pbs, &two),
        ("Flux", "", &flux, &one),
    ];
    let idle: Vec<usize> = (0..4)
        .map(|host| cluster.host(host).processes().len())
        .collect();
    let check = || {
        for (engine, text, variables, expected) in all {
            fs::write(&list, text).unwrap();
            let run = |options: &[&str]| {
                let run = cluster.run(0, options).env("PATH", &path);
                let env = variables.iter();
                env.fold(run, |run, (name, value)| run.env(name, value))
            };
            let outcome = run(&["hostname"]).run().expect(0);
            assert_eq!(outcome.sorted_lines(), expected, "{engine}: {outcome:?}");
            let some = ["--hosts", "node04,node02:1", "-n", "2"];
            let running = run(&some).more(["python3", "-c", SIGNALLED]).start();
            running.wait_for_many(Output::Stdout, "up", 2);
            for signal in [Signal::USR1, Signal::HUP] {
                signal_agents(&cluster, signal);
                let line = format!("got {}\n", signal.as_raw());
                running.wait_for_many(Output::Stdout, &line, 2);
            }
            running.signal(Signal::TERM);
            let outcome = running.finish();
            for host in ["node02", "node04"] {
                for signal in [1, 10] {
                    let line = format!("{host} got {signal}\n");
                    assert_eq!(
                        outcome.out().matches(&line).count(),
                        1,
                        "{engine}: {outcome:?}"
                    );
                }
            }
            let outcome = run(&["--hosts", "node01", "hostname"]).run();
            assert_ne!(outcome.code, 0, "{outcome:?}");
            outcome.expect_one_line(&["host node01 is not in the", engine, "node[02-04]"]);
            for host in 1..4 {
                let log = cluster.log(host);
                assert!(
                    !log.contains("begins as node"),
                    "not by the agent there: {log}"
                );
            }
        }
        eventually("no agent of a launch is left", || {
            let now = (0..4).map(|host| cluster.host(host).processes().len());
            (now.collect::<Vec<_>>() == idle).then_some(())
        });
    };
    cluster.lab().with_remote_shell(check).unwrap();
}
