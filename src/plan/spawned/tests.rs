use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::inspect::program::Kind;
use crate::plan::host_growth::with_hosts;
use crate::plan::host_scope::HostScope;
use crate::plan::job_names::{JobNames, openmpi_family};
use crate::plan::planned_jobs::Jobs;
use crate::plan::{AppStart, SpawnPlanner};
use wireup_core::job::hosts::{HostList, merge};
use wireup_core::job::ids::Nspace;
use wireup_core::job::proc::Proc;
use wireup_core::job::process_map::RANKS_MAX;
use wireup_core::job::spawn::{JobRequester, SpawnInfo};
use wireup_core::job::spec::{
    BindTo, InterfaceChoice, JobSpec, LabelSpec, Runtime, StdinTarget, Uenv, WrapSpec,
};
use wireup_core::topology::ObjectType;

/// Plan for `/bin/true` on these hosts, or with two ranks on this machine.
fn first(hosts: &str) -> HostPlan {
    changed(hosts, &|_| {})
}

fn changed(hosts: &str, change: &dyn Fn(&mut JobSpec)) -> HostPlan {
    let hosts = match hosts {
        "" => Vec::new(),
        _ => merge(hosts.parse::<HostList>().unwrap().0).unwrap(),
    };
    let mut spec = JobSpec::from_apps(vec![AppRequest {
        count: Some(1),
        env: vec!["SETTING=launch".into()],
        argv: vec!["/bin/true".into()],
        ..AppRequest::default()
    }]);
    spec.layout.hosts = hosts;
    spec.stdio.label = Some(LabelSpec::Rank);
    spec.stdio.output = Some("out.%r".into());
    spec.stdio.stdin = StdinTarget::Rank(Rank(0));
    spec.interface.pmi = InterfaceChoice::Pmi1;
    change(&mut spec);
    HostPlan::new(spec, Nspace::new("first").unwrap(), 1 << 20, None).unwrap()
}

fn app(program: &str, count: u32) -> SpawnApp {
    SpawnApp {
        program: program.into(),
        args: vec!["a b".into(), "".into()],
        env: vec!["OMPI_PARENT_PORT=1=2;3".into()],
        cwd: None,
        count,
        infos: Vec::new(),
    }
}

fn info(key: &str, value: &str) -> SpawnInfo {
    SpawnInfo {
        key: key.into(),
        value: value.into(),
        required: true,
    }
}

fn request(apps: Vec<SpawnApp>, infos: &[(&str, &str)]) -> SpawnRequest {
    SpawnRequest {
        apps,
        infos: infos.iter().map(|(key, value)| info(key, value)).collect(),
        preputs: vec![(b"key".to_vec(), b"value".to_vec())],
    }
}

fn spawn(
    plan: &HostPlan,
    request: &SpawnRequest,
    live: &[u32],
) -> Result<SpawnedJobPlan, SpawnFailure> {
    let standing = LaunchSnapshot {
        offset: GlobalRank(live.iter().sum()),
        before: live,
        ground: SlotUsage {
            live,
            reserved: &[],
        },
        names: &JobNames::default(),
        jobs: &Jobs::new(Arc::new(first(""))),
    };
    SpawnPlanner::new(plan).plan(RequesterPlan::Rank(plan, Rank(0)), request, standing)
}

/// Plan after serialization, as another host receives it.
fn travelled(job: &SpawnedJobPlan) -> SpawnedJobPlan {
    let there = wireup_core::link::decode(&wireup_core::link::encode(job)).unwrap();
    assert_eq!(&there, job);
    there
}

/// Plan of the initial job on the host of a node.
fn there(plan: &HostPlan, node: u32) -> HostPlan {
    let (decided, spec) = (plan.job_plan.clone(), plan.spec.clone());
    let inheritance = plan.inheritance.travelling().on_node([]);
    HostPlan::resolve(decided, spec, inheritance, NodeId(node), &[], 1 << 20, None).unwrap()
}

fn nodes(job: &SpawnedJobPlan) -> Vec<u32> {
    let ranks = (0..job.job.process_map.size()).map(Rank);
    ranks
        .map(|rank| job.job.process_map.node_of(rank).unwrap().0)
        .collect()
}

