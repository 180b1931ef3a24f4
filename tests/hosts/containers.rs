//! Containers of ranks on several hosts: images that are mounted for the ranks alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{DEADLINE, Mpi, Output, Run, eventually, mpi, number, pmix, skip};
use crate::spawn::{able, children};
use crate::users::of;

/// Two ranks on each of two hosts.
const FOUR: [&str; 4] = ["--hosts", "node01:2,node02:2", "-n", "4"];

/// Makes a squashfs image of these files in a directory that all hosts see; `None`, and the test is ignored, without
/// mksquashfs.
#[track_caller]
fn image(cluster: &Cluster, files: &[PathBuf]) -> Option<PathBuf> {
    let image = cluster.dir().join("software.squashfs");
    let mut make = Command::new("mksquashfs");
    make.args(files)
        .arg(&image)
        .args(["-quiet", "-no-progress", "-noappend", "-all-root"]);
    match make.output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => {
            skip("no mksquashfs: run scripts/setup");
            return None;
        }
    }
    Some(image)
}

/// A directory for an image, which all hosts see as it is without one.
fn directory(cluster: &Cluster) -> PathBuf {
    let directory = cluster.dir().join("software");
    fs::create_dir(&directory).unwrap();
    directory
}

/// A script with this name for an image.
fn script(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn uenv(image: &Path, directory: &Path) -> String {
    format!("--uenv={}:{}", image.display(), directory.display())
}

/// Waits until no loop device of the machine has this file.
#[track_caller]
fn expect_released(image: &Path) {
    eventually("the image is released", || {
        let mut loops = fs::read_dir("/sys/block").unwrap().flatten();
        let held = loops.any(|device| {
            let file = fs::read_to_string(device.path().join("loop/backing_file"));
            file.is_ok_and(|file| Path::new(file.trim_end()) == image)
        });
        (!held).then_some(())
    });
}

fn with_env(mpi: &Mpi, run: Run) -> Run {
    let env = mpi.env.iter();
    env.fold(run, |run, (name, value)| run.env(name, value))
        .deadline(Duration::from_secs(120))
}

#[test]
fn programs_of_image_find_pmi_and_pmix_on_every_host() {
    for name in ["mpich4", "mpich5", "openmpi4", "openmpi5", "impi"] {
        let (Some(cluster), Some(mpi)) = (Cluster::new(2), mpi(name)) else {
            continue;
        };
        // Debian's UCX may hang when it finalizes after messages between hosts, under any launcher.
        let program = match name {
            "mpich4" => "hello",
            _ => "ring",
        };
        let Some(image) = image(&cluster, &[mpi.program(program)]) else {
            return;
        };
        let directory = directory(&cluster);
        let run = cluster.run(0, FOUR).more(["--oversubscribe"]);
        let run = run.more([uenv(&image, &directory)]);
        let run = with_env(&mpi, run.more([directory.join(program)]));
        for line in run.run().expect_success().by_rank(program, 4) {
            assert_eq!(number(&line, "size"), 4, "{name}: {line}");
        }
        expect_released(&image);
    }
}

#[test]
fn program_of_image_spawns_another_from_same_image() {
    for name in ["mpich5", "openmpi4", "openmpi5", "impi"] {
        let (Some(cluster), Some(mpi)) = (Cluster::new(2), able(name)) else {
            continue;
        };
        let Some(image) = image(&cluster, &[mpi.program("spawn")]) else {
            return;
        };
        let directory = directory(&cluster);
        let list = [
            "--hosts",
            "node01:2,node02:2",
            "-n",
            "2",
            "--map-by",
            "node",
        ];
        let run = cluster.run(0, list).more(["--oversubscribe"]);
        let run = run.more([uenv(&image, &directory)]);
        let run = run.more([directory.join("spawn")]).more(["children=2"]);
        let outcome = with_env(&mpi, run).run().expect_success();
        children(&outcome, 1, 2);
    }
}

#[test]
fn spawned_ranks_run_in_image_of_info_key() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), pmix("pmix5")) else {
        return;
    };
    let child = script(
        &cluster,
        "child",
        "echo child $(uname -n) $(cat \"${0%/*}/text\")",
    );
    let text = cluster.dir().join("text");
    fs::write(&text, "of the image\n").unwrap();
    let Some(image) = image(&cluster, &[child, text]) else {
        return;
    };
    let directory = directory(&cluster);
    let list = ["--hosts", "node01:2,node02:1", "-n", "1", "--pmi", "pmix"];
    let spawner = || {
        let run = cluster.run(0, list).more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_spawn")]).more(["run"]);
        let info = format!("uenv={}:{}", image.display(), directory.display());
        run.more([directory.join("child")]).more([info])
    };
    let outcome = spawner().run().expect(0);
    let lines = outcome.sorted_lines().into_iter();
    let lines: Vec<_> = lines.filter(|line| line.starts_with("child ")).collect();
    let expected = ["child node01 of the image", "child node02 of the image"];
    assert_eq!(lines, expected, "{outcome:?}");
    expect_released(&image);
    // A user has the rights for it in a launch that begins with an image.
    let outcome = of(ALICE, spawner()).run().expect(0);
    let words = [
        "on all 2 hosts: the images of a spawned job",
        "(--uenv or --image)",
    ];
    outcome.expect_one_line(&words);
}

