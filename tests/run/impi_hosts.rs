//! `wireup run --impi` of launches with several nodes: each node is a host of the IMPI job, with an agent of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    Output, Owned, Process, Run, Running, eventually, field, mpi, number, pmix, processes, program,
};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// The rendezvous server of so many clients, and its address.
pub(crate) fn server(clients: u32) -> (Owned, String) {
    let clients = clients.to_string();
    let mut command = Command::new(WIREUP);
    command
        .args(["impi", "server", &clients, "--address", "127.0.0.1"])
        .env("IMPI_AUTH_KEY", "5678");
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Owned(command.spawn().unwrap());
    let address = server.first_line();
    (server, address)
}

/// A launch as a client; options and program follow.
fn client(server: &str, number: u32, ranks: u32, words: &[&str]) -> Run {
    let option = format!("{server},client={number}");
    let run = Run::ranks(ranks, ["--impi", &option]).more(words);
    run.env("IMPI_AUTH_KEY", "5678")
}

const PLACE: &str = "echo $WIREUP_NODE: $IMPI_WORLD_RANK/$IMPI_WORLD_SIZE host $IMPI_HOST_COLOR/$IMPI_HOST_SIZE of $IMPI_HOST_NPROCS";

#[test]
fn each_node_is_impi_host_and_cyclic_ranks_make_more() {
    let (server, address) = server(3);
    let shell = ["sh", "-c", PLACE];
    let nodes = [&["--virtual-nodes", "2"], &shell[..]].concat();
    let turn = [&["--virtual-nodes", "2", "--map-by", "node"], &shell[..]].concat();
    let first = client(&address, 0, 3, &nodes).start();
    let second = client(&address, 1, 1, &shell).start();
    let third = client(&address, 2, 3, &turn).run().expect_quiet_success();
    let line = |(node, rank, host)| format!("{node}: {rank}/7 host {host}/6 of 2,1,1,1,1,1");
    let all =
        |places: &[(u32, u32, u32)]| -> Vec<String> { places.iter().copied().map(line).collect() };
    let of_first = all(&[(0, 0, 0), (0, 1, 0), (1, 2, 1)]);
    assert_eq!(
        first.finish().expect_quiet_success().sorted_lines(),
        of_first
    );
    assert_eq!(
        second.finish().expect_quiet_success().sorted_lines(),
        all(&[(0, 3, 2)])
    );
    // On node 0, 1 and 0 again: three hosts.
    assert_eq!(
        third.sorted_lines(),
        all(&[(0, 4, 3), (0, 6, 5), (1, 5, 4)])
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn pmi1_and_pmi2_have_world_as_keys_on_every_node() {
    let Some(pmi2) = program("pmi2_raw") else {
        return;
    };
    let (server, address) = server(2);
    let script = format!(
        "{WIREUP} pmi get IMPI_WORLD_SIZE; {WIREUP} pmi get IMPI_HOST_NPROCS; {WIREUP} pmi get IMPI_WORLD_FIRST"
    );
    let nodes = ["--virtual-nodes", "2"];
    let words = [&nodes[..], &["--pmi", "pmi1", "sh", "-c", &script]].concat();
    let first = client(&address, 0, 2, &words).start();
    let steps = [
        "init",
        "get",
        "IMPI_WORLD_SIZE",
        "expect",
        "4",
        "job-attr",
        "IMPI_WORLD_SIZE",
        "get",
        "IMPI_HOST_NPROCS",
        "expect",
        "1,1,1,1",
        "get",
        "IMPI_WORLD_FIRST",
        "expect",
        "2",
        "finalize",
    ];
    let words = [
        &nodes[..],
        &["--pmi", "pmi2", pmi2.to_str().unwrap()],
        &steps,
    ]
    .concat();
    client(&address, 1, 2, &words).run().expect(0);
    let first = first.finish().expect_quiet_success();
    let expected = [0, 1].map(|rank| {
        let pairs = [
            "IMPI_HOST_NPROCS=1,1,1,1",
            "IMPI_WORLD_FIRST=0",
            "IMPI_WORLD_SIZE=4",
        ];
        pairs.map(|pair| format!("get rank={rank} {pair}"))
    });
    assert_eq!(first.sorted_lines(), expected.concat());
    assert_eq!(server.end(), Some(0));
}

#[test]
fn pmix_has_world_as_job_keys_with_every_libpmix() {
    for server_name in ["pmix4", "pmix5", "pmix7"] {
        let Some(library) = pmix(server_name) else {
            continue;
        };
        let (server, address) = server(2);
        let client_program = library.dir.join("pmix_client");
        let client_program = client_program.to_str().unwrap();
        let start = |number: u32, first: &str| {
            let words = [
                "--virtual-nodes",
                "2",
                "--pmi",
                "pmix",
                "--libpmix",
                library.path(),
                client_program,
                "job",
                "IMPI_WORLD_SIZE",
                "4",
                "IMPI_HOST_NPROCS",
                "1,1,1,1",
                "IMPI_WORLD_FIRST",
                first,
            ];
            client(&address, number, 2, &words).start()
        };
        let (first, second) = (start(0, "0"), start(1, "2"));
        first.finish().expect(0);
        second.finish().expect(0);
        assert_eq!(server.end(), Some(0));
    }
}

/// MPICH on two nodes and Open MPI on one, each with MPI inside, in one world.
#[test]
fn jobs_of_two_mpis_on_three_nodes_form_one_world() {
    let (Some(mpich), Some(open)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    let (server, address) = server(2);
    let library = Path::new(WIREUP).with_file_name("libwireup_impi.so");
    let start = |number: u32, mpi: &crate::common::Mpi, options: &[&str]| {
        let program = mpi.program("impi_world");
        let words = [options, &[program.to_str().unwrap()]].concat();
        let run = client(&address, number, 2, &words).env("WIREUP_IMPI_LIBRARY", &library);
        let set = |run: Run, (name, value): &(String, String)| run.env(name, value);
        mpi.env.iter().fold(run, set).start()
    };
    let first = start(0, &mpich, &["--virtual-nodes", "2"]);
    let second = start(1, &open, &[]);
    for (outcome, expected) in [
        (first.finish(), [(0, 1, 0), (1, 1, 1)]),
        (second.finish(), [(2, 5, 2), (3, 5, 2)]),
    ] {
        let lines = outcome.expect(0).sorted_lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, (rank, inside, host)) in lines.iter().zip(expected) {
            let fields = ["rank", "size", "inside", "sum", "host"].map(|key| number(line, key));
            assert_eq!(fields, [rank, 4, inside, 10, host], "{line}");
            assert_eq!(field(line, "color"), Some(if rank < 2 { "0" } else { "1" }));
        }
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn killed_launcher_leaves_no_host_and_other_client_ends() {
    let (server, address) = server(2);
    let nodes = [
        "--virtual-nodes",
        "2",
        "sh",
        "-c",
        "echo here; exec sleep 1000",
    ];
    let killed = client(&address, 0, 2, &nodes).start();
    let other = client(&address, 1, 2, &nodes).start();
    killed.wait_for_many(Output::Stdout, "here", 2);
    other.wait_for_many(Output::Stdout, "here", 2);
    let hosts = || {
        let all = killed.processes().into_iter();
        all.filter(|process| process.name == "wireup").count()
    };
    assert!(
        hosts() >= 2,
        "the launch of the hosts is beside the launcher"
    );
    killed.signal(Signal::KILL);
    killed.clean_within(crate::common::DEADLINE).finish();
    other.signal(Signal::TERM);
    let outcome = other.finish().expect(143);
    assert!(
        outcome.err().contains("wireup impi: host "),
        "{}",
        outcome.err()
    );
    assert_eq!(server.end(), Some(1));
}

/// A process whose command line has these words.
fn process_with(words: &str) -> Process {
    eventually(words, || {
        let mut all = processes().into_iter();
        all.find(|process| process.to_string().contains(words))
    })
}

fn kill(process: &Process) {
    let pid = Pid::from_raw(process.pid).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn launch_without_its_agents_does_not_wait_for_other_clients() {
    for (kills_host, why) in [
        (true, "the IMPI hosts of the launch: rank "),
        (false, "did not join the IMPI job: its agent was "),
    ] {
        let (_server, address) = server(2);
        let launch = client(&address, 0, 2, &["--virtual-nodes", "2", "true"]).start();
        // When the process exists, the hosts have sent the addresses at which they listen.
        let agent = process_with(&format!("wireup-impi agent {address} "));
        let host = process_with(&format!("wireup-impi host --server {address} "));
        kill(if kills_host { &host } else { &agent });
        let outcome = launch.finish().expect(125);
        outcome.expect_one_line(&[why, "killed by signal 9 (SIGKILL)"]);
    }
}

#[test]
fn killed_agent_of_impi_client_is_named() {
    let (server, address) = server(2);
    let script = "echo here; until [ -e go ]; do sleep 0.1; done";
    let words = ["--virtual-nodes", "2", "sh", "-c", script];
    let runs = [0, 1].map(|number| client(&address, number, 2, &words).start());
    for run in &runs {
        run.wait_for_many(Output::Stdout, "here", 2);
    }
    kill(&process_with(&format!(
        "wireup-impi agent {address} --client 0 "
    )));
    for run in &runs {
        std::fs::write(run.work().join("go"), "").unwrap();
    }
    let [killed, other] = runs.map(Running::finish);
    let stderr = killed.expect(1).err();
    assert_eq!(
        stderr.trim_end(),
        "wireup impi: the agent of this launch was killed by signal 9 (SIGKILL)"
    );
    other.expect(0);
    assert_eq!(server.end(), Some(1));
}
