//! Ranks whose processes are killed or leave, and others that speak for them afterwards (`--restartable`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{
    Mpi, Output, Run, Running, built, eventually, mpi, mpis, program, skip, wireup,
};

/// On one node, and on two, with either dialect.
const KINDS: [(&str, &[&str]); 4] = [
    ("1", &[]),
    ("2", &[]),
    ("1", &["--pmi2"]),
    ("2", &["--pmi2"]),
];

/// Returns the observations of the ranks, sorted, each after its rank.
fn observations(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| {
        let (rank, saw) = line
            .split_once("pmi_restart rank=")?
            .1
            .split_once(" saw=")?;
        Some(format!("{rank} {saw}"))
    });
    let mut observations: Vec<String> = lines.collect();
    observations.sort();
    observations
}

fn all_saw(ranks: u32, cards: &[&str]) -> Vec<String> {
    let cards = cards.iter();
    let mut all: Vec<String> = cards
        .flat_map(|card| (0..ranks).map(move |rank| format!("{rank} {card}")))
        .collect();
    all.sort();
    all
}

/// A run of four programs, each of one rank, on so many nodes.
fn four(nodes: &str, words: [Vec<String>; 4]) -> Run {
    let options = ["--restartable", "--oversubscribe", "--virtual-nodes", nodes];
    let mut run = Run::new(options);
    for (rank, words) in words.into_iter().enumerate() {
        let colon: &[&str] = if rank == 0 { &[] } else { &[":"] };
        run = run.more(colon).more(["-n", "1"]).more(words);
    }
    run
}

#[test]
fn all_ranks_restart_pmi_together() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    for (nodes, dialect) in KINDS {
        let steps = "join put:a meet see meet join put:b meet see meet join put:c meet see leave";
        let run = Run::ranks(4, ["--restartable", "--virtual-nodes", nodes]);
        let run = run.more([&path]).more(dialect).more(steps.split(' '));
        let outcome = run.run().expect_quiet_success();
        let expected = all_saw(4, &["a,a,a,a", "b,b,b,b", "c,c,c,c"]);
        assert_eq!(
            observations(&outcome.out()),
            expected,
            "{nodes} {dialect:?}"
        );
    }
}

#[test]
fn ranks_restarted_in_turn_are_awaited_without_earlier_keys() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    for (nodes, dialect) in KINDS {
        let words = |rank: usize| {
            let mut words = vec![path.to_str().unwrap().to_owned()];
            words.extend(dialect.iter().map(|word| (*word).to_owned()));
            let mut steps = vec!["join".to_owned(), "put:old".to_owned()];
            for round in 0..5 {
                if round == rank + 1 {
                    steps.push("join".to_owned());
                    // The last one puts nothing again.
                    steps.extend((rank < 3).then(|| "put:new".to_owned()));
                }
                steps.extend(["meet", "see", "meet"].map(str::to_owned));
            }
            words.extend(steps);
            words.push("leave".to_owned());
            words
        };
        let run = four(nodes, [0, 1, 2, 3].map(words));
        let outcome = run.run().expect_quiet_success();
        let expected = all_saw(
            4,
            &[
                "old,old,old,old",
                "new,old,old,old",
                "new,new,old,old",
                "new,new,new,old",
                "new,new,new,-",
            ],
        );
        assert_eq!(
            observations(&outcome.out()),
            expected,
            "{nodes} {dialect:?}"
        );
    }
}

/// Script that kills the first process while it waits in a barrier, and becomes the second one, which reports its
/// start: until then the server may release the barrier.
const KILLED_IN_A_BARRIER: &str = r#"
program=$1; shift
"$program" "$@" join put:old tell:in meet &
until [ -e in ] && grep -q '^State:.S' /proc/$!/status; do sleep 0.02; done
kill -9 $!
wait $! 2>/dev/null
exec "$program" "$@" join tell:back put:new meet see meet leave
"#;

#[test]
fn process_killed_in_barrier_is_withdrawn_from_it() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    let path = path.to_str().unwrap().to_owned();
    for (nodes, dialect) in KINDS {
        let words = |steps: &str| {
            let own = std::iter::once(path.as_str()).chain(dialect.iter().copied());
            own.chain(steps.split(' ')).map(str::to_owned).collect()
        };
        let killed = ["sh", "-c", KILLED_IN_A_BARRIER, "sh", &path];
        let killed = killed.iter().chain(dialect).map(|word| (*word).to_owned());
        let run = four(
            nodes,
            [
                words("join put:zero await:back meet see meet leave"),
                words("join put:one meet see meet leave"),
                words("join put:two meet see meet leave"),
                killed.collect(),
            ],
        );
        let outcome = run.run().expect(0);
        let expected = all_saw(4, &["zero,one,two,new"]);
        assert_eq!(
            observations(&outcome.out()),
            expected,
            "{nodes} {dialect:?}"
        );
    }
}

