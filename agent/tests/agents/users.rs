//! Launches of other users, on agents of root.

use std::os::unix::net::UnixStream;
use std::time::SystemTime;

use rustix::process::Signal;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use wireup_agent::pki;
use wireup_agent::pki::authority::Validity;

use super::cluster::{Agent, Cluster};
use super::launcher::{Launcher, gone, nodes};
use wireup_test_support::skip;

/// Accounts that every Linux has.
const DAEMON: u32 = 1;
const NOBODY: u32 = 65_534;

/// A number without an account.
const UNKNOWN: u32 = 54_321;

/// Whether the tests run as root; the test is ignored otherwise.
#[track_caller]
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("launches of several users need root");
    }
    root
}

/// A launcher of another user: the kernel notes who connects.
fn connect_as(uid: u32, agent: &Agent) -> Launcher {
    let path = agent.socket.clone();
    let connecting = std::thread::spawn(move || {
        let (uid, root) = (Uid::from_raw(uid), Uid::ROOT);
        // Of this thread, which ends.
        set_thread_res_uid(root, uid, root).unwrap();
        UnixStream::connect(path).unwrap()
    });
    Launcher::over(connecting.join().unwrap())
}

/// Returns the users of a process: real, effective, saved.
fn user_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    let words = line.split_whitespace().skip(1).take(3);
    words.map(|word| word.parse().unwrap()).collect()
}

#[test]
fn steps_of_two_users_run_as_them_on_every_node() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(2, &[]);
    let mut launches: Vec<_> = [DAEMON, NOBODY]
        .into_iter()
        .map(|uid| {
            let launcher = connect_as(uid, &cluster.agents[0]).opens(cluster.spread(2, 2));
            (uid, launcher)
        })
        .collect();
    let mut all = Vec::new();
    for (uid, launcher) in &mut launches {
        let pids = launcher.begun(2);
        for pid in &pids {
            assert_eq!(user_of(*pid), [*uid; 3]);
        }
        all.extend(pids);
    }
    drop(launches);
    gone(&all);
}

#[test]
fn user_without_account_on_node_is_refused_with_remedy() {
    if !root() {
        return;
    }
    let cluster = Cluster::start(1, &[]);
    let agent = &cluster.agents[0];
    let reason = connect_as(UNKNOWN, agent)
        .opens(cluster.spread(1, 2))
        .refused();
    assert!(
        reason.contains("unknown user id 54321 on this node"),
        "{reason}"
    );
    agent.logged(&["refused a launcher", "unknown user id 54321"]);
}

#[test]
fn output_of_step_is_in_log_of_its_agent_with_its_name() {
    let cluster = Cluster::start(1, &[]);
    let agent = &cluster.agents[0];
    let mut launcher = Launcher::open(agent, cluster.spread(1, 2));
    let pids = launcher.begun(1);
    let log = std::fs::read_link(format!("/proc/{}/fd/2", pids[0])).unwrap();
    let own = std::fs::read_link(format!("/proc/{}/fd/2", agent.pid())).unwrap();
    assert!(log != own, "{log:?}");
    launcher.send_text(0, "exit rubbish");
    agent.logged(&[
        "output of the step of launch launch-",
        ": ValueError: ",
        "'rubbish'",
    ]);
}

#[test]
fn certificate_is_renewed_under_running_agents() {
    let cluster = Cluster::start(2, &[]);
    let agent = &cluster.agents[1];
    let mut launcher = Launcher::open(&cluster.agents[0], cluster.spread(2, 2));
    let pids = launcher.begun(2);
    let dir = cluster.directory.path().join("pki");
    let authority = pki::load(&dir).unwrap();
    let validity = Validity::days(SystemTime::now(), 20);
    pki::renew(&dir, &authority, "n1", validity).unwrap();
    agent.signal(Signal::HUP);
    agent.logged(&["was renewed; it is valid until"]);
    let status = nodes(&cluster.agents[0], vec![agent.member()]);
    assert_eq!(status[0].problem, None);
    // Who is connected stays so.
    launcher.send_text(1, "hello");
    assert_eq!(launcher.next_text(), (1, "heard hello".into()));
    drop(launcher);
    gone(&pids);
}
