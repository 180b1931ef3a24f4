//! Findings as the user reads them: equal ones of several hosts are one.

use serde::Serialize;

use super::{DoctorHost, Finding, Severity};
use crate::job::hosts::compress;

/// One finding of one or several hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FindingGroup {
    /// The check that found it.
    pub check: &'static str,
    pub severity: Severity,
    /// The names of the hosts, in their order.
    pub hosts: Vec<String>,
    /// Observation, for the user.
    #[serde(rename = "what")]
    pub observation: String,
    /// Recommended action of the user.
    pub remedy: &'static str,
}

impl FindingGroup {
    /// Formats the hosts as `n[03,17]`.
    pub fn names(&self) -> String {
        compress(&self.hosts)
    }
}

/// Groups equal findings of several hosts; problems come first, otherwise they keep their order.
pub fn grouped(findings: &[Finding], hosts: &[DoctorHost]) -> Vec<FindingGroup> {
    let mut groups: Vec<FindingGroup> = Vec::new();
    for finding in findings {
        let name = hosts[finding.host].name.clone();
        let same = |group: &&mut FindingGroup| {
            group.check == finding.check
                && group.observation == finding.result.text
                && group.severity == finding.result.severity
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.hosts.push(name),
            None => groups.push(FindingGroup {
                check: finding.check,
                severity: finding.result.severity,
                hosts: vec![name],
                observation: finding.result.text.clone(),
                remedy: finding.remedy,
            }),
        }
    }
    groups.sort_by_key(|group| group.severity);
    groups
}

/// Formats a number of bytes in the largest fitting unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GB"), (20, "MB"), (10, "KB")];
    let unit = UNITS.iter().find(|(shift, _)| bytes >> shift > 0);
    match unit {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckResult;

    fn finding(host: usize, severity: Severity, what: &str) -> Finding {
        let what = what.to_owned();
        Finding {
            check: "check",
            host,
            result: CheckResult {
                severity,
                text: what,
                remedy: None,
            },
            remedy: "",
        }
    }

    #[test]
    fn equal_findings_of_hosts_are_one_and_problems_come_first() {
        let host = |name: &str| DoctorHost {
            name: name.into(),
            agent: None,
            facts: Err(String::new()),
            clock: None,
            neighbours: Vec::new(),
            pairs: Vec::new(),
        };
        let hosts = ["n03", "n04", "n17"].map(host);
        let findings = [
            finding(1, Severity::Warning, "slow"),
            finding(0, Severity::Problem, "small"),
            finding(2, Severity::Problem, "small"),
        ];
        let groups = grouped(&findings, &hosts);
        let shown = |group: &FindingGroup| (group.names(), group.observation.clone());
        let shown: Vec<_> = groups.iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                ("n[03,17]".into(), "small".into()),
                ("n04".into(), "slow".into())
            ]
        );
        assert_eq!(
            [size(100), size(65 << 10), size(64 << 20), size(3 << 30)],
            ["100 bytes", "65 KB", "64 MB", "3 GB"]
        );
    }
}
