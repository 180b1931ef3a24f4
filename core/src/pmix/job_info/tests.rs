use super::super::value::find;
use super::*;

fn app(size: u32) -> PmixAppInfo {
    PmixAppInfo {
        size,
        argv: vec!["prog".into(), "-x".into()],
        wdir: "/work".into(),
    }
}

/// Ranks 0 and 1 on node 0, none on node 1, rank 2 on node 2, rank 3 on node 0.
fn infos_for(node: u32) -> Vec<Info> {
    let layout = [(0, 2), (1, 0), (2, 1), (0, 1)];
    let ranks = ProcessMap::from_runs(layout.map(|(node, count)| (NodeId(node), count)));
    let names = ["alpha", "beta", "gamma"].map(str::to_owned);
    PmixJobInfo {
        nspace: &Nspace::new("job-1").unwrap(),
        ranks: &ranks,
        node_names: &names,
        node: NodeId(node),
        apps: &[app(1), app(3)],
        universe_size: 16,
        parent: None,
        offset: Default::default(),
        before: &[],
        other_job_procs: &[],
        cpusets: &BTreeMap::new(),
        tmpdir: &"/run/j".into(),
        nsdir: &"/run/j/n".into(),
        uid: 1000,
        gid: 100,
    }
    .infos()
    .unwrap()
}

