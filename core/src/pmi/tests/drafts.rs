//! Commands of PMI-2 that only its drafts have: requests in several messages, all pairs of a store, connections with jobs.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::pmi2::pmi2;
use super::*;
use crate::pmi::limits::CONTINUED_MAX;
use crate::pmi::server::KeyAnswer;

const OTHER: &str = "other.1";

/// Answers what the rank has asked of another job.
fn answer(job: &mut Job, number: u64, answer: KeyAnswer<'_>) -> Vec<String> {
    job.server.key_answer(LocalRank(0), number, answer);
    let effects = job.server.take_actions();
    effects.iter().map(render).collect()
}

/// Connects rank 0 with a job of another launch, as the first or a later question.
fn connect(job: &mut Job, number: u64) -> Vec<String> {
    let effects = job.frame(0, &format!("cmd=job-connect;jobid={OTHER};"));
    assert_eq!(effects, [format!("E> connect 0 {OTHER}")]);
    answer(job, number, KeyAnswer::NoJob)
}

#[test]
fn fragments_may_be_interleaved_with_those_of_other_threads() {
    let mut job = pmi2(1);
    for part in [
        "cmd=kvs-put;thrid=1;key=a;concat=x;",
        "cmd=kvs-put;thrid=2;concat=;;y;",
        "cmd=concat;concatid=x;value=concat=1;;;concat=x;",
        "cmd=concat;thrid=2;concatid=;;y;key=b;concat=;;y;",
    ] {
        assert_eq!(job.frame(0, part), [""; 0], "{part}");
    }
    assert!(job.server.unfinished() > 0);
    let done = |thread| format!("cmd=kvs-put-response;thrid={thread};rc=0;");
    let last = "cmd=concat;concatid=;;y;value=;";
    assert_eq!(job.framed_reply(0, last), done(2));
    assert_eq!(job.framed_reply(0, "cmd=concat;concatid=x;"), done(1));
    assert_eq!(job.server.unfinished(), 0);
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-get;key=a;"),
        "cmd=kvs-get-response;rc=0;found=TRUE;value=concat=1;;;"
    );
    // What continues nothing is a command that is not known.
    for (name, rest) in [
        ("concat", "concatid=x;"),
        ("spawn-cmd", "maxprocs=1;"),
        ("kvs-putall-pair", "key=a;"),
    ] {
        assert_eq!(
            job.framed_reply(0, &format!("cmd={name};{rest}")),
            format!("cmd={name}-response;rc=14;errmsg=unknown command;")
        );
    }
}

#[test]
fn spawn_continues_with_its_commands() {
    let mut job = pmi2(1);
    let info = "infokeycount=3;infokey0=wdir;infoval0=/;infokey1=timeout;infoval1=1500;\
                infokey2=threadsPerRank;infoval2=4;";
    for part in [
        "cmd=spawn;thrid=7;ncmds=2;preputcount=1;ppkey0=k;ppval0=v;;;",
        "cmd=spawn-cmd;thrid=7;maxprocs=2;argc=3;argv0=/bin/a;concat=1;",
        &format!("cmd=concat;concatid=1;argv1=x;;y;argv2=;{info}"),
    ] {
        assert_eq!(job.frame(0, part), [""; 0], "{part}");
    }
    let last = "cmd=spawn-cmd;thrid=7;maxprocs=1;argc=1;argv0=b;infokeycount=0;";
    assert_eq!(
        job.frame(0, last),
        ["E> spawn 0 2*/bin/a <x;y> <> wdir=/ pmix.cpuperproc=4 1*b + k=v; : pmix.timeout=2"]
    );
    let done = job.spawned(0, &Ok(Nspace::new("job.1").unwrap()));
    let reply = "0 S>     52cmd=spawn-response;thrid=7;rc=0;jobid=job.1;nerrs=0;";
    assert_eq!(done, [reply]);
}

