//! Errors between a PMI client and its server: replies to invalid requests of a PMI-1 client (for
//! PMI-2 see `pmi2_raw`), and the behaviour of real clients that lose their server.

use rustix::process::Signal;

use crate::common::{DEADLINE, Output, Run, Running, eventually, mpi, pmi2, program};
use crate::pmi1_raw::blamed;

const INIT: &str = r"cmd=init pmi_version=1 pmi_subversion=1\n";

/// Two ranks of which rank 0 sends this after init, and the other waits to be killed.
fn sends(requests: &str, then: &str) -> Option<Run> {
    let program = program("pmi_raw")?;
    let text = format!("{INIT}{requests}");
    let args = [
        program.to_str().unwrap(),
        "0",
        "send",
        &text,
        "--then",
        then,
    ];
    Some(Run::ranks(2, args))
}

#[test]
fn invalid_requests_are_refused_each_with_reason() {
    let key = "k".repeat(65);
    let value = "v".repeat(1025);
    let nspace = "$PMI_JOBID";
    let table: [(String, &str); 14] = [
        (
            "cmd=put kvsname=x value=1".into(),
            "put_result rc=-1 msg=missing_key",
        ),
        (
            format!("cmd=put kvsname={nspace} key={key} value=1"),
            "put_result rc=-1 msg=key_too_long",
        ),
        (
            format!("cmd=put kvsname={nspace} key=k value={value}"),
            "put_result rc=-1 msg=value_too_long",
        ),
        (
            format!("cmd=put kvsname={nspace} key=PMI_process_mapping value=x"),
            "put_result rc=-1 msg=reserved_key",
        ),
        (
            format!("cmd=put kvsname={nspace} key=k"),
            "put_result rc=-1 msg=missing_value",
        ),
        (
            "cmd=put key=k value=1".into(),
            "put_result rc=-1 msg=missing_kvsname",
        ),
        (
            "cmd=put kvsname=other key=k value=1".into(),
            "put_result rc=-1 msg=unknown_kvsname",
        ),
        ("cmd=get".into(), "get_result rc=-1 msg=missing_kvsname"),
        (
            format!("cmd=get kvsname={nspace} key=k"),
            "get_result rc=-1 msg=key_not_found",
        ),
        ("cmd=create_kvs".into(), "newkvs rc=-1 msg=not_supported"),
        (
            "cmd=get_ranks".into(),
            "get_ranks_result rc=-1 msg=unknown_command",
        ),
        (INIT.trim_end_matches(r"\n").into(), "response_to_init rc=0"),
        ("cmd=finalize".into(), "finalize_ack rc=0"),
        (
            "cmd=barrier_in".into(),
            "barrier_out rc=-1 msg=not_initialized",
        ),
    ];
    let Some(program) = program("pmi_raw") else {
        return;
    };
    let text: String = table
        .iter()
        .map(|(request, _)| format!("{request}\\n"))
        .collect();
    // A shell, for the name of the job.
    let script = format!(
        "exec {} 0 send \"{INIT}{text}\" --then read",
        program.display()
    );
    let running = Run::ranks(2, ["--pmi", "pmi1", "sh", "-c", &script]).start();
    running.wait_for(Output::Stdout, "barrier_out rc=-1");
    running.signal(Signal::TERM);
    let outcome = running.finish().expect(143);
    let replies: Vec<String> = outcome
        .out()
        .lines()
        .filter_map(|line| line.split_once(" reply=cmd="))
        .map(|(_, reply)| reply.to_owned())
        .collect();
    assert_eq!(replies.len(), 1 + table.len(), "{outcome:?}");
    for ((request, expected), reply) in table.iter().zip(&replies[1..]) {
        assert!(reply.starts_with(expected), "{request}: {reply}");
    }
}

