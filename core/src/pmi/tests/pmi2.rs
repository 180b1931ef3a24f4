//! PMI-2: its start, single requests, refusals, malformed input.

use super::*;
use crate::pmi::limits::{FRAME_MAX, VALLEN_2_MAX};

/// A job of `ranks` ranks on one node, all of which have started PMI-2.
pub(super) fn pmi2(ranks: u32) -> Job {
    let mut job = Job::new(ranks);
    job.start_pmi2(0..ranks);
    job
}

#[test]
fn connection_starts_with_line_and_continues_with_frames() {
    let mut job = Job::new(2);
    let fullinit = "53    cmd=fullinit;pmijobid=job.0;pmirank=1;threaded=FALSE;";
    job.feed(
        1,
        format!("{INIT_2}{fullinit}    14cmd=job-getid;").as_bytes(),
    );
    assert_eq!(
        job.effects,
        [
            "1 S> cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\\n",
            "E> initialized 1",
            "1 S>    113cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=2;\
             appnum=0;debugged=FALSE;pmiverbose=FALSE;",
            "1 S>     40cmd=job-getid-response;rc=0;jobid=job.0;",
        ]
    );
}

#[test]
fn length_may_be_padded_on_either_side_or_with_zeros() {
    let mut job = pmi2(1);
    for length in ["14    ", "    14", "000014", "  14  "] {
        job.feed(0, format!("{length}cmd=job-getid;").as_bytes());
        let reply = job.effects.pop_front();
        let expected = "0 S>     40cmd=job-getid-response;rc=0;jobid=job.0;";
        assert_eq!(reply.as_deref(), Some(expected), "{length:?}");
    }
}

#[test]
fn client_stating_other_rank_than_its_connection_is_refused() {
    let mut job = Job::new(2);
    job.feed(1, INIT_2.as_bytes());
    job.effects.clear();
    for stated in ["pmirank=0", "srcid=0", "pmirank=2"] {
        assert_eq!(
            job.framed_reply(1, &format!("cmd=fullinit;{stated};threaded=FALSE;")),
            "cmd=fullinit-response;rc=3;errmsg=not the rank of this connection;"
        );
    }
    assert_eq!(
        job.framed_reply(1, "cmd=fullinit;pmirank=one;"),
        "cmd=fullinit-response;rc=3;errmsg=invalid pmirank;"
    );
    assert_eq!(
        job.framed_reply(1, "cmd=fullinit;pmijobid=other;srcid=1;"),
        "cmd=fullinit-response;rc=3;errmsg=not the job of this connection;"
    );
    let accepted = job.framed_reply(1, "cmd=fullinit;pmijobid=job.0;srcid=1;");
    assert!(
        accepted.starts_with("cmd=fullinit-response;rc=0;"),
        "{accepted}"
    );
}

#[test]
fn requests_outside_session_are_refused() {
    let mut job = Job::new(1);
    job.feed(0, INIT_2.as_bytes());
    job.effects.clear();
    let refused = |name: &str| format!("cmd={name}-response;rc=1;errmsg=not initialized;");
    assert_eq!(job.framed_reply(0, "cmd=kvs-fence;"), refused("kvs-fence"));
    assert!(job.server.state(LocalRank(0)).in_session());
    job.frame(0, "cmd=fullinit;");
    assert_eq!(
        job.frame(0, "cmd=finalize;"),
        ["0 S>     27cmd=finalize-response;rc=0;", "E> finalized 0"]
    );
    assert_eq!(job.framed_reply(0, "cmd=kvs-fence;"), refused("kvs-fence"));
    assert!(!job.server.state(LocalRank(0)).in_session());
}

#[test]
fn init_line_in_place_of_frame_restarts_either_version() {
    let mut job = pmi2(1);
    job.frame(0, "cmd=finalize;");
    job.feed(0, INIT_2.as_bytes());
    assert_eq!(job.effects.len(), 2, "{:?}", job.effects);
    assert_eq!(job.effects[1], "E> initialized 0");
    job.effects.clear();
    job.frame(0, "cmd=fullinit;");
    // Without finalize, and in the same read as what follows in the other dialect.
    job.feed(0, format!("{INIT}cmd=get_appnum\n{INIT_2}").as_bytes());
    assert_eq!(
        job.effects,
        [
            &*format!("0 S> {INIT_REPLY}\\n"),
            "0 S> cmd=appnum rc=0 appnum=0\\n",
            "0 S> cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\\n",
        ]
    );
    assert_eq!(
        job.server.state(LocalRank(0)).dialect().to_string(),
        "PMI-2"
    );
}