fn variable<'a>(app: &'a AppStart, name: &str) -> Option<&'a OsString> {
    let found = app.env.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value)
}

#[test]
fn spawned_job_knows_its_parent_and_fills_free_slots() {
    let plan = first("n1:2,n2:4,n3:1");
    let job = spawn(&plan, &request(vec![app("/bin/true", 3)], &[]), &[1, 2, 1]).unwrap();
    assert_eq!(nodes(&job), [0, 1, 1]);
    let context = &job.job;
    assert_ne!(context.nspace, plan.job.nspace);
    assert_eq!(
        context.process_map.nodes(),
        3,
        "every node of the launch is one of the job"
    );
    assert_eq!(
        context.requester,
        JobRequester::Rank(Proc::new(plan.job.nspace.clone(), Rank(0)))
    );
    assert_eq!(
        (context.first_global_rank, context.universe_size),
        (GlobalRank(4), 7)
    );
    assert_eq!(context.initial_kvs.len(), 1);
    // Jobs that the spawned job spawns have the same settings.
    let decided = job.resolve(&plan, None).unwrap();
    let standing = LaunchSnapshot {
        offset: GlobalRank(7),
        before: &[2, 4, 1],
        ground: SlotUsage {
            live: &[2, 3, 1],
            reserved: &[],
        },
        names: &JobNames::default(),
        jobs: &Jobs::new(Arc::new(first(""))),
    };
    let request = request(vec![app("/bin/true", 1)], &[]);
    let by = RequesterPlan::Rank(&decided, Rank(2));
    let grandchild = SpawnPlanner::new(&plan)
        .plan(by, &request, standing)
        .unwrap();
    assert_eq!(nodes(&grandchild), [1]);
    let launch = &grandchild.decided(&decided).launch;
    assert_eq!(launch.nspace, plan.job.nspace);
    let parent = Proc::new(context.nspace.clone(), Rank(2));
    assert_eq!(grandchild.job.requester, JobRequester::Rank(parent));
}

#[test]
fn job_names_of_launch_differ_in_hash_of_open_mpi() {
    let plan = first("");
    let request = request(vec![app("/bin/true", 1)], &[]);
    let names = JobNames::new(&plan.job.nspace);
    let jobs = Jobs::new(Arc::new(first("")));
    let mut families = BTreeSet::from([openmpi_family(&plan.job.nspace)]);
    // With random names, two of so many jobs would have equal bits almost certainly.
    for _ in 0..2000 {
        let standing = LaunchSnapshot {
            offset: GlobalRank(1),
            before: &[1],
            ground: SlotUsage {
                live: &[1],
                reserved: &[],
            },
            names: &names,
            jobs: &jobs,
        };
        let by = RequesterPlan::Rank(&plan, Rank(0));
        let job = SpawnPlanner::new(&plan).plan(by, &request, standing);
        let name = job.unwrap().job.nspace.clone();
        assert!(families.insert(openmpi_family(&name)), "{name}");
    }
}

#[test]
fn apps_follow_each_other_and_go_to_requested_hosts() {
    let plan = first("n1:2,n2:2,n3:4");
    let mut apps = vec![app("a", 2), app("b", 3), app("c", 1)];
    apps[0].infos = vec![info("host", "n3,n2")];
    apps[1].infos = vec![info("pmix.mapby", "node")];
    apps[2].infos = vec![info("host", "localhost:1")];
    let job = spawn(&plan, &request(apps, &[("add-host", "n2")]), &[0, 0, 1]).unwrap();
    assert_eq!(nodes(&job), [2, 2, 0, 1, 2, 0]);
    assert_eq!(job.job.app_map.ranks_of(AppNum(1)), 2..5);
    let no_head = request(
        vec![app("a", 2)],
        &[("pmix.nolocal", "true"), ("npernode", "1")],
    );
    assert_eq!(nodes(&spawn(&plan, &no_head, &[0, 0, 0]).unwrap()), [1, 2]);
}

