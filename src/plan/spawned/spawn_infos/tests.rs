use super::*;
use wireup_core::job::directive::supported_attributes;
use wireup_core::job::spec::{BindTo, BindingSpec, EnvInheritance, MemBind};

fn info(key: &str, value: &str, required: bool) -> SpawnInfo {
    SpawnInfo {
        key: key.into(),
        value: value.into(),
        required,
    }
}

fn wishes(pairs: &[(&str, &str)]) -> SpawnAttributes {
    let infos: Vec<_> = pairs
        .iter()
        .map(|(key, value)| info(key, value, true))
        .collect();
    SpawnAttributes::from_infos(&infos).unwrap()
}

fn refused(key: &str, value: &str) -> SpawnFailure {
    SpawnAttributes::from_infos(&[info(key, value, true)]).unwrap_err()
}

#[test]
fn attribute_has_same_value_by_pmix_and_mpi_name() {
    for names in [
        ["host", "hosts", "pmix.host", "PMIX_HOST"],
        ["add-host", "add_host", "pmix.addhost", "PMIX_ADD_HOST"],
        ["wdir", "pmix.wdir", "PMIX_WDIR", "wdir"],
        ["hostfile", "pmix.hostfile", "PMIX_HOSTFILE", "hostfile"],
    ] {
        let first = wishes(&[(names[0], "n1")]);
        assert_ne!(first, SpawnAttributes::default());
        for name in names {
            assert_eq!(wishes(&[(name, "n1")]), first, "{name}");
        }
    }
    assert_eq!(
        wishes(&[("path", "/a:b")]).app.search,
        ["/a", "b"].map(PathBuf::from)
    );
    let changes = wishes(&[("env", "A=1\nB=x y\n")]).app.env_changes;
    assert_eq!(changes.len(), 2);
    assert!(wishes(&[("pmix.nolocal", "true")]).no_head);
    assert_eq!(wishes(&[("pmix.noover", "")]).oversubscribe, Some(false));
    assert_eq!(
        wishes(&[("pmix.spchildsep", "true")]).independent,
        Some(true)
    );
    assert_eq!(
        wishes(&[("pmix.sp.time", "7")]).limit,
        Some(Duration::from_secs(7))
    );
    assert_eq!(wishes(&[("pmix.timeout", "0")]).limit, None);
    assert_eq!(
        wishes(&[("pmix.pers", "ompi5"), ("pmix.preloadbin", "false")]),
        SpawnAttributes::default()
    );
    assert!(wishes(&[("pmix.preloadbin", "true")]).app.preload.program);
}

#[test]
fn readers_of_input_are_named_by_rank_or_as_all_and_none() {
    let with = |reader| wishes(&[("pmix.fwd.stdin", "true"), ("pmix.stdin", reader)]).input();
    for (text, target) in [
        ("all", StdinTarget::All),
        ("4294967294", StdinTarget::All),
        ("none", StdinTarget::None),
        ("4294967295", StdinTarget::None),
        ("3", StdinTarget::Rank(Rank(3))),
    ] {
        assert_eq!(with(text), target, "{text}");
    }
    let first = StdinTarget::Rank(Rank(0));
    assert_eq!(wishes(&[("PMIX_FWD_STDIN", "")]).input(), first);
    // Without `pmix.fwd.stdin` no rank reads input.
    assert_eq!(
        wishes(&[("ompi_stdin_target", "all")]).input(),
        StdinTarget::None
    );
    assert!(
        refused("pmix.stdin", "some")
            .text
            .contains("use a rank, all or none")
    );
}

#[test]
fn placement_is_written_as_users_of_open_mpi_do() {
    let of = |key, value| {
        let SpawnAttributes {
            map_by: by,
            per_node,
            oversubscribe,
            ..
        } = wishes(&[(key, value)]);
        (by, per_node, oversubscribe)
    };
    assert_eq!(of("map_by", "node"), (Some(MapBy::Node), None, None));
    assert_eq!(
        of("map-by", "slot:OVERSUBSCRIBE"),
        (Some(MapBy::Slot), None, Some(true))
    );
    assert_eq!(of("pmix.mapby", "PPR:2:NODE"), (None, Some(2), None));
    assert_eq!(
        of("pmix.mapby", "ppr:2:node:display,oversubscribe"),
        (None, Some(2), Some(true))
    );
    assert_eq!(
        of("PMIX_MAPBY", ":nooversubscribe"),
        (None, None, Some(false))
    );
    assert_eq!(of("npernode", "3"), (None, Some(3), None));
    assert_eq!(of("pernode", "true"), (None, Some(1), None));
    assert_eq!(of("pernode", "false"), (None, None, None));
    assert_eq!(of("ppr", "4:node"), (None, Some(4), None));
    assert_eq!(of("pmix.ppr", "1:n"), (None, Some(1), None));
}

