//! Jobs on several hosts as far as the launcher alone decides them: lists of hosts, plans, and
//! refusals before any host is contacted.

use std::io::Read as _;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::common::{Outcome, Run, mpi, pmix, skip, wireup};
use crate::users::{Reachable, as_user};

/// Returns the output of `--dry-run`.
#[track_caller]
fn plan(args: &[&str]) -> String {
    let args = ["--dry-run"].iter().chain(args);
    Run::new(args).run().expect_quiet_success().out()
}

#[track_caller]
fn expect(output: &str, lines: &[&str]) {
    for line in lines {
        assert!(output.contains(line), "no {line:?} in\n{output}");
    }
}

#[test]
fn dry_run_prints_hosts_with_ranks_and_connections() {
    let output = plan(&[
        "--hosts",
        "n[1-2]:2@10.0.0.[1-2],n3",
        "-n",
        "6",
        "/not/here",
        "x",
    ]);
    expect(
        &output,
        &[
            "job        6 ranks on 3 hosts (2 slots on n[1-2]; slots not given on n3)\n",
            "placement  n1 (10.0.0.1:7437, 2 slots) has ranks 0-1\n",
            "placement  n2 (10.0.0.2:7437, 2 slots) has ranks 2-3\n",
            "placement  n3 (n3:7437) has ranks 4-5\n",
            "contacts   a star: n1 contacts the other 2",
            "agent      this host's, at /",
            "program 1  /not/here x (6 ranks)\n",
            " on each host (this directory)\n",
            "/not/here is not on this machine\n",
            "interface  PMI and PMIx: the interface of program 1 cannot be determined",
            "server     every host finds its own, and libpmix\n",
            "  WIREUP_NODELIST=n1,n2,n3\n",
            "  WIREUP_HOST=n1\n",
        ],
    );
}

#[test]
fn host_list_of_this_machine_needs_no_agent() {
    let expect_output = |hosts: &[&str], expected: &[&str]| {
        let words = [hosts, &["sh", "-c", "echo $WIREUP_RANK of $WIREUP_SIZE"]].concat();
        let outcome = Run::new(&words).run().expect_quiet_success();
        assert_eq!(outcome.sorted_lines(), expected, "{hosts:?}");
    };
    expect_output(&["--hosts", "localhost", "-n", "1"], &["0 of 1"]);
    // Declared slots replace the number of cores.
    let many: Vec<String> = (0..9).map(|rank| format!("{rank} of 9")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    expect_output(&["-H", "localhost:9"], &many);
    expect_output(&["-host", "127.0.0.1:9", "-n", "9"], &many);
    // Nor does one that has its other names.
    let uname = rustix::system::uname();
    let own = uname.nodename().to_str().unwrap();
    expect_output(&["--hosts", own, "-n", "1"], &["0 of 1"]);
    let list = format!("{own}.:2,127.0.1.1:7");
    expect_output(&["--hosts", &list], &many);
    // The address of the default route; nothing is sent.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_ok() {
        let address = socket.local_addr().unwrap().ip().to_string();
        expect_output(&["--hosts", &address, "-n", "1"], &["0 of 1"]);
    }
    let more = ["--hosts", "localhost:2", "-n", "3", "true"];
    Run::new(more).run().expect(125).expect_one_line(&[
        "3 ranks do not fit in 2 slots (named for this machine or left by --cpus-per-rank)",
        "--oversubscribe",
    ]);
    expect_output(
        &["--hosts", "localhost:2", "--oversubscribe", "-n", "3"],
        &["0 of 3", "1 of 3", "2 of 3"],
    );
}

