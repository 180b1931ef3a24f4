//! The singleton guard: finds programs that load an MPI and run without contact to what the job
//! offers them, each process as rank 0 of 1.
//!
//! A program that is known to load no MPI costs nothing here. The others are looked at from outside
//! a few times while none of what they are offered is used, and only a few ranks of each; a job
//! that ends before the first look is judged by what inspecting its programs said.

use std::sync::Arc;
use std::time::Duration;

use super::Drive;
use crate::job::ids::{GlobalRank, JobNumber};
use crate::job::outcome::Cause;
use crate::launcher::inspect::Wants;
use crate::launcher::plan::Plan;
use crate::launcher::singleton::{Seen, Stage, Why, warning};

/// When, after all ranks were started, their processes are looked at.
const LOOKS: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(500),
    Duration::from_secs(3),
];

/// Ranks of a program that are looked at each time.
const SAMPLE: usize = 4;

/// What is known of one program of the job.
#[derive(Debug, Default)]
struct Watched {
    seen: Option<Seen>,
    told: bool,
}

/// State of the singleton guard.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// By program.
    apps: Vec<Watched>,
    /// When all ranks had been started.
    since: Duration,
    /// Looks that were taken.
    looks: usize,
    /// Whether further ones are to come.
    watching: bool,
}

impl Alone {
    pub(super) fn new(apps: usize) -> Self {
        Self {
            apps: (0..apps).map(|_| Watched::default()).collect(),
            ..Self::default()
        }
    }

    /// Whether a process of this program was seen to load an MPI.
    pub(super) fn sees_mpi(&self, app: usize) -> bool {
        self.apps[app].seen.is_some()
    }

    /// A process of this program was seen.
    pub(super) fn saw(&mut self, app: usize, seen: Seen) {
        if let Some(app) = self.apps.get_mut(app) {
            app.seen = Some(seen);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let look = LOOKS.get(self.looks).filter(|_| self.watching)?;
        Some(self.since + *look)
    }
}

impl Drive {
    /// All ranks have been started: some programs are worth looking at.
    pub(super) fn watch_for_singletons(&mut self) {
        self.alone.since = self.now();
        let worth = |wants| wants != Wants::Plain;
        self.alone.watching = self.plan.apps.iter().any(|app| worth(app.finding.wants));
    }

    /// Looks, if it is time.
    pub(super) fn look_for_singletons(&mut self, now: Duration) {
        if self.alone.next_deadline().is_none_or(|at| now < at) {
            return;
        }
        self.alone.looks += 1;
        if self.connected >= self.plan.job.ranks.size() || self.supervisor.is_ending() {
            self.alone.watching = false;
            return;
        }
        let plan = Arc::clone(&self.plan);
        let last = self.alone.looks == LOOKS.len();
        for index in 0..plan.apps.len() {
            if plan.apps[index].finding.wants == Wants::Plain {
                continue;
            }
            let sample: Vec<GlobalRank> = self.silent(index).take(SAMPLE).collect();
            let seen = self.hands.look(index as u32, &sample);
            if let Some(seen) = seen {
                self.alone.apps[index].seen = Some(seen);
            }
            if last {
                self.judge_running(&plan, index);
            }
        }
    }

    /// A program's ranks that run and have not made contact.
    fn silent(&self, app: usize) -> impl Iterator<Item = GlobalRank> {
        let silent = |rank: &GlobalRank| {
            let life = &self.lives[rank.index()];
            life.runs() && !life.connected
        };
        self.ranks_of(app).filter(silent)
    }

    fn first_rank(&self, app: usize) -> usize {
        let before = self.plan.apps[..app].iter();
        before.map(|app| app.size as usize).sum()
    }

    pub(super) fn ranks_of(&self, app: usize) -> impl Iterator<Item = GlobalRank> + use<> {
        let first = self.first_rank(app) as u32;
        (first..first + self.plan.apps[app].size).map(GlobalRank)
    }

    pub(super) fn any_connected(&self, app: usize) -> bool {
        let mut ranks = self.ranks_of(app);
        ranks.any(|rank| self.lives[rank.index()].connected)
    }

    /// Whether some rank of a program has said anything at all.
    fn any_contacted(&self, app: usize) -> bool {
        let contacted = |rank: GlobalRank| self.pmi_state(rank).contacted;
        self.any_connected(app) || self.ranks_of(app).any(contacted)
    }

    /// Ranks that run alone and cannot but do so are told about while they do: they may be at it
    /// for hours.
    fn judge_running(&mut self, plan: &Plan, app: usize) {
        let strict = plan.spec.ending.strict_pmi;
        let silent = self.silent(app).count();
        let Some(why) = self.why_alone(plan, app).filter(|why| why.certain) else {
            return;
        };
        if silent == 0 || self.any_contacted(app) || plan.job.ranks.size() == 1 && !strict {
            return;
        }
        self.alone.apps[app].told = true;
        if strict && let Some(rank) = self.ranks_of(app).next() {
            let why = why.text;
            return self.fail(Cause::RanAlone { rank, why });
        }
        let name = plan.apps[app].finding.program.display().to_string();
        self.warn(&warning(&name, silent as u32, &why, Stage::Running));
    }

    /// Why ranks of a program would run alone; `None` for one that loads no MPI as far as is known.
    pub(super) fn why_alone(&self, plan: &Plan, app: usize) -> Option<Why> {
        let wants = plan.apps[app].finding.wants;
        let known = matches!(wants, Wants::Pmi | Wants::Pmix);
        let inspected = || known.then(|| Seen::by_inspection(wants));
        let seen = self.alone.apps[app].seen.clone().or_else(inspected)?;
        Some(seen.explain(&plan.offer))
    }

    /// The same where it is a failure of the rank that did.
    pub(super) fn failure_of_singleton(&self, rank: GlobalRank) -> Option<String> {
        if !self.plan.spec.ending.strict_pmi {
            return None;
        }
        // What a spawned process does not join was made for it alone.
        let (JobNumber(0), rank) = self.jobs.identity(rank) else {
            return None;
        };
        let why = self.why_alone(&self.plan, self.plan.app_of(rank))?;
        Some(why.text)
    }

    /// Names the programs all of whose ranks left without a word although they load an MPI. A
    /// program that failed may not have come as far as MPI_Init, and a rank that is the only one is
    /// right to take itself for that.
    pub(in crate::launcher) fn tell_singletons(&mut self) {
        let plan = Arc::clone(&self.plan);
        let strict = matches!(self.supervisor.cause(), Some(Cause::RanAlone { .. }));
        if plan.job.ranks.size() == 1 || strict {
            return;
        }
        let well = self.supervisor.exit_code() == 0;
        let stage = match well {
            true => Stage::Succeeded,
            false => Stage::Failed,
        };
        for (index, app) in plan.apps.iter().enumerate() {
            let ended = |rank: &GlobalRank| self.lives[rank.index()].end.is_some();
            let ended = self.ranks_of(index).filter(ended).count();
            if self.alone.apps[index].told || ended == 0 {
                continue;
            }
            let why = self.why_alone(&plan, index);
            if let Some(why) = why.filter(|why| well || why.certain)
                && !self.any_contacted(index)
            {
                let name = app.finding.program.display().to_string();
                self.warn(&warning(&name, ended as u32, &why, stage));
            }
        }
    }
}
