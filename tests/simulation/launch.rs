//! Whole launches in one process: the launcher's fleet and supervisor, agents with their routers, steps with their
//! nodes' cores, PMIx servers, and ranks that speak PMI-1 or PMIx, under one seeded scheduler.
//!
//! Ranks meet in barriers and fences, fetch data, make groups, publish and look up names, and spawn a job. Each stream
//! keeps its order, and they do not wait for each other. A rank, a step, a PMIx server, a host, a link or the launcher
//! fails, a host is paused, or output is not taken for some time. Checked all the time: nothing is answered early,
//! each request has one answer, which is right, deadlines are kept, no node gets more credit than it has sent or
//! sends more than it may, and queues are bounded. Checked at the end: nothing is left, and the cause is what failed.
//!
//! A launch that fails is shown as small as it can be while it fails. `scripts/sim SEED` shows what happens in one.

pub(crate) mod agent;
pub(crate) mod launcher;
pub(crate) mod message;
pub(crate) mod mutation;
pub(crate) mod plan;
pub(crate) mod rank;
pub(crate) mod sidecar;
pub(crate) mod step;
pub(crate) mod world;

use mutation::Fault;
use plan::Plan;
use world::World;

use crate::for_each_seed;

/// Most lines of a trace that are shown.
const LINES: usize = 400;

fn run(plan: &Plan, fault: Option<Fault>) -> Result<(), String> {
    World::new(plan.clone(), fault, false).run()
}

/// A plan that fails as well, and of which no smaller one is known that does.
fn shrink(mut plan: Plan, fault: Option<Fault>) -> Plan {
    while let Some(smaller) = plan
        .smaller()
        .into_iter()
        .find(|plan| run(plan, fault).is_err())
    {
        plan = smaller;
    }
    plan
}

/// Returns the events of a plan and its end.
fn trace(plan: &Plan, fault: Option<Fault>) -> String {
    let mut world = World::new(plan.clone(), fault, true);
    let end = world.run();
    let trace = world.trace.unwrap_or_default();
    let left_out = trace.len().saturating_sub(LINES);
    let lines = trace[left_out..].join("\n");
    format!("{plan:#?}\n… {left_out} steps before\n{lines}\n{end:?}")
}

fn check(seed: u64) {
    if let Err(what) = run(&Plan::of(seed), None) {
        let smallest = shrink(Plan::of(seed), None);
        panic!("{what}\nin a smaller launch:\n{}", trace(&smallest, None));
    }
}

#[test]
fn launches_end_with_injected_failure_without_leftovers() {
    let traced = std::env::var_os("WIREUP_SIM_TRACE").is_some();
    for_each_seed(10_000, |seed| {
        check(seed);
        if traced {
            println!("{}", trace(&Plan::of(seed), None));
        }
    });
}

#[test]
fn launch_on_many_nodes_ends_with_injected_failure() {
    for_each_seed(5, |seed| {
        let plan = Plan::large(seed);
        let end = run(&plan, None);
        assert_eq!(end, Ok(()), "{plan:?}");
    });
}

/// A seed finds the fault, of ranks that speak PMIx and of others; and without it nothing fails.
fn caught(fault: Fault, interfaces: &[bool]) {
    for pmix in interfaces {
        let plans = (0..1000).map(Plan::of).filter(|plan| plan.pmix == *pmix);
        let found = plans
            .into_iter()
            .find(|plan| run(plan, Some(fault)).is_err());
        let plan = found.unwrap_or_else(|| panic!("no seed finds {fault:?}, PMIx: {pmix}"));
        let smallest = shrink(plan, Some(fault));
        let end = run(&smallest, Some(fault));
        assert!(end.is_err());
        let shown = trace(&smallest, Some(fault));
        assert!(shown.ends_with(&format!("{end:?}")), "{shown}");
        assert!(shown.lines().count() > 20, "{shown}");
        assert!(run(&smallest, None).is_ok(), "{fault:?} is not what fails");
    }
}

#[test]
fn unchecked_generation_is_found() {
    caught(Fault::GenerationDropped, &[false, true]);
}

#[test]
fn duplicate_reply_is_found() {
    caught(Fault::AnsweredTwice, &[false, true]);
}

#[test]
fn forgotten_waiter_is_found() {
    caught(Fault::WaiterForgotten, &[false, true]);
}

#[test]
fn lost_credit_is_found() {
    caught(Fault::CreditLeaked, &[false, true]);
}

#[test]
fn unanswered_spawn_is_found() {
    caught(Fault::SpawnForgotten, &[false, true]);
}

#[test]
fn wrong_parent_is_found() {
    caught(Fault::WrongParent, &[false, true]);
}

#[test]
fn unwithheld_consequences_are_found() {
    caught(Fault::NothingWithheld, &[false, true]);
}

#[test]
fn step_that_outlives_its_launcher_is_found() {
    caught(Fault::OrphanKept, &[false, true]);
}
