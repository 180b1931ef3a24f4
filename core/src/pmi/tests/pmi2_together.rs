//! PMI-2 ranks and their threads with each other, and with PMI-1: the store they share, fences,
//! awaited attributes, names and rings.

use super::pmi2::pmi2;
use super::*;

#[test]
fn ranks_of_both_pmi_versions_share_kvs_and_barrier() {
    let mut job = Job::initialized(3);
    job.start_pmi2([1]);
    job.ask(0, "cmd=put kvsname=job.0 key=a value=of pmi1;x");
    job.frame(1, "cmd=kvs-put;key=b;value=of;;pmi2;");
    job.frame(1, "cmd=kvs-put;key=lines;value=a\nb;");
    assert_eq!(
        job.framed_reply(1, "cmd=kvs-get;jobid=job.0;key=a;"),
        "cmd=kvs-get-response;rc=0;found=TRUE;value=of pmi1;;x;"
    );
    assert_eq!(
        job.reply(2, "cmd=get kvsname=job.0 key=b"),
        "cmd=get_result rc=0 msg=success value=of;pmi2"
    );
    // No PMI-1 client could read it.
    assert_eq!(
        job.reply(2, "cmd=get kvsname=job.0 key=lines"),
        "cmd=get_result rc=-1 msg=key_not_found"
    );
    assert_eq!(job.frame(1, "cmd=kvs-fence;"), [""; 0]);
    assert_eq!(job.state(1), "in fence 1");
    assert_eq!(job.ask(0, "cmd=barrier_in"), [""; 0]);
    assert_eq!(
        job.ask(2, "cmd=barrier_in group=WORLD:0"),
        ["E> barrier a=of pmi1;x b=of;pmi2 lines=a\\nb"]
    );
    assert_eq!(
        job.release(Ok(b"")),
        [
            "0 S> cmd=barrier_out rc=0 tag=0\\n",
            "1 S>     28cmd=kvs-fence-response;rc=0;",
            "2 S> cmd=barrier_out rc=0 tag=0\\n",
        ]
    );
}

#[test]
fn threads_send_requests_concurrently_and_get_own_replies() {
    let mut job = pmi2(2);
    assert_eq!(job.frame(0, "cmd=kvs-fence;thrid=1;"), [""; 0]);
    assert_eq!(
        job.frame(0, "cmd=info-getnodeattr;thrid=2;key=n;wait=TRUE;"),
        [""; 0]
    );
    assert_eq!(
        job.framed_reply(0, "cmd=job-getid;thrid=3;"),
        "cmd=job-getid-response;thrid=3;rc=0;jobid=job.0;"
    );
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-fence;thrid=3;"),
        "cmd=kvs-fence-response;thrid=3;rc=14;errmsg=already in barrier;"
    );
    assert_eq!(job.state(0), "in fence 1 (one of 2 open requests)");
    assert_eq!(
        job.frame(1, "cmd=info-putnodeattr;key=n;value=v;"),
        [
            "1 S>     35cmd=info-putnodeattr-response;rc=0;",
            "0 S>     62cmd=info-getnodeattr-response;thrid=2;rc=0;found=TRUE;value=v;",
        ]
    );
    assert_eq!(job.frame(1, "cmd=kvs-fence;"), ["E> barrier"]);
    job.release(Ok(b""));
    // A thread that does not wait for its answer is none.
    job.frame(0, "cmd=kvs-fence;thrid=1;");
    assert_eq!(
        job.frame(0, "cmd=job-getid;thrid=1;"),
        ["E> misbehaved 0: request job-getid arrived while a barrier is still open"]
    );
}

#[test]
fn client_without_threads_has_one_pending_request() {
    let mut job = pmi2(2);
    job.frame(0, "cmd=info-getnodeattr;key=n;wait=TRUE;");
    assert_eq!(job.state(0), "waits for the node attribute n");
    assert_eq!(
        job.frame(0, "cmd=kvs-fence;"),
        ["E> misbehaved 0: request kvs-fence arrived while a node attribute is still open"]
    );
    // No rank is woken any more.
    assert_eq!(
        job.framed_reply(1, "cmd=info-putnodeattr;key=n;value=v;"),
        "cmd=info-putnodeattr-response;rc=0;"
    );
}

#[test]
fn attribute_wakes_all_living_waiters() {
    let mut job = pmi2(4);
    let wait = "cmd=info-getnodeattr;key=n;wait=TRUE;";
    for rank in [0, 2, 3] {
        assert_eq!(job.frame(rank, wait), [""; 0]);
    }
    job.server.closed(LocalRank(2));
    job.frame(1, "cmd=info-putnodeattr;key=other;value=v;");
    assert_eq!(
        job.frame(1, "cmd=info-putnodeattr;key=n;value=a;;b;"),
        [
            "1 S>     35cmd=info-putnodeattr-response;rc=0;",
            "0 S>     57cmd=info-getnodeattr-response;rc=0;found=TRUE;value=a;;b;",
            "3 S>     57cmd=info-getnodeattr-response;rc=0;found=TRUE;value=a;;b;",
        ]
    );
    assert_eq!(
        job.framed_reply(3, wait),
        "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=a;;b;"
    );
}

