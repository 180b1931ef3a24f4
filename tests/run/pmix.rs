//! The PMIx server's library: which one serves, which one the ranks use, and their exchange. Every
//! server version with every client version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rustix::process::Signal;

use crate::common::{
    Mpi, Outcome, Output, Pmix, Run, Running, combinations, eventually, field, mpi, number, pmix,
};

/// Beginning of the text of `PMIx_Get_version` of a libpmix, by the name in our tables.
pub(crate) const SERVERS: [(&str, &str); 3] = [
    ("pmix4", "OpenPMIx 4."),
    ("pmix5", "OpenPMIx 5.0.11"),
    ("pmix7", "OpenPMIx 7."),
];
/// Beginning of the version text of the libpmix that comes with an Open MPI.
pub(crate) const CLIENTS: [(&str, &str); 2] =
    [("openmpi4", "OpenPMIx 4."), ("openmpi5", "OpenPMIx 5.0.11")];

/// Servers with clients that are here, see [`combinations`]: library, its version, MPI, its libpmix's version.
pub(crate) fn pairs() -> Vec<(Pmix, &'static str, Mpi, &'static str)> {
    let servers = SERVERS
        .iter()
        .filter_map(|(name, v)| Some((pmix(name)?, *v)));
    let clients: Vec<_> = CLIENTS
        .iter()
        .filter_map(|(name, v)| Some((mpi(name)?, *v)))
        .collect();
    let met = combinations(&servers.collect::<Vec<_>>(), &clients).into_iter();
    met.map(|((server, version), (client, own))| (server, version, client, own))
        .collect()
}

/// The upcalls of one kind that `-v` reports, by node: how many, bytes in, bytes out.
pub(crate) fn upcalls(outcome: &Outcome, kind: &str) -> Vec<[u64; 3]> {
    let text = outcome.err();
    let reports = text
        .lines()
        .filter(|line| line.starts_with("wireup: upcalls of "));
    reports
        .map(|line| {
            let Some((_, rest)) = line.split_once(&format!(" {kind} ")) else {
                return [0; 3];
            };
            let mut numbers = rest
                .split(|c: char| !c.is_ascii_digit())
                .filter(|n| !n.is_empty());
            [(); 3].map(|()| numbers.next().unwrap().parse().unwrap())
        })
        .collect()
}

/// The files in a process's mappings whose names start so, links resolved by the system.
fn mapped(pid: i32, start: &str) -> BTreeSet<PathBuf> {
    // A process that has just ended has none.
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(start))
        })
        .collect()
}

/// The processes of a run with this name.
fn processes(run: &Running, name: &str) -> Vec<i32> {
    let all = run.processes().into_iter();
    all.filter(|process| process.name == name)
        .map(|process| process.pid)
        .collect()
}

fn sidecars(run: &Running) -> Vec<i32> {
    // On a C library of its own it has the name of the loader.
    let is_sidecar = |pid: &i32| {
        let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        let words = words.unwrap_or_default();
        words
            .split('\0')
            .any(|word| word.ends_with("/wireup-pmix-host"))
    };
    let all = run.processes().into_iter().map(|process| process.pid);
    all.filter(is_sidecar).collect()
}

#[test]
fn requested_libpmix_serves_old_and_new_clients() {
    for (server, version, client, own) in pairs() {
        let options = ["-v", "--libpmix", server.path()];
        let outcome = client.run(2, &options, "hello", &[]).run().expect(0);
        // The library states a path; this is the real one.
        let err = outcome.err();
        let library = err
            .lines()
            .find_map(|line| line.strip_prefix("wireup: PMIx server of "));
        let (_, library) = library.and_then(|line| line.split_once(": ")).unwrap();
        assert!(library.starts_with(version), "{outcome:?}");
        assert!(
            library.ends_with(&format!(" ({})", server.real().display())),
            "{outcome:?}"
        );
        for line in outcome.by_rank("hello", 2) {
            assert!(field(&line, "pmix").unwrap().starts_with(own), "{line}");
        }
    }
}

