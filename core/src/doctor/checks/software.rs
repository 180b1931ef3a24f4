//! The program, the libraries and the devices of one host.

use crate::doctor::facts::{Device, DeviceKind, HostFacts, Part, Program, Wants};
use crate::doctor::{Needs, Seen};

pub(super) fn program(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let program = host.program.as_ref()?;
    Seen::problem(program.problem.clone()?)
}

pub(super) fn parts(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let differs = |part: &&Part| part.version.as_ref() != Some(&host.wireup);
    let part = host.parts.iter().find(differs)?;
    let version = part.version.as_deref().unwrap_or("of an unknown version");
    Seen::problem(format!(
        "{} is {version}, and wireup {}",
        part.path, host.wireup
    ))
}

pub(super) fn image_runtime(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let program = host.image.as_ref()?.no_runtime.as_ref()?;
    Seen::problem(format!(
        "there is no {program} in PATH to make the container"
    ))
}

pub(super) fn image(host: &HostFacts, _: &Needs) -> Option<Seen> {
    Seen::problem(host.image.as_ref()?.problem.clone()?)
}

pub(super) fn libraries(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let program = host.program.as_ref()?;
    (!program.missing.is_empty()).then_some(())?;
    Seen::problem(format!(
        "{} needs {}, which no directory has",
        program.name,
        program.missing.join(", ")
    ))
}

/// What the program needs is a problem when it is missing; of a program that is not known it may be.
pub(super) fn libpmix(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let problem = host.pmix.problem.as_ref()?;
    match wants(host.program.as_ref()) {
        Wants::Pmix => Seen::problem(problem.clone()),
        Wants::Unknown => Seen::warning(problem.clone()),
        Wants::Pmi | Wants::Plain => None,
    }
}

fn wants(program: Option<&Program>) -> Wants {
    program.map_or(Wants::Unknown, |program| program.wants)
}

pub(super) fn vulnerable(host: &HostFacts, _: &Needs) -> Option<Seen> {
    let text = host.pmix.vulnerable.as_ref()?;
    let needed = matches!(wants(host.program.as_ref()), Wants::Pmix | Wants::Unknown);
    needed.then_some(())?;
    Seen::warning(text.clone())
}

fn unusable(host: &HostFacts, kind: DeviceKind) -> Option<String> {
    let of_kind = host.devices.iter().filter(|it| it.kind == kind);
    let texts = of_kind.filter_map(|it| Some(format!("{}: {}", it.path, it.problem.as_ref()?)));
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

pub(super) fn fabric(host: &HostFacts, _: &Needs) -> Option<Seen> {
    Seen::problem(unusable(host, DeviceKind::Fabric)?)
}

/// Providers of libfabric for networks that need no fast device, and layers over others.
const SLOW_PROVIDERS: [&str; 8] = [
    "tcp", "sockets", "udp", "shm", "sm2", "net", "off_coll", "lnx",
];

pub(super) fn providers(host: &HostFacts, _: &Needs) -> Option<Seen> {
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
        return Seen::warning(broken);
    }
    let usable = |device: &&Device| device.kind == DeviceKind::Fabric && device.problem.is_none();
    let device = host.devices.iter().find(usable)?;
    let mut libraries = host.network_libraries.iter();
    let library = libraries.find(|it| it.name == "libfabric")?;
    let slow = |name: &str| {
        let mut parts = name.split(';');
        parts.all(|part| SLOW_PROVIDERS.contains(&part) || part.starts_with("ofi_"))
    };
    let fast = library.providers.iter().any(|it| !slow(&it.name));
    (!fast).then_some(())?;
    Seen::warning(format!(
        "there is {}, and libfabric ({}) has no provider for it",
        device.path, library.path
    ))
}

pub(super) fn gpu(host: &HostFacts, _: &Needs) -> Option<Seen> {
    Seen::warning(unusable(host, DeviceKind::Gpu)?)
}

pub(super) fn copy_device(host: &HostFacts, _: &Needs) -> Option<Seen> {
    Seen::warning(unusable(host, DeviceKind::Copy)?)
}
