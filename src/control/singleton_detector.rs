//! The singleton guard: finds programs that load an MPI and run without contact to what the job
//! offers them, each process as rank 0 of 1.
//!
//! A few ranks of each program that have not made contact are inspected from outside, with
//! increasing intervals, as long as there are any: a script may load its MPI late. A program that
//! is not linked with an MPI may still open one: it is inspected as well, at no cost for a short
//! job takes. A job that ends before the first look is judged by what inspecting its programs said.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::step_messages::LauncherToStep;
use crate::control::Controller;
use crate::control::launch_effect::LaunchEffect;
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
/// Looks are as far apart as this part of the time that has passed: what runs alone for longer than
/// that is seen, and looking costs ever less of a job that lasts.
const PART: u32 = 8;
/// Looks are never farther apart.
const RARELY: Duration = Duration::from_secs(30);
/// From this time on singletons are reported while they run. Before, they may only be slow.
/// Programs not linked with an MPI are not inspected earlier.
const PATIENCE: Duration = Duration::from_secs(3);

/// Number of ranks of a program that are inspected each time.
const SAMPLE: usize = 4;

/// Known facts about one program of the job.
#[derive(Debug, Default)]
struct AppContact {
    /// Time of the first inspection of its ranks; `None` for never.
    from: Option<Duration>,
    seen: Option<MpiProcess>,
    is_reported: bool,
}

/// State of the singleton guard.
#[derive(Debug, Default)]
pub(super) struct SingletonDetector {
    apps: Vec<AppContact>,
    /// When all ranks had been started.
    started_at: Duration,
    /// When the next look is due.
    next: Option<Duration>,
    /// Something was seen elsewhere that has not been judged.
    news: bool,
}

impl SingletonDetector {
    pub(super) fn new(apps: usize) -> Self {
        Self {
            apps: (0..apps).map(|_| AppContact::default()).collect(),
            ..Self::default()
        }
    }

    /// Whether a process of this program was seen to load an MPI.
    pub(super) fn sees_mpi(&self, app: usize) -> bool {
        self.apps[app].seen.is_some()
    }

    /// A process of this program was seen.
    pub(super) fn saw(&mut self, app: usize, seen: MpiProcess) {
        if let Some(app) = self.apps.get_mut(app) {
            app.seen = Some(seen);
            self.news = true;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.next
    }
}

/// When the look after this one is due, both counted from the start of the last rank.
fn next_inspection_time(look: Duration) -> Duration {
    let next = look + (look / PART).clamp(FIRST, RARELY);
    match look < PATIENCE {
        true => next.min(PATIENCE),
        false => next,
    }
}

impl Controller {
    /// All ranks have been started: some programs are worth looking at.
    pub(super) fn watch_for_singletons(&mut self) {
        let now = self.cx.now();
        let plan = &self.cx.plan;
        // A rank that is the only one is right to take itself for that.
        let matters = plan.job.process_map.size() > 1 || plan.spec.ending.strict_pmi;
        for (app, watched) in plan.apps.iter().zip(&mut self.singletons.apps) {
            watched.from = match app.detected.wants {
                DetectedInterface::Plain => matters.then_some(PATIENCE),
                DetectedInterface::Pmi | DetectedInterface::Pmix | DetectedInterface::Unknown => {
                    Some(FIRST)
                }
            };
        }
        self.singletons.started_at = now;
        let first = self.singletons.apps.iter().filter_map(|app| app.from).min();
        self.singletons.next = first.map(|first| now + first);
    }

    /// Inspects processes, if it is due, and judges the results.
    pub(super) fn detect_singletons(&mut self, now: Duration) {
        let due = self.singletons.next.is_some_and(|at| now >= at);
        let news = std::mem::take(&mut self.singletons.news);
        if !due && !news {
            return;
        }
        if self.cx.is_connected() || self.cx.supervisor.is_ending() {
            self.singletons.next = None;
            return;
        }
        let plan = Arc::clone(&self.cx.plan);
        let elapsed = now.saturating_sub(self.singletons.started_at);
        if due {
            let left = self.inspect_silent_ranks(elapsed);
            self.singletons.next =
                left.then(|| self.singletons.started_at + next_inspection_time(elapsed));
        }
        if elapsed >= PATIENCE {
            for app in 0..plan.apps.len() {
                self.judge_running(&plan, app);
            }
        }
    }

    /// Looks at a few ranks of each program that have not made contact; whether there will be any at
    /// the next look.
    fn inspect_silent_ranks(&mut self, elapsed: Duration) -> bool {
        let mut left = false;
        for app in 0..self.singletons.apps.len() {
            let watched = &self.singletons.apps[app];
            let Some(from) = watched.from.filter(|_| !watched.is_reported) else {
                continue;
            };
            let sample = self.silent(app).take(SAMPLE).map(KnownRank::global);
            let sample: Vec<GlobalRank> = sample.collect();
            left |= !sample.is_empty();
            if elapsed < from || sample.is_empty() {
                continue;
            }
            self.cx.steps.send(LauncherToStep::Look {
                app: app as u32,
                ranks: sample,
            });
            // What cannot be read now fails the loop when it reads it.
            let _ = self.drain_reports();
        }
        left
    }