#[test]
fn every_process_of_spawn_has_its_code() {
    let mut job = pmi2(1);
    let request = |counts: [u32; 2]| {
        let [a, b] = counts;
        format!("cmd=spawn;ncmds=2;subcmd=a;maxprocs={a};argc=0;subcmd=b;maxprocs={b};argc=0;")
    };
    let name = Ok(Nspace::new("job.1").unwrap());
    for (started, codes) in [
        ([2, 2], "nerrs=0;"),
        ([1, 2], "nerrs=4;err0=0;err1=1;err2=0;err3=0;"),
        ([2, 1], "nerrs=4;err0=0;err1=0;err2=0;err3=1;"),
    ] {
        job.frame(0, &request([2, 2]));
        let done = job.spawned_with(0, &name, &started);
        let reply = format!("cmd=spawn-response;rc=0;jobid=job.1;{codes}");
        assert_eq!(&done[0][11..], reply);
    }
    let failed = Err(SpawnFailure {
        kind: SpawnFailureKind::NotFound,
        text: "program `b` not found".into(),
    });
    job.frame(0, &request([1, 2]));
    assert_eq!(
        &job.spawned(0, &failed)[0][11..],
        "cmd=spawn-response;rc=1;errmsg=program `b` not found;nerrs=3;err0=1;err1=1;err2=1;"
    );
    // A message has at most 512 codes.
    job.frame(0, &request([u32::MAX, u32::MAX]));
    let many = job.spawned(0, &failed);
    assert!(many[0].contains(";nerrs=512;err0=1;"), "{}", many[0]);
    assert!(many[0].ends_with(";err511=1;"), "{}", many[0]);
}

#[test]
fn spawn_with_credential_is_refused_with_reason() {
    let mut job = pmi2(1);
    let program = "cmd=spawn;ncmds=1;subcmd=a;maxprocs=1;argc=0;";
    assert_eq!(
        job.framed_reply(
            0,
            &format!("{program}infokeycount=1;infokey0=credential;infoval0=user;")
        ),
        "cmd=spawn-response;rc=14;errmsg=info credential not supported, \
         spawned processes run as the user of the launch, remove it;"
    );
    assert_eq!(job.frame(0, program), ["E> spawn 0 1*a"]);
}

#[test]
fn host_is_described_before_first_reply_with_file() {
    let mut job = pmi2(2);
    job.server.describe("PMI_hwloc_xmlfile", b"/tmp/hwloc.xml");
    let read = "cmd=info-getjobattr;key=PMI_hwloc_xmlfile;";
    let effects = job.frame(0, read);
    assert_eq!(effects[0], "E> describe host");
    assert!(effects[1].contains("value=/tmp/hwloc.xml;"), "{effects:?}");
    assert_eq!(job.frame(1, read).len(), 1);
}

#[test]
fn registered_resources_are_removed_at_end() {
    let mut job = pmi2(1);
    for (fields, resource) in [
        (
            "type=file;name=/dev/shm/a b;;c;",
            "File(\"/dev/shm/a b;c\")",
        ),
        ("type=shm;name=32769;", "Segment(32769)"),
        ("type=sem;name=0;", "Semaphores(0)"),
        ("type=msg;name=7;", "Queue(7)"),
    ] {
        let effects = job.frame(0, &format!("cmd=node-registerresource;thrid=3;{fields}"));
        assert_eq!(effects[0], format!("E> remove at end {resource}"));
        assert_eq!(
            &effects[1][11..],
            "cmd=node-registerresource-response;thrid=3;rc=0;"
        );
    }
    for (fields, reason) in [
        ("type=file;name=here;", "invalid name"),
        ("type=file;name=/a\0b;", "invalid name"),
        ("type=shm;name=-1;", "invalid name"),
        ("type=sem;name=key;", "invalid name"),
        ("type=port;name=1;", "invalid type"),
        ("type=file;", "missing name"),
    ] {
        assert_eq!(
            job.framed_reply(0, &format!("cmd=node-registerresource;{fields}")),
            format!("cmd=node-registerresource-response;rc=3;errmsg={reason};")
        );
    }
    for _ in 4..1024 {
        job.frame(0, "cmd=node-registerresource;type=shm;name=1;");
    }
    assert_eq!(
        job.framed_reply(0, "cmd=node-registerresource;type=shm;name=1;"),
        "cmd=node-registerresource-response;rc=1;errmsg=too many registered resources;"
    );
}

