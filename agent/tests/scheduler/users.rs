//! Callers of one agent who have nothing to do with each other.

use tonic::Code;
use wireup_agent::proto::v1;

use crate::agents::{Agents, eventually, is_root, script, watch};
use crate::skip::skip;

const NOBODY: u32 = 65_534;

/// Lines for one caller. Source: docs/security.md.
const LINES: usize = 20;

#[tokio::test]
async fn what_is_refused_on_the_socket_is_logged_with_the_user_a_few_times() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let uid = nix::unistd::geteuid();
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
        "refused /wireup.v1.NodeAgent/Signal of local user {uid}: no launch \"nowhere\" of yours"
    ));
    client
        .launch_processes(script("a b", 1, ""))
        .await
        .unwrap_err();
    logged(format!(
        "refused /wireup.v1.NodeAgent/LaunchProcesses of local user {uid}: launch_id \"a b\""
    ));
    // Who only asks is told, and that is all.
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
        "refused /wireup.v1.NodeAgent/Signal of local user {NOBODY}: no launch"
    ));
}

#[tokio::test]
async fn launches_that_a_user_makes_known_and_never_brings_are_in_nobodys_way() {
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