#[test]
fn unknown_attribute_is_ignored_unless_required() {
    let infos = [info("colour", "red", false), info("cpulist", "3", false)];
    let wishes = SpawnAttributes::from_infos(&infos).unwrap();
    assert_eq!(wishes.ignored, ["colour", "cpulist"]);
    assert_eq!(
        refused("pmix.cpulist", "0-3"),
        SpawnFailure {
            kind: SpawnFailureKind::NotSupported,
            text: "unknown info key pmix.cpulist (\"0-3\"), which is required".into()
        }
    );
}

#[test]
fn binding_attributes_accept_values_of_open_mpi() {
    let spec = |infos: &[(&str, &str)]| {
        let wishes = wishes(infos);
        let by = wishes.map_by.unwrap_or_default();
        wishes.binding.spec(&BindingSpec::default(), by, None)
    };
    let to = |infos: &[(&str, &str)]| {
        let spec = spec(infos).unwrap();
        (spec.to, spec.map, spec.cpus_per_rank)
    };
    let level = BindTo::Level;
    let order = MapWithinHost::InOrder;
    assert_eq!(to(&[]), (BindTo::None, order, 1));
    assert_eq!(
        to(&[("bind_to", "core")]),
        (level(ObjectType::Core), order, 1)
    );
    let numa = MapWithinHost::Over(ObjectType::Numa);
    assert_eq!(
        to(&[("pmix.mapby", "NUMA")]),
        (level(ObjectType::Numa), numa, 1)
    );
    let several = [("pmix.mapby", "numa:PE=4"), ("pmix.rankby", "slot")];
    assert_eq!(to(&several), (level(ObjectType::Core), numa, 4));
    let two = MapWithinHost::Each(2, ObjectType::Package);
    let infos = [
        ("pmix.ppr", "2:socket"),
        ("pmix.cpuperproc", "3"),
        ("PMIX_BINDTO", "l3cache:overload-allowed"),
    ];
    assert_eq!(to(&infos), (level(ObjectType::L3), two, 3));
    assert_eq!(
        to(&[("map_by", "node"), ("rank_by", "node")]),
        (BindTo::None, order, 1)
    );
    let cross = spec(&[("map_by", "node"), ("rank_by", "slot")]).unwrap_err();
    assert!(
        cross
            .text
            .contains("info key rank_by: ranks are numbered in the order of placement, by node"),
        "{}",
        cross.text
    );
    for (key, value, needed) in [
        ("bind_to", "board", "none, hwthread, core"),
        ("pmix.bindto", "core:sometimes", "unsupported modifier"),
        ("map_by", "seq", "slot, node, hwthread"),
        ("map_by", "core:pe=0", "write pe=N"),
        ("pmix.ppr", "2:board", "N:package"),
        ("rank_by", "span", "slot, fill or node"),
        ("pmix.cpuperproc", "0", "not a number"),
    ] {
        let failure = refused(key, value);
        assert_eq!(failure.kind, SpawnFailureKind::BadRequest, "{key}={value}");
        assert!(
            failure.text.contains(key) && failure.text.contains(needed),
            "{}",
            failure.text
        );
    }
}

#[test]
fn invalid_values_are_refused_with_their_key() {
    for (key, value) in [
        ("host", "n1:x"),
        ("npernode", "0"),
        ("npernode", "many"),
        ("ppr", "x:node"),
        ("soft", "few"),
        ("env", "=NAME"),
        ("pmix.envar.prepnd", ":"),
        ("pernode", "perhaps"),
        ("pmix.timeout", "soon"),
    ] {
        let failure = refused(key, value);
        assert_eq!(failure.kind, SpawnFailureKind::BadRequest, "{key}={value}");
        assert!(
            failure.text.starts_with(&format!("info key {key}: ")),
            "{}",
            failure.text
        );
    }
    assert_eq!(refused("arch", "vax").kind, SpawnFailureKind::NotSupported);
    wishes(&[("arch", std::env::consts::ARCH)]);
}

#[test]
fn files_are_staged_and_required_on_request() {
    let optional = SpawnAttributes::from_infos(&[info("preload_files", "/a,/b", false)]).unwrap();
    assert_eq!(optional.app.needed_files, Vec::<PathBuf>::new());
    let required = wishes(&[("pmix.preloadfiles", "/a,/b")]);
    for found in [
        required.app.needed_files,
        required.app.preload.files,
        optional.app.preload.files,
    ] {
        assert_eq!(found, ["/a", "/b"].map(PathBuf::from));
    }
}

