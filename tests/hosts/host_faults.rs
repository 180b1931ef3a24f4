//! A fault of one host of four: `wireup doctor` names the host before a launch, and the report of a launch
//! shows it after.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{Mpi, Outcome, mpi, program};
use crate::doctor::{doctor, drop_firewall, on, raise_firewall};

const ALL: &str = "node[01-04]";

/// Returns the data in a report's page.
fn page(outcome: &Outcome) -> Value {
    let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
    let start = r#"<script id="data" type="application/json">"#;
    let (_, data) = page.split_once(start).unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

/// Eight ranks of an MPI's program on the four hosts, with a report.
fn launch(cluster: &Cluster, mpi: &Mpi, options: &[&str], program: &str) -> Outcome {
    let list = ["--hosts", "node01:2,node02:2,node03:2,node04:2", "-n", "8"];
    let run = cluster.run(0, [&list[..], &["--report", "page.html"], options].concat());
    let run = run.more([mpi.program(program)]);
    let variables = mpi.env.iter();
    variables
        .fold(run, |run, (name, value)| run.env(name, value))
        .run()
}

/// The host of the first cause, which its message names too.
#[track_caller]
fn expect_cause(outcome: &Outcome, host: &str) {
    let page = page(outcome);
    let cause = &page["timeline"]["outcome"]["cause"];
    assert_eq!(cause["host"], host, "{cause}: {outcome:?}");
    let message = cause["message"].as_str().unwrap();
    assert!(message.contains(host), "{message}");
    assert_ne!(outcome.code, 0);
}

#[test]
fn cpu_quota_is_found_by_doctor_and_host_becomes_straggler() {
    let (Some(cluster), Some(program)) = (Cluster::new(4), program("pmi_wireup")) else {
        return;
    };
    let program = cluster.copy(&program);
    let controller = "g=/sys/fs/cgroup/cpu; [ -d $g ] || g=/sys/fs/cgroup";
    let own = std::process::id();
    // A fiftieth of a processor for all that runs on the third host: less than a busy machine leaves to the others.
    on(
        &cluster,
        2,
        &format!(
            "{controller}; d=$g/wireup-seen-{own}; mkdir $d; \
             if [ -e $d/cpu.max ]; then echo 2000 100000 >$d/cpu.max; \
             else echo 100000 >$d/cpu.cfs_period_us; echo 2000 >$d/cpu.cfs_quota_us; fi; \
             for p in $(ls /proc | grep '^[0-9]'); do [ $p = $$ ] || echo $p >$d/cgroup.procs 2>/dev/null || true; done"
        ),
    );
    let (_, found) = doctor(&cluster, ALL, &["--ppn", "1"]);
    found.expect("cpus", "node03", "the cgroup's quota");
    let busy = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; exec \"$0\"";
    let list = ["--hosts", "node01,node02,node03,node04", "-n", "4"];
    let run = cluster.run(0, [&list[..], &["--report", "page.html"]].concat());
    let outcome = run
        .more(["sh", "-c", busy])
        .more([&program])
        .run()
        .expect(0);
    let page = page(&outcome);
    let hosts = page["timeline"]["hosts"].as_object().unwrap().values();
    let slowest = hosts.max_by_key(|host| host["held_up"].as_u64().unwrap());
    assert_eq!(slowest.unwrap()["name"], "node03", "{page}");
    on(
        &cluster,
        2,
        &format!(
            "{controller}; d=$g/wireup-seen-{own}; \
             for p in $(cat $d/cgroup.procs); do echo $p >$g/cgroup.procs; done; rmdir $d"
        ),
    );
}

#[test]
fn full_shared_memory_is_reported_by_doctor_and_after_failure() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(4), mpi("mpich5")) else {
        return;
    };
    launch(&cluster, &mpi, &[], "hello").expect(0);
    cluster.excuse(2);
    on(
        &cluster,
        2,
        "mount -n -t tmpfs -o size=4k t /dev/shm; head -c 4096 /dev/zero >/dev/shm/full",
    );
    let (_, found) = doctor(&cluster, ALL, &["--ppn", "2"]);
    found.expect("shm", "node03", "/dev/shm has ");
    expect_cause(&launch(&cluster, &mpi, &[], "hello"), "node03");
    on(&cluster, 2, "umount -n /dev/shm");
    cluster.expect_clean(2);
}

#[test]
fn host_with_different_library_is_found_by_doctor_and_launch() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(4), mpi("openmpi5")) else {
        return;
    };
    launch(&cluster, &mpi, &[], "hello").expect(0);
    let hello = mpi.program("hello");
    let hello = hello.to_str().unwrap();
    let library =
        "library=$(readlink -f $(ldd $0 | sed -n 's/.*libmpi[.]so[^ ]* => \\([^ ]*\\) .*/\\1/p'))";
    let broken = "head -c 100000 $library >/tmp/libmpi; mount -n --bind /tmp/libmpi $library";
    cluster.excuse(1);
    let mut shell = cluster.host(1).command("sh");
    let output = shell
        .args(["-c", &format!("{library}; {broken}"), hello])
        .output();
    assert!(output.as_ref().unwrap().status.success(), "{output:?}");
    let (_, found) = doctor(&cluster, ALL, &["--ppn", "2", hello]);
    found.expect("mpi-build", "node02", "libmpi");
    expect_cause(&launch(&cluster, &mpi, &[], "hello"), "node02");
    on(
        &cluster,
        1,
        "umount -n $(sed -n 's/^[^ ]* \\([^ ]*libmpi[^ ]*\\) .*/\\1/p' /proc/mounts); rm -f /tmp/libmpi",
    );
    cluster.expect_clean(1);
}

#[test]
fn firewall_is_found_by_doctor_and_reported_by_launch() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(4), mpi("openmpi5")) else {
        return;
    };
    launch(&cluster, &mpi, &[], "allreduce").expect(0);
    raise_firewall(&cluster, 3);
    let (_, found) = doctor(&cluster, ALL, &["--ppn", "2"]);
    found.expect("firewall", "node03", "no connection to node04");
    let outcome = launch(&cluster, &mpi, &["--timeout", "60"], "allreduce");
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let page = page(&outcome);
    let cause = page["timeline"]["outcome"]["cause"]["message"].as_str();
    assert!(cause.is_some_and(|cause| !cause.is_empty()), "{page}");
    let advice = page["timeline"]["outcome"]["advice"].as_str().unwrap();
    assert!(
        advice.contains("wireup doctor --hosts 'node[01-04]' "),
        "{advice}"
    );
    drop_firewall(&cluster, 3);
}