#[test]
fn unserved_version_is_answered_and_may_be_corrected() {
    let Some(program) = program("pmi_raw") else {
        return;
    };
    let text =
        format!(r"cmd=init pmi_version=7 pmi_subversion=0\ncmd=get_maxes\n{INIT}cmd=finalize\n");
    let args = [
        program.to_str().unwrap(),
        "0",
        "send",
        &text,
        "--then",
        "read",
    ];
    let running = Run::ranks(2, args).start();
    for reply in [
        "response_to_init rc=-1 pmi_version=",
        "maxes rc=-1 msg=not_initialized",
        "response_to_init rc=0 pmi_version=1",
        "finalize_ack rc=0",
    ] {
        running.wait_for(Output::Stdout, &format!("reply=cmd={reply}"));
    }
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn lines_that_are_not_requests_are_violation() {
    for (line, words) in [
        ("get_maxes", "request does not start with cmd="),
        ("foo=bar", "request does not start with cmd="),
        ("", "request does not start with cmd="),
        ("cmd=", "invalid command name"),
        ("cmd=abort", "abort without a valid exit code"),
        ("cmd=abort exitcode=x", "abort without a valid exit code"),
    ] {
        let Some(program) = program("pmi_raw") else {
            return;
        };
        let text = format!("{INIT}{line}\\n");
        let args = [
            program.to_str().unwrap(),
            "1",
            "send",
            &text,
            "--then",
            "wait",
        ];
        blamed(
            &Run::ranks(2, args).run(),
            1,
            &["broke its protocol: ", words],
        );
    }
}

#[test]
fn second_entry_to_barrier_is_refused_and_first_continues() {
    let Some(run) = sends(r"cmd=barrier_in\ncmd=barrier_in\n", "read") else {
        return;
    };
    let running = run.start();
    running.wait_for(Output::Stdout, "barrier_out rc=-1 msg=already_in_barrier");
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

/// Ranks of `program` that meet in MPI_Init, but for rank 1, which never comes; wireup is killed
/// when the others wait for it.
#[track_caller]
fn abandoned(run: Run, waiting: &str, count: usize) {
    let run = run.clean_within(DEADLINE).start();
    let reads = format!("{} 0x3 ", libc::SYS_read);
    eventually("ranks wait for an answer", || {
        let waits = run.processes().into_iter().filter(|process| {
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", process.pid));
            process.name == waiting && call.is_ok_and(|call| call.starts_with(&reads))
        });
        (waits.count() >= count).then_some(())
    });
    run.signal(Signal::KILL);
    // That everything is gone is checked by the run itself.
    run.finish().expect(137);
}

/// A script that lets rank 1 sleep and runs the program that follows in all others.
const WITHOUT_RANK_1: [&str; 3] = [
    "sh",
    "-c",
    "ulimit -c 0; [ $WIREUP_RANK = 1 ] && exec sleep 1000; exec $0",
];

#[test]
fn clients_that_lose_server_in_barrier_leave_nothing() {
    // MPICH 5 meets its peers by PMI only on several nodes.
    for (name, options) in [
        ("mpich4", &[][..]),
        ("impi", &[]),
        ("mpich5", &["--virtual-nodes", "3"]),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let hello = mpi.program("hello");
        let words = options.iter().chain(&["--pmi", "pmi1"]);
        let words = words.chain(&WITHOUT_RANK_1).copied();
        let run = Run::ranks(3, words.chain([hello.to_str().unwrap()]));
        let run = mpi
            .env
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value));
        abandoned(run, "hello", 2);
    }
}

#[test]
fn pmi2_clients_that_lose_server_in_fence_leave_nothing() {
    let Some(pmi2) = pmi2() else { return };
    let api = pmi2.program("pmi2_api");
    let mut words = vec!["--pmi", "pmi2"];
    words.extend(WITHOUT_RANK_1);
    words.push(api.to_str().unwrap());
    abandoned(Run::ranks(3, &words), "pmi2_api", 2);
    let Some(mpi) = mpi("impi") else { return };
    let hello = mpi.program("hello");
    words.pop();
    words.push(hello.to_str().unwrap());
    let run = Run::ranks(3, &words).env("I_MPI_PMI_LIBRARY", &pmi2.library);
    let run = mpi
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    abandoned(run, "hello", 2);
}

/// The requests of PMI-1 to which `pmi_fault` answers badly, and how.
const REQUESTS: [&str; 6] = ["init", "get_maxes", "barrier_in", "put", "get", "finalize"];
const FAULTS: [&str; 4] = ["close", "wrong", "noise", "refuse"];

/// Whether the client does not mind: it goes on, and the job ends well.
fn is_passed_over(client: &str, request: &str, fault: &str) -> bool {
    match (request, fault) {
        ("finalize", "wrong" | "refuse") => true,
        ("finalize", "noise") | ("get_maxes" | "barrier_in", "refuse") => client != "mpich5",
        _ => false,
    }
}

#[test]
fn invalid_reply_to_any_request_ends_job_or_is_harmless() {
    let Some(fault) = program("pmi_fault") else {
        return;
    };
    for (name, options) in [
        ("mpich4", &[][..]),
        // Puts nothing on a single node.
        ("mpich5", &["--virtual-nodes", "3"]),
        ("impi", &[]),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let start = |request, how| {
            // Intel's rank 0 puts for all.
            let rank = if (name, request) == ("impi", "put") {
                0
            } else {
                1
            };
            let wrap = format!("{} {rank} {request} 1 {how}", fault.display());
            let mut options = [options, &["--pmi", "pmi1", "--wrap", &wrap]].concat();
            if !is_passed_over(name, request, how) {
                // A client that has not understood may wait where the others do not.
                options.extend(["--fence-timeout", "6"]);
            }
            mpi.run(3, &options, "hello", &[]).start()
        };
        for request in REQUESTS {
            // At once, because some have to wait for the limit.
            let running: Vec<Running> = FAULTS.map(|how| start(request, how)).into();
            for (how, run) in FAULTS.into_iter().zip(running) {
                let outcome = run.finish();
                let row = format!("{name}: {request}: {how}; {outcome:?}");
                assert_eq!(outcome.err().matches("pmi_fault rank=").count(), 1, "{row}");
                if is_passed_over(name, request, how) {
                    outcome.expect_success().by_rank("hello", 3);
                } else {
                    assert_ne!(outcome.code, 0, "{row}");
                    outcome.expect_one_line(&["rank "]);
                }
            }
        }
    }
}