#[test]
fn every_libpmix_serves_programs_of_every_client() {
    for (server, _, client, _) in pairs() {
        let options = ["--libpmix", server.path()];
        let run = |program, args| client.run(4, &options, program, args).run();
        for line in run("allreduce", &[])
            .expect_success()
            .by_rank("allreduce", 4)
        {
            assert_eq!(number(&line, "sum"), 10, "{line}");
        }
        for line in run("ring", &[]).expect_success().by_rank("ring", 4) {
            assert_eq!(number(&line, "bytes"), 4 << 20, "{line}");
        }
        let outcome = run("exitcode", &["3", "finalized", "3"]).expect(3);
        outcome.expect_one_line(&["rank 3 (", "exited with code 3"]);
    }
}

#[test]
fn sidecar_maps_requested_libpmix_only() {
    for (server, _, client, _) in pairs() {
        // No rank 9 is there to end the job: all wait.
        let args = ["9", "without-finalize", "0"];
        let run = client
            .run(2, &["--libpmix", server.path()], "exitcode", &args)
            .start();
        run.wait_for_many(Output::Stdout, "exitcode rank=", 2);
        let sidecars = sidecars(&run);
        assert_eq!(sidecars.len(), 1);
        assert_eq!(
            mapped(sidecars[0], "libpmix.so"),
            BTreeSet::from([server.real()])
        );
        run.signal(Signal::TERM);
        run.finish().expect(143);
    }
}

#[test]
fn sidecar_uses_libpmix_of_program_by_default() {
    for (name, _) in CLIENTS {
        let Some(client) = mpi(name) else { continue };
        let own = client.libpmix.as_ref().unwrap().canonicalize().unwrap();
        let outcome = client.run(1, &["-v"], "hello", &[]).run().expect(0);
        let err = outcome.err();
        assert!(err.contains(", the program's own"), "{outcome:?}");
        assert!(
            err.contains(&format!(" ({})\n", own.display())),
            "{outcome:?}"
        );
    }
}

#[test]
fn ranks_take_topology_of_node_from_sidecar() {
    for (server, _, client, _) in pairs() {
        let args = ["9", "without-finalize", "0"];
        let options = ["--virtual-nodes", "2", "--libpmix", server.path()];
        let run = client.run(4, &options, "exitcode", &args).start();
        run.wait_for_many(Output::Stdout, "exitcode rank=", 4);
        let mut by_file: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for pid in processes(&run, "exitcode") {
            // One is found in memory only if it was taken over as it is.
            let files = mapped(pid, "hwloc.sm");
            assert_eq!(files.len(), 1, "{server:?} {client:?}");
            files
                .into_iter()
                .for_each(|file| *by_file.entry(file).or_default() += 1);
        }
        assert_eq!(by_file.into_values().collect::<Vec<_>>(), [2, 2]);
        run.signal(Signal::TERM);
        run.finish().expect(143);
    }
}

#[test]
fn fence_of_ranks_on_one_node_makes_no_upcall() {
    for (server, _, client, _) in pairs() {
        let options = ["-v", "--libpmix", server.path()];
        let outcome = client.run(2, &options, "modex", &[]).run().expect(0);
        let counts = [
            "client_connected",
            "client_finalized",
            "fence",
            "direct_modex",
        ]
        .map(|kind| upcalls(&outcome, kind)[0][0]);
        assert_eq!(counts, [2, 2, 0, 0], "{outcome:?}");
    }
}

