//! Launches on several nodes.

use tonic::Code;
use wireup_agent::proto::v1;
use wireup_sys::procfs;

use crate::agents::{Agents, Client, eventually, is_root, output, rank_is, script, watch};

/// Makes a launch known to every agent, the head's last.
async fn launch(agents: &Agents, clients: &mut [Client], mut request: v1::LaunchProcessesRequest) {
    let ranks: Vec<u32> = request.peers.iter().map(|peer| peer.num_ranks).collect();
    request.world_size = ranks.iter().sum();
    if is_root() {
        request.run_as = Some(v1::RunAs {
            uid: 65534,
            gid: None,
        });
    }
    assert_eq!(agents.agents.len(), ranks.len());
    for (index, client) in clients.iter_mut().enumerate().rev() {
        request.tasks_per_node = ranks[index];
        request.first_rank = request.peers[index].first_rank;
        let response = client
            .launch_processes(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            (response.node_index as usize, response.head),
            (index, index == 0)
        );
    }
}

async fn clients(agents: &Agents) -> Vec<Client> {
    let mut clients = Vec::new();
    for index in 0..agents.agents.len() {
        clients.push(agents.remote(index, "s").await);
    }
    clients
}

async fn state(client: &mut Client, id: &str) -> v1::LaunchInfo {
    let request = v1::QueryRequest {
        launch_id: id.into(),
        ranks: false,
    };
    let mut stream = client.query(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap()
}

#[test]
async fn ranks_run_on_nodes_of_scheduler_and_every_node_gets_end() {
    let agents = Agents::start(2);
    let mut clients = clients(&agents).await;
    let mut request = script(
        "wide",
        0,
        "echo $WIREUP_HOST $WIREUP_NODE $KEY; read line; exit 0",
    );
    request.env = [("KEY".to_owned(), "value".to_owned())].into();
    request.peers = agents.peers(&[2, 2]);
    request.peers[1].first_rank = 1;
    let job = request.job.as_mut().unwrap();
    job.hold_output = true;
    job.stdin = Some(v1::StdinTarget {
        target: Some(v1::stdin_target::Target::All(true)),
    });
    let block = |node| v1::RankBlock { node, ranks: 1 };
    job.layout = Some(v1::Layout {
        blocks: [0, 1, 1, 0].map(block).into(),
    });
    launch(&agents, &mut clients, request).await;

    let info = state(&mut clients[1], "wide").await;
    assert_eq!(info.state(), v1::LaunchState::Registered);
    assert_eq!((info.node_index, info.head_node_index), (1, 0));
    let watch_here = v1::WatchRequest {
        launch_id: "wide".into(),
    };
    let elsewhere = clients[1].watch(watch_here).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition);
    assert!(
        elsewhere.message().contains(&agents.agents[0].address),
        "{elsewhere}"
    );

    let printed = output(&mut clients[0], "wide", &["go\n"]).await;
    let hosts: Vec<&str> = (0..4).map(|rank| printed[&Some(rank)].trim()).collect();
    assert_eq!(
        hosts,
        ["n0 0 value", "n1 1 value", "n1 1 value", "n0 0 value"]
    );
    let (_, end) = watch(&mut clients[0], "wide").await;
    assert!(end.success, "{end:?}");
    let mut ended = false;
    while !ended {
        ended = state(&mut clients[1], "wide").await.state() == v1::LaunchState::Ended;
    }
}

#[test]
async fn abort_on_any_node_ends_launch_on_all() {
    let agents = Agents::start(2);
    let mut clients = clients(&agents).await;
    for (id, at) in [("head", 0), ("other", 1)] {
        let mut request = script(id, 0, "sleep 1000");
        request.peers = agents.peers(&[1, 1]);
        launch(&agents, &mut clients, request).await;
        rank_is(&mut clients[0], id, 1, v1::RankState::Started).await;
        let abort = v1::AbortProcessesRequest {
            launch_id: id.into(),
            reason: "enough".into(),
        };
        clients[at].abort_processes(abort).await.unwrap();
        let (_, end) = watch(&mut clients[0], id).await;
        assert!(!end.success, "{end:?}");
        if at == 0 {
            assert_eq!(end.error_message, "ended by AbortProcesses: enough");
        }
    }
}

