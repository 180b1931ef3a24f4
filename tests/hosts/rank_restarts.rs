//! Ranks whose processes are killed or leave, and others that speak for them afterwards, on several hosts.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::common::{Output, eventually, program};

const ALL: [&str; 5] = [
    "--restartable",
    "--oversubscribe",
    "--hosts",
    "node01:2,node02:1,node03:2",
    "-n",
];

/// Returns the observations of the ranks, sorted.
fn values(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.split_once(" saw="));
    let mut values: Vec<String> = lines.map(|(_, saw)| saw.to_owned()).collect();
    values.sort();
    values
}

fn each(ranks: usize, cards: &[&str]) -> Vec<String> {
    let cards = cards.iter();
    cards
        .flat_map(|card| std::iter::repeat_n((*card).to_owned(), ranks))
        .collect()
}

#[test]
fn all_ranks_restart_pmi_together_also_on_slow_network() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let steps = "join put:a meet see meet join put:b meet see meet join put:c meet see leave";
    for slow in [false, true] {
        if slow {
            cluster
                .lab()
                .slow_down(Duration::from_millis(200), 0)
                .unwrap();
        }
        for dialect in [&[][..], &["--pmi2"]] {
            let run = cluster.run(0, ALL).more(["5"]).more([&path]);
            let run = run.more(dialect).more(steps.split(' '));
            let outcome = run.deadline(Duration::from_secs(180)).run().expect(0);
            let expected = each(5, &["a,a,a,a,a", "b,b,b,b,b", "c,c,c,c,c"]);
            assert_eq!(
                values(&outcome.out()),
                expected,
                "{slow} {dialect:?} {outcome:?}"
            );
        }
    }
}

#[test]
fn processes_of_served_job_restart_singly_and_all_at_once() {
    let Some(path) = program("pmi_restart") else {
        return;
    };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let wireup = crate::common::wireup();
    let words = [
        "serve",
        "-n",
        "3",
        "--env-dir",
        "env",
        "--restartable",
        "--hosts",
        "node01:1,node02:1,node03:1",
    ];
    let command = [wireup.to_str().unwrap()].into_iter().chain(words);
    let running = cluster.command(0, command.chain(["--no-config"])).start();
    let file = |name: String| running.work().join(name);
    let start = |rank: usize, steps: &str| -> Child {
        let variables = file(format!("env/rank-{rank}.env"));
        let variables = eventually("the variables are there", || {
            fs::read_to_string(&variables).ok()
        });
        let variables = variables.lines().filter_map(|line| line.split_once('='));
        let output = fs::File::options()
            .create(true)
            .append(true)
            .open(file("out".to_owned()))
            .unwrap();
        let errors = fs::File::options()
            .create(true)
            .append(true)
            .open(file("err".to_owned()))
            .unwrap();
        let host = cluster.host(rank);
        let mut command = host.command(&path);
        command
            .args(steps.split(' '))
            .envs(variables)
            .current_dir(running.work());
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        command.spawn().unwrap()
    };
    let kill = |rank: usize, client: &mut Child, times: usize| {
        client.kill().unwrap();
        client.wait().unwrap();
        let line = format!("wireup: rank {rank}: client disconnected; waiting for a new process");
        running.wait_for_many(Output::Stderr, &line, times);
    };
    let wait_for_file = |name: String| {
        let path = file(name.clone());
        eventually(&name, || path.exists().then_some(()));
    };
    // One by one: rank K's second process comes in round K + 1.
    let steps = |rank: usize, first: usize| {
        let mut steps = format!("join put:{first}");
        for round in first..=3 {
            if round > first {
                // A process that is killed at this round does not begin it.
                let is_killed = first == 0 && round == rank + 1;
                let file = if is_killed { "never" } else { "go" };
                steps += &format!(" await:{file}-{round}");
            }
            steps += &format!(" meet see meet tell:done-{rank}-{round}");
        }
        steps + " await:never"
    };
    let mut clients: Vec<Child> = (0..3).map(|rank| start(rank, &steps(rank, 0))).collect();
    for round in 1..=3 {
        for rank in 0..3 {
            wait_for_file(format!("done-{rank}-{}", round - 1));
        }
        let go = || drop(fs::File::create(file(format!("go-{round}"))).unwrap());
        if round % 2 == 0 {
            go();
        }
        kill(round - 1, &mut clients[round - 1], 1);
        clients[round - 1] = start(round - 1, &steps(round - 1, round));
        go();
    }
    for rank in 0..3 {
        wait_for_file(format!("done-{rank}-3"));
    }
    // All at once, while those of two hosts are in a barrier that the third has not entered.
    for (rank, client) in clients.iter_mut().enumerate() {
        kill(rank, client, 2);
    }
    let waits = "join put:stale tell:in-RANK meet";
    for (rank, client) in clients.iter_mut().enumerate() {
        let steps = match rank {
            0 => "join put:stale tell:in-0 await:never".to_owned(),
            _ => waits.replace("RANK", &rank.to_string()),
        };
        *client = start(rank, &steps);
        wait_for_file(format!("in-{rank}"));
    }
    for (rank, client) in clients.iter_mut().enumerate() {
        kill(rank, client, 3);
    }
    for (rank, client) in clients.iter_mut().enumerate() {
        *client = start(rank, "join put:last meet see meet leave");
    }
    for client in &mut clients {
        let status = client.wait().unwrap();
        let errors = fs::read_to_string(file("err".to_owned()));
        assert!(status.success(), "{status} {errors:?}");
    }
    let text = fs::read_to_string(file("out".to_owned())).unwrap();
    running.finish().expect(0);
    let expected = each(3, &["0,0,0", "1,0,0", "1,2,0", "1,2,3", "last,last,last"]);
    assert_eq!(values(&text), expected);
}