#[test]
fn layout_or_rankfile_decides_node_of_each_rank() {
    let plan = first("n1:1,n2:2,n3:2");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ranks");
    std::fs::write(
        &file,
        "rank 0=n3 slot=0\nrank 1=+n1 slot=1\nrank 2=n3 slot=1\n",
    )
    .unwrap();
    let rankfile = ("rankfile", file.to_str().unwrap());
    let spawned = |infos: &[(&str, &str)]| {
        let apps = vec![app("/bin/true", 1), app("/bin/false", 2)];
        spawn(&plan, &request(apps, infos), &[1, 0, 0])
    };
    let job = spawned(&[("layout", "2*1,1*2")]).unwrap();
    assert_eq!(nodes(&job), [2, 1, 1]);
    assert_eq!(job.job.app_map.ranks_of(AppNum(1)), 1..3);
    let job = travelled(&spawned(&[rankfile]).unwrap());
    assert_eq!(nodes(&job), [2, 1, 2]);
    let binding = job.spec(&plan.spec).binding;
    assert!(matches!(binding.to, BindTo::Slots(ObjectType::Core, cpus) if cpus.len() == 3));
    let unbound = spawned(&[rankfile, ("bind_to", "none")]).unwrap();
    assert_eq!(unbound.spec(&plan.spec).binding.to, BindTo::None);
    for (infos, problem) in [
        (&[("layout", "0*1,1*2")][..], "on n1,"),
        (&[("layout", "1*3")], "on n2,"),
        (&[("layout", "3*3")], "node 3"),
        (&[("layout", "2*2")], "2 ranks"),
        (
            &[("layout", "2*1,1*2"), ("map_by", "core")],
            "layout: contradicts map_by",
        ),
        (
            &[("layout", "2*1,1*2"), ("host", "n2")],
            "layout: contradicts host",
        ),
        (
            &[rankfile, ("layout", "2*1,1*2")],
            "rankfile: contradicts layout",
        ),
        (
            &[rankfile, ("bind_to", "numa")],
            "rankfile: the rankfile sets",
        ),
        (&[("rankfile", "/no/such/file")], "/no/such/file"),
        (
            &[("pset", "some=3")],
            "pset: some contains rank 3; the job has ranks 0 to 2",
        ),
        (
            &[("pset", "some=0\nsome=1")],
            "pset: two sets have the name \"some\"",
        ),
    ] {
        let refused = spawned(infos).unwrap_err();
        assert!(refused.text.contains(problem), "{}", refused.text);
    }
}

#[test]
fn images_come_from_launch_unless_request_names_one() {
    let plan = changed("n1:2,n2:2", &|spec| {
        spec.container.uenvs = vec![Uenv::parse("launch.squashfs".as_ref()).unwrap()];
    });
    let spawned = |infos: &[(&str, &str)]| {
        let job = spawn(&plan, &request(vec![app("/bin/true", 2)], infos), &[1, 0])?;
        Ok::<_, SpawnFailure>(travelled(&job))
    };
    let job = spawned(&[]).unwrap();
    assert_eq!(job.container, None);
    assert_eq!(job.spec(&plan.spec).container, plan.spec.container);
    assert!(job.nodes_to_prepare(&plan.job_plan).is_empty());
    let both = spawned(&[("stage", "true"), ("preload_binary", "true")]).unwrap_err();
    assert!(
        both.text.contains("contradicts preload_binary"),
        "{}",
        both.text
    );
    let uenvs = ("uenv", "a.squashfs:/a\nb.squashfs:/b");
    let mounts = [
        ("image", "./root"),
        ("runtime", "crun"),
        ("image_mount", "/data:/d:ro\n/e"),
    ];
    let job = spawned(&[&[uenvs], &mounts[..]].concat()).unwrap();
    let container = job.spec(&plan.spec).container;
    let files = container
        .uenvs
        .iter()
        .map(|uenv| uenv.file.to_str().unwrap());
    let files: Vec<_> = files.collect();
    assert_eq!(files, ["launch.squashfs", "a.squashfs", "b.squashfs"]);
    let image = container.image.unwrap();
    assert_eq!((image.runtime, image.mounts.len()), (Runtime::Crun, 2));
    // Each node has one rank.
    let nodes = job.nodes_to_prepare(&plan.job_plan);
    assert_eq!(nodes, BTreeSet::from([NodeId(0), NodeId(1)]));
    let there = there(&plan, 1);
    let lost = job.resolve(&there, None).unwrap_err();
    assert!(lost.text.contains("container"), "{}", lost.text);
    for (infos, problem) in [
        (
            &[("uenv", "a:b")][..],
            "info key uenv: \"a:b\": give FILE:DIRECTORY",
        ),
        (
            &[("image", "debian:12"), ("runtime", "crun")],
            "crun needs a root directory",
        ),
        (
            &[("image", "/"), ("runtime", "docker")],
            "use one of apptainer, bwrap",
        ),
        (&[("runtime", "crun")], "give image too"),
        (&[("image_mount", "/data")], "give image too"),
        (
            &[("image", "/"), ("stage", "true")],
            "info key stage: ranks find",
        ),
    ] {
        let refused = spawned(infos).unwrap_err();
        assert!(refused.text.contains(problem), "{}", refused.text);
    }
}