#[test]
fn unservable_request_is_answered_and_connection_kept() {
    let long = |count| "x".repeat(count);
    let long_key = format!("cmd=kvs-put;key={};value=v;", long(65));
    let long_value = format!("cmd=kvs-put;key=k;value={};", long(1025));
    let long_name = format!("cmd=name-lookup;name={};", long(1025));
    let table = [
        ("cmd=frobnicate;", "rc=14;errmsg=unknown command;"),
        (
            "cmd=frobnicate;x=1;thrid=7;",
            "thrid=7;rc=14;errmsg=unknown command;",
        ),
        ("cmd=get_maxes;", "rc=14;errmsg=unknown command;"),
        ("cmd=kvs-put;value=v;", "rc=4;errmsg=missing key;"),
        ("cmd=kvs-put;key=;value=v;", "rc=4;errmsg=missing key;"),
        ("cmd=kvs-put;key=k;", "rc=6;errmsg=missing value;"),
        (&long_key, "rc=5;errmsg=key too long;"),
        (&long_value, "rc=7;errmsg=value too long;"),
        (
            "cmd=kvs-put;key=-NONEXIST-KEY;value=v;",
            "rc=4;errmsg=reserved key;",
        ),
        (
            "cmd=kvs-put;key=PMI_process_mapping;value=v;",
            "rc=4;errmsg=reserved key;",
        ),
        ("cmd=kvs-get;key=k;", "rc=0;found=FALSE;"),
        ("cmd=kvs-get;key=-NONEXIST-KEY;", "rc=0;found=FALSE;"),
        ("cmd=kvs-get;jobid=;srcid=-1;key=k;", "rc=0;found=FALSE;"),
        (
            "cmd=kvs-get;jobid=no/job;key=k;",
            "rc=3;found=FALSE;errmsg=unknown kvsname;",
        ),
        (
            "cmd=kvs-get;jobid=job.0;",
            "rc=4;found=FALSE;errmsg=missing key;",
        ),
        ("cmd=info-getjobattr;key=nothing;", "rc=0;found=FALSE;"),
        (
            "cmd=info-getjobattr;",
            "rc=4;found=FALSE;errmsg=missing key;",
        ),
        (
            "cmd=info-getnodeattr;key=n;wait=FALSE;",
            "rc=0;found=FALSE;",
        ),
        ("cmd=info-putnodeattr;key=n;", "rc=6;errmsg=missing value;"),
        (
            "cmd=name-lookup;infokeycount=0;",
            "rc=3;found=FALSE;errmsg=missing name;",
        ),
        (&long_name, "rc=8;found=FALSE;errmsg=name too long;"),
        ("cmd=name-publish;name=s;", "rc=3;errmsg=missing port;"),
        ("cmd=name-unpublish;", "rc=3;errmsg=missing name;"),
        ("cmd=ring;ring-count=1;", "rc=3;errmsg=missing ring-left;"),
        ("cmd=job-connect;jobid=job.0;", "rc=0;kvscopy=FALSE;"),
        ("cmd=job-connect;", "rc=3;errmsg=missing jobid;"),
        ("cmd=job-disconnect;jobid=job.0;", "rc=0;"),
        (
            "cmd=job-disconnect;jobid=other;",
            "rc=3;errmsg=not connected;",
        ),
        (
            "cmd=job-disconnect;jobid=no/job;",
            "rc=3;errmsg=unknown kvsname;",
        ),
    ];
    let mut job = pmi2(2);
    for (request, reply) in table {
        let name = request[4..].split(';').next().unwrap();
        assert_eq!(
            job.framed_reply(0, request),
            format!("cmd={name}-response;{reply}"),
            "{request}"
        );
    }
    assert_eq!(job.state(0), "initialized, last request job-disconnect");
}

