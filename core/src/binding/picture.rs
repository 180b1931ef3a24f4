//! A host and its ranks as text: a row for each NUMA node, a cell for each core.
//!
//! ```text
//! package 0, NUMA node 0: [0|0][1|1][2|2][3|3]
//! package 0, NUMA node 1: 4 cores [4-7]
//! ```
//! In a cell are the ranks of each hardware thread, once if they are the same; `.` is a free one, `-` one that ranks may
//! not use.

use super::HostBinding;
use crate::job::ids::Rank;
use crate::topology::{CpuSet, ObjectType, Topology, TopologyObject, ranges};

/// Cells of a line.
const CELLS: usize = 16;

/// Rows of a host: their names, and their CPUs.
pub fn rows(topology: &Topology) -> Vec<(String, CpuSet)> {
    let level = [ObjectType::Numa, ObjectType::Package]
        .into_iter()
        .find(|level| !topology.parts(*level).is_empty());
    let Some(level) = level else {
        return vec![("host".to_owned(), topology.cpus.clone())];
    };
    let row = |(number, part): (u32, &TopologyObject)| {
        let own = format!("{} {number}", level.noun(1));
        let name = match (
            level,
            &topology.numbers_of(ObjectType::Package, &part.cpus)[..],
        ) {
            (ObjectType::Numa, [package]) => format!("package {package}, {own}"),
            _ => own,
        };
        (name, part.cpus.clone())
    };
    (0..).zip(topology.parts(level)).map(row).collect()
}

/// Draws the host with its ranks, as lines of text.
pub(super) fn picture(binding: &HostBinding) -> Vec<String> {
    let topology = &binding.topology;
    let cell = |core: &TopologyObject| {
        let mut texts: Vec<String> = Vec::new();
        for cpu in core.cpus.iter() {
            let mut here: Vec<u32> = binding
                .ranks()
                .iter()
                .filter(|(_, cpus)| cpus.contains(cpu))
                .map(|(Rank(rank), _)| *rank)
                .collect();
            here.sort_unstable();
            texts.push(match here.is_empty() {
                false => ranges(here),
                true if binding.usable.contains(cpu) => ".".to_owned(),
                true => "-".to_owned(),
            });
        }
        if texts.iter().all(|text| *text == texts[0]) {
            texts.truncate(1);
        }
        format!("[{}]", texts.join("|"))
    };
    let mut lines = Vec::new();
    for (name, cpus) in rows(topology) {
        let cores = topology.parts(ObjectType::Core).iter();
        let cores = cores.filter(|core| core.cpus.meets(&cpus));
        let cells: Vec<String> = cores.map(cell).collect();
        if cells.len() > 2 && cells.iter().all(|cell| *cell == cells[0]) {
            lines.push(format!("{name}: {} cores {}", cells.len(), cells[0]));
            continue;
        }
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        let mut head = format!("{name}: ");
        for cells in cells.chunks(CELLS) {
            let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:width$}")).collect();
            lines.push(format!("{head}{}", cells.concat()).trim_end().to_owned());
            head = " ".repeat(head.len());
        }
    }
    lines
}