#[test]
fn layout_on_lost_node_is_refused() {
    let plan = first("n1:2,n2:2");
    let absent = with_hosts(&plan, &plan.spec.layout.hosts, &BTreeSet::from([NodeId(1)]));
    let infos = [("layout", "1*1"), ("oversubscribe", "true")];
    let refused = spawn(&absent, &request(vec![app("a", 1)], &infos), &[1, 0]).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NoSlots);
    assert!(
        refused
            .text
            .contains("the layout has node 1, which is not in the launch"),
        "{}",
        refused.text
    );
}

#[test]
fn hostfiles_are_relative_to_directory_of_parent() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hosts"), "n2 slots=1\nn1\n").unwrap();
    let plan = first("n1:4,n2:4");
    let mut app = app("a", 3);
    app.cwd = Some(dir.path().into());
    let spawn_request = request(vec![app.clone()], &[("hostfile", "hosts")]);
    assert_eq!(
        nodes(&spawn(&plan, &spawn_request, &[0, 0]).unwrap()),
        [1, 0, 0]
    );
    let gone = spawn(&plan, &request(vec![app], &[("hostfile", "gone")]), &[0, 0]).unwrap_err();
    assert_eq!(gone.kind, SpawnFailureKind::BadRequest);
    assert!(gone.text.contains("/gone: No such file"), "{}", gone.text);
}

#[test]
fn soft_count_takes_slots_left_by_others() {
    let plan = first("n1:4,n2:4");
    let mut apps = vec![app("a", 8), app("b", 2)];
    apps[0].infos = vec![info("soft", "1:8:2")];
    let job = spawn(&plan, &request(apps.clone(), &[]), &[1, 0]).unwrap();
    assert_eq!(
        (
            job.job.app_map.ranks_of(AppNum(0)),
            job.job.process_map.size()
        ),
        (0..5, 7)
    );
    apps[0].infos = vec![info("soft", "6,8")];
    let refused = spawn(&plan, &request(apps.clone(), &[]), &[1, 0]).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NoSlots);
    assert!(
        refused
            .text
            .starts_with("8 ranks do not fit in 5 free slots"),
        "{}",
        refused.text
    );
    apps[0].infos = vec![info("soft", "0,9:12")];
    let refused = spawn(&plan, &request(apps, &[]), &[1, 0]).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::BadRequest);
    assert!(refused.text.contains("`soft`"), "{}", refused.text);
}

#[test]
fn spawn_beyond_launch_maximum_is_refused_before_placement() {
    let plan = changed("n1:2,n2:1", &|spec| spec.layout.oversubscribe = true);
    let refused = |apps, infos: &[(&str, &str)]| {
        let refused = spawn(&plan, &request(apps, infos), &[1, 1]).unwrap_err();
        assert_eq!(refused.kind, SpawnFailureKind::NoSlots);
        refused.text
    };
    let limit = "a launch has at most 10000000 processes, but this one would have";
    let huge = 2_000_000_000;
    let one = refused(vec![app("a", huge)], &[]);
    assert_eq!(one, format!("{limit} 2000000002; request fewer"));
    let by_node = refused(vec![app("a", huge)], &[("map_by", "node")]);
    assert_eq!(by_node, one);
    let two = refused(vec![app("a", u32::MAX), app("b", u32::MAX)], &[]);
    assert_eq!(two, format!("{limit} 8589934592; request fewer"));
    let soft = refused(vec![app("a", huge)], &[("soft", "2000000000")]);
    assert_eq!(soft, one);
    // A soft request gets the largest number that fits.
    let most = request(vec![app("a", huge)], &[("soft", "1:2000000000")]);
    let job = spawn(&plan, &most, &[1, 1]).unwrap();
    assert_eq!(job.job.process_map.size(), RANKS_MAX - 2);
}