#[test]
fn malformed_spawn_names_its_key() {
    let table = [
        (
            "ncmds=1;preputcount=1;ppkey0=k;ppval0=;subcmd=a;maxprocs=2;argc=1;argv0=;",
            "rc=3;errmsg=invalid preput_val;",
        ),
        ("", "rc=3;errmsg=missing ncmds;"),
        ("ncmds=0;", "rc=3;errmsg=invalid ncmds;"),
        ("ncmds=2;subcmd=a;maxprocs=1;", "rc=3;errmsg=invalid ncmds;"),
        ("ncmds=1;subcmd=;maxprocs=1;", "rc=3;errmsg=missing subcmd;"),
        ("ncmds=1;subcmd=a;", "rc=3;errmsg=missing maxprocs;"),
        (
            "ncmds=1;subcmd=a;maxprocs=-1;",
            "rc=3;errmsg=invalid maxprocs;",
        ),
        (
            "ncmds=1;subcmd=a;maxprocs=1;argc=4294967295;argv0=b;",
            "rc=3;errmsg=missing argv;",
        ),
        (
            "ncmds=1;preputcount=1;ppkey0=k;subcmd=a;maxprocs=1;",
            "rc=3;errmsg=missing ppval;",
        ),
        (
            "ncmds=1;subcmd=a;maxprocs=1;infokeycount=x;",
            "rc=3;errmsg=invalid infokeycount;",
        ),
    ];
    let mut job = pmi2(1);
    for (keys, reply) in table {
        assert_eq!(
            job.framed_reply(0, &format!("cmd=spawn;{keys}")),
            format!("cmd=spawn-response;{reply}"),
            "{keys}"
        );
    }
}

#[test]
fn unparsable_input_ends_connection_with_reason() {
    let table = [
        ("hello!", "invalid length of a PMI-2 message: `hello!`"),
        ("      ", "invalid length of a PMI-2 message: `      `"),
        ("000000", "invalid length of a PMI-2 message: `000000`"),
        ("1 4   ", "invalid length of a PMI-2 message: `1 4   `"),
        ("+14   ", "invalid length of a PMI-2 message: `+14   `"),
        ("-14   ", "invalid length of a PMI-2 message: `-14   `"),
        ("14\t   ", "invalid length of a PMI-2 message: `14\\t   `"),
        (
            "65537 cmd=kvs-put;",
            "PMI-2 message of 65537 bytes; at most 65536 are allowed",
        ),
        (
            "5     hello",
            "PMI-2 message does not start with cmd=NAME: `hello`",
        ),
        (
            "13    cmd=job-getid",
            "PMI-2 message does not start with cmd=NAME: `cmd=job-getid`",
        ),
        ("5     cmd=;", "invalid command name in `cmd=;`"),
        (
            "9     cmd=a\u{1}bc;",
            "invalid command name in `cmd=a\\x01bc;`",
        ),
    ];
    for (input, reason) in table {
        let mut job = pmi2(2);
        job.feed(0, input.as_bytes());
        assert_eq!(
            job.effects,
            [format!("E> misbehaved 0: {reason}")],
            "{input:?}"
        );
        assert_eq!(job.state(0), format!("broke the protocol: {reason}"));
        job.effects.clear();
        assert_eq!(job.frame(0, "cmd=job-getid;"), [""; 0]);
        let other = job.framed_reply(1, "cmd=job-getid;");
        assert_eq!(other, "cmd=job-getid-response;rc=0;jobid=job.0;");
    }
}

#[test]
fn frame_of_exactly_limit_is_accepted_and_spawn_may_be_longer() {
    let mut job = pmi2(1);
    let pad = |head: &str, length: usize| format!("{head}{};", "y".repeat(length - head.len() - 1));
    assert_eq!(
        job.framed_reply(0, &pad("cmd=unknown;x=", FRAME_MAX)),
        "cmd=unknown-response;rc=14;errmsg=unknown command;"
    );
    assert_eq!(
        job.framed_reply(0, &pad("cmd=spawn;ncmds=1;subcmd=a;argv0=", 999_999)),
        "cmd=spawn-response;rc=3;errmsg=missing maxprocs;"
    );
    assert_eq!(
        job.frame(0, &pad("cmd=unknown;x=", FRAME_MAX + 1)),
        ["E> misbehaved 0: PMI-2 message of 65537 bytes; at most 65536 are allowed"]
    );
    assert_eq!(job.server.unfinished(), 0);
}

#[test]
fn close_inside_frame_is_error() {
    let mut job = pmi2(1);
    job.feed(0, b"14    cmd=job");
    job.server.closed(LocalRank(0));
    let effects = job.server.take_actions();
    assert_eq!(
        effects.iter().map(render).collect::<Vec<_>>(),
        ["E> misbehaved 0: connection closed in the middle of a message (13 bytes)"]
    );
}

