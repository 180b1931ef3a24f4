//! Launches in jobs of a real Grid Engine: a master on the first host of a lab, an execution daemon on each. No agent
//! of wireup runs there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch_nodes::{Groups, Nodes};
use crate::cluster::{ALICE, BOB, Site};
use crate::common::{DEADLINE, Mpi, Outcome, Run, Sandbox, eventually, field};

/// Services that run on the hosts as long as these exist.
const SERVICES: [&str; 2] = ["sge_qmaster", "sge_execd"];
const RUN: [&str; 1] = ["/run/sge"];

/// Directory in which Debian has the contents of `SGE_ROOT`, and the initial configuration.
const INSTALLED: &str = "/var/lib/gridengine";
const SHARE: &str = "/usr/share/gridengine";

const BOOTSTRAP: &str = "admin_user none
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params /run/sge/spooldb
binary_path /usr/sbin
qmaster_spool_dir /run/sge/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
";

/// Parallel environment as docs/engines.md requires it.
const ENVIRONMENT: &str = "pe_name mpi
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule $round_robin
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
";

/// A queue with two slots on each host, however busy the machine is.
const QUEUE: &str = "qname all.q
hostlist @allhosts
load_thresholds NONE
suspend_thresholds NONE
processors UNDEFINED
qtype BATCH INTERACTIVE
pe_list mpi
slots 2
tmpdir /tmp
shell /bin/sh
shell_start_mode unix_behavior
initial_state default
notify 00:00:02
";

/// Other mandatory attributes, each with the value that means nothing.
const NONE: &str = "seq_no=0 nsuspend=1 suspend_interval=00:05:00 priority=0 min_cpu_interval=00:05:00 ckpt_list=NONE \
rerun=FALSE prolog=NONE epilog=NONE starter_method=NONE suspend_method=NONE resume_method=NONE terminate_method=NONE \
owner_list=NONE user_lists=NONE xuser_lists=NONE subordinate_list=NONE complex_values=NONE projects=NONE \
xprojects=NONE calendar=NONE";
const LIMITS: [&str; 9] = [
    "rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem", "",
];

/// Starts the master, before there are other hosts.
const MASTER: &str = "umask 022
mkdir -p /run/sge/qmaster/job_scripts /run/sge/spooldb || exit
cd /usr/lib/gridengine || exit
./spoolinit berkeleydb libspoolb /run/sge/spooldb init &&
./spooldefaults configuration $SGE_ROOT/global &&
./spooldefaults complexes /usr/share/gridengine/util/resources/centry &&
./spooldefaults usersets /usr/share/gridengine/util/resources/usersets &&
./spooldefaults managers root &&
exec sge_qmaster";

/// Hosts with Grid Engine. Every job must leave them clean.
struct GridEngine {
    nodes: Arc<Nodes>,
    sandbox: Arc<Sandbox>,
    wireup: PathBuf,
    root: PathBuf,
}

impl GridEngine {
    #[track_caller]
    fn new(count: usize) -> Option<Self> {
        let Site {
            dir,
            builder,
            wireup,
        } = Site::new(count)?;
        let root = dir.path().join("sge");
        let common = root.join("default/common");
        fs::create_dir_all(&common).unwrap();
        for part in ["bin", "lib", "util", "utilbin"] {
            symlink(Path::new(INSTALLED).join(part), root.join(part)).unwrap();
        }
        fs::write(common.join("bootstrap"), BOOTSTRAP).unwrap();
        fs::write(common.join("act_qmaster"), "node01\n").unwrap();
        let global = fs::read_to_string(Path::new(SHARE).join("default-configuration")).unwrap();
        let changed = [
            ("execd_spool_dir", "/run/sge/execd"),
            ("load_report_time", "00:00:02"),
            ("max_unheard", "00:00:20"),
        ];
        fs::write(root.join("global"), with(&global, &changed)).unwrap();
        let nodes = Arc::new(Nodes {
            lab: builder.start().unwrap(),
            services: &SERVICES,
            files: &RUN,
            _groups: Groups::default(),
        });
        let sandbox = Arc::new(Sandbox::of_hosts(dir, Arc::clone(&nodes) as _));
        let engine = Self {
            nodes,
            sandbox,
            wireup,
            root,
        };
        engine.start_services();
        Some(engine)
    }

