use super::*;
use crate::proto::v1::{App, EnvVar, JobSpec, LaunchProcessesRequest, Layout, PeerInfo, RankBlock};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::{AppRequest, StatusTarget, TerminationSpec};
use wireup_core::link::scheduled_launcher;

fn peer(name: &str, first_rank: u32, num_ranks: u32) -> PeerInfo {
    PeerInfo {
        node_id: name.to_owned(),
        grpc_address: format!("{name}:7437"),
        first_rank,
        num_ranks,
    }
}

/// Two ranks on this node alone.
fn alone() -> LaunchProcessesRequest {
    LaunchProcessesRequest {
        launch_id: "launch-1".into(),
        entrypoint: "./app".into(),
        tasks_per_node: 2,
        world_size: 2,
        ..Default::default()
    }
}

/// Three ranks on this node `b`, two on `a`, none on `c`; the head is `a`.
fn spread() -> LaunchProcessesRequest {
    LaunchProcessesRequest {
        tasks_per_node: 3,
        first_rank: 2,
        world_size: 5,
        peers: vec![peer("a", 0, 2), peer("b", 2, 3), peer("c", 0, 0)],
        ..alone()
    }
}

fn with(job: JobSpec) -> LaunchProcessesRequest {
    LaunchProcessesRequest {
        job: Some(job),
        ..alone()
    }
}

fn check(message: LaunchProcessesRequest) -> Result<LaunchRequest, RequestError> {
    LaunchRequest::check(message, "b")
}

fn refused(message: LaunchProcessesRequest) -> String {
    check(message).unwrap_err().to_string()
}

#[test]
fn launch_request_with_too_many_programs_is_refused() {
    let apps = |count: usize| {
        let app = App {
            program: "a".into(),
            ranks: 1,
            ..Default::default()
        };
        LaunchProcessesRequest {
            entrypoint: String::new(),
            tasks_per_node: count as u32,
            world_size: count as u32,
            job: Some(JobSpec {
                apps: vec![app; count],
                ..Default::default()
            }),
            ..alone()
        }
    };
    let encoded = |request: &LaunchProcessesRequest| check_encoded(request.encode_to_vec().into());
    let mut most = apps(4096);
    assert_eq!(encoded(&most), Ok(()));
    assert_eq!(check(most.clone()).unwrap().programs.len(), 4096);
    let more = apps(4097);
    let more_bytes = more.encode_to_vec();
    assert_eq!(encoded(&more), Err(RequestError::Apps(4097)));
    let expected = "job.apps has 4097 programs: use at most 4096, or several launches";
    assert_eq!(refused(more), expected);
    // Two parts of a message are one.
    let halves = [apps(4096).encode_to_vec(), apps(1).encode_to_vec()].concat();
    assert_eq!(check_encoded(halves.into()), Err(RequestError::Apps(4097)));
    let cut = [&more_bytes[..], b"\xff"].concat();
    let refused_encoding = check_encoded(cut.into()).unwrap_err();
    assert!(matches!(refused_encoding, RequestError::Encoding(_)));
    let name = |number| (format!("V{number}"), String::new());
    most.env = (0..257).map(name).collect();
    assert!(refused(most.clone()).starts_with("4096 programs in job.apps with 257 variables"));
    most.env.pop_first();
    assert!(check(most).is_ok());
}

#[test]
fn plain_fields_describe_whole_launch() {
    let request = check(alone()).unwrap();
    assert_eq!(request.pmi, InterfaceChoice::Pmi2);
    assert_eq!(
        (request.place.local_node, request.place.is_head()),
        (0, true)
    );
    assert_eq!(request.place.nodes[0].name, "b");
    assert_eq!(request.place.blocks, [(NodeId(0), 2)]);
    assert_eq!(request.programs.len(), 1);
    assert_eq!(
        (&*request.programs[0].program, request.programs[0].ranks),
        ("./app".as_ref(), 2)
    );

    let request = check(spread()).unwrap();
    assert_eq!((request.place.local_node, request.place.head), (1, 0));
    assert_eq!(request.place.blocks, [(NodeId(0), 2), (NodeId(1), 3)]);
}

