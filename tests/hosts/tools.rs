//! PMIx tools of launches on several hosts.

use std::io::Write as _;
use std::process::ChildStdin;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Output, Pmix, Running, eventually, field, number};
use crate::pmix::versions;

/// Attaches to the only server of its host.
const ATTACH: &str = "while f=$(find /tmp \"$TMPDIR\" -name 'pmix.*.tool' 2>/dev/null | head -1); [ -z \"$f\" ]; do \
                      sleep 0.1; done; sleep 1; exec \"$1\" \"$f\"";

#[test]
fn tool_on_any_host_spawns_and_debugs_on_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        let hosts = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];
        let job = cluster.run(0, hosts).more(["--libpmix", library.path()]);
        let client = library.dir.join("pmix_client");
        let job = job.more([client.to_str().unwrap(), "linger"]).start();
        let program = |name: &str| library.dir.join(name).display().to_string();
        // Not where the launcher is.
        let words = ["sh", "-c", ATTACH, "sh", &program("pmix_debugger")];
        let mut tool = cluster.command(1, words).stdin_held().start();
        let mut orders = tool.stdin();
        tool.wait_for(Output::Stdout, "pmix_debugger attached");
        let mut spawns = 0;
        let mut spawn = |what: &str| {
            writeln!(orders, "spawn {what}").unwrap();
            spawns += 1;
            let text = "pmix_debugger spawned=";
            let output = tool.wait_for_many(Output::Stdout, text, spawns);
            let line = output.lines().rfind(|line| line.starts_with(text)).unwrap();
            field(line, "spawned").unwrap().to_owned()
        };
        let stops = format!(
            "pmix.dbg.init=@1 pmix.mapby=node -- 2 {}",
            program("pmix_stop")
        );
        let child = spawn(&stops);
        tool.wait_for(Output::Stdout, &format!("ready={child} at=pmix-init"));
        tool.wait_for(Output::Stdout, "pmix_stop rank=0 begun");
        let wants = format!(
            "pmix.debugger pmix.dbg.tgt={child}:-2 pmix.dbg.dpnd=#1 -- 0 {}",
            program("pmix_daemon")
        );
        let daemons = spawn(&wants);
        let output = tool.wait_for_many(Output::Stdout, " lrank=0 ", 2);
        for line in output.lines().filter(|line| line.contains(" lrank=0 ")) {
            assert_eq!(number(line, "local"), 1, "{line}");
            assert_eq!(number(line, "node"), number(line, "rank"), "{line}");
        }
        assert!(!output.contains("rank=1 begun"), "{output}");
        writeln!(orders, "release {child} 1").unwrap();
        tool.wait_for(Output::Stdout, "pmix_stop rank=1 begun");
        tool.wait_for(Output::Stdout, &format!("ended={child} status=0"));
        tool.wait_for_many(Output::Stdout, " over\n", 2);
        tool.wait_for(Output::Stdout, &format!("ended={daemons} status=0"));
        job.signal(Signal::TERM);
        let outcome = job.finish().expect(143);
        assert!(!outcome.out().contains("begun"), "{outcome:?}");
        // The event of the first job: killed by the signal, and reported before the server's end.
        tool.wait_for(Output::Stdout, "status=-184 code=143");
        drop(orders);
        tool.finish().expect(0);
    }
}

#[test]
fn tool_directs_indirect_launch_on_two_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        let program = |name: &str| library.dir.join(name).display().to_string();
        let hosts = ["--hosts", "node01:1,node02:1", "-n", "2"];
        let job = cluster.run(0, hosts).more(["--libpmix", library.path()]);
        let debugger = program("pmix_debugger");
        let words = [&*debugger, "launch", "pmix.dbg.init", "--"];
        let job = job.more([&program("pmix_stop")]).under(words);
        let mut tool = job.stdin_held().start();
        let mut orders = tool.stdin();
        tool.wait_for(Output::Stdout, "pmix_debugger attached");
        writeln!(orders, "go").unwrap();
        let output = tool.wait_for(Output::Stdout, "pmix_debugger launched=");
        let line = output
            .lines()
            .find(|line| line.contains("launched="))
            .unwrap();
        let name = field(line, "launched").unwrap().to_owned();
        tool.wait_for(Output::Stdout, &format!("ready={name} at=pmix-init"));
        writeln!(orders, "release {name}").unwrap();
        tool.wait_for_many(Output::Stdout, " begun\n", 2);
        tool.wait_for(Output::Stdout, "pmix_debugger lost");
        drop(orders);
        tool.finish().expect(0);
    }
}

