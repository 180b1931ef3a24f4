//! Launches on one node, call by call.

use tokio::task::JoinSet;
use tonic::Code;
use wireup_agent::proto::v1;
use wireup_agent::proto::v1::watch_event::Event;

use crate::agents::{
    Agents, Client, DEADLINE, await_stop, built, is_root, output, rank_is, script, watch,
};

fn with_stdin(mut request: v1::LaunchProcessesRequest, rank: u32) -> v1::LaunchProcessesRequest {
    let job = request.job.as_mut().unwrap();
    job.hold_output = true;
    job.stdin = Some(v1::StdinTarget {
        target: Some(v1::stdin_target::Target::Rank(rank)),
    });
    request
}

async fn abort(client: &mut Client, id: &str, reason: &str) {
    let request = v1::AbortProcessesRequest {
        launch_id: id.into(),
        reason: reason.into(),
    };
    client.abort_processes(request).await.unwrap();
}

#[test]
async fn launch_is_watched_to_its_end_by_early_and_late_watchers() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let request = script("one", 3, "exit $((WIREUP_RANK * 2))");
    let started = client
        .launch_processes(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(started.head && started.launcher_pid > 0);
    assert_eq!((&*started.node_id, started.node_index), ("n0", 0));

    let mut other = client.clone();
    let ((_, end), (_, same)) = tokio::join!(watch(&mut client, "one"), watch(&mut other, "one"));
    assert_eq!(end, same);
    assert!(!end.success);
    assert_eq!((&*end.launch_id, &*end.allocation_id), ("one", "alloc-7"));
    assert_eq!(end.cause, "rank_failed");
    assert_eq!(end.ranks.len(), 3);
    let cause = &end.ranks[end.cause_rank.unwrap() as usize];
    assert_eq!(cause.exit_code, end.exit_code);
    assert!(end.error_message.contains("exited with code"), "{end:?}");

    let (late, end) = watch(&mut client, "one").await;
    assert_eq!(end, same);
    assert!(late.iter().all(|event| event.past), "{late:?}");
    let ranks = late
        .iter()
        .filter(|event| matches!(event.event, Some(Event::Rank(_))));
    assert_eq!(ranks.count(), 3);

    let again = client.launch_processes(request).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    let ask = |id: &str| v1::QueryRequest {
        launch_id: id.into(),
        ranks: true,
    };
    let mut replies = client.query(ask("one")).await.unwrap().into_inner();
    let info = replies.message().await.unwrap().unwrap();
    assert_eq!(
        (info.state(), info.exit_code),
        (v1::LaunchState::Ended, Some(end.exit_code))
    );
    assert_eq!((info.ranks.len(), info.nodes), (3, vec!["n0".to_owned()]));
    assert!(info.end_ms >= info.start_ms && info.start_ms > 0);
    let unknown = client.query(ask("two")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[test]
async fn ranks_get_input_environment_and_credentials_and_give_output() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let text = "echo $WIREUP_RANK $WIREUP_LAUNCH_ID $WIREUP_ALLOC_ID $SECRET $FI_CXI_DEFAULT_VNI \
                $FI_CXI_AUTH_KEY $SLINGSHOT_VNIS; cat; \
                [ -z \"$(grep -l 'unheard-o[f]' /proc/[0-9]*/cmdline 2>/dev/null)\" ] && echo private";
    let mut request = with_stdin(script("io", 2, text), 1);
    request.env = [("SECRET".to_owned(), "unheard-of".to_owned())].into();
    request.cxi_credentials = Some(v1::CxiCredentials {
        vni: 42,
        auth_key: vec![0xab, 0xcd].into(),
        svc_id: 0,
    });
    client.launch_processes(request).await.unwrap();
    let printed = output(&mut client, "io", &["first\n", "", "second\n"]).await;
    assert_eq!(
        printed[&Some(0)],
        "0 io alloc-7 unheard-of 42 abcd 42\nprivate\n"
    );
    assert_eq!(
        printed[&Some(1)],
        "1 io alloc-7 unheard-of 42 abcd 42\nfirst\nsecond\nprivate\n"
    );
    let (_, end) = watch(&mut client, "io").await;
    assert!(end.success, "{end:?}");
    let log = agents.agents[0].log();
    assert!(
        !log.contains("unheard-of") && !log.contains("abcd"),
        "{log}"
    );
}

#[test]
async fn printing_ranks_wait_for_slow_reader_without_loss() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let text = "head -c 8000000 /dev/zero | tr '\\0' x; echo done >&2";
    client
        .launch_processes(with_stdin(script("big", 2, text), 0))
        .await
        .unwrap();
    let first = v1::StdioInput {
        launch_id: "big".into(),
        ..Default::default()
    };
    let mut stream = client
        .stdio(tokio_stream::iter([first.clone()]))
        .await
        .unwrap()
        .into_inner();
    let second = client.stdio(tokio_stream::iter([first])).await.unwrap_err();
    assert_eq!(second.code(), Code::AlreadyExists);
    let mut bytes = [0; 2];
    while let Some(piece) = stream.message().await.unwrap() {
        assert_eq!(piece.lost, 0);
        if let (Some(rank), v1::StdioStream::Stdout) = (piece.rank, piece.stream()) {
            bytes[rank as usize] += piece.data.len();
            // Reading on is what lets the ranks go on.
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(bytes, [8_000_000; 2]);
}

#[test]
async fn unread_output_blocks_nothing_and_its_end_is_kept() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let text = "seq 1 200000; echo last";
    client
        .launch_processes(script("loud", 1, text))
        .await
        .unwrap();
    let (_, end) = watch(&mut client, "loud").await;
    assert!(end.success, "{end:?}");
    let first = v1::StdioInput {
        launch_id: "loud".into(),
        data: "unasked for".into(),
        ..Default::default()
    };
    let mut refused = client
        .stdio(tokio_stream::iter([first.clone()]))
        .await
        .unwrap()
        .into_inner();
    let refused = loop {
        match refused.message().await {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(status) => break Some(status.code()),
        }
    };
    assert!(
        matches!(refused, None | Some(Code::FailedPrecondition)),
        "{refused:?}"
    );
}

#[test]
async fn limited_output_reports_lost_bytes() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    client
        .launch_processes(script("lost", 1, "seq 1 200000"))
        .await
        .unwrap();
    watch(&mut client, "lost").await;
    let first = v1::StdioInput {
        launch_id: "lost".into(),
        ..Default::default()
    };
    let mut stream = client
        .stdio(tokio_stream::iter([first]))
        .await
        .unwrap()
        .into_inner();
    let (mut lost, mut text) = (0, String::new());
    while let Some(piece) = stream.message().await.unwrap() {
        lost += piece.lost;
        text += std::str::from_utf8(&piece.data).unwrap();
    }
    assert!(text.ends_with("\n199999\n200000\n"));
    let all: usize = (1..=200_000).map(|n: u32| n.to_string().len() + 1).sum();
    assert_eq!(lost as usize + text.len(), all);
}

