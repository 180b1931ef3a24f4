use super::*;

fn account() -> Arc<BudgetAccount> {
    crate::budget::Budgets::default().account(1)
}

fn spread(names: &[&str]) -> LaunchTree {
    let member = |name: &&str| NodeAddress {
        name: (*name).to_owned(),
        address: format!("{name}:7437"),
    };
    LaunchTree {
        nodes: names.iter().map(member).collect(),
        joined: 0,
        star_limit: 128,
        width: 32,
    }
}

#[test]
fn child_agent_gets_launch_requested_by_launcher() {
    let expected = LaunchDescriptor::from_launcher(
        "l1".into(),
        "s1".into(),
        1000,
        spread(&["n0", "n1"]),
        vec![1, 2],
        &account(),
    )
    .unwrap();
    let mut hello = v1::Hello {
        launch: expected.launch.clone(),
        token: expected.token.to_bytes(),
        uid: expected.uid,
        node: 1,
        ..Default::default()
    };
    let learnt = LaunchDescriptor::from_parent(&hello, expected.bytes.clone(), &account()).unwrap();
    assert!(learnt.token.matches(expected.token));
    assert!(!learnt.token.matches(LaunchToken::random()));
    assert_eq!(learnt.spread, expected.spread);
    assert_eq!(learnt.description, expected.description);
    assert_eq!((learnt.launch, learnt.uid), ("l1".to_owned(), 1000));

    hello.node = 2;
    assert_eq!(
        LaunchDescriptor::from_parent(&hello, expected.bytes.clone(), &account()).unwrap_err(),
        LaunchDescriptorError::Node { node: 2, nodes: 2 }
    );
    hello.token = Bytes::from_static(b"short");
    assert_eq!(
        LaunchDescriptor::from_parent(&hello, expected.bytes, &account()).unwrap_err(),
        LaunchDescriptorError::Token(5)
    );
}

#[test]
fn joining_nodes_get_all_members_and_are_below_first_node() {
    let nodes = spread(&["n0", "n1"]);
    let first =
        LaunchDescriptor::from_launcher("l1".into(), "s1".into(), 1000, nodes, vec![1], &account())
            .unwrap();
    let growth = |names: &[&str]| GrowthRequest {
        members: spread(names).nodes,
        description: Bytes::from_static(b"more"),
    };
    let grown = first.grown(&growth(&["n2"])).unwrap();
    // One that could not join is tried again.
    let grown = grown.without_description().grown(&growth(&["n2", "n3"]));
    let grown = grown.unwrap();
    let hello = v1::Hello {
        launch: "l1".to_owned(),
        token: first.token.to_bytes(),
        uid: 1000,
        node: 4,
        ..Default::default()
    };
    let learnt = LaunchDescriptor::from_parent(&hello, grown.bytes.clone(), &account()).unwrap();
    assert_eq!(learnt.spread, grown.spread);
    assert_eq!((learnt.spread.nodes.len(), learnt.spread.joined), (5, 3));
    assert_eq!(learnt.tree().parent(NodeId(4)), Some(NodeId(0)));
    assert_eq!(learnt.description, "more");
    assert!(learnt.token.matches(first.token));
    assert!(first.grown(&growth(&["n 2"])).is_err());
}

#[test]
fn invalid_launch_is_refused_by_name() {
    let open = |launch: &str, spread| {
        LaunchDescriptor::from_launcher(
            launch.into(),
            String::new(),
            0,
            spread,
            Vec::new(),
            &account(),
        )
        .unwrap_err()
        .to_string()
    };
    assert!(open("", spread(&["n0"])).contains("invalid launch name \"\""));
    assert!(open("a b", spread(&["n0"])).contains("\"a b\""));
    assert!(open("l", spread(&[])).contains("launch of 0 nodes"));
    assert!(open("l", spread(&["n0", "n1", "n0"])).contains("node n0 occurs twice"));
    let many: Vec<String> = (0..=CHILDREN_MAX).map(|n| format!("n{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut star = spread(&many);
    star.star_limit = u32::MAX;
    assert!(open("l", star).contains("contact up to 4097 others"));
    let mut bad = spread(&["n0"]);
    bad.nodes[0].address = "n0".into();
    assert!(open("l", bad).contains("invalid address \"n0\" of node n0"));
}