#[test]
fn spawn_with_invalid_commands_is_refused_after_last_command() {
    for (command, reason) in [
        ("argc=1;argv0=a;", "missing maxprocs"),
        ("maxprocs=1;", "missing subcmd"),
        ("maxprocs=1;argc=1;argv0=;", "missing subcmd"),
        ("maxprocs=1;argc=2;argv0=a;", "missing argv"),
        (
            "maxprocs=1;argc=1;argv0=a;infokeycount=1;infokey0=timeout;infoval0=soon;",
            "invalid timeout",
        ),
    ] {
        let mut job = pmi2(1);
        assert_eq!(job.frame(0, "cmd=spawn;ncmds=1;"), [""; 0]);
        assert_eq!(
            job.framed_reply(0, &format!("cmd=spawn-cmd;{command}")),
            format!("cmd=spawn-response;rc=3;errmsg={reason};"),
        );
    }
}

#[test]
fn invalid_fragment_ends_connection_but_abort_is_accepted() {
    let table: [(&[&str], &str); 5] = [
        (
            &["cmd=spawn;ncmds=1;", "cmd=job-getid;thrid=2;"],
            "another request came in between",
        ),
        (
            &["cmd=spawn;thrid=1;ncmds=1;", "cmd=spawn-cmd;maxprocs=1;"],
            "another request came in between",
        ),
        (
            &["cmd=kvs-putall;jobid=j;npair=1;", "cmd=job-getid;"],
            "another request came in between",
        ),
        (
            &["cmd=kvs-put;concat=1;", "cmd=kvs-get;concat=1;"],
            "an earlier one with this id is unfinished",
        ),
        (
            &["cmd=spawn;ncmds=1;", "cmd=spawn;ncmds=1;"],
            "another request came in between",
        ),
    ];
    for (parts, reason) in table {
        let mut job = pmi2(1);
        let effects: Vec<String> = parts.iter().flat_map(|part| job.frame(0, part)).collect();
        assert_eq!(
            effects,
            [format!(
                "E> misbehaved 0: request in several messages: {reason}"
            )]
        );
        assert_eq!(job.server.unfinished(), 0);
    }
    let mut job = pmi2(1);
    job.frame(0, "cmd=spawn;ncmds=1;");
    assert_eq!(job.frame(0, "cmd=abort;exitcode=3;"), ["E> abort 0 3"]);
    job.server.closed(LocalRank(0));
    let effects = job.server.take_actions();
    assert!(render(&effects[0]).contains("closed in the middle of a message"));
}

#[test]
fn endless_request_is_stopped() {
    let mut job = pmi2(1);
    let part = format!("cmd=concat;concatid=1;x={};concat=1;", "y".repeat(60_000));
    job.frame(0, "cmd=kvs-put;concat=1;");
    let rounds = (0..=CONTINUED_MAX / 60_000).find(|_| !job.frame(0, &part).is_empty());
    assert!(rounds.is_some());
    assert_eq!(
        job.state(0),
        "broke the protocol: request in several messages: too many unfinished requests"
    );
}

#[test]
fn all_keys_of_own_job_are_returned_one_by_one() {
    let mut job = pmi2(1);
    job.frame(0, "cmd=kvs-put;key=b;value=x;;y;");
    job.frame(0, "cmd=kvs-put;key=a;value=;");
    for own in ["", "jobid=;", "jobid=job.0;"] {
        assert_eq!(
            job.frame(0, &format!("cmd=kvs-getall;thrid=5;{own}")),
            [
                "0 S>     50cmd=kvs-getall-paircount-response;thrid=5;npair=2;    \
              48cmd=kvs-getall-pair-response;thrid=5;key=a;val=;    \
              52cmd=kvs-getall-pair-response;thrid=5;key=b;val=x;;y;    \
              37cmd=kvs-getall-response;thrid=5;rc=0;"
            ]
        );
    }
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-getall;jobid=no/job;"),
        "cmd=kvs-getall-response;rc=3;errmsg=unknown kvsname;"
    );
}

