//! Whole jobs: a server, an agent for each client, and processes, which are threads of the test.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

mod c_program;
#[path = "../library/mod.rs"]
mod library;
mod strangers;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use wireup_impi_core::auth::Secrets;
use wireup_impi_core::endpoint::Completion;
use wireup_impi_io::agent::process_handshake::{AGENT, TICKET_VARIABLE};
use wireup_impi_io::agent::{Events, JoinedMember, LaunchSettings, ListeningHost, PublishedHost};
use wireup_impi_io::peer::{ElementType, Operator, Peer, PeerError};
use wireup_test_support::{Owned, eventually};

const INT: ElementType = ElementType::Int32;

fn start(arguments: &[&str]) -> Owned {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wireup-impi"));
    command
        .args(arguments)
        .env("IMPI_AUTH_KEY", "77")
        .env_remove("IMPI_AUTH_NONE");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Owned(command.spawn().unwrap())
}

/// Returns exit code and output of the process after its end.
fn end(mut process: Owned) -> (Option<i32>, String) {
    let status = eventually("its end", || process.0.try_wait().unwrap());
    let mut text = String::new();
    let mut stderr = process.0.stderr.take().unwrap();
    stderr.read_to_string(&mut text).unwrap();
    (status.code(), text)
}

struct Job {
    server: Owned,
    agents: Vec<Owned>,
    /// Environment variables of the processes of each client.
    variables: Vec<BTreeMap<String, String>>,
    sizes: Vec<usize>,
}

impl Job {
    fn start(sizes: &[usize], options: &[&str]) -> Self {
        Self::start_at("127.0.0.1", sizes, options)
    }

    fn start_at(at: &str, sizes: &[usize], options: &[&str]) -> Self {
        let count = sizes.len().to_string();
        let mut server = start(&["-server", &count, "--address", at, "--print-server"]);
        let address = server.first_line();
        let mut agents: Vec<Owned> = (0..sizes.len())
            .map(|client| {
                let (client, procs) = (client.to_string(), sizes[client].to_string());
                let arguments = [
                    "agent",
                    &address,
                    "--client",
                    &client,
                    "-n",
                    &procs,
                    "--patience",
                    "30",
                ];
                start(&[&arguments[..], options].concat())
            })
            .collect();
        let variables = agents.iter_mut().map(Owned::variables).collect();
        Self {
            server,
            agents,
            variables,
            sizes: sizes.to_vec(),
        }
    }

    fn connect(&self, client: usize, index: usize) -> Peer {
        let variables = &self.variables[client];
        let index = u32::try_from(index).unwrap();
        Peer::connect(&variables[AGENT], &variables[TICKET_VARIABLE], index).unwrap()
    }

    /// Runs a program in all processes.
    fn run(&self, program: impl Fn(Peer) + Sync) {
        std::thread::scope(|scope| {
            for (client, size) in self.sizes.iter().enumerate() {
                for index in 0..*size {
                    let program = &program;
                    scope.spawn(move || program(self.connect(client, index)));
                }
            }
        });
    }

    /// Ends the launches; all must have ended in order.
    fn end(mut self) {
        for agent in &mut self.agents {
            drop(agent.0.stdin.take());
        }
        for agent in self.agents {
            assert_eq!(end(agent), (Some(0), String::new()));
        }
        assert_eq!(end(self.server), (Some(0), String::new()));
    }
}

/// A client that runs in the test, with the least packets and window.
fn settings(server: &str, client: u32) -> LaunchSettings {
    LaunchSettings {
        server: server.to_owned(),
        client,
        procs: 1,
        address: Ipv4Addr::LOCALHOST.into(),
        data_length: 64,
        ack_mark: 1,
        high_water: 2,
        crossover_size: -1,
        max_linear: -1,
        lam: false,
        is_printing: false,
        secrets: Secrets {
            key: Some(77),
            ..Secrets::default()
        },
        tls: None,
    }
}

fn ints(values: impl IntoIterator<Item = usize>) -> Vec<u8> {
    values
        .into_iter()
        .flat_map(|value| i32::try_from(value).unwrap().to_ne_bytes())
        .collect()
}

