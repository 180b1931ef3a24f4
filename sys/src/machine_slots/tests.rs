use std::fs;
use std::path::PathBuf;

use super::*;

fn slots(affinity: u32, quota: Option<Quota>) -> SlotLimits {
    SlotLimits {
        affinity,
        quota: quota.into(),
    }
}

#[test]
fn smaller_of_mask_and_quota_counts_rounded_up() {
    let quota = |time| Quota::new(time, 100_000);
    assert_eq!(slots(8, None).count(), 8);
    assert_eq!(slots(8, quota(250_000)).count(), 3);
    assert_eq!(slots(2, quota(400_000)).count(), 2);
    assert_eq!(slots(8, quota(1_000)).count(), 1);
    assert_eq!(slots(8, quota(100_000)).count(), 1);
    assert_eq!(slots(8, quota(100_001)).count(), 2);
    assert_eq!(slots(8, quota(u64::MAX)).count(), 8);
    assert_eq!(Quota::new(1, 0), None);
}

#[test]
fn slots_are_shown_with_arithmetic() {
    let here = slots(2, Quota::new(400_000, 100_000));
    let many = SlotCalculation {
        online: Some(64),
        ..here.arithmetic()
    };
    assert_eq!(
        many.to_string(),
        "2 slots (affinity mask: 2 of 64 CPUs, cgroup limit: 4.0)"
    );
    let one = SlotCalculation {
        online: None,
        ..slots(1, None).arithmetic()
    };
    assert_eq!(
        one.to_string(),
        "1 slot (affinity mask: 1, no cgroup limit)"
    );
}

#[test]
fn quota_is_read_only_if_mask_does_not_decide() {
    let unknown = || SlotLimits {
        affinity: 4,
        quota: OnceLock::new(),
    };
    let many = unknown();
    assert!(many.exceeded_by(5));
    assert_eq!(many.quota.get(), None);
    let few = unknown();
    assert!(!few.exceeded_by(1));
    assert!(few.quota.get().is_some());
    let limited = slots(4, Quota::new(150_000, 100_000));
    assert!(!limited.exceeded_by(2) && limited.exceeded_by(3));
    assert!(slots(0, None).exceeded_by(2) && !slots(0, None).exceeded_by(1));
}

#[test]
fn lists_of_cpus_are_counted() {
    assert_eq!(count_list("0-3,8,10-11\n"), Some(7));
    assert_eq!(count_list("\t0"), Some(1));
    for bad in ["", "a", "3-1", "0-", "0-4294967295"] {
        assert_eq!(count_list(bad), None, "{bad:?}");
    }
}