#[test]
fn oversized_spawn_is_refused_with_counts_unless_allowed() {
    let spawn_request = request(vec![app("a", 3)], &[]);
    let refused = spawn(&first("n1:2,n2:1"), &spawn_request, &[1, 1]).unwrap_err();
    assert_eq!(
        refused,
        SpawnFailure {
            kind: SpawnFailureKind::NoSlots,
            text: "3 ranks do not fit in 1 free slot (1 of 2 on n1; 0 of 1 on n2); use --oversubscribe, \
                   or start the launch with more slots"
                .into()
        }
    );
    let loose = changed("n1:2,n2:1", &|spec| spec.layout.oversubscribe = true);
    let job = spawn(&loose, &spawn_request, &[1, 1]).unwrap();
    assert_eq!((nodes(&job), job.oversubscribed), (vec![0, 0, 1], true));
    let strict = request(vec![app("a", 3)], &[("pmix.noover", "true")]);
    assert!(spawn(&loose, &strict, &[1, 1]).is_err());
    let own = request(vec![app("a", 3)], &[("map_by", "slot:oversubscribe")]);
    assert!(spawn(&first("n1:2,n2:1"), &own, &[1, 1]).is_ok());
}

#[test]
fn this_machine_has_slots_of_its_processors() {
    let slots = first("").slots.count();
    let all = request(vec![app("/bin/true", slots)], &[("host", "localhost")]);
    let job = spawn(&first(""), &all, &[0]).unwrap();
    assert!(!job.oversubscribed);
    let refused = spawn(&first(""), &all, &[1]).unwrap_err();
    let free = slots - 1;
    assert!(
        refused.text.contains(&format!("in {free} free slot")),
        "{}",
        refused.text
    );
}

#[test]
fn unknown_host_is_refused() {
    let plan = first("n1:2,n2:2");
    let spawn_request = request(vec![app("a", 1)], &[("host", "n7")]);
    let refused = spawn(&plan, &spawn_request, &[0, 0]).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NotSupported);
    assert!(
        refused.text.contains("n7 is not in the launch"),
        "{}",
        refused.text
    );
}

/// Names of the hosts that a request adds.
fn added(plan: &HostPlan, request: &SpawnRequest) -> Result<Vec<(String, Option<u32>)>, String> {
    let by = RequesterPlan::Rank(plan, Rank(0));
    let hosts = SpawnPlanner::new(plan).added_hosts(by, request, |_| Vec::new());
    let hosts = hosts.map_err(|failure| failure.text)?;
    let known = |host: wireup_core::job::hosts::HostSpec| (host.name, host.slots);
    Ok(hosts.into_iter().map(known).collect())
}

#[test]
fn added_hosts_are_those_missing_in_launch() {
    let plan = first("n1:2,n2:2");
    let mut apps = vec![app("a", 1), app("b", 1)];
    apps[0].infos = vec![info("add-host", "n2,n7:4")];
    apps[1].infos = vec![info("add-host", "n2,n7:4")];
    let spawn_request = request(apps, &[("pmix.addhost", "n8")]);
    let both = vec![("n7".to_owned(), Some(4)), ("n8".to_owned(), None)];
    assert_eq!(added(&plan, &spawn_request), Ok(both));
    let known = request(vec![app("a", 1)], &[("add-host", "n2,localhost")]);
    assert_eq!(added(&plan, &known), Ok(Vec::new()));
    let wrong = request(vec![app("a", 1)], &[("add-host", "n7:")]);
    assert!(added(&plan, &wrong).unwrap_err().contains("add-host"));
    let alone = request(vec![app("a", 1)], &[("add-host", "n7")]);
    let refused = added(&first(""), &alone).unwrap_err();
    assert!(refused.contains("start it with --hosts"), "{refused}");
}

