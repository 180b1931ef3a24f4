//! The program, the libraries and the devices of one host.

use crate::doctor::facts::{
    DetectedInterface, DeviceNode, DeviceNodeKind, HostFacts, InstalledPart, ProgramFacts,
};
use crate::doctor::{CheckResult, LaunchNeeds};

pub(super) fn program(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let program = host.program.as_ref()?;
    let found = CheckResult::problem(program.problem.clone()?)?;
    let remedy = "name a program that was built for this host, and may be executed";
    Some(CheckResult {
        remedy: program.is_unsuitable.then_some(remedy),
        ..found
    })
}

pub(super) fn parts(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let differs = |part: &&InstalledPart| part.version.as_ref() != Some(&host.wireup);
    let part = host.parts.iter().find(differs)?;
    let version = part.version.as_deref().unwrap_or("of an unknown version");
    CheckResult::problem(format!(
        "{} is {version}, but wireup is {}",
        part.path, host.wireup
    ))
}

pub(super) fn image_runtime(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let program = host.image.as_ref()?.no_runtime.as_ref()?;
    CheckResult::problem(format!(
        "{program} not found in PATH; the container needs it"
    ))
}

pub(super) fn image(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    CheckResult::problem(host.image.as_ref()?.problem.clone()?)
}

pub(super) fn libraries(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let program = host.program.as_ref()?;
    (!program.missing.is_empty()).then_some(())?;
    CheckResult::problem(format!(
        "{} needs {}, which is in no searched directory",
        program.name,
        program.missing.join(", ")
    ))
}

/// Checks libpmix. A missing library is a problem if the program needs it, and a warning if the program's needs are
/// unknown.
pub(super) fn libpmix(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let problem = host.pmix.problem.as_ref()?;
    match wants(host.program.as_ref()) {
        DetectedInterface::Pmix => CheckResult::problem(problem.clone()),
        DetectedInterface::Unknown => CheckResult::warning(problem.clone()),
        DetectedInterface::Pmi | DetectedInterface::Plain => None,
    }
}

fn wants(program: Option<&ProgramFacts>) -> DetectedInterface {
    program.map_or(DetectedInterface::Unknown, |program| program.wants)
}

pub(super) fn vulnerable(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let text = host.pmix.vulnerable.as_ref()?;
    let needed = matches!(
        wants(host.program.as_ref()),
        DetectedInterface::Pmix | DetectedInterface::Unknown
    );
    needed.then_some(())?;
    CheckResult::warning(text.clone())
}

fn unusable(host: &HostFacts, kind: DeviceNodeKind) -> Option<String> {
    let of_kind = host.devices.iter().filter(|it| it.kind == kind);
    let texts = of_kind.filter_map(|it| Some(format!("{}: {}", it.path, it.problem.as_ref()?)));
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

pub(super) fn fabric(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    CheckResult::problem(unusable(host, DeviceNodeKind::Fabric)?)
}

/// Providers of libfabric for networks that need no fast device, and layers over others.
const SLOW_PROVIDERS: [&str; 8] = [
    "tcp", "sockets", "udp", "shm", "sm2", "net", "off_coll", "lnx",
];

pub(super) fn providers(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let broken = host.network_libraries.iter().find_map(|library| {
        let name = &library.name;
        if let Some(problem) = &library.problem {
            return Some(format!("{name} ({}): {problem}", library.path));
        }
        let shut = library.providers.iter().find(|it| it.problem.is_some())?;
        let (provider, problem) = (&shut.name, shut.problem.as_deref().unwrap_or_default());
        Some(format!(
            "{name}'s provider {provider} does not open: {problem}"
        ))
    });
    if let Some(broken) = broken {
        return CheckResult::warning(broken);
    }
    let usable =
        |device: &&DeviceNode| device.kind == DeviceNodeKind::Fabric && device.problem.is_none();
    let device = host.devices.iter().find(usable)?;
    let mut libraries = host.network_libraries.iter();
    let library = libraries.find(|it| it.name == "libfabric")?;
    let slow = |name: &str| {
        let mut parts = name.split(';');
        parts.all(|part| SLOW_PROVIDERS.contains(&part) || part.starts_with("ofi_"))
    };
    let fast = library.providers.iter().any(|it| !slow(&it.name));
    (!fast).then_some(())?;
    CheckResult::warning(format!(
        "this host has {}, but libfabric ({}) has no provider for it",
        device.path, library.path
    ))
}

pub(super) fn gpu(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    CheckResult::warning(unusable(host, DeviceNodeKind::Gpu)?)
}

pub(super) fn copy_device(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    CheckResult::warning(unusable(host, DeviceNodeKind::Copy)?)
}
