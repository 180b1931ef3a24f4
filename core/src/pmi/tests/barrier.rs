//! The barrier, and what a put becomes through it.

use proptest::prelude::*;

use super::*;
use crate::kvs::KvsError;
use crate::pmi::server::ReleaseError;

const BARRIER: &str = "cmd=barrier_in";

fn get(key: &str) -> String {
    format!("cmd=get kvsname=job.0 key={key}")
}

fn put(key: &str, value: &str) -> String {
    format!("cmd=put kvsname=job.0 key={key} value={value}")
}

fn released(ranks: impl IntoIterator<Item = u32>) -> Vec<String> {
    ranks
        .into_iter()
        .map(|rank| format!("{rank} S> cmd=barrier_out rc=0 tag=0\\n"))
        .collect()
}

#[test]
fn barrier_replies_are_sent_after_last_local_rank_enters() {
    let mut job = Job::initialized(3);
    assert_eq!(job.ask(2, BARRIER), [""; 0]);
    assert_eq!(job.ask(0, BARRIER), [""; 0]);
    assert_eq!(job.state(2), "in barrier 1");
    assert_eq!(job.ask(1, BARRIER), ["E> barrier"]);
    assert_eq!(job.release(Ok(b"")), released(0..3));
    assert_eq!(job.state(2), "initialized, last request barrier_in");
}

#[test]
fn rank_may_enter_next_barrier_before_others_act() {
    let mut job = Job::initialized(2);
    job.ask(0, BARRIER);
    job.ask(1, BARRIER);
    job.release(Ok(b""));
    assert_eq!(job.ask(1, BARRIER), [""; 0]);
    assert_eq!(job.state(1), "in barrier 2");
    assert_eq!(job.ask(0, BARRIER), ["E> barrier"]);
    assert_eq!(job.release(Ok(b"")), released(0..2));
}

#[test]
fn put_is_visible_locally_at_once_and_contributed_once() {
    let mut job = Job::initialized(2);
    job.ask(0, &put("card-0", "here"));
    assert_eq!(
        job.reply(1, &get("card-0")),
        "cmd=get_result rc=0 msg=success value=here"
    );
    job.ask(0, BARRIER);
    assert_eq!(job.ask(1, BARRIER), ["E> barrier card-0=here"]);
    job.release(Ok(b""));
    job.ask(0, BARRIER);
    assert_eq!(job.ask(1, BARRIER), ["E> barrier"]);
}

#[test]
fn values_of_other_nodes_appear_at_release() {
    let mut job = Job::initialized(1);
    let miss = "cmd=get_result rc=-1 msg=key_not_found";
    job.ask(0, BARRIER);
    let mut all = Vec::new();
    kvs::encode_entry(b"card-7", b"far", &mut all);
    kvs::encode_entry(b"empty", b"", &mut all);
    kvs::encode_entry(b"lines", b"a\nb", &mut all);
    job.release(Ok(&all));
    assert_eq!(
        job.reply(0, &get("card-7")),
        "cmd=get_result rc=0 msg=success value=far"
    );
    // Stored, but no PMI-1 client could read them.
    assert_eq!(job.reply(0, &get("empty")), miss);
    assert_eq!(job.reply(0, &get("lines")), miss);
}

#[test]
fn failed_barrier_answers_present_and_later_ranks() {
    let mut job = Job::initialized(3);
    job.ask(0, BARRIER);
    job.ask(2, BARRIER);
    let failed = "cmd=barrier_out rc=-1 msg=node_n7_is_gone tag=0";
    assert_eq!(
        job.release(Err("node n7 is gone")),
        [0, 2].map(|rank| format!("{rank} S> {failed}\\n"))
    );
    assert_eq!(job.reply(1, BARRIER), failed);
    assert_eq!(job.reply(0, BARRIER), failed);
}

