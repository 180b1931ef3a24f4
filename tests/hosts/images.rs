//! Ranks whose root directory is an image, on several hosts, by every runtime that is here.
//!
//! The image is the machine's own root directory below a layer of each host's own, with what no host has: a program and
//! a text.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{DEADLINE, Mpi, Outcome, Output, Run, mpi, pmix, skip};
use crate::doctor::doctor;
use crate::spawn::{able, children};
use crate::users::of;
use wireup_core::job::spec::Runtime;

const HOSTS: [&str; 2] = ["--hosts", "node01:2,node02:2"];

/// Hosts that have the image.
pub(crate) struct Images {
    pub(crate) cluster: Cluster,
    pub(crate) root: PathBuf,
}

/// Runs a shell script on a host, which must succeed.
#[track_caller]
pub(crate) fn shell(cluster: &Cluster, host: usize, script: &str) -> String {
    let output = cluster
        .host(host)
        .command("sh")
        .args(["-ec", script])
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Images {
    /// With these programs of an MPI in `/opt/app`.
    #[track_caller]
    pub(crate) fn new(programs: &[PathBuf]) -> Option<Self> {
        Self::without(programs, &[])
    }

    /// Makes hosts without these files and directories of the machine.
    #[track_caller]
    pub(crate) fn without(programs: &[PathBuf], hidden: &[PathBuf]) -> Option<Self> {
        let cluster = Cluster::new(2)?;
        let root = cluster.dir().join("image");
        fs::create_dir(&root).unwrap();
        for host in 0..2 {
            let layer = cluster.dir().join(format!("layer{host}"));
            let app = layer.join("upper/opt/app");
            fs::create_dir_all(&app).unwrap();
            fs::create_dir(layer.join("work")).unwrap();
            for program in programs {
                fs::copy(program, app.join(program.file_name().unwrap())).unwrap();
            }
            fs::create_dir(layer.join("upper/etc")).unwrap();
            fs::write(layer.join("upper/etc/image"), "of the image\n").unwrap();
            for path in hidden {
                let place = layer.join("upper").join(path.strip_prefix("/").unwrap());
                fs::create_dir_all(place.parent().unwrap()).unwrap();
                // What a layer has for a file that has been removed.
                let (kind, mode) = (FileType::CharacterDevice, Mode::empty());
                mknodat(CWD, &place, kind, mode, makedev(0, 0)).unwrap();
            }
            let (layer, root) = (layer.display(), root.display());
            let options = format!("lowerdir=/,upperdir={layer}/upper,workdir={layer}/work");
            shell(
                &cluster,
                host,
                &format!("mount --no-mtab -t overlay overlay -o {options} {root}"),
            );
            // The containers of these hosts are not each other's.
            shell(
                &cluster,
                host,
                "mkdir -p /var/lib/containers; mount --no-mtab -t tmpfs tmpfs /var/lib/containers",
            );
        }
        Some(Self { cluster, root })
    }

    fn run(&self, runtime: Runtime, ranks: &str) -> Run {
        let image = format!("--image={}:{}", runtime.as_str(), self.root.display());
        let run = self
            .cluster
            .run(0, HOSTS)
            .more(["-n", ranks, "--oversubscribe"]);
        run.more([&image]).deadline(Duration::from_secs(180))
    }
}

/// The runtimes of this machine; the test is ignored where one is missing.
#[track_caller]
pub(crate) fn runtimes() -> Vec<Runtime> {
    let there = |runtime: &Runtime| {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).any(|dir| dir.join(runtime.program()).exists());
        if !found {
            skip(&format!("no {}: run scripts/setup", runtime.program()));
        }
        found
    };
    Runtime::ALL.into_iter().filter(there).collect()
}

/// The variables of an MPI: an image has no libraries of the host's, so they have to be asked for.
fn with_env(mpi: &Mpi, mut run: Run, program: &str) -> Run {
    for (name, value) in &mpi.env {
        run = run.env(name, value).more(["-x", name]);
    }
    run.more([format!("/opt/app/{program}")])
}

