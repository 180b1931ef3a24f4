use super::*;
use crate::job::rankfile::Rankfile;
use crate::topology::tests::machine;

fn spec(to: ObjectType, map: MapWithinHost) -> BindingSpec {
    BindingSpec {
        to: BindTo::Level(to),
        map,
        ..BindingSpec::default()
    }
}

fn ranks(count: u32) -> Vec<Rank> {
    (0..count).map(Rank).collect()
}

fn bound(name: &str, spec: &BindingSpec, count: u32) -> Result<HostBinding, BindingError> {
    HostBinding::new(Arc::new(machine(name)), None, spec, &ranks(count), 0, false)
}

/// The parts of a level of each rank.
fn parts(binding: &HostBinding, level: ObjectType) -> Vec<String> {
    let numbers = |cpus| ranges(binding.topology.numbers_of(level, cpus));
    binding
        .ranks()
        .iter()
        .map(|(_, cpus)| numbers(cpus))
        .collect()
}

const ORDER: MapWithinHost = MapWithinHost::InOrder;

#[test]
fn ranks_get_consecutive_cores() {
    let binding = bound("gpu8", &spec(ObjectType::Core, ORDER), 3).unwrap();
    // A core has two CPUs, whose numbers are far apart.
    let cpus = |rank| binding.cpus_of(Rank(rank)).unwrap().to_string();
    assert_eq!([cpus(0), cpus(1), cpus(2)], ["0,128", "1,129", "2,130"]);
    let binding = bound("gpu8", &spec(ObjectType::Hwthread, ORDER), 3).unwrap();
    let cpus = |rank| binding.cpus_of(Rank(rank)).unwrap().to_string();
    assert_eq!([cpus(0), cpus(1), cpus(2)], ["0", "128", "1"]);
    assert_eq!(
        binding.place(binding.cpus_of(Rank(1)).unwrap()),
        "hardware thread 1 of NUMA node 0, package 0 (CPU 128)"
    );
}

#[test]
fn neighbours_share_objects_evenly() {
    let over_numa = MapWithinHost::Over(ObjectType::Numa);
    let binding = bound("numa4", &spec(ObjectType::Core, over_numa), 10).unwrap();
    let numa = parts(&binding, ObjectType::Numa);
    assert_eq!(numa, ["0", "0", "1", "1", "2", "3", "4", "5", "6", "7"]);
    let cores = parts(&binding, ObjectType::Core);
    assert_eq!(cores[..4], ["0", "1", "8", "9"]);
    let binding = bound("numa4", &spec(ObjectType::Numa, over_numa), 10).unwrap();
    assert_eq!(parts(&binding, ObjectType::Core)[2], "8-15");
    let each = MapWithinHost::Each(2, ObjectType::Package);
    let binding = bound("numa4", &spec(ObjectType::L3, each), 4).unwrap();
    assert_eq!(
        parts(&binding, ObjectType::Core),
        ["0-3", "0-3", "32-35", "32-35"]
    );
}

#[test]
fn ranks_of_each_object_need_room_only_in_it() {
    // NUMA nodes of 8 cores with 2 hardware threads each.
    let bind = |each, count| {
        let spec = spec(
            ObjectType::Core,
            MapWithinHost::Each(each, ObjectType::Numa),
        );
        bound("numa4", &spec, count)
    };
    assert!(bind(9, 8).is_ok());
    assert!(bind(9, 9 + 8).unwrap_err().to_string().starts_with(
        "--map-by ppr: 9 ranks with 1 core each on a NUMA node need 9, but only 8 of it may be used; use --bind-to hwthread, use a smaller number"
    ));
}

#[test]
fn rank_with_several_cores_stays_in_one_numa_node() {
    let mut three = spec(ObjectType::Core, ORDER);
    three.cpus_per_rank = 3;
    let binding = bound("numa4", &three, 4).unwrap();
    assert_eq!(
        parts(&binding, ObjectType::Core),
        ["0-2", "3-5", "8-10", "11-13"]
    );
    // Two fit into each NUMA node; with more the packages count, and then nothing.
    let binding = bound("numa4", &three, 17).unwrap();
    assert_eq!(parts(&binding, ObjectType::Core)[2], "6-8");
    assert_eq!(parts(&binding, ObjectType::Package)[10], "1");
    let binding = bound("numa4", &three, 21).unwrap();
    assert_eq!(parts(&binding, ObjectType::Package)[10], "0-1");
}