    #[track_caller]
    fn start_services(&self) {
        self.call(0, &["sh", "-c", MASTER]);
        eventually("the master answers", || {
            self.tried(0, &["qconf", "-sss"]).then_some(())
        });
        let hosts = self.nodes.lab.hosts().iter();
        let names: Vec<&str> = hosts.map(|host| host.name()).collect();
        for name in &names {
            // It is one already where the master runs.
            self.tried(0, &["qconf", "-ah", name]);
            self.call(0, &["qconf", "-as", name]);
        }
        let group = format!("group_name @allhosts\nhostlist {}\n", names.join(" "));
        let none = NONE.replace(' ', "\n").replace('=', " ");
        let limits = LIMITS.iter().filter(|limit| !limit.is_empty());
        let limits = limits.map(|limit| format!("s_{limit} INFINITY\nh_{limit} INFINITY\n"));
        let queue = format!("{QUEUE}{none}\n{}", limits.collect::<String>());
        let mut shown = self.nodes.lab.host(0).command("qconf");
        let shown = shown.arg("-ssconf").env("SGE_ROOT", &self.root);
        let scheduler = shown.output().unwrap();
        let at_once = [
            ("schedule_interval", "0:0:1"),
            ("flush_submit_sec", "1"),
            ("flush_finish_sec", "1"),
        ];
        let scheduler = with(&String::from_utf8(scheduler.stdout).unwrap(), &at_once);
        for (option, text) in [
            ("-Ahgrp", &*group),
            ("-Ap", ENVIRONMENT),
            ("-Aq", &queue),
            ("-Msconf", &scheduler),
        ] {
            let file = self.root.join("file");
            fs::write(&file, text).unwrap();
            self.call(0, &["qconf", option, file.to_str().unwrap()]);
        }
        for index in 0..names.len() {
            let start = "mkdir -p /run/sge/execd && exec sge_execd";
            self.call(index, &["sh", "-c", start]);
        }
    }

    /// Whether a command of root's on a host succeeds.
    fn tried(&self, host: usize, words: &[&str]) -> bool {
        let mut command = self.nodes.lab.host(host).command(words[0]);
        command.args(&words[1..]).env("SGE_ROOT", &self.root);
        command.output().unwrap().status.success()
    }

    #[track_caller]
    fn call(&self, host: usize, words: &[&str]) {
        assert!(self.tried(host, words), "{words:?}");
    }

    /// Submits the script of a user in that number of slots, and waits for its end. Its output is in a file with the
    /// name, and its errors in a second one: qrsh has some of its own now and then when it ends ("got pipe error").
    fn submit(&self, user: u32, slots: u32, name: &str, script: &str) -> Run {
        let dir = self.sandbox.work();
        let file = dir.join(format!("{name}.sh"));
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        let (slots, user) = (slots.to_string(), user.to_string());
        let words = ["qsub", "-sync", "y", "-pe", "mpi", &slots];
        let words = words.into_iter().chain(["-N", name]);
        let words = words.map(OsStr::new).map(OsStr::to_owned);
        let output = dir.join(name);
        let errors = errors_of(&output);
        let words = words.chain(["-o".into(), output.into(), "-e".into(), errors.into()]);
        let words = words.chain(["-wd".into(), dir.into(), file.into()]);
        Run::command(words)
            .on_host(0, &self.sandbox)
            .under(["setpriv", "--reuid", &user, "--regid", &user])
            .under(["--clear-groups", "--"])
            .env("SGE_ROOT", &self.root)
            .env("HOME", "/tmp")
            // It ends a job some time after it has lost a node.
            .deadline(5 * DEADLINE)
            .clean_within(DEADLINE)
    }

    fn printed(&self, name: &str) -> String {
        fs::read_to_string(self.sandbox.work().join(name)).unwrap_or_default()
    }

    fn errors(&self, name: &str) -> String {
        let file = errors_of(&self.sandbox.work().join(name));
        fs::read_to_string(file).unwrap_or_default()
    }

    /// The script of a job that launches this.
    fn script(&self, words: &str) -> String {
        format!("exec {} run {words}", self.wireup.display())
    }

    /// Returns the output of such a job of Alice, which must succeed.
    #[track_caller]
    fn run(&self, slots: u32, name: &str, words: &str) -> Outcome {
        let run = self.submit(ALICE, slots, name, &self.script(words));
        let mut outcome = run.run();
        let printed = self.printed(name);
        let errors = self.errors(name);
        assert_eq!(outcome.code, 0, "{outcome:?}\n{printed}\n{errors}");
        outcome.stdout = printed.into_bytes();
        outcome
    }
}

/// Path of a job's errors, from that of its output.
fn errors_of(output: &Path) -> PathBuf {
    output.with_extension("errors")
}