#[test]
fn attributes_of_app_override_those_of_job() {
    let job = [
        ("wdir", "/job"),
        ("host", "n1"),
        ("env", "A=job"),
        ("npernode", "2"),
    ];
    let own = [("wdir", "/own"), ("hostfile", "/hosts"), ("env", "A=own")];
    let infos = |pairs: &[(&str, &str)]| -> Vec<SpawnInfo> {
        pairs
            .iter()
            .map(|(key, value)| info(key, value, true))
            .collect()
    };
    let of_app = |own: &[(&str, &str)]| {
        SpawnAttributes::from_app_infos(&infos(&job), &infos(own), AppRequest::default()).unwrap()
    };
    let own = of_app(&own);
    assert_eq!(own.wdir, Some("/own".into()));
    assert_eq!(
        (own.hosts.len(), own.hostfiles.len(), own.per_node),
        (0, 1, Some(2))
    );
    let mut variables = Vec::new();
    own.app
        .env_changes
        .iter()
        .for_each(|change| change.apply(&mut variables));
    assert_eq!(variables, [("A".into(), "own".into())]);
    assert_eq!(of_app(&[]).wdir, Some("/job".into()));
}

#[test]
fn every_documented_attribute_is_honoured() {
    for key in supported_attributes().split(',') {
        let values = [
            "1",
            "node",
            "none",
            "A=1",
            ":A=1",
            "ppr:1:node",
            "true",
            "job:0",
        ];
        let honoured = values.iter().any(|value| {
            let info = SpawnInfo {
                key: key.to_owned(),
                value: (*value).to_owned(),
                required: true,
            };
            SpawnAttributes::from_infos(&[info]).is_ok()
        });
        assert!(honoured, "{key}");
    }
}

#[test]
fn settings_of_ranks_parse_like_options() {
    let app = |pairs: &[(&str, &str)]| wishes(pairs).app;
    assert_eq!(app(&[("umask", "027")]).umask, Some(0o27));
    let limits = app(&[("rlimit", "nofile=64\ncore=0:1")]).limits;
    assert_eq!(
        limits.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["nofile=64", "core=0:1"]
    );
    let wrap = app(&[("wrap_ranks", "0,2"), ("wrap", "nice -n 1")])
        .wrap
        .unwrap();
    assert_eq!(wrap.command, "nice -n 1");
    assert_eq!(wrap.ranks, Some("0,2".parse().unwrap()));
    assert!(app(&[("rank_tmpdir", "true")]).rank_tmpdir);
    let env = app(&[("env", "none\nHOME\nLC_*\nA=1")]);
    assert_eq!(env.inherited, EnvInheritance::None);
    assert_eq!(env.env, ["HOME", "LC_*"]);
    assert_eq!(
        app(&[("env_file", "vars")]).env_files,
        [PathBuf::from("vars")]
    );
    for (key, value, needed) in [
        ("umask", "9", "an octal number"),
        ("rlimit", "files=1", "unknown resource limit"),
        ("wrap_ranks", "1", "give one with wrap"),
        ("env", ",", "names separated by commas"),
        ("mem_bind", "far", "none, local, prefer or interleave"),
        ("bind_to", "cpu-list:3-1", "the CPUs of each rank"),
        ("gpus_per_rank", "0", "from 1 on"),
    ] {
        let failure = refused(key, value);
        assert!(
            failure.text.starts_with(&format!("info key {key}: ")) && failure.text.contains(needed),
            "{}",
            failure.text
        );
    }
}

#[test]
fn wrapper_of_spawning_program_is_kept_or_replaced() {
    let template = AppRequest {
        wrap: Some(WrapSpec {
            command: "strace".into(),
            ranks: None,
        }),
        umask: Some(0o77),
        ..AppRequest::default()
    };
    let of = |own: &[(&str, &str)]| {
        let own: Vec<_> = own
            .iter()
            .map(|(key, value)| info(key, value, true))
            .collect();
        SpawnAttributes::from_app_infos(&[], &own, template.clone())
            .unwrap()
            .app
    };
    assert_eq!(of(&[]), template);
    assert_eq!(of(&[("wrap", "")]).wrap, None);
    assert_eq!(of(&[("wrap", "env")]).wrap.unwrap().command, "env");
    assert_eq!(of(&[("umask", "0")]).umask, Some(0));
}

#[test]
fn memory_and_openmp_follow_bound_cpus() {
    let spec = |infos: &[(&str, &str)]| {
        let wishes = wishes(infos);
        wishes
            .binding
            .spec(&BindingSpec::default(), MapBy::Slot, None)
    };
    let bound = spec(&[
        ("bind_to", "core"),
        ("mem_bind", "local"),
        ("openmp", "true"),
    ])
    .unwrap();
    assert_eq!((bound.memory, bound.openmp), (MemBind::Local, true));
    assert_eq!(
        spec(&[("gpus_per_rank", "2")]).unwrap().gpus_per_rank,
        Some(2)
    );
    for key in ["mem_bind", "openmp"] {
        let value = if key == "openmp" { "true" } else { "prefer" };
        let failure = spec(&[(key, value)]).unwrap_err();
        assert!(
            failure.text.starts_with(&format!("info key {key}: ")),
            "{}",
            failure.text
        );
    }
}