/// An MPI's ranks on two hosts exchange messages of 1 MiB, and spawn, in each runtime.
fn messages_and_spawn(name: &str) {
    let Some(mpi) = mpi(name) else { return };
    let Some(images) = Images::new(&["hello", "ring", "spawn"].map(|program| mpi.program(program)))
    else {
        return;
    };
    for runtime in runtimes() {
        // Debian's UCX may hang when it finalizes after messages between hosts, under any launcher.
        let (hosts, ranks) = match name {
            "mpich4" => ("node01:2", "2"),
            _ => ("node01:2,node02:2", "4"),
        };
        let run = with_env(&mpi, images.run(runtime, "4"), "hello");
        run.run().expect_success().by_rank("hello", 4);
        let run = images.run(runtime, ranks).more(["--hosts", hosts]);
        let outcome = with_env(&mpi, run, "ring").run().expect_success();
        outcome.by_rank("ring", ranks.parse().unwrap());
        // Hydra's MPICH 4 does not spawn under PMI-1 alone; see docs/spawn.md.
        let Some(mpi) = able(name).filter(|_| name != "mpich4") else {
            continue;
        };
        let run = images.run(runtime, "2").more(["--map-by", "node"]);
        let run = with_env(&mpi, run, "spawn").more(["children=2"]);
        children(&run.run().expect_success(), 1, 2);
    }
}

#[test]
fn mpich4_runs_in_every_runtime() {
    messages_and_spawn("mpich4");
}

#[test]
fn mpich5_runs_in_every_runtime() {
    messages_and_spawn("mpich5");
}

#[test]
fn openmpi4_runs_in_every_runtime() {
    messages_and_spawn("openmpi4");
}

#[test]
fn openmpi5_runs_in_every_runtime() {
    messages_and_spawn("openmpi5");
}

#[test]
fn impi_runs_in_every_runtime() {
    messages_and_spawn("impi");
}

/// Returns the distinct lines of ranks that print a line each.
fn distinct(outcome: &Outcome) -> Vec<String> {
    let mut lines = outcome.sorted_lines();
    lines.dedup();
    lines
}

#[test]
fn spawned_ranks_run_in_image_of_info_key() {
    let Some(client) = pmix("pmix5") else { return };
    let dir = tempfile::tempdir().unwrap();
    let child = dir.path().join("child");
    fs::write(
        &child,
        "#!/bin/sh\necho child $(uname -n) $(cat /etc/image)\n",
    )
    .unwrap();
    fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(images) = Images::new(&[child]) else {
        return;
    };
    for runtime in runtimes() {
        let options = ["--pmi", "pmix", "--hosts", "node01:2,node02:1", "-n", "1"];
        let run = images.cluster.run(0, options);
        let run = run.more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_spawn")]);
        let run = run.more(["run", "/opt/app/child"]);
        let run = run.more([format!("image={}", images.root.display())]);
        let run = run.more([format!("runtime={}", runtime.as_str())]);
        let outcome = run.deadline(Duration::from_secs(180)).run().expect(0);
        let lines = outcome.sorted_lines().into_iter();
        let lines: Vec<_> = lines.filter(|line| line.starts_with("child ")).collect();
        let expected = ["child node01 of the image", "child node02 of the image"];
        assert_eq!(lines, expected, "{outcome:?}");
    }
}

#[test]
fn ranks_run_in_image_and_share_namespaces_of_host() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let own = |kind: &str| {
        shell(
            &images.cluster,
            0,
            &format!("readlink /proc/self/ns/{kind}"),
        )
    };
    let (pid, user, mount) = (own("pid"), own("user"), own("mnt"));
    for runtime in runtimes() {
        let run = images.run(runtime, "2").more(["--hosts", "node01:2"]);
        let script = "for n in pid user mnt; do readlink /proc/self/ns/$n; done; cat /etc/image; pwd; \
                      echo $PATH; stat -c %i /dev/shm; ls -d /proc/$PPID";
        let run = run
            .env("LD_LIBRARY_PATH", "/nowhere")
            .more(["sh", "-c", script]);
        let outcome = run.run().expect_quiet_success();
        let directory = outcome.dir().display().to_string();
        let lines = distinct(&outcome);
        for line in [&pid, &user, "of the image", &directory] {
            assert!(
                lines.iter().any(|known| known == line.trim()),
                "{runtime:?}: {line}: {lines:#?}"
            );
        }
        assert!(
            !lines.iter().any(|line| *line == mount.trim()),
            "{runtime:?}: {lines:#?}"
        );
        let same = lines.iter().filter(|line| line.starts_with("mnt:")).count();
        assert_eq!(same, 1, "{runtime:?}: {lines:#?}");
    }
}

