//! Ranks in containers that the user's own command makes, one for each rank, which the hook makes ready.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

use crate::cluster::Cluster;
use crate::common::{Mpi, Outcome, Run, mpi, pmix};
use crate::images::Images;

/// A script for a rank that executes its arguments in a container.
fn script(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Command that unmounts the second version of cgroups, which crun does not accept together with
/// the first.
const SEPARATED: &str = "[ ! -e /sys/fs/cgroup/unified/cgroup.controllers ] || umount -l /sys/fs/cgroup/unified && \
     mount -n -t tmpfs none /sys/fs/cgroup/unified";

/// podman with these options, and the hook with these of its own.
pub(crate) fn podman(images: &Images, options: &str, hook: &[String]) -> PathBuf {
    let Images { cluster, root } = images;
    let hooks = cluster.dir().join("hooks");
    fs::create_dir_all(&hooks).unwrap();
    let mut print = cluster.host(0).command(cluster.wireup());
    let printed = print.args(["oci-hook", "--print"]).args(hook).output();
    let printed = printed.unwrap();
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

/// crun with a bundle for each rank, and the hook with these options.
fn crun(images: &Images, hook: &[String]) -> PathBuf {
    let Images { cluster, root } = images;
    let maker = format!(
        r#"
import json, os, sys
mount = lambda kind, at, *options: {{"type": kind, "source": kind, "destination": at, "options": list(options)}}
hook = {{"path": "{wireup}", "args": ["wireup", "oci-hook"] + {hook:?}}}
json.dump({{
    "ociVersion": "1.0.2",
    "process": {{"terminal": False, "user": {{"uid": 0, "gid": 0}}, "cwd": "/", "args": sys.argv[2:],
        "env": [name + "=" + value for name, value in os.environ.items()]}},
    "root": {{"path": "{root}"}},
    "annotations": {{"org.wireup.ranks": "yes"{mpi}}},
    "mounts": [mount("proc", "/proc"), mount("tmpfs", "/dev", "mode=755"), mount("tmpfs", "/dev/shm", "mode=1777"),
        {{"type": "bind", "source": "/sys", "destination": "/sys", "options": ["rbind", "ro"]}}],
    "hooks": {{"createContainer": [hook]}},
    "linux": {{"namespaces": [{{"type": "mount"}}]}},
}}, open(sys.argv[1] + "/config.json", "w"))
"#,
        wireup = cluster.wireup().display(),
        root = root.display(),
        mpi = match hook {
            [] => "",
            _ => r#", "org.wireup.mpi": "host""#,
        },
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
    program(images, mpi, runtime, pmi, "ring");
}

/// A program of `/opt/app` with four ranks on two hosts.
fn program(images: &Images, mpi: &Mpi, runtime: &Path, pmi: &str, name: &str) -> Outcome {
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
        .more([runtime, &Path::new("/opt/app").join(name)]);
    let env = mpi.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.deadline(Duration::from_secs(180)).run();
    let outcome = outcome.expect_success();
    outcome.by_rank(name, 4);
    outcome
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
        ring(&images, &mpi, &podman(&images, NAMESPACES, &[]), pmi);
        ring(&images, &mpi, &crun(&images, &[]), pmi);
    }
}

/// Returns the output of a rank in podman with these options, and checks its exit code.
fn one(images: &Images, options: &str, code: i32) -> String {
    let podman = podman(images, options, &[]);
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
fn only_requesting_containers_get_files_of_host() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let without = one(&images, "--pid host --network host", 0);
    assert!(without.contains("No such file"), "{without}");
    let with = one(&images, NAMESPACES, 0);
    assert!(with.contains("/server\n"), "{with}");
}

#[test]
fn container_with_own_pid_namespace_is_refused() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let log = images.cluster.dir().join("said");
    let options =
        "--network host --annotation org.wireup.ranks=yes --annotation run.oci.hooks.stderr=";
    let options = format!("{options}{}", log.display());
    one(&images, &options, 126);
    let log = fs::read_to_string(log).unwrap();
    let line = "wireup: the container has a pid namespace of its own, in which MPIs fail; start it with that of the \
                host (--pid host)\n";
    assert_eq!(log, line);
}

/// The configuration of a container of this user, whose variable names this server's directory.
fn configure(bundle: &Path, user: u32, server: &Path) {
    fs::create_dir_all(bundle.join("root")).unwrap();
    let config = format!(
        r#"{{"root": {{"path": "root"}}, "process": {{"env": ["PMIX_SERVER_TMPDIR={}"], "user": {{"uid": {user}, "gid": {user}}}}},
            "annotations": {{"org.wireup.ranks": "yes"}}}}"#,
        server.display()
    );
    fs::write(bundle.join("config.json"), config).unwrap();
}