#[test]
fn joined_hosts_have_declared_slots_and_earlier_ones_stay() {
    let plan = first("n1:2");
    let early = spawn(&plan, &request(vec![app("a", 1)], &[]), &[1]).unwrap();
    let hosts = |list: &str| merge(list.parse::<HostList>().unwrap().0).unwrap();
    let absent = BTreeSet::from([NodeId(1)]);
    let grown = with_hosts(&plan, &hosts("n1:2,n7:4,n8:1"), &absent);
    assert_eq!(grown.job.process_map.nodes(), 3);
    assert_eq!(grown.job.process_map.size(), plan.job.process_map.size());
    assert_eq!(grown.present_names(), ["n1", "n8"]);
    let job = spawn(&grown, &request(vec![app("a", 2)], &[]), &[1, 0, 0]).unwrap();
    assert_eq!(nodes(&job), [0, 2]);
    let full = spawn(&grown, &request(vec![app("a", 3)], &[]), &[1, 0, 0]).unwrap_err();
    assert!(
        full.text
            .contains("2 free slots (1 of 2 on n1; 1 of 1 on n8)"),
        "{}",
        full.text
    );
    // The host of a node that could not join may be added again.
    let again = request(vec![app("a", 1)], &[("add-host", "n7:4,n8")]);
    assert_eq!(added(&grown, &again), Ok(vec![("n7".to_owned(), Some(4))]));
    let to = request(vec![app("a", 1)], &[("host", "n7")]);
    let refused = spawn(&grown, &to, &[1, 0, 0]).unwrap_err();
    assert!(
        refused.text.contains("n7 is not in the launch (n[1,8])"),
        "{}",
        refused.text
    );
    let twice = with_hosts(&grown, &grown.spec.layout.hosts, &absent);
    assert_eq!(twice.job_plan, grown.job_plan);
    // Earlier jobs have no ranks on the added nodes.
    let decided = early.decided(&grown);
    assert_eq!(decided.node_names.len(), 3);
    assert_eq!(decided.job.process_map.nodes(), 3);
    assert_eq!(decided.job.process_map.local_size(NodeId(2)), 0);
    let joined = HostPlan {
        scope: Some(HostScope::Node(NodeId(2))),
        ..grown
    };
    assert!(early.resolve_within(&joined, 1024, None).is_ok());
}

#[test]
fn request_without_processes_is_refused() {
    for apps in [Vec::new(), vec![app("a", 1), app("a", 0)]] {
        let refused = spawn(&first("n1:2"), &request(apps, &[]), &[0]).unwrap_err();
        assert_eq!(refused.kind, SpawnFailureKind::BadRequest);
    }
}

#[test]
fn stdin_rank_must_be_one_of_ranks() {
    let input = |reader: &str| {
        let infos = [("pmix.fwd.stdin", "true"), ("pmix.stdin", reader)];
        spawn(&first("n1:4"), &request(vec![app("a", 2)], &infos), &[0])
    };
    let spec = input("1").unwrap().spec(&first("n1:4").spec);
    assert_eq!(spec.stdio.stdin, StdinTarget::Rank(Rank(1)));
    let refused = input("2").unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::BadRequest);
    assert!(
        refused.text.contains("the job has ranks 0 to 1"),
        "{}",
        refused.text
    );
}

#[test]
fn environment_is_that_of_launch_with_request_last() {
    let plan = first("");
    let mut app = app("/bin/true", 1);
    app.env.push("SETTING=child".into());
    app.infos = vec![
        info("env", "SETTING=info\nEXTRA=1"),
        info("pmix.envar.prepnd", ":PATH=/x"),
    ];
    let job = spawn(&plan, &request(vec![app], &[]), &[0]).unwrap();
    let host_plan = travelled(&job).resolve(&plan, None).unwrap();
    let child = &host_plan.apps[0];
    assert_eq!(variable(child, "OMPI_PARENT_PORT"), Some(&"1=2;3".into()));
    assert_eq!(variable(child, "SETTING"), Some(&"child".into()));
    assert_eq!(variable(child, "EXTRA"), Some(&"1".into()));
    let path = variable(child, "PATH").unwrap().to_str().unwrap();
    assert!(path.starts_with("/x:"), "{path}");
    assert_eq!(variable(&plan.apps[0], "SETTING"), Some(&"launch".into()));
    assert_eq!(child.args, ["a b", ""]);
    let mut bad = self::app("/bin/true", 1);
    bad.env.push("NAME".into());
    let refused = spawn(&plan, &request(vec![bad], &[]), &[0]).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::BadRequest);
}