#[test]
fn restart_needs_its_option_and_is_refused_with_pmix() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    let steps = "join put:a meet see meet join meet see leave";
    let run = Run::ranks(2, [&path]).more(steps.split(' '));
    let outcome = run.run().expect_quiet_success();
    assert_eq!(observations(&outcome.out()), all_saw(2, &["a,a", "a,a"]));
    for (options, words) in [
        (["--pmi", "pmix"], "does not support --pmi pmix"),
        (["--on-failure", "continue"], "contradict each other"),
    ] {
        let outcome = Run::ranks(2, ["--restartable"])
            .more(options)
            .more([&path])
            .run();
        outcome
            .expect(125)
            .expect_one_line(&["--restartable", words]);
    }
    for mpi in mpis().into_iter().filter(|mpi| mpi.libpmix.is_some()) {
        let outcome = mpi.run(2, &["--restartable"], "hello", &[]).run();
        outcome.expect(125).expect_one_line(&["hello uses PMIx"]);
    }
}

/// `wireup serve --restartable` and the processes that the test starts for its ranks.
struct RestartableLaunch {
    running: Running,
    clients: Vec<Option<Child>>,
}

impl RestartableLaunch {
    fn new(ranks: usize, options: &[&str]) -> Self {
        let ranks_word = ranks.to_string();
        let words = [
            "serve",
            "-n",
            &ranks_word,
            "--env-dir",
            "env",
            "--restartable",
        ];
        let words = words.iter().chain(options);
        let words = words
            .chain(&["--no-config", "--oversubscribe"])
            .map(OsString::from);
        Self {
            running: Run::command(std::iter::once(wireup().into()).chain(words)).start(),
            clients: (0..ranks).map(|_| None).collect(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.running.work().join(name)
    }

    /// Starts the process of a rank; its output is appended to files.
    fn start(&mut self, rank: usize, path: &Path, words: &[&str], env: &[(String, String)]) {
        let file = self.file(&format!("env/rank-{rank}.env"));
        let variables = eventually("the variables are there", || fs::read_to_string(&file).ok());
        let variables = variables.lines().filter_map(|line| line.split_once('='));
        let output = |name: &str| {
            let mut options = File::options();
            options
                .create(true)
                .append(true)
                .open(self.file(name))
                .unwrap()
        };
        let mut command = Command::new(path);
        command.args(words).envs(variables).stdin(Stdio::null());
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.running.work());
        command.stdout(output("out")).stderr(output("err"));
        self.clients[rank] = Some(command.spawn().unwrap());
    }

    /// Starts a program of an MPI, whose files in `/dev/shm` are looked for at the end as those of all runs.
    fn start_mpi(&mut self, rank: usize, mpi: &Mpi, program: &str, words: &[&str]) {
        let prefix = self.running.mount_prefix();
        let path = mpi.dir.join(program);
        let front = prefix.iter().map(|word| word.to_str().unwrap());
        let own = [path.to_str().unwrap()];
        let all: Vec<&str> = front.chain(own).chain(words.iter().copied()).collect();
        self.start(rank, Path::new(all[0]), &all[1..], &mpi.env);
    }

    /// Kills a rank's process; returns when the launch knows that it has gone.
    fn kill(&mut self, rank: usize, times: usize) {
        let mut client = self.clients[rank].take().unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        let line = format!("wireup: rank {rank}: client disconnected; waiting for a new process");
        self.running.wait_for_many(Output::Stderr, &line, times);
    }

    fn wait_for_file(&self, name: &str) {
        let file = self.file(name);
        eventually(name, || file.exists().then_some(()));
    }

    /// All processes end well, and so does the job; what they have printed.
    fn end(mut self) -> String {
        for client in &mut self.clients {
            // Restored ones are no children.
            let Some(client) = client else { continue };
            let status = client.wait().unwrap();
            let errors = fs::read_to_string(self.running.work().join("err"));
            assert!(status.success(), "{status}: {errors:?}");
        }
        let text = fs::read_to_string(self.file("out")).unwrap();
        self.running.finish().expect(0);
        text
    }
}

#[test]
fn processes_of_served_job_restart_one_by_one() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    let ranks = 3;
    for (nodes, dialect) in KINDS {
        let mut launch = RestartableLaunch::new(ranks, &["--virtual-nodes", nodes]);
        // What a process does from its start, which is round `first`, to the end.
        let words = |rank: usize, first: usize| {
            let mut words: Vec<String> = dialect.iter().map(|word| (*word).to_owned()).collect();
            words.extend(["join".to_owned(), format!("put:{first}")]);
            for round in first..=ranks {
                if round > first {
                    // A process that is killed at this round does not begin it.
                    let is_killed = first == 0 && round == rank + 1;
                    let file = if is_killed { "never" } else { "go" };
                    words.push(format!("await:{file}-{round}"));
                }
                words.extend(["meet", "see", "meet"].map(str::to_owned));
                words.push(format!("tell:done-{rank}-{round}"));
            }
            words.push("leave".to_owned());
            words
        };
        let start = |launch: &mut RestartableLaunch, rank, first| {
            let words = words(rank, first);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            launch.start(rank, &path, &words, &[]);
        };
        for rank in 0..ranks {
            start(&mut launch, rank, 0);
        }
        for round in 1..=ranks {
            for rank in 0..ranks {
                launch.wait_for_file(&format!("done-{rank}-{}", round - 1));
            }
            let rank = round - 1;
            // Every other time the others wait in the barrier already.
            let go = |launch: &RestartableLaunch| {
                File::create(launch.file(&format!("go-{round}"))).unwrap()
            };
            if round % 2 == 0 {
                go(&launch);
            }
            launch.kill(rank, 1);
            start(&mut launch, rank, round);
            go(&launch);
        }
        let mut expected = all_saw(3, &["0,0,0", "1,0,0", "1,2,0", "1,2,3"]);
        expected.sort();
        assert_eq!(observations(&launch.end()), expected, "{nodes} {dialect:?}");
    }
}