#[test]
fn nodes_hold_consecutive_ranks_or_those_of_layout() {
    let mut message = spread();
    message.peers = vec![peer("a", 3, 2), peer("b", 0, 3)];
    message.first_rank = 0;
    let found = |message: &LaunchProcessesRequest| {
        let blocks = check(message.clone()).unwrap().place.blocks.into_iter();
        blocks
            .map(|(node, ranks)| (node.0, ranks))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(&message), [(1, 3), (0, 2)]);

    message.peers[0].first_rank = 4;
    let gap = "peers[0].first_rank is 4, but the nodes before it end at 3: make them consecutive, or set \
               job.layout";
    assert_eq!(refused(message.clone()), gap);

    message.peers[0].first_rank = 1;
    let blocks = |blocks: &[(u32, u32)]| {
        let block = |(node, ranks): &(u32, u32)| RankBlock {
            node: *node,
            ranks: *ranks,
        };
        let blocks = blocks.iter().map(block).collect();
        Some(JobSpec {
            layout: Some(Layout { blocks }),
            ..Default::default()
        })
    };
    let cyclic = [(1, 1), (0, 1), (1, 1), (0, 1), (1, 1)];
    message.job = blocks(&cyclic);
    assert_eq!(found(&message), cyclic);
    for (wrong, text) in [
        (
            &[(0, 1), (1, 3), (0, 1)][..],
            "the lowest rank of node 0 in job.layout is 0, but peers[0].first_rank is 1: make them equal",
        ),
        (
            &[(1, 3), (0, 3)],
            "job.layout gives node 0 3 ranks, but peers gives it 2: make them equal",
        ),
        (
            &[(1, 3), (0, 0)],
            "job.layout.blocks[1] has no ranks, or a node that peers does not have",
        ),
        (
            &[(2, 5)],
            "job.layout.blocks[0] has no ranks, or a node that peers does not have",
        ),
    ] {
        message.job = blocks(wrong);
        assert_eq!(refused(message.clone()), text);
    }
}

#[test]
fn invalid_nodes_are_named() {
    let change = |change: &dyn Fn(&mut LaunchProcessesRequest)| {
        let mut message = spread();
        change(&mut message);
        refused(message)
    };
    for (text, found) in [
        (
            "invalid world_size 0",
            change(&|message| message.world_size = 0),
        ),
        (
            "add up to 5, but world_size is 6",
            change(&|message| message.world_size = 6),
        ),
        (
            "do not match peers[1], which has 3 ranks from 2 on",
            change(&|message| message.first_rank = 0),
        ),
        (
            "do not match peers[1], which has 3 ranks from 2 on",
            change(&|message| message.tasks_per_node = 2),
        ),
        (
            "invalid head_node_index 3: peers has 3 nodes",
            change(&|message| message.head_node_index = 3),
        ),
        (
            "invalid node_index 9: peers has 3 nodes",
            change(&|message| message.node_index = Some(9)),
        ),
        (
            "this agent is \"b\", which is not in peers",
            change(&|message| message.peers[1].node_id = "d".into()),
        ),
        (
            "peers has node \"a\" twice",
            change(&|message| message.peers[2].node_id = "a".into()),
        ),
        (
            "peers[2].node_id \"c,d\"",
            change(&|message| message.peers[2].node_id = "c,d".into()),
        ),
        (
            "peers[2].grpc_address \"c\"",
            change(&|message| message.peers[2].grpc_address = "c".into()),
        ),
        (
            "peers[0].grpc_address \"fd00::1:7\"",
            change(&|message| message.peers[0].grpc_address = "fd00::1:7".into()),
        ),
        (
            "peers has the address \"a:7437\" twice",
            change(&|message| {
                message.head_node_index = 1;
                message.peers[2].grpc_address = "a:7437".into();
            }),
        ),
        (
            "without peers this node is the only one",
            change(&|message| message.peers.clear()),
        ),
    ] {
        assert!(found.contains(text), "{text}: {found}");
    }
    let mut message = spread();
    message.peers[0].grpc_address = "[fd00::1]:7437".into();
    assert!(check(message).is_ok());
}

