//! Placement of the ranks.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use super::HostsArgs;
use super::binding_args::Mapping;
use crate::cli::value_error::ValueError;
use crate::failure::CommandError;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::{hostfile, launch_nodes};
use wireup_core::job::hosts::lookup::needed;
use wireup_core::job::hosts::{HERE, HostEntry, HostList};
use wireup_core::job::ids::NodeId;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::rankfile::Rankfile;
use wireup_core::job::spec::{LayoutSpec, MapWithinHost};

/// Nodes and numbers of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Runs(Vec<(NodeId, u32)>);

fn runs(text: &str) -> Result<Runs, ValueError> {
    let run = |text: &str| {
        let (node, ranks) = text.split_once('*')?;
        Some((
            NodeId(node.parse().ok()?),
            ranks.parse().ok().filter(|ranks| *ranks > 0)?,
        ))
    };
    let all: Option<_> = text.split(',').map(run).collect();
    all.map(Runs).ok_or(ValueError::Runs)
}

/// Placement of the ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct LayoutArgs {
    /// Allow more ranks than usable cores, or than slots of a host
    #[arg(long)]
    oversubscribe: bool,

    /// Act as this number of nodes, each with its own name, PMIx server and node-local memory
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    virtual_nodes: u32,

    /// Maximum number of ranks on a node [default: evenly distributed; on hosts with slots, their
    /// number]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ppn: Option<u32>,

    /// Count N CPUs for each rank: slots that are given, or this machine's CPUs, are divided by N; and where ranks are
    /// bound, each gets N cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    cpus_per_rank: Option<u32>,

    /// Order in which ranks are placed: slot fills node after node, node takes nodes in turn; and within a host, which
    /// binds them (--bind-to): core, hwthread, l2, l3, numa or package spreads them evenly over these, ppr:N:UNIT puts N
    /// on each (ppr:N:node is --ppn N)
    #[arg(long, value_name = "slot|node|UNIT|ppr:N:UNIT", default_value = "slot")]
    map_by: Mapping,

    /// Give these numbers of ranks to these nodes, in the order of ranks: 0*2,1*2,0*1 are two ranks
    /// on the first node, two on the second, one more on the first
    #[arg(long, value_name = "NODE*RANKS,...", value_parser = runs, hide_short_help = true)]
    #[arg(conflicts_with_all = ["ppn", "map_by"])]
    layout: Option<Runs>,

    /// Read from a file on which host each rank runs, and on which cores: a line rank N=HOST slot=CORES for each as Open
    /// MPI has it, or the host of each rank in order as Slurm has it. If no hosts are named, they are those of the file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    #[arg(conflicts_with_all = ["ppn", "map_by", "layout", "cpus_per_rank"])]
    rankfile: Option<PathBuf>,

    /// Name some ranks for MPI sessions, as in io=0,2-4; each program's ranks are app0, app1, ...
    #[arg(long = "pset", value_name = "NAME=RANKS")]
    pub(crate) psets: Vec<ProcessSet>,
}

impl LayoutArgs {
    /// Where ranks are mapped within a host, and how many CPUs each gets.
    pub(super) fn within(&self) -> (MapWithinHost, u32) {
        (self.map_by.within, self.cpus_per_rank.unwrap_or(1))
    }

    /// Reads the rankfile, if one is named.
    ///
    /// # Errors
    /// [`CommandError`] with the line that is wrong.
    pub(crate) fn rankfile(&self) -> Result<Option<Rankfile>, CommandError> {
        let Some(path) = &self.rankfile else {
            return Ok(None);
        };
        let text = hostfile::bytes(path).map_err(|error| wrong_file(path, &error))?;
        let file = Rankfile::parse(&text).map_err(|error| wrong_file(path, &error))?;
        Ok(Some(file))
    }

    /// Whether this machine is to act as several nodes.
    pub(crate) fn is_virtual(&self) -> bool {
        self.virtual_nodes > 1
    }