#[test]
fn names_of_slurm_document_are_accepted_and_repeated() {
    let mut job = pmi2(1);
    assert_eq!(
        job.framed_reply(0, "cmd=kvsput;key=k;value=v;"),
        "cmd=kvsput-response;rc=0;"
    );
    assert_eq!(
        job.framed_reply(0, "cmd=kvsget;key=k;"),
        "cmd=kvsget-response;rc=0;found=TRUE;value=v;"
    );
    assert_eq!(
        job.framed_reply(0, "cmd=job-getinfo;key=universeSize;"),
        "cmd=job-getinfo-response;rc=0;found=TRUE;value=-1;"
    );
    assert_eq!(job.frame(0, "cmd=kvsfence;thrid=9;"), ["E> barrier k=v"]);
    assert_eq!(
        job.release(Ok(b"")),
        ["0 S>     35cmd=kvsfence-response;thrid=9;rc=0;"]
    );
}

#[test]
fn attributes_of_job_and_node_are_found() {
    let map = ProcessMap::from_runs([(NodeId(0), 1), (NodeId(1), 2), (NodeId(0), 1)]);
    let info = PmiJobInfo {
        kvsname: Nspace::new("job.0").unwrap(),
        appnums: vec![AppNum(0), AppNum(1)],
        universe_size: Some(9),
        attributes: vec![("PARENT_ROOT_PORT_NAME".into(), b"tag#0$".into())],
        preputs: Vec::new(),
        spawner: None,
    };
    let mut job = Job::with(info, &map, NodeId(0));
    job.start_pmi2(0..2);
    let table = [
        (
            "info-getjobattr;key=PMI_process_mapping",
            "(vector,(0,1,1),(1,1,2),(0,1,1))",
        ),
        ("info-getjobattr;key=universeSize", "9"),
        ("info-getjobattr;key=hasNameServ", "TRUE"),
        ("info-getjobattr;key=PARENT_ROOT_PORT_NAME", "tag#0$"),
        ("kvs-get;key=PARENT_ROOT_PORT_NAME", "tag#0$"),
        ("info-getnodeattr;key=localRanks", "0,3"),
        ("info-getnodeattr;key=localRanksCount;wait=TRUE", "2"),
    ];
    for (request, value) in table {
        let name = request.split(';').next().unwrap();
        assert_eq!(
            job.framed_reply(1, &format!("cmd={request};")),
            format!("cmd={name}-response;rc=0;found=TRUE;value={value};")
        );
    }
    let started = job.framed_reply(1, "cmd=fullinit;pmirank=3;");
    assert!(started.contains(";rank=3;size=4;appnum=1;"), "{started}");
}

#[test]
fn process_mapping_longer_than_value_limit_is_missing() {
    for blocks in [90, 120] {
        // Alternating one and two ranks: nothing merges.
        let map = ProcessMap::from_runs((0..blocks).map(|node| (NodeId(node), 1 + node % 2)));
        assert_eq!(
            map.process_mapping(usize::MAX).unwrap().len() > VALLEN_2_MAX,
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
        job.start_pmi2([0]);
        let reply = job.framed_reply(0, "cmd=info-getjobattr;key=PMI_process_mapping;");
        assert_eq!(reply.contains("found=FALSE"), blocks == 120, "{reply}");
    }
}

#[test]
fn abort_states_its_code_in_one_of_three_ways() {
    let table = [
        ("exitcode=7;message=no more;", "7 no more"),
        ("exitcode=-1;message=bad;", "-1 bad"),
        ("isworld=TRUE;msg=so it goes;", "-1 so it goes"),
        (
            "isworld=TRUE;msg=application called MPI_Abort(comm=0x84000000, 13) - process 3;",
            "13 application called MPI_Abort(comm=0x84000000, 13) - process 3",
        ),
        (
            "exitcode=-1;message=MPI_Abort(MPI_COMM_WORLD, -3);",
            "-3 MPI_Abort(MPI_COMM_WORLD, -3)",
        ),
        (
            "msg=MPI_Abort(MPI_COMM_WORLD, x);",
            "-1 MPI_Abort(MPI_COMM_WORLD, x)",
        ),
        ("msg=MPI_Abort(;", "-1 MPI_Abort("),
        ("", "-1"),
    ];
    for (keys, abort) in table {
        let mut job = pmi2(1);
        assert_eq!(
            job.frame(0, &format!("cmd=abort;{keys}")),
            [format!("E> abort 0 {abort}")]
        );
    }
    // Also while something is open, and before the start.
    let mut job = pmi2(2);
    job.frame(0, "cmd=kvs-fence;");
    assert_eq!(job.frame(0, "cmd=abort;exitcode=3;"), ["E> abort 0 3"]);
    let mut job = Job::new(1);
    job.feed(0, INIT_2.as_bytes());
    job.effects.clear();
    assert_eq!(job.frame(0, "cmd=abort;exitcode=4;"), ["E> abort 0 4"]);
}
