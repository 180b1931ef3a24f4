//! Scenario of a seed: a job, a moment, and a fault.

use rustix::process::Signal;

/// Number of hosts of every scenario.
pub(super) const HOSTS: usize = 3;

/// Job of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    Shell,
    Pmi,
    Pmix,
    Mpich,
    OpenMpi,
    /// Ranks of Open MPI that spawn all the time.
    OpenMpiSpawns,
    /// Spawns of children by MPICH.
    MpichSpawns,
}

/// Activity of the job at the fault, which follows after this number of milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moment {
    /// The launcher has been started.
    Starting(u64),
    /// One rank is late, the others may be in a fence.
    Fence(u64),
    /// All ranks have met.
    Running(u64),
    /// The ranks have been signalled to end.
    Ending(u64),
}

/// A process of a launch, or of the agents that serve it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Launcher,
    /// The launcher's, which it has where it leads the ranks itself.
    Guard,
    Agent,
    Helper,
    Step,
    StepGuard,
    Sidecar,
    Rank,
}

/// Fault of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Kill(Target),
    Stop(Target),
    /// Both at once, by SIGKILL.
    KillBoth(Target, Target),
    /// The host's network cable is pulled.
    Cable,
    /// Everything on the host stops.
    Freeze,
}

/// Job, moment, fault and place of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scenario {
    pub(super) job: Job,
    pub(super) moment: Moment,
    pub(super) fault: Fault,
    /// Whether the launcher runs all on its own host, without an agent.
    pub(super) alone: bool,
    /// Index of the host of the fault; the launcher is on host 0.
    pub(super) host: usize,
    /// Whether it is an ordinary user's launch, or root's.
    pub(super) ordinary: bool,
    /// A launcher that was stopped is killed, or else continued and ended by SIGTERM.
    pub(super) finish_by_kill: bool,
}

/// Numbers that only the seed decides (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

impl Scenario {
    pub(super) fn of(seed: u64) -> Self {
        use Target::{Agent, Guard, Helper, Launcher, Rank, Sidecar, Step, StepGuard};
        let mut random = Random(seed);
        let job = random.one_of(&[
            Job::Shell,
            Job::Shell,
            Job::Pmi,
            Job::Pmi,
            Job::Pmix,
            Job::Pmix,
            Job::Mpich,
            Job::OpenMpi,
            Job::OpenMpiSpawns,
            Job::MpichSpawns,
        ]);
        let served = matches!(job, Job::Pmix | Job::OpenMpi | Job::OpenMpiSpawns);
        let alone = random.below(4) == 0;
        let single: &[Target] = match alone {
            true => &[Launcher, Guard, Rank],
            false => &[Launcher, Agent, Agent, Helper, Step, Step, StepGuard, Rank],
        };
        let target = match served && random.below(4) == 0 {
            true => Sidecar,
            false => random.one_of(single),
        };
        let fault = match (random.below(20), alone) {
            (0..8, _) => Fault::Kill(target),
            (8..15, _) => Fault::Stop(target),
            (_, true) => Fault::KillBoth(Launcher, Guard),
            (15, _) => Fault::KillBoth(Launcher, Step),
            (16, _) => Fault::KillBoth(Step, StepGuard),
            (17, _) => Fault::KillBoth(Agent, Step),
            (18, _) => Fault::Cable,
            (_, false) => Fault::Freeze,
        };
        let moment = match random.below(4) {
            0 => Moment::Starting(random.below(300)),
            1 => Moment::Fence(random.below(100)),
            2 => Moment::Running(random.below(50)),
            _ => Moment::Ending(random.below(80)),
        };
        let spawns = matches!(job, Job::OpenMpiSpawns | Job::MpichSpawns);
        let moment = match moment {
            // Shells connect with no other launch, and those that spawn do not end.
            Moment::Fence(after) if job == Job::Shell => Moment::Running(after),
            Moment::Ending(after) if spawns => Moment::Running(after),
            moment => moment,
        };
        let host = match fault {
            _ if alone => 0,
            Fault::Kill(Launcher) | Fault::Stop(Launcher) | Fault::KillBoth(Launcher, _) => 0,
            // The launcher's own could not end it.
            Fault::Freeze => 1 + random.below(HOSTS as u64 - 1) as usize,
            _ => random.below(HOSTS as u64) as usize,
        };
        let plain = matches!(job, Job::Shell | Job::Pmi | Job::Pmix);
        Self {
            job,
            moment,
            fault,
            alone,
            host,
            ordinary: plain && random.below(2) == 0,
            finish_by_kill: random.below(2) == 0,
        }
    }

    /// Whether the launch need not end of it by itself.
    pub(super) fn may_go_on(&self) -> bool {
        use Target::{Guard, Helper, Launcher, Rank, StepGuard};
        matches!(
            self.fault,
            Fault::Stop(Launcher | Rank)
                | Fault::Kill(Guard | StepGuard | Helper)
                | Fault::Stop(Guard | StepGuard | Helper)
        )
    }

    /// Whether what is left may wait for the user's next launch.
    pub(super) fn collected_later(&self) -> bool {
        use Target::{Guard, Helper, Launcher, Step, StepGuard};
        matches!(
            self.fault,
            Fault::KillBoth(Launcher, Guard)
                | Fault::KillBoth(Step, StepGuard)
                // Its agent collects it when it wants another one.
                | Fault::Kill(Helper)
        )
    }

    /// The words that a cause should have and has not, as far as a launcher can know.
    pub(super) fn lacks(&self, cause: &str) -> Vec<String> {
        // Without a connection yet it cannot tell on which side the cable is out.
        let unreachable = cause.contains("cannot reach the agent of ");
        if self.fault == Fault::Cable && unreachable && cause.contains(": no reply within ") {
            return Vec::new();
        }
        let words = self.cause().into_iter();
        words.filter(|word| !cause.contains(word)).collect()
    }

    /// Words of which the cause must have all; none where the launcher has no cause to tell.
    fn cause(&self) -> Vec<String> {
        use Target::{Agent, Rank, Sidecar, Step};
        let host = format!("node{:02}", self.host + 1);
        match self.fault {
            Fault::Kill(Rank) => vec!["rank ".to_owned(), host, "signal 9".to_owned()],
            Fault::Kill(Sidecar) | Fault::Stop(Sidecar) => vec!["PMIx server".to_owned(), host],
            Fault::Stop(Step) | Fault::Kill(Step) => vec!["step".to_owned(), host],
            // The agent may report the end of its step before it dies itself.
            Fault::KillBoth(Agent, Step) if self.host == 0 => Vec::new(),
            Fault::Kill(Agent) | Fault::Stop(Agent) | Fault::KillBoth(Agent, _)
                if self.host == 0 =>
            {
                vec!["agent".to_owned()]
            }
            Fault::Kill(Agent) | Fault::Stop(Agent) => vec!["agent".to_owned(), host],
            Fault::KillBoth(Agent | Step, _) | Fault::Cable | Fault::Freeze => vec![host],
            _ => Vec::new(),
        }
    }

    /// The signals, in this order.
    pub(super) fn signals(&self) -> Vec<(Target, Signal)> {
        match self.fault {
            Fault::Kill(target) => vec![(target, Signal::KILL)],
            Fault::Stop(target) => vec![(target, Signal::STOP)],
            Fault::KillBoth(one, other) => vec![(one, Signal::KILL), (other, Signal::KILL)],
            Fault::Cable | Fault::Freeze => Vec::new(),
        }
    }
}
