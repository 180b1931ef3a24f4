//! Singleton detector: finds programs that load an MPI and run without contact to the job's PMI or
//! PMIx, each process as rank 0 of 1.
//!
//! A few ranks of each program that have not connected are inspected from outside, at growing
//! intervals, as long as there are any: a script may load its MPI late. A program that is not
//! linked with an MPI may still open one: it is inspected as well, but not in short jobs. A job that
//! ends before the first inspection is judged by the inspection of its program files.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::step_messages::LauncherToStep;
use crate::control::launch_context::LaunchContext;
use crate::control::launch_effect::LaunchEffect;
use crate::control::launch_service::LaunchService;
use crate::inspect::DetectedInterface;
use crate::plan::HostPlan;
use crate::report::singleton_detection::{
    MpiProcess, ProgramState, SingletonCause, descendant_program, warning,
};
use wireup_core::job::ids::GlobalRank;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::FailureCause;

/// Time of the first inspection after all ranks were started; also the shortest interval.
const FIRST: Duration = Duration::from_millis(50);
/// Divisor of the elapsed time; the quotient is the interval between inspections. A singleton that runs for
/// longer than the interval is found, and a long job is inspected more and more rarely.
const PART: u32 = 8;
/// Longest interval between inspections.
const RARELY: Duration = Duration::from_secs(30);
/// Time after which singletons are reported while they run. Before, they may only be slow.
/// Programs not linked with an MPI are not inspected earlier.
const PATIENCE: Duration = Duration::from_secs(3);

/// Number of ranks of a program that are inspected each time.
const SAMPLE: usize = 4;

/// Known facts about one application of the job.
#[derive(Debug, Default)]
struct AppContact {
    /// Time of the first inspection of its ranks; `None` for never.
    from: Option<Duration>,
    process: Option<MpiProcess>,
    is_reported: bool,
}

/// State of the singleton detector.
#[derive(Debug, Default)]
pub(super) struct SingletonDetector {
    apps: Vec<AppContact>,
    /// Time at which all ranks had been started.
    started_at: Duration,
    /// Time of the next inspection; `None` for never.
    next: Option<Duration>,
    /// Whether a result was stored that was not judged yet.
    news: bool,
}

impl LaunchService for SingletonDetector {
    fn next_deadline(&self) -> Option<Duration> {
        let news = self.news.then_some(Duration::ZERO);
        news.or(self.next)
    }

    /// Inspects processes, if it is due, and judges the results.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        let due = self.next.is_some_and(|at| now >= at);
        let news = std::mem::take(&mut self.news);
        if !due && !news {
            return;
        }
        if cx.is_connected() || cx.supervisor.is_ending() {
            self.next = None;
            return;
        }
        let plan = Arc::clone(&cx.plan);
        let elapsed = now.saturating_sub(self.started_at);
        if due {
            let left = self.inspect_silent_ranks(cx, elapsed);
            self.next = left.then(|| self.started_at + next_inspection_time(elapsed));
        }
        if elapsed >= PATIENCE {
            for app in 0..plan.apps.len() {
                self.judge_running(cx, &plan, app);
            }
        }
    }
}

impl SingletonDetector {
    pub(super) fn new(apps: usize) -> Self {
        Self {
            apps: (0..apps).map(|_| AppContact::default()).collect(),
            ..Self::default()
        }
    }

    /// Stores the result of the inspection of a process of an application.
    pub(super) fn saw(&mut self, app: usize, process: MpiProcess) {
        if let Some(app) = self.apps.get_mut(app) {
            app.process = Some(process);
            self.news = true;
        }
    }
}

/// Returns the time of the inspection that follows the one at `look`; both count from the start of the last rank.
fn next_inspection_time(look: Duration) -> Duration {
    let next = look + (look / PART).clamp(FIRST, RARELY);
    match look < PATIENCE {
        true => next.min(PATIENCE),
        false => next,
    }
}

impl SingletonDetector {
    /// Starts the inspections, when all ranks have been started.
    pub(super) fn watch(&mut self, cx: &mut LaunchContext) {
        let now = cx.now();
        let plan = &cx.plan;
        // The only rank of a job is rightly rank 0 of 1.
        let matters = plan.job.process_map.size() > 1 || plan.spec.ending.strict_pmi;
        for (app, watched) in plan.apps.iter().zip(&mut self.apps) {
            watched.from = match app.detected.wants {
                DetectedInterface::Plain => matters.then_some(PATIENCE),
                DetectedInterface::Pmi | DetectedInterface::Pmix | DetectedInterface::Unknown => {
                    Some(FIRST)
                }
            };
        }
        self.started_at = now;
        let first = self.apps.iter().filter_map(|app| app.from).min();
        self.next = first.map(|first| now + first);
    }

    /// Inspects a few ranks of each application that have not connected. Returns whether there are any
    /// for the next inspection.
    fn inspect_silent_ranks(&mut self, cx: &mut LaunchContext, elapsed: Duration) -> bool {
        let mut left = false;
        for app in 0..self.apps.len() {
            let watched = &self.apps[app];
            let Some(from) = watched.from.filter(|_| !watched.is_reported) else {
                continue;
            };
            let sample = silent_ranks(cx, app).take(SAMPLE).map(KnownRank::global);
            let sample: Vec<GlobalRank> = sample.collect();
            left |= !sample.is_empty();
            if elapsed < from || sample.is_empty() {
                continue;
            }
            cx.steps.send(LauncherToStep::Look {
                app: app as u32,
                ranks: sample,
            });
        }
        left
    }

