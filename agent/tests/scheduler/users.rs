//! Callers of one agent who have nothing to do with each other.

use tonic::Code;
use wireup_agent::proto::v1;
use wireup_test_support::skip;

use crate::agents::{
    Agents, Client, await_stop, eventually, is_root, output, rank_is, script, watch,
};

const NOBODY: u32 = 65_534;

/// Lines for one caller. Source: docs/security-measures.md.
const LINES: usize = 20;

#[test]
async fn refusals_on_socket_are_logged_with_user_and_limited() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let uid = rustix::process::geteuid();
    let signal = || v1::SignalRequest {
        launch_id: "nowhere".into(),
        signal: libc::SIGTERM,
        ranks: Vec::new(),
    };
    let log = || agents.agents[0].log();
    let logged = |words: String| {
        eventually(&words, || log().contains(&words).then_some(()));
    };
    let refused = client.signal(signal()).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    logged(format!(
        "refused /wireup.v1.NodeAgent/Signal of local user {uid}: unknown launch \"nowhere\""
    ));
    client
        .launch_processes(script("a b", 1, ""))
        .await
        .unwrap_err();
    logged(format!(
        "refused /wireup.v1.NodeAgent/LaunchProcesses of local user {uid}: invalid launch_id \"a b\""
    ));
    // A user who only asks gets an answer, and nothing else happens.
    let request = v1::QueryRequest {
        launch_id: "nowhere".into(),
        ranks: false,
    };
    client.query(request).await.unwrap_err();
    for _ in 0..5 * LINES {
        client.signal(signal()).await.unwrap_err();
    }
    logged(format!(
        "refused local user {uid} {LINES} times within 60 s"
    ));
    let lines = log()
        .lines()
        .filter(|line| line.contains("refused /"))
        .count();
    assert_eq!(lines, LINES, "{}", log());
    assert!(!log().contains("/Query"));
    if !is_root() {
        return skip("callers of another user need root");
    }
    let mut other = agents.local_as(NOBODY).await;
    other.signal(signal()).await.unwrap_err();
    logged(format!(
        "refused /wireup.v1.NodeAgent/Signal of local user {NOBODY}: unknown launch"
    ));
}