#[test]
fn codes_signals_and_input_work_as_without_image() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    for runtime in runtimes() {
        let run = |script: &str| images.run(runtime, "2").more(["sh", "-c", script]);
        run("exit $((WIREUP_RANK * 7))").run().expect(7);
        run("[ $WIREUP_RANK = 0 ] || kill -9 $$; sleep 100")
            .run()
            .expect(137);
        let echoed = run("[ $WIREUP_RANK = 1 ] || cat").stdin_bytes("a line\n");
        assert_eq!(echoed.run().expect_quiet_success().out(), "a line\n");
        let running = run("trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done").start();
        running.wait_for_many(Output::Stdout, "ready", 2);
        running.signal(Signal::TERM);
        // Of the launcher, as without an image.
        running.finish().expect(143);
    }
}

#[test]
fn killed_launcher_leaves_no_container() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let kill = |run: Run, case: &str| {
        let running = run
            .clean_within(DEADLINE)
            .more(["sh", "-c", "echo ready; exec sleep 1000"])
            .start();
        running.wait_for_many(Output::Stdout, "ready", 4);
        running.signal(Signal::KILL);
        running.finish().expect(137);
        for host in 0..2 {
            let left = "ls -A /run/crun 2>/dev/null || true; podman ps -aq";
            assert_eq!(shell(&images.cluster, host, left), "", "{case}");
        }
    };
    for runtime in runtimes() {
        kill(images.run(runtime, "4"), runtime.as_str());
        // What helps a user's podman waits for locks that are removed with the rest.
        kill(of(ALICE, images.run(runtime, "4")), "a user's");
    }
}

#[test]
fn host_directories_are_mounted_on_request() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let data = images.cluster.dir().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("text"), "of the host\n").unwrap();
    let mount = |target: &str| format!("--image-mount={}:{target}", data.display());
    for runtime in runtimes() {
        // Nobody has the directory, and its place is not made in the image.
        let run = images.run(runtime, "4").more([mount("/srv/deep/data")]);
        let outcome = run
            .more(["cat", "/srv/deep/data/text"])
            .run()
            .expect_quiet_success();
        assert_eq!(distinct(&outcome), ["of the host"], "{runtime:?}");
        assert!(!images.root.join("srv/deep").exists());
        let run = images.run(runtime, "1").more([mount("/data:ro")]);
        let write = ["sh", "-c", "cat /data/text; ! touch /data/new 2>/dev/null"];
        if runtime != Runtime::Charliecloud {
            run.more(write).run().expect_quiet_success();
        }
    }
}

#[test]
fn unusable_image_is_reported_in_one_line() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    let Images { cluster, root } = &images;
    let file = cluster.dir().join("file");
    fs::write(&file, "").unwrap();
    let lost = cluster.dir().join("lost");
    let run = |image: &Path| {
        let image = format!("--image={}", image.display());
        cluster
            .run(0, HOSTS)
            .more(["-n", "4", "--oversubscribe", &image])
    };
    for (image, reason) in [(&lost, "directory not found"), (&file, "not a directory")] {
        let outcome = run(image).more(["true"]).run().expect(125);
        let named = format!("--image {}: ", image.display());
        outcome.expect_one_line(&["on all 2 hosts: ", &named, reason]);
    }
    let outcome = run(root).more(["/opt/app/none"]).run().expect(127);
    outcome.expect_one_line(&[
        "on all 2 hosts: ",
        "\"/opt/app/none\"",
        "put it into the image",
    ]);
    let outcome = run(root).more(["no-such-program"]).run().expect(127);
    outcome.expect_one_line(&["\"no-such-program\"", "searched PATH=/usr/local/sbin:"]);
    // Not root's, and closed.
    let closed = cluster.dir().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let outcome = of(ALICE, run(&closed).more(["true"])).run().expect(125);
    outcome.expect_one_line(&["--image ", "Permission denied"]);
    // Without the directories of programs.
    let absent = Run::new([&*format!("--image=crun:{}", root.display()), "/bin/true"]);
    let absent = absent.under(["env", "PATH=/nonexistent"]).run().expect(125);
    absent.expect_one_line(&["--image crun:…: crun not found in PATH; install it"]);
}

