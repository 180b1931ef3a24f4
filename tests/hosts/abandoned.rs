//! An agent killed, alone and with all that could clean up after its launches: nothing of these stays, and the next agent serves.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use rustix::process::Signal;
use wireup_lab::Process;

use crate::cluster::{ALICE, Cluster, is_helper};
use crate::common::{Output, Running, eventually, skip};
use crate::failures::expect_cause;
use crate::users::of;

/// A rank each on two hosts, with a directory.
const TWO: [&str; 6] = ["--pmi", "pmix", "--hosts", "node01:1,node02:1", "-n", "2"];

/// Starts ranks that ignore signals, each with a child that only the cgroup connects with the launch.
fn stubborn(cluster: &Cluster) -> Running {
    let script =
        "trap '' TERM; (env -i setsid sleep 1000 &); echo ready; while :; do sleep 1; done";
    let run = of(ALICE, cluster.run(0, TWO).more(["sh", "-c", script]));
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running
}

/// Step and guard of the launch on a host.
fn leaders(cluster: &Cluster, host: usize) -> Vec<Process> {
    let all = cluster.host(host).processes().into_iter();
    let found = all
        .filter(|process| ["wireup-step", "wireup-guard"].contains(&process.name.as_str()))
        .collect::<Vec<_>>();
    assert_eq!(found.len(), 2, "{found:?}");
    found
}

/// Returns the helpers of the agent that serves on a host.
fn helpers(cluster: &Cluster, host: usize) -> Vec<Process> {
    let agent = cluster.serving(host);
    let all = cluster.host(host).processes().into_iter();
    let found = all.filter(|process| process.parent == agent.pid && is_helper(process));
    let found = found.collect::<Vec<_>>();
    assert!(!found.is_empty());
    found
}

fn kill(processes: &[Process]) {
    for signal in [Signal::STOP, Signal::KILL] {
        processes.iter().for_each(|process| process.signal(signal));
    }
}

#[test]
fn next_launch_kills_leftovers_of_killed_step_and_guard() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let running = stubborn(&cluster);
    kill(&leaders(&cluster, 1));
    eventually("the launch is over", || {
        let all = cluster.host(0).processes();
        let launcher = all
            .iter()
            .any(|process| process.words.contains("wireup run"));
        (!launcher).then_some(())
    });
    let next = of(ALICE, cluster.run(0, TWO).more(["true"]));
    next.run().expect_quiet_success();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
}

#[test]
fn stopped_step_is_cleaned_up_after_agent_kill() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for host in [0, 1] {
        let running = stubborn(&cluster);
        let step = leaders(&cluster, host)
            .into_iter()
            .find(|one| one.name == "wireup-step");
        step.unwrap().signal(Signal::STOP);
        cluster.excuse(host);
        cluster.kill_agent(host);
        let outcome = running.finish();
        assert_eq!(outcome.code, 122, "{outcome:?}");
        eventually("step, guard and ranks have ended", || {
            let all = cluster.host(host).processes().into_iter();
            let mut ranks = all.filter(|one| one.name == "sh" || one.name.starts_with("wireup-"));
            ranks.next().is_none().then_some(())
        });
        // Ends what only the control group connects with the launch.
        cluster.start_agent(host);
        cluster.expect_clean(host);
    }
}

/// Processes of one host that are killed at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victims {
    /// The agent and its helper. Steps end their ranks, and guards have nothing to do.
    Agent,
    /// The agent, its helper and, where there is one, its front process.
    WithFront,
    /// All that could clean up, but a front.
    WithLeaders,
    /// All processes of wireup.
    All,
}

impl Victims {
    fn on(self, cluster: &Cluster, host: usize) -> Vec<Process> {
        let (front, agent) = (cluster.agent(host), cluster.serving(host));
        let helpers = helpers(cluster, host);
        let leaders = leaders(cluster, host);
        match self {
            Self::Agent => vec![agent],
            Self::WithFront => vec![front, agent],
            Self::WithLeaders => [vec![agent], leaders].concat(),
            Self::All => [vec![front, agent], helpers, leaders].concat(),
        }
    }

    /// Whether the ranks outlive them until the next agent starts.
    fn leave_ranks(self) -> bool {
        matches!(self, Self::WithLeaders | Self::All)
    }

    /// Whether the process is among them that the service manager watches.
    fn has_main(self, cluster: &Cluster, host: usize) -> bool {
        matches!(self, Self::WithFront | Self::All)
            || cluster.serving(host).pid == cluster.agent(host).pid
    }
}

