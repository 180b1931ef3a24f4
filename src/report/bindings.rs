//! Texts about the binding of the ranks of a host.

use wireup_core::binding::HostBinding;
use wireup_core::job::ids::Rank;
use wireup_core::job::spec::MemBind;
use wireup_core::topology::{CpuSet, DeviceKind, ObjectType, ranges};

/// Returns the lines of `--report-bindings`: a picture of the host, then each rank.
pub(crate) fn report(host: &str, binding: Option<&HostBinding>) -> Vec<String> {
    let Some(binding) = binding else {
        return vec![format!(
            "{host}: ranks are not bound (--bind-to binds them)"
        )];
    };
    let topology = &binding.topology;
    let head = format!("{host}: {}", topology.summary());
    let rows = binding.picture().into_iter();
    let rows = rows.map(|row| format!("{host}:   {row}"));
    let ranks = lines(binding).map(|line| format!("{host}: {line}"));
    std::iter::once(head).chain(rows).chain(ranks).collect()
}

/// Returns a line for each rank.
pub(crate) fn lines(binding: &HostBinding) -> impl Iterator<Item = String> + '_ {
    let ranks = ranks(binding).into_iter();
    ranks.map(|(Rank(rank), cpus)| format!("rank {rank}: {cpus}"))
}

/// Returns the CPUs of each rank, as parts of the host, with its devices, by rank.
pub(crate) fn ranks(binding: &HostBinding) -> Vec<(Rank, String)> {
    let mut ranks: Vec<_> = binding.ranks().iter().collect();
    ranks.sort_by_key(|(rank, _)| *rank);
    let ranks = ranks.into_iter().map(|(rank, cpus)| {
        let gpus = binding.gpus_of(*rank);
        let devices = gpus.unwrap_or_default().iter();
        let names = devices.map(|gpu| binding.topology.devices[gpu.device].to_string());
        let gpu_text: String = names.map(|gpu| format!(", {gpu}")).collect();
        let mut place = format!("{}{gpu_text}", binding.place(cpus));
        if gpus.is_none() {
            place.push_str(&near(binding, cpus, DeviceKind::Gpu));
        }
        place.push_str(&near(binding, cpus, DeviceKind::Nic));
        place.push_str(&memory(binding, *rank));
        (*rank, place)
    });
    ranks.collect()
}

/// Describes the NUMA nodes of a rank's memory, if they are decided: `; memory of NUMA node 3 alone`.
fn memory(binding: &HostBinding, rank: Rank) -> String {
    let Some((how, nodes)) = binding.memory_of(rank) else {
        return String::new();
    };
    let how = match how {
        MemBind::None => return String::new(),
        MemBind::Local => "alone",
        MemBind::Prefer => "first",
        MemBind::Interleave => "in turn",
    };
    let noun = ObjectType::Numa.noun(nodes.len() as u32);
    format!("; memory of {noun} {} {how}", ranges(nodes))
}

/// Names the devices near the CPUs of a rank: `; near NIC mlx5_0`.
fn near(binding: &HostBinding, cpus: &CpuSet, kind: DeviceKind) -> String {
    let devices = binding.devices_near(cpus, kind);
    let names: Vec<String> = devices
        .map(|device| match device.names.is_empty() {
            true => device.bus.clone(),
            false => device.names.join("/"),
        })
        .collect();
    let noun = match (kind, names.len()) {
        (_, 0) => return String::new(),
        (DeviceKind::Gpu, 1) => "GPU",
        (DeviceKind::Gpu, _) => "GPUs",
        (DeviceKind::Nic, 1) => "NIC",
        (DeviceKind::Nic, _) => "NICs",
    };
    format!("; near {noun} {}", names.join(", "))
}