#[test]
fn podman_image_is_found_by_name_and_sets_its_variables() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    if !runtimes().contains(&Runtime::Podman) {
        return;
    }
    let files = images.cluster.dir().join("files");
    fs::create_dir_all(files.join("bin")).unwrap();
    fs::create_dir(files.join("etc")).unwrap();
    fs::write(files.join("etc/image"), "imported\n").unwrap();
    // Static: there is no C library in the image.
    fs::copy("/bin/busybox", files.join("bin/sh")).unwrap();
    let import = format!(
        "tar -C {} -c . | podman import --change 'ENV GREETING=hello' - wireup-test:1 2>&1",
        files.display()
    );
    for host in 0..2 {
        shell(&images.cluster, host, &import);
    }
    let run = |image: &str| {
        let list = ["-n", "4", "--oversubscribe", "--image", image];
        images.cluster.run(0, HOSTS).more(list)
    };
    let script = "read line </etc/image; echo $line $GREETING; : >/new$WIREUP_RANK";
    let outcome = run("wireup-test:1").more(["sh", "-c", script]).run();
    assert_eq!(
        distinct(&outcome.expect_quiet_success()),
        ["imported hello"]
    );
    let outcome = run("wireup-none:1").more(["sh"]).run().expect(125);
    outcome.expect_one_line(&[
        "on all 2 hosts: --image wireup-none:1: podman cannot make the container: ",
    ]);
}

