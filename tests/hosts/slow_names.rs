//! Hosts whose names are found slowly: a launch that needs them waits, and launches of other users do not.

use std::time::{Duration, Instant};

use crate::bystanders::{Limits, during};
use crate::cluster::{Cluster, MALLORY};
use crate::common::{Output, Running};
use crate::users::of;

/// Answers each question for an address of `slowNN` after the seconds of its first argument, with the address of node NN
/// or, where there is no such node, of node02.
const NAME_SERVER: &str = "
import re, socket, struct, sys, threading, time
delay = float(sys.argv[1])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('127.0.0.1', 53))
def answer(question, sender):
    end = question.index(b'\\0', 12) + 5
    kind, = struct.unpack('>H', question[end - 4:end - 2])
    number = int(re.search(rb'slow([0-9]+)', question).group(1))
    address = bytes([10, 99, 0, number if number <= 3 else 2])
    record = b'\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\0\\0\\4' + address if kind == 1 else b''
    header = question[:2] + b'\\x81\\x80' + struct.pack('>HHHH', 1, 1 if record else 0, 0, 0)
    time.sleep(delay)
    server.sendto(header + question[12:end] + record, sender)
print('answers', flush=True)
while True:
    threading.Thread(target=answer, args=server.recvfrom(512), daemon=True).start()
";

/// A cluster of three hosts, and the name server of one of them.
fn cluster(host: usize, delay: &str) -> Option<(Cluster, Running)> {
    let cluster = Cluster::builder(3).with_name_servers().start()?;
    let words = ["/usr/bin/python3", "-c", NAME_SERVER, delay];
    let server = cluster.command(host, words).start();
    server.wait_for(Output::Stdout, "answers");
    Some((cluster, server))
}

fn end(server: Running) {
    server.signal(rustix::process::Signal::KILL);
    server.finish().expect(137);
}

#[test]
fn launch_waits_longer_for_name_lookup_than_for_connection() {
    // More than a connection may take.
    let Some((cluster, server)) = cluster(0, "3.5") else {
        return;
    };
    let hosts = "node01,node02@slow02,node03@slow03";
    let start = Instant::now();
    let run = cluster.run(0, ["--hosts", hosts, "-n", "3", "uname", "-n"]);
    let outcome = run.run().expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);
    // The names were asked for.
    assert!(start.elapsed() >= Duration::from_millis(3500));
    end(server);
}

#[test]
fn slow_host_lookup_of_one_user_delays_no_others() {
    // The attacker is on the third host, and the others launch from the first and the second one.
    let Some((cluster, server)) = cluster(0, "0.5") else {
        return;
    };
    // Bystanders give plain names, which are in a file.
    let names: Vec<String> = (10..74).map(|number| format!("slow{number}:1")).collect();
    let hosts = names.join(",");
    let attack = || {
        let launch = || {
            let run = cluster.run(0, ["--hosts", &hosts, "-n", "64", "true"]);
            of(MALLORY, run).start()
        };
        for _ in 0..3 {
            let launches: Vec<Running> = (0..4).map(|_| launch()).collect();
            for launch in launches {
                let outcome = launch.finish().expect(125);
                // The host was found, and has another identity than its name.
                assert!(outcome.err().contains("slow"), "{outcome:?}");
            }
        }
    };
    if let Some(observed) = during(&cluster, attack) {
        observed.undisturbed(Limits {
            launch: Duration::from_secs(20),
            memory: 128,
        });
    }
    end(server);
}
