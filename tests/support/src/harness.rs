//! The harness: runs the tests that registered, as the compiler's own does, and reports those that
//! cannot run on this machine as ignored, with the reason.
//!
//! The compiler's harness must know this before a test runs. A test finds out while it runs: then it
//! calls [`skip`] and returns.

use std::any::Any;
use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::executables;
use crate::pace::Pace;

/// A test, as the attribute registers it.
#[derive(Debug)]
pub struct Case {
    pub module: &'static str,
    pub name: &'static str,
    pub run: fn(),
    /// It begins before those that are not.
    pub is_long: bool,
}

inventory::collect!(Case);

/// How long each test took.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// What was not checked in any test, once each.
static NOT_CHECKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Why tests that are running cannot run here, by the thread of each.
static REASONS: LazyLock<Mutex<HashMap<ThreadId, Vec<String>>>> = LazyLock::new(Mutex::default);

/// Runs the tests that the command line asks for: the `main` of a test executable.
///
/// `WIREUP_TEST_LONGEST=N` lists the N tests that took longest. Unless `--test-threads` or `RUST_TEST_THREADS` sets
/// the number of tests that run at once, it depends on the idle time of the processors, for all executables together.
pub fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        let threads = std::env::var("RUST_TEST_THREADS").ok();
        arguments.test_threads = threads.and_then(|threads| threads.parse().ok());
    }
    let pace = arguments
        .test_threads
        .is_none()
        .then(|| Arc::new(Pace::of_this_machine(&executables().join("test-pace"))));
    if let Some(pace) = &pace {
        arguments.test_threads = Some(pace.most());
    }
    let mut cases: Vec<(String, &Case)> = inventory::iter::<Case>()
        .map(|case| (full_name(case), case))
        .collect();
    cases.sort_unstable_by(|(one, its), (other, others)| {
        let order = others.is_long.cmp(&its.is_long);
        order.then_with(|| one.cmp(other))
    });
    let trials = cases.into_iter().map(|(name, case)| {
        let (run, pace) = (case.run, pace.clone());
        Trial::ignorable_test(name.clone(), move || {
            let _admitted = pace.as_deref().map(Pace::admit);
            run_case(name, run)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    for what in NOT_CHECKED.lock().unwrap().iter() {
        println!("not checked here: {what}");
    }
    print_longest();
    conclusion.exit_code()
}

/// The name by which the compiler's harness would know it.
fn full_name(case: &Case) -> String {
    match case.module.split_once("::") {
        Some((_executable, module)) => format!("{module}::{}", case.name),
        None => case.name.to_owned(),
    }
}

/// Runs a test on a thread of its own, whose name is in the messages of its panics.
fn run_case(name: String, run: fn()) -> Result<Completion, Failed> {
    let started = Instant::now();
    let thread = thread::Builder::new().name(name.clone()).spawn(move || {
        let own = thread::current().id();
        REASONS.lock().unwrap().insert(own, Vec::new());
        run();
    });
    let thread = thread.unwrap();
    let id = thread.thread().id();
    let ended = thread.join();
    let mut reasons = REASONS.lock().unwrap().remove(&id).unwrap_or_default();
    TIMES.lock().unwrap().push((started.elapsed(), name));
    match ended {
        Err(panic) => Err(Failed::from(message(&*panic))),
        Ok(()) if reasons.is_empty() => Ok(Completion::Completed),
        Ok(()) => {
            reasons.sort_unstable();
            reasons.dedup();
            Ok(Completion::ignored_with(reasons.join("; ")))
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

fn print_longest() {
    let count = std::env::var("WIREUP_TEST_LONGEST").ok();
    let Some(count) = count.and_then(|count| count.parse().ok()) else {
        return;
    };
    let mut times = TIMES.lock().unwrap();
    times.sort_unstable();
    for (time, name) in times.iter().rev().take(count) {
        println!("{:7.1} s  {name}", time.as_secs_f64());
    }
}

/// Whether everything must be tested: `WIREUP_TEST_REQUIRE_ALL=1`.
fn all_is_required() -> bool {
    std::env::var_os("WIREUP_TEST_REQUIRE_ALL").is_some_and(|value| value == "1")
}

/// Has the harness report this test, or the part of it that was asked for, as ignored. The caller returns,
/// or goes on with what can be tested.
///
/// # Panics
/// With `WIREUP_TEST_REQUIRE_ALL=1` in the environment.
#[track_caller]
pub fn skip(what: &str) {
    let required = all_is_required();
    assert!(!required, "required, and cannot be tested here: {what}");
    let mut running = REASONS.lock().unwrap();
    if let Some(reasons) = running.get_mut(&thread::current().id()) {
        reasons.push(what.to_owned());
        return;
    }
    if running.is_empty() {
        // A unit test, which the compiler's harness runs.
        let _ = writeln!(std::io::stderr(), "skipped: {what}");
    }
    // On a thread that one of these tests started: rather one too many is reported than none.
    for reasons in running.values_mut() {
        reasons.push(what.to_owned());
    }
}

/// Has the harness say at the end that tests did not check something beside their subject.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn not_checked(what: &str) {
    let required = all_is_required();
    assert!(!required, "required, and cannot be checked here: {what}");
    let mut known = NOT_CHECKED.lock().unwrap();
    if !known.iter().any(|known| known == what) {
        known.push(what.to_owned());
    }
}

/// Runs a test that is an asynchronous function.
#[cfg(feature = "async")]
pub fn block_on(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(test);
}
