//! Judges hosts before a launch (`wireup doctor`): the facts that each host reports of itself, and what the hosts see of
//! each other, become findings. Collecting the facts is the caller's (`src/doctor`).
//!
//! A check is a row of [`CHECKS`]: its name, what it reads, the judgement and the remedy. Equal findings of several hosts
//! become one line ([`report::grouped`]).

mod checks;
pub mod facts;
pub mod neighbours;
pub mod ping_pong;
pub mod report;

use serde::{Deserialize, Serialize};

use facts::HostFacts;
use ping_pong::Pair;

pub use checks::network::INTERFACE_VARIABLES;
pub use checks::{CHECKS, KEEP_TO_NETWORK};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A launch will fail, or is likely to.
    Problem,
    /// A launch may be slow, or fail under some programs.
    Warning,
}

/// What a launch would need, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchNeeds {
    /// Ranks on each host; without it as many as the host has processors.
    pub ranks: Option<u32>,
    /// Hosts of the launch.
    pub hosts: u32,
}

impl LaunchNeeds {
    fn ranks_on(&self, host: &HostFacts) -> u64 {
        u64::from(self.ranks.unwrap_or_else(|| host.cpus.usable()))
    }

    fn ranks_everywhere(&self, host: &HostFacts) -> u64 {
        self.ranks_on(host) * u64::from(self.hosts.max(1))
    }
}

/// A host, and everything that was learned about it.
#[derive(Clone, PartialEq, Debug)]
pub struct DoctorHost {
    /// As the user names it.
    pub name: String,
    /// Its agent's version, or why it was not reached; `None` on this machine alone.
    pub agent: Option<Result<String, String>>,
    /// What it reports of itself, or why it does not.
    pub facts: Result<HostFacts, String>,
    /// Its clock against that of the host that asked.
    pub clock: Option<Clock>,
    /// What it sees of its neighbours.
    pub seen: Vec<NeighbourView>,
    /// What ranks of the user's MPI measured between it and others, if that was tried.
    pub pairs: Vec<Pair>,
}

impl DoctorHost {
    /// The facts, of a host that has reported some.
    pub fn reported_facts(&self) -> Option<&HostFacts> {
        self.facts.as_ref().ok()
    }
}

/// The difference of two clocks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    /// Seconds that this one is ahead.
    pub ahead: f64,
    /// How wrong that can be, in seconds: half of the time that the question took.
    pub error: f64,
}

/// What one host sees of another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NeighbourView {
    /// The number of the other host.
    pub host: usize,
    /// The other's addresses by its name, or why there is none.
    pub forward: Result<Vec<std::net::IpAddr>, String>,
    /// The names that the first of these addresses has.
    pub back: Option<String>,
    /// Why a port there that listens could not be reached: address and reason.
    pub unreached: Option<String>,
}

/// What one check found on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckResult {
    /// How bad it is.
    pub severity: Severity,
    /// What is the case, and what is needed.
    pub text: String,
    /// Replaces the check's remedy, where that does not fit.
    pub remedy: Option<&'static str>,
}

impl CheckResult {
    fn problem(what: impl Into<String>) -> Option<Self> {
        Some(Self {
            severity: Severity::Problem,
            text: what.into(),
            remedy: None,
        })
    }

    fn warning(what: impl Into<String>) -> Option<Self> {
        Some(Self {
            severity: Severity::Warning,
            text: what.into(),
            remedy: None,
        })
    }
}

/// How a check judges.
enum CheckScope {
    /// Each host by itself.
    One(fn(&HostFacts, &LaunchNeeds) -> Option<CheckResult>),
    /// Each host by what is known of all: it gets the number of the host to judge.
    All(fn(&[DoctorHost], usize) -> Option<CheckResult>),
}

pub struct Check {
    /// Its name, which stays as it is.
    pub name: &'static str,
    /// What is read.
    pub reads: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
    judge: CheckScope,
}

/// A finding on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// The host's number.
    pub host: usize,
    /// What is the case.
    pub seen: CheckResult,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Everything that is wrong, in the order of the table and then of the hosts.
pub fn judge(hosts: &[DoctorHost], needs: &LaunchNeeds) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in CHECKS {
        for (number, host) in hosts.iter().enumerate() {
            let seen = match check.judge {
                CheckScope::One(judge) => {
                    host.reported_facts().and_then(|facts| judge(facts, needs))
                }
                CheckScope::All(judge) => judge(hosts, number),
            };
            findings.extend(seen.map(|seen| Finding {
                check: check.name,
                host: number,
                remedy: seen.remedy.unwrap_or(check.remedy),
                seen,
            }));
        }
    }
    findings
}