/// Gather and its kin with blocks of different lengths; each third process has none.
fn exchange_different_lengths(peer: &Peer, count: usize) {
    let (me, size) = (peer.rank(), peer.size());
    let block = |rank: usize, value: usize| ints(std::iter::repeat_n(value, rank % 3 * count));
    let lengths: Vec<usize> = (0..size).map(|rank| block(rank, 0).len()).collect();
    let each = (0..size).flat_map(|rank| block(rank, rank));
    let each: Vec<u8> = each.collect();
    for root in [0, size - 1] {
        let mut all = vec![0; each.len()];
        (peer.gatherv(&block(me, me), &mut all, &lengths, INT, root)).unwrap();
        assert!(me != root || all == each);
        let mut own = vec![0; lengths[me]];
        (peer.scatterv(&each, &lengths, &mut own, INT, root)).unwrap();
        assert_eq!(own, block(me, me));
    }
    let mut all = vec![0; each.len()];
    (peer.allgatherv(&block(me, me), &mut all, &lengths, INT)).unwrap();
    assert_eq!(all, each);
    let blocks = |value: &dyn Fn(usize) -> usize| {
        let blocks = (0..size).map(|rank| block(me + rank, value(rank)));
        blocks.collect::<Vec<Vec<u8>>>()
    };
    let out = blocks(&|to| me * size + to);
    let lengths: Vec<usize> = out.iter().map(Vec::len).collect();
    let mut all = vec![0; lengths.iter().sum()];
    (peer.alltoallv(&out.concat(), &lengths, &mut all, &lengths, INT)).unwrap();
    assert_eq!(all, blocks(&|from| from * size + me).concat());
}

/// Messages around the ring, long ones across it, and all collectives in both variants.
fn everything(peer: Peer) {
    let (me, size) = (peer.rank(), peer.size());
    let next = peer
        .start_send(&ints([me]), INT, (me + 1) % size, 5, me % 2 == 0)
        .unwrap();
    let from = (me + size - 1) % size;
    let receive = peer.start_receive(4, INT, Some(from), None).unwrap();
    let Completion::Received(status, data) = peer.wait(receive).unwrap() else {
        panic!()
    };
    assert_eq!((status.source, status.tag, data), (from, 5, ints([from])));
    peer.wait(next).unwrap();
    let other = (me + size / 2) % size;
    let long = vec![u8::try_from(me).unwrap(); 1 << 20];
    let send = peer
        .start_send(&long, ElementType::Byte, other, 6, false)
        .unwrap();
    let status = peer.probe(None, Some(6), true).unwrap().unwrap();
    assert_eq!(status.length, 1 << 20);
    let receive = peer
        .start_receive(1 << 20, ElementType::Byte, Some(status.source), Some(6))
        .unwrap();
    let Completion::Received(_, data) = peer.wait(receive).unwrap() else {
        panic!()
    };
    assert!(data.iter().all(|byte| usize::from(*byte) == status.source));
    peer.wait(send).unwrap();
    for count in [1, 400] {
        let same = |value: usize| ints(std::iter::repeat_n(value, count));
        let each = |value: &dyn Fn(usize) -> usize| {
            (0..size)
                .flat_map(|rank| same(value(rank)))
                .collect::<Vec<u8>>()
        };
        for root in [0, size - 1] {
            let mut data = same(me);
            peer.bcast(&mut data, INT, root).unwrap();
            assert_eq!(data, same(root));
            let mut data = same(me + 1);
            peer.reduce(&mut data, INT, Operator::Sum, root).unwrap();
            assert!(me != root || data == same(size * (size + 1) / 2));
            let mut all = vec![0; if me == root { 4 * count * size } else { 0 }];
            peer.gather(&same(me), &mut all, INT, root).unwrap();
            assert!(me != root || all == each(&|rank| rank));
            let all = if me == root {
                each(&|rank| rank)
            } else {
                Vec::new()
            };
            let mut own = vec![0; 4 * count];
            peer.scatter(&all, &mut own, INT, root).unwrap();
            assert_eq!(own, same(me));
        }
        let mut data = same(me + 1);
        peer.allreduce(&mut data, INT, Operator::Max).unwrap();
        assert_eq!(data, same(size));
        let mut data = same(1);
        peer.scan(&mut data, INT, Operator::Sum).unwrap();
        assert_eq!(data, same(me + 1));
        let mut all = vec![0; 4 * count * size];
        peer.allgather(&same(me), &mut all, INT).unwrap();
        assert_eq!(all, each(&|rank| rank));
        peer.alltoall(&each(&|to| me * size + to), &mut all, INT)
            .unwrap();
        assert_eq!(all, each(&|from| from * size + me));
        exchange_different_lengths(&peer, count);
    }
    peer.close().unwrap();
}

