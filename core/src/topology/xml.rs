//! The XML in which hwloc 2 describes a host.
//! Rule: elements `object` are nested as the parts are; sets are on those with CPUs, `allowed_cpuset` on the Machine, whose
//! `complete_cpuset` has the CPUs that are switched off too; `cpukind` elements follow the objects. Source: hwloc2.dtd, hwloc.h.

use std::str::FromStr;

use roxmltree::{Document, Node, ParsingOptions};

use super::{
    CpuKind, CpuSet, CpuSetError, Device, DeviceKind, ObjectType, Topology, TopologyObject,
};

/// Most elements: a host with thousands of CPUs has some ten for each.
const ELEMENTS_MAX: u32 = 4_000_000;

/// A text that describes no host.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    #[error("cannot parse the hwloc topology: {0}")]
    Xml(String),
    #[error("the topology is not in the format of hwloc 2")]
    Version,
    #[error("the hwloc topology has no {0}")]
    Missing(&'static str),
    #[error("invalid hwloc topology: {0}")]
    Set(#[from] CpuSetError),
}

/// Reads a host from hwloc's XML.
///
/// # Errors
/// [`TopologyError`] for a text that is none.
pub fn parse(text: &str) -> Result<Topology, TopologyError> {
    let options = ParsingOptions {
        // hwloc names its DTD; nothing is loaded for it.
        allow_dtd: true,
        nodes_limit: ELEMENTS_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| TopologyError::Xml(error.to_string()))?;
    let root = document.root_element();
    let version = root.attribute("version").unwrap_or_default();
    if root.tag_name().name() != "topology" || !version.starts_with("2.") {
        return Err(TopologyError::Version);
    }
    let mut topology = Topology::default();
    let machine = root
        .children()
        .find(|node| is_object(node, "Machine"))
        .ok_or(TopologyError::Missing("machine"))?;
    topology.cpus = set(&machine, "cpuset")?.ok_or(TopologyError::Missing("CPUs"))?;
    topology.allowed = match set(&machine, "allowed_cpuset")? {
        Some(allowed) => allowed.and(&topology.cpus),
        None => topology.cpus.clone(),
    };
    let complete = set(&machine, "complete_cpuset")?.unwrap_or_default();
    topology.offline = complete.without(&topology.cpus);
    topology.host = info(&machine, "HostName").map(str::to_owned);
    for node in machine.descendants() {
        if let Some(level) = level(&node) {
            let cpus = set(&node, "cpuset")?.unwrap_or_default();
            let bytes = match level {
                ObjectType::Numa => number(&node, "local_memory"),
                ObjectType::L2 | ObjectType::L3 => number(&node, "cache_size"),
                _ => None,
            };
            let part = TopologyObject {
                os_index: number(&node, "os_index"),
                cpus,
                bytes: bytes.unwrap_or(0),
            };
            topology.add(level, part);
        } else if is_object(&node, "PCIDev")
            && let Some(device) = device(&node, &topology.cpus)?
        {
            topology.devices.push(device);
        }
    }
    if topology.parts(ObjectType::Hwthread).is_empty() {
        return Err(TopologyError::Missing("CPUs"));
    }
    if topology.parts(ObjectType::Core).is_empty() {
        // If cores are unknown, each CPU is one.
        let threads = topology.parts(ObjectType::Hwthread).to_vec();
        threads
            .into_iter()
            .for_each(|part| topology.add(ObjectType::Core, part));
    }
    topology.kinds = kinds(&root)?;
    text.clone_into(&mut topology.description);
    Ok(topology)
}

fn is_object(node: &Node<'_, '_>, kind: &str) -> bool {
    node.tag_name().name() == "object" && node.attribute("type") == Some(kind)
}

fn level(node: &Node<'_, '_>) -> Option<ObjectType> {
    if node.tag_name().name() != "object" {
        return None;
    }
    Some(match node.attribute("type")? {
        "PU" => ObjectType::Hwthread,
        "Core" => ObjectType::Core,
        "L2Cache" => ObjectType::L2,
        "L3Cache" => ObjectType::L3,
        "NUMANode" => ObjectType::Numa,
        "Package" => ObjectType::Package,
        _ => return None,
    })
}

fn set(node: &Node<'_, '_>, name: &str) -> Result<Option<CpuSet>, CpuSetError> {
    node.attribute(name).map(CpuSet::from_hwloc).transpose()
}

fn number<N: FromStr>(node: &Node<'_, '_>, name: &str) -> Option<N> {
    node.attribute(name)?.parse().ok()
}

/// Returns the value of an `info` of an object.
fn info<'a>(node: &Node<'a, '_>, name: &str) -> Option<&'a str> {
    let mut infos = node
        .children()
        .filter(|child| child.tag_name().name() == "info");
    let found = infos.find(|child| child.attribute("name") == Some(name))?;
    found.attribute("value")
}

/// Reads a device that ranks can use. Rule: `pci_type` is the class, then vendor and device in brackets; classes 03xx
/// are displays, 0b40 and 12xx accelerators, 02xx networks. Source: hwloc's export of PCIDev; PCI Code and ID
/// Assignment.
fn device(node: &Node<'_, '_>, all: &CpuSet) -> Result<Option<Device>, CpuSetError> {
    let (Some(kind), Some(bus)) = (node.attribute("pci_type"), node.attribute("pci_busid")) else {
        return Ok(None);
    };
    let mut words = kind.split_whitespace();
    let class = words
        .next()
        .and_then(|word| u16::from_str_radix(word, 16).ok());
    let kind = match class.unwrap_or(0) {
        0x0300..=0x03ff | 0x0b40 | 0x1200..=0x12ff => DeviceKind::Gpu,
        0x0200..=0x02ff => DeviceKind::Nic,
        _ => return Ok(None),
    };
    let ids = words.next().and_then(|word| {
        let (vendor, device) = word.trim_matches(['[', ']']).split_once(':')?;
        let number = |text| u16::from_str_radix(text, 16).ok();
        Some((number(vendor)?, number(device)?))
    });
    let names = node
        .descendants()
        .filter(|child| is_object(child, "OSDev"))
        .filter_map(|child| child.attribute("name"))
        .map(str::to_owned)
        .collect();
    // The nearest object that has CPUs holds the bus.
    let near = node
        .ancestors()
        .find_map(|above| set(&above, "cpuset").transpose());
    Ok(Some(Device {
        kind,
        bus: bus.to_owned(),
        names,
        ids: ids.unwrap_or_default(),
        near: near.transpose()?.unwrap_or_else(|| all.clone()),
    }))
}

/// Function that reads the relative speed of an element's CPUs; `None` if the element has none of this form.
type Way<'w> = &'w dyn Fn(&Node<'_, '_>) -> Option<u32>;

/// Reads the kinds of CPUs; empty if there is only one. The XML has the speeds in one of several forms, the same for
/// all.
fn kinds(root: &Node<'_, '_>) -> Result<Vec<CpuKind>, CpuSetError> {
    let nodes = root
        .children()
        .filter(|node| node.tag_name().name() == "cpukind");
    let nodes: Vec<_> = nodes.collect();
    if nodes.len() < 2 {
        return Ok(Vec::new());
    }
    let core_type = |node: &Node<'_, '_>| match info(node, "CoreType")? {
        "IntelAtom" => Some(0),
        "IntelCore" => Some(1),
        _ => None,
    };
    let forced = |node: &Node<'_, '_>| number(node, "forced_efficiency");
    let capacity = |node: &Node<'_, '_>| info(node, "LinuxCapacity")?.parse().ok();
    let frequency = |node: &Node<'_, '_>| info(node, "FrequencyMaxMHz")?.parse().ok();
    let ways: [Way<'_>; 4] = [&forced, &core_type, &capacity, &frequency];
    let efficiencies = ways
        .iter()
        .find_map(|way| nodes.iter().map(way).collect::<Option<Vec<u32>>>());
    let kinds = nodes.iter().enumerate().map(|(at, node)| {
        Ok(CpuKind {
            cpus: set(node, "cpuset")?.unwrap_or_default(),
            name: info(node, "CoreType").map(str::to_owned),
            efficiency: efficiencies.as_ref().map(|values| values[at]),
        })
    });
    kinds.collect()
}
