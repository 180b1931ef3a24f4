//! What a host does not allow: CPUs outside the control group, and GPUs whose device files this user cannot open.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SHOW, parts};
use crate::common::{Run, skip};
use crate::users::{Reachable, as_user};

/// A control group of version 1 of this test alone.
struct Group(PathBuf);

impl Group {
    /// `None` where there is none, which is noted as a skipped test. `files` are what is written into its files.
    fn new(controller: &str, files: &[(&str, &str)]) -> Option<Self> {
        let name = format!("wireup-test-binding-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup").join(controller).join(name);
        if fs::create_dir(&path).is_err() {
            skip("needs a control group of version 1 with this controller, and root's rights");
            return None;
        }
        let group = Self(path);
        for (file, text) in files {
            fs::write(group.0.join(file), text).unwrap();
        }
        Some(group)
    }

    /// Puts a run into it.
    fn of(&self, run: Run) -> Run {
        run.after_shell(&format!("echo $$ >{}/cgroup.procs;", self.0.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn ranks_are_not_bound_outside_their_control_group() {
    let threads = parts("hwthread");
    let [first, .., last] = &threads[..] else {
        return skip("needs two CPUs");
    };
    let memory = fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.mems").unwrap_or_default();
    let files = [
        ("cpuset.cpus", last.as_str()),
        ("cpuset.mems", memory.trim()),
    ];
    let Some(group) = Group::new("cpuset", &files) else {
        return;
    };
    let run = |words: &[&str]| group.of(Run::new(words)).run();
    let list = format!("cpu-list:{first}");
    run(&["-n", "1", "--bind-to", &list, "true"]).expect_one_line(&[
        &format!("CPU {first} is not in the affinity mask or the control group"),
        &format!("ranks may use the CPUs {last}"),
    ]);
    let words = [&["-n", "1", "--bind-to", "core"], &SHOW[..]].concat();
    let outcome = run(&words).expect_quiet_success();
    assert_eq!(outcome.out(), format!("0 {last}\n"));
    run(&[
        "--hosts",
        "localhost:2",
        "-n",
        "2",
        "--bind-to",
        "core",
        "true",
    ])
    .expect_one_line(&["2 ranks with 1 core each need 2, and 1 may be used"]);
}

/// This machine as hwloc describes it, with GPUs of AMD's beside, whose render nodes have these numbers.
fn with_gpus(dir: &Path, numbers: &[u32]) -> PathBuf {
    let path = dir.join("gpus.xml");
    let made = Command::new("lstopo-no-graphics")
        .args(["--no-io", "--of", "xml", "-f"])
        .arg(&path)
        .status();
    assert!(made.unwrap().success());
    let text = fs::read_to_string(&path).unwrap();
    let gpus = numbers.iter().map(|number| {
        let (bus, id) = (number - 100, number * 10_000);
        format!(
            "<object type=\"Bridge\" gp_index=\"{id}\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[{bus:02x}-{bus:02x}]\">\
             <object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"0000:{bus:02x}:00.0\" pci_type=\"0302 [1002:740f] [0000:0000] 00\" \
             pci_link_speed=\"31.507692\"><object type=\"OSDev\" gp_index=\"{}\" name=\"renderD{number}\" osdev_type=\"1\"/>\
             </object></object>",
            id + 1,
            id + 2
        )
    });
    // At the end of the machine: the last object but one that is closed.
    let end = text.rfind("</object>").unwrap();
    let text = [&text[..end], &gpus.collect::<String>(), &text[end..]].concat();
    fs::write(&path, text).unwrap();
    path
}

/// A `/dev` of its own in a mount namespace, in whose `dri` `lines` make device files. Rule: hwloc takes a description for
/// this host if it is told so.
fn with_dev(run: Run, xml: &Path, lines: &str) -> Run {
    let script = format!(
        "set -e; cd $(mktemp -d -p /dev/shm); mkdir d; mount -t tmpfs t d; cp -a /dev/null /dev/zero /dev/urandom /dev/random d/; \
         mkdir d/shm d/pts d/dri; mount --bind /dev/shm d/shm; chmod 755 d d/dri; cd d/dri; {lines}; cd ../..; \
         mount --move d /dev; cd /; rmdir \"$OLDPWD/d\" \"$OLDPWD\"; exec \"$@\""
    );
    run.env("HWLOC_XMLFILE", xml)
        .env("HWLOC_THISSYSTEM", "1")
        .under(["unshare", "-m", "sh", "-c", &script, "sh"])
}

#[test]
fn gpus_that_cannot_be_opened_are_named_before_the_start() {
    let Some(user) = as_user() else { return };
    let parts = Reachable::new();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let xml = with_gpus(dir.path(), &[128, 129]);
    let wireup = parts.wireup();
    let words = ["run", "--oversubscribe", "-n", "2", "--gpus-per-rank", "1"];
    let run = |lines: &str, program: &[&str]| {
        let line = [wireup.as_os_str()].into_iter().map(ToOwned::to_owned);
        let line = line.chain(words.iter().chain(program).map(Into::into));
        with_dev(Run::command(line), &xml, lines).under(&user).run()
    };
    let made = "mknod -m 666 renderD128 c 1 3; mknod -m 666 renderD129 c 1 3";
    let show = ["sh", "-c", "echo $WIREUP_RANK $ROCR_VISIBLE_DEVICES"];
    assert_eq!(run(made, &show).expect(0).sorted_lines(), ["0 0", "1 1"]);
    let barred = "mknod -m 600 renderD128 c 1 3; mknod -m 600 renderD129 c 1 3";
    run(barred, &["true"]).expect_one_line(&[
        "permission denied for /dev/dri/renderD128, /dev/dri/renderD129",
        "add the user to the groups video and render",
    ]);
    // A GPU without a file is none of this container's; the other is the first then, and shared.
    let one = "mknod -m 666 renderD129 c 1 3";
    assert_eq!(run(one, &show).expect(0).sorted_lines(), ["0 0", "1 0"]);
}

#[test]
fn gpus_of_others_are_not_given_out() {
    let Some(group) = Group::new("devices", &[("devices.deny", "c 1:5 rwm")]) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let xml = with_gpus(dir.path(), &[128, 129]);
    let lines = "mknod -m 666 renderD128 c 1 5; mknod -m 666 renderD129 c 1 3";
    let run = |ranks: &str, words: &[&str]| {
        let words = [&["-n", ranks, "--gpus-per-rank", "1"], words].concat();
        group.of(with_dev(Run::new(words), &xml, lines)).run()
    };
    let show = ["sh", "-c", "echo $ROCR_VISIBLE_DEVICES"];
    assert_eq!(run("1", &show).expect(0).out(), "0\n");
    run("2", &["true"]).expect_one_line(&[
        "2 GPUs are needed, 1 for each rank, and this host has 1",
        "1 more have no device file here, or one that the control group bars",
    ]);
}
