//! Texts about the binding of the ranks of a host.

use wireup_core::binding::HostBinding;

/// `--report-bindings`: a picture of the host, then each rank.
pub(crate) fn report(host: &str, binding: &HostBinding) -> Vec<String> {
    let topology = &binding.topology;
    let head = format!("{host}: {}", topology.summary());
    let rows = binding.picture().into_iter();
    let rows = rows.map(|row| format!("{host}:   {row}"));
    let ranks = ranks(binding).map(|line| format!("{host}: {line}"));
    std::iter::once(head).chain(rows).chain(ranks).collect()
}

/// A line for each rank.
pub(crate) fn ranks(binding: &HostBinding) -> impl Iterator<Item = String> + '_ {
    let mut ranks: Vec<_> = binding.ranks().iter().collect();
    ranks.sort_by_key(|(rank, _)| *rank);
    ranks.into_iter().map(|(rank, cpus)| {
        let gpus = binding.gpus_of(*rank).unwrap_or_default().iter();
        let gpus = gpus.map(|gpu| binding.topology.devices[gpu.device].to_string());
        let gpus: String = gpus.map(|gpu| format!(", {gpu}")).collect();
        format!("rank {}: {}{gpus}", rank.0, binding.place(cpus))
    })
}