#[test]
fn data_cross_nodes_by_fence_and_direct_modex() {
    // Each of 4 ranks on 2 nodes puts 200 bytes and gets those of all others.
    for (server, _) in SERVERS {
        for (client, _) in SERVERS {
            let (Some(server), Some(client)) = (pmix(server), pmix(client)) else {
                continue;
            };
            let options = ["-v", "--virtual-nodes", "2", "--libpmix", server.path()];
            let run = |args| client.run(4, &options, "pmix_wireup", args).run().expect(0);

            let outcome = run(&["3"]);
            outcome.by_rank("pmix_wireup", 4);
            for [count, bytes_in, bytes_out] in upcalls(&outcome, "fence") {
                assert_eq!(count, 1, "{outcome:?}");
                // In goes what this node's two ranks put, out comes what all four put.
                assert!((400..800).contains(&bytes_in), "{outcome:?}");
                assert!((800..1600).contains(&bytes_out), "{outcome:?}");
            }
            assert_eq!(
                upcalls(&outcome, "direct_modex"),
                [[0; 3]; 2],
                "{outcome:?}"
            );

            let outcome = run(&["-d", "3"]);
            outcome.by_rank("pmix_wireup", 4);
            for [count, bytes_in, bytes_out] in upcalls(&outcome, "fence") {
                assert_eq!(count, 1, "{outcome:?}");
                assert!(bytes_in < 200 && bytes_out < 200, "{outcome:?}");
            }
            for [count, bytes_in, bytes_out] in upcalls(&outcome, "direct_modex") {
                // One for each rank of the other node; a second one when both ranks here ask before
                // the first answer is there, which is libpmix's affair.
                assert!((2..=4).contains(&count), "{outcome:?}");
                assert!(
                    bytes_in > 0 && (200 * count..400 * count).contains(&bytes_out),
                    "{outcome:?}"
                );
            }
        }
    }
}

#[test]
fn open_mpi_finds_peers_by_direct_modex_without_data_collection() {
    for (server, _, client, _) in pairs() {
        let options = ["-v", "--virtual-nodes", "2", "--libpmix", server.path()];
        let run = client.run(4, &options, "modex", &[]);
        let outcome = run
            .env("OMPI_MCA_pmix_base_collect_data", "0")
            .run()
            .expect(0);
        outcome.by_rank("modex", 4);
        for kind in ["fence", "direct_modex"] {
            let counts = upcalls(&outcome, kind);
            let [first, second] = counts[..] else {
                panic!("{outcome:?}")
            };
            assert!(first[0] > 0 && second[0] > 0, "{kind}; {outcome:?}");
        }
    }
}

#[test]
fn text_that_open_mpi_logs_is_printed_once() {
    for (server, _) in SERVERS {
        let (Some(server), Some(client)) = (pmix(server), mpi("openmpi5")) else {
            continue;
        };
        let options = ["-v", "--libpmix", server.path()];
        let outcome = client
            .run(2, &options, "abort", &["1", "9"])
            .run()
            .expect(9);
        assert_eq!(upcalls(&outcome, "log")[0][0], 1, "{outcome:?}");
        let text = "MPI_ABORT was invoked on rank 1";
        assert_eq!(outcome.err().matches(text).count(), 1, "{outcome:?}");
        assert_eq!(outcome.out().matches(text).count(), 0, "{outcome:?}");
    }
}

#[test]
fn shared_memory_registered_for_cleanup_is_removed_after_kill() {
    // Open MPI 5 asks for it through PMIx; what is left in /dev/shm fails every run.
    let Some(client) = mpi("openmpi5") else {
        return;
    };
    let run = client
        .run(2, &[], "exitcode", &["9", "without-finalize", "0"])
        .start();
    run.wait_for_many(Output::Stdout, "exitcode rank=", 2);
    eventually("segments of both ranks in both ranks", || {
        let ranks = processes(&run, "exitcode");
        let segments = |pid: &i32| mapped(*pid, "sm_segment.").len();
        (ranks.len() == 2 && ranks.iter().all(|pid| segments(pid) == 2)).then_some(())
    });
    run.signal(Signal::TERM);
    run.finish().expect(143);
}

#[test]
fn fence_across_nodes_with_departed_rank_ends_job() {
    for server in SERVERS.iter().filter_map(|(name, _)| pmix(name)) {
        let program = server.dir.join("pmix_client");
        let options = ["--virtual-nodes", "2", "--pmi", "pmix"];
        let words = options.into_iter().chain(["--libpmix", server.path()]);
        let words = words.chain([program.to_str().unwrap(), "leave"]);
        let outcome = Run::ranks(4, words).run().expect(1);
        outcome.expect_one_line(&[
            "rank 1 (",
            "left the job while other ranks wait for it",
            "ranks waited: ",
        ]);
    }
}
