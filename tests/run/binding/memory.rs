//! Placement of the memory of ranks: `numactl` in the ranks, and plans for hosts with several NUMA nodes.

use super::machine;
use crate::common::Run;

#[test]
fn memory_comes_from_requested_nodes() {
    for (place, policy) in [
        ("local", "bind"),
        ("prefer", "preferred"),
        ("interleave", "interleave"),
    ] {
        let words = [
            "--bind-to",
            "core",
            "--mem-bind",
            place,
            "numactl",
            "--show",
        ];
        let out = Run::ranks(1, words).run().expect(0).out();
        assert!(
            out.starts_with(&format!("policy: {policy}\n")),
            "{place}: {out}"
        );
        let key = match place {
            "local" => "membind: ",
            "prefer" => "preferred node: ",
            _ => "interleavemask: ",
        };
        let line = out.lines().find_map(|line| line.strip_prefix(key));
        assert_eq!(line.map(str::trim), Some("0"), "{place}: {out}");
    }
    Run::new(["-n", "1", "--mem-bind", "local", "true"])
        .run()
        .expect_one_line(&["--mem-bind follows the CPUs", "write --bind-to"]);
    let words = [
        "--bind-to",
        "core",
        "--mem-bind",
        "local",
        "--report-bindings",
        "true",
    ];
    let err = Run::ranks(1, words).run().expect(0).err();
    assert!(err.contains("; memory of NUMA node 0 alone"), "{err}");
}

#[test]
fn plan_names_numa_nodes_of_memory() {
    let plan = |name: &str, part: &str, options: &[&str]| {
        let own = [
            "--hosts",
            "localhost:64",
            "-n",
            "3",
            "--dry-run",
            "--map-by",
            part,
        ];
        let run = Run::new([&own, options, &["true"]].concat());
        let run = run.env("HWLOC_XMLFILE", machine(name)).run();
        run.expect(0).out()
    };
    for (name, part, place, expected) in [
        (
            "numa4",
            "numa",
            "local",
            "(CPUs 16-23,80-87); memory of NUMA node 2 alone",
        ),
        (
            "numa4",
            "numa",
            "prefer",
            "(CPUs 16-23,80-87); memory of NUMA node 2 first",
        ),
        (
            "numa4",
            "package",
            "local",
            "(CPUs 32-63,96-127); memory of NUMA nodes 4-7 alone",
        ),
        (
            "numa4",
            "package",
            "prefer",
            "(CPUs 32-63,96-127); memory of NUMA node 4 first",
        ),
        (
            "numa4",
            "package",
            "interleave",
            "(CPUs 32-63,96-127); memory of NUMA nodes 4-7 in turn",
        ),
        (
            "gracehopper",
            "package",
            "local",
            "; memory of NUMA node 2 alone",
        ),
    ] {
        let out = plan(name, part, &["--mem-bind", place]);
        let line = out.lines().find(|line| line.contains("rank 2: ")).unwrap();
        assert!(line.ends_with(expected), "{name} {place}: {out}");
    }
    assert!(!plan("numa4", "numa", &[]).contains("; memory of"));
}