/// A configuration with other values for some names.
fn with(text: &str, changed: &[(&str, &str)]) -> String {
    let line = |line: &str| {
        let name = line.split_ascii_whitespace().next();
        match changed.iter().find(|(known, _)| name == Some(known)) {
            Some((name, value)) => format!("{name} {value}\n"),
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

for_each_mpi!(openmpi4 mpich4 mpich5 openmpi5 impi: {
    programs_and_spawns_run_in_job => |mpi| programs(&mpi.with_dynamic_processes()),
});

fn programs(mpi: &Mpi) {
    let Some(engine) = GridEngine::new(3) else {
        return;
    };
    let env = mpi.env.iter();
    let env: String = env
        .map(|(name, value)| format!("-x '{name}={value}' "))
        .collect();
    let program = |name: &str| format!("{env}{}", mpi.program(name).display());
    let outcome = engine.run(6, "hello", &program("hello"));
    // In whatever order the nodes are.
    let lines = outcome.by_rank("hello", 6);
    let hosts = lines.iter().map(|line| field(line, "host").unwrap());
    let hosts: Vec<&str> = hosts.collect();
    let nodes: BTreeSet<&str> = hosts.iter().copied().collect();
    assert_eq!(nodes, BTreeSet::from(["node01", "node02", "node03"]));
    for pair in hosts.chunks(2) {
        assert_eq!(pair[0], pair[1], "{outcome:?}");
    }
    if mpi.name == "mpich4" {
        // It hangs between hosts, under its own launcher too, when it merges.
        return;
    }
    let outcome = engine.run(6, "spawn", &format!("-n 2 {}", program("spawn")));
    assert_eq!(
        outcome.out().matches("spawned rank=").count(),
        2,
        "{outcome:?}"
    );
}

#[test]
fn grid_engine_job_needs_no_options_and_is_cleaned_up() {
    let Some(engine) = GridEngine::new(3) else {
        return;
    };
    let place = "sh -c 'echo $WIREUP_RANK $(hostname)'";
    let outcome = engine.run(3, "three", "hostname");
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);
    let outcome = engine.run(6, "some", &format!("--hosts node03,node01:1 {place}"));
    assert_eq!(outcome.sorted_lines(), ["0 node03", "1 node03", "2 node01"]);
    let outcome = engine.run(1, "one", place);
    assert_eq!(outcome.sorted_lines().len(), 1, "{outcome:?}");
    let script = engine.script("sh -c 'exit 3'");
    engine.submit(ALICE, 3, "failed", &script).run().expect(3);

    let stay = engine.script("sh -c 'echo up; exec sleep 1000'");
    let stay = format!("echo script of $(hostname)\n{stay}");
    let start = |user: u32, name: &str| {
        let running = engine.submit(user, 3, name, &stay).start();
        eventually("its ranks run", || {
            let up = engine.printed(name).matches("up\n").count();
            (up == 3).then_some(())
        });
        running
    };
    // Two users at once: one deletes a job, and the other's goes on.
    let (alices, bobs) = (start(ALICE, "alices"), start(BOB, "bobs"));
    let ranks = || {
        let hosts = engine.nodes.lab.hosts().iter();
        let all = hosts.flat_map(|host| host.processes());
        all.filter(|process| process.name == "sleep").count()
    };
    assert_eq!(ranks(), 6);
    engine.call(0, &["qdel", "-u", "alice"]);
    eventually("the ranks of the deleted job have ended", || {
        (ranks() == 3).then_some(())
    });
    alices.finish();
    // Now and then qdel kills the launcher's guard before it has removed the launch's files: the user's next launch there
    // removes them, and all are looked for when Bob's job has ended.
    let (alice, wireup) = (ALICE.to_string(), engine.wireup.to_str().unwrap());
    for host in 0..3 {
        let user = [
            "setpriv",
            "--reuid",
            &alice,
            "--regid",
            &alice,
            "--clear-groups",
        ];
        engine.call(
            host,
            &[&user[..], &[wireup, "run", "-n", "1", "true"]].concat(),
        );
    }
    // A node is lost: not the one where the launch began, nor the master's.
    let of_bob = engine.printed("bobs");
    let began = of_bob
        .lines()
        .find_map(|line| line.strip_prefix("script of "));
    let lost = if began == Some("node03") { 1 } else { 2 };
    let lost = engine.nodes.lab.host(lost);
    engine.nodes.lab.crash(lost).unwrap();
    let outcome = bobs.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let (printed, line) = (
        engine.errors("bobs"),
        format!("wireup: host {}", lost.name()),
    );
    assert!(printed.contains(&line), "{printed}");
}