#[test]
fn apptainer_file_is_accepted_as_image() {
    let Some(images) = Images::new(&[]) else {
        return;
    };
    if !runtimes().contains(&Runtime::Apptainer) {
        return;
    }
    let dir = images.cluster.dir();
    let files = dir.join("files");
    fs::create_dir_all(files.join("bin")).unwrap();
    fs::create_dir_all(files.join("etc")).unwrap();
    fs::create_dir_all(files.join(".singularity.d/env")).unwrap();
    fs::write(files.join("etc/image"), "in a file\n").unwrap();
    let greeting = files.join(".singularity.d/env/90-environment.sh");
    fs::write(&greeting, "export GREETING=hello\n").unwrap();
    fs::set_permissions(&greeting, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy("/bin/busybox", files.join("bin/sh")).unwrap();
    let image = dir.join("image.sif");
    let build = format!(
        "APPTAINER_CACHEDIR={0}/cache apptainer build {1} {2} 2>&1",
        dir.display(),
        image.display(),
        files.display()
    );
    shell(&images.cluster, 0, &build);
    let run = |runtime: &str| {
        let image = format!("--image={runtime}{}", image.display());
        let run = images.cluster.run(0, HOSTS);
        run.more(["-n", "4", "--oversubscribe", &image])
    };
    let script = "read line </etc/image; echo $line $GREETING";
    let words = ["sh", "-c", script];
    let outcome = run("apptainer:")
        .more(words)
        .deadline(Duration::from_secs(180))
        .run();
    let outcome = outcome.expect_quiet_success();
    assert_eq!(distinct(&outcome), ["in a file hello"]);
    let outcome = run("").more(["sh"]).run().expect(125);
    outcome.expect_one_line(&["on all 2 hosts: --image ", "not a directory"]);
}

#[test]
fn ordinary_users_have_containers_too() {
    let Some(mpi) = mpi("mpich5") else { return };
    let Some(images) = Images::new(&[mpi.program("hello")]) else {
        return;
    };
    for runtime in runtimes() {
        let run = images.run(runtime, "4");
        let run = of(ALICE, run.more(["sh", "-c", "cat /etc/image; id -u"]));
        let outcome = run.run().expect_quiet_success();
        assert_eq!(
            distinct(&outcome),
            [&*ALICE.to_string(), "of the image"],
            "{runtime:?}"
        );
        let run = with_env(&mpi, images.run(runtime, "4"), "hello");
        of(ALICE, run).run().expect_success().by_rank("hello", 4);
        // No lock is left that would keep other users out.
        let left = format!("find /dev/shm -maxdepth 1 -uid {ALICE}");
        for host in 0..2 {
            assert_eq!(shell(&images.cluster, host, &left), "", "{runtime:?}");
        }
    }
    let list = ["-n", "4", "--oversubscribe", "--image", "wireup-test:1"];
    let outcome = of(ALICE, images.cluster.run(0, HOSTS).more(list).more(["sh"])).run();
    outcome.expect(125).expect_one_line(&[
        "--image wireup-test:1: an ordinary user's ranks run in a root directory",
    ]);
}

#[test]
fn podman_leaves_image_directory_unchanged() {
    if !runtimes().contains(&Runtime::Podman) {
        return;
    }
    let hidden = [
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/etc/mtab",
    ];
    let hidden = hidden.map(PathBuf::from);
    let Some(images) = Images::without(&[], &hidden) else {
        return;
    };
    let show = ["sh", "-c", "cat /etc/image; grep -c localhost /etc/hosts"];
    let run = || images.run(Runtime::Podman, "2").more(show);
    for run in [run(), of(ALICE, run())] {
        let outcome = run.run().expect_quiet_success();
        assert!(
            distinct(&outcome).contains(&"of the image".to_owned()),
            "{outcome:?}"
        );
        for path in &hidden {
            let script = format!("test ! -e {}{}", images.root.display(), path.display());
            shell(&images.cluster, 0, &script);
        }
    }
}

#[test]
fn doctor_names_hosts_that_cannot_run_image() {
    let Some(images) = Images::new(&["/bin/true".into()]) else {
        return;
    };
    let Images { cluster, root } = &images;
    let look = |image: &str, more: &[&str]| {
        let words = [&["--ppn", "1", "--image", image][..], more].concat();
        doctor(cluster, "node01,node02", &words).1
    };
    let root = root.to_str().unwrap();
    let program = "/opt/app/true";
    for runtime in runtimes() {
        let found = look(&format!("{}:{root}", runtime.as_str()), &[program]);
        found.expect_none_of(&[
            "image-runtime",
            "image",
            "program",
            "libraries",
            "program-build",
        ]);
        // Nothing is left.
        let left = "ls -d /tmp/wireup-doctor-* 2>/dev/null || true; podman ps -aq";
        for host in 0..2 {
            assert_eq!(shell(cluster, host, left), "", "{runtime:?}");
        }
    }
    let found = look(root, &["/opt/app/none"]);
    found.expect("program", "node01,node02", "/opt/app/none does not exist");
    // One host's image has another build of it.
    shell(cluster, 1, &format!("printf x >>{root}{program}"));
    let found = look(root, &[program]);
    found.expect("program-build", "node02", "another build of /opt/app/true");
    // One host has no directory for it. Each has files of its own there.
    let only = "/var/lib/containers/image";
    shell(
        cluster,
        0,
        &format!("mkdir {only}; mount --no-mtab --bind {root} {only}"),
    );
    let found = look(only, &[program]);
    found.expect(
        "image",
        "node02",
        "--image /var/lib/containers/image: directory not found",
    );
    // One has no runtime.
    if runtimes().contains(&Runtime::Charliecloud) {
        shell(
            cluster,
            1,
            "mount --no-mtab --bind /dev/null $(command -v ch-run)",
        );
        let found = look(&format!("charliecloud:{root}"), &[program]);
        found.expect("image-runtime", "node02", "ch-run not found in PATH");
    }
    if runtimes().contains(&Runtime::Podman) {
        let found = look("wireup-none:1", &[program]);
        found.expect("image", "node01,node02", "podman cannot make the container");
    }
}