#[test]
async fn signals_reach_all_or_named_ranks() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let text = "trap 'echo got; exit 3' USR1; trap 'echo two; exit 4' USR2; echo ready; \
                while :; do sleep 0.05; done";
    let mut request = with_stdin(script("sig", 3, text), 0);
    request.job.as_mut().unwrap().kill_on_bad_exit = Some(false);
    client.launch_processes(request).await.unwrap();
    let first = v1::StdioInput {
        launch_id: "sig".into(),
        ..Default::default()
    };
    let mut stream = client
        .stdio(tokio_stream::iter([first]))
        .await
        .unwrap()
        .into_inner();
    let mut ready = String::new();
    while ready.matches("ready").count() < 3 {
        ready += std::str::from_utf8(&stream.message().await.unwrap().unwrap().data).unwrap();
    }
    let signal = |signal, ranks: &[u32]| v1::SignalRequest {
        launch_id: "sig".into(),
        signal,
        ranks: ranks.into(),
    };
    for wrong in [signal(0, &[]), signal(99, &[]), signal(10, &[3])] {
        let refused = client.signal(wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    client.signal(signal(libc::SIGUSR2, &[1])).await.unwrap();
    rank_is(&mut client, "sig", 1, v1::RankState::Ended).await;
    client.signal(signal(libc::SIGKILL, &[2])).await.unwrap();
    rank_is(&mut client, "sig", 2, v1::RankState::Ended).await;
    client.signal(signal(libc::SIGUSR1, &[])).await.unwrap();
    let (_, end) = watch(&mut client, "sig").await;
    let codes: Vec<i32> = end.ranks.iter().map(|rank| rank.exit_code).collect();
    assert_eq!(codes, [3, 4, 137], "{end:?}");
    assert!(end.ranks[2].signaled && end.ranks[2].signal == 9);
    let over = client.signal(signal(libc::SIGUSR1, &[])).await.unwrap_err();
    assert_eq!(over.code(), Code::FailedPrecondition);
}

#[test]
async fn resize_is_answered_by_launcher() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let request = script("resized", 1, "while :; do sleep 0.05; done");
    client.launch_processes(request).await.unwrap();
    let resize = || v1::ResizeRequest {
        launch_id: "resized".into(),
        remove: "n9".into(),
        ..Default::default()
    };
    rank_is(&mut client, "resized", 0, v1::RankState::Started).await;
    let refused = client.resize(resize()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let reason = refused.message();
    assert!(
        reason.starts_with("the launch runs on this machine alone"),
        "{reason}"
    );
    let abort = v1::AbortProcessesRequest {
        launch_id: "resized".into(),
        ..Default::default()
    };
    client.abort_processes(abort).await.unwrap();
    watch(&mut client, "resized").await;
    let over = client.resize(resize()).await.unwrap_err();
    assert!(over.message().contains("has ended"), "{over}");
}

#[test]
async fn resize_is_refused_if_launcher_reads_no_commands() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let request = script("deaf", 1, "kill -STOP $PPID; exec sleep 1000");
    let started = client.launch_processes(request).await.unwrap().into_inner();
    await_stop(started.launcher_pid);
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let mut client = client.clone();
        let request = v1::ResizeRequest {
            launch_id: "deaf".into(),
            add: "n".repeat(3 << 20),
            ..Default::default()
        };
        calls.spawn(async move { client.resize(request).await.unwrap_err() });
    }
    // Two of them fill the memory for commands that wait.
    let refused = calls.join_next().await.unwrap().unwrap();
    assert_eq!(refused.message(), "the launcher does not read its commands");
    abort(&mut client, "deaf", "").await;
    for refused in calls.join_all().await {
        assert!(refused.message().contains("has ended"), "{refused}");
    }
}