#[test]
fn image_is_visible_to_ranks_only() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let program = script(&cluster, "program", "echo ready; read line; exit 3");
    let Some(image) = image(&cluster, &[program]) else {
        return;
    };
    let directory = directory(&cluster);
    let run = cluster.run(0, FOUR).more([uenv(&image, &directory)]);
    let run = run.more(["--oversubscribe", "--stdin", "all"]);
    let running = run.more([directory.join("program")]).stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    for host in 0..2 {
        let list = cluster.host(host).command("ls").arg(&directory).output();
        assert_eq!(list.unwrap().stdout, b"", "host {host}");
    }
    // The end of its input.
    running.finish().expect(3);
    expect_released(&image);
}

#[test]
fn image_of_killed_launcher_is_unmounted() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let program = script(&cluster, "program", "echo ready; exec sleep 1000");
    let Some(image) = image(&cluster, &[program]) else {
        return;
    };
    let directory = directory(&cluster);
    let run = cluster.run(0, FOUR).more([uenv(&image, &directory)]);
    let run = run
        .more(["--oversubscribe"])
        .more([directory.join("program")]);
    let running = run.clean_within(DEADLINE).start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    running.signal(Signal::KILL);
    running.finish().expect(137);
    expect_released(&image);
}

#[test]
fn unmountable_image_is_reported_once_with_reason() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let program = script(&cluster, "program", "exit 0");
    let Some(image) = image(&cluster, std::slice::from_ref(&program)) else {
        return;
    };
    let directory = directory(&cluster);
    let lost = cluster.dir().join("lost.squashfs");
    let text = cluster.dir().join("text");
    fs::write(&text, "this is not an image").unwrap();
    let damaged = cluster.dir().join("damaged.squashfs");
    fs::write(&damaged, b"hsqs, and nothing else of one").unwrap();
    let pipe = cluster.dir().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let nowhere = cluster.dir().join("nowhere");
    for (image, directory, reason) in [
        (&lost, &directory, "file not found"),
        (&text, &directory, "not a squashfs image"),
        (&pipe, &directory, "not a squashfs image"),
        (&damaged, &directory, "cannot be mounted"),
        (&image, &nowhere, "does not exist; make it, or name another"),
    ] {
        let run = cluster.run(0, FOUR).more([uenv(image, directory)]);
        let outcome = run.more(["--oversubscribe", "true"]).run().expect(125);
        let image = format!("--uenv {}: ", image.display());
        outcome.expect_one_line(&["on all 2 hosts: ", &image, reason]);
        let run = Run::new([uenv(&lost, directory)]).more(["true"]);
        run.run().expect(125).expect_one_line(&["file not found"]);
    }
    expect_released(&image);
    expect_released(&damaged);
}

#[test]
fn image_of_ordinary_user_is_served_by_squashfuse() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let program = script(&cluster, "program", "echo ready; id -u; read line; exit 4");
    let Some(image) = image(&cluster, &[program]) else {
        return;
    };
    let directory = directory(&cluster);
    // As it is on most machines.
    let open = "mknod $0 c 10 229 && chmod 666 $0 && mount --no-mtab --bind $0 /dev/fuse";
    for host in 0..2 {
        let device = cluster.dir().join(format!("fuse{host}"));
        let mut command = cluster.host(host).command("sh");
        let status = command.args(["-c", open]).arg(device).status();
        assert!(status.unwrap().success());
    }
    let run = cluster.run(0, FOUR).more([uenv(&image, &directory)]);
    let run = run.more(["--oversubscribe", "--stdin", "all"]);
    let run = of(ALICE, run.more([directory.join("program")]));
    let running = run.stdin_held().start();
    running.wait_for_many(Output::Stdout, &ALICE.to_string(), 4);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    running.finish().expect(4);
}