/// Writes files below a directory and computes the quota with it as the mount point.
fn quota_of(files: &[(&str, &str)], cgroup: &str, mountinfo: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let point = directory.path().join("a mount");
    for (name, text) in files {
        let path: PathBuf = point.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let shown = point.to_str().unwrap().replace(' ', "\\040");
    let quota = quota_in(
        cgroup,
        &mounts_in(&mountinfo.replace("POINT", &shown)),
        read_text,
    );
    quota.map(|quota| quota.to_string())
}

const V2: &str = "31 23 0:28 / /sys rw - sysfs sysfs rw\n\
    41 31 0:38 / POINT rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "32 31 0:29 / POINT rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

#[test]
fn strictest_level_of_own_branch_counts_in_version_2() {
    let files = [
        ("cpu.max", "max 100000\n"),
        ("user/cpu.max", "150000 100000\n"),
        ("user/job/cpu.max", "400000 100000\n"),
        ("other/cpu.max", "1000 100000\n"),
    ];
    let at = |path: &str| quota_of(&files, &format!("1:name=systemd:/x\n0::{path}\n"), V2);
    assert_eq!(at("/user/job").as_deref(), Some("1.5"));
    assert_eq!(at("/user/job/deeper").as_deref(), Some("1.5"));
    assert_eq!(at("/"), None);
    assert_eq!(at("/../../other"), None, "outside of our namespace");
}

#[test]
fn version_1_needs_hierarchy_with_cpu_controller() {
    let files = [
        ("job/cpu.cfs_quota_us", "250000\n"),
        ("job/cpu.cfs_period_us", "100000\n"),
        ("cpu.cfs_quota_us", "-1\n"),
        ("cpu.cfs_period_us", "100000\n"),
    ];
    let cgroup = "4:memory:/m\n1:cpu,cpuacct:/job\n0::/\n";
    assert_eq!(quota_of(&files, cgroup, V1).as_deref(), Some("2.5"));
    assert_eq!(
        quota_of(&files, "1:cpu:/\n", V1),
        None,
        "no limit at the root"
    );
    let other = V1.replace("rw,cpu,cpuacct", "rw,cpuset");
    assert_eq!(quota_of(&files, cgroup, &other), None);
}

#[test]
fn container_with_partial_view_reads_mount_point() {
    let files = [
        ("cpu.max", "50000 100000"),
        ("docker/abc/cpu.max", "1000 100000"),
    ];
    let mounted = V2.replace("0:38 / POINT", "0:38 /docker/abc POINT");
    assert_eq!(
        quota_of(&files, "0::/docker/abc\n", &mounted).as_deref(),
        Some("0.5")
    );
    assert_eq!(
        quota_of(&files, "0::/docker/abcd\n", &mounted).as_deref(),
        Some("0.5")
    );
}

#[test]
fn usual_hierarchy_is_used_unless_it_may_be_partial() {
    let whole = |version| Hierarchy {
        version,
        whole: true,
    };
    let found = |cgroup: &str, there: &[(&str, Hierarchy)]| {
        let at = |point: &Path| {
            let mut there = there.iter();
            let found = there.find(|(name, _)| Path::new(name) == point);
            found.map(|(_, hierarchy)| *hierarchy)
        };
        usual_mount(cgroup, at).map(|mount| (mount.version, mount.point))
    };
    let (v1, v2) = (whole(CpuController::V1), whole(CpuController::V2));
    let at = |version, point: &str| Some((version, PathBuf::from(point)));
    let unified = [("/sys/fs/cgroup", v2)];
    let job = "0::/user/job\n";
    assert_eq!(
        found(job, &unified),
        at(CpuController::V2, "/sys/fs/cgroup")
    );
    // Container in which only its own part of the hierarchy is visible, with and without a cgroup namespace.
    let part = [("/sys/fs/cgroup", Hierarchy { whole: false, ..v2 })];
    assert_eq!(found(job, &part), None);
    assert_eq!(
        found("0::/\n", &part),
        at(CpuController::V2, "/sys/fs/cgroup")
    );
    let both = [
        ("/sys/fs/cgroup/unified", v2),
        ("/sys/fs/cgroup/cpu,cpuacct", v1),
    ];
    let hybrid = "4:cpu,cpuacct:/job\n0::/job\n";
    assert_eq!(
        found(hybrid, &both),
        at(CpuController::V1, "/sys/fs/cgroup/cpu,cpuacct")
    );
    let without_cpu = "4:memory:/job\n0::/job\n";
    assert_eq!(
        found(without_cpu, &both),
        at(CpuController::V2, "/sys/fs/cgroup/unified")
    );
    assert_eq!(found(hybrid, &unified), None);
    assert_eq!(found(job, &[]), None);
    assert_eq!(found("", &unified), None);
}

#[test]
fn both_paths_to_local_hierarchies_give_same_limit() {
    let text = |path: &str| read_text(Path::new(path)).unwrap_or_default();
    let cgroup = text("/proc/self/cgroup");
    if let Some(mount) = usual_mount(&cgroup, hierarchy_at) {
        let listed = mounts_in(&text("/proc/self/mountinfo"));
        assert_eq!(
            quota_in(&cgroup, &[mount], read_text),
            quota_in(&cgroup, &listed, read_text)
        );
    }
}

#[test]
fn unparsable_texts_do_not_limit() {
    for (file, text) in [
        ("cpu.max", ""),
        ("cpu.max", "x y"),
        ("cpu.max", "1 0"),
        ("no", ""),
    ] {
        assert_eq!(quota_of(&[(file, text)], "0::/\n", V2), None, "{text:?}");
    }
    assert_eq!(quota_of(&[("cpu.max", "1 1")], "", ""), None);
}

#[test]
fn mask_of_this_machine_has_as_many_cpus_as_nproc() {
    let output = std::process::Command::new("nproc")
        .env_remove("OMP_NUM_THREADS")
        .output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let here = SlotLimits::detect();
    assert!(here.count() >= 1 && here.count() <= here.affinity);
    // nproc of newer coreutils applies the quota too.
    let count: u32 = output.trim().parse().unwrap();
    assert!(
        count == here.affinity || count == here.count(),
        "{count}, {here:?}"
    );
}
