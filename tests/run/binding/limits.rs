//! Resources that a host does not allow: CPUs outside the cgroup, and GPUs whose device files this user cannot
//! open.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{SHOW, parts};
use crate::common::topology::{AMD, sys_with_gpus};
use crate::common::{Run, skip, wireup};
use crate::users::{Reachable, as_user};
use wireup_core::topology::CpuSet;

/// A control group of version 1 of this test alone. A process stays in it: a service manager that another test starts removes
/// empty groups.
struct Group {
    path: PathBuf,
    member: Child,
}

impl Group {
    /// `None` where there is none, which is noted as a skipped test. `files` are what is written into its files.
    fn new(controller: &str, files: &[(&str, &str)]) -> Option<Self> {
        let name = format!("wireup-test-binding-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup").join(controller).join(name);
        if fs::create_dir(&path).is_err() {
            skip("needs a control group of version 1 with this controller, and root's rights");
            return None;
        }
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        let mut member = Command::new("cat");
        let member = member.stdin(Stdio::piped()).spawn().unwrap();
        fs::write(path.join("cgroup.procs"), member.id().to_string()).unwrap();
        Some(Self { path, member })
    }

    /// Puts a run into it.
    fn of(&self, run: Run) -> Run {
        run.after_shell(&format!("echo $$ >{}/cgroup.procs;", self.path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The end of its input ends the member.
        drop(self.member.stdin.take());
        let _ = self.member.wait();
        let _ = fs::remove_dir(&self.path);
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
    .expect_one_line(&["2 ranks with 1 core each need 2, but only 1 may be used"]);
}

/// Lines of a shell after which the kernel seems to have switched a CPU off, as far as `/sys` goes. `dir` is for the files.
fn switched_off(cpu: &str, dir: &Path) -> String {
    let all: CpuSet = read("/sys/devices/system/cpu/online").parse().unwrap();
    let off: CpuSet = cpu.parse().unwrap();
    let dir = dir.display();
    let mut lines = format!(
        "set -e; mount -n -t tmpfs t {dir}; mkdir {dir}/cpu; cp -dR /sys/devices/system/cpu/. {dir}/cpu/ 2>/dev/null || :; \
         rm -r {dir}/cpu/cpu{cpu}/topology {dir}/cpu/cpu{cpu}/cache; echo 0 >{dir}/cpu/cpu{cpu}/online; \
         echo {} >{dir}/cpu/online; echo {cpu} >{dir}/cpu/offline; mount -n --bind {dir}/cpu /sys/devices/system/cpu\n",
        all.without(&off)
    );
    // Its NUMA node loses it too.
    for entry in fs::read_dir("/sys/devices/system/node").unwrap() {
        let node = entry.unwrap().path();
        let Ok(list) = fs::read_to_string(node.join("cpulist")) else {
            continue;
        };
        let left = list
            .trim()
            .parse::<CpuSet>()
            .unwrap_or_default()
            .without(&off);
        let last = left.iter().max().unwrap_or(0) / 32;
        let word = |word: u32| {
            let inside = left.iter().filter(|cpu| cpu / 32 == word);
            format!(
                "{:08x}",
                inside.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
            )
        };
        let mask: Vec<String> = (0..=last).rev().map(word).collect();
        let name = node.file_name().unwrap().to_string_lossy().into_owned();
        lines += &format!(
            "echo {} >{dir}/{name}; mount -n --bind {dir}/{name} /sys/devices/system/node/{name}/cpumap\n",
            mask.join(",")
        );
    }
    lines
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn offline_cpus_are_excluded() {
    let threads = parts("hwthread");
    let [first, .., last] = &threads[..] else {
        return skip("needs two CPUs");
    };
    if !Path::new("/sys/devices/system/cpu/cpu0/topology").exists() {
        return skip("needs a kernel that shows the topology");
    }
    let dir = tempfile::tempdir().unwrap();
    let script = switched_off(last, dir.path()) + "exec \"$@\"";
    // The affinity mask still has it.
    let of = |run: Run| {
        run.under(["unshare", "-m", "sh", "-c", &script, "sh"])
            .run()
    };
    let run = |words: &[&str]| of(Run::new(words));
    let topo = [wireup().into_os_string(), "topo".into()];
    let shown = of(Run::command(topo)).expect_quiet_success().out();
    assert!(
        shown.contains(&format!("\nswitched off: {last}\n")),
        "{shown}"
    );
    let list = format!("cpu-list:{first},{last}");
    run(&["-n", "1", "--bind-to", &list, "true"]).expect_one_line(&[&format!(
        "CPU {last} is offline on this host; ranks may use the CPUs "
    )]);
    let left = threads.len() - 1;
    let bound = |words: &[&str]| {
        let own = ["--hosts", "localhost:1024", "--bind-to", "hwthread"];
        run(&[&own, words, &SHOW[..]].concat())
    };
    let expected = threads[..left].iter().enumerate();
    let mut expected: Vec<_> = expected
        .map(|(rank, cpu)| format!("{rank} {cpu}"))
        .collect();
    expected.sort();
    let ranks = left.to_string();
    assert_eq!(bound(&["-n", &ranks]).expect(0).sorted_lines(), expected);
    let more = threads.len().to_string();
    let needed = format!("each need {more}, but only {left} may be used");
    bound(&["-n", &more]).expect_one_line(&[&needed]);
}

/// Puts a run into a mount namespace with two GPUs of a type on the bus, and a `/dev` of its own, in whose `dri` `lines` make device files.
pub(super) fn with_gpus(run: Run, ids: &str, dir: &Path, lines: &str) -> Run {
    let sys = sys_with_gpus(&dir.join("sys"), ids, &[128, 129]);
    let script = format!(
        "set -e\n{sys}cd $(mktemp -d -p /dev/shm); mkdir d; mount -t tmpfs t d; cp -a /dev/null /dev/zero /dev/urandom /dev/random d/; \
         mkdir d/shm d/pts d/dri; mount --bind /dev/shm d/shm; chmod 755 d d/dri; cd d/dri; {lines}; cd ../..; \
         mount --move d /dev; cd /; rmdir \"$OLDPWD/d\" \"$OLDPWD\"; exec \"$@\""
    );
    run.under(["unshare", "-m", "sh", "-c", &script, "sh"])
}

#[test]
fn inaccessible_gpus_are_named_before_start() {
    let Some(user) = as_user() else { return };
    let parts = Reachable::new();
    let dir = tempfile::tempdir().unwrap();
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(dir.path(), readable).unwrap();
    let wireup = parts.wireup();
    let words = ["run", "--oversubscribe", "-n", "2", "--gpus-per-rank", "1"];
    let run = |lines: &str, program: &[&str]| {
        let line = [wireup.as_os_str()].into_iter().map(ToOwned::to_owned);
        let line = line.chain(words.iter().chain(program).map(Into::into));
        with_gpus(Run::command(line), AMD, dir.path(), lines)
            .under(&user)
            .run()
    };
    let accessible = "mknod -m 666 renderD128 c 1 3; mknod -m 666 renderD129 c 1 3";
    let show = ["sh", "-c", "echo $WIREUP_RANK $ROCR_VISIBLE_DEVICES"];
    assert_eq!(
        run(accessible, &show).expect(0).sorted_lines(),
        ["0 0", "1 1"]
    );
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
    let lines = "mknod -m 666 renderD128 c 1 5; mknod -m 666 renderD129 c 1 3";
    let run = |ranks: &str, words: &[&str]| {
        let words = [&["-n", ranks, "--gpus-per-rank", "1"], words].concat();
        let run = with_gpus(Run::new(words), AMD, dir.path(), lines);
        group.of(run).run()
    };
    let show = ["sh", "-c", "echo $ROCR_VISIBLE_DEVICES"];
    assert_eq!(run("1", &show).expect(0).out(), "0\n");
    run("2", &["true"]).expect_one_line(&[
        "2 GPUs are needed (1 for each rank), but this host has only 1",
        "1 more have no device file here, or the control group denies access to it",
    ]);
}