/// Kills them on the launcher's host and on another. The launch ends and names the host; the next agent serves at once,
/// while it ends and removes what is left.
fn kill_agents(options: &'static [&'static str]) {
    let Some(cluster) = Cluster::builder(2).options(options).start() else {
        return;
    };
    for victims in [
        Victims::Agent,
        Victims::WithFront,
        Victims::WithLeaders,
        Victims::All,
    ] {
        for host in [0, 1] {
            let running = stubborn(&cluster);
            let killed = victims.on(&cluster, host);
            let main = victims.has_main(&cluster, host);
            let serving = || cluster.log(host).matches(" serves node ").count();
            let before = serving();
            if victims.leave_ranks() {
                cluster.excuse(host);
            }
            kill(&killed);
            let outcome = running.finish();
            let when = format!("{victims:?} killed on host {host} with {options:?}");
            assert_eq!(outcome.code, 122, "{when}: {outcome:?}");
            expect_cause(&outcome, &[cluster.host(host).name()]);
            if main {
                let ended = cluster.agent_ended(host);
                assert_eq!(ended.signal(), Some(9), "{when}");
                cluster.start_agent(host);
            } else {
                eventually("the front has started the next agent", || {
                    (serving() > before).then_some(())
                });
            }
            let next = of(ALICE, cluster.run(0, TWO).more(["true"]));
            next.run().expect_quiet_success();
            cluster.expect_clean(host);
        }
    }
}

#[test]
fn agent_kills_leftovers_of_its_killed_predecessor() {
    kill_agents(&[]);
}

#[test]
fn agent_behind_front_kills_leftovers_of_killed_predecessor() {
    kill_agents(&["--on-stop", "leave"]);
}

#[test]
fn unprivileged_agent_kills_leftovers_of_killed_predecessor() {
    kill_agents(&["--on-stop", "leave", "--user", "agent"]);
}

/// The next agent finds the helper of its predecessor, which was killed a moment ago, still there.
#[test]
fn leftovers_of_helper_outliving_next_agent_start_are_killed() {
    for options in [&[][..], &["--user", "agent"]] {
        let Some(cluster) = Cluster::builder(2).options(options).start() else {
            return;
        };
        let running = stubborn(&cluster);
        let agent = cluster.agent(1);
        let helpers = helpers(&cluster, 1);
        helpers.iter().for_each(|one| one.signal(Signal::STOP));
        cluster.excuse(1);
        kill(&[leaders(&cluster, 1), vec![agent]].concat());
        assert_eq!(running.finish().code, 122);
        assert_eq!(cluster.agent_ended(1).signal(), Some(9));
        cluster.start_agent(1);
        helpers.iter().for_each(|one| one.signal(Signal::KILL));
        cluster.expect_clean(1);
    }
}

#[test]
fn steps_run_in_group_that_was_killed_before() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let tops = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let is_top = |top: &&Path| top.join("cgroup.controllers").exists();
    let moved = [&helpers(&cluster, 1)[..], &[cluster.agent(1)]].concat();
    let text = fs::read_to_string(format!("/proc/{}/cgroup", moved[0].pid)).unwrap();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let top = tops
        .into_iter()
        .find(is_top)
        .zip(own)
        .map(|(top, own)| top.join(own));
    let name = format!("killed-{}", std::process::id());
    let group = top.as_ref().map(|top| top.join(&name));
    let killed = group.as_ref().is_some_and(|group| {
        fs::create_dir(group).is_ok() && fs::write(group.join("cgroup.kill"), "1").is_ok()
    });
    let (Some(top), Some(group), true) = (top, group, killed) else {
        return skip("a killed control group: this machine lets us make none");
    };
    let launch = || {
        let show = "echo $WIREUP_HOST $(grep ^0:: /proc/self/cgroup)";
        let outcome = cluster.run(0, TWO).more(["sh", "-c", show]).run();
        outcome.expect(0).out()
    };
    for place in [&group, &top] {
        for process in &moved {
            fs::write(place.join("cgroup.procs"), process.pid.to_string()).unwrap();
        }
        let out = launch();
        let here = out.lines().find(|line| line.starts_with("node02 "));
        assert!(
            here.is_some_and(|line| line.contains("/wireup-step-")),
            "{out}"
        );
        assert_eq!(here.unwrap().contains(&name), *place == group, "{out}");
    }
    eventually("the group is empty", || fs::remove_dir(&group).ok());
}