/// Returns the message of the hook of root's runtime for a container of this user whose variable names this server's
/// directory; empty if the hook has mounted the directory.
fn hooked(at: &Path, user: u32, server: &Path) -> String {
    configure(at, user, server);
    // In mounts of its own, as in a container's.
    let script = "printf '{\"bundle\": \"%s\"}' \"$1\" | \"$2\" oci-hook && [ ! -e \"$1/root$3/../mark\" ] && echo 'not shown'; true";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.arg(at).arg(crate::common::wireup()).arg(server);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory of a job as a launch makes it, with the node 0; the path of its server's directory.
fn job_directory(job: &Path, owner: u32) -> PathBuf {
    let node = job.join("n0");
    let server = node.join("server");
    fs::create_dir_all(&server).unwrap();
    fs::write(node.join("mark"), "").unwrap();
    for path in [job, &node, &server] {
        chown(path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    server
}

#[test]
fn oci_hook_exposes_only_job_directories_of_its_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (mallory, victim) = (54323, 54321);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let bundle = dir.path().join("bundle");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(&bundle).unwrap();
    let own = job_directory(&at("wireup-own"), mallory);
    assert_eq!(hooked(&bundle, mallory, &own), "");
    // Another user's and root's, by their own paths.
    let theirs = job_directory(&at("wireup-theirs"), victim);
    let stderr = hooked(&bundle, mallory, &theirs);
    assert!(stderr.contains("Permission denied"), "{stderr}");
    let roots = job_directory(&at("wireup-root"), 0);
    let stderr = hooked(&bundle, 0, &roots);
    assert!(stderr.contains("directory of user 0"), "{stderr}");
    // A node that is the user's in a job that is not.
    let mixed = job_directory(&at("wireup-mixed"), victim);
    fs::set_permissions(at("wireup-mixed"), fs::Permissions::from_mode(0o711)).unwrap();
    chown(mixed.parent().unwrap(), Some(mallory), None).unwrap();
    let stderr = hooked(&bundle, mallory, &mixed);
    assert!(stderr.contains("directory of user 54321"), "{stderr}");
    // Links in the path, to what is the user's as well.
    symlink(at("wireup-own"), at("wireup-link")).unwrap();
    let stderr = hooked(&bundle, mallory, &at("wireup-link/n0/server"));
    assert!(stderr.contains("symbolic link"), "{stderr}");
    symlink("n0", at("wireup-own/n1")).unwrap();
    let stderr = hooked(&bundle, mallory, &at("wireup-own/n1/server"));
    assert!(stderr.contains("symbolic link"), "{stderr}");
    // The user's own behind a directory that the user cannot enter.
    fs::create_dir(at("closed")).unwrap();
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let closed = job_directory(&at("closed/wireup-1"), mallory);
    let stderr = hooked(&bundle, mallory, &closed);
    assert!(stderr.contains("Permission denied"), "{stderr}");
}

#[test]
fn symlink_in_place_of_job_directory_exposes_no_other_user() {
    const HOOKS: usize = 200;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (mallory, victim) = (54323, 54321);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, owner) in [("wireup-own", mallory), ("wireup-theirs", victim)] {
        let server = job_directory(&at(name), owner);
        let node = server.parent().unwrap();
        fs::write(node.join("mark"), format!("{name}\n")).unwrap();
        // Only owner and links differ: rights hide none of the two.
        for path in [&at(name), node, &server] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    symlink(at("wireup-theirs"), at("link")).unwrap();
    let bundle = at("bundle");
    let server = at("wireup-own/n0/server");
    configure(&bundle, mallory, &server);
    let script = format!(
        "for i in $(seq {HOOKS}); do printf '{{\"bundle\": \"%s\"}}' \"$1\" | \"$2\" oci-hook 2>/dev/null || continue; \
         cat \"$1/root$3/../mark\"; umount -n -l \"$1/root/dev/shm\" \"$1/root$3/..\"; done"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script, "sh"]);
    command
        .arg(&bundle)
        .arg(crate::common::wireup())
        .arg(&server);
    let over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                renameat_with(
                    CWD,
                    at("wireup-own"),
                    CWD,
                    at("link"),
                    RenameFlags::EXCHANGE,
                )
                .unwrap();
            }
        });
        let output = command.output();
        over.store(true, Ordering::Release);
        output.unwrap()
    });
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.lines().all(|mark| mark == "wireup-own"), "{shown}");
    // Both were met.
    let count = shown.lines().count();
    assert!((1..HOOKS).contains(&count), "{count}: {output:?}");
}