#[test]
async fn unreachable_node_is_named_at_end() {
    let mut agents = Agents::start(2);
    let mut clients = clients(&agents).await;
    let mut request = script("gone", 0, "sleep 1000");
    request.peers = agents.peers(&[1, 1]);
    launch(&agents, &mut clients, request).await;
    rank_is(&mut clients[0], "gone", 1, v1::RankState::Started).await;
    agents.agents[1].child.kill().unwrap();
    let (_, end) = watch(&mut clients[0], "gone").await;
    assert!(end.error_message.contains("n1"), "{end:?}");
}

/// The processes with this word on their command lines, by number.
fn with_word(word: &str) -> Vec<i32> {
    let all = procfs::processes().into_iter().map(|process| process.pid);
    let has = |pid: &i32| {
        let line = procfs::command_line(*pid);
        line.iter().any(|one| one.to_string_lossy() == word)
    };
    all.filter(has).collect()
}

#[test]
async fn kill_of_head_agent_ends_launch_on_all_nodes() {
    let mut agents = Agents::start(2);
    let mut clients = clients(&agents).await;
    // No other process sleeps for this long.
    let time = format!("1000.{}", std::process::id());
    let mut request = script("headless", 0, &format!("trap '' TERM; exec sleep {time}"));
    request.peers = agents.peers(&[1, 1]);
    launch(&agents, &mut clients, request).await;
    for rank in [0, 1] {
        rank_is(&mut clients[0], "headless", rank, v1::RankState::Started).await;
    }
    eventually("both ranks sleep", || {
        (with_word(&time).len() == 2).then_some(())
    });
    let head = agents.agents[0].child.id().cast_signed();
    let of_head = |process: &procfs::Process| process.parent == head;
    let launchers: Vec<_> = procfs::processes().into_iter().filter(of_head).collect();
    assert!(!launchers.is_empty());
    agents.agents[0].child.kill().unwrap();
    eventually("ranks and launcher have ended", || {
        let lives = |old: &procfs::Process| {
            let now = procfs::process(old.pid);
            now.is_some_and(|now| now.started == old.started && !now.has_ended())
        };
        let ended = with_word(&time).is_empty() && !launchers.iter().any(lives);
        ended.then_some(())
    });
}

#[test]
async fn nodes_of_launch_exchange_keys_at_head() {
    let agents = Agents::start(2);
    let mut clients = clients(&agents).await;
    let mut request = script("keys", 0, "sleep 1000");
    request.peers = agents.peers(&[1, 1]);
    launch(&agents, &mut clients, request).await;
    let part = |node_index: u32| v1::PmiFenceRequest {
        launch_id: "keys".into(),
        kvs_entries: [(format!("key{node_index}"), "value".to_owned())].into(),
        node_index,
    };
    let mut head = clients[0].clone();
    let mut other = clients[0].clone();
    let (a, b) = tokio::join!(head.pmi_fence(part(0)), other.pmi_fence(part(1)));
    let (a, b) = (a.unwrap().into_inner(), b.unwrap().into_inner());
    assert_eq!(a, b);
    assert_eq!(a.merged_kvs.keys().collect::<Vec<_>>(), ["key0", "key1"]);

    // Elsewhere another agent reports the result.
    let mut waiting = clients[1].clone();
    let waiting = tokio::spawn(async move { waiting.pmi_fence(part(1)).await });
    let complete = v1::PmiFenceCompleteRequest {
        launch_id: "keys".into(),
        merged_kvs: [("all".to_owned(), "of it".to_owned())].into(),
    };
    loop {
        let answer = clients[1]
            .pmi_fence_complete(complete.clone())
            .await
            .unwrap();
        if answer.into_inner().answered == 1 {
            break;
        }
    }
    let answer = waiting.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.merged_kvs["all"], "of it");

    let mut waiting = clients[0].clone();
    let waiting = tokio::spawn(async move { waiting.pmi_fence(part(0)).await });
    tokio::task::yield_now().await;
    let abort = v1::AbortProcessesRequest {
        launch_id: "keys".into(),
        reason: String::new(),
    };
    clients[0].abort_processes(abort).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Aborted);
    eventually("the log has both launches", || {
        agents.agents[1].log().contains("launch").then_some(())
    });
}
