//! Requests of one user or a stranger to an agent, which must not disturb others.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::bystanders::{Limits, during};
use crate::cluster::{BOB, Cluster, MALLORY};
use crate::common::{Outcome, Output, Run, anonymous_memory_kib, eventually};
use crate::users::of;
use wireup_core::link::agent_protocol::VERSION;

/// The most an agent may have had in MiB: what a user may hold, and as much again for what is being read.
const MEMORY: u64 = 2560;

const LIMITS: Limits = Limits {
    launch: Duration::from_secs(60),
    memory: MEMORY,
};

/// Returns a run in which a user sends requests to the agent of the first host.
fn says(cluster: &Cluster, user: u32, what: &str) -> Run {
    let script = cluster.dir().join("hostile.py");
    std::fs::write(&script, include_str!("hostile.py")).unwrap();
    let host = cluster.host(0);
    let address = host.ipv4().to_string();
    let version = VERSION.to_string();
    let words = [
        "/usr/bin/python3",
        script.to_str().unwrap(),
        what,
        &version,
        host.name(),
        &address,
    ];
    let run = of(user, cluster.command(0, words));
    run.deadline(Duration::from_secs(240))
}

/// Sends the requests of a hostile user to the agent of the first host, while two other users run
/// jobs.
fn attack(cluster: &Cluster, what: &str) -> Option<Outcome> {
    let mut outcome = None;
    let observed = during(cluster, || {
        outcome = Some(says(cluster, MALLORY, what).run());
    })?;
    let outcome = outcome.expect("the attack was made").expect(0);
    assert!(outcome.out().ends_with("done\n"), "{outcome:?}");
    observed.undisturbed(match what {
        // They are refused before memory is taken for what is in them.
        "programs" => Limits {
            memory: 256,
            ..LIMITS
        },
        _ => LIMITS,
    });
    assert_eq!(lines(cluster, "the launcher has link version"), 0);
    Some(outcome)
}

/// Returns the number of lines of an agent's log with these words.
fn lines(cluster: &Cluster, words: &str) -> usize {
    let log = cluster.log(0);
    log.lines().filter(|line| line.contains(words)).count()
}

#[test]
fn queries_about_too_many_nodes_delay_no_other_launch() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let Some(outcome) = attack(&cluster, "questions") else {
        return;
    };
    assert_eq!(outcome.out().matches("True").count(), 2, "{outcome:?}");
    assert!(lines(&cluster, "or more than 16384 nodes") <= 2);
}

#[test]
fn concurrent_largest_launches_delay_no_others_and_log_little() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    if attack(&cluster, "openings").is_none() {
        return;
    }
    assert!(lines(&cluster, "lost node") <= 4 * 10);
}

#[test]
fn endless_messages_are_refused_beyond_budget_of_their_user() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let Some(outcome) = attack(&cluster, "meetings") else {
        return;
    };
    assert!(
        outcome.out().matches("all taken").count() < 9,
        "{outcome:?}"
    );
    let refusal = format!("user id {MALLORY} uses 1024 MiB of this agent");
    assert!(lines(&cluster, &refusal) > 0);
}

#[test]
fn launch_requests_of_half_million_programs_delay_no_query() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let mut queries = says(&cluster, BOB, "queries").stdin_held().start();
    queries.wait_for(Output::Stdout, "answered");
    let Some(outcome) = attack(&cluster, "programs") else {
        return;
    };
    drop(queries.stdin());
    let text = outcome.out();
    assert_eq!(text.matches("refused").count(), 16, "{text}");
    let text = queries.finish().expect(0).out();
    let slowest = text.lines().find_map(|line| line.strip_prefix("slowest "));
    let seconds: f64 = slowest.unwrap().parse().unwrap();
    // It took 40 s when the requests occupied the thread that serves all users.
    assert!(seconds < 15.0, "{text}");
    // It was 450 MiB afterwards, and stayed. The allocator keeps some of it for some seconds.
    let agent = cluster.agent(0).pid;
    eventually("the agent returns the memory of the requests", || {
        (anonymous_memory_kib(agent) < 50 * 1024).then_some(())
    });
}

#[test]
fn stopped_steps_cost_only_launches_of_their_user() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // Seen on a busy machine: no step was stopped early enough to leave its agent with what it sends.
    for _ in 0..6 {
        if attack(&cluster, "stopped").is_none() {
            return;
        }
        if lines(&cluster, "the peer does not read") > 0 {
            return;
        }
    }
    panic!("no step was stopped before it read: {}", cluster.log(0));
}

#[test]
fn stranger_connections_from_one_address_block_no_others() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let agent = SocketAddr::from((cluster.host(0).ipv4(), 7437));
    let Some(observed) = during(&cluster, || {
        let strange = || {
            let mut silent = Vec::new();
            let end = Instant::now() + Duration::from_secs(10);
            while Instant::now() < end {
                // They hold what places they can get, and others shout.
                let connect = || TcpStream::connect_timeout(&agent, Duration::from_secs(1));
                silent.extend((0..40).filter_map(|_| connect().ok()));
                let quit = silent.len().saturating_sub(400);
                silent.drain(..quit);
                if let Ok(mut loud) = connect() {
                    // It may have been refused.
                    let _ = loud.write_all(b"GET / HTTP/1.1\r\n\r\n");
                    let _ = loud.shutdown(Shutdown::Write);
                    let _ = loud.read(&mut [0; 64]);
                }
            }
        };
        cluster.host(2).on_network(strange).unwrap();
    }) else {
        return;
    };
    observed.undisturbed(LIMITS);
    // Twenty in each minute that it took.
    let refused = lines(&cluster, "refused a connection from");
    assert!((1..=100).contains(&refused), "{refused} lines");
}

#[test]
fn unresolvable_host_names_are_reported_together_before_start() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let hosts = ["--hosts", "node01:1,nope1:1,nope2:1", "-n", "3", "true"];
    let outcome = cluster.run(0, hosts).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    assert!(
        err.contains("on nope[1-2]: cannot reach the agent of nope1"),
        "{err}"
    );
    assert!(err.contains("cannot find the address nope1:7437"), "{err}");
    assert!(!cluster.log(0).contains("output of "), "{}", cluster.log(0));
}