#[test]
fn release_without_all_local_ranks_is_refused_without_effect() {
    let mut job = Job::initialized(2);
    job.ask(0, BARRIER);
    assert_eq!(
        job.server.released(&PmiCollective::WORLD, Ok(b"")),
        Err(ReleaseError::NotComplete {
            collective: PmiCollective::WORLD,
            arrived: 1,
            expected: 2
        })
    );
    assert_eq!(job.server.take_actions(), []);
    assert_eq!(job.ask(1, BARRIER), ["E> barrier"]);
}

#[test]
fn unusable_data_fail_barrier_for_every_rank() {
    let mut job = Job::initialized(1);
    job.ask(0, BARRIER);
    let error = job
        .server
        .released(&PmiCollective::WORLD, Ok(b"garbage"))
        .unwrap_err();
    let source = KvsError::Truncated {
        offset: 0,
        length: 7,
    };
    let effects = job.server.take_actions();
    let collective = PmiCollective::WORLD;
    assert_eq!(error, ReleaseError::Data { collective, source });
    assert_eq!(
        effects.iter().map(render).collect::<Vec<_>>(),
        ["0 S> cmd=barrier_out rc=-1 \
          msg=contribution_ends_inside_an_entry,_at_byte_0_of_7 tag=0\\n"]
    );
}

#[test]
fn second_barrier_request_is_refused_and_not_counted() {
    let mut job = Job::initialized(2);
    job.ask(0, BARRIER);
    assert_eq!(
        job.reply(0, BARRIER),
        "cmd=barrier_out rc=-1 msg=already_in_barrier tag=0"
    );
    assert_eq!(job.ask(1, BARRIER), ["E> barrier"]);
}

#[test]
fn finalized_rank_cannot_enter_and_may_restart() {
    let mut job = Job::initialized(1);
    job.ask(0, "cmd=finalize");
    assert!(!job.server.state(LocalRank(0)).in_session());
    assert_eq!(job.state(0), "finalized");
    assert_eq!(
        job.reply(0, BARRIER),
        "cmd=barrier_out rc=-1 msg=not_initialized tag=0"
    );
    let again = job.ask(0, INIT.trim_end());
    assert_eq!(
        again,
        [&format!("0 S> {INIT_REPLY}\\n"), "E> initialized 0"]
    );
    assert!(job.server.state(LocalRank(0)).in_session());
    assert_eq!(job.ask(0, BARRIER), ["E> barrier"]);
}

#[test]
fn threads_may_send_requests_in_barrier_except_finalize() {
    let mut job = Job::initialized(2);
    job.ask(0, BARRIER);
    assert_eq!(
        job.ask(0, "cmd=abort exitcode=-7 message=out of  luck"),
        ["E> abort 0 -7 out of  luck"]
    );
    assert_eq!(job.reply(0, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0");
    assert_eq!(
        job.ask(0, "cmd=finalize"),
        ["E> misbehaved 0: request finalize arrived while a barrier is still open"]
    );
    // Its arrival still counts, but it gets no more answers.
    assert_eq!(job.ask(1, BARRIER), ["E> barrier"]);
    assert_eq!(job.release(Ok(b"")), released([1]));
}

#[test]
fn barrier_of_node_with_one_rank_completes_at_once() {
    let mut job = Job::initialized(1);
    assert_eq!(job.ask(0, BARRIER), ["E> barrier"]);
    assert_eq!(job.state(0), "in barrier 1");
    assert_eq!(job.release(Ok(b"")), released([0]));
}

proptest! {
    #[test]
    fn any_arrival_order_completes_exactly_once(
        orders in prop::collection::vec(Just((0..6).collect::<Vec<u32>>()).prop_shuffle(), 1..4),
    ) {
        let mut job = Job::initialized(6);
        for (epoch, order) in orders.iter().enumerate() {
            for (position, &rank) in order.iter().enumerate() {
                let key = format!("k-{epoch}-{rank}");
                job.ask(rank, &put(&key, "v"));
                let complete = job.ask(rank, BARRIER);
                prop_assert_eq!(complete.len(), usize::from(position == 5));
            }
            prop_assert_eq!(job.release(Ok(b"")), released(0..6));
        }
    }
}