#[test]
fn image_with_mpi_library_in_no_own_file_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("libmpi.so.12");
    let source = dir.path().join("mpi.c");
    fs::write(
        &source,
        "int MPI_Init(int *c, char ***v) { return !c || !v; }\n",
    )
    .unwrap();
    let mut cc = Command::new("cc");
    cc.args([
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,-soname,libmpi.so.12",
        "-o",
    ]);
    let compiled = cc.args([&host, &source]).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let root = dir.path().join("root");
    let library = root.join("usr/lib/libmpi.so.12");
    for name in ["proc", "usr/lib"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let config = r#"{"root": {"path": "root"}, "process": {"args": ["sh"], "cwd": "/"},
        "annotations": {"org.wireup.ranks": "yes", "org.wireup.mpi": "host"}}"#;
    fs::write(dir.path().join("config.json"), config).unwrap();
    let hook = || {
        // In mounts of its own, as in a container's, which has /proc.
        let script = "mount -n -t proc proc \"$1/root/proc\" && printf '{\"bundle\": \"%s\"}' \"$1\" | \"$2\" oci-hook --mpi \"$3\"";
        let words = ["unshare", "-m", "sh", "-c", script, "sh"];
        let run = Run::command(words);
        let run = run.more([dir.path(), &crate::common::wireup(), &host]);
        run.deadline(Duration::from_secs(10)).run()
    };
    // A file of the image's own is replaced.
    fs::copy(&host, &library).unwrap();
    hook().expect_quiet_success();
    let node = |kind, device| mknodat(CWD, &library, kind, Mode::RUSR, device).unwrap();
    let of_another = format!("/proc/1/root{}", host.display());
    let makers: [&dyn Fn(); 4] = [
        &|| node(FileType::CharacterDevice, makedev(1, 5)),
        &|| node(FileType::Fifo, 0),
        &|| symlink(&of_another, &library).unwrap(),
        &|| symlink("/proc/self/fd/0", &library).unwrap(),
    ];
    for make in makers {
        fs::remove_file(&library).unwrap();
        make();
        let outcome = hook().expect(125);
        outcome.expect_one_line(&["the image has no MPI that the host's could replace"]);
    }
}

/// The directory of libraries of an MPI that is not Debian's.
fn libraries(of: &str) -> PathBuf {
    let mpi = mpi(of).unwrap();
    let root = mpi.launcher.parent().and_then(Path::parent);
    root.unwrap().join("lib")
}

const OF_THE_HOST: &str = "--pid host --network host --ipc private --annotation org.wireup.ranks=yes \
     --annotation org.wireup.mpi=host";

/// Programs of one MPI, in an image that has nothing of the other, run on the other, which the host has.
fn replaced(of: &str, by: &str, library: &str, expected: &str, pmi: &str) {
    let (Some(own), Some(mut host)) = (mpi(of), mpi(by)) else {
        return;
    };
    let directory = libraries(by);
    let root = directory.parent().unwrap().to_owned();
    // libucp is there without the hook, and has to be brought as what the image lacks.
    let hidden = [root.clone(), "/usr/lib/x86_64-linux-gnu/libucp.so.0".into()];
    let programs = ["hello", "ring"].map(|program| own.program(program));
    let Some(images) = Images::without(&programs, &hidden) else {
        return;
    };
    let file = |path: &Path| path.display().to_string();
    let mut hook = vec!["--mpi".to_owned(), file(&directory.join(library))];
    if by == "openmpi5" {
        // Its texts and parameters, and those of its PMIx.
        hook.extend(["--mpi-directory".to_owned(), file(&root)]);
        for name in ["OPAL_PREFIX", "PMIX_PREFIX"] {
            host.env.push((name.to_owned(), file(&root)));
        }
    }
    if by == "impi" {
        let needed = libraries("mpich5");
        hook.extend(["--mpi-directory".to_owned(), file(&needed)]);
    }
    for runtime in [podman(&images, OF_THE_HOST, &hook), crun(&images, &hook)] {
        let outcome = program(&images, &host, &runtime, pmi, "hello");
        let text = outcome.out();
        let count = text.lines().filter(|line| line.contains(expected)).count();
        assert_eq!(count, 4, "{text}");
        ring(&images, &host, &runtime, pmi);
    }
}

