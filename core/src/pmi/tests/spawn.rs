//! Jobs that ranks start, and what connected jobs read of each other.

use super::*;
use crate::pmi::server::KeyAnswer;

/// The shortest spawn request.
const SPAWN: &str = "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nendcmd";

#[test]
fn failed_spawn_gets_reason_and_next_may_follow() {
    let mut job = Job::initialized(1);
    assert_eq!(job.ask(0, SPAWN), ["E> spawn 0 1*a"]);
    assert_eq!(job.state(0), "waits for the job it spawns");
    let failed = |text: String| {
        Err(SpawnFailure {
            kind: SpawnFailureKind::NotFound,
            text,
        })
    };
    assert_eq!(
        job.spawned(0, &failed("program \"a\" not found".into())),
        ["0 S> cmd=spawn_result rc=-1 msg=program_\"a\"_not_found\\n"]
    );
    assert_eq!(job.ask(0, SPAWN), ["E> spawn 0 1*a"]);
    let long = job.spawned(0, &failed("é".repeat(4000)));
    assert!(long[0].len() < 700, "{}", long[0].len());
    assert!(
        job.spawned(0, &failed(String::new())).is_empty(),
        "it was answered"
    );
}

#[test]
fn rank_that_spawns_may_not_start_second_spawn() {
    let mut job = Job::initialized(1);
    job.ask(0, SPAWN);
    assert_eq!(
        job.reply(0, SPAWN),
        "cmd=spawn_result rc=-1 msg=already_spawning"
    );
    assert_eq!(
        job.reply(0, "cmd=get_maxes").split(' ').nth(1),
        Some("rc=0"),
        "other threads go on"
    );
    let name = Nspace::new("job.1").unwrap();
    assert_eq!(job.spawned(0, &Ok(name)), ["0 S> cmd=spawn_result rc=0\\n"]);
}

#[test]
fn reply_to_closed_connection_is_dropped_after_spawn() {
    let mut job = Job::initialized(1);
    job.ask(0, SPAWN);
    let broken = job.ask(0, "nonsense");
    assert!(broken[0].starts_with("E> misbehaved 0"), "{broken:?}");
    assert!(
        job.spawned(0, &Ok(Nspace::new("job.1").unwrap()))
            .is_empty()
    );
}

#[test]
fn keys_of_other_jobs_are_requested_remotely() {
    let mut job = Job::initialized(2);
    let get = "cmd=get kvsname=job.1 key=bc-0";
    assert_eq!(job.ask(0, get), ["E> key 0 job.1 bc-0"]);
    assert!(
        job.state(0).starts_with("waits for another job"),
        "{}",
        job.state(0)
    );
    for (number, (answer, reply)) in (1..).zip([
        (KeyAnswer::Value(b"a b"), "rc=0 msg=success value=a b"),
        (KeyAnswer::Value(b""), "rc=-1 msg=key_not_found"),
        (KeyAnswer::NoKey, "rc=-1 msg=key_not_found"),
        (KeyAnswer::NoJob, "rc=-1 msg=unknown_kvsname"),
    ]) {
        job.server.key_answer(LocalRank(0), number, answer);
        let effects = job.server.take_actions();
        let effects: Vec<_> = effects.iter().map(render).collect();
        assert_eq!(effects, [format!("0 S> cmd=get_result {reply}\\n")]);
        job.ask(0, get);
    }
    job.ask(1, "cmd=put kvsname=job.0 key=own value=1");
    let key = |key: &[u8]| {
        job.server
            .serve_remote_read(&RemoteKeyRead::Key(key.to_vec()))
    };
    assert_eq!(key(b"own"), Some(b"1".to_vec()));
    let mapping = b"(vector,(0,1,2))".to_vec();
    assert_eq!(key(b"PMI_process_mapping"), Some(mapping));
    assert_eq!(key(b"none"), None);
}

#[test]
fn preput_keys_exist_before_first_barrier_and_stay_local() {
    let info = PmiJobInfo {
        kvsname: Nspace::new("job.0").unwrap(),
        appnums: vec![AppNum(0)],
        universe_size: None,
        attributes: Vec::new(),
        preputs: vec![(b"PARENT_ROOT_PORT_NAME".to_vec(), b"tag#0$".to_vec())],
        spawner: Some(Nspace::new("job.parent").unwrap()),
    };
    let map = ProcessMap::from_runs([(NodeId(0), 1), (NodeId(1), 1)]);
    let mut job = Job::with(info, &map, NodeId(0));
    job.ask(0, INIT.trim_end());
    assert_eq!(
        job.reply(0, "cmd=get kvsname=job.0 key=PARENT_ROOT_PORT_NAME"),
        "cmd=get_result rc=0 msg=success value=tag#0$"
    );
    assert_eq!(job.ask(0, "cmd=barrier_in"), ["E> barrier"]);
}
