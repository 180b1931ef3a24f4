//! The line that a terminal shows while a launch starts: one phase after the other, each with the host that is waited for.

use crate::cluster::Cluster;
use crate::common::{Output, Running, eventually};
use crate::doctor::on;

/// Returns the text visible on a terminal after all output was written to it.
fn screen(running: &Running) -> String {
    let written = running.so_far(Output::Stdout);
    let text = String::from_utf8_lossy(&written).into_owned();
    let shown = text
        .split('\n')
        .map(|line| line.rsplit("\r\u{1b}[K").next().unwrap_or(line));
    shown.collect::<Vec<_>>().join("\n")
}

/// Rank 5 waits for a file in front of each step.
const SCRIPT: &str = r#"ask() { printf "$1\n" >&3; read -r reply <&3; }
    late() { [ $WIREUP_RANK != 5 ] || until [ -e "$GO-$1" ]; do sleep 0.1; done; }
    late init
    ask 'cmd=init pmi_version=1 pmi_subversion=1'
    late fence
    ask cmd=barrier_in
    echo "rank $WIREUP_RANK runs"
    late end
    ask cmd=finalize"#;

#[test]
fn each_phase_of_start_names_awaited_host() {
    let Some(cluster) = Cluster::builder(3).heartbeat("60").start() else {
        return;
    };
    // The PMIx server of the third host waits for a file too.
    let server = cluster.wireup().with_file_name("wireup-pmix-host");
    let real = server.with_extension("real");
    std::fs::hard_link(&server, &real).unwrap();
    let (server, real) = (server.display(), real.display());
    let (go, held) = (cluster.dir().join("go"), cluster.dir().join("held"));
    let (go, held) = (go.to_str().unwrap(), held.display());
    on(
        &cluster,
        2,
        &format!(
            "printf '#!/bin/sh\\nuntil [ -e {go}-server ]; do sleep 0.1; done\\nexec {real} \"$@\"\\n' >{held}; \
             chmod +x {held}; mount -n --bind {held} {server}"
        ),
    );
    cluster.host(2).pause().unwrap();
    let hosts = ["--hosts", "node01:2,node02:2,node03:2", "-n", "6"];
    let options = ["--pmi", "all", "bash", "-c", SCRIPT];
    let run = cluster.run(0, hosts).more(options).env("GO", go);
    let running = run.terminal().start();
    let wait_for_line = |line: &str| running.wait_for(Output::Stdout, &format!("wireup: {line}"));
    let release = |what: &str| on(&cluster, 2, &format!(": >{go}-{what}"));

    wait_for_line("agents: 2 of 3 hosts have joined, waiting for node03");
    cluster.host(2).resume().unwrap();
    wait_for_line("PMIx servers: 2 of 3 hosts are ready, waiting for node03");
    release("server");
    wait_for_line("in init: 5 of 6 ranks connected, waiting for rank 5 (node03, pid ");
    release("init");
    wait_for_line("in the first fence: 5 of 6 ranks, waiting for node03 (1 rank)");
    release("fence");
    running.wait_for_many(Output::Stdout, " runs", 6);
    // It runs: nothing is waited for, although a rank goes on.
    eventually("no line while it runs", || {
        (!screen(&running).contains("waiting")).then_some(())
    });
    release("end");
    running.finish().expect(0);
    on(&cluster, 2, &format!("umount -n {server}"));
}

/// A file system of a host that stands still until this is dropped.
struct Frozen<'c>(&'c Cluster, usize);

impl<'c> Frozen<'c> {
    fn new(cluster: &'c Cluster, host: usize) -> Self {
        on(
            cluster,
            host,
            "truncate -s 16M /tmp/disk; mkfs.ext4 -q /tmp/disk; mkdir /tmp/held; \
             mount -n -o loop /tmp/disk /tmp/held; fsfreeze -f /tmp/held",
        );
        Self(cluster, host)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        on(self.0, self.1, "fsfreeze -u /tmp/held");
    }
}

#[test]
fn host_without_arriving_files_is_named() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for host in 0..3 {
        cluster.excuse(host);
    }
    on(&cluster, 0, "mkdir /tmp/held; echo contents >/tmp/data.txt");
    on(&cluster, 1, "mkdir /tmp/held");
    let frozen = Frozen::new(&cluster, 2);
    let hosts = [
        "--hosts",
        "node01,node02,node03",
        "-n",
        "3",
        "--wdir",
        "/tmp/held",
    ];
    let files = ["--stage=/tmp/data.txt", "cat", "data.txt"];
    let running = cluster.run(0, hosts).more(files).terminal().start();
    let line = "wireup: staging: 2 of 3 hosts have the files, waiting for node03";
    running.wait_for(Output::Stdout, line);
    drop(frozen);
    let outcome = running.finish().expect(0);
    assert_eq!(outcome.out().matches("contents").count(), 3, "{outcome:?}");
    on(
        &cluster,
        2,
        "rm -f /tmp/held/data.txt; umount -n /tmp/held; rm /tmp/disk",
    );
    on(&cluster, 0, "rm /tmp/data.txt");
    for host in 0..3 {
        on(&cluster, host, "rmdir /tmp/held");
        cluster.expect_clean(host);
    }
}

#[test]
fn host_that_starts_ranks_slowly_is_named() {
    let Some(cluster) = Cluster::builder(3).heartbeat("60").start() else {
        return;
    };
    let group = Quota::new(&cluster, 2, 3);
    let hosts = ["--hosts", "node01:4,node02:4,node03:250", "-n", "258"];
    let options = [
        "--map-by",
        "slot",
        "--pmi",
        "none",
        "sh",
        "-c",
        "exec sleep 1",
    ];
    let running = cluster.run(0, hosts).more(options).terminal().start();
    let out = running.wait_for(
        Output::Stdout,
        " of 258 ranks started, waiting for node03 (",
    );
    let line = out.rsplit("wireup: ").next().unwrap();
    assert!(line.contains(" ranks)"), "{line}");
    drop(group);
    running.finish().expect(0);
}

/// A share of a processor, in percent, for all that runs on a host, until it is dropped.
struct Quota<'c>(&'c Cluster, usize);

const GROUP: &str = "g=/sys/fs/cgroup/cpu; [ -d $g ] || g=/sys/fs/cgroup";

impl<'c> Quota<'c> {
    fn new(cluster: &'c Cluster, host: usize, percent: u32) -> Self {
        let (own, quota) = (std::process::id(), percent * 1000);
        on(
            cluster,
            host,
            &format!(
                "{GROUP}; d=$g/wireup-live-{own}; mkdir $d; \
                 if [ -e $d/cpu.max ]; then echo {quota} 100000 >$d/cpu.max; \
                 else echo 100000 >$d/cpu.cfs_period_us; echo {quota} >$d/cpu.cfs_quota_us; fi; \
                 for p in $(ls /proc | grep '^[0-9]'); do [ $p = $$ ] || echo $p >$d/cgroup.procs 2>/dev/null || true; done"
            ),
        );
        Self(cluster, host)
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        let own = std::process::id();
        on(
            self.0,
            self.1,
            &format!(
                "{GROUP}; d=$g/wireup-live-{own}; while ! rmdir $d 2>/dev/null; do \
                 for p in $(cat $d/cgroup.procs); do echo $p >$g/cgroup.procs 2>/dev/null || true; done; done"
            ),
        );
    }
}
