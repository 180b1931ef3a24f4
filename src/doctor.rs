//! Collects what `wireup doctor` judges (core's `doctor`): the facts of this host, and through a launch without an
//! interface those of others.
//!
//! ```text
//!  wireup doctor --hosts …                          on each host, started through its agent:
//!   │ ── wireup run --label --stdin all ──────────▶ wireup doctor --facts
//!   │ ◀─ facts, and a port that listens ──────────── │
//!   │ ── what is the time? ────────────────────────▶ │
//!   │ ── all hosts with their ports ───────────────▶ │ connects to its neighbours, looks up their names
//!   │ ◀─ what it sees of them ────────────────────── │
//! ```

mod devices;
pub mod hosts;
pub mod image;
mod installation;
pub mod machine;
mod network;
pub mod network_libraries;
mod program;
mod protocol;
pub mod run;
pub mod worker;

use std::ffi::OsString;
use std::path::Path;

use wireup_core::doctor::facts::HostFacts;
use wireup_core::job::spec::ImageSpec;

use crate::sys::accounts;

/// What is collected.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// A program with its arguments; may be none.
    pub program: Vec<OsString>,
    /// What ranks would run in.
    pub image: Option<ImageSpec>,
    /// The words of the command line that ask for it.
    pub image_words: Vec<OsString>,
}

/// The facts of this host; `cwd` is where ranks start.
pub fn facts(asked: &Asked, cwd: &Path) -> HostFacts {
    let uid = rustix::process::geteuid().as_raw();
    let account = accounts::by_uid(uid).ok().flatten();
    let (image, (program, pmix)) = match &asked.image {
        None => (None, program::look(&asked.program, cwd)),
        Some(_) => {
            let seen = image::look(asked, cwd);
            // The PMIx server runs outside of the image.
            (Some(seen.image), (seen.program, program::look(&[], cwd).1))
        }
    };
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    HostFacts {
        network: network::look(&name),
        name,
        wireup: env!("CARGO_PKG_VERSION").to_owned(),
        uid,
        account: account.map(|account| account.name.to_string_lossy().into_owned()),
        kernel: machine::kernel(uid),
        cpus: machine::cpus(),
        memory: machine::memory(),
        limits: crate::sys::limits::own(),
        shm: machine::directory(Path::new("/dev/shm")),
        tmp: machine::directory(&std::env::temp_dir()),
        home: std::env::var_os("HOME")
            .map(|home| machine::directory(Path::new(&home)))
            .unwrap_or_default(),
        cwd: machine::entered(cwd),
        left: machine::left(uid),
        devices: devices::look(),
        network_libraries: network_libraries::look(program.as_ref()),
        parts: installation::find_parts(),
        pmix,
        image,
        program,
        variables: machine::variables(),
    }
}