#[test]
fn fast_cores_are_given_first() {
    let binding = bound("hybrid", &spec(ObjectType::Core, ORDER), 14).unwrap();
    assert_eq!(binding.cpus_of(Rank(0)).unwrap().to_string(), "0-1");
    assert_eq!(binding.cpus_of(Rank(6)).unwrap().to_string(), "12");
    let why = binding.reasons.join("\n");
    assert!(why.contains("IntelCore (CPUs 0-11)"), "{why}");
    // Where slow ones come first in the host, the ranks begin with the others.
    let mut turned = machine("hybrid");
    for kind in &mut turned.kinds {
        kind.efficiency = kind.efficiency.map(|speed| 1 - speed);
    }
    let spec = spec(ObjectType::Core, ORDER);
    let binding = HostBinding::new(Arc::new(turned), None, &spec, &ranks(9), 0, false).unwrap();
    assert_eq!(binding.cpus_of(Rank(0)).unwrap().to_string(), "12");
    assert_eq!(binding.cpus_of(Rank(8)).unwrap().to_string(), "0-1");
}

#[test]
fn memory_of_gpu_gets_no_ranks() {
    let map = MapWithinHost::Over(ObjectType::Numa);
    let binding = bound("gracehopper", &spec(ObjectType::Numa, map), 4).unwrap();
    assert_eq!(binding.topology.parts(ObjectType::Numa).len(), 4);
    assert_eq!(parts(&binding, ObjectType::Package), ["0", "1", "2", "3"]);
    let gpus = binding.topology.devices.iter();
    let near: Vec<_> = gpus.map(|device| device.near.to_string()).collect();
    assert_eq!(near[..3], ["0-71", "0-71", "72-143"]);
}

#[test]
fn binding_uses_only_cpus_allowed_on_host() {
    let limit: CpuSet = "2-3,66-69,72".parse().unwrap();
    let topology = Arc::new(machine("numa4"));
    let bind = |spec: &BindingSpec, count| {
        let topology = Arc::clone(&topology);
        HostBinding::new(topology, Some(&limit), spec, &ranks(count), 0, false)
    };
    let binding = bind(&spec(ObjectType::Core, ORDER), 5).unwrap();
    let cpus: Vec<_> = binding
        .ranks()
        .iter()
        .map(|(_, cpus)| cpus.to_string())
        .collect();
    assert_eq!(cpus, ["2,66", "3,67", "68", "69", "72"]);
    let binding = bind(
        &spec(ObjectType::Numa, MapWithinHost::Over(ObjectType::Numa)),
        2,
    )
    .unwrap();
    let cpus: Vec<_> = binding
        .ranks()
        .iter()
        .map(|(_, cpus)| cpus.to_string())
        .collect();
    assert_eq!(cpus, ["2-3,66-69", "72"]);
    assert!(matches!(
        bind(&spec(ObjectType::Core, ORDER), 6),
        Err(BindingError::TooFew { have: 5, .. })
    ));
    let list = |cpus: &str| BindingSpec {
        to: BindTo::List(vec![cpus.parse().unwrap()]),
        ..BindingSpec::default()
    };
    let absent = bind(&list("2,400"), 1).unwrap_err();
    assert!(matches!(absent, BindingError::NoSuchCpu { cpu: 400, .. }));
    let barred = bind(&list("2,5"), 1).unwrap_err();
    assert!(matches!(barred, BindingError::NotAllowed { cpu: 5, .. }));
    let mut partly = (*topology).clone();
    partly.offline = "400".parse().unwrap();
    let partly = HostBinding::new(partly.into(), None, &list("400"), &ranks(1), 0, false);
    assert!(matches!(
        partly,
        Err(BindingError::Offline { cpu: 400, .. })
    ));
    let nothing: CpuSet = "500".parse().unwrap();
    let spec = spec(ObjectType::Core, ORDER);
    let none = HostBinding::new(topology.clone(), Some(&nothing), &spec, &ranks(1), 0, false);
    assert_eq!(none, Err(BindingError::NoCpus));
}