fn arrays<'a>(infos: &'a [Info], key: &str) -> Vec<&'a [Info]> {
    let arrays = infos.iter().filter(|info| info.key == key);
    arrays
        .map(|info| match &info.value {
            Value::Infos(infos) => infos.as_slice(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn job_level_has_types_that_clients_read() {
    let infos = infos_for(0);
    for (key, value) in [
        (keys::JOB_SIZE, Value::Uint32(4)),
        (keys::UNIV_SIZE, Value::Uint32(16)),
        (keys::MAX_PROCS, Value::Uint32(4)),
        (keys::JOBID, Value::String("job-1".into())),
        (keys::JOB_NUM_APPS, Value::Uint32(2)),
        (keys::NUM_NODES, Value::Uint32(2)),
        (keys::NPROC_OFFSET, Value::Rank(PmixRank(0))),
        (keys::NODE_MAP, Value::NodeList("alpha,gamma".into())),
        (keys::PROC_MAP, Value::PpnList("0,1,3;2".into())),
        (keys::TMPDIR, Value::String("/run/j".into())),
        (keys::NSDIR, Value::String("/run/j/n".into())),
        (keys::TDIR_RMCLEAN, Value::Bool(true)),
        (keys::USERID, Value::Uint32(1000)),
        (keys::GRPID, Value::Uint32(100)),
        (keys::LOCAL_SIZE, Value::Uint32(3)),
        (keys::NODE_SIZE, Value::Uint32(3)),
        (keys::LOCALLDR, Value::Rank(PmixRank(0))),
        (keys::LOCAL_PEERS, Value::String("0,1,3".into())),
    ] {
        assert_eq!(find(&infos, key), Some(&value), "{key}");
    }
}

#[test]
fn each_node_gets_its_own_and_global_job_info() {
    let peers = |node| find(&infos_for(node), keys::LOCAL_PEERS).cloned();
    assert_eq!(peers(2), Some(Value::String("2".into())));
    assert_eq!(peers(1), None, "a node without ranks");
    let infos = infos_for(2);
    let nodes = arrays(&infos, keys::NODE_INFO_ARRAY);
    assert_eq!(nodes.len(), 2);
    for (node, name, number, peers) in [(0, "alpha", 0, "0,1,3"), (1, "gamma", 2, "2")] {
        assert_eq!(
            nodes[node][0],
            Info::new(keys::HOSTNAME, Value::String(name.into()))
        );
        assert_eq!(
            find(nodes[node], keys::NODEID),
            Some(&Value::Uint32(number))
        );
        assert_eq!(
            find(nodes[node], keys::LOCAL_PEERS),
            Some(&Value::String(peers.into()))
        );
    }
}

#[test]
fn procs_are_complete_and_in_rank_order() {
    let infos = infos_for(2);
    let procs = arrays(&infos, keys::PROC_INFO_ARRAY);
    assert_eq!(procs.len(), 4);
    for (rank, host, node, local, appnum, app_rank) in [
        (0, "alpha", 0, 0, 0, 0),
        (1, "alpha", 0, 1, 1, 0),
        (2, "gamma", 2, 0, 1, 1),
        (3, "alpha", 0, 2, 1, 2),
    ] {
        let proc = procs[rank as usize];
        assert_eq!(proc[0], Info::new(keys::RANK, Value::Rank(PmixRank(rank))));
        for (key, value) in [
            (keys::HOSTNAME, Value::String(host.into())),
            (keys::NODEID, Value::Uint32(node)),
            (keys::LOCAL_RANK, Value::Uint16(local)),
            (keys::NODE_RANK, Value::Uint16(local)),
            (keys::APPNUM, Value::Uint32(appnum)),
            (keys::APP_RANK, Value::Rank(PmixRank(app_rank))),
            (keys::GLOBAL_RANK, Value::Rank(PmixRank(rank))),
            (keys::REINCARNATION, Value::Uint32(0)),
        ] {
            assert_eq!(find(proc, key), Some(&value), "rank {rank}: {key}");
        }
    }
}

#[test]
fn spawned_job_continues_global_ranks_and_names_its_parent() {
    let parent = Proc::new(Nspace::new("job-0").unwrap(), Rank(5));
    let ranks = ProcessMap::from_runs([(NodeId(1), 2), (NodeId(0), 1)]);
    let other = value::PmixProc::new(&parent.nspace, Rank(6));
    let infos = PmixJobInfo {
        nspace: &Nspace::new("job-1").unwrap(),
        ranks: &ranks,
        node_names: &["alpha", "beta"].map(str::to_owned),
        node: NodeId(1),
        apps: &[app(3)],
        universe_size: 16,
        parent: Some(&parent),
        offset: GlobalRank(7),
        before: &[4, 3],
        other_job_procs: std::slice::from_ref(&other),
        cpusets: &BTreeMap::new(),
        tmpdir: &"/run/j".into(),
        nsdir: &"/run/j/n".into(),
        uid: 1000,
        gid: 100,
    }
    .infos()
    .unwrap();
    let at = |key| find(&infos, key).cloned();
    assert_eq!(at(keys::NPROC_OFFSET), Some(Value::Rank(PmixRank(7))));
    assert_eq!(at(keys::LOCAL_SIZE), Some(Value::Uint32(2)));
    assert_eq!(at(keys::NODE_SIZE), Some(Value::Uint32(5)));
    let nodes = arrays(&infos, keys::NODE_INFO_ARRAY);
    let here = nodes
        .iter()
        .map(|node| find(node, keys::LOCAL_PROCS).cloned());
    let here: Vec<_> = here.collect();
    let own = |rank| value::PmixProc::new(&Nspace::new("job-1").unwrap(), Rank(rank));
    let here_are = [other, own(0), own(1)].map(Value::Proc);
    let here_are = value::Array::new(here_are.to_vec()).map(Value::Array);
    assert_eq!(here, [None, here_are], "only of its own node");
    let parent = value::PmixProc::new(&parent.nspace, parent.rank);
    for (proc, (grank, local, on_node)) in
        arrays(&infos, keys::PROC_INFO_ARRAY)
            .iter()
            .zip([(7, 0, 3), (8, 1, 4), (9, 0, 4)])
    {
        for (key, value) in [
            (keys::GLOBAL_RANK, Value::Rank(PmixRank(grank))),
            (keys::LOCAL_RANK, Value::Uint16(local)),
            (keys::NODE_RANK, Value::Uint16(on_node)),
            (keys::SPAWNED, Value::Bool(true)),
            (keys::PARENT_ID, Value::Proc(parent.clone())),
        ] {
            assert_eq!(find(proc, key), Some(&value), "process {grank}: {key}");
        }
    }
}

#[test]
fn apps_start_with_their_number_and_name_their_leader() {
    let infos = infos_for(0);
    let apps = arrays(&infos, keys::APP_INFO_ARRAY);
    assert_eq!(apps.len(), 2);
    assert_eq!(apps[1][0], Info::new(keys::APPNUM, Value::Uint32(1)));
    assert_eq!(find(apps[1], keys::APPLDR), Some(&Value::Rank(PmixRank(1))));
    assert_eq!(find(apps[1], keys::APP_SIZE), Some(&Value::Uint32(3)));
    assert_eq!(
        find(apps[1], keys::APP_ARGV),
        Some(&Value::String("prog -x".into()))
    );
    assert_eq!(
        find(apps[1], keys::WDIR),
        Some(&Value::String("/work".into()))
    );
}

#[test]
fn job_info_that_would_crash_libpmix_is_refused() {
    let nspace = Nspace::new("job-1").unwrap();
    let refused = |layout: &[(u32, u32)], names: &[&str], apps: &[PmixAppInfo]| {
        let layout = layout.iter().map(|&(node, count)| (NodeId(node), count));
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        PmixJobInfo {
            nspace: &nspace,
            ranks: &ProcessMap::from_runs(layout),
            node_names: &names,
            node: NodeId(0),
            apps,
            universe_size: 1,
            parent: None,
            offset: Default::default(),
            before: &[],
            other_job_procs: &[],
            cpusets: &BTreeMap::new(),
            tmpdir: &"/t".into(),
            nsdir: &"/t".into(),
            uid: 0,
            gid: 0,
        }
        .infos()
        .unwrap_err()
    };
    let two = [(0, 1), (1, 1)];
    assert_eq!(
        refused(&two, &["a"], &[app(2)]),
        JobInfoError::NodeNames { names: 1, nodes: 2 }
    );
    for bad in ["", "b,c", "b c", "b[1]", "b;c", "b\n"] {
        let error = refused(&two, &["a", bad], &[app(2)]);
        assert_eq!(error, JobInfoError::NodeName(bad.to_owned()));
    }
    assert_eq!(
        refused(&two, &["a", "a"], &[app(2)]),
        JobInfoError::SameName("a".into())
    );
    assert_eq!(
        refused(&two, &["a", "b"], &[app(3)]),
        JobInfoError::Apps { apps: 3, size: 2 }
    );
    let crowd = 65_536;
    assert_eq!(
        refused(&[(0, crowd)], &["a"], &[app(crowd)]),
        JobInfoError::LocalSize(crowd)
    );
}

#[test]
fn large_job_of_one_program_names_every_rank_in_maps_only() {
    let described = |apps: &[PmixAppInfo]| {
        let size = apps.iter().map(|app| app.size).sum::<u32>();
        let ranks = ProcessMap::from_runs((0..2).map(|node| (NodeId(node), size / 2)));
        let infos = PmixJobInfo {
            nspace: &Nspace::new("job-1").unwrap(),
            ranks: &ranks,
            node_names: &["alpha", "beta"].map(str::to_owned),
            node: NodeId(1),
            apps,
            universe_size: size,
            parent: None,
            offset: Default::default(),
            before: &[],
            other_job_procs: &[],
            cpusets: &BTreeMap::new(),
            tmpdir: &"/run/j".into(),
            nsdir: &"/run/j/n".into(),
            uid: 1000,
            gid: 100,
        }
        .infos()
        .unwrap();
        [
            keys::PROC_INFO_ARRAY,
            keys::NODE_INFO_ARRAY,
            keys::LOCAL_PEERS,
        ]
        .map(|key| infos.iter().filter(|info| info.key == key).count())
    };
    let most = LISTED_MAX as usize;
    assert_eq!(described(&[app(LISTED_MAX)]), [most, 2, 1]);
    assert_eq!(described(&[app(LISTED_MAX + 2)]), [0, 0, 1]);
    assert_eq!(described(&[app(LISTED_MAX), app(2)]), [most + 2, 2, 1]);
}