    /// A program's ranks that run and have not made contact.
    fn silent(&self, app: usize) -> impl Iterator<Item = KnownRank> {
        let silent = |rank: &KnownRank| {
            let life = self.cx.ranks.get(*rank);
            life.runs() && !life.connected
        };
        self.cx.ranks_of_app(app).filter(silent)
    }

    /// Whether some rank of a program has said anything at all.
    fn any_contacted(&self, app: usize) -> bool {
        let contacted = |rank: KnownRank| self.cx.pmi_state(rank).contacted;
        self.cx.is_app_connected(app) || self.cx.ranks_of_app(app).any(contacted)
    }

    /// Ranks that certainly run as singletons are reported while they do: they may run
    /// for hours.
    fn judge_running(&mut self, plan: &HostPlan, app: usize) {
        let strict = plan.spec.ending.strict_pmi;
        if self.singletons.apps[app].is_reported {
            return;
        }
        let Some(why) = self.singleton_cause(plan, app).filter(|why| why.certain) else {
            return;
        };
        let silent = self.silent(app).count();
        if silent == 0 || self.any_contacted(app) || plan.job.process_map.size() == 1 && !strict {
            return;
        }
        self.singletons.apps[app].is_reported = true;
        let first = self.cx.ranks_of_app(app).next().map(KnownRank::global);
        if strict && let Some(rank) = first {
            let why = self.with_name(plan, app, why);
            return self
                .cx
                .effects
                .push(LaunchEffect::Fail(FailureCause::Singleton { rank, why }));
        }
        let name = self.singleton_program(plan, app);
        self.cx
            .warn(&warning(&name, silent as u32, &why, ProgramState::Running));
    }

    /// Why ranks of a program would run alone; `None` for one that loads no MPI as far as is known.
    pub(super) fn singleton_cause(&self, plan: &HostPlan, app: usize) -> Option<SingletonCause> {
        let wants = plan.apps[app].detected.wants;
        let known = matches!(wants, DetectedInterface::Pmi | DetectedInterface::Pmix);
        let inspected = || known.then(|| MpiProcess::by_inspection(wants));
        let seen = self.singletons.apps[app].seen.clone().or_else(inspected)?;
        Some(seen.explain(&plan.offer))
    }

    /// The same where it is a failure of the rank that did.
    pub(super) fn failure_of_singleton(&self, rank: KnownRank) -> Option<String> {
        if !self.cx.plan.spec.ending.strict_pmi {
            return None;
        }
        // What a spawned process does not join was made for it alone.
        let joins = rank.is_in_initial_job();
        let app = joins.then(|| self.cx.plan.app_of(rank.rank()))?;
        let why = self.singleton_cause(&self.cx.plan, app)?;
        Some(self.with_name(&self.cx.plan, app, why))
    }

    /// The program below the one that was started which was seen to load an MPI, if it is another.
    fn seen_below(&self, plan: &HostPlan, app: usize) -> Option<String> {
        let seen = self.singletons.apps[app].seen.as_ref()?;
        let started = &plan.apps[app].detected.program;
        let real = started.canonicalize();
        descendant_program(started, real.as_ref().unwrap_or(started), seen)
    }

    /// The ranks that run as singletons.
    fn singleton_program(&self, plan: &HostPlan, app: usize) -> String {
        let started = || plan.apps[app].detected.program.display().to_string();
        self.seen_below(plan, app).unwrap_or_else(started)
    }

    /// Why a rank is a failure; the line about it names the program that was started.
    fn with_name(&self, plan: &HostPlan, app: usize, why: SingletonCause) -> String {
        match self.seen_below(plan, app) {
            Some(name) => format!("{name}: {}", why.text),
            None => why.text,
        }
    }

    /// Reports the programs that load an MPI and whose ranks all ended without contact. A
    /// program that failed may not have come as far as MPI_Init, and a rank that is the only one is
    /// right to take itself for that.
    pub(crate) fn report_singletons(&mut self) {
        let plan = Arc::clone(&self.cx.plan);
        let strict = matches!(
            self.cx.supervisor.cause(),
            Some(FailureCause::Singleton { .. })
        );
        if plan.job.process_map.size() == 1 || strict {
            return;
        }
        let well = self.cx.supervisor.exit_code() == 0;
        let stage = match well {
            true => ProgramState::Succeeded,
            false => ProgramState::Failed,
        };
        for index in 0..plan.apps.len() {
            let ended = |rank: &KnownRank| self.cx.ranks.get(*rank).end.is_some();
            let ended = self.cx.ranks_of_app(index).filter(ended).count();
            if self.singletons.apps[index].is_reported || ended == 0 {
                continue;
            }
            let why = self.singleton_cause(&plan, index);
            if let Some(why) = why.filter(|why| well || why.certain)
                && !self.any_contacted(index)
            {
                let name = self.singleton_program(&plan, index);
                self.cx.warn(&warning(&name, ended as u32, &why, stage));
            }
        }
    }
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
