//! The harness: runs the tests that registered, as the compiler's own does, and reports those that
//! cannot run on this machine as ignored, with the reason.
//!
//! The compiler's harness must know this before a test runs. A test finds out while it runs: then it
//! calls [`skip`] and returns.

use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{LazyLock, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::{procfs, run};

/// A test, as the attribute registers it.
#[derive(Debug)]
pub struct Case {
    pub module: &'static str,
    pub name: &'static str,
    pub run: fn(),
}

inventory::collect!(Case);

/// Descriptions of what tests did not check, once each.
static NOT_CHECKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Reasons for which running tests cannot run here, by the thread of each.
static REASONS: LazyLock<Mutex<HashMap<ThreadId, Vec<String>>>> = LazyLock::new(Mutex::default);

/// Runs the tests that the command line asks for: the `main` of a test executable.
///
/// `WIREUP_TEST_TIMES=FILE` appends a line for each test to that file: executable, test, seconds, processor seconds,
/// launches and the reasons why it or a part of it was ignored, separated by tabs. Processor seconds and launches are those of
/// the whole process, so they belong to the test only where it runs alone, as under cargo-nextest.
pub fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut cases: Vec<(String, &Case)> = inventory::iter::<Case>()
        .map(|case| (full_name(case), case))
        .collect();
    cases.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let trials = cases.into_iter().map(|(name, case)| {
        let run = case.run;
        Trial::ignorable_test(name.clone(), move || run_case(name, run))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    for what in NOT_CHECKED.lock().unwrap().iter() {
        println!("{}", not_checked_line(what));
    }
    conclusion.exit_code()
}

fn not_checked_line(what: &str) -> String {
    format!("not checked here: {what}")
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
    reasons.sort_unstable();
    reasons.dedup();
    record_times(&name, started.elapsed(), &reasons);
    match ended {
        Err(panic) => Err(Failed::from(message(&*panic))),
        Ok(()) if reasons.is_empty() => Ok(Completion::Completed),
        Ok(()) => Ok(Completion::ignored_with(reasons.join("; "))),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Appends the line of a test to the file that `WIREUP_TEST_TIMES` names.
fn record_times(name: &str, elapsed: Duration, reasons: &[String]) {
    let Some(path) = std::env::var_os("WIREUP_TEST_TIMES") else {
        return;
    };
    let executable = std::env::current_exe().unwrap();
    let executable = executable.file_name().unwrap().to_string_lossy();
    let (executable, _hash) = executable.rsplit_once('-').unwrap_or((&executable, ""));
    let not_checked = NOT_CHECKED.lock().unwrap();
    let not_checked = not_checked.iter().map(|what| not_checked_line(what));
    let reasons: Vec<String> = reasons.iter().cloned().chain(not_checked).collect();
    let line = format!(
        "{executable}\t{name}\t{:.2}\t{:.2}\t{}\t{}\n",
        elapsed.as_secs_f64(),
        procfs::processor_time().as_secs_f64(),
        run::started(),
        reasons.join("; ").replace(['\t', '\n'], " ")
    );
    let mut options = File::options();
    let file = options.append(true).create(true).open(path);
    file.unwrap().write_all(line.as_bytes()).unwrap();
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

/// Has the harness print at the end that tests did not check something apart from their subject.
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
