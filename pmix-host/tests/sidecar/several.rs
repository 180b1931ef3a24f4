//! Several jobs over the same sidecars.

use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::pmix::keys;
use wireup_core::pmix::sidecar_protocol::{ControlReply, SidecarCommand};
use wireup_core::pmix::upcall::{Notice, Upcall, UpcallKind, UpcallRequest};
use wireup_core::pmix::value::{Status, Value};

use crate::agent::libpmix_libraries;
use crate::cluster::Cluster;

const TWO: [&str; 2] = ["alpha", "beta"];

/// Has the clients of both jobs ask for the other's description.
fn launch_pair(cluster: &mut Cluster, one: usize, two: usize) {
    for (job, other) in [(one, two), (two, one)] {
        let other = &cluster.jobs[other];
        let (name, size) = (other.nspace.to_string(), other.ranks.size().to_string());
        cluster.launch_job(job, &["other", &name, &size]);
    }
}

#[test]
fn clients_of_second_job_fence_and_read_first_job() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        let second = cluster.add_job(&[2, 1]);
        launch_pair(&mut cluster, 0, second);
        cluster.run();
        assert_eq!((cluster.exits.len(), cluster.other_exits.len()), (2, 3));
        let name = cluster.jobs[second].nspace.clone();
        let finalized = cluster.upcalls.iter().filter(|upcall| {
            matches!(upcall, Upcall::Notice(Notice::ClientFinalized { proc }) if proc.nspace == name.as_str())
        });
        assert_eq!(finalized.count(), 3);
        // With both registered still.
        cluster.stop();
    }
}

#[test]
fn variables_of_each_job_name_it() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 2, &libpmix);
        let second = cluster.add_job(&[3]);
        for job in [0, second] {
            let job = &cluster.jobs[job];
            let env = &job.environments[&NodeId(0)];
            assert_eq!(env.clients.len(), job.ranks.size() as usize);
            for rank in (0..job.ranks.size()).map(Rank) {
                let value = |name: &str| {
                    let found = env.variables_of(rank).find(|(known, _)| *known == name);
                    found.unwrap().1.to_string()
                };
                assert_eq!(value("PMIX_NAMESPACE"), job.nspace.to_string());
                assert_eq!(value("PMIX_RANK"), rank.to_string());
            }
        }
        cluster.finish();
    }
}

#[test]
fn job_without_local_clients_is_registered_for_others() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        let second = cluster.add_job(&[0, 2]);
        let env = &cluster.jobs[second].environments[&NodeId(0)];
        assert!(env.common.is_empty() && env.clients.is_empty(), "{env:?}");
        launch_pair(&mut cluster, 0, second);
        cluster.run();
        cluster.finish();
    }
}

#[test]
fn jobs_start_and_end_while_others_continue() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        let second = cluster.add_job(&[1, 1]);
        cluster.launch_job(second, &["exchange", "1000"]);
        cluster.run_until(|cluster| cluster.clients.is_empty());
        cluster.deregister(second);
        // The first job's clients start only now.
        let third = cluster.add_job(&[1, 2]);
        launch_pair(&mut cluster, 0, third);
        cluster.run();
        cluster.deregister(0);
        let fourth = cluster.add_job(&[1, 1]);
        cluster.launch_job(fourth, &["exchange", "1000"]);
        cluster.run();
        assert_eq!(cluster.other_exits.len(), 2 + 3 + 2);
        cluster.stop();
    }
}