#[test]
fn clients_of_uneven_sizes_exchange_and_reduce() {
    for (sizes, options) in [
        (&[3][..], &[][..]),
        (&[2, 1, 3], &[]),
        (&[1, 2, 1, 1, 2], &["--maxlinear", "2", "--xsize", "100"]),
        (
            &[2, 2],
            &["--datalen", "1000", "--ackmark", "1", "--hiwater", "1"],
        ),
        (&[2, 2], &["--lam"]),
    ] {
        let job = Job::start(sizes, options);
        job.run(everything);
        job.end();
    }
}

#[test]
fn eight_clients_of_eight_processes_form_world() {
    let job = Job::start(&[8; 8], &[]);
    job.run(everything);
    job.end();
}

#[test]
fn clients_at_ipv6_form_world() {
    let job = Job::start_at("::1", &[2, 1, 3], &[]);
    assert!(
        job.variables
            .iter()
            .all(|known| known[AGENT].starts_with("[::1]:"))
    );
    job.run(everything);
    job.end();
}

#[test]
fn print_server_prints_lines_of_processes() {
    for (options, printed) in [(&["--print"][..], true), (&[], false)] {
        let mut job = Job::start(&[1, 1], options);
        job.run(|peer| {
            if peer.rank() == 1 {
                peer.print("a line\nanother").unwrap();
            }
            peer.close().unwrap();
        });
        let expected = ["process 1: a line", "process 1: another"];
        for agent in &mut job.agents {
            drop(agent.0.stdin.take());
        }
        let agents: Vec<String> = job.agents.into_iter().map(|agent| end(agent).1).collect();
        let (code, server) = end(job.server);
        assert_eq!(code, Some(0), "{server}");
        for line in expected {
            let at_server = format!("wireup impi: client 1: {line}\n");
            let at_agent = format!("wireup impi: {line}\n");
            assert_eq!(server.contains(&at_server), printed, "{server}");
            assert_eq!(agents[1].contains(&at_agent), !printed, "{agents:?}");
        }
    }
}

#[test]
fn unreceived_message_is_cancelled() {
    let job = Job::start(&[1, 1], &[]);
    job.run(|peer| {
        if peer.rank() == 0 {
            for (length, synchronous) in [(10, false), (10, true), (200_000, false)] {
                let send = peer
                    .start_send(&vec![0; length], ElementType::Byte, 1, 1, synchronous)
                    .unwrap();
                peer.cancel(send).unwrap();
                assert_eq!(peer.wait(send).unwrap(), Completion::Cancelled);
            }
        }
        peer.barrier().unwrap();
        assert_eq!(peer.probe(None, None, false).unwrap(), None);
        let receive = peer
            .start_receive(1, ElementType::Byte, None, None)
            .unwrap();
        assert!(!peer.test(receive).unwrap());
        peer.cancel(receive).unwrap();
        assert_eq!(peer.wait(receive).unwrap(), Completion::Cancelled);
        peer.close().unwrap();
    });
    job.end();
}

#[test]
fn killed_process_ends_job_and_is_named() {
    let mut job = Job::start(&[1, 2], &[]);
    // The agents end soon after the death: the others could not join then.
    let joined = Barrier::new(3);
    job.run(|peer| {
        joined.wait();
        if peer.rank() == 2 {
            return drop(peer);
        }
        assert!(matches!(peer.barrier(), Err(PeerError::Broken(_))));
    });
    let (code, stderr) = end(job.agents.pop().unwrap());
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("process 2 (rank 1 of this launch): the connection ended before FINI"),
        "{stderr}"
    );
    let (code, stderr) = end(job.agents.pop().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("host 1 of client 1:"), "{stderr}");
    let (code, stderr) = end(job.server);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("disconnected before FINI"), "{stderr}");
}