/// `pmix_debugger` on a host, attached to the only job.
fn debugger(cluster: &Cluster, library: &Pmix, host: usize) -> (Running, ChildStdin) {
    let debugger = library.dir.join("pmix_debugger").display().to_string();
    let words = ["sh", "-c", ATTACH, "sh", &debugger];
    let mut tool = cluster.command(host, words).stdin_held().start();
    let orders = tool.stdin();
    tool.wait_for(Output::Stdout, "pmix_debugger attached");
    (tool, orders)
}

#[test]
fn tool_on_other_host_pauses_and_ends_job() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        let hosts = ["--hosts", "node01:1,node02:1", "-n", "2", "--pmi", "pmix"];
        let job = cluster.run(0, hosts).more(["--libpmix", library.path()]);
        let job = job.more(["sh", "-c", "echo of $PMIX_NAMESPACE end; exec sleep 1000"]);
        let job = job.start();
        let output = job.wait_for_many(Output::Stdout, " end\n", 2);
        let name = output.split_whitespace().nth(1).unwrap().to_owned();
        let (tool, mut orders) = debugger(&cluster, &library, 1);
        // It comes late, and gets what they have printed all the same.
        writeln!(orders, "pull {name}").unwrap();
        for rank in [0, 1] {
            tool.wait_for(
                Output::Stdout,
                &format!("got rank={rank} channel=2 text=of {name} end"),
            );
        }
        writeln!(orders, "control {name} -2 pmix.jctrl.pause").unwrap();
        tool.wait_for(Output::Stdout, "control=pmix.jctrl.pause status=0");
        eventually("both ranks are stopped", || {
            let processes = job.processes();
            let stopped = processes.iter().filter(|one| one.state == 'T');
            (stopped.count() == 2).then_some(())
        });
        writeln!(orders, "control {name} -2 pmix.jctrl.term").unwrap();
        let outcome = job.finish().expect(143);
        outcome.expect_one_line(&["a tool had the job ended by signal 15"]);
        tool.signal(Signal::KILL);
        tool.finish().expect(137);
    }
}

#[test]
fn ranks_continue_or_end_after_loss_of_awaited_tool() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        for (policy, stops, code) in [
            ("release", "--stop-at=init", 0),
            ("release", "--stop-at=exec", 0),
            ("end", "--stop-at=init", 143),
        ] {
            let hosts = ["--hosts", "node01:1,node02:1", "-n", "2"];
            let options = ["--on-tool-loss", policy, stops, "--libpmix", library.path()];
            let program = library.dir.join("pmix_stop");
            let job = cluster.run(0, hosts).more(options).more([program]).start();
            let (tool, _orders) = debugger(&cluster, &library, 1);
            tool.wait_for(Output::Stdout, "pmix_debugger ready=");
            tool.signal(Signal::KILL);
            tool.finish().expect(137);
            let outcome = job.finish().expect(code);
            let err = outcome.err();
            assert_eq!(err.contains("a debugger that is gone"), code != 0, "{err}");
        }
    }
}

