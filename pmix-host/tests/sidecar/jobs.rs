//! Jobs over one and two nodes.

use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::pmix::sidecar_protocol::{ControlReply, SidecarCommand};
use wireup_core::pmix::upcall::{Notice, Upcall, UpcallKind, UpcallRequest};
use wireup_core::pmix::value::{Channels, DataRange, PmixProc, PmixRank, Status};
use wireup_core::pmix::{keys, value};

use wireup_test_support::eventually;

use crate::agent::libpmix_libraries;
use crate::cluster::Cluster;

const TWO: [&str; 2] = ["alpha", "beta"];

fn count_of(cluster: &Cluster, kind: UpcallKind) -> Vec<u64> {
    let counts = cluster.nodes.iter().map(|node| node.link.count(kind));
    counts.map(|count| count.received).collect()
}

#[test]
fn fence_over_two_nodes_carries_all_data_through_upcall() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 2, &libpmix);
        cluster.launch(&["exchange", "1000"]);
        cluster.run();
        for node in &cluster.nodes {
            let fence = node.link.count(UpcallKind::Fence);
            assert_eq!((fence.received, fence.answered), (1, 1));
            assert!(fence.bytes_in > 2000, "two local blobs: {fence:?}");
            assert!(fence.bytes_out > 4000, "all four blobs: {fence:?}");
            assert_eq!(node.link.outstanding_upcalls().count(), 0);
        }
        assert_eq!(count_of(&cluster, UpcallKind::DirectModex), [0, 0]);
        assert_eq!(count_of(&cluster, UpcallKind::ClientConnected), [2, 2]);
        assert_eq!(count_of(&cluster, UpcallKind::ClientFinalized), [2, 2]);
        cluster.finish();
    }
}

#[test]
fn blobs_beyond_socket_buffers_cross_upcall_socket() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 2, &libpmix);
        cluster.launch(&["exchange", "1500000"]);
        cluster.run();
        for node in &cluster.nodes {
            assert!(node.link.count(UpcallKind::Fence).bytes_out > 6_000_000);
        }
        cluster.finish();
    }
}

#[test]
fn direct_modex_fetches_data_not_collected_by_fence() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 2, &libpmix);
        cluster.launch(&["direct", "1000"]);
        cluster.run();
        for node in &cluster.nodes {
            let modex = node.link.count(UpcallKind::DirectModex);
            assert!(modex.received >= 2, "both remote ranks: {modex:?}");
            assert_eq!(modex.received, modex.answered);
            assert!(modex.bytes_out > 2000, "{modex:?}");
        }
        cluster.finish();
    }
}

#[test]
fn direct_modex_waits_for_unpublished_rank() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        // No rank runs yet, so the request is parked, and other requests are not held up.
        let parked = cluster.nodes[0].send(&SidecarCommand::DirectModex {
            nspace: cluster.jobs[0].nspace.clone(),
            rank: Rank(0),
        });
        let unknown = cluster.nodes[0].send(&SidecarCommand::DirectModex {
            nspace: Nspace::new("unknown").unwrap(),
            rank: Rank(0),
        });
        match cluster.nodes[0].reply(unknown) {
            ControlReply::DirectModex(Err(refusal)) => {
                assert_eq!(refusal.status, Status::ERR_NOT_FOUND);
                assert_eq!(refusal.text, "job unknown is not registered");
            }
            other => panic!("{other:?}"),
        }
        let waiting: Vec<_> = cluster.nodes[0].link.outstanding_controls().collect();
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        cluster.nodes[0].events.clear();
        // Finalize answers it, as nothing will.
        let end = cluster.nodes[0].send(&SidecarCommand::Finalize);
        match cluster.nodes[0].reply(parked) {
            ControlReply::DirectModex(Err(refusal)) => {
                assert_eq!(refusal.status, Status::ERR_LOST_CONNECTION);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(cluster.nodes[0].reply(end), ControlReply::Finalize(Ok(())));
        assert_eq!(cluster.nodes[0].end().code(), Some(0));
    }
}

#[test]
fn direct_modex_finds_rank_started_after_request() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        cluster.launch_rank(Rank(0), &["late"]);
        let is_modex_request =
            |upcall: &Upcall| matches!(upcall, Upcall::Request(UpcallRequest::DirectModex { .. }));
        cluster.run_until(|cluster| cluster.upcalls.iter().any(is_modex_request));
        cluster.launch_rank(Rank(1), &["late"]);
        cluster.run();
        assert_eq!(cluster.exits.len(), 2);
        cluster.finish();
    }
}

#[test]
fn single_node_needs_no_fence_upcall() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 3, &libpmix);
        cluster.launch(&["exchange"]);
        cluster.run();
        assert_eq!(count_of(&cluster, UpcallKind::Fence), [0]);
        assert_eq!(count_of(&cluster, UpcallKind::ClientFinalized), [3]);
        cluster.finish();
    }
}

#[test]
fn abort_names_rank_and_status() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        cluster.launch(&["abort"]);
        let aborted =
            |upcall: &Upcall| matches!(upcall, Upcall::Request(UpcallRequest::Abort { .. }));
        cluster.run_until(|cluster| cluster.upcalls.iter().any(aborted));
        let abort = cluster
            .upcalls
            .iter()
            .find(|upcall| aborted(upcall))
            .unwrap();
        let Upcall::Request(UpcallRequest::Abort {
            proc,
            status,
            message,
            targets,
        }) = abort
        else {
            unreachable!()
        };
        assert_eq!((proc.rank.rank(), *status), (Some(Rank(1)), 7));
        assert_eq!(*message, "told to");
        assert!(targets.is_empty(), "{targets:?}");
        // Rank 0 waits in a fence that will never be answered.
        cluster.run_until(|cluster| cluster.exits.contains_key(&Rank(1)));
        assert_eq!(cluster.exits[&Rank(1)].code(), Some(7));
    }
}