    /// Reports ranks that certainly run as singletons while they run, which may be for
    /// hours.
    fn judge_running(&mut self, cx: &mut LaunchContext, plan: &HostPlan, app: usize) {
        let strict = plan.spec.ending.strict_pmi;
        if self.apps[app].is_reported {
            return;
        }
        let Some(why) = self.cause_of(plan, app).filter(|why| why.certain) else {
            return;
        };
        let silent = silent_ranks(cx, app).count();
        if silent == 0 || any_contacted(cx, app) || plan.job.process_map.size() == 1 && !strict {
            return;
        }
        self.apps[app].is_reported = true;
        let first = cx.ranks_of_app(app).next().map(KnownRank::global);
        if strict && let Some(rank) = first {
            let why = self.cause_text(plan, app, why);
            return cx
                .effects
                .push(LaunchEffect::Fail(FailureCause::Singleton { rank, why }));
        }
        let name = self.program_of(plan, app);
        cx.warn(&warning(&name, silent as u32, &why, ProgramState::Running));
    }

    /// Returns the reason why ranks of an application are singletons; `None` for one that is not known to load an MPI.
    pub(super) fn cause_of(&self, plan: &HostPlan, app: usize) -> Option<SingletonCause> {
        let wants = plan.apps[app].detected.wants;
        let known = matches!(wants, DetectedInterface::Pmi | DetectedInterface::Pmix);
        let inspected = || known.then(|| MpiProcess::by_inspection(wants));
        let process = self.apps[app].process.clone().or_else(inspected)?;
        Some(process.explain(&plan.offer))
    }

    /// Returns the reason why a rank is a singleton, if that is a failure of the rank (`--strict-pmi`).
    pub(super) fn failure_of(&self, cx: &LaunchContext, rank: KnownRank) -> Option<String> {
        if !cx.plan.spec.ending.strict_pmi {
            return None;
        }
        // Only ranks of the initial job count: a spawned job was made for its processes alone.
        let joins = rank.is_in_initial_job();
        let app = joins.then(|| cx.plan.app_of(rank.rank()))?;
        let why = self.cause_of(&cx.plan, app)?;
        Some(self.cause_text(&cx.plan, app, why))
    }

    /// Returns the program that has loaded an MPI, if it is not the started program but one below it.
    fn program_below(&self, plan: &HostPlan, app: usize) -> Option<String> {
        let process = self.apps[app].process.as_ref()?;
        let started = &plan.apps[app].detected.program;
        let real = started.canonicalize();
        descendant_program(started, real.as_ref().unwrap_or(started), process)
    }

    /// Names the program whose ranks run as singletons.
    fn program_of(&self, plan: &HostPlan, app: usize) -> String {
        let started = || plan.apps[app].detected.program.display().to_string();
        self.program_below(plan, app).unwrap_or_else(started)
    }

    /// Returns the text about a failed singleton. The line about it names the started program, so only another one is named.
    fn cause_text(&self, plan: &HostPlan, app: usize, why: SingletonCause) -> String {
        match self.program_below(plan, app) {
            Some(name) => format!("{name}: {}", why.text),
            None => why.text,
        }
    }

    /// Reports the programs that load an MPI and whose ranks all exited without connecting. A program
    /// that failed may not have reached MPI_Init, and the only rank of a job is rightly rank 0 of 1.
    pub(crate) fn report(&mut self, cx: &mut LaunchContext) {
        let plan = Arc::clone(&cx.plan);
        let strict = matches!(cx.supervisor.cause(), Some(FailureCause::Singleton { .. }));
        if plan.job.process_map.size() == 1 || strict {
            return;
        }
        let well = cx.supervisor.exit_code() == 0;
        let stage = match well {
            true => ProgramState::Succeeded,
            false => ProgramState::Failed,
        };
        for index in 0..plan.apps.len() {
            let ended = |rank: &KnownRank| cx.ranks.get(*rank).end.is_some();
            let ended = cx.ranks_of_app(index).filter(ended).count();
            if self.apps[index].is_reported || ended == 0 {
                continue;
            }
            let why = self.cause_of(&plan, index);
            if let Some(why) = why.filter(|why| well || why.certain)
                && !any_contacted(cx, index)
            {
                let name = self.program_of(&plan, index);
                cx.warn(&warning(&name, ended as u32, &why, stage));
            }
        }
    }
}

/// Returns an application's ranks that run and have not connected.
fn silent_ranks(cx: &LaunchContext, app: usize) -> impl Iterator<Item = KnownRank> {
    let silent = |rank: &KnownRank| {
        let life = cx.ranks.get(*rank);
        life.runs() && !life.connected
    };
    cx.ranks_of_app(app).filter(silent)
}

/// Whether any rank of an application has contacted PMI or PMIx.
fn any_contacted(cx: &LaunchContext, app: usize) -> bool {
    let contacted = |rank: KnownRank| cx.pmi_state(rank).contacted;
    cx.is_app_connected(app) || cx.ranks_of_app(app).any(contacted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_ever_more_rarely_and_one_when_patience_ends() {
        let later = |look: &Duration| Some(next_inspection_time(*look));
        let looks = std::iter::successors(Some(FIRST), later);
        let looks: Vec<Duration> = looks.take_while(|look| look.as_secs() < 3600).collect();
        let gaps: Vec<Duration> = looks.windows(2).map(|two| two[1] - two[0]).collect();
        let (first, last) = (looks[1], *gaps.last().unwrap());
        assert_eq!((first, last), (FIRST * 2, RARELY));
        assert!(looks.contains(&PATIENCE));
        for (look, gap) in looks.iter().zip(&gaps) {
            assert!(*gap <= FIRST.max(*look / PART), "{look:?}: {gap:?}");
        }
        let early = looks.iter().filter(|look| **look <= PATIENCE).count();
        assert!(early <= 26 && looks.len() < 180, "{early}, {looks:?}");
    }
}