#[test]
fn ranks_fill_slots_of_hosts() {
    let placed = |args: &[&str]| {
        let output = plan(&[args, &["true"]].concat());
        let lines = output
            .lines()
            .filter_map(|line| line.strip_prefix("placement  "));
        let lines = lines.map(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            let (_, ranks) = rest.split_once(") has ").unwrap();
            format!("{name} {ranks}")
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(placed(&["--hosts", "b:3,a:1"]), ["b ranks 0-2", "a rank 3"]);
    assert_eq!(
        placed(&["--hosts", "a:2,b:1,c:0,d:2", "--map-by", "node"]),
        ["a ranks 0,3", "b rank 1", "c no ranks", "d ranks 2,4"]
    );
    assert_eq!(
        placed(&["--hosts", "a", "--hosts", "b", "--ppn", "2"]),
        ["a ranks 0-1", "b ranks 2-3"]
    );
    assert_eq!(
        placed(&["-H", "a:1,b:1", "-np", "3", "--oversubscribe"]),
        ["a ranks 0-1", "b rank 2"]
    );
    let apps = ["--hosts", "a:2,b:2", "-n", "1", "true", ":", "-n", "3"];
    assert_eq!(placed(&apps), ["a ranks 0-1", "b ranks 2-3"]);
}

#[test]
fn many_hosts_form_tree() {
    let output = plan(&["--hosts", "n[1-200]:1", "true"]);
    expect(
        &output,
        &[
            "contacts   a tree below n1: each host contacts at most 4 others (--tree-width), 4 levels deep\n",
        ],
    );
    let output = plan(&["--hosts", "n[1-200]", "--tree-width", "199", "true"]);
    expect(&output, &["contacts   a star: n1 contacts the other 199"]);
    let output = plan(&["--hosts", "n[1-7]", "--tree-width=2", "true"]);
    expect(
        &output,
        &["at most 2 others (--tree-width), 2 levels deep\n"],
    );
}

#[test]
fn host_files_are_read_on_host_of_launcher() {
    let run = Run::new(["--dry-run", "--hostfile", "hosts", "true"]);
    let text = "# made by hand\nn1 slots=1 max_slots=2\nn[2-3]:1 # a range\n";
    std::fs::write(run.dir().join("hosts"), text).unwrap();
    let output = run.run().expect_quiet_success().out();
    expect(&output, &["3 ranks on 3 hosts (1 slot on n[1-3])"]);

    let run = Run::new(["--dry-run", "-machinefile", "nodes", "true"]);
    std::fs::write(run.dir().join("nodes"), "a\na\nb\na\n").unwrap();
    let output = run.run().expect_quiet_success().out();
    expect(&output, &["4 ranks on 2 hosts (3 slots on a; 1 slot on b)"]);

    let run = Run::new(["--hostfile", "hosts", "true"]);
    std::fs::write(run.dir().join("hosts"), "n1\nn2 slot=4\n").unwrap();
    run.run().expect(125).expect_one_line(&[
        "--hostfile hosts:2: unknown word \"slot=4\" after a host",
        "slots=N, max_slots=N or address=HOST:PORT",
    ]);
}

#[test]
fn unusable_hosts_are_refused_in_one_line() {
    for (args, words) in [
        (
            &["--hosts", "n1:x", "true"][..],
            "invalid host \"n1:x\": slots \"x\" is not a number",
        ),
        (&["--hosts", "n1:7437", "true"], "write NAME@HOST:7437"),
        (&["--hosts", "fd00::1", "true"], "in brackets: [fd00::1]"),
        (
            &["--hosts", "a@h,b@h", "true"],
            "a and b both have the address h:7437",
        ),
        (
            &["--hostfile", "/nonexistent", "true"],
            "--hostfile /nonexistent: No such file",
        ),
        (&["--hosts", "222", "true"], "--hosts: invalid host \"222\""),
        (
            &["--hosts", "a", "--hostfile", "b", "true"],
            "'--hosts <LIST>' cannot be used with '--hostfile <FILE>'",
        ),
        (
            &["--hosts", "a", "--virtual-nodes", "2", "true"],
            "'--hosts <LIST>' cannot be used with '--virtual-nodes <K>'",
        ),
        (
            &["--hosts", "a:2,b:1", "-n", "4", "true"],
            "4 ranks do not fit in 3 slots (2 on a; 1 on b); use --oversubscribe, or -n 3",
        ),
        (
            &["--hosts", "a,b", "--ppn", "2", "-n", "5", "true"],
            "5 ranks with at most 2 per node (--ppn, ppr) need 3 nodes, but there are 2; allow more per node, or use more nodes",
        ),
        (
            &["--hosts", "a:0", "true"],
            "the hosts have no slots; give at least one of them more than 0",
        ),
        (
            &["--hosts", "a", "--pty", "0", "true"],
            "--pty 0 is supported only for ranks of this machine; omit it",
        ),
        (
            &["--hosts", "a", "--tree-width", "1", "true"],
            "give a number, 2 or more",
        ),
    ] {
        let outcome = Run::new(["--dry-run"].iter().chain(args)).run();
        outcome.expect(125).expect_one_line(&[words]);
    }
    for words in [
        &["run", "--dry-run", "--hostfile", "hf", "true"][..],
        &["ps", "--hostfile", "hf"],
    ] {
        let run = Run::command([wireup().as_os_str()]).more(words);
        std::fs::write(run.dir().join("hf"), "222 slots=2\n").unwrap();
        let line = run.run().expect(125);
        line.expect_one_line(&["--hostfile hf: invalid host \"222\""]);
    }
}

#[test]
fn plan_shows_forwarded_variables_without_machine_specific_ones() {
    let run = || {
        let args = ["--dry-run", "--hosts", "a", "-x", "DISPLAY", "-x", "TMPDIR"];
        let args = args.iter().chain(&["--env-file", "vars", "true"]);
        let run = Run::new(args).after_shell("umask 27;");
        std::fs::write(run.dir().join("vars"), "FROM_FILE=1\n").unwrap();
        run.env("SSH_AUTH_SOCK", "/tmp/agent")
            .env("DISPLAY", ":7")
            .env("HOSTNAME", "here")
            .env("KEPT", "1")
    };
    let output = run().run().expect_quiet_success().out();
    expect(
        &output,
        &[
            "travels    directory /",
            "           PATH=",
            "           file mode creation mask 027\n",
            " variables of this environment\n",
            "not unless asked for with -x: DISPLAY",
            "  FROM_FILE=1\n",
        ],
    );
    let removed = output.lines().find(|line| line.contains("not passed on: "));
    let removed: Vec<&str> = removed.unwrap().split(' ').collect();
    for (name, stays) in [
        ("SSH_AUTH_SOCK", true),
        ("HOSTNAME", true),
        ("DISPLAY", false),
        ("TMPDIR", false),
        ("KEPT", false),
    ] {
        assert_eq!(removed.contains(&name), stays, "{name}: {output}");
    }
}

#[test]
fn output_files_are_checked_where_written() {
    let refused = "--output /dev/null/%r: cannot write";
    let run = |options: &[&str]| {
        let args = ["--dry-run", "--output", "/dev/null/%r", "-n", "1"];
        Run::new(args.iter().chain(options).chain(&["true"])).run()
    };
    run(&[]).expect(125).expect_one_line(&[refused]);
    run(&["--hosts", "a"]).expect_quiet_success();
    // Here, where times are put in front of lines.
    let outcome = run(&["--hosts", "a", "--timestamps"]).expect(125);
    outcome.expect_one_line(&[refused]);
}

#[test]
fn fabric_grant_reaches_ranks_and_is_never_printed() {
    let secret = "geheim8472";
    let args = |options: &[&str]| {
        let run = Run::new(
            options
                .iter()
                .chain(&["-n", "1", "printenv", "FI_CXI_DEFAULT_VNI"]),
        );
        run.env("FI_CXI_DEFAULT_VNI", secret)
            .env("SLINGSHOT_VNIS", secret)
    };
    assert_eq!(args(&[]).run().expect(0).out(), format!("{secret}\n"));
    let hidden = |outcome: Outcome| {
        assert!(!outcome.err().contains(secret), "{outcome:?}");
        assert!(!outcome.out().contains(secret), "{outcome:?}");
        outcome
    };
    let option = format!("SLINGSHOT_SVC_IDS={secret}");
    let dry = hidden(args(&["--dry-run", "-v", "-x", &option]).run().expect(0));
    expect(&dry.out(), &["  SLINGSHOT_SVC_IDS=…hidden\n"]);
    let launch = Run::new(["-vv", "--json", "-", "-x", &option, "-n", "1", "true"]);
    hidden(launch.run().expect(0));
    let file = Run::new(["--env-file", "vars", "-n", "1", "true"]);
    std::fs::write(file.dir().join("vars"), format!("FI_CXI_KEY={secret}\0\n")).unwrap();
    hidden(file.run().expect(125));
}

/// Variable with the id of a batch job, and another variable of its processes, for each batch system.
const BATCH_VARIABLES: [[&str; 2]; 4] = [
    ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"],
    ["PBS_JOBID", "PBS_NODEFILE"],
    ["LSB_JOBID", "LSB_HOSTS"],
    ["JOB_ID", "QUEUE"],
];

#[test]
fn schedulers_name_launch_and_allocation() {
    let names = "echo $WIREUP_LAUNCH_ID,$WIREUP_ALLOC_ID,$SLURM_JOB_ID,$WIREUP_JOB_ID";
    let run = |options: &[&str]| Run::new(options.iter().chain(&["-n", "1", "sh", "-c", names]));
    let values = run(&[]).run().expect_quiet_success().out();
    let values: Vec<&str> = values.trim().split(',').collect();
    assert_eq!((values[0], values[1], values[2]), (values[3], "", ""));
    let scheduler_names = |options: &[&str], allocation: &str| {
        let run = run(options).env("WIREUP_LAUNCH_ID", "launch-7");
        let outcome = run.env("WIREUP_ALLOC_ID", allocation).run();
        let output = outcome.expect_quiet_success().out();
        let (names, job) = output.trim().rsplit_once(',').unwrap();
        assert!(job.starts_with("wireup-"), "{output}");
        names.to_owned()
    };
    assert_eq!(scheduler_names(&[], "42"), "launch-7,42,");
    assert_eq!(scheduler_names(&["--slurm-env"], "42"), "launch-7,42,42");
    assert_eq!(scheduler_names(&["--slurm-env"], "a-42"), "launch-7,a-42,");
    // The job of a batch system names the allocation that no scheduler names.
    for [id, second] in BATCH_VARIABLES {
        let allocation = |variables: &[(&str, &str)]| {
            let mut run = Run::new([
                "--hosts",
                "localhost",
                "-n",
                "1",
                "sh",
                "-c",
                "echo $WIREUP_ALLOC_ID",
            ]);
            for (name, value) in variables {
                run = run.env(name, value);
            }
            run.run().expect_quiet_success().out()
        };
        assert_eq!(allocation(&[(id, "17"), (second, "n1")]), "17\n", "{id}");
        assert_eq!(allocation(&[(id, "17")]), "\n", "{id}");
        let both = [(id, "17"), (second, "n1"), ("WIREUP_ALLOC_ID", "42")];
        assert_eq!(allocation(&both), "42\n", "{id}");
    }
    // A job that a rank starts is another launch of the same allocation.
    let wireup = env!("CARGO_BIN_EXE_wireup");
    let inner = [wireup, "run", "-n", "1", "sh", "-c", names];
    let outer = Run::new(["-n", "1"].iter().chain(&inner));
    let outer = outer
        .env("WIREUP_LAUNCH_ID", "launch-7")
        .env("WIREUP_ALLOC_ID", "42");
    let values = outer.run().expect_quiet_success().out();
    let values: Vec<&str> = values.trim().split(',').collect();
    assert_eq!((values[0], values[1]), (values[3], "42"));
}

#[test]
fn pmix_clients_get_allocation_of_each_batch_system() {
    for name in ["pmix4", "pmix5"] {
        let Some(library) = pmix(name) else {
            continue;
        };
        let client = library.dir.join("pmix_client");
        let run = |variables: &[(&str, &str)], allocation: &str| {
            let words = [
                "--hosts",
                "localhost",
                "--pmi",
                "pmix",
                "--libpmix",
                library.path(),
            ];
            let program = [client.to_str().unwrap(), "job", "pmix.alloc.id", allocation];
            let run = Run::ranks(2, words.iter().chain(&program));
            variables
                .iter()
                .fold(run, |run, (name, value)| run.env(name, value))
                .run()
        };
        for [id, second] in BATCH_VARIABLES {
            run(&[(id, "17.n1"), (second, "n1")], "17.n1").expect(0);
        }
        run(&[("WIREUP_ALLOC_ID", "alloc-7")], "alloc-7").expect(0);
        // Without an allocation the job has no such key.
        let missing = run(&[], "");
        assert_ne!(missing.code, 0, "{missing:?}");
    }
}

#[test]
fn ranks_get_slurm_names_of_their_place_on_request() {
    let names = "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_NPROCS $SLURM_LOCALID $SLURM_NODEID \
                 $SLURM_NNODES $SLURM_TASKS_PER_NODE";
    let script = ["sh", "-c", names];
    let options = ["--virtual-nodes", "2", "--slurm-env"];
    let run = Run::ranks(3, options.iter().chain(&script)).env("SLURM_PROCID", "9");
    assert_eq!(
        run.run().expect_quiet_success().sorted_lines(),
        ["0 3 3 0 0 2 2,1", "1 3 3 1 0 2 2,1", "2 3 3 0 1 2 2,1"]
    );
    let list =
        "test $SLURM_NODELIST = $SLURM_JOB_NODELIST && echo $SLURM_NODELIST $SLURMD_NODENAME";
    let run = Run::ranks(2, options.iter().chain(&["sh", "-c", list]));
    let lines = run.run().expect_quiet_success().sorted_lines();
    let (nodes, first) = lines[0].split_once(' ').unwrap();
    let stem = first.strip_suffix("0").unwrap();
    assert_eq!(nodes, format!("{stem}[0-1]"));
    // And not at all otherwise.
    let run = Run::ranks(1, ["sh", "-c", "env | grep -c SLURM"]);
    assert_eq!(run.env("SLURM_PROCID", "9").run().expect(1).out(), "0\n");
}

#[test]
fn every_mpi_runs_with_slurms_names() {
    for name in ["mpich4", "mpich5", "openmpi4", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        // MPICH 4.0.2 may hang by itself when nodes end.
        let nodes = if name == "mpich4" { "1" } else { "2" };
        let options = ["--slurm-env", "--virtual-nodes", nodes];
        let run = mpi
            .run(4, &options, "allreduce", &[])
            .env("WIREUP_ALLOC_ID", "7");
        run.run().expect(0).by_rank("allreduce", 4);
    }
}

#[test]
fn missing_agent_error_names_searched_sockets() {
    let run = Run::new(["--hosts", "a", "--agent", "/nonexistent/sock", "true"]);
    run.run().expect(125).expect_one_line(&[
        "no agent serves this machine (no /nonexistent/sock)",
        "wireup agent",
        "--agent",
    ]);
}

#[test]
fn agent_of_other_user_receives_nothing() {
    let Some(as_user) = as_user() else { return };
    let reachable = Reachable::new();
    let wireup = reachable.wireup();
    let runtime = wireup.parent().unwrap().join("runtime");
    std::fs::create_dir_all(runtime.join("wireup")).unwrap();
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(runtime.join("wireup"), permissions).unwrap();
    };
    mode(0o777);
    let socket = runtime.join("wireup/agent.sock");
    let listen = "use IO::Socket::UNIX; $| = 1; umask 0; \
                  my $s = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die $!; \
                  print qq(listens\\n); my $c = $s->accept or die $!; \
                  print defined getc $c ? qq(received\\n) : qq(nothing received\\n);";
    let stranger = Command::new("perl")
        .args(["-e", listen])
        .arg(&socket)
        .uid(54399)
        .gid(54399)
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut stranger) = stranger else {
        skip("another user's socket: needs perl");
        return;
    };
    let mut stranger_output = stranger.stdout.take().unwrap();
    let mut line = [0; 8];
    stranger_output.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"listens\n");
    let refused = || {
        let run = Run::command([wireup.as_os_str(), "run".as_ref(), "--hosts".as_ref()]);
        let run = run.more(["a", "true"]).env("XDG_RUNTIME_DIR", &runtime);
        run.under(as_user.clone()).run().expect(125)
    };
    refused().expect_one_line(&[
        "its directory must belong to you or root and must not be writable by others",
    ]);
    // It was open when the stranger came.
    mode(0o755);
    refused().expect_one_line(&["belongs to user 54399, neither you nor root"]);
    let mut rest = String::new();
    stranger_output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "nothing received\n");
    stranger.wait().unwrap();
}
