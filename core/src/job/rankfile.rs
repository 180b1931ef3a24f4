//! Files that assign each rank its host, and CPUs on it; no I/O.
//!
//! ```text
//! Open MPI   rank 0=node1 slot=0:0-3    a line for each rank: cores of package 0; +n1 is the second host of the launch
//! Slurm      node1                      a word for each rank, in order; node[1-3] and node1*2 are several
//! ```
//! Rule: `slot` lists cores by number, those of the host, or with `PACKAGE:` those of that package; `P0` is a whole
//! package, `;` and `,` add parts. Source: PRRTE, docs/placement/rankfiles.rst and prte_hwloc_base_cpu_list_parse.
//! Rule: SLURM_HOSTFILE has names one in a line or with commas between them. Source: srun(1), --distribution.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::hosts::{self, HostList};
use super::ids::NodeId;
use super::process_map::RANKS_MAX;
use crate::wording::counted;

/// The host of a rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RankHost {
    Named(String),
    /// The one with this number in the launch, from 0.
    Numbered(u32),
}

/// Cores of a rank, or hardware threads, numbered in the order of the host, or of a package of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankfileCpus {
    pub package: Option<u32>,
    /// The first and the last; all of the package when absent.
    pub units: Option<(u32, u32)>,
}

/// A file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rankfile {
    /// Host and CPUs of each rank, by rank.
    pub hosts: Vec<RankHost>,
    /// By rank; nothing if the file has no CPUs.
    pub slots: Option<Vec<Vec<RankfileCpus>>>,
}

/// A file that gives ranks no hosts.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{problem}", .line.map_or_else(String::new, |line| format!("line {line}: ")))]
pub struct RankfileError {
    /// Counted from 1; of the whole file when absent.
    pub line: Option<usize>,
    pub problem: RankfileProblem,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RankfileProblem {
    #[error(
        "no rank in the file; write rank 0=HOST slot=CORES, or one line with a host for each rank"
    )]
    Empty,
    #[error("not valid UTF-8")]
    NoText,
    #[error("invalid line {0:?}: write rank N=HOST slot=CORES")]
    Form(String),
    #[error("rank {0} has no cores; add slot=CORES, such as slot=0-3 or slot=1:0,2")]
    NoSlot(u32),
    #[error(
        "invalid slot={0}: use numbers and ranges (0-3,8), those of a package (1:0-3), or whole packages (P0)"
    )]
    Slot(String),
    #[error("rank {0} has two lines; remove one")]
    Twice(u32),
    #[error("no line for rank {0}; ranks count from 0 without gaps")]
    Missing(u32),
    #[error(transparent)]
    Host(#[from] hosts::HostsProblem),
    #[error("more than {RANKS_MAX} ranks in the file; use fewer")]
    TooMany,
    #[error("{} in the file, but the programs have {needed}; add lines, or lower -n", counted(*have, "rank"))]
    TooFew { have: usize, needed: u32 },
    #[error("rank {rank}: host {host} is not in the launch ({hosts})")]
    Elsewhere {
        rank: usize,
        host: RankHost,
        hosts: String,
    },
}

impl fmt::Display for RankHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Numbered(number) => write!(f, "+n{number}"),
        }
    }
}

impl From<RankfileProblem> for RankfileError {
    fn from(problem: RankfileProblem) -> Self {
        let line = None;
        Self { line, problem }
    }
}