#[test]
fn wait_that_no_local_rank_can_end_is_reported() {
    let mut job = pmi2(3);
    job.frame(0, "cmd=info-getnodeattr;key=n;wait=TRUE;");
    job.server.closed(LocalRank(2));
    assert!(!job.server.waits_for(Rank(2)), "rank 1 may still put it");
    job.server.closed(LocalRank(1));
    assert!(job.server.waits_for(Rank(2)));
}

#[test]
fn name_calls_of_several_threads_are_sequential() {
    let mut job = pmi2(1);
    assert_eq!(
        job.frame(
            0,
            "cmd=name-publish;thrid=1;name=s;port=p;;q;infokeycount=0;"
        ),
        ["E> publish 0 <s> <p;q>"]
    );
    assert_eq!(job.frame(0, "cmd=name-lookup;thrid=2;name=s;"), [""; 0]);
    assert_eq!(job.frame(0, "cmd=name-unpublish;thrid=3;name=s;"), [""; 0]);
    assert_eq!(
        job.answer(0, NameAnswer::Done),
        [
            "0 S>     39cmd=name-publish-response;thrid=1;rc=0;",
            "E> lookup 0 <s>",
        ]
    );
    assert_eq!(
        job.answer(0, NameAnswer::Port(b"p;q")),
        [
            "0 S>     70cmd=name-lookup-response;thrid=2;rc=0;found=TRUE;value=p;;q;port=p;;q;",
            "E> unpublish 0 <s>",
        ]
    );
    assert_eq!(
        job.answer(0, NameAnswer::Refused("no service; é_1\n")),
        ["0 S>     66cmd=name-unpublish-response;thrid=3;rc=1;errmsg=no service, \\xc3\\xa9_1_;"]
    );
    assert_eq!(job.answer(0, NameAnswer::Done), [""; 0]);
}

#[test]
fn pmi2_publish_has_limits_of_infos() {
    let mut job = pmi2(1);
    let mut publish = |infos: &[(&str, &str)]| {
        let mut text = format!(
            "cmd=name-publish;name=s;port=p;infokeycount={};",
            infos.len()
        );
        for (at, (key, value)) in infos.iter().enumerate() {
            text += &format!("infokey{at}={key};infoval{at}={value};");
        }
        let effect = job.frame(0, &text).concat();
        job.answer(0, NameAnswer::Done);
        effect
    };
    let expire = ("NAMEPUB_EXPIRE", " 5");
    let reads = ("NAMEPUB_REFCOUNT", "2");
    let again = ("NAMEPUB_EXPIRE", "6");
    for (infos, limits) in [
        (&[][..], ""),
        (&[("NAMEPUB_USER", "me")], ""),
        (&[expire], " for 5s"),
        (&[reads], " for 2 lookups"),
        (
            &[("path", "/"), reads, expire, again],
            " for 5s for 2 lookups",
        ),
    ] {
        assert_eq!(publish(infos), format!("E> publish 0 <s> <p>{limits}"));
    }
    for (key, value) in [
        ("NAMEPUB_EXPIRE", "soon"),
        ("NAMEPUB_EXPIRE", "-1"),
        ("NAMEPUB_REFCOUNT", "0"),
        ("NAMEPUB_REFCOUNT", "5000000000"),
    ] {
        let refused = format!("cmd=name-publish-response;rc=3;errmsg=invalid {key};");
        assert!(publish(&[(key, value)]).ends_with(&refused));
    }
    let missing = "cmd=name-publish;name=s;port=p;infokeycount=2;infokey0=a;infoval0=b;";
    assert_eq!(
        job.framed_reply(0, missing),
        "cmd=name-publish-response;rc=3;errmsg=missing infokey;"
    );
}

#[test]
fn pmi2_values_hold_nul_bytes() {
    let mut job = pmi2(2);
    let ok = |name: &str| format!("cmd={name}-response;rc=0;");
    assert_eq!(
        job.framed_reply(0, "cmd=kvs-put;key=k;value=a\0;;\0;"),
        ok("kvs-put")
    );
    assert_eq!(
        job.framed_reply(1, "cmd=kvs-get;key=k;"),
        ok("kvs-get") + "found=TRUE;value=a\\x00;;\\x00;"
    );
    let put = "cmd=info-putnodeattr;key=n;value=\0;";
    assert_eq!(job.framed_reply(0, put), ok("info-putnodeattr"));
    assert_eq!(
        job.framed_reply(1, "cmd=info-getnodeattr;key=n;"),
        ok("info-getnodeattr") + "found=TRUE;value=\\x00;"
    );
    // No line holds it.
    job.feed(1, INIT.as_bytes());
    job.effects.clear();
    assert_eq!(
        job.reply(1, "cmd=get kvsname=job.0 key=k"),
        "cmd=get_result rc=-1 msg=key_not_found"
    );
}