#[test]
fn mpich_and_intel_programs_restart_after_kill() {
    for mpi in mpis().into_iter().filter(|mpi| mpi.libpmix.is_none()) {
        let mut launch = RestartableLaunch::new(2, &["--virtual-nodes", "2"]);
        for times in 1..3 {
            for rank in 0..2 {
                launch.start_mpi(rank, &mpi, "hang_recv", &["0"]);
            }
            for rank in 0..2 {
                let word = format!("hang_recv rank={rank}");
                let out = launch.file("out");
                eventually("the rank is behind MPI_Init", || {
                    let text = fs::read_to_string(&out).unwrap();
                    (text.lines().filter(|line| line.contains(&word)).count() >= times)
                        .then_some(())
                });
            }
            for rank in 0..2 {
                launch.kill(rank, times);
            }
        }
        for rank in 0..2 {
            launch.start_mpi(rank, &mpi, "allreduce", &[]);
        }
        let text = launch.end();
        for rank in 0..2 {
            let line = format!("allreduce rank={rank} size=2 sum=3");
            assert!(text.contains(&line), "{} {text}", mpi.name);
        }
    }
}

#[test]
fn shared_memory_of_replaced_processes_is_removed() {
    let path = format!("/dev/shm/mpich_shm_restart.{}", std::process::id());
    // The kernel's time of a file is some milliseconds behind.
    let makes = format!("sleep 0.1; : >{path}");
    let words = ["--restartable", "--pmi", "pmi1", "sh", "-c", &makes];
    Run::ranks(1, words).run().expect(0);
    assert!(!Path::new(&path).exists());
}

/// CRIU, if it is here and takes this kernel.
fn criu() -> Option<PathBuf> {
    let path = built().map(|dir| dir.join("tools/criu"));
    let Some(path) = path.filter(|path| path.is_file()) else {
        skip("no CRIU is here: run scripts/setup and scripts/test-programs");
        return None;
    };
    let checked = Command::new(&path).arg("check").output().unwrap();
    if !checked.status.success() {
        let why = String::from_utf8_lossy(&checked.stderr);
        skip(&format!("CRIU cannot work here: {}", why.trim()));
        return None;
    }
    Some(path)
}

