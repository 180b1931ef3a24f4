//! Callers of one agent who have nothing to do with each other.

use tonic::Code;
use wireup_agent::proto::v1;

use crate::agents::{Agents, eventually, is_root, script};
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