#[test]
async fn abort_ends_launch_with_its_reason_despite_unread_output() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    client
        .launch_processes(with_stdin(script("abort", 2, "yes"), 0))
        .await
        .unwrap();
    rank_is(&mut client, "abort", 1, v1::RankState::Started).await;
    abort(&mut client, "abort", "maintenance\nat noon").await;
    let (_, end) = watch(&mut client, "abort").await;
    assert_eq!(end.cause, "abort_requested");
    assert_eq!(
        end.error_message,
        "ended by AbortProcesses: maintenance at noon"
    );
    assert!(end.ranks.iter().all(|rank| rank.signaled), "{end:?}");
    // Again: nothing to do.
    abort(&mut client, "abort", "").await;
}

#[test]
async fn refused_launch_reports_reason_at_its_end() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let mut request = script("none", 1, "");
    request.entrypoint = "/no/such/program".into();
    client.launch_processes(request).await.unwrap();
    let (_, end) = watch(&mut client, "none").await;
    assert_eq!((end.exit_code, &*end.cause), (127, "refused"));
    assert!(end.error_message.contains("/no/such/program"), "{end:?}");
    assert!(end.ranks.is_empty());

    let mut request = script("bad", 1, "");
    request.world_size = 2;
    let refused = client.launch_processes(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("world_size 2"), "{refused}");
}