#[test]
fn binding_errors_name_available_cpus_and_remedy() {
    let text = |result: Result<HostBinding, BindingError>| result.unwrap_err().to_string();
    let many = text(bound("numa4", &spec(ObjectType::Core, ORDER), 65));
    assert!(
        many.contains("65 ranks with 1 core each need 65, but only 64 may be used"),
        "{many}"
    );
    assert!(many.contains("--bind-to hwthread"), "{many}");
    let full = text(bound(
        "numa4",
        &spec(
            ObjectType::Core,
            MapWithinHost::Each(1, ObjectType::Package),
        ),
        3,
    ));
    assert!(full.contains("do not fit with 1 on each package"), "{full}");
    let none = text(bound("gpu8", &spec(ObjectType::L2, ORDER), 1));
    assert!(none.contains("no L2 cache"), "{none}");
    let mut wide = spec(ObjectType::Core, MapWithinHost::Over(ObjectType::L3));
    wide.cpus_per_rank = 5;
    let wide = text(bound("numa4", &wide, 1));
    assert!(wide.contains("5 cores each"), "{wide}");
}

#[test]
fn ranks_allowed_to_share_start_over_at_first_core() {
    let topology = Arc::new(machine("hybrid"));
    let spec = spec(ObjectType::Core, ORDER);
    let bind = |before, share, count| {
        let topology = Arc::clone(&topology);
        let binding = HostBinding::new(topology, None, &spec, &ranks(count), before, share);
        parts(&binding.unwrap(), ObjectType::Core)
    };
    assert_eq!(bind(0, true, 16)[13..], ["13", "0", "1"]);
    // Spawned ranks come behind those before them.
    assert_eq!(bind(2, false, 2), ["2", "3"]);
    assert_eq!(bind(13, false, 2), ["13", "0"]);
}

#[test]
fn surplus_ranks_in_wide_objects_get_one_hardware_thread_each() {
    let binding = bound("numa4", &spec(ObjectType::Package, ORDER), 66).unwrap();
    assert_eq!(parts(&binding, ObjectType::Package)[63..], ["0", "1", "1"]);
    let two = spec(
        ObjectType::Hwthread,
        MapWithinHost::Each(2, ObjectType::Core),
    );
    let binding = bound("numa4", &two, 4).unwrap();
    let cpus: Vec<_> = binding
        .ranks()
        .iter()
        .map(|(_, cpus)| cpus.to_string())
        .collect();
    assert_eq!(cpus, ["0", "64", "1", "65"]);
}

#[test]
fn cpu_list_gives_entries_to_ranks_cyclically() {
    let list = BindingSpec {
        to: BindTo::List(vec!["0-1".parse().unwrap(), "5".parse().unwrap()]),
        ..BindingSpec::default()
    };
    let binding = bound("hybrid", &list, 3).unwrap();
    let cpus: Vec<_> = binding
        .ranks()
        .iter()
        .map(|(_, cpus)| cpus.to_string())
        .collect();
    assert_eq!(cpus, ["0-1", "5", "0-1"]);
}

#[test]
fn every_mapping_on_every_machine_gives_ranks_disjoint_cpus() {
    for name in ["gpu8", "hybrid", "gracehopper", "numa4"] {
        let cores = machine(name).parts(ObjectType::Core).len() as u32;
        for level in ObjectType::ALL {
            for count in [1, 2, 3, 7, cores] {
                let spec = spec(ObjectType::Core, MapWithinHost::Over(level));
                let binding = match bound(name, &spec, count) {
                    Ok(binding) => binding,
                    Err(BindingError::NoSuchPart(_)) => continue,
                    Err(error) => panic!("{name} {level} {count}: {error}"),
                };
                if level == ObjectType::Hwthread {
                    // Two of these are in one core.
                    continue;
                }
                let all = binding.ranks().iter();
                let sum: u32 = all.clone().map(|(_, cpus)| cpus.len()).sum();
                let union = all.fold(CpuSet::default(), |all, (_, cpus)| all.or(cpus));
                assert_eq!(union.len(), sum, "{name} {level} {count}");
                assert_eq!(binding.ranks().len(), count as usize);
            }
        }
    }
}