#[test]
fn settings_of_launch_apply_to_its_spawns() {
    let wrap = |ranks: Option<&str>| WrapSpec {
        command: "env".into(),
        ranks: ranks.map(|ranks| ranks.parse().unwrap()),
    };
    let plan = changed("", &|spec| {
        spec.apps[0].umask = Some(0o27);
        spec.apps[0].wrap = Some(wrap(None));
    });
    let request = request(vec![app("/bin/true", 1)], &[]);
    let host_plan = spawn(&plan, &request, &[0])
        .unwrap()
        .resolve(&plan, None)
        .unwrap();
    assert_eq!(host_plan.apps[0].settings.umask, Some(0o27));
    assert!(host_plan.apps[0].wrapper.is_some());
    assert_eq!(host_plan.spec.stdio.output, Some("out.%r.%j".into()));
    assert_eq!(
        (
            host_plan.spec.stdio.stdin,
            host_plan.spec.stdio.label.clone()
        ),
        (StdinTarget::None, Some(LabelSpec::Rank))
    );
    assert_eq!(host_plan.launch.nspace, plan.job.nspace);
    let plan = changed("", &|spec| spec.apps[0].wrap = Some(wrap(Some("0"))));
    let host_plan = spawn(&plan, &request, &[0])
        .unwrap()
        .resolve(&plan, None)
        .unwrap();
    assert!(host_plan.apps[0].wrapper.is_none());
}

#[test]
fn programs_are_found_beside_parent_and_in_requested_path() {
    let dir = tempfile::tempdir().unwrap();
    for (place, name) in [("", "beside"), ("bin", "below")] {
        let place = dir.path().join(place);
        std::fs::create_dir_all(&place).unwrap();
        let program = place.join(name);
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let plan = first("");
    let find = |name: &str, infos: &[(&str, &str)]| {
        let mut app = app(name, 1);
        app.cwd = Some(dir.path().into());
        let job = spawn(&plan, &request(vec![app], infos), &[0]).unwrap();
        let host_plan = job.resolve(&plan, None)?;
        Ok::<_, SpawnFailure>(host_plan.apps[0].program.path().to_owned())
    };
    let below = dir.path().join("bin/below");
    let inner = dir.path().join("bin");
    assert_eq!(find("beside", &[]), Ok(dir.path().join("beside")));
    assert_eq!(find("below", &[("path", "gone:bin")]), Ok(below.clone()));
    assert_eq!(
        find("bin/below", &[("wdir", "/")]).unwrap_err().kind,
        SpawnFailureKind::NotFound
    );
    let path = dir.path().to_str().unwrap();
    assert_eq!(
        find("bin/below", &[("wdir", "/"), ("path", path)]),
        Ok(below.clone())
    );
    assert_eq!(find("below", &[("wdir", "bin")]), Ok(below));
    let refused = |name: &str, infos: &[(&str, &str)]| find(name, infos).unwrap_err();
    let gone = refused("gone", &[]);
    assert_eq!(gone.kind, SpawnFailureKind::NotFound);
    assert!(
        gone.text.starts_with("program \"gone\" not found"),
        "{}",
        gone.text
    );
    assert_eq!(
        refused(inner.to_str().unwrap(), &[]).kind,
        SpawnFailureKind::NotExecutable
    );
    let nowhere = refused("beside", &[("wdir", "gone")]);
    assert_eq!(nowhere.kind, SpawnFailureKind::NotExecutable);
    assert!(
        nowhere.text.contains("/gone: No such file"),
        "{}",
        nowhere.text
    );
    let files = [("preload_files", "beside,lost")];
    let lost = refused("beside", &files);
    assert_eq!(lost.kind, SpawnFailureKind::NotSupported);
    assert!(
        lost.text.contains("/lost exists neither on"),
        "{}",
        lost.text
    );
}

#[test]
fn host_resolves_programs_of_its_ranks_and_names_itself() {
    let plan = first("n1:1,n2:1,n3:1");
    let apps = vec![app("/bin/true", 1), app("/gone/child", 1)];
    let job = travelled(&spawn(&plan, &request(apps, &[]), &[1, 0, 0]).unwrap());
    assert_eq!(nodes(&job), [1, 2]);
    let idle = job.resolve(&there(&plan, 0), None).unwrap();
    assert!(
        idle.apps
            .iter()
            .all(|app| app.program.kind() == &Kind::Elsewhere)
    );
    let host_plan = job.resolve(&there(&plan, 1), None).unwrap();
    assert_eq!(host_plan.node_names, plan.node_names);
    assert_eq!(host_plan.apps[1].program.kind(), &Kind::Elsewhere);
    let refused = job.resolve(&there(&plan, 2), None).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NotFound);
    assert!(
        refused
            .text
            .starts_with("on n3: program \"/gone/child\" not found"),
        "{}",
        refused.text
    );
}