#[test]
async fn lost_launcher_is_reported_and_its_ranks_end() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let started = client
        .launch_processes(script("killed", 1, "sleep 1000"))
        .await
        .unwrap();
    rank_is(&mut client, "killed", 0, v1::RankState::Started).await;
    let launcher = rustix::process::Pid::from_raw(started.into_inner().launcher_pid).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    let (events, end) = watch(&mut client, "killed").await;
    assert_eq!((end.exit_code, &*end.cause), (-1, "launcher_lost"));
    assert_eq!(end.error_message, "the launcher was killed by signal 9");
    assert_eq!(end.ranks[0].exit_code, -1, "its end was seen by nobody");
    let pid = events.iter().find_map(|event| match &event.event {
        Some(Event::Rank(rank)) => Some(rank.pid),
        _ => None,
    });
    let pid = rustix::process::Pid::from_raw(pid.unwrap()).unwrap();
    crate::agents::eventually("the rank ends", || {
        rustix::process::test_kill_process(pid).err()
    });
}

#[test]
async fn apps_get_own_ranks_variables_and_directories() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    let app = |ranks, cwd: &'static str, value: &'static str| v1::App {
        program: "sh".into(),
        args: vec!["-c".into(), "echo $WIREUP_APPNUM $PWD $OWN".into()],
        ranks,
        env: vec![v1::EnvVar {
            name: "OWN".into(),
            value: value.into(),
        }],
        cwd: cwd.into(),
    };
    let mut request = with_stdin(script("apps", 3, ""), 0);
    request.entrypoint.clear();
    request.args.clear();
    request.job.as_mut().unwrap().apps = vec![app(1, "", "a = \"b\""), app(2, "/usr", "c")];
    client.launch_processes(request).await.unwrap();
    let printed = output(&mut client, "apps", &[]).await;
    assert_eq!(printed[&Some(0)], "0 / a = \"b\"\n");
    assert_eq!(printed[&Some(1)], "1 /usr c\n");
    assert_eq!(printed[&Some(2)], "1 /usr c\n");
}