#[test]
fn keys_of_jobs_in_launch_are_fetched_without_copy() {
    let mut job = pmi2(1);
    let connect = format!("cmd=job-connect;jobid={OTHER};");
    assert_eq!(job.frame(0, &connect), [format!("E> connect 0 {OTHER}")]);
    assert_eq!(
        answer(&mut job, 1, KeyAnswer::Value(b"")),
        ["0 S>     44cmd=job-connect-response;rc=0;kvscopy=FALSE;"]
    );
    let all = format!("cmd=kvs-getall;jobid={OTHER};");
    assert_eq!(job.frame(0, &all), [format!("E> pairs 0 {OTHER}")]);
    let mut pairs = Vec::new();
    kvs::encode_entry(b"k", b"v", &mut pairs);
    assert_eq!(
        answer(&mut job, 2, KeyAnswer::Value(&pairs)),
        ["0 S>     42cmd=kvs-getall-paircount-response;npair=1;    \
          41cmd=kvs-getall-pair-response;key=k;val=v;    29cmd=kvs-getall-response;rc=0;"]
    );
    for (key_reply, reason) in [
        (
            KeyAnswer::NoKey,
            "rc=1;errmsg=cannot read the keys of the other job;",
        ),
        (KeyAnswer::NoJob, "rc=3;errmsg=unknown kvsname;"),
    ] {
        job.frame(0, &all);
        let reply = answer(
            &mut job,
            if key_reply == KeyAnswer::NoKey { 3 } else { 4 },
            key_reply,
        );
        assert!(reply[0].ends_with(reason), "{reply:?}");
    }
    assert_eq!(
        job.framed_reply(0, &format!("cmd=kvs-putall;jobid={OTHER};npair=0;")),
        "cmd=kvs-putall-response;rc=3;errmsg=invalid jobid;"
    );
    assert_eq!(
        job.framed_reply(0, &format!("cmd=job-disconnect;jobid={OTHER};")),
        "cmd=job-disconnect-response;rc=0;"
    );
}

#[test]
fn remote_keys_are_fetched_and_kept_while_rank_is_connected() {
    let mut job = pmi2(3);
    let yes = "0 S>     43cmd=job-connect-response;rc=0;kvscopy=TRUE;";
    assert_eq!(connect(&mut job, 1), [yes]);
    let begun = format!("cmd=kvs-putall;jobid={OTHER};npair=2;");
    assert_eq!(job.frame(0, &begun), [""; 0]);
    assert_eq!(job.frame(0, "cmd=kvs-putall-pair;key=a;val=x;;y;"), [""; 0]);
    let done = "cmd=kvs-putall-response;rc=0;";
    assert_eq!(job.framed_reply(0, "cmd=kvs-putall-pair;key=b;val=;"), done);
    let get = format!("cmd=kvs-get;jobid={OTHER};key=a;");
    for rank in 0..3 {
        assert_eq!(
            job.framed_reply(rank, &get),
            "cmd=kvs-get-response;rc=0;found=TRUE;value=x;;y;"
        );
    }
    assert_eq!(
        job.framed_reply(1, &format!("cmd=kvs-get;jobid={OTHER};key=b;")),
        "cmd=kvs-get-response;rc=0;found=FALSE;"
    );
    assert!(job.frame(2, &format!("cmd=kvs-getall;jobid={OTHER};"))[0].contains("npair=2;"));
    assert_eq!(
        connect(&mut job, 2)[0],
        yes.replace("43cmd", "44cmd").replace("TRUE", "FALSE")
    );
    // A rank that is not connected brings nothing, and disconnects from nothing.
    for request in [
        format!("kvs-putall;jobid={OTHER};npair=0"),
        format!("job-disconnect;jobid={OTHER}"),
    ] {
        let reply = job.framed_reply(1, &format!("cmd={request};"));
        assert!(reply.ends_with("rc=3;errmsg=not connected;"), "{reply}");
    }
    job.server.closed(LocalRank(0));
    assert_eq!(job.frame(1, &get), [format!("E> key 1 {OTHER} a")]);
}