#[test]
fn programs_of_their_own_take_all_ranks() {
    let app = |program: &'static str, ranks| App {
        program: program.into(),
        ranks,
        ..Default::default()
    };
    let apps = |apps: Vec<App>| LaunchProcessesRequest {
        entrypoint: String::new(),
        ..with(JobSpec {
            apps,
            ..Default::default()
        })
    };
    let request = check(apps(vec![app("a", 1), app("b", 1)])).unwrap();
    assert_eq!(request.programs.len(), 2);
    for wrong in [vec![app("a", 1)], vec![app("a", 2), app("b", 0)]] {
        assert!(refused(apps(wrong)).contains("world_size is 2"));
    }
    assert!(refused(apps(Vec::new())).contains("no program"));
    let mut both = apps(vec![app("a", 2)]);
    both.args = vec!["x".into()];
    assert!(refused(both).contains("both entrypoint or args and job.apps"));
}

#[test]
fn arguments_and_variables_with_nul_are_refused() {
    let mut message = alone();
    message.args = vec!["a".into(), ":".into()];
    assert!(check(message.clone()).is_ok());
    message.args = vec!["a\0".into()];
    assert!(refused(message).contains("zero byte"));
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
        let mut message = alone();
        message.env = [(name.to_owned(), value.to_owned())].into();
        assert!(refused(message).contains("variable"), "{name:?}={value:?}");
    }
    let job = |cwd: &'static [u8]| {
        with(JobSpec {
            cwd: cwd.into(),
            ..Default::default()
        })
    };
    assert!(refused(job(b"tmp")).contains("must be an absolute path"));
    assert!(check(job(b"/tmp/\xff")).is_ok());
    let id = |id: &str| {
        let mut message = alone();
        message.launch_id = id.into();
        check(message).is_ok()
    };
    for (name, good) in [
        ("a", true),
        ("0-_.Z", true),
        ("", false),
        ("-a", false),
        ("a/b", false),
    ] {
        assert_eq!(id(name), good, "{name:?}");
    }
    assert!(id(&"a".repeat(64)) && !id(&"a".repeat(65)));
}