#[test]
fn binding_picture_has_row_for_each_numa_node() {
    let over = MapWithinHost::Over(ObjectType::Package);
    let binding = bound("hybrid", &spec(ObjectType::Core, ORDER), 3).unwrap();
    assert_eq!(
        binding.picture(),
        ["package 0, NUMA node 0: [0][1][2][.][.][.][.][.][.][.][.][.][.][.]"]
    );
    let binding = bound("numa4", &spec(ObjectType::Package, over), 4).unwrap();
    let picture = binding.picture();
    assert_eq!(picture.len(), 8);
    assert_eq!(picture[0], "package 0, NUMA node 0: 8 cores [0-1]");
    assert_eq!(picture[7], "package 1, NUMA node 7: 8 cores [2-3]");
    let threads = bound("numa4", &spec(ObjectType::Hwthread, ORDER), 3).unwrap();
    let row = "package 0, NUMA node 0: [0|1][2|.][.]  [.]  [.]  [.]  [.]  [.]";
    assert_eq!(threads.picture()[0], row);
    let first = "0".parse().unwrap();
    let limited = HostBinding::new(
        Arc::new(machine("hybrid")),
        Some(&first),
        &spec(ObjectType::Core, ORDER),
        &ranks(1),
        0,
        false,
    );
    assert!(limited.unwrap().picture()[0].starts_with("package 0, NUMA node 0: [0|-][-]  [-]"));
}