#[test]
fn intel_mpi_of_image_is_replaced_by_host_mpich() {
    replaced(
        "impi",
        "mpich5",
        "libmpi.so.12",
        "library=\"MPICH Version:      5",
        "pmi1",
    );
}

#[test]
fn mpich_of_image_is_replaced_by_host_intel_mpi() {
    replaced(
        "mpich4",
        "impi",
        "libmpi.so.12",
        "library=\"Intel(R) MPI",
        "pmi1",
    );
}

#[test]
fn open_mpi_of_image_is_replaced_by_later_one_of_host() {
    replaced(
        "openmpi4",
        "openmpi5",
        "libmpi.so.40",
        "library=\"Open MPI v5",
        "pmix",
    );
}

#[test]
fn mismatched_host_mpi_is_refused() {
    let (Some(mpich), Some(openmpi)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    let Some(later) = pmix("pmix7") else { return };
    let programs = [mpich.program("hello"), openmpi.program("ring")];
    let Some(images) = Images::new(&programs) else {
        return;
    };
    let dir = images.cluster.dir();
    // A library with one function of MPI, which uses what only a later C library has.
    let source = "extern unsigned long strlcpy(char *, const char *, unsigned long);\n\
                  int MPI_Init(int *argc, char ***argv) { (void)argc; (void)argv; char c[2]; return (int)strlcpy(c, \"\", 2); }\n";
    fs::write(dir.join("newer.c"), source).unwrap();
    let newer = dir.join("libmpi.so.12");
    let c_library = later.library.ancestors().nth(3).unwrap().join("libc.so.6");
    let mut cc = Command::new("cc");
    cc.args([
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,-soname,libmpi.so.12",
        "-o",
    ]);
    let compiled = cc.args([&newer, &dir.join("newer.c"), &c_library]).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{compiled:?}");

    let log = dir.join("said");
    let refused = |host: &Path, command: &[&str]| {
        let options = format!(
            "{OF_THE_HOST} --annotation run.oci.hooks.stderr={}",
            log.display()
        );
        let hook = ["--mpi".to_owned(), host.display().to_string()];
        let podman = podman(&images, &options, &hook);
        let run = images
            .cluster
            .run(0, ["--hosts", "node01:1", "-n", "1", "--pmi", "pmix"]);
        run.more([podman.as_os_str()])
            .more(command)
            .run()
            .expect(126);
        fs::read_to_string(&log).unwrap()
    };
    // The interface of another.
    let line = refused(
        &libraries("mpich5").join("libmpi.so.12"),
        &["/opt/app/ring"],
    );
    for part in [
        "the image's MPI is libmpi.so.40 (",
        "), and the host's libmpi.so.12: programs of one do not run",
    ] {
        assert!(line.contains(part), "{line}");
    }
    // Functions that it does not have.
    let line = refused(&newer, &["/opt/app/hello"]);
    let part =
        "/opt/app/hello uses MPI_Comm_rank() of the image's libmpich.so.12, which the host's (";
    assert!(line.contains(part), "{line}");
    // The image's C library is too old for it. What a script starts is not known.
    let line = refused(&newer, &["sh", "-c", "/opt/app/hello"]);
    let part = "the host's libmpi.so.12 needs version GLIBC_2.38 of libc.so.6, which the image's libc.so.6 does not have";
    assert!(line.contains(part), "{line}");
    // No MPI, or a file that is none.
    for (file, part) in [
        ("/bin/true", "not an MPI library"),
        ("/nonexistent", "No such file"),
    ] {
        let mut print = images.cluster.host(0).command(images.cluster.wireup());
        let output = print.args(["oci-hook", "--print", "--mpi", file]).output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(part), "{text}");
    }
}