#[test]
fn log_text_reaches_agent_and_client_continues() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 2, &libpmix);
        cluster.launch(&["log"]);
        cluster.run();
        let mut texts: Vec<String> = Vec::new();
        for upcall in &cluster.upcalls {
            if let Upcall::Request(UpcallRequest::Log { data, .. }) = upcall
                && let Some(value::Value::String(text)) = value::find(data, keys::LOG_STDERR)
            {
                texts.push(text.to_string());
            }
        }
        texts.sort();
        assert_eq!(texts, ["hello from 0\n", "hello from 1\n"]);
        cluster.finish();
    }
}

#[test]
fn query_results_are_rebuilt_for_libpmix() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 1, &libpmix);
        cluster.launch(&["query"]);
        cluster.run();
        assert_eq!(count_of(&cluster, UpcallKind::Query), [1]);
        cluster.finish();
    }
}

#[test]
fn events_cross_nodes_through_notify() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 2, &libpmix);
        cluster.launch(&["event"]);
        cluster.run();
        let raised = cluster.upcalls.iter().filter(|upcall| {
            matches!(upcall, Upcall::Notice(Notice::NotifyEvent { code: Status(-3333), range, .. })
                if *range == DataRange::SESSION)
        });
        assert_eq!(raised.count(), 1);
        cluster.finish();
    }
}

#[test]
fn events_reach_clients_when_server_ends_right_after_them() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["alone"], 1, &libpmix);
        cluster.launch(&["events", "100"]);
        let is_log_request =
            |upcall: &Upcall| matches!(upcall, Upcall::Request(UpcallRequest::Log { .. }));
        cluster.run_until(|cluster| cluster.upcalls.iter().any(is_log_request));
        // The source of an event is not notified of it.
        let source = PmixProc::new(&Nspace::new("other").unwrap(), Rank(0));
        let mut node = cluster.nodes.pop().unwrap();
        for _ in 0..100 {
            node.send(&SidecarCommand::Notify {
                code: Status(-3333),
                source: source.clone(),
                range: DataRange::SESSION,
                infos: Vec::new(),
            });
        }
        let id = node.send(&SidecarCommand::Finalize);
        assert_eq!(node.reply(id), ControlReply::Finalize(Ok(())));
        let (_, _, client) = &mut cluster.clients[0];
        let status = eventually("the client has all events", || client.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

#[test]
fn probes_are_answered_before_during_and_after_job() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["alone"], 2, &libpmix);
        let probe = |cluster: &mut Cluster| {
            let id = cluster.nodes[0].send(&SidecarCommand::Probe);
            assert_eq!(cluster.nodes[0].reply(id), ControlReply::Probe(Ok(())));
        };
        probe(&mut cluster);
        cluster.launch(&["exchange", "100"]);
        probe(&mut cluster);
        cluster.run();
        probe(&mut cluster);
        cluster.finish();
    }
}

#[test]
fn output_reaches_subscribers_and_input_reaches_agent() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        cluster.launch(&["output"]);
        let is_pull = |upcall: &Upcall| matches!(upcall, Upcall::Notice(Notice::IofPull { .. }));
        cluster.run_until(|cluster| cluster.upcalls.iter().any(is_pull));
        let source = PmixProc::new(&cluster.jobs[0].nspace, Rank(1));
        for (channel, data) in [
            (Channels::STDOUT, "one"),
            (Channels::STDOUT, "two"),
            (Channels::STDOUT, ""),
            (Channels::STDERR, "last"),
        ] {
            cluster.nodes[0].send(&SidecarCommand::IofDeliver {
                source: source.clone(),
                channel,
                data: data.into(),
            });
        }
        cluster.run();
        let delivered =
            |(_, reply): &&(_, ControlReply)| matches!(reply, ControlReply::IofDeliver(Ok(())));
        assert_eq!(cluster.replies.iter().filter(delivered).count(), 4);
        let pulls: Vec<_> = cluster
            .upcalls
            .iter()
            .filter(|upcall| is_pull(upcall))
            .collect();
        let [
            Upcall::Notice(Notice::IofPull {
                procs, channels, ..
            }),
            Upcall::Notice(Notice::IofPull { infos, .. }),
        ] = &pulls[..]
        else {
            panic!("{pulls:?}")
        };
        assert_eq!(procs[0].rank, PmixRank::WILDCARD);
        assert_eq!(channels.0, Channels::STDOUT.0 | Channels::STDERR.0);
        assert!(
            infos.iter().any(|info| info.key == keys::IOF_STOP),
            "{infos:?}"
        );
        let pushed = cluster.upcalls.iter().filter_map(|upcall| match upcall {
            Upcall::Request(UpcallRequest::PushStdin { targets, data, .. }) => {
                Some((targets[0].clone(), &data[..]))
            }
            _ => None,
        });
        let pushed: Vec<_> = pushed.collect();
        assert_eq!(pushed, [(source.clone(), &b"a\0b"[..]), (source, &b""[..])]);
        cluster.finish();
    }
}

#[test]
fn output_of_unknown_job_is_refused() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 1, &libpmix);
        let id = cluster.nodes[0].send(&SidecarCommand::IofDeliver {
            source: PmixProc::new(&Nspace::new("unknown").unwrap(), Rank(0)),
            channel: Channels::STDOUT,
            data: b"text".to_vec(),
        });
        match cluster.nodes[0].reply(id) {
            ControlReply::IofDeliver(Err(refusal)) => {
                assert_eq!(refusal.text, "job unknown is not registered");
            }
            other => panic!("{other:?}"),
        }
        cluster.finish();
    }
}
