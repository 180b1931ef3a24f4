//! Single requests: refusals, malformed input, names, spawn, and what reports say.

use super::*;
use crate::pmi::limits::{PROCESS_MAPPING_MAX, REQUEST_LINE_MAX, SPAWN_MAX};
use crate::pmi::server::SetupError;

#[test]
fn unservable_request_is_answered_and_connection_kept() {
    let long_key = format!("cmd=get kvsname=job.0 key={}", "k".repeat(65));
    let long_value = format!("cmd=put kvsname=job.0 key=k value={}", "v".repeat(1025));
    let long_name = format!("cmd=lookup_name service={}", "s".repeat(1025));
    let table = [
        (
            "cmd=frobnicate",
            "cmd=frobnicate_result rc=-1 msg=unknown_command",
        ),
        (
            "cmd=mput a b=c",
            "cmd=mput_result rc=-1 msg=unknown_command",
        ),
        (
            "cmd=get_ranks2hosts",
            // Nobody has said how the nodes are called.
            "cmd=put_ranks2hosts rc=-1 msg=not_supported",
        ),
        ("cmd=create_kvs", "cmd=newkvs rc=-1 msg=not_supported"),
        (
            "cmd=destroy_kvs kvsname=x",
            "cmd=kvs_destroyed rc=-1 msg=not_supported",
        ),
        (
            "cmd=getbyidx kvsname=x idx=0",
            "cmd=getbyidx_results rc=-1 msg=not_supported",
        ),
        (
            "cmd=get kvsname=no/job key=k",
            "cmd=get_result rc=-1 msg=unknown_kvsname",
        ),
        (
            "cmd=put kvsname=other key=k value=v",
            "cmd=put_result rc=-1 msg=unknown_kvsname",
        ),
        (
            "cmd=get kvsname=job.0 key=nothing",
            "cmd=get_result rc=-1 msg=key_not_found",
        ),
        (
            "cmd=get kvsname=job.0",
            "cmd=get_result rc=-1 msg=missing_key",
        ),
        (
            "cmd=get kvsname=job.0 key=",
            "cmd=get_result rc=-1 msg=missing_key",
        ),
        ("cmd=get key=k", "cmd=get_result rc=-1 msg=missing_kvsname"),
        ("cmd=get", "cmd=get_result rc=-1 msg=missing_kvsname"),
        (
            "cmd=put kvsname=job.0 value=v",
            "cmd=put_result rc=-1 msg=missing_key",
        ),
        (
            "cmd=put kvsname=job.0 key=k",
            "cmd=put_result rc=-1 msg=missing_value",
        ),
        (
            "cmd=put kvsname=job.0 key=PMI_process_mapping value=x",
            "cmd=put_result rc=-1 msg=reserved_key",
        ),
        (&long_key, "cmd=get_result rc=-1 msg=key_too_long"),
        (&long_value, "cmd=put_result rc=-1 msg=value_too_long"),
        (
            &long_name,
            "cmd=lookup_result rc=1 info=fail msg=service_too_long",
        ),
        (
            "cmd=lookup_name",
            "cmd=lookup_result rc=1 info=fail msg=missing_service",
        ),
        (
            "cmd=publish_name service=s",
            "cmd=publish_result rc=1 info=fail msg=missing_port",
        ),
        (
            "cmd=publish_name service=s port=",
            "cmd=publish_result rc=1 info=fail msg=missing_port",
        ),
        (
            "cmd=unpublish_name service=",
            "cmd=unpublish_result rc=1 info=fail msg=missing_service",
        ),
        (
            "cmd=init pmi_version=3 pmi_subversion=0",
            "cmd=response_to_init rc=-1 pmi_version=2 pmi_subversion=0 msg=unsupported_version",
        ),
        (
            "cmd=init pmi_version=one pmi_subversion=0",
            "cmd=response_to_init rc=-1 pmi_version=2 pmi_subversion=0 msg=invalid_pmi_version",
        ),
        (
            "cmd=init",
            "cmd=response_to_init rc=-1 pmi_version=2 pmi_subversion=0 msg=missing_pmi_version",
        ),
    ];
    let mut job = Job::initialized(1);
    for (request, reply) in table {
        assert_eq!(job.reply(0, request), reply, "{request}");
        assert_eq!(job.reply(0, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0");
    }
}

#[test]
fn unparsable_input_ends_connection_with_reason() {
    let table = [
        (
            "hello\n",
            "request does not start with cmd= or mcmd=: `hello`",
        ),
        ("\n", "request does not start with cmd= or mcmd=: ``"),
        (
            " cmd=get_maxes\n",
            "request does not start with cmd= or mcmd=: ` cmd=get_maxes`",
        ),
        (
            "44    cmd=fullinit;\n",
            "request does not start with cmd= or mcmd=: `44    cmd=fullinit;`",
        ),
        ("cmd=\n", "invalid command name in `cmd=`"),
        ("cmd= get\n", "invalid command name in `cmd= get`"),
        ("cmd=g\u{7}t\n", "invalid command name in `cmd=g\\x07t`"),
        ("cmd=get kvsname\n", "field without `=` in `kvsname`"),
        ("cmd=get_maxes =x\n", "field without `=` in `=x`"),
        ("cmd=get key=a b\n", "field without `=` in `b`"),
        (
            "cmd=get key=a\0\n",
            "NUL byte in request `cmd=get key=a\\x00`",
        ),
        ("cmd=abort\n", "abort without a valid exit code"),
        (
            "cmd=abort exitcode=9999999999\n",
            "abort without a valid exit code",
        ),
        ("mcmd=put\n", "unknown multi-line request `mcmd=put`"),
        (
            "mcmd=spawn\nmcmd=spawn\n",
            "spawn request: block without endcmd",
        ),
        ("mcmd=spawn\nnprocs\n", "field without `=` in `nprocs`"),
        (
            "mcmd=spawn\nendcmd\n",
            "spawn request: block without a valid totspawns and spawnssofar",
        ),
        (
            "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nendcmd\nmcmd=spawn\nendcmd\n",
            "spawn request: block without a valid totspawns and spawnssofar",
        ),
        (
            "mcmd=spawn\ntotspawns=1\nspawnssofar=2\nendcmd\n",
            "spawn request: spawnssofar beyond totspawns",
        ),
        (
            "mcmd=spawn\ntotspawns=2\nspawnssofar=1\nendcmd\ncmd=finalize\n",
            "spawn request: another request between its blocks",
        ),
    ];
    for (input, reason) in table {
        let mut job = Job::initialized(2);
        job.feed(0, input.as_bytes());
        assert_eq!(
            job.effects,
            [format!("E> misbehaved 0: {reason}")],
            "{input:?}"
        );
        assert_eq!(job.state(0), format!("broke the protocol: {reason}"));
        job.effects.clear();
        assert_eq!(
            job.ask(0, "cmd=get_maxes"),
            [""; 0],
            "nothing is answered any more"
        );
        assert_eq!(job.reply(1, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0");
    }
}

#[test]
fn endless_line_ends_at_its_limit_and_is_not_kept() {
    let mut job = Job::initialized(1);
    let piece = [b'x'; 4096];
    for _ in 0..REQUEST_LINE_MAX / piece.len() {
        job.feed(0, &piece);
        assert!(job.effects.is_empty());
        assert!(job.server.unfinished() <= REQUEST_LINE_MAX);
    }
    job.feed(0, &piece);
    assert_eq!(
        job.effects,
        ["E> misbehaved 0: request line longer than 65536 bytes"]
    );
    // A gigabyte in pieces changes nothing any more.
    for _ in 0..(1 << 30) / piece.len() {
        job.feed(0, &piece);
    }
    assert_eq!((job.effects.len(), job.server.unfinished()), (1, 0));
}

#[test]
fn line_of_exactly_limit_is_accepted() {
    let name = "cmd=unknown x=";
    let line = format!("{name}{}", "y".repeat(REQUEST_LINE_MAX - name.len()));
    let mut job = Job::initialized(1);
    assert_eq!(
        job.reply(0, &line),
        "cmd=unknown_result rc=-1 msg=unknown_command"
    );
    assert_eq!(
        job.ask(0, &format!("{line}z")),
        ["E> misbehaved 0: request line longer than 65536 bytes"]
    );
}

#[test]
fn endless_spawn_request_ends_at_its_limit() {
    let mut job = Job::initialized(1);
    job.feed(0, b"mcmd=spawn\n");
    let line = format!("arg1={}\n", "x".repeat(1018));
    for _ in 0..SPAWN_MAX / line.len() - 1 {
        job.feed(0, line.as_bytes());
    }
    assert!(job.effects.is_empty());
    job.feed(0, line.as_bytes());
    assert_eq!(
        job.effects,
        ["E> misbehaved 0: spawn request longer than 1048576 bytes"]
    );
    assert_eq!(job.server.unfinished(), 0);
}

#[test]
fn malformed_spawn_names_its_field() {
    let block = |lines: &str| format!("mcmd=spawn\n{lines}totspawns=1\nspawnssofar=1\nendcmd");
    let table = [
        ("nprocs=0\nexecname=a b\n", "invalid_nprocs"),
        (
            "nprocs=1\nexecname=a\npreput_num=1\npreput_key_0=k\npreput_val_0=\n",
            "invalid_preput_val",
        ),
        ("execname=a\n", "missing_nprocs"),
        ("nprocs=x\nexecname=a\n", "invalid_nprocs"),
        ("nprocs=1\nexecname=\n", "missing_execname"),
        ("nprocs=1\nexecname=a\nargcnt=-1\n", "invalid_argcnt"),
        (
            "nprocs=1\nexecname=a\nargcnt=4294967295\narg1=\n",
            "missing_arg",
        ),
        (
            "nprocs=1\nexecname=a\ninfo_num=1\ninfo_key_0=k\n",
            "missing_info_val_",
        ),
        (
            "nprocs=1\nexecname=a\npreput_num=1\n",
            "missing_preput_key_",
        ),
    ];
    let mut job = Job::initialized(1);
    for (lines, reason) in table {
        assert_eq!(
            job.reply(0, &block(lines)),
            format!("cmd=spawn_result rc=-1 msg={reason}")
        );
    }
}

#[test]
fn requests_outside_session_are_refused() {
    let mut job = Job::new(1);
    assert_eq!(
        job.reply(0, "cmd=get_maxes"),
        "cmd=maxes rc=-1 msg=not_initialized"
    );
    assert_eq!(job.state(0), "not initialized, last request get_maxes");
    job.ask(0, INIT.trim_end());
    let finalized = job.ask(0, "cmd=finalize");
    assert_eq!(
        finalized,
        ["0 S> cmd=finalize_ack rc=0\\n", "E> finalized 0"]
    );
    assert_eq!(
        job.reply(0, "cmd=put kvsname=job.0 key=k value=v"),
        "cmd=put_result rc=-1 msg=not_initialized"
    );
    assert_eq!(
        job.reply(0, "cmd=finalize"),
        "cmd=finalize_ack rc=-1 msg=not_initialized"
    );
}

#[test]
fn several_requests_in_one_read_are_answered_in_order() {
    let mut job = Job::new(1);
    job.feed(0, format!("{INIT}cmd=get_appnum\ncmd=get_univ").as_bytes());
    job.feed(0, b"erse_size\n");
    assert_eq!(
        job.effects,
        [
            &format!("0 S> {INIT_REPLY}\\n"),
            "E> initialized 0",
            "0 S> cmd=appnum rc=0 appnum=0\\n",
            "0 S> cmd=universe_size rc=0 size=-1\\n",
        ]
    );
}

#[test]
fn values_preserve_blanks_backslashes_and_equal_signs() {
    let mut job = Job::initialized(1);
    for value in ["a b  c ", "a\\b=c;d", " value=x", "="] {
        job.ask(0, &format!("cmd=put kvsname=job.0 key=k value={value}"));
        let expected = format!("cmd=get_result rc=0 msg=success value={value}");
        assert_eq!(
            job.reply(0, "cmd=get kvsname=job.0 key=k"),
            expected.replace('\\', "\\\\")
        );
    }
}

#[test]
fn name_request_is_answered_once_and_holds_rank() {
    let mut job = Job::initialized(2);
    assert_eq!(job.ask(0, "cmd=lookup_name service=x"), ["E> lookup 0 <x>"]);
    assert_eq!(job.state(0), "waits for the name service, lookup_name x");
    assert_eq!(
        job.answer(0, NameAnswer::Port(b"")),
        ["0 S> cmd=lookup_result rc=1 info=fail msg=service_not_found\\n"]
    );
    assert_eq!(job.answer(0, NameAnswer::Done), [""; 0]);

    job.ask(0, "cmd=unpublish_name service=x");
    assert_eq!(
        job.ask(0, "cmd=finalize"),
        ["E> misbehaved 0: request finalize arrived while a name request is still open"]
    );
    assert_eq!(job.answer(0, NameAnswer::Done), [""; 0]);
}

#[test]
fn close_inside_message_is_error_and_between_messages_is_not() {
    let mut job = Job::initialized(2);
    job.server.closed(LocalRank(0));
    assert_eq!(job.server.take_actions(), []);
    job.feed(1, b"cmd=final");
    job.server.closed(LocalRank(1));
    let effects = job.server.take_actions();
    assert_eq!(
        effects.iter().map(render).collect::<Vec<_>>(),
        ["E> misbehaved 1: connection closed in the middle of a message (9 bytes)"]
    );
}

#[test]
fn reports_name_last_request_of_each_rank() {
    let mut job = Job::new(2);
    assert_eq!(job.state(0), "never contacted PMI");
    assert!(!job.server.state(LocalRank(0)).contacted());
    job.ask(0, INIT.trim_end());
    assert_eq!(job.state(0), "initialized, last request init");
    job.ask(0, "cmd=get kvsname=job.0 key=PMI_process_mapping");
    assert_eq!(
        job.state(0),
        "initialized, last request get PMI_process_mapping"
    );
    job.ask(0, "cmd=nonsense");
    assert_eq!(job.state(0), "initialized, last request nonsense");
    assert_eq!(job.state(1), "never contacted PMI");
}

#[test]
fn process_mapping_longer_than_smallest_buffer_is_missing() {
    let mut found = Vec::new();
    for blocks in [60, 120] {
        // Alternating one and two ranks: nothing merges.
        let map = ProcessMap::from_runs((0..blocks).map(|node| (NodeId(node), 1 + node % 2)));
        assert_eq!(
            map.process_mapping(usize::MAX).unwrap().len() > PROCESS_MAPPING_MAX,
            blocks == 120
        );
        let info = PmiJobInfo {
            kvsname: Nspace::new("job.0").unwrap(),
            appnums: vec![AppNum(0)],
            universe_size: None,
            attributes: Vec::new(),
            preputs: Vec::new(),
            spawner: None,
        };
        let mut job = Job::with(info, &map, NodeId(0));
        job.ask(0, INIT.trim_end());
        found.push(job.reply(0, "cmd=get kvsname=job.0 key=PMI_process_mapping"));
    }
    assert!(found[0].starts_with("cmd=get_result rc=0 msg=success value=(vector,(0,1,1),"));
    assert_eq!(found[1], "cmd=get_result rc=-1 msg=key_not_found");
}

#[test]
fn inconsistent_job_is_not_served() {
    let info = |appnums, key: &str, value: &[u8]| PmiJobInfo {
        kvsname: Nspace::new("job.0").unwrap(),
        appnums: vec![AppNum(0); appnums],
        universe_size: None,
        attributes: vec![(key.to_owned(), value.to_vec())],
        preputs: Vec::new(),
        spawner: None,
    };
    let map = ProcessMap::from_runs([(NodeId(0), 2)]);
    let new = |info| PmiServer::new(info, &map, NodeId(0)).err();
    assert_eq!(new(info(2, "PMI_key", b"value")), None);
    assert_eq!(
        new(info(3, "PMI_key", b"value")),
        Some(SetupError::Appnums {
            appnums: 3,
            ranks: 2,
            node: NodeId(0)
        })
    );
    for (key, value) in [("k", &b""[..]), ("k", b"a\nb"), ("", b"v"), ("a b", b"v")] {
        assert_eq!(
            new(info(2, key, value)),
            Some(SetupError::Attribute(key.to_owned()))
        );
    }
}

#[test]
fn finalize_at_exit_is_recognized_by_memory_kinds_request() {
    let mut job = Job::initialized(3);
    let [first, second] = [0, 1].map(LocalRank);
    assert_eq!(job.server.sessions_beside(first), None, "another MPI");
    for rank in [0, 1] {
        let line = "cmd=get kvsname=job.0 key=PMI_mpi_memory_alloc_kinds";
        job.reply(rank, line);
    }
    assert_eq!(job.server.sessions_beside(first), Some(2));
    job.server.finalized(first);
    let effects = job.server.take_actions();
    assert_eq!(effects, [PmiAction::Finalized { rank: first }]);
    assert!(!job.server.state(first).in_session());
    assert_eq!(job.server.sessions_beside(first), None, "it has finalized");
    job.server.closed(LocalRank(2));
    assert_eq!(job.server.sessions_beside(second), Some(0));
}

#[test]
fn segment_is_recorded_before_barrier_is_released() {
    let mut job = Job::initialized(2);
    job.notes = true;
    let kinds = "cmd=get kvsname=job.0 key=PMI_mpi_memory_alloc_kinds";
    job.reply(0, kinds);
    job.ask(0, "cmd=barrier_in");
    let outputs = job.ask(1, "cmd=barrier_in");
    assert_eq!(outputs[0], "E> record segment");
    let mut other = Job::initialized(1);
    other.notes = true;
    let outputs = other.ask(0, "cmd=barrier_in");
    assert!(
        !outputs.contains(&"E> record segment".to_owned()),
        "{outputs:?}"
    );
}