#[test]
fn keys_unlike_announcement_are_refused() {
    let mut job = pmi2(1);
    connect(&mut job, 1);
    let long = format!("key=a;val={};", "x".repeat(1025));
    for (pair, reason) in [
        ("key=a;", "rc=3;errmsg=invalid npair;"),
        ("val=a;", "rc=3;errmsg=invalid npair;"),
        ("key=a;val=b;key=c;", "rc=3;errmsg=invalid npair;"),
        ("key=;val=b;", "rc=4;errmsg=missing key;"),
        (&long, "rc=8;errmsg=val too long;"),
    ] {
        let begun = format!("cmd=kvs-putall;jobid={OTHER};npair=1;");
        assert_eq!(job.frame(0, &begun), [""; 0]);
        assert_eq!(
            job.framed_reply(0, &format!("cmd=kvs-putall-pair;{pair}")),
            format!("cmd=kvs-putall-response;{reason}"),
        );
    }
    for count in ["", "npair=;", "npair=-1;", "npair=x;"] {
        let reply = job.framed_reply(0, &format!("cmd=kvs-putall;jobid={OTHER};{count}"));
        assert!(reply.contains("npair;"), "{reply}");
    }
}

/// Request of a thread.
#[derive(Clone, Debug)]
enum DraftRequest {
    Put(u8, String),
    Get(u8),
    GetAll,
    PutAll(Vec<(u8, String)>),
    GetOther(u8),
    Spawn(Vec<Vec<String>>),
}

fn request() -> impl Strategy<Value = DraftRequest> {
    let value = || "[a;= ]{1,6}";
    prop_oneof![
        (0..4_u8, value()).prop_map(|(key, value)| DraftRequest::Put(key, value)),
        (0..4_u8).prop_map(DraftRequest::Get),
        Just(DraftRequest::GetAll),
        vec((0..4_u8, value()), 0..4).prop_map(DraftRequest::PutAll),
        (0..4_u8).prop_map(DraftRequest::GetOther),
        vec(vec("[a;= ]{0,4}", 0..3), 1..3).prop_map(DraftRequest::Spawn),
    ]
}

fn field(key: &str, value: &str) -> String {
    format!("{key}={};", value.replace(';', ";;"))
}

impl DraftRequest {
    /// Its messages: the pairs of each.
    fn messages(&self, thread: usize) -> VecDeque<Vec<String>> {
        let message = |name: &str, pairs: &[(&str, &str)]| {
            let start = [("cmd", name), ("thrid", &thread.to_string())];
            let all = start.iter().chain(pairs);
            all.map(|(key, value)| field(key, value)).collect()
        };
        let key = |key: &u8| format!("k{key}");
        match self {
            Self::Put(name, value) => {
                [message("kvs-put", &[("key", &key(name)), ("value", value)])].into()
            }
            Self::Get(name) => [message("kvs-get", &[("key", &key(name))])].into(),
            Self::GetAll => [message("kvs-getall", &[])].into(),
            Self::GetOther(name) => {
                [message("kvs-get", &[("jobid", OTHER), ("key", &key(name))])].into()
            }
            Self::PutAll(pairs) => {
                let count = pairs.len().to_string();
                let begun = message("kvs-putall", &[("jobid", OTHER), ("npair", &count)]);
                let pair = |(name, value): &(u8, String)| {
                    message("kvs-putall-pair", &[("key", &key(name)), ("val", value)])
                };
                std::iter::once(begun)
                    .chain(pairs.iter().map(pair))
                    .collect()
            }
            Self::Spawn(commands) => {
                let count = commands.len().to_string();
                let begun = message("spawn", &[("ncmds", &count), ("preputcount", "0")]);
                let command = |args: &Vec<String>| {
                    let count = (1 + args.len()).to_string();
                    let mut pairs = message("spawn-cmd", &[("maxprocs", "1"), ("argc", &count)]);
                    pairs.push(field("argv0", "prog"));
                    let args = (1..).zip(args);
                    pairs.extend(args.map(|(index, arg)| field(&format!("argv{index}"), arg)));
                    pairs
                };
                std::iter::once(begun)
                    .chain(commands.iter().map(command))
                    .collect()
            }
        }
    }

