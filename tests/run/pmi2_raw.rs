//! PMI-2 at the socket: every generation of clients in its own bytes, one job for all of them, and
//! ranks that misuse it.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::common::{Outcome, Run, eventually, program};
use crate::pmi1_raw::blamed;

/// The PMI-2 clients whose bytes `pmi2_raw` writes.
const CLIENTS: [&str; 3] = ["mpich4", "slurm", "mpich5"];

/// `count` ranks of `pmi2_raw` that go through these steps.
fn ranks(count: u32, options: &[&str], steps: &[&str]) -> Option<Run> {
    let program = program("pmi2_raw")?;
    let program = program.to_str().unwrap();
    Some(Run::ranks(
        count,
        options.iter().chain(&[program]).chain(steps),
    ))
}

/// Three ranks of which rank 1 goes through `steps` after init, and the others wait in a fence.
fn raw(steps: &[&str]) -> Option<Run> {
    let steps = [&["init", "for", "1"], steps, &["for", "all", "fence"]].concat();
    ranks(3, &[], &steps)
}

/// The replies that a rank printed, without `cmd=`.
fn replies(outcome: &Outcome, rank: u32) -> Vec<String> {
    let start = format!("pmi2_raw rank={rank} reply=cmd=");
    let text = outcome.out();
    let lines = text.lines().filter_map(|line| line.strip_prefix(&start));
    lines.map(str::to_owned).collect()
}