#[test]
fn tool_on_any_host_starts_sidecars_of_job_without_pmix() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        let hosts = ["--hosts", "node01:2,node02:2", "-n", "4", "--pmi", "pmi1"];
        let job = cluster.run(0, hosts).more(["--libpmix", library.path()]);
        let script = "echo start; while :; do echo here $WIREUP_RANK; sleep 0.05; done";
        let job = job.more(["sh", "-c", script]).start();
        job.wait_for_many(Output::Stdout, "start\n", 4);
        // Not where the launcher is.
        let (tool, mut orders) = debugger(&cluster, &library, 1);
        let output = tool.wait_for(Output::Stdout, "pmix_debugger attached");
        let line = output
            .lines()
            .find(|line| line.contains("attached"))
            .unwrap();
        let own = field(line, "nspace").unwrap();
        let (name, _) = own.split_once("-tool-").unwrap();
        writeln!(orders, "pull {name}").unwrap();
        for rank in 0..4 {
            tool.wait_for(Output::Stdout, &format!("got rank={rank} "));
        }
        let daemon = library.dir.join("pmix_daemon");
        let wants = format!("pmix.debugger pmix.dbg.tgt={name}:-2 pmix.dbg.dpnd=#1");
        writeln!(orders, "spawn {wants} -- 0 {}", daemon.display()).unwrap();
        let output = tool.wait_for_many(Output::Stdout, " lrank=0 ", 2);
        for line in output.lines().filter(|line| line.contains(" lrank=0 ")) {
            assert_eq!(number(line, "local"), 2, "{line}");
        }
        writeln!(orders, "control {name} -2 pmix.jctrl.pause").unwrap();
        eventually("all shells are stopped", || {
            let processes = job.processes();
            let shells = processes.iter().filter(|one| one.name == "sh");
            (shells.filter(|one| one.state == 'T').count() == 4).then_some(())
        });
        job.signal(Signal::TERM);
        job.finish().expect(143);
        tool.wait_for(Output::Stdout, "code=143");
        drop(orders);
        tool.finish().expect(0);
    }
}

#[test]
fn cospawned_daemons_run_on_hosts_of_ranks_and_forward_output() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for library in versions() {
        let hosts = [
            "--oversubscribe",
            "--hosts",
            "node01:2,node02:2",
            "-n",
            "4",
            "--pmi",
            "pmix",
        ];
        let job = cluster.run(0, hosts).more(["--libpmix", library.path()]);
        let job = job.more(["sleep", "1000"]).start();
        let program = |name: &str| library.dir.join(name).display().to_string();
        let (tool, mut orders) = debugger(&cluster, &library, 1);
        let ranks = format!(
            "pmix.dbg.init pmix.mapby=node -- 2 {}",
            program("pmix_stop")
        );
        let daemons = format!(
            "pmix.debugger pmix.dbg.dpnd=#1 0 {}",
            program("pmix_daemon")
        );
        writeln!(orders, "spawn {ranks} ++ {daemons}").unwrap();
        let output = tool.wait_for(Output::Stdout, "pmix_debugger spawned=");
        let line = output
            .lines()
            .find(|line| line.contains("spawned="))
            .unwrap();
        let child = field(line, "spawned").unwrap().to_owned();
        // A daemon on each host, for the rank there.
        let shown = job.wait_for_many(Output::Stdout, " lrank=0 ", 2);
        let lines = shown.lines().filter(|line| line.contains(" lrank=0 "));
        let mut nodes: Vec<u32> = lines
            .map(|line| {
                assert_eq!(number(line, "local"), 1, "{line}");
                assert_eq!(
                    field(line, "target"),
                    Some(&*format!("{child}.-2")),
                    "{line}"
                );
                number(line, "node")
            })
            .collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1]);
        tool.wait_for(Output::Stdout, &format!("ready={child} at=pmix-init"));
        // The last of the names is theirs.
        writeln!(orders, "ask pmix.qry.ns").unwrap();
        let output = tool.wait_for(Output::Stdout, "pmix_debugger pmix.qry.ns=");
        let names = output
            .lines()
            .find(|line| line.contains("qry.ns="))
            .unwrap();
        let beside = names.rsplit(',').next().unwrap();
        writeln!(orders, "pull {beside}").unwrap();
        for rank in [0, 1] {
            let text = format!("got rank={rank} channel=2 text=pmix_daemon rank={rank} ");
            tool.wait_for(Output::Stdout, &text);
        }
        writeln!(orders, "release {child}").unwrap();
        tool.wait_for(Output::Stdout, &format!("ended={child} status=0"));
        tool.wait_for_many(Output::Stdout, "text=pmix_daemon rank=", 4);
        job.signal(Signal::TERM);
        job.finish().expect(143);
        drop(orders);
        tool.finish().expect(0);
    }
}