    /// The effect of the last message.
    fn expected(&self, thread: usize, model: &mut [BTreeMap<u8, String>; 2]) -> String {
        let ok = |name: &str| format!("cmd={name}-response;thrid={thread};rc=0;");
        let found = |value: Option<&String>| match value {
            Some(value) => ok("kvs-get") + "found=TRUE;" + &field("value", value),
            None => ok("kvs-get") + "found=FALSE;",
        };
        match self {
            Self::Put(key, value) => {
                model[0].insert(*key, value.clone());
                ok("kvs-put")
            }
            Self::Get(key) => found(model[0].get(key)),
            Self::GetAll => {
                let part = |name: &str| format!("cmd=kvs-getall-{name}-response;thrid={thread};");
                let mut text = part("paircount") + &format!("npair={};", model[0].len());
                for (key, value) in &model[0] {
                    text += &(part("pair") + &format!("key=k{key};") + &field("val", value));
                }
                text + &ok("kvs-getall")
            }
            Self::PutAll(pairs) => {
                model[1].extend(pairs.iter().cloned());
                ok("kvs-putall")
            }
            Self::GetOther(key) => found(model[1].get(key)),
            Self::Spawn(commands) => {
                let command = |args: &Vec<String>| {
                    let args: String = args.iter().map(|arg| format!(" <{arg}>")).collect();
                    format!(" 1*prog{args}")
                };
                format!(
                    "E> spawn 0{}",
                    commands.iter().map(command).collect::<String>()
                )
            }
        }
    }
}

/// The messages of a reply without their lengths.
fn without_lengths(mut text: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = text.split_at_checked(6) {
        let (frame, after) = rest.split_at(length.trim().parse().unwrap());
        all += frame;
        text = after;
    }
    all
}

proptest! {
    /// Threads whose messages come in any order, each in parts: every one gets the answers to its requests, and nothing
    /// of another's.
    #[test]
    fn messages_of_threads_may_be_mixed_and_cut_in_any_way(
        requests in vec(vec(request(), 0..5), 3),
        order in vec((0..3_usize, 0..8_u8), 0..120),
    ) {
        let mut job = pmi2(1);
        connect(&mut job, 1);
        job.frame(0, &format!("cmd=kvs-putall;jobid={OTHER};npair=0;"));
        let mut model = [BTreeMap::new(), BTreeMap::new()];
        // The messages of each thread, one request after the other.
        let mut queues: Vec<VecDeque<_>> = requests
            .into_iter()
            .enumerate()
            .map(|(thread, requests)| {
                let each = requests.into_iter();
                each.map(|request| {
                    let messages = request.messages(thread);
                    (request, messages)
                })
                .collect()
            })
            .collect();
        // The messages of a spawn follow each other.
        let mut spawning: Option<usize> = None;
        let rest = (0..3).cycle().take(300).map(|thread| (thread, 0));
        for (pick, cut) in order.into_iter().chain(rest) {
            let thread = spawning.unwrap_or(pick);
            let Some((request, messages)) = queues[thread].front_mut() else { continue };
            let mut message = messages.pop_front().unwrap();
            // A part has at least one pair that is new; the first two are the name, and the id or thread.
            let cut = usize::from(cut);
            if (2..message.len()).contains(&cut) {
                let ids = [field("cmd", "concat"), field("concatid", &thread.to_string())];
                messages.push_front(ids.into_iter().chain(message.split_off(cut)).collect());
                message.push(field("concat", &thread.to_string()));
            }
            let is_last = messages.is_empty();
            spawning = (!is_last && matches!(request, DraftRequest::Spawn(_))).then_some(thread);
            let effects = job.frame(0, &message.concat());
            if !is_last {
                prop_assert_eq!(effects, [""; 0]);
                continue;
            }
            let (request, _) = queues[thread].pop_front().unwrap();
            let expected = request.expected(thread, &mut model);
            prop_assert_eq!(effects.len(), 1, "{:?}", &effects);
            if let DraftRequest::Spawn(_) = request {
                prop_assert_eq!(&effects[0], &expected);
                let done = job.spawned(0, &Ok(Nspace::new("job.1").unwrap()));
                let reply = format!("cmd=spawn-response;thrid={thread};rc=0;jobid=job.1;nerrs=0;");
                prop_assert!(done[0].ends_with(&reply), "{:?}", done);
            } else {
                let text = effects[0].strip_prefix("0 S> ").unwrap();
                prop_assert_eq!(without_lengths(text), expected);
            }
        }
        prop_assert!(queues.iter().all(VecDeque::is_empty));
        prop_assert_eq!(job.server.unfinished(), 0);
    }
}