#[test]
async fn role_of_certificate_limits_calls() {
    let agents = Agents::start(1);
    let mut scheduler = agents.remote(0, "s").await;
    let mut observer = agents.remote(0, "o").await;
    let mut node = agents.remote(0, "n0").await;
    let mut request = script("roles", 1, "id -u; sleep 1000");
    if is_root() {
        let without = scheduler
            .launch_processes(request.clone())
            .await
            .unwrap_err();
        assert_eq!(without.code(), Code::InvalidArgument, "{without}");
        request.run_as = Some(v1::RunAs { uid: 0, gid: None });
        let root = scheduler
            .launch_processes(request.clone())
            .await
            .unwrap_err();
        assert_eq!(root.code(), Code::PermissionDenied, "{root}");
        request.run_as = Some(v1::RunAs {
            uid: 65534,
            gid: Some(0),
        });
        let group = scheduler
            .launch_processes(request.clone())
            .await
            .unwrap_err();
        assert_eq!(group.code(), Code::PermissionDenied, "{group}");
        request.run_as = Some(v1::RunAs {
            uid: 65534,
            gid: None,
        });
    }
    for client in [&mut observer, &mut node] {
        let refused = client.launch_processes(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    scheduler.launch_processes(request).await.unwrap();
    rank_is(&mut observer, "roles", 0, v1::RankState::Started).await;
    let ask = v1::QueryRequest::default();
    let mut replies = observer.query(ask.clone()).await.unwrap().into_inner();
    let reply = replies.message().await.unwrap().unwrap();
    assert_eq!(
        reply.uid,
        if is_root() {
            65534
        } else {
            rustix::process::geteuid().as_raw()
        }
    );
    let kill = v1::AbortProcessesRequest {
        launch_id: "roles".into(),
        reason: String::new(),
    };
    let refused = observer.abort_processes(kill.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let refused = observer.drain(v1::DrainRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(node.query(ask).await.is_err());
    scheduler.abort_processes(kill).await.unwrap();
    let (_, end) = watch(&mut observer, "roles").await;
    assert_eq!(
        end.error_message,
        "ended by AbortProcesses: by scheduler \"s\""
    );
}

#[test]
async fn drained_agent_refuses_launches_and_exits_after_last() {
    let mut agents = Agents::start(1);
    let mut client = agents.local().await;
    client
        .launch_processes(with_stdin(script("last", 1, "cat; exit 5"), 0))
        .await
        .unwrap();
    let mut watcher = client.clone();
    let watching = tokio::spawn(async move { watch(&mut watcher, "last").await.1 });
    client.drain(v1::DrainRequest {}).await.unwrap();
    let refused = client
        .launch_processes(script("late", 1, ""))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    output(&mut client, "last", &["x"]).await;
    let end = tokio::time::timeout(DEADLINE, watching)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(end.exit_code, 5);
    assert!(agents.agents[0].ended());
}

#[test]
async fn key_exchange_waits_for_all_and_ends_with_launch() {
    let agents = Agents::start(1);
    let mut client = agents.local().await;
    client
        .launch_processes(script("keys", 1, "sleep 1000"))
        .await
        .unwrap();
    let part = |node_index| v1::PmiFenceRequest {
        launch_id: "keys".into(),
        kvs_entries: [("key".to_owned(), "value".to_owned())].into(),
        node_index,
    };
    let whole = client.pmi_fence(part(0)).await.unwrap().into_inner();
    assert!(whole.success);
    assert_eq!(whole.merged_kvs["key"], "value");
    let unknown = client.pmi_fence(part(1)).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument, "{unknown}");
    abort(&mut client, "keys", "").await;
    watch(&mut client, "keys").await;
    let over = tokio::time::timeout(DEADLINE, client.pmi_fence(part(0)));
    // One node alone has all there is.
    assert!(over.await.unwrap().is_ok());
}

#[test]
async fn capabilities_of_node_have_its_interfaces() {
    let agents = Agents::start(1);
    for mut client in [agents.local().await, agents.remote(0, "o").await] {
        let reply = client.capabilities(v1::CapabilitiesRequest {}).await;
        let found = reply.unwrap().into_inner().capabilities.unwrap();
        assert_eq!(found.interfaces, ["pmi1", "pmi2", "pmix"]);
        assert_eq!(found.libpmix.is_empty(), !found.pmix_problem.is_empty());
    }
}

#[test]
async fn node_without_pmix_server_refuses_pmix_before_launch() {
    let installed = tempfile::tempdir().unwrap();
    for name in ["wireup", "wireup-agent"] {
        let (program, copy) = (built(name), installed.path().join(name));
        std::fs::hard_link(&program, &copy)
            .or_else(|_| std::fs::copy(&program, &copy).map(drop))
            .unwrap();
    }
    let agents = Agents::start_program(&installed.path().join("wireup-agent"), 1, &[]);
    let mut client = agents.local().await;
    let reply = client.capabilities(v1::CapabilitiesRequest {}).await;
    let found = reply.unwrap().into_inner().capabilities.unwrap();
    assert_eq!(found.interfaces, ["pmi1", "pmi2"]);
    let mut request = script("pmix", 1, "true");
    request.pmi_mode = v1::PmiMode::Pmix.into();
    let refused = client.launch_processes(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let text = "n0 cannot offer PMIx: PMIx needs wireup-pmix-host, which is neither ";
    assert!(refused.message().starts_with(text), "{refused:?}");
    client
        .launch_processes(script("pmi", 1, "true"))
        .await
        .unwrap();
    let (_, end) = watch(&mut client, "pmi").await;
    assert!(end.success, "{end:?}");
}

#[test]
async fn request_only_shortens_fence_timeout_of_site() {
    let wireup = built("wireup");
    let late = format!(
        "[ $WIREUP_RANK = 1 ] && sleep 600; {} pmi barrier",
        wireup.display()
    );
    for (site_limit, requested) in [("1", None), ("1", Some(3_600_000)), ("1h", Some(1000))] {
        let agents = Agents::start_with(1, &["--fence-timeout", site_limit]);
        let mut client = agents.local().await;
        let mut request = script("late", 2, &late);
        request.pmi_mode = v1::PmiMode::Pmi1.into();
        request.job.as_mut().unwrap().fence_timeout_ms = requested;
        client.launch_processes(request).await.unwrap();
        let (_, end) = watch(&mut client, "late").await;
        let text = "PMI fence timeout: 1 of 2 ranks missing: rank 1 (";
        assert!(end.error_message.contains(text), "{site_limit} {end:?}");
        let (_, waited) = end.error_message.split_once("others waited ").unwrap();
        let (seconds, _) = waited.split_once(" s").unwrap();
        assert!(seconds.parse::<u32>().unwrap() < 60, "{site_limit} {end:?}");
    }
}