    /// Together with the hosts, which are looked up, or their file read. `ranks` are those of all programs, if known, and
    /// `rankfile` is what [`Self::rankfile`] has read.
    ///
    /// # Errors
    /// [`CommandError`] for hosts that cannot be used.
    pub(crate) fn resolve(
        self,
        hosts: HostsArgs,
        ranks: Option<u32>,
        rankfile: Option<&Rankfile>,
    ) -> Result<LayoutSpec, CommandError> {
        let each = self.cpus_per_rank.unwrap_or(1);
        let ppn = match (self.map_by.per_node, self.ppn) {
            (Some(_), Some(_)) => {
                return Err(CommandError::request(
                    "--map-by ppr:N:node and --ppn say the same; write one of them",
                ));
            }
            (given, ppn) => given.or(ppn),
        };
        let divided = |slots: u32| (slots / each).max(1);
        let needed = |slots: Option<u32>| needed(ranks, slots.map(divided), ppn);
        let own = launch_nodes::names_here(self.virtual_nodes);
        let named = rankfile.filter(|_| !self.is_virtual());
        let named = named.and_then(|file| hosts_of(file, &own));
        let (mut hosts, spread) = hosts.resolve(self.is_virtual(), needed, named)?;
        for host in &mut hosts {
            host.slots = host
                .slots
                .map(|slots| if slots == 0 { 0 } else { divided(slots) });
        }
        let mut slots = None;
        if let [only] = &hosts[..]
            && only.is_here()
            && spread.agent.is_none()
            && spread.starter.is_none()
        {
            slots = only.slots.filter(|slots| *slots > 0);
            hosts.clear();
        }
        if hosts.is_empty() && slots.is_none() && each > 1 {
            slots = Some(divided(SlotLimits::detect().count()));
        }
        let mut runs = self.layout.map_or_else(Vec::new, |runs| runs.0);
        if let (Some(file), Some(path)) = (rankfile, &self.rankfile) {
            let names: Vec<&str> = match hosts.is_empty() {
                true => own.iter().map(String::as_str).collect(),
                false => hosts.iter().map(|host| host.name.as_str()).collect(),
            };
            let here: &[&str] = if names.len() == 1 { &HERE } else { &[] };
            let size = ranks.unwrap_or_else(|| file.size());
            runs = file
                .runs(size, &names, here)
                .map_err(|error| wrong_file(path, &error))?;
        }
        Ok(LayoutSpec {
            hosts,
            spread,
            virtual_nodes: self.virtual_nodes,
            ppn,
            map_by: self.map_by.nodes,
            runs,
            slots,
            oversubscribe: self.oversubscribe,
        })
    }
}

fn wrong_file(path: &Path, problem: &dyn fmt::Display) -> CommandError {
    CommandError::request(format!("--rankfile {}: {problem}", path.display()))
}

/// The hosts of a rankfile that has others than this machine, which is called so.
fn hosts_of(file: &Rankfile, own: &[String]) -> Option<HostList> {
    let named = file.named_hosts();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let here = |name: &str| {
        HERE.contains(&name)
            || own
                .iter()
                .any(|own| own == name || short(own) == short(name))
    };
    let other = named.iter().any(|(name, _)| !here(name));
    let entry = |(name, ranks): (&str, u32)| HostEntry::new(name, ranks);
    other.then(|| HostList(named.into_iter().map(entry).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_nodes_and_numbers_of_ranks() {
        let node = |node, ranks| (NodeId(node), ranks);
        assert_eq!(runs("0*2"), Ok(Runs(vec![node(0, 2)])));
        assert_eq!(runs("3*1,0*20"), Ok(Runs(vec![node(3, 1), node(0, 20)])));
        for bad in [
            "",
            "0",
            "0*",
            "*1",
            "0*0",
            "0*1,",
            "a*1",
            "-1*1",
            "0*99999999999",
        ] {
            assert!(runs(bad).is_err(), "{bad}");
        }
    }
}
