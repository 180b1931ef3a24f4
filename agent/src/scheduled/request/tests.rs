use super::*;
use crate::proto::v1::{App, EnvVar, JobSpec, LaunchProcessesRequest, Layout, PeerInfo, RankBlock};

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

fn check(asked: LaunchProcessesRequest) -> Result<Request, RequestError> {
    Request::check(asked, "b")
}

fn refused(asked: LaunchProcessesRequest) -> String {
    check(asked).unwrap_err().to_string()
}

#[test]
fn what_the_plain_fields_say_is_a_whole_launch() {
    let request = check(alone()).unwrap();
    assert_eq!(request.pmi, "pmi2");
    assert_eq!((request.place.here, request.place.is_head()), (0, true));
    assert_eq!(request.place.nodes[0].name, "b");
    assert_eq!(request.place.blocks, [(0, 2)]);
    assert_eq!(request.programs.len(), 1);
    assert_eq!(
        (&*request.programs[0].program, request.programs[0].ranks),
        ("./app".as_ref(), 2)
    );

    let request = check(spread()).unwrap();
    assert_eq!((request.place.here, request.place.head), (1, 0));
    assert_eq!(request.place.blocks, [(0, 2), (1, 3)]);
}

#[test]
fn nodes_hold_consecutive_ranks_in_any_order_or_those_of_the_layout() {
    let mut asked = spread();
    asked.peers = vec![peer("a", 3, 2), peer("b", 0, 3)];
    asked.first_rank = 0;
    assert_eq!(check(asked.clone()).unwrap().place.blocks, [(1, 3), (0, 2)]);

    asked.peers[0].first_rank = 4;
    let gap = "peers[0].first_rank is 4, the nodes before it end at 3: make them consecutive, or give \
               job.layout";
    assert_eq!(refused(asked.clone()), gap);

    asked.peers[0].first_rank = 1;
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
    asked.job = blocks(&cyclic);
    assert_eq!(check(asked.clone()).unwrap().place.blocks, cyclic);
    for (wrong, text) in [
        (
            &[(0, 1), (1, 3), (0, 1)][..],
            "job.layout's lowest rank on node 0 is 0, peers[0].first_rank is 1",
        ),
        (
            &[(1, 3), (0, 3)],
            "job.layout gives node 0 3 ranks, peers has 2 for it",
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
        asked.job = blocks(wrong);
        assert_eq!(refused(asked.clone()), text);
    }
}

#[test]
fn nodes_that_cannot_be_are_named() {
    let change = |change: &dyn Fn(&mut LaunchProcessesRequest)| {
        let mut asked = spread();
        change(&mut asked);
        refused(asked)
    };
    for (text, found) in [
        ("world_size is 0", change(&|asked| asked.world_size = 0)),
        (
            "come to 5, world_size is 6",
            change(&|asked| asked.world_size = 6),
        ),
        (
            "not those of peers[1]: 3 ranks from 2 on",
            change(&|asked| asked.first_rank = 0),
        ),
        (
            "not those of peers[1]: 3 ranks from 2 on",
            change(&|asked| asked.tasks_per_node = 2),
        ),
        (
            "head_node_index is 3, peers has 3 nodes",
            change(&|asked| asked.head_node_index = 3),
        ),
        (
            "node_index is 9, peers has 3 nodes",
            change(&|asked| asked.node_index = Some(9)),
        ),
        (
            "this agent is \"b\", which is not in peers",
            change(&|asked| asked.peers[1].node_id = "d".into()),
        ),
        (
            "peers has node \"a\" twice",
            change(&|asked| asked.peers[2].node_id = "a".into()),
        ),
        (
            "peers[2].node_id \"c,d\"",
            change(&|asked| asked.peers[2].node_id = "c,d".into()),
        ),
        (
            "peers[2].grpc_address \"c\"",
            change(&|asked| asked.peers[2].grpc_address = "c".into()),
        ),
        (
            "peers[0].grpc_address \"fd00::1:7\"",
            change(&|asked| asked.peers[0].grpc_address = "fd00::1:7".into()),
        ),
        (
            "without peers this node is the only one",
            change(&|asked| asked.peers.clear()),
        ),
    ] {
        assert!(found.contains(text), "{text}: {found}");
    }
    let mut asked = spread();
    asked.peers[0].grpc_address = "[fd00::1]:7437".into();
    assert!(check(asked).is_ok());
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
fn words_and_variables_that_no_process_can_get_are_refused() {
    let mut asked = alone();
    asked.args = vec!["a".into(), ":".into()];
    assert!(refused(asked.clone()).contains("\":\" alone"));
    asked.args = vec!["a\0".into()];
    assert!(refused(asked).contains("zero byte"));
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
        let mut asked = alone();
        asked.env = [(name.to_owned(), value.to_owned())].into();
        assert!(refused(asked).starts_with("variable"), "{name:?}={value:?}");
    }
    let job = |cwd: &'static [u8]| {
        with(JobSpec {
            cwd: cwd.into(),
            ..Default::default()
        })
    };
    assert!(refused(job(b"tmp")).contains("is not absolute"));
    assert!(check(job(b"/tmp/\xff")).is_ok());
    let id = |id: &str| {
        let mut asked = alone();
        asked.launch_id = id.into();
        check(asked).is_ok()
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
fn what_a_launcher_is_told_keeps_values_out_of_its_command_line() {
    let mut asked = spread();
    asked.peers.clear();
    (asked.tasks_per_node, asked.first_rank, asked.world_size) = (5, 0, 5);
    asked.entrypoint.clear();
    asked.env = [
        ("TOKEN", "s3cret"),
        ("all", "s3cret"),
        ("BASH_FUNC_f%%", "() { s3cret; }"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    asked.allocation_id = "alloc".into();
    asked.cxi_credentials = Some(v1::CxiCredentials {
        vni: 17,
        auth_key: b"\x00\xab".as_slice().into(),
        svc_id: 3,
    });
    asked.pmi_mode = v1::PmiMode::Auto.into();
    let variable = |name: &'static str, value: &'static str| EnvVar {
        name: name.into(),
        value: value.into(),
    };
    asked.job = Some(JobSpec {
        apps: vec![
            App {
                program: "-odd".into(),
                args: vec!["x y".into()],
                ranks: 1,
                env: vec![variable("TOKEN", "own s3cret")],
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
        exit_policy: "rank:3".into(),
        kill_on_bad_exit: Some(true),
        strict_pmi: true,
        umask: Some(0o77),
        ..Default::default()
    });
    let request = check(asked).unwrap();
    let shown = format!("{request:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("171"),
        "{shown}"
    );
    let command = request
        .command("/home/u".as_ref(), "/run/a".as_ref())
        .unwrap();
    let words = format!("{command:?}");
    let expected = r#"["run", "--no-config", "--json=-", "--control=fd:3", "--oversubscribe", "--pmi=auto", "--stdin=4",
        "--exit-policy=rank:3", "--timeout=1.500", "--grace=0.000", "--kill-on-bad-exit", "--strict-pmi",
        "-n1", "--wdir=/tmp", "--umask=77", "-xWIREUP_LAUNCH_ID", "-xWIREUP_ALLOC_ID",
        "-xFI_CXI_DEFAULT_VNI", "-xSLINGSHOT_VNIS", "-xFI_CXI_AUTH_KEY", "-xSLINGSHOT_SVC_IDS",
        "--env-file", "FILE", "--", "-odd", "x y", ":",
        "-n4", "--wdir=/home/u", "--umask=77", "-xTOKEN", "-xWIREUP_LAUNCH_ID", "-xWIREUP_ALLOC_ID",
        "-xFI_CXI_DEFAULT_VNI", "-xSLINGSHOT_VNIS", "-xFI_CXI_AUTH_KEY", "-xSLINGSHOT_SVC_IDS",
        "--", "b"]"#;
    let expected: Vec<&str> = expected.split_whitespace().collect();
    assert_eq!(words, expected.join(" "));
    let file = command.words.iter().find_map(|word| match word {
        super::super::command::Word::File(text) => Some(text.as_slice()),
        super::super::command::Word::Text(_) => None,
    });
    assert_eq!(file, Some(&b"TOKEN=own s3cret\n"[..]));
    let env = |name: &str| {
        let found = command.env.iter().rfind(|(known, _)| known == name);
        found.map(|(_, value)| value.to_str().unwrap())
    };
    assert_eq!(env("TOKEN"), Some("s3cret"));
    assert_eq!(env("BASH_FUNC_f%%"), Some("() { s3cret; }"));
    assert_eq!(env("FI_CXI_AUTH_KEY"), Some("00ab"));
    assert_eq!(env("FI_CXI_DEFAULT_VNI"), Some("17"));
    assert_eq!(env("SLINGSHOT_SVC_IDS"), Some("3"));
    assert_eq!(env("WIREUP_ALLOC_ID"), Some("alloc"));
}