#[test]
fn launcher_gets_request_and_shows_no_values() {
    let mut message = spread();
    message.peers.clear();
    (
        message.tasks_per_node,
        message.first_rank,
        message.world_size,
    ) = (5, 0, 5);
    message.entrypoint.clear();
    message.env = [
        ("TOKEN", "s3cret"),
        ("all", "s3cret"),
        ("BASH_FUNC_f%%", "() { s3cret; }"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    message.allocation_id = "alloc".into();
    message.cxi_credentials = Some(v1::CxiCredentials {
        vni: 17,
        auth_key: b"\x00\xab".as_slice().into(),
        svc_id: 3,
    });
    message.pmi_mode = v1::PmiMode::Auto.into();
    let variable = |name: &'static str, value: &'static str| EnvVar {
        name: name.into(),
        value: value.into(),
    };
    message.job = Some(JobSpec {
        apps: vec![
            App {
                program: "-odd".into(),
                args: vec!["x y".into()],
                ranks: 1,
                env: vec![variable("TOKEN", "own\ns3cret")],
                cwd: "/tmp".into(),
            },
            App {
                program: "b".into(),
                ranks: 4,
                ..Default::default()
            },
        ],
        stdin: Some(v1::StdinTarget {
            target: Some(v1::stdin_target::Target::Rank(4)),
        }),
        timeout_ms: 1500,
        grace_ms: Some(0),
        fence_timeout_ms: Some(0),
        exit_policy: "rank:3".into(),
        kill_on_bad_exit: Some(true),
        strict_pmi: true,
        umask: Some(0o77),
        ..Default::default()
    });
    let request = check(message).unwrap();
    let shown = format!("{request:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("171"),
        "{shown}"
    );
    let job = request.job("/home/u".as_ref(), "/run/a".as_ref());
    assert_eq!(scheduled_launcher::shown(&job), ["-odd", "x y", ":", "b"]);
    let app = |words: &[&str], ranks, wdir: &str, env: &[&str]| AppRequest {
        count: Some(ranks),
        env: env.iter().map(Into::into).collect(),
        wdir: Some(wdir.into()),
        umask: Some(0o77),
        argv: words.iter().map(Into::into).collect(),
        ..AppRequest::default()
    };
    let others = [
        "WIREUP_LAUNCH_ID",
        "WIREUP_ALLOC_ID",
        "FI_CXI_DEFAULT_VNI",
        "SLINGSHOT_VNIS",
        "FI_CXI_AUTH_KEY",
        "SLINGSHOT_SVC_IDS",
    ];
    let named = ["BASH_FUNC_f%%", "all"].iter().chain(&others);
    let named: Vec<&str> = named.copied().collect();
    let sorted = |mut app: AppRequest| {
        app.env.sort();
        app
    };
    let expected = [
        app(
            &["-odd", "x y"],
            1,
            "/tmp",
            &[&named[..], &["TOKEN=own\ns3cret"]].concat(),
        ),
        app(&["b"], 4, "/home/u", &[&named[..], &["TOKEN"]].concat()),
    ];
    let found: Vec<AppRequest> = job.apps.iter().cloned().map(sorted).collect();
    assert_eq!(found, expected.map(sorted));
    let ending = TerminationSpec {
        timeout: Some(Duration::from_millis(1500)),
        exit: ExitPolicy::Rank(Rank(3)),
        kill_on_bad_exit: true,
        grace: Duration::ZERO,
        strict_pmi: true,
        fence: FenceTimeoutSpec::Unlimited,
        ..TerminationSpec::default()
    };
    assert_eq!(job.ending, ending);
    assert_eq!(job.interface.pmi, InterfaceChoice::Auto);
    assert_eq!(job.stdio.stdin, StdinTarget::Rank(Rank(4)));
    assert_eq!(job.status.json, Some(StatusTarget::Stdout));
    assert_eq!(job.status.control, Some(scheduled_launcher::ORDERS));
    assert!(job.layout.oversubscribe && job.layout.hosts.is_empty());
    let env = |name: &str| {
        let variables = request.variables();
        let found = variables.into_iter().rfind(|(known, _)| known == name);
        found.map(|(_, value)| value.into_string().unwrap())
    };
    assert_eq!(env("TOKEN").as_deref(), Some("s3cret"));
    assert_eq!(env("BASH_FUNC_f%%").as_deref(), Some("() { s3cret; }"));
    assert_eq!(env("FI_CXI_AUTH_KEY").as_deref(), Some("00ab"));
    assert_eq!(env("FI_CXI_DEFAULT_VNI").as_deref(), Some("17"));
    assert_eq!(env("SLINGSHOT_SVC_IDS").as_deref(), Some("3"));
    assert_eq!(env("WIREUP_ALLOC_ID").as_deref(), Some("alloc"));
}

#[test]
fn launcher_of_several_nodes_gets_them_and_its_agent() {
    let request = check(spread()).unwrap();
    let layout = request.job("/".as_ref(), "/run/a".as_ref()).layout;
    let hosts = layout.hosts.iter();
    let hosts: Vec<_> = hosts
        .map(|host| (&*host.name, &*host.address, host.slots))
        .collect();
    let expected = [("a", "a:7437", 2), ("b", "b:7437", 3), ("c", "c:7437", 0)];
    assert_eq!(
        hosts,
        expected.map(|(name, address, ranks)| (name, address, Some(ranks)))
    );
    assert_eq!(layout.runs, [(NodeId(0), 2), (NodeId(1), 3)]);
    assert_eq!(layout.spread.agent.as_deref(), Some("/run/a".as_ref()));
}