impl Rankfile {
    /// Reads a file of either form: lines of Open MPI's begin with `rank`.
    ///
    /// # Errors
    /// [`RankfileError`] with the line that is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, RankfileError> {
        let text = std::str::from_utf8(text).map_err(|_| RankfileProblem::NoText)?;
        let lines = (1..).zip(text.lines().map(|line| match line.split_once('#') {
            Some((line, _comment)) => line.trim(),
            None => line.trim(),
        }));
        let lines: Vec<(usize, &str)> = lines.filter(|(_, line)| !line.is_empty()).collect();
        match lines.first() {
            None => Err(RankfileProblem::Empty.into()),
            Some((_, first)) if is_rank_line(first) => by_rank(&lines),
            Some(_) => in_order(&lines),
        }
    }

    /// Returns the number of ranks in the file.
    pub fn size(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// Returns the named hosts, in the order of their first use, with the number of their ranks.
    pub fn named_hosts(&self) -> Vec<(&str, u32)> {
        let mut found: Vec<(&str, u32)> = Vec::new();
        let mut places: BTreeMap<&str, usize> = BTreeMap::new();
        for host in &self.hosts {
            let RankHost::Named(name) = host else {
                continue;
            };
            let at = *places.entry(name).or_insert(found.len());
            match found.get_mut(at) {
                Some((_, count)) => *count += 1,
                None => found.push((name, 1)),
            }
        }
        found
    }

    /// Returns the nodes of the first `size` ranks, with numbers of ranks, in the order of ranks. `names` are those of
    /// the nodes; `here` are further names of the first one.
    ///
    /// # Errors
    /// [`RankfileProblem`] for too few ranks, and for a host that is not a node.
    pub fn runs(
        &self,
        size: u32,
        names: &[&str],
        head_names: &[&str],
    ) -> Result<Vec<(NodeId, u32)>, RankfileProblem> {
        if size as usize > self.hosts.len() {
            return Err(RankfileProblem::TooFew {
                have: self.hosts.len(),
                needed: size,
            });
        }
        let mut known: BTreeMap<&str, NodeId> = BTreeMap::new();
        let whole = (0..).map(NodeId).zip(names.iter().copied());
        let by_short = (0..).map(NodeId).zip(names.iter().map(|name| short(name)));
        for (node, name) in whole.chain(by_short) {
            known.entry(name).or_insert(node);
        }
        let mut runs: Vec<(NodeId, u32)> = Vec::new();
        for (rank, host) in self.hosts.iter().take(size as usize).enumerate() {
            let node = match host {
                RankHost::Numbered(number) => {
                    ((*number as usize) < names.len()).then_some(NodeId(*number))
                }
                RankHost::Named(name) => {
                    let found = known.get(&**name).or_else(|| known.get(short(name)));
                    let first = head_names.contains(&&**name).then_some(NodeId(0));
                    found.copied().or(first)
                }
            };
            let node = node.ok_or_else(|| RankfileProblem::Elsewhere {
                rank,
                host: host.clone(),
                hosts: hosts::compress(names),
            })?;
            match runs.last_mut() {
                Some((last, count)) if *last == node => *count += 1,
                _ => runs.push((node, 1)),
            }
        }
        Ok(runs)
    }
}

/// Returns a name without its domain; an address unchanged.
fn short(name: &str) -> &str {
    match name.parse::<std::net::IpAddr>() {
        Ok(_) => name,
        Err(_) => name.split('.').next().unwrap_or(name),
    }
}

fn is_rank_line(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    words.next() == Some("rank") && words.next().is_some_and(number)
}

fn at(line: usize) -> impl Fn(RankfileProblem) -> RankfileError {
    move |problem| RankfileError {
        line: Some(line),
        problem,
    }
}

/// Reads the form of Open MPI, with rank numbers.
fn by_rank(lines: &[(usize, &str)]) -> Result<Rankfile, RankfileError> {
    let mut ranks: BTreeMap<u32, (RankHost, Vec<RankfileCpus>)> = BTreeMap::new();
    for (number, line) in lines {
        let (rank, host, slots) = rank_line(line).map_err(at(*number))?;
        if ranks.insert(rank, (host, slots)).is_some() {
            return Err(at(*number)(RankfileProblem::Twice(rank)));
        }
    }
    let mut expected = 0..;
    let gap = ranks.keys().find_map(|rank| {
        let next = expected.next();
        next.filter(|next| next != rank)
    });
    if let Some(missing) = gap {
        return Err(RankfileProblem::Missing(missing).into());
    }
    let (hosts, slots) = ranks.into_values().unzip();
    Ok(Rankfile {
        hosts,
        slots: Some(slots),
    })
}