#[test]
fn process_of_other_host_is_named_by_its_rank_in_launch() {
    let mut server = start(&["-server", "1", "--address", "127.0.0.1"]);
    let address = server.first_line();
    let hosts = [0, 1].map(|_| ListeningHost::listen(Ipv4Addr::LOCALHOST.into()).unwrap());
    let door = hosts[1].door().unwrap().to_string();
    let places = hosts.each_ref().map(|host| PublishedHost {
        address: host.place().unwrap(),
        procs: 1,
    });
    let member = JoinedMember::join(settings(&address, 0), &places).unwrap();
    let invitation = member.invitation();
    let ticket = member.environment();
    let ticket = ticket.iter().find(|(name, _)| *name == TICKET_VARIABLE);
    let [first_host, second_host] = hosts;
    // The first host, whose agent would end with its process, is left to serve.
    let [_, serving] = [(0, first_host), (1, second_host)].map(|(index, host)| {
        let invitation = invitation.clone();
        std::thread::spawn(move || {
            let host = host.connect(invitation, index).unwrap();
            let served = host.serve(&Events::default(), Duration::from_secs(60), &mut |_| ());
            served.unwrap_err().to_string()
        })
    });
    // Its rank among those of its host is 0.
    drop(Peer::connect(&door, &ticket.unwrap().1, 0).unwrap());
    assert_eq!(
        serving.join().unwrap(),
        "process 1 (rank 1 of this launch): the connection ended before FINI"
    );
}

#[test]
fn lines_sent_before_end_of_other_process_are_printed() {
    let mut server = start(&["-server", "1", "--address", "127.0.0.1"]);
    let address = server.first_line();
    let host = ListeningHost::listen(Ipv4Addr::LOCALHOST.into()).unwrap();
    let door = host.door().unwrap().to_string();
    let place = PublishedHost {
        address: host.place().unwrap(),
        procs: 2,
    };
    let member = JoinedMember::join(settings(&address, 0), &[place]).unwrap();
    let invitation = member.invitation();
    let ticket = member.environment();
    let ticket = ticket.iter().find(|(name, _)| *name == TICKET_VARIABLE);
    let serving = std::thread::spawn(move || {
        let host = host.connect(invitation, 0).unwrap();
        let mut lines = Vec::new();
        let patience = Duration::from_secs(60);
        let served = host.serve(&Events::default(), patience, &mut |line| {
            lines.push(line.to_owned());
        });
        (served.unwrap_err().to_string(), lines)
    });
    let [ended, printing] = [0, 1].map(|index| Peer::connect(&door, &ticket.unwrap().1, index));
    let printing = printing.unwrap();
    // More than the agent has read when the other process ends, and less than its socket holds.
    let texts = || (0..500).map(|number| format!("line {number}"));
    texts().for_each(|text| printing.print(&text).unwrap());
    drop(ended.unwrap());
    let (error, lines) = serving.join().unwrap();
    assert!(error.starts_with("process 0 "), "{error}");
    let expected: Vec<String> = texts().map(|text| format!("process 1: {text}")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn server_that_exits_stops_startup_but_not_job() {
    let mut server = start(&["-server", "2", "--address", "127.0.0.1"]);
    let address = server.first_line();
    let agent = start(&["agent", &address, "--client", "0", "-n", "1"]);
    // The first client is there once the server has its rank; it then waits for the second.
    let refused = start(&["agent", &address, "--client", "7", "-n", "1"]);
    assert_eq!(end(refused).0, Some(1));
    server.0.kill().unwrap();
    let (code, stderr) = end(agent);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("server 127.0.0.1:"), "{stderr}");
    let mut job = Job::start(&[1, 1], &[]);
    job.server.0.kill().unwrap();
    job.server.0.wait().unwrap();
    job.run(everything);
    for agent in &mut job.agents {
        drop(agent.0.stdin.take());
    }
    for agent in job.agents {
        assert_eq!(end(agent).0, Some(0));
    }
}

#[test]
fn launch_whose_processes_never_join_ends_with_others() {
    let job = Job::start(&[2, 1], &[]);
    job.end();
}

#[test]
fn launch_that_fails_before_join_ends_others_at_once() {
    let mut job = Job::start(&[1, 1], &[]);
    let mut failed = job.agents.pop().unwrap();
    // It joins before the other launch fails: its agent ends at once after that.
    let peer = job.connect(0, 0);
    let waiting = std::thread::spawn(move || {
        assert!(matches!(peer.barrier(), Err(PeerError::Broken(_))));
    });
    failed.0.stdin.take().unwrap().write_all(b"failed").unwrap();
    let (code, stderr) = end(failed);
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("the launch failed before all of its processes had joined"),
        "{stderr}"
    );
    waiting.join().unwrap();
    let (code, stderr) = end(job.agents.pop().unwrap());
    assert_eq!(code, Some(1));
    assert!(stderr.contains("host 1 of client 1:"), "{stderr}");
    assert_eq!(end(job.server).0, Some(1));
}
