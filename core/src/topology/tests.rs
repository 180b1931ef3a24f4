use super::*;

/// The machines in `topologies/`, which hwloc has described.
pub(crate) fn machine(name: &str) -> Topology {
    let path = format!("{}/topologies/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    #[allow(clippy::disallowed_methods, reason = "test data")]
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    xml::parse(&text).unwrap()
}

#[test]
fn host_is_read_from_hwloc_xml() {
    let host = machine("gpu8");
    assert_eq!(host.host.as_deref(), Some("gpu8"));
    assert_eq!(
        host.summary(),
        "2 packages, 2 NUMA nodes, 16 L3 caches, 128 cores, 256 hardware threads"
    );
    assert_eq!(host.cpus.to_string(), "0-255");
    assert_eq!(
        host.parts(ObjectType::Package)[1].cpus.to_string(),
        "64-127,192-255"
    );
    assert_eq!(host.parts(ObjectType::Numa)[1].bytes, 512 << 30);
    let gpus: Vec<_> = host
        .devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Gpu)
        .collect();
    assert_eq!(gpus.len(), 8);
    assert_eq!(gpus[4].to_string(), "NVIDIA GPU 0000:90:00.0 (renderD132)");
    assert_eq!(gpus[4].near, host.parts(ObjectType::Package)[1].cpus);
    let nics = host
        .devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Nic);
    assert_eq!(nics.count(), 2);
}

#[test]
fn offline_cpus_are_in_no_object() {
    let text = r#"<topology version="2.0"><object type="Machine" cpuset="0x5" complete_cpuset="0xf" allowed_cpuset="0x4">
        <object type="PU" os_index="0" cpuset="0x1"/><object type="PU" os_index="2" cpuset="0x4"/></object></topology>"#;
    let host = xml::parse(text).unwrap();
    let shown = [&host.cpus, &host.allowed, &host.offline].map(CpuSet::to_string);
    assert_eq!(shown, ["0,2", "2", "1,3"]);
    assert!(machine("gpu8").offline.is_empty());
}

#[test]
fn kinds_of_cores_are_ranked() {
    let host = machine("hybrid");
    assert_eq!((host.efficiency(0), host.efficiency(12)), (1, 0));
    assert!(machine("gpu8").kinds.is_empty());
}

#[test]
fn text_without_host_is_refused() {
    use xml::TopologyError;
    let refused = |text: &str| xml::parse(text).unwrap_err();
    assert!(matches!(refused("<topology"), TopologyError::Xml(_)));
    assert_eq!(
        refused(r#"<topology version="1.0"/>"#),
        TopologyError::Version
    );
    assert_eq!(refused(r#"<a version="2.0"/>"#), TopologyError::Version);
    let empty = r#"<topology version="2.0"/>"#;
    assert_eq!(refused(empty), TopologyError::Missing("machine"));
    let bare = r#"<topology version="2.0"><object type="Machine" cpuset="0x1"/></topology>"#;
    assert_eq!(refused(bare), TopologyError::Missing("CPUs"));
    let wrong = r#"<topology version="2.0"><object type="Machine" cpuset="0xf...f"/></topology>"#;
    assert!(matches!(refused(wrong), TopologyError::Set(_)));
}
