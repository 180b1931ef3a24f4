//! Ranks in containers that the user's own command makes, one for each rank, which the hook makes ready.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::common::{Mpi, Run, mpi};
use crate::images::Images;

/// A script for a rank that executes its arguments in a container.
fn script(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Without the second version of control groups, which crun does not take beside the first.
const SEPARATED: &str = "[ ! -e /sys/fs/cgroup/unified/cgroup.controllers ] || umount -l /sys/fs/cgroup/unified && \
     mount -n -t tmpfs none /sys/fs/cgroup/unified";

/// podman with these options, and the hook where it is called with `hooks`.
fn podman(images: &Images, options: &str) -> PathBuf {
    let Images { cluster, root } = images;
    let hooks = cluster.dir().join("hooks");
    fs::create_dir_all(&hooks).unwrap();
    let mut print = cluster.host(0).command(cluster.wireup());
    let printed = print.args(["oci-hook", "--print"]).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    fs::write(hooks.join("wireup.json"), printed.stdout).unwrap();
    let (hooks, root) = (hooks.display(), root.display());
    let text = format!(
        "exec unshare -m sh -c '{SEPARATED}; exec podman run --rm --cgroups no-conmon --env-host --log-driver none ${{PMI_FD:+--preserve-fds 1}} \
         --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --hooks-dir {hooks} {options} --rootfs {root} \"$@\"' sh \"$@\""
    );
    script(cluster, "podman-rank", &text)
}

const NAMESPACES: &str =
    "--pid host --network host --ipc private --annotation org.wireup.ranks=yes";

/// crun with a bundle for each rank.
fn crun(images: &Images) -> PathBuf {
    let Images { cluster, root } = images;
    let maker = format!(
        r#"
import json, os, sys
mount = lambda kind, at, *options: {{"type": kind, "source": kind, "destination": at, "options": list(options)}}
hook = {{"path": "{wireup}", "args": ["wireup", "oci-hook"]}}
json.dump({{
    "ociVersion": "1.0.2",
    "process": {{"terminal": False, "user": {{"uid": 0, "gid": 0}}, "cwd": "/", "args": sys.argv[2:],
        "env": [name + "=" + value for name, value in os.environ.items()]}},
    "root": {{"path": "{root}"}},
    "annotations": {{"org.wireup.ranks": "yes"}},
    "mounts": [mount("proc", "/proc"), mount("tmpfs", "/dev", "mode=755"), mount("tmpfs", "/dev/shm", "mode=1777"),
        {{"type": "bind", "source": "/sys", "destination": "/sys", "options": ["rbind", "ro"]}}],
    "hooks": {{"createContainer": [hook]}},
    "linux": {{"namespaces": [{{"type": "mount"}}]}},
}}, open(sys.argv[1] + "/config.json", "w"))
"#,
        wireup = cluster.wireup().display(),
        root = root.display(),
    );
    let maker_at = cluster.dir().join("bundle.py");
    fs::write(&maker_at, maker).unwrap();
    let bundles = cluster.dir().join("bundles");
    fs::create_dir_all(&bundles).unwrap();
    let (maker, bundles) = (maker_at.display(), bundles.display());
    let text = format!(
        "name=$WIREUP_JOB_ID.$WIREUP_RANK; mkdir {bundles}/$name; python3 {maker} {bundles}/$name \"$@\" || exit; \
         exec unshare -m sh -c '{SEPARATED}; exec crun run ${{PMI_FD:+--preserve-fds 1}} --bundle {bundles}/'$name' '$name"
    );
    script(cluster, "crun-rank", &text)
}

/// Messages of 1 MiB between the ranks of two hosts, each in a container of its own.
fn ring(images: &Images, mpi: &Mpi, runtime: &Path, pmi: &str) {
    let list = [
        "--hosts",
        "node01:2,node02:2",
        "-n",
        "4",
        "--oversubscribe",
        "--pmi",
        pmi,
    ];
    let run = images
        .cluster
        .run(0, list)
        .more([runtime, Path::new("/opt/app/ring")]);
    let env = mpi.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.deadline(Duration::from_secs(120)).run();
    outcome.expect_success().by_rank("ring", 4);
}

#[test]
fn ranks_in_containers_of_their_own_find_pmix_and_shared_memory() {
    for (name, pmi) in [
        ("openmpi4", "pmix"),
        ("openmpi5", "pmix"),
        ("mpich5", "pmi1"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let Some(images) = Images::new(&[mpi.program("ring")]) else {
            return;
        };
        ring(&images, &mpi, &podman(&images, NAMESPACES), pmi);
        ring(&images, &mpi, &crun(&images), pmi);
    }
}

/// What a rank in podman with these options says, and its code.
fn one(images: &Images, options: &str, code: i32) -> String {
    let podman = podman(images, options);
    let run: Run = images
        .cluster
        .run(0, ["--hosts", "node01:1", "-n", "1", "--pmi", "pmix"]);
    let script = "ls -d $PMIX_SERVER_TMPDIR 2>&1 | sed 's/.*No such/No such/'; grep -c ' /dev/shm ' /proc/self/mountinfo";
    let outcome = run
        .more([podman.as_os_str()])
        .more(["sh", "-c", script])
        .run()
        .expect(code);
    outcome.out() + &outcome.err()
}

#[test]
fn only_containers_that_ask_for_it_get_anything_of_the_host() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let without = one(&images, "--pid host --network host", 0);
    assert!(without.contains("No such file"), "{without}");
    let with = one(&images, NAMESPACES, 0);
    assert!(with.contains("/server\n"), "{with}");
}

#[test]
fn a_container_with_a_pid_namespace_of_its_own_is_refused() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let said = images.cluster.dir().join("said");
    let options =
        "--network host --annotation org.wireup.ranks=yes --annotation run.oci.hooks.stderr=";
    let options = format!("{options}{}", said.display());
    one(&images, &options, 126);
    let said = fs::read_to_string(said).unwrap();
    let line = "wireup: the container has a pid namespace of its own, in which MPIs fail; start it with that of the \
                host (--pid host)\n";
    assert_eq!(said, line);
}