#[test]
async fn unstarted_launches_of_user_block_no_others() {
    if !is_root() {
        return skip("callers of another user need root");
    }
    let agents = Agents::start(1);
    let mut other = agents.local_as(NOBODY).await;
    let known = |n: u32| {
        let peer = |name: &str, first_rank| v1::PeerInfo {
            node_id: name.into(),
            grpc_address: "nowhere:7437".into(),
            first_rank,
            num_ranks: 1,
        };
        v1::LaunchProcessesRequest {
            peers: vec![peer("nowhere", 0), peer("n0", 1)],
            node_index: Some(1),
            first_rank: 1,
            world_size: 2,
            ..script(&format!("x{n}"), 1, "true")
        }
    };
    let mut count = 0;
    let refused = loop {
        match other.launch_processes(known(count)).await {
            Ok(_) => count += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((count, refused.code()), (256, Code::ResourceExhausted));
    assert!(refused.message().contains("of user id 65534"), "{refused}");

    // The name of one of them is free for others.
    let mut third = agents.local_as(1).await;
    let request = script("x0", 1, "true");
    third.launch_processes(request.clone()).await.unwrap();
    assert!(watch(&mut third, "x0").await.1.success);
    let mut root = agents.local().await;
    root.launch_processes(request).await.unwrap();
    assert!(watch(&mut root, "x0").await.1.success);
}

#[test]
async fn unstarted_wide_launches_stay_within_memory_of_user() {
    if !is_root() {
        return skip("callers of another user need root");
    }
    let agents = Agents::start(1);
    let mut other = agents.local_as(NOBODY).await;
    let wide = |n: u32| {
        let mut peers: Vec<_> = (0..16_384)
            .map(|first_rank| v1::PeerInfo {
                node_id: format!("{first_rank:0>200}"),
                grpc_address: "nowhere:7437".into(),
                first_rank,
                num_ranks: 1,
            })
            .collect();
        peers[1].node_id = "n0".into();
        v1::LaunchProcessesRequest {
            peers,
            node_index: Some(1),
            first_rank: 1,
            world_size: 16_384,
            ..script(&format!("wide{n}"), 1, "true")
        }
    };
    let mut count = 0;
    let refused = loop {
        match other.launch_processes(wide(count)).await {
            Ok(_) => count += 1,
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let most = agents.agents[0].memory("VmHWM:");
    // What a user may have, 1 GiB, and what the agent has without him.
    assert!(most < 1_280 * 1024, "{most} kB after {count}: {refused}");

    let mut root = agents.local().await;
    root.launch_processes(script("x", 1, "true")).await.unwrap();
    assert!(watch(&mut root, "x").await.1.success);
}

/// Returns the refusals of the calls that control a launch.
async fn steering(client: &mut Client, id: &str) -> Vec<Option<tonic::Status>> {
    let launch_id = id.to_owned();
    let kvs = v1::PmiFenceRequest {
        launch_id: launch_id.clone(),
        ..Default::default()
    };
    let complete = v1::PmiFenceCompleteRequest {
        launch_id: launch_id.clone(),
        ..Default::default()
    };
    let signal = v1::SignalRequest {
        launch_id: launch_id.clone(),
        signal: libc::SIGKILL,
        ranks: vec![0],
    };
    let abort = v1::AbortProcessesRequest {
        launch_id: launch_id.clone(),
        reason: String::new(),
    };
    let input = v1::StdioInput {
        launch_id,
        data: "echo stolen; id -u\n".as_bytes().to_vec().into(),
        ..Default::default()
    };
    vec![
        client.stdio(tokio_stream::once(input)).await.err(),
        client.pmi_fence(kvs).await.err(),
        client.pmi_fence_complete(complete).await.err(),
        client.signal(signal).await.err(),
        client.abort_processes(abort).await.err(),
    ]
}

#[test]
async fn scheduler_cannot_write_to_shell_of_other_caller() {
    if !is_root() {
        return skip("launches of several users need root");
    }
    let agents = Agents::start(1);
    let mut scheduler = agents.remote(0, "s").await;
    // A shell that reads what it is to do.
    let shell = |id: &str, uid: Option<u32>| {
        let mut request = script(id, 1, "exec sh -s");
        request.run_as = uid.map(|uid| v1::RunAs { uid, gid: None });
        let job = request.job.as_mut().unwrap();
        job.hold_output = true;
        job.stdin = Some(v1::StdinTarget {
            target: Some(v1::stdin_target::Target::Rank(0)),
        });
        request
    };
    let mut root = agents.local().await;
    let mut user = agents.local_as(NOBODY).await;
    let running = v1::RankState::Started;
    root.launch_processes(shell("roots", None)).await.unwrap();
    let lent = shell("lent", Some(NOBODY));
    root.launch_processes(lent).await.unwrap();
    user.launch_processes(shell("users", None)).await.unwrap();
    for id in ["roots", "lent", "users"] {
        rank_is(&mut scheduler, id, 0, running).await;
        for refused in steering(&mut scheduler, id).await {
            let refused = refused.expect("it is not the scheduler's");
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
            assert!(
                refused.message().contains("may only read launch"),
                "{refused}"
            );
        }
    }
    // The launches are unaffected: each still does what its own user orders.
    for (client, id) in [(&root, "roots"), (&root, "lent"), (&user, "users")] {
        let mut client = client.clone();
        let printed = output(&mut client, id, &["echo mine\n"]).await;
        assert_eq!(printed[&Some(0)], "mine\n");
        assert!(watch(&mut client, id).await.1.success);
    }
    // What it has started itself is its own, and no other scheduler's.
    let its = shell("its", Some(NOBODY));
    scheduler.launch_processes(its).await.unwrap();
    let mut other = agents.remote(0, "t").await;
    rank_is(&mut other, "its", 0, running).await;
    for refused in steering(&mut other, "its").await {
        assert_eq!(refused.unwrap().code(), Code::PermissionDenied);
    }
    let printed = output(&mut scheduler, "its", &["id -u\n"]).await;
    assert_eq!(printed[&Some(0)], format!("{NOBODY}\n"));
    assert!(watch(&mut scheduler, "its").await.1.success);
}

#[test]
async fn unprivileged_agent_starts_signals_and_ends_launches() {
    if !is_root() {
        return skip("giving up root's rights needs them");
    }
    let options = ["--user", "nobody", "--root-launches"];
    let agents = Agents::start_with(1, &options);
    let mut root = agents.local().await;
    let mut request = script("one", 2, "echo $OWN $(id -u)");
    let job = request.job.as_mut().unwrap();
    job.hold_output = true;
    request.env = [("OWN".to_owned(), "variable".to_owned())].into();
    root.launch_processes(request).await.unwrap();
    let printed = output(&mut root, "one", &[]).await;
    for rank in 0..2 {
        assert_eq!(printed[&Some(rank)], "variable 0\n");
    }
    assert!(watch(&mut root, "one").await.1.success);
    // Whose the machine's accounts are it starts nothing, the agent's own among them.
    for (uid, words) in [(NOBODY, "the agent's own"), (1, "UID_MIN")] {
        let mut other = agents.local_as(uid).await;
        let refused = other.launch_processes(script("three", 1, "true")).await;
        let refused = refused.unwrap_err();
        assert!(refused.message().contains(words), "{refused}");
    }
    // Without the option schedulers and their like start nothing as root.
    let agents = Agents::start_with(1, &options[..2]);
    let mut root = agents.local().await;
    let refused = root.launch_processes(script("one", 1, "true")).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("--root-launches"), "{refused}");
}

/// Has a caller's launcher stop, sees that another launch of it goes on, and ends the first.
async fn end_a_stopped_launcher(mut client: Client, name: &str) {
    let as_nobody = |id: &str, what: &str| {
        let mut request = script(id, 1, what);
        request.run_as = Some(v1::RunAs {
            uid: NOBODY,
            gid: None,
        });
        request
    };
    let (stopped, other) = (format!("stopped-{name}"), format!("other-{name}"));
    let request = as_nobody(&stopped, "kill -STOP $PPID; exec sleep 1000");
    let started = client.launch_processes(request).await.unwrap().into_inner();
    await_stop(started.launcher_pid);
    let request = as_nobody(&other, "true");
    client.launch_processes(request).await.unwrap();
    assert!(watch(&mut client, &other).await.1.success);
    let request = v1::AbortProcessesRequest {
        launch_id: stopped.clone(),
        reason: String::new(),
    };
    client.abort_processes(request).await.unwrap();
    let (_, end) = watch(&mut client, &stopped).await;
    assert!(!end.success, "{name}: {end:?}");
}

#[test]
async fn stopped_launcher_is_ended_by_abort_and_delays_no_others() {
    if !is_root() {
        return skip("running as others needs root's rights");
    }
    let (full, separated) = (
        Agents::start(1),
        Agents::start_with(1, &["--user", "daemon"]),
    );
    // Each takes as long as a launcher has until it is killed.
    tokio::join!(
        end_a_stopped_launcher(full.local_as(NOBODY).await, "socket"),
        end_a_stopped_launcher(full.remote(0, "s").await, "tls"),
        end_a_stopped_launcher(separated.local_as(NOBODY).await, "separated-socket"),
        end_a_stopped_launcher(separated.remote(0, "s").await, "separated-tls"),
    );
}