/// Parses `rank N=HOST slot=LIST`, with blanks anywhere.
fn rank_line(line: &str) -> Result<(u32, RankHost, Vec<RankfileCpus>), RankfileProblem> {
    let form = || RankfileProblem::Form(line.to_owned());
    let spaced = line.replace('=', " = ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let ["rank", rank, "=", host, rest @ ..] = &words[..] else {
        return Err(form());
    };
    let rank: u32 = rank.parse().map_err(|_| form())?;
    let host = host.rsplit('@').next().unwrap_or(host);
    let host = match host.strip_prefix("+n").or_else(|| host.strip_prefix("+N")) {
        Some(number) => RankHost::Numbered(number.parse().map_err(|_| form())?),
        None => RankHost::Named(host.to_owned()),
    };
    match rest {
        [] => Err(RankfileProblem::NoSlot(rank)),
        ["slot" | "slots", "=", list @ ..] if !list.is_empty() => {
            let list = list.concat();
            let slots = slots(&list).ok_or(RankfileProblem::Slot(list))?;
            Ok((rank, host, slots))
        }
        _ => Err(form()),
    }
}

/// Parses the cores of a `slot`.
fn slots(list: &str) -> Option<Vec<RankfileCpus>> {
    let mut found = Vec::new();
    for item in list.split(';') {
        let bare = item.trim_start_matches(['P', 'p', 'S', 's']);
        // A package applies to the CPUs after it, until the next one.
        let mut package = None;
        for part in bare.split(',') {
            let mut units = part;
            if let Some((of, rest)) = part.split_once(':') {
                package = Some(of.parse().ok()?);
                units = rest;
            }
            let units = units.strip_prefix(['C', 'c']).unwrap_or(units);
            match (package, units) {
                (Some(_), "*") => found.push(RankfileCpus {
                    package,
                    units: None,
                }),
                (None, _) if bare.len() < item.len() => {
                    let (first, last) = cpu_range(units)?;
                    found.extend((first..=last).map(|package| RankfileCpus {
                        package: Some(package),
                        units: None,
                    }));
                }
                _ => found.push(RankfileCpus {
                    package,
                    units: Some(cpu_range(units)?),
                }),
            }
        }
    }
    Some(found)
}

/// Parses `2` or `0-3`, of numbers that CPUs can have.
pub(super) fn cpu_range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < crate::topology::CPUS_MAX).then_some((first, last))
}

/// Reads the form of Slurm, with a host for each rank.
fn in_order(lines: &[(usize, &str)]) -> Result<Rankfile, RankfileError> {
    let mut found = Vec::new();
    for (number, line) in lines {
        let at = at(*number);
        let invalid = |problem| at(RankfileProblem::Host(problem));
        let words = line.split_whitespace().map(hosts::words);
        let words: Vec<_> = words.collect::<Result<_, _>>().map_err(invalid)?;
        for word in words.into_iter().flatten() {
            let (word, count) = match word.rsplit_once('*') {
                Some((word, count)) => {
                    (word, count.parse::<usize>().ok().filter(|count| *count > 0))
                }
                None => (word, Some(1)),
            };
            let count: usize =
                count.ok_or_else(|| at(RankfileProblem::Form((*line).to_owned())))?;
            let list: HostList = word.parse().map_err(invalid)?;
            let all = list.0.len().saturating_mul(count);
            if found.len().saturating_add(all) > RANKS_MAX as usize {
                return Err(at(RankfileProblem::TooMany));
            }
            for entry in &list.0 {
                let host = RankHost::Named(entry.name().to_owned());
                found.extend(std::iter::repeat_n(host, count));
            }
        }
    }
    Ok(Rankfile {
        hosts: found,
        slots: None,
    })
}

#[cfg(test)]
mod tests;
