//! Programs that are launchers of an MPI: `wireup run` executes them below `wireup env`, with the hosts of its launch.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use wireup_core::job::hosts::HostSpec;
use wireup_core::job::spec::{AppRequest, InterfaceChoice, JobSpec};

/// Variables without which the command that starts agents may not work, and which ranks do not get.
const OF_ENGINES: [&str; 1] = ["SLURM_CONF"];

/// Launchers, by the names of their files.
const NAMES: [&str; 12] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "mpirun.mpich",
    "mpiexec.mpich",
    "mpirun.openmpi",
    "mpiexec.openmpi",
    "orterun",
    "prterun",
    "prte",
    "mpirun.hydra",
    "ompirun",
];

/// Has a program that is a launcher of an MPI run below `wireup env` with the hosts of this launch: once, on the first of
/// them.
pub(super) fn prepare(spec: &mut JobSpec) {
    let layout = &spec.layout;
    let [app] = &mut spec.apps[..] else { return };
    let here = layout.hosts.iter().all(HostSpec::is_here) && layout.spread.starter.is_none();
    if layout.hosts.is_empty() || here || !is_launcher(app) {
        return;
    }
    app.count.get_or_insert(1);
    spec.interface.pmi = InterfaceChoice::None;
    let hosts: Vec<String> = layout.hosts.iter().map(written).collect();
    let own = env::current_exe().unwrap_or_else(|_| "wireup".into());
    let mut argv: Vec<OsString> = vec![own.into()];
    let words = ["env", "--no-config", "--hosts", &hosts.join(",")];
    argv.extend(words.map(OsString::from));
    if let Some(starter) = &layout.spread.starter {
        argv.extend(["--launch-agents".into(), starter.command.join(" ").into()]);
    }
    argv.push("--".into());
    argv.append(&mut app.argv);
    app.argv = argv;
    let of_engines = OF_ENGINES.into_iter();
    let of_engines = of_engines.filter(|name| env::var_os(name).is_some());
    app.env.splice(0..0, of_engines.map(OsString::from));
}

/// A host as `--hosts` takes it.
fn written(host: &HostSpec) -> String {
    let slots = host.slots.map(|slots| format!(":{slots}"));
    let address = host.has_own_address().then(|| format!("@{}", host.address));
    format!(
        "{}{}{}",
        host.name,
        slots.unwrap_or_default(),
        address.unwrap_or_default()
    )
}

/// Whether a program is a launcher, and not wireup under its name.
fn is_launcher(app: &AppRequest) -> bool {
    let name = app.argv.first().map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}
