//! Collects the facts that `wireup doctor` judges (core's `doctor`): those of this host, and those of others through a launch
//! without PMI and PMIx.
//!
//! ```text
//!  wireup doctor --hosts …                          on each host, started through its agent:
//!   │ ── wireup run --label --stdin all ──────────▶ wireup doctor --facts
//!   │ ◀─ facts, and a port that listens ──────────── │
//!   │ ── what is the time? ────────────────────────▶ │
//!   │ ── all hosts with their ports ───────────────▶ │ connects to its neighbours, looks up their names
//!   │ ◀─ results of the checks ────────────────────── │
//! ```

mod device_access;
mod examined_program;
#[allow(unsafe_code, reason = "the C libraries libfabric and UCX")]
mod fabric_libraries;
pub mod image_trial;
mod installation;
pub mod machine_facts;
mod network_facts;
pub mod network_libraries;
pub mod ping_pong_run;
mod protocol;
pub mod worker;
pub mod worker_launch;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::plan::launch_names::own_host;
use wireup_core::doctor::facts::{HostFacts, RankUser};
use wireup_core::job::spec::ImageSpec;
use wireup_sys::accounts;
use wireup_sys::pidfd::wait_for;

/// Program and image that the user wants to be examined.
#[derive(Clone, Debug, Default)]
pub struct DoctorSubject {
    /// A program with its arguments; may be empty.
    pub program: Vec<OsString>,
    /// Image in which ranks would run.
    pub image: Option<ImageSpec>,
    /// Words of the command line that choose the image.
    pub image_words: Vec<OsString>,
}

/// Collects the facts of this host; `cwd` is the directory in which ranks start.
pub fn facts(subject: &DoctorSubject, cwd: &Path) -> HostFacts {
    let steal = machine_facts::StealMeasurement::start();
    let uid = rustix::process::geteuid().as_raw();
    let account = accounts::by_uid(uid).ok().flatten();
    let (image, (program, pmix)) = match &subject.image {
        None => (
            None,
            examined_program::inspect_program(&subject.program, cwd),
        ),
        Some(_) => {
            let trial = image_trial::try_image(subject, cwd);
            // The PMIx server runs outside of the image.
            (
                Some(trial.image),
                (trial.program, examined_program::inspect_program(&[], cwd).1),
            )
        }
    };
    let name = own_host();
    let mut facts = HostFacts {
        network: network_facts::collect_network_facts(&name),
        name,
        wireup: env!("CARGO_PKG_VERSION").to_owned(),
        user: RankUser {
            uid,
            account: account.map(|account| account.name.to_string_lossy().into_owned()),
        },
        kernel: machine_facts::kernel(uid),
        cpus: machine_facts::cpus(),
        memory: machine_facts::memory(),
        limits: wireup_sys::resource_limits::own_limits(),
        shm: machine_facts::directory(Path::new("/dev/shm")),
        tmp: machine_facts::directory(&std::env::temp_dir()),
        home: std::env::var_os("HOME")
            .map(|home| machine_facts::directory(Path::new(&home)))
            .unwrap_or_default(),
        cwd: machine_facts::entered(cwd),
        leftovers: machine_facts::find_leftovers(uid),
        devices: device_access::find_devices(),
        network_libraries: network_libraries::probe_libraries(program.as_ref()),
        parts: installation::find_parts(),
        pmix,
        image,
        program,
        variables: machine_facts::variables(),
    };
    // All that was collected before is work during which processors can be taken.
    facts.cpus.steal = steal.finish();
    facts
}

/// Executes a command whose output fits into a pipe. Returns whether it ended within `limit`, after which it is killed, and
/// its output.
fn run_within(command: &mut Command, limit: Duration) -> io::Result<(bool, Output)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn()?;
    let ended = wait_for(&child, limit);
    if !ended {
        // The process may have exited in between.
        let _ = child.kill();
    }
    Ok((ended, child.wait_with_output()?))
}