#[test]
fn requests_about_ended_job_are_refused() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 1, &libpmix);
        let second = cluster.add_job(&[1]);
        let ask = |cluster: &Cluster, job: usize| SidecarCommand::DirectModex {
            nspace: cluster.jobs[job].nspace.clone(),
            rank: Rank(0),
        };
        let requests = [0, second].map(|job| ask(&cluster, job));
        let [first, parked] = requests.map(|request| cluster.nodes[0].send(&request));
        cluster.deregister(second);
        match cluster.nodes[0].reply(parked) {
            ControlReply::DirectModex(Err(refusal)) => {
                assert_eq!(refusal.status, Status::ERR_NOT_FOUND);
            }
            other => panic!("{other:?}"),
        }
        let waiting: Vec<_> = cluster.nodes[0].link.outstanding_controls().collect();
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        // Its data comes when there is any, since that job goes on.
        cluster.launch(&["exchange", "1000"]);
        cluster.run();
        match &cluster.replies[..] {
            [(id, ControlReply::DirectModex(Ok(data)))] if *id == first => {
                assert!(data.len() > 1000);
            }
            other => panic!("{other:?}"),
        }
        cluster.finish();
    }
}

#[test]
fn job_that_cannot_be_registered_does_no_harm() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&["solo"], 2, &libpmix);
        let bad = cluster.new_job(&[2]);
        let SidecarCommand::RegisterJob {
            nspace,
            mut infos,
            clients,
        } = cluster.registration(&bad, 0)
        else {
            unreachable!()
        };
        // Ranks of one node more than there are nodes.
        let map = infos.iter_mut().find(|info| info.key == keys::PROC_MAP);
        map.unwrap().value = Value::PpnList("0,1;2".into());
        let request = SidecarCommand::RegisterJob {
            nspace,
            infos,
            clients,
        };
        let id = cluster.nodes[0].send(&request);
        match cluster.nodes[0].reply(id) {
            ControlReply::RegisterJob(Err(refusal)) => {
                assert_eq!(refusal.text, "PMIx_server_register_nspace failed");
            }
            other => panic!("{other:?}"),
        }
        // libpmix does not accept the same name again, whatever became of it.
        let id = cluster.nodes[0].send(&request);
        match cluster.nodes[0].reply(id) {
            ControlReply::RegisterJob(Err(refusal)) => {
                assert_eq!(refusal.status, Status::ERR_BAD_PARAM);
                let text = refusal.text;
                assert!(text.ends_with(" was used before, choose another"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        let unknown = SidecarCommand::DeregisterJob {
            nspace: Nspace::new("unknown").unwrap(),
        };
        let id = cluster.nodes[0].send(&unknown);
        match cluster.nodes[0].reply(id) {
            ControlReply::DeregisterJob(Err(refusal)) => {
                assert_eq!(refusal.status, Status::ERR_NOT_FOUND);
            }
            other => panic!("{other:?}"),
        }
        let second = cluster.add_job(&[2]);
        cluster.launch(&["exchange", "1000"]);
        cluster.launch_job(second, &["exchange", "1000"]);
        cluster.run();
        cluster.finish();
    }
}

#[test]
fn spawned_job_connects_with_parents_and_disconnects() {
    for libpmix in libpmix_libraries() {
        let mut cluster = Cluster::start(&TWO, 1, &libpmix);
        cluster.launch(&["spawn", "2"]);
        cluster.run();
        assert_eq!((cluster.exits.len(), cluster.other_exits.len()), (2, 2));
        let mut spawned = cluster.upcalls.iter().filter_map(|upcall| match upcall {
            Upcall::Request(UpcallRequest::Spawn { proc, infos, apps }) => {
                Some((proc, infos, apps))
            }
            _ => None,
        });
        let (proc, infos, apps) = spawned.next().unwrap();
        assert!(spawned.next().is_none());
        assert_eq!(proc.rank.rank(), Some(Rank(0)));
        assert!(infos.iter().any(|info| info.value == Value::Bool(true)));
        let [app] = &apps[..] else { panic!("{apps:?}") };
        assert!(
            app.env
                .iter()
                .any(|variable| *variable == "WIREUP_TEST=a=b")
        );
        assert_eq!((app.cwd.to_string(), app.maxprocs), ("/".into(), 2));
        for node in &cluster.nodes {
            for kind in [UpcallKind::Connect, UpcallKind::Disconnect] {
                assert_eq!(node.link.count(kind).received, 1, "{kind:?}");
            }
        }
        cluster.stop();
    }
}
