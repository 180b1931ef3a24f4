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

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A launch will fail, or is likely to.
    Problem,
    /// A launch may be slow, or fail under some programs.
    Warning,
}

/// Requirements of a planned launch, as far as they are known.
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
    /// Name that the user has given.
    pub name: String,
    /// Version of the host's agent, or the error of the connection; `None` on this machine alone.
    pub agent: Option<Result<String, String>>,
    /// Facts that the host reports, or the error of the request.
    pub facts: Result<HostFacts, String>,
    /// Clock of the host, relative to that of the requesting host.
    pub clock: Option<Clock>,
    /// Reachability of other hosts from this one.
    pub neighbours: Vec<NeighbourView>,
    /// Measurements between ranks of the user's MPI on this host and others, if requested.
    pub pairs: Vec<Pair>,
}

impl DoctorHost {
    /// Returns the facts of the host, if it has reported them.
    pub fn reported_facts(&self) -> Option<&HostFacts> {
        self.facts.as_ref().ok()
    }
}

/// The difference of two clocks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Clock {
    /// Seconds that this one is ahead.
    pub ahead: f64,
    /// Maximum error of the difference, in seconds: half of the round-trip time.
    pub error: f64,
}

/// Name resolution and reachability of one host, seen from another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NeighbourView {
    /// The number of the other host.
    pub host: usize,
    /// Addresses of the other host's name, or the error of the lookup.
    pub forward: Result<Vec<std::net::IpAddr>, String>,
    /// The names that the first of these addresses has.
    pub back: Option<String>,
    /// Address and error of a listening port that could not be reached.
    pub unreached: Option<String>,
}

/// Result of one check on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckResult {
    pub severity: Severity,
    /// Observation and requirement, for the user.
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

/// Hosts that a check needs for its result.
enum CheckScope {
    /// Each host by itself.
    One(fn(&HostFacts, &LaunchNeeds) -> Option<CheckResult>),
    /// All hosts together; the function gets the index of the host to judge.
    All(fn(&[DoctorHost], usize) -> Option<CheckResult>),
}

pub struct Check {
    /// Stable name of the check.
    pub name: &'static str,
    /// Sources that the check reads.
    pub reads: &'static str,
    /// Recommended action of the user.
    pub remedy: &'static str,
    judge: CheckScope,
}

/// A finding on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub check: &'static str,
    /// Index of the host.
    pub host: usize,
    /// Result of the check.
    pub result: CheckResult,
    /// Recommended action of the user.
    pub remedy: &'static str,
}

/// Returns all findings, in the order of the table and then of the hosts.
pub fn judge(hosts: &[DoctorHost], needs: &LaunchNeeds) -> Vec<Finding> {
    let mut findings = Vec::new();
    for check in CHECKS {
        for (number, host) in hosts.iter().enumerate() {
            let result = match check.judge {
                CheckScope::One(judge) => {
                    host.reported_facts().and_then(|facts| judge(facts, needs))
                }
                CheckScope::All(judge) => judge(hosts, number),
            };
            findings.extend(result.map(|result| Finding {
                check: check.name,
                host: number,
                remedy: result.remedy.unwrap_or(check.remedy),
                result,
            }));
        }
    }
    findings
}