#[test]
fn processes_are_saved_by_criu_end_and_are_restored() {
    let (Some(criu), Some(path)) = (criu(), program("pmi_restart")) else {
        return;
    };
    let words = |rank: usize| {
        let (saved, put) = (format!("tell:saved-{rank}"), format!("put:new{rank}"));
        let steps = ["join", "put:old", "meet", "see", "meet", &saved, "await:go"];
        let steps = steps.iter().copied().map(str::to_owned);
        let after = ["join", &put, "meet", "see", "meet", "leave"].map(str::to_owned);
        let done = [format!("tell:done-{rank}")];
        steps.chain(after).chain(done).collect::<Vec<String>>()
    };
    for dialect in [&[][..], &["--pmi2"]] {
        let mut launch = RestartableLaunch::new(2, &["--virtual-nodes", "2"]);
        let mut pids = Vec::new();
        for rank in 0..2 {
            let words = words(rank);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // CRIU saves whole sessions.
            let own: Vec<&str> = [path.to_str().unwrap()]
                .into_iter()
                .chain(dialect.iter().copied())
                .chain(words)
                .collect();
            launch.start(rank, Path::new("setsid"), &own, &[]);
            pids.push(launch.clients[rank].as_ref().unwrap().id().to_string());
        }
        for rank in 0..2 {
            launch.wait_for_file(&format!("saved-{rank}"));
        }
        let run = |words: &[&str]| {
            let output = Command::new(&criu).args(words).output().unwrap();
            assert!(output.status.success(), "{words:?}: {output:?}");
        };
        let images: Vec<PathBuf> = (0..2)
            .map(|rank| launch.file(&format!("image-{rank}")))
            .collect();
        for (rank, image) in images.iter().enumerate() {
            fs::create_dir(image).unwrap();
            let image = image.to_str().unwrap();
            run(&["dump", "-t", &pids[rank], "-D", image, "--tcp-close"]);
            // It ends what it has saved.
            let client = launch.clients[rank].as_mut().unwrap();
            assert!(!client.wait().unwrap().success());
            let line =
                format!("wireup: rank {rank}: client disconnected; waiting for a new process");
            launch.running.wait_for(Output::Stderr, &line);
        }
        File::create(launch.file("go")).unwrap();
        for (rank, image) in images.iter().enumerate() {
            let image = image.to_str().unwrap();
            run(&["restore", "-D", image, "--tcp-close", "--restore-detached"]);
            launch.clients[rank] = None;
        }
        let expected = all_saw(2, &["old,old", "new0,new1"]);
        let out = launch.file("out");
        for rank in 0..2 {
            launch.wait_for_file(&format!("done-{rank}"));
        }
        assert_eq!(observations(&fs::read_to_string(out).unwrap()), expected);
        launch.end();
    }
}

/// Script that starts all ranks of an MPI program as children of one session leader.
const RANKS_OF_ONE_SESSION: &str = r#"
for rank in 0 1; do env $(cat env/rank-$rank.env) "$0" started end & done
wait
"#;

/// Children of a process.
fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

#[test]
fn mpich_ranks_are_restored_by_criu_with_connections() {
    let (Some(criu), Some(mpi)) = (criu(), mpi("mpich5")) else {
        return;
    };
    let launch = RestartableLaunch::new(2, &["--pmi", "pmi1", "--pmi-port-auth", "none"]);
    for rank in 0..2 {
        launch.wait_for_file(&format!("env/rank-{rank}.env"));
    }
    let output = |name: &str| File::create(launch.file(name)).unwrap();
    let mut ranks = Command::new("setsid");
    ranks.args(["sh", "-c", RANKS_OF_ONE_SESSION]);
    ranks.arg(mpi.program("mpi_checkpoint"));
    ranks.envs(mpi.env.iter().map(|(name, value)| (name, value)));
    // TCP between ranks on one host too, and no shared memory.
    let tcp = [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("FI_PROVIDER", "tcp")];
    ranks.envs(tcp).env("MPIR_CVAR_NOLOCAL", "1");
    ranks
        .current_dir(launch.running.work())
        .stdin(Stdio::null());
    ranks.stdout(output("out")).stderr(output("err"));
    let mut ranks = ranks.spawn().unwrap();
    launch.wait_for_file("started");
    let saved = children(ranks.id());
    assert_eq!(saved.len(), 2);
    let image = launch.file("image");
    fs::create_dir(&image).unwrap();
    let run = |words: &[&str]| {
        let mut command = Command::new(&criu);
        command.args(words).arg("-D").arg(&image);
        let output = command
            .args(["--tcp-established", "--network-lock", "skip"])
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    };
    run(&["dump", "-t", &ranks.id().to_string()]);
    assert!(!ranks.wait().unwrap().success());
    // Restored processes have the pids of those that were saved.
    for pid in saved {
        let process = PathBuf::from(format!("/proc/{pid}"));
        eventually("the process is gone", || (!process.exists()).then_some(()));
    }
    run(&["restore", "--restore-detached"]);
    File::create(launch.file("end")).unwrap();
    let out = launch.file("out");
    eventually("both ranks have the right sums", || {
        let text = fs::read_to_string(&out).unwrap();
        (0..2)
            .all(|rank| text.contains(&format!("mpi_checkpoint rank={rank} size=2\n")))
            .then_some(())
    });
    let outcome = launch.running.finish().expect(0);
    assert!(
        !outcome.err().contains("client disconnected"),
        "{outcome:?}"
    );
}
