//! `wireup topo`: this host as it is for the binding of ranks.

use clap::Args;
use serde_json::json;

use crate::plan::host_binding::BindingHost;
use wireup_core::binding::rows;
use wireup_core::failure::CommandError;
use wireup_core::topology::{CpuSet, DeviceKind, ObjectType, Topology};
use wireup_core::wording::counted;

const HELP: &str = "\
Examples:
  wireup topo            hardware of this host, and the CPUs that ranks may use
  wireup topo --json     the same for scripts
  wireup exec --hosts n1,n2 wireup topo
  HWLOC_XMLFILE=node.xml wireup topo    another host, as hwloc has described it

How:
  hwloc describes the host: its library has to be installed, or named in WIREUP_LIBHWLOC. Numbers are
  hwloc's logical ones, from 0 in the order in which parts are in the host; CPUs have the numbers of
  the system. CPUs outside the affinity mask or the control group of this process are no ranks' to use.

Exit status:
  0    the host was shown
  125  hwloc cannot be used, or wireup was called wrongly";

/// Arguments of `wireup topo`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct TopoArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Shows this host.
///
/// # Errors
/// [`CommandError`] without a usable hwloc.
pub(super) fn execute(args: &TopoArgs) -> Result<u8, CommandError> {
    let BindingHost { topology, limit } = BindingHost::from_hwloc(None, true)?;
    let usable = match &limit {
        Some(limit) => topology.allowed.and(limit),
        None => topology.allowed.clone(),
    };
    let text = match args.json {
        true => format!("{:#}\n", object(&topology, &usable)),
        false => text(&topology, &usable),
    };
    super::print(text.as_bytes())
}

/// Formats a topology as text for people.
fn text(topology: &Topology, usable: &CpuSet) -> String {
    let host = topology.host.as_deref().unwrap_or("this host");
    let mut lines = vec![format!("{host}: {}", topology.summary())];
    lines.push(format!("ranks may use the CPUs {usable}"));
    let unusable = topology.cpus.without(usable);
    if !unusable.is_empty() {
        lines.push(format!(
            "outside the affinity mask or the control group: {unusable}"
        ));
    }
    if !topology.offline.is_empty() {
        lines.push(format!("switched off: {}", topology.offline));
    }
    for (name, cpus) in rows(topology) {
        let cores = topology.numbers_of(ObjectType::Core, &cpus).len();
        let caches = [ObjectType::L3, ObjectType::L2]
            .into_iter()
            .filter_map(|level| {
                let parts = topology.parts(level).iter();
                let inside: Vec<_> = parts.filter(|part| part.cpus.meets(&cpus)).collect();
                let bytes = inside.first()?.bytes;
                let count = u32::try_from(inside.len()).unwrap_or(u32::MAX);
                Some(format!("{count} {} of {}", level.noun(count), size(bytes)))
            });
        let caches = caches.map(|text| format!(", {text}")).collect::<String>();
        let memory = topology
            .parts(ObjectType::Numa)
            .iter()
            .find(|part| part.cpus == cpus);
        let memory = memory.map_or_else(String::new, |part| format!(", {}", size(part.bytes)));
        lines.push(format!(
            "{name}: {} (CPUs {cpus}){caches}{memory}",
            counted(cores, "core")
        ));
        for device in topology.devices.iter().filter(|device| device.near == cpus) {
            lines.push(format!("  {device}"));
        }
    }
    let all = rows(topology);
    let elsewhere = |near: &CpuSet| !all.iter().any(|(_, cpus)| cpus == near);
    let devices = topology.devices.iter();
    let devices = devices.filter(|device| elsewhere(&device.near));
    lines.extend(devices.map(|device| format!("{device}, near the CPUs {}", device.near)));
    for kind in &topology.kinds {
        let name = kind.name.as_deref().unwrap_or("without a name");
        lines.push(format!("kind of CPUs: {name}, CPUs {}", kind.cpus));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Bytes in the largest unit of which there is one.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    match unit {
        Some((shift, name)) => format!("{} {name}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

/// Formats a topology as JSON for scripts.
fn object(topology: &Topology, usable: &CpuSet) -> serde_json::Value {
    let parts = |level: ObjectType| {
        let parts = topology.parts(level).iter().map(|part| {
            json!({ "os_index": part.os_index, "cpus": part.cpus.to_string(), "bytes": part.bytes })
        });
        parts.collect::<Vec<_>>()
    };
    let levels = ObjectType::ALL.into_iter().rev();
    let levels: serde_json::Map<_, _> = levels
        .map(|level| (level.as_str().to_owned(), parts(level).into()))
        .collect();
    let kinds = topology.kinds.iter().map(|kind| {
        json!({ "name": kind.name, "cpus": kind.cpus.to_string(), "efficiency": kind.efficiency })
    });
    let devices = topology.devices.iter().map(|device| {
        json!({
            "kind": match device.kind {
                DeviceKind::Gpu => "gpu",
                DeviceKind::Nic => "nic",
            },
            "bus": device.bus,
            "names": device.names,
            "vendor": format!("{:04x}", device.ids.0),
            "device": format!("{:04x}", device.ids.1),
            "near": device.near.to_string(),
            "numa": topology.numbers_of(ObjectType::Numa, &device.near),
        })
    });
    json!({
        "host": topology.host,
        "cpus": topology.cpus.to_string(),
        "usable": usable.to_string(),
        "offline": topology.offline.to_string(),
        "parts": levels,
        "kinds": kinds.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
    })
}