#[test]
fn ring_gives_each_rank_its_place_and_neighbour_values() {
    let map = ProcessMap::from_runs([(NodeId(0), 1), (NodeId(1), 1), (NodeId(0), 1)]);
    let info = PmiJobInfo {
        kvsname: Nspace::new("job.0").unwrap(),
        appnums: vec![AppNum(0); 2],
        universe_size: None,
        attributes: Vec::new(),
        preputs: Vec::new(),
        spawner: None,
    };
    let mut job = Job::with(info, &map, NodeId(0));
    job.start_pmi2(0..2);
    let ring = |rank: u32| format!("cmd=ring;ring-count=1;ring-left=l{rank};ring-right=r;;{rank};");
    assert_eq!(job.frame(1, &ring(2)), [""; 0]);
    assert_eq!(job.state(1), "in a ring");
    let entered = job.frame(0, &ring(0));
    assert_eq!(
        entered,
        [
            "E> enter ring \\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00l0=r;0 \\x02\\x00\\x00\\x00\\x02\\x00\\x00\\x00l2=r;2"
        ]
    );
    let mut all = Vec::new();
    for (rank, left, right) in [(0, "l0", "r;0"), (2, "l2", "r;2"), (1, "l1", "r;1")] {
        let rank = u32::to_le_bytes(rank);
        let key = [&rank[..], &rank, left.as_bytes()].concat();
        kvs::encode_entry(&key, right.as_bytes(), &mut all);
    }
    assert_eq!(
        job.end(&PmiCollective::Ring, Ok(&all)),
        [
            "0 S>     65cmd=ring-response;rc=0;ring-count=0;ring-left=r;;2;ring-right=l1;",
            "1 S>     65cmd=ring-response;rc=0;ring-count=2;ring-left=r;;1;ring-right=l0;",
        ]
    );
}

#[test]
fn ring_released_before_restart_has_values_of_earlier_process() {
    let mut job = pmi2(3);
    job.server = job.server.restartable();
    for rank in 0..3 {
        let ring = format!("cmd=ring;ring-count=1;ring-left=l{rank};ring-right=r{rank};");
        job.frame(rank, &ring);
    }
    job.feed(1, b"cmd=restart\n");
    job.effects.clear();
    let mut all = Vec::new();
    let ends = [0_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat();
    kvs::encode_entry(&[&ends[..], b"l0"].concat(), b"r2", &mut all);
    assert_eq!(
        job.end(&PmiCollective::Ring, Ok(&all)),
        [
            "0 S>     63cmd=ring-response;rc=0;ring-count=0;ring-left=r2;ring-right=l1;",
            "2 S>     63cmd=ring-response;rc=0;ring-count=2;ring-left=r1;ring-right=l0;",
        ]
    );
}

#[test]
fn single_rank_is_own_neighbour_also_with_empty_values() {
    let mut job = pmi2(1);
    job.frame(0, "cmd=ring;ring-count=1;ring-left=;ring-right=;");
    let mut all = Vec::new();
    kvs::encode_entry(&[0; 8], b"", &mut all);
    assert_eq!(
        job.end(&PmiCollective::Ring, Ok(&all)),
        ["0 S>     59cmd=ring-response;rc=0;ring-count=0;ring-left=;ring-right=;"]
    );
}

#[test]
fn ring_without_all_ranks_fails_for_present_and_later_ranks() {
    let mut job = pmi2(2);
    let ring = "cmd=ring;ring-count=1;ring-left=l;ring-right=r;";
    job.frame(0, ring);
    let collective = PmiCollective::Ring;
    let early = job.server.released(&collective, Ok(b""));
    assert_eq!(job.server.take_actions(), []);
    assert_eq!(
        early.unwrap_err().to_string(),
        "barrier ring released with 1 of 2 local ranks in it"
    );
    job.frame(1, ring);
    let outcome = job.server.released(&collective, Ok(b""));
    let effects = job.server.take_actions();
    assert_eq!(outcome, Err(crate::pmi::server::ReleaseError::Ring));
    assert_eq!(effects.len(), 2);
    let failed = "cmd=ring-response;rc=1;errmsg=the data of a ring does not have all ranks;";
    assert_eq!(job.framed_reply(0, ring), failed);
}