#[test]
fn launcher_of_hosts_accepts_program_that_only_they_have() {
    let plan = first("n1:1,n2:1");
    let job = spawn(&plan, &request(vec![app("/gone/child", 1)], &[]), &[1, 0]).unwrap();
    let shown = job.resolve(&plan, None).unwrap();
    assert_eq!(shown.apps[0].program.kind(), &Kind::Elsewhere);
    assert!(shown.scope.is_none() && shown.binding.is_none());
    let here = first("");
    let job = spawn(&here, &request(vec![app("/gone/child", 1)], &[]), &[0]).unwrap();
    let refused = job.resolve(&here, None).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NotFound);
}

#[test]
fn step_of_virtual_nodes_prepares_container_once() {
    let plan = changed("", &|spec| {
        spec.layout.virtual_nodes = 2;
        spec.layout.oversubscribe = true;
        spec.apps[0].count = Some(2);
    });
    let spawn_request = request(vec![app("/bin/true", 2)], &[("uenv", "a.squashfs")]);
    let job = spawn(&plan, &spawn_request, &[1, 1]).unwrap();
    assert_eq!(
        job.nodes_to_prepare(&plan.job_plan),
        BTreeSet::from([NodeId(0)])
    );
    let refused = job.resolve(&plan, None).unwrap_err();
    assert!(refused.text.contains("container"), "{}", refused.text);
}

#[test]
fn host_of_unknown_size_counts_its_processors() {
    let plan = first("n1,n2");
    let node = there(&plan, 1);
    let slots = node.slots.count();
    let spawn_request = request(vec![app("/bin/true", slots)], &[("host", "n2")]);
    let fits = spawn(&plan, &spawn_request, &[1, 0]).unwrap();
    assert!(fits.resolve(&node, None).is_ok());
    let full = spawn(&plan, &spawn_request, &[1, 1]).unwrap();
    let refused = full.resolve(&node, None).unwrap_err();
    assert_eq!(refused.kind, SpawnFailureKind::NoSlots);
    assert!(
        refused
            .text
            .starts_with(&format!("on n2: {} ranks do not fit in", slots + 1)),
        "{}",
        refused.text
    );
}

#[test]
fn descriptors_limit_ranks_started_here() {
    let plan = first("");
    let job = spawn(&plan, &request(vec![app("/bin/true", 1)], &[]), &[0]).unwrap();
    let refused = job.resolve_within(&plan, 103, None).unwrap_err();
    let refused = SpawnFailure::from(refused);
    assert_eq!(refused.kind, SpawnFailureKind::NoSlots);
    assert!(refused.text.contains("ulimit -Hn"), "{}", refused.text);
    assert!(job.resolve_within(&plan, 104, None).is_ok());
}

#[test]
fn inconsistent_description_is_refused() {
    let plan = first("");
    let job = spawn(&plan, &request(vec![app("/bin/true", 1)], &[]), &[0]).unwrap();
    let with = |change: &dyn Fn(&mut SpawnedJobPlan)| {
        let mut job = job.clone();
        change(&mut job);
        job.resolve(&plan, None).unwrap_err()
    };
    for failure in [
        with(&|job| job.requests.clear()),
        with(&|job| job.app_plans.clear()),
        with(&|job| job.origin.template_app = AppNum(1)),
        with(&|job| job.job = plan_of_two().job.clone()),
    ] {
        assert!(
            failure.text.contains("inconsistent plan of the job"),
            "{}",
            failure.text
        );
    }
}

fn plan_of_two() -> HostPlan {
    first("n1:1,n2:1")
}