/// Returns the bytes that a client writes for these steps, as text.
fn written(client: &str, steps: &[&str]) -> Option<Vec<String>> {
    let program = program("pmi2_raw")?;
    let output = Command::new(program)
        .args(["only-print", "as", client])
        .args(steps)
        .envs([("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_JOBID", "3.0")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.split_once(" bytes=").unwrap());
    Some(lines.map(|(_, bytes)| bytes.to_owned()).collect())
}

#[test]
fn test_client_writes_captured_bytes_of_real_clients() {
    let init = r"cmd=init pmi_version=2 pmi_subversion=0\n";
    let junk = r"\x00\x00\x00\x00\x00\x00";
    let steps = [
        ("init", 2),
        ("put bc-0 addr;0;=x", 1),
        ("fence", 1),
        ("get-of %j P1-businesscard", 1),
        ("get nokey", 1),
        ("wait-node na", 1),
        ("node-attr nb", 1),
        ("lookup s1", 1),
        ("abort bad;thing", 1),
        ("finalize", 1),
    ];
    let table = [
        (
            "slurm",
            [
                "51    cmd=fullinit;pmijobid=3.0;pmirank=0;threaded=FALSE;",
                "39    cmd=kvs-put;key=bc-0;value=addr;;0;;=x;",
                "14    cmd=kvs-fence;",
                "51    cmd=kvs-get;jobid=3.0;srcid=-1;key=P1-businesscard;",
                "38    cmd=kvs-get;jobid=;srcid=-1;key=nokey;",
                "38    cmd=info-getnodeattr;key=na;wait=TRUE;",
                "39    cmd=info-getnodeattr;key=nb;wait=FALSE;",
                "39    cmd=name-lookup;name=s1;infokeycount=0;",
                "38    cmd=abort;isworld=TRUE;msg=bad;;thing;",
                "13    cmd=finalize;",
            ],
        ),
        (
            "mpich4",
            [
                "57    cmd=fullinit;pmijobid=3.0;pmirank=0;threaded=FALSE;",
                "45    cmd=kvs-put;key=bc-0;value=addr;;0;;=x;",
                "20    cmd=kvs-fence;",
                "57    cmd=kvs-get;jobid=3.0;srcid=-1;key=P1-businesscard;",
                "44    cmd=kvs-get;jobid=;srcid=-1;key=nokey;",
                "44    cmd=info-getnodeattr;key=na;wait=TRUE;",
                "45    cmd=info-getnodeattr;key=nb;wait=FALSE;",
                "45    cmd=name-lookup;name=s1;infokeycount=0;",
                "44    cmd=abort;isworld=TRUE;msg=bad;;thing;",
                "19    cmd=finalize;",
            ],
        ),
        (
            "mpich5",
            [
                "    23cmd=fullinit;pmirank=0;",
                "    37cmd=kvs-put;key=bc-0;value=addr;0;=x;",
                "    14cmd=kvs-fence;",
                "    42cmd=kvs-get;jobid=3.0;key=P1-businesscard;",
                "    22cmd=kvs-get;key=nokey;",
                "    38cmd=info-getnodeattr;key=na;wait=TRUE;",
                "    28cmd=info-getnodeattr;key=nb;",
                "    24cmd=name-lookup;name=s1;",
                "    40cmd=abort;exitcode=-1;message=bad;thing;",
                "    13cmd=finalize;",
            ],
        ),
    ];
    for (client, frames) in table {
        for ((step, messages), frame) in steps.into_iter().zip(frames) {
            let words: Vec<&str> = step.split(' ').collect();
            let Some(written) = written(client, &words) else {
                return;
            };
            let junk = if client == "mpich4" { junk } else { "" };
            assert_eq!(written.len(), messages, "{client}: {written:?}");
            assert_eq!(written[messages - 1], format!("{frame}{junk}"), "{client}");
            assert!(messages == 1 || written[0] == init, "{client}");
        }
    }
    let threaded = written("mpich4", &["threaded", "fence"]);
    let expected = format!("41    cmd=kvs-fence;thrid=0x7ffe9344b370;{junk}");
    assert!(threaded.is_none_or(|written| written == [expected]));
}

/// Steps of a rank that need peers; at least two ranks are on a node.
#[rustfmt::skip]
const MEETING: [&str; 64] = [
    "init", "job-getid",
    "put", "card-%r", "addr#%r$x y=(z)", "put", "same", "same", "fence",
    "get-of", "%j", "card-%s", "expect", "addr#%s$x y=(z)",
    "get", "card-%p", "expect", "addr#%p$x y=(z)", "get", "nokey",
    "job-attr", "universeSize", "job-attr", "nosuch",
    "put-node", "node-%r", "v%r", "wait-node", "node-%r", "expect", "v%r",
    "node-attr", "nobody",
    "publish", "service %r", "port#%r$", "fence",
    "lookup", "service %s", "expect", "port#%s$", "lookup", "nobody",
    "ring", "l%r", "r%r", "fence",
    "unpublish", "service %r", "fence", "lookup", "service %s",
    "put", "card-%r", "again-%r", "fence", "fence",
    "get", "card-%s", "expect", "again-%s",
    "get", "same", "finalize",
];

/// Fails unless every rank of the job went through [`MEETING`] and saw what it must see.
#[track_caller]
fn expect_meeting(outcome: &Outcome, size: u32) {
    for rank in 0..size {
        let replies = replies(outcome, rank);
        let count = |start: &str| {
            let found = replies.iter().filter(|reply| reply.starts_with(start));
            found.count()
        };
        assert_eq!(count("kvs-fence-response;"), 6, "{replies:?}");
        // `thrid` may stand between the name and the rest.
        let miss = |name: &str, end: &str| {
            let missed = |reply: &&String| reply.starts_with(name) && reply.ends_with(end);
            replies.iter().filter(missed).count()
        };
        assert_eq!(miss("kvs-get-response;", "rc=0;found=FALSE;"), 1);
        assert_eq!(miss("info-getjobattr-response;", "rc=0;found=FALSE;"), 1);
        assert_eq!(miss("info-getnodeattr-response;", "rc=0;found=FALSE;"), 1);
        let not_found = "rc=1;found=FALSE;errmsg=service not found;";
        assert_eq!(miss("name-lookup-response;", not_found), 2, "{replies:?}");
        let neighbours = [(rank + size - 1) % size, (rank + 1) % size];
        let ring = format!(
            "rc=0;ring-count={rank};ring-left=r{};ring-right=l{};",
            neighbours[0], neighbours[1]
        );
        assert_eq!(miss("ring-response;", &ring), 1, "{replies:?}");
    }
}

#[test]
fn every_generation_of_clients_is_served_in_any_pieces() {
    for client in CLIENTS {
        for pieces in ["1", "3", "7", "100000"] {
            let start = ["as", client, "pieces", pieces];
            let Some(run) = ranks(3, &[], &[&start[..], &MEETING].concat()) else {
                return;
            };
            expect_meeting(&run.run().expect_quiet_success(), 3);
        }
    }
}

#[test]
fn spawn_reply_has_code_of_every_process() {
    for (program, infos, expected) in [
        ("true", "", "nerrs=0;"),
        (
            "true",
            "infokeycount=1;infokey0=soft;infoval0=1;",
            "nerrs=3;err0=0;err1=1;err2=1;",
        ),
        ("/no/such", "", "nerrs=3;err0=1;err1=1;err2=1;"),
        (
            "true",
            "infokeycount=1;infokey0=credential;infoval0=user;",
            "rc=14;errmsg=info credential not supported, \
             spawned processes run as the user of the launch, remove it;",
        ),
    ] {
        let request = format!("cmd=spawn;ncmds=1;subcmd={program};maxprocs=3;argc=0;{infos}");
        let steps = [
            "init", "for", "0", "frame", &request, "for", "all", "finalize",
        ];
        let options = ["--oversubscribe", "--virtual-nodes", "2"];
        let Some(run) = ranks(2, &options, &steps) else {
            return;
        };
        let outcome = run.run().expect(0);
        let replies = replies(&outcome, 0);
        let reply = replies
            .iter()
            .find(|reply| reply.starts_with("spawn-response;"));
        let reply = reply.unwrap();
        assert!(reply.ends_with(&format!(";{expected}")), "{reply}");
    }
}

/// Makes an object of System V with this option of ipcmk; returns its number.
fn make_ipc(option: &[&str]) -> String {
    let output = Command::new("ipcmk").args(option).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().rsplit(' ').next().unwrap().to_owned()
}

/// Whether the kernel's list of System V's objects of a kind has this number.
fn has_ipc(kind: &str, id: &str) -> bool {
    let list = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap();
    let mut ids = list
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    ids.any(|found| found == id)
}

#[test]
fn registered_resources_end_with_their_job() {
    let dir = tempfile::tempdir().unwrap();
    for (end, code) in [(&["finalize"][..], 0), (&["kill", "9"], 137)] {
        let file = dir.path().join("resource");
        fs::write(&file, "").unwrap();
        let objects = [
            ("shm", &["-M", "4096"][..]),
            ("sem", &["-S", "1"]),
            ("msg", &["-Q"]),
        ];
        let objects = objects.map(|(kind, option)| (kind, make_ipc(option)));
        let named = [("file", file.to_str().unwrap())];
        let named = named
            .into_iter()
            .chain(objects.iter().map(|(kind, id)| (*kind, &**id)));
        let requests: Vec<String> = named
            .map(|(kind, name)| format!("cmd=node-registerresource;type={kind};name={name};"))
            .collect();
        let mut steps = vec!["init"];
        for request in &requests {
            steps.extend(["frame", request]);
        }
        // The file that changes is the same one.
        steps.extend(["touch", file.to_str().unwrap()]);
        steps.extend(end);
        let Some(run) = ranks(1, &[], &steps) else {
            return;
        };
        run.run().expect(code);
        assert!(!file.exists());
        for (kind, id) in &objects {
            assert!(!has_ipc(kind, id), "{kind} {id}");
        }
    }
}

#[test]
fn job_attribute_names_signals_that_reach_ranks() {
    let steps = [
        "init",
        "job-attr",
        "propagatedSignals",
        "expect",
        "SIGUSR1,SIGUSR2,SIGTSTP,SIGCONT,SIGALRM,SIGABRT,SIGURG,SIGXCPU",
        "finalize",
    ];
    let Some(run) = ranks(2, &["--virtual-nodes", "2"], &steps) else {
        return;
    };
    run.run().expect_quiet_success();
}

#[test]
fn threads_of_clients_are_named_in_their_answers() {
    // The client itself fails when an answer names another thread than the question.
    for client in ["mpich4", "mpich5"] {
        let start = ["as", client, "threaded"];
        let Some(run) = ranks(3, &[], &[&start[..], &MEETING].concat()) else {
            return;
        };
        let outcome = run.run().expect_quiet_success();
        expect_meeting(&outcome, 3);
        assert!(replies(&outcome, 0)[3].contains(";thrid="), "{outcome:?}");
    }
}

#[test]
fn generations_of_clients_fence_in_one_job_across_nodes() {
    #[rustfmt::skip]
    let start = [
        "for", "0", "as", "mpich4", "for", "1", "as", "slurm", "for", "2", "as", "mpich5",
        "for", "3", "as", "mpich4", "pieces", "5", "for", "4", "as", "mpich5", "threaded",
        "for", "all",
    ];
    for options in [
        &[][..],
        &["--virtual-nodes", "2"],
        &["--virtual-nodes", "6"],
    ] {
        let Some(run) = ranks(6, options, &[&start[..], &MEETING].concat()) else {
            return;
        };
        expect_meeting(&run.run().expect_quiet_success(), 6);
    }
}

#[test]
fn ring_passes_all_nodes_and_skips_dead_ranks() {
    const RANKS: usize = 5;
    for nodes in ["1", "3"] {
        // Ranks of one node follow each other in one of these only.
        for by in ["slot", "node"] {
            for dead in [&[][..], &["0"], &["2", "3"]] {
                let options = ["--virtual-nodes", nodes, "--map-by", by];
                let options = [
                    &options[..],
                    &["--on-failure", "continue", "--oversubscribe"],
                ]
                .concat();
                let mut steps = vec!["init"];
                for rank in dead {
                    steps.extend(["for", rank, "kill", "9"]);
                }
                steps.extend(["for", "all", "ring", "l%r", "r%r", "finalize"]);
                let Some(run) = ranks(RANKS as u32, &options, &steps) else {
                    return;
                };
                let outcome = run.run().expect(if dead.is_empty() { 0 } else { 137 });
                let living = (0..RANKS).filter(|rank| !dead.contains(&&*rank.to_string()));
                let living: Vec<usize> = living.collect();
                for (at, rank) in living.iter().enumerate() {
                    let count = living.len();
                    let (before, after) =
                        (living[(at + count - 1) % count], living[(at + 1) % count]);
                    let ring = format!(
                        "ring-response;rc=0;ring-count={rank};ring-left=r{before};ring-right=l{after};"
                    );
                    let replies = replies(&outcome, *rank as u32);
                    assert!(
                        replies.contains(&ring),
                        "{ring} {options:?} {dead:?} {outcome:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn semicolons_in_values_arrive_as_clients_parse_them() {
    let steps = ["init", "put", "k", "a;b;;c", "fence", "get", "k"];
    for (client, expected) in [
        ("slurm", "a;b;;c"),
        ("mpich4", "a;b;;c"),
        // It neither doubles them nor undoes that: what follows a single one is no part of it.
        ("mpich5", "a"),
    ] {
        let steps = [
            &["as", client][..],
            &steps,
            &["expect", expected, "finalize"],
        ]
        .concat();
        let Some(run) = ranks(2, &[], &steps) else {
            return;
        };
        run.run().expect_quiet_success();
    }
}

#[test]
fn wait_for_node_attribute_ends_with_its_put() {
    // Rank 1 asks before the others have it, and one that has ended cannot put it any more.
    #[rustfmt::skip]
    let steps = [
        "init",
        "for", "1", "later", "wait-node", "key", "touch", "asked", "reply", "expect", "value",
        "for", "2", "await", "asked", "put-node", "key", "value",
        "for", "all", "finalize",
    ];
    let Some(run) = ranks(3, &[], &steps) else {
        return;
    };
    run.run().expect_quiet_success();
}

#[test]
fn node_attribute_that_no_rank_can_put_ends_job() {
    #[rustfmt::skip]
    let Some(run) = ranks(3, &[], &["init", "for", "1", "wait-node", "key", "for", "all", "finalize"])
    else {
        return;
    };
    let outcome = run.run().expect(1);
    let line = outcome.expect_one_line(&["left the job while other ranks wait for it"]);
    assert!(line.starts_with("wireup: rank 0 (") || line.starts_with("wireup: rank 2 ("));
    // Ranks of another node cannot put it either, and do not count as those that could.
    let options = ["--virtual-nodes", "2"];
    #[rustfmt::skip]
    let steps = [
        "init", "for", "0", "wait-node", "key",
        "for", "2", "wait", "for", "3", "wait", "for", "1", "finalize",
    ];
    let Some(run) = ranks(4, &options, &steps) else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["left the job while other ranks wait for it"],
    );
}

#[test]
fn rank_killed_while_others_are_in_fence_ends_job() {
    for (steps, code, words) in [
        (
            &["put", "k", "v", "exit", "3"][..],
            3,
            "exited with code 3 after MPI_Init",
        ),
        (&["kill", "9"], 137, "was killed by signal 9 (SIGKILL)"),
        (&["kill", "11"], 139, "was killed by signal 11 (SIGSEGV)"),
        (
            &["exit", "0"],
            1,
            "exited with code 0 between MPI_Init and MPI_Finalize",
        ),
        (
            &["finalize", "exit", "0"],
            1,
            "left the job while other ranks wait for it; 2 ranks waited: ",
        ),
        (
            &["finalize", "exit", "6"],
            6,
            "exited with code 6 after MPI_Finalize",
        ),
        (
            &["close", "wait"],
            1,
            "broke its protocol: closed its PMI connection before finalize",
        ),
    ] {
        let Some(run) = raw(steps) else {
            return;
        };
        blamed(&run.run(), code, &[words]);
    }
    // The fence completes: the others must stay until the rank that has sent its part exits.
    let steps = [
        "init", "for", "1", "later", "fence", "exit", "4", "for", "all", "fence", "wait",
    ];
    let Some(run) = ranks(3, &[], &steps) else {
        return;
    };
    blamed(&run.run(), 4, &["exited with code 4 "]);
    let Some(run) = ranks(
        3,
        &[],
        &["for", "1", "exit", "0", "for", "all", "init", "fence"],
    ) else {
        return;
    };
    let words = "without joining the job while other ranks wait for it in MPI_Init";
    blamed(&run.run(), 1, &[words]);
}

#[test]
fn abort_in_each_form_ends_job_with_whole_message() {
    for (client, text, code, message_part) in [
        ("slurm", "bad;thing happened", 255, ": bad;thing happened"),
        ("mpich4", "bad;thing happened", 255, ": bad;thing happened"),
        ("mpich5", "thing happened", 255, ": thing happened"),
        (
            "mpich4",
            "application called MPI_Abort(MPI_COMM_WORLD, 42) - process 1",
            42,
            "called MPI_Abort with code 42",
        ),
    ] {
        let Some(run) = raw(&["as", client, "abort", text, "wait"]) else {
            return;
        };
        blamed(
            &run.run(),
            code,
            &["called MPI_Abort with code ", message_part],
        );
        // Whatever its process does then.
        let Some(run) = raw(&["as", client, "abort", text, "exit", "0"]) else {
            return;
        };
        blamed(
            &run.run(),
            code,
            &["called MPI_Abort with code ", message_part],
        );
    }
}

#[test]
fn broken_frames_are_violation() {
    let length = "invalid length of a PMI-2 message: ";
    for (bytes, words) in [
        ("      ", length),
        ("     0", length),
        ("12a   cmd=job-getid;", length),
        ("-5    cmd=job-getid;", length),
        ("1 4   cmd=job-getid;", length),
        (r"\0\0\0\0\0\0", length),
        ("999999cmd=kvs-put;key=", "PMI-2 message of 999999 bytes; "),
        ("6     hello;", "PMI-2 message does not start with cmd=NAME"),
        (r"6     cmd=x\0", "PMI-2 message does not start with cmd="),
        ("10    cmd=a b;x;", "broke its protocol: "),
    ] {
        let Some(run) = raw(&["bytes", bytes, "wait"]) else {
            return;
        };
        blamed(&run.run(), 1, &["broke its protocol: ", words]);
    }
    for count in ["100", "65536", "1000000"] {
        let Some(run) = raw(&["garbage", count, "wait"]) else {
            return;
        };
        blamed(&run.run(), 1, &["broke its protocol: "]);
    }
}

#[test]
fn exit_within_frame_is_violation() {
    for (bytes, inside) in [("20", 2), ("20    cmd=kvs-fen", 17)] {
        let Some(run) = raw(&["bytes", bytes, "exit", "0"]) else {
            return;
        };
        let words = format!("connection closed in the middle of a message ({inside} bytes)");
        blamed(&run.run(), 1, &[&words]);
    }
    // While its process lives, the rest may still come.
    let Some(run) = raw(&["bytes", "20    cmd=kvs-fen", "touch", "sent", "wait"]) else {
        return;
    };
    let sent = run.dir().join("sent");
    let running = run.start();
    eventually("half a frame is sent", || sent.exists().then_some(()));
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn invalid_requests_are_answered_and_rank_continues() {
    let long_key = "k".repeat(65);
    let (longest, too_long) = ("v".repeat(1023), "v".repeat(1025));
    let table = [
        ("frame cmd=frobnicate;x=1;", "frobnicate-response;rc=14;"),
        (
            "frame cmd=kvs-getall;jobid=no/job;",
            "kvs-getall-response;rc=3;",
        ),
        ("frame cmd=kvs-put;value=x;", "kvs-put-response;rc=4;"),
        ("frame cmd=kvs-put;key=;value=x;", "kvs-put-response;rc=4;"),
        (
            r"frame cmd=kvs-put;key=k;value=a\0b;",
            "kvs-put-response;rc=0;",
        ),
        ("frame cmd=kvs-get;x=y;", "kvs-get-response;rc=4;"),
        ("get-of elsewhere k", "kvs-get-response;rc=3;found=FALSE;"),
        ("unpublish nobody", "name-unpublish-response;rc=1;"),
        (&format!("put {long_key} v"), "kvs-put-response;rc=5;"),
        (&format!("put k {longest}"), "kvs-put-response;rc=0;"),
        (&format!("put k {too_long}"), "kvs-put-response;rc=7;"),
        ("put PMI_process_mapping x", "kvs-put-response;rc=4;"),
        (
            &format!("put-node {long_key} v"),
            "info-putnodeattr-response;rc=5;",
        ),
        (
            &format!("put-node k {too_long}"),
            "info-putnodeattr-response;rc=7;",
        ),
        ("get k", "kvs-get-response;rc=0;found=TRUE;value=vvv"),
    ];
    let words: Vec<&str> = table
        .iter()
        .flat_map(|(steps, _)| {
            // The text of a frame is one argument, blanks and all.
            match steps.split_once(' ').unwrap() {
                (first, rest) if first == "frame" => vec![first, rest],
                _ => steps.split(' ').collect(),
            }
        })
        .collect();
    for client in CLIENTS {
        let steps = [&["as", client][..], &words].concat();
        let Some(run) = raw(&steps) else {
            return;
        };
        let run = run.run().expect(1);
        // It is through with them, and leaves without finalize.
        run.expect_one_line(&["between MPI_Init and MPI_Finalize"]);
        let replies = replies(&run, 1);
        for ((step, expected), reply) in table.iter().zip(&replies[2..]) {
            let fits = expected.split('|').any(|start| reply.starts_with(start));
            assert!(fits, "{client}: {step}: {reply}");
        }
    }
}

#[test]
fn init_of_unknown_version_is_answered_with_served_version() {
    let Some(program) = program("pmi2_raw") else {
        return;
    };
    // Read by the shell: a line, before any frame.
    let init = r"cmd=init pmi_version=9 pmi_subversion=0\n";
    let script = "$0 bytes \"$1\"; read -r line <&$PMI_FD; echo \"$line\"";
    let args = ["--pmi", "pmi1", "sh", "-c", script];
    let run = Run::ranks(1, args.iter().chain(&[program.to_str().unwrap(), init]));
    let outcome = run.run().expect(0);
    assert!(
        outcome
            .out()
            .starts_with("cmd=response_to_init rc=-1 pmi_version="),
        "{outcome:?}"
    );
}

#[test]
fn second_init_on_connection_starts_over() {
    let Some(run) = ranks(
        2,
        &[],
        &["init", "put", "k", "v", "init", "fence", "finalize"],
    ) else {
        return;
    };
    run.run().expect_quiet_success();
    let Some(run) = ranks(
        2,
        &[],
        &["init", "fence", "finalize", "init", "fence", "finalize"],
    ) else {
        return;
    };
    run.run().expect_quiet_success();
}

#[test]
fn second_fence_of_rank_in_fence_is_violation() {
    // The others stay away: with them in it the first fence could be over when the second comes.
    let steps = [
        "init", "for", "1", "later", "fence", "fence", "for", "all", "wait",
    ];
    let Some(run) = ranks(3, &[], &steps) else {
        return;
    };
    blamed(&run.run(), 1, &["broke its protocol: ", "kvs-fence"]);
    // A rank that has finalized gets an error.
    let steps = [
        "init", "for", "1", "finalize", "fence", "for", "all", "fence",
    ];
    let Some(run) = ranks(1, &[], &["init", "finalize", "fence"]) else {
        return;
    };
    let outcome = run.run().expect(0);
    let last = replies(&outcome, 0).pop().unwrap();
    assert!(last.starts_with("kvs-fence-response;rc=1;"), "{last}");
    let Some(run) = ranks(3, &[], &steps) else {
        return;
    };
    blamed(&run.run(), 1, &["left the job while other ranks wait"]);
}

#[test]
fn rank_that_never_reads_replies_is_held_back() {
    let Some(run) = raw(&["endless", "300000000", "wait"]) else {
        return;
    };
    run.expect_held_back("pmi2_raw");
}

#[test]
fn garbage_of_all_ranks_at_once_is_one_failure() {
    let Some(run) = ranks(32, &[], &["init", "garbage", "5000", "wait"]) else {
        return;
    };
    let outcome = run.run().expect(1);
    outcome.expect_one_line(&["rank ", "broke its protocol"]);
}
