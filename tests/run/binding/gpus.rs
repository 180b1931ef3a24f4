//! The GPUs and NICs near ranks: how they are named, and the variables by which the libraries of each maker find them.

use super::limits::with_gpus;
use super::machine;
use crate::common::Run;
use crate::common::topology::{AMD, INTEL, NVIDIA};

#[test]
fn near_nics_and_gpus_are_named_to_ranks() {
    let of = |name: &str, run: Run| {
        run.env("HWLOC_XMLFILE", machine(name))
            .run()
            .expect(0)
            .out()
    };
    let topo = [crate::common::wireup().into_os_string(), "topo".into()];
    let shown = of("gpu8", Run::command(topo));
    // Below the part that they are near.
    let (first, second) = shown.split_once("package 1, NUMA node 1: ").unwrap();
    let lines = "  NVIDIA GPU 0000:40:00.0 (renderD131)\n  Mellanox NIC 0000:05:00.0 (mlx5_0)\n";
    assert!(first.contains(lines), "{shown}");
    let lines = "  NVIDIA GPU 0000:c0:00.0 (renderD135)\n  Mellanox NIC 0000:15:00.0 (mlx5_1)\n";
    assert!(second.contains(lines), "{shown}");
    let plan = |name: &str, options: &[&str]| {
        let words = [
            &["--hosts", "localhost:64", "-n", "2", "--dry-run"],
            options,
        ];
        of(name, Run::new(words.concat()).more(["true"]))
    };
    let map = ["--map-by", "package", "--bind-to", "core"];
    let line =
        |rank: &str, gpus: &str, nic: &str| format!("{rank}; near GPUs {gpus}; near NIC {nic}\n");
    let shown = plan("gpu8", &map);
    for line in [
        line(
            "rank 0: core 0 of NUMA node 0, package 0 (CPUs 0,128)",
            "renderD128, renderD129, renderD130, renderD131",
            "mlx5_0",
        ),
        line(
            "rank 1: core 64 of NUMA node 1, package 1 (CPUs 64,192)",
            "renderD132, renderD133, renderD134, renderD135",
            "mlx5_1",
        ),
    ] {
        assert!(shown.contains(&line), "{shown}");
    }
    // A rank with GPUs of its own has these named, and the NIC as before; so does a host with one of each.
    let shown = plan("gpu8", &[&map[..], &["--gpus-per-rank", "1"]].concat());
    let line = "(CPUs 64,192), NVIDIA GPU 0000:90:00.0 (renderD132); near NIC mlx5_1\n";
    assert!(shown.contains(line), "{shown}");
    let shown = plan("gracehopper", &map);
    let line = "(CPU 72); near GPU renderD129; near NIC hsn1\n";
    assert!(shown.contains(line), "{shown}");
}

/// Prints what a rank has of the variables that name GPUs.
const SHOW: [&str; 3] = [
    "sh",
    "-c",
    "env | grep -E '^(CUDA|ROCR|HIP|ZE)_' | sort | sed \"s/^/$WIREUP_RANK /\"",
];

/// Returns the output of two ranks with a GPU each, on a machine with two of this type.
fn shown(ids: &str, options: &[&str], set: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let own = ["--oversubscribe", "--gpus-per-rank", "1"];
    let run = Run::ranks(2, [&own, options, &SHOW].concat());
    let run = set
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    let files = "mknod -m 666 renderD128 c 1 3; mknod -m 666 renderD129 c 1 3";
    let outcome = with_gpus(run, ids, dir.path(), files).run();
    outcome.expect(0).sorted_lines()
}

#[test]
fn ranks_get_gpus_by_variables_of_vendor() {
    for (ids, lines) in [
        (
            AMD,
            &["0 ROCR_VISIBLE_DEVICES=0", "1 ROCR_VISIBLE_DEVICES=1"][..],
        ),
        (
            NVIDIA,
            &[
                "0 CUDA_DEVICE_ORDER=PCI_BUS_ID",
                "0 CUDA_VISIBLE_DEVICES=0",
                "1 CUDA_DEVICE_ORDER=PCI_BUS_ID",
                "1 CUDA_VISIBLE_DEVICES=1",
            ],
        ),
        (
            INTEL,
            &[
                "0 ZE_AFFINITY_MASK=0",
                "0 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
                "1 ZE_AFFINITY_MASK=1",
                "1 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1",
            ],
        ),
    ] {
        assert_eq!(shown(ids, &["--bind-to", "core"], &[]), lines);
        assert_eq!(shown(ids, &["--virtual-nodes", "2"], &[]), lines);
    }
}

#[test]
fn gpu_list_from_environment_is_kept() {
    for (ids, name, value) in [
        (NVIDIA, "CUDA_VISIBLE_DEVICES", "1,0"),
        (NVIDIA, "CUDA_VISIBLE_DEVICES", "MIG-4f9d3a"),
        (AMD, "ROCR_VISIBLE_DEVICES", "1"),
        (AMD, "HIP_VISIBLE_DEVICES", "1"),
        (INTEL, "ZE_AFFINITY_MASK", "1.0"),
    ] {
        let expected = [0, 1].map(|rank| format!("{rank} {name}={value}"));
        assert_eq!(shown(ids, &[], &[(name, value)]), expected);
        let option = format!("{name}={value}");
        assert_eq!(shown(ids, &["-x", &option], &[]), expected);
    }
    // One of another maker's names none of these GPUs.
    let expected = ["0", "1"].map(|rank| {
        let own = format!("{rank} ROCR_VISIBLE_DEVICES={rank}");
        [format!("{rank} CUDA_VISIBLE_DEVICES=7"), own]
    });
    let shown = shown(AMD, &[], &[("CUDA_VISIBLE_DEVICES", "7")]);
    assert_eq!(shown, expected.concat());
}