#[test]
fn ranks_get_nearest_free_gpus() {
    let mut two = spec(ObjectType::Core, MapWithinHost::Over(ObjectType::Package));
    two.gpus_per_rank = Some(2);
    let binding = bound("gpu8", &two, 4).unwrap();
    let numbers = |binding: &HostBinding, rank| -> Vec<u32> {
        let gpus = binding.gpus_of(Rank(rank)).unwrap().iter();
        gpus.map(|gpu| gpu.number).collect()
    };
    let all: Vec<_> = (0..4).map(|rank| numbers(&binding, rank)).collect();
    assert_eq!(all, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    // All ranks are on the first package: its GPUs, then those of the other.
    two.map = ORDER;
    let binding = bound("gpu8", &two, 3).unwrap();
    let all: Vec<_> = (0..3).map(|rank| numbers(&binding, rank)).collect();
    assert_eq!(all, [[0, 1], [2, 3], [4, 5]]);
    let refused = bound("gpu8", &two, 5).unwrap_err().to_string();
    assert!(
        refused.contains("10 GPUs are needed (2 for each rank), but this host has only 8"),
        "{refused}"
    );
    two.gpus_per_rank = Some(1);
    let topology = Arc::new(machine("gracehopper"));
    let over = spec(ObjectType::Numa, MapWithinHost::Over(ObjectType::Numa));
    let one = BindingSpec {
        gpus_per_rank: Some(1),
        ..over
    };
    let shared = HostBinding::new(topology, None, &one, &ranks(8), 0, true).unwrap();
    // In the order of the bus the GPU of the first package is the last.
    let gpus: Vec<_> = (0..8).map(|rank| numbers(&shared, rank)[0]).collect();
    assert_eq!(gpus, [3, 3, 0, 0, 1, 1, 2, 2]);
    let unbound = BindingSpec {
        gpus_per_rank: Some(1),
        ..BindingSpec::default()
    };
    let binding = bound("gpu8", &unbound, 8).unwrap();
    assert_eq!(
        (numbers(&binding, 7), binding.cpus_of(Rank(7))),
        (vec![7], None)
    );
    assert_eq!(
        GpuVendor::Nvidia.variables("4,5")[1],
        ("CUDA_VISIBLE_DEVICES", "4,5".to_owned())
    );
}

#[test]
fn memory_and_threads_follow_bound_cpus() {
    let map = MapWithinHost::Over(ObjectType::Package);
    let binding = bound("gracehopper", &spec(ObjectType::Package, map), 2).unwrap();
    assert_eq!(binding.memory_of(Rank(1)), None);
    let second = binding.cpus_of(Rank(1)).unwrap();
    assert_eq!(binding.cores_within(second).len(), 72);
    for (name, memory, nodes) in [
        ("gracehopper", MemBind::Local, &[1][..]),
        ("numa4", MemBind::Local, &[4, 5, 6, 7]),
        ("numa4", MemBind::Prefer, &[4]),
        ("numa4", MemBind::Interleave, &[4, 5, 6, 7]),
    ] {
        let spec = BindingSpec {
            memory,
            ..spec(ObjectType::Package, map)
        };
        let binding = bound(name, &spec, 2).unwrap();
        let expected = Some((memory, nodes.to_vec()));
        assert_eq!(binding.memory_of(Rank(1)), expected, "{name}");
    }
    let binding = bound("numa4", &spec(ObjectType::Hwthread, ORDER), 1).unwrap();
    let places = binding.cores_within(binding.cpus_of(Rank(0)).unwrap());
    assert_eq!(places, ["0".parse().unwrap()]);
}

#[test]
fn rankfile_gives_each_rank_its_cores() {
    let text = "rank 0=a slot=0-1,4\nrank 1=a slot=1:0,2\nrank 2=a slot=0:8-9\nrank 3=b slot=P1\n";
    let slots = Rankfile::parse(text.as_bytes()).unwrap().slots.unwrap();
    let spec = |unit| BindingSpec {
        to: BindTo::Slots(unit, slots.clone()),
        ..BindingSpec::default()
    };
    let topology = Arc::new(machine("numa4"));
    let bind = |unit, limit: Option<&CpuSet>, ranks: &[u32], share| {
        let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
        let topology = Arc::clone(&topology);
        HostBinding::new(topology, limit, &spec(unit), &ranks, 0, share)
    };
    let binding = bind(ObjectType::Core, None, &[0, 1, 2], false).unwrap();
    assert_eq!(parts(&binding, ObjectType::Core), ["0-1,4", "32,34", "8-9"]);
    assert_eq!(binding.cpus_of(Rank(1)).unwrap().to_string(), "32,34,96,98");
    let binding = bind(ObjectType::Hwthread, None, &[0, 1], false).unwrap();
    assert_eq!(binding.cpus_of(Rank(0)).unwrap().to_string(), "0,2,64");
    let binding = bind(ObjectType::Core, None, &[3], false).unwrap();
    assert_eq!(parts(&binding, ObjectType::Package), ["1"]);
    let error_text = |result: Result<HostBinding, BindingError>| result.unwrap_err().to_string();
    let common = error_text(bind(ObjectType::Core, None, &[1, 3], false));
    assert!(
        common.contains("ranks 1 and 3 have a CPU in common"),
        "{common}"
    );
    assert!(bind(ObjectType::Core, None, &[1, 3], true).is_ok());
    let limit: CpuSet = "0-3,96".parse().unwrap();
    let barred = error_text(bind(ObjectType::Core, Some(&limit), &[0], false));
    assert!(
        barred.contains("CPU 4 is not in the affinity mask"),
        "{barred}"
    );
    // Of a whole package those that may be used.
    let binding = bind(ObjectType::Core, Some(&limit), &[3], false).unwrap();
    assert_eq!(binding.cpus_of(Rank(3)).unwrap().to_string(), "96");
    let unlisted = error_text(bind(ObjectType::Core, None, &[4], false));
    assert!(
        unlisted.contains("rank 4 has no CPU that may be used"),
        "{unlisted}"
    );
    for (list, needed) in [
        ("64", "no core 64: the host has 64"),
        ("1:32", "no core 32 in package 1: the host has 32"),
        ("2:0", "no package 2: the host has 2"),
    ] {
        let text = format!("rank 0=a slot={list}");
        let slots = Rankfile::parse(text.as_bytes()).unwrap().slots.unwrap();
        let spec = BindingSpec {
            to: BindTo::Slots(ObjectType::Core, slots),
            ..BindingSpec::default()
        };
        let none = error_text(bound("numa4", &spec, 1));
        assert!(none.contains(needed), "{none}");
    }
}
