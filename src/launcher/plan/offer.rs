//! Which interfaces are offered, and what the PMIx server is made of.

use std::ffi::OsString;
use std::path::Path;

use super::super::inspect::Wants;
use super::super::ldso::{Loader, System};
use super::super::libpmix;
use super::super::parts::{self, HostParts};
use super::super::run::RunFailure;
use super::App;
use crate::job::spec::{JobSpec, PmiChoice};

/// Names the libpmix of the sidecar when the program has none of its own.
const LIBPMIX_VARIABLE: &str = "WIREUP_LIBPMIX";

/// What to offer: PMI-1, PMIx.
pub(super) fn interfaces(choice: PmiChoice, apps: &[App]) -> (bool, bool) {
    match choice {
        PmiChoice::Pmi1 => (true, false),
        PmiChoice::Pmix => (false, true),
        PmiChoice::All => (true, true),
        PmiChoice::None => (false, false),
        PmiChoice::Auto => {
            let any = |wants: Wants| apps.iter().any(|app| app.finding.wants == wants);
            // A program that is known to need PMIx gets nothing else that could confuse it.
            let sure = any(Wants::Pmix);
            let pmi = any(Wants::Pmi) || any(Wants::Unknown) || !sure;
            (pmi, sure || any(Wants::Unknown))
        }
    }
}

pub(super) fn host_parts(
    spec: &JobSpec,
    apps: &[App],
    inherited: &[(OsString, OsString)],
) -> Result<HostParts, RunFailure> {
    let wanted = apps
        .iter()
        .find(|app| app.finding.wants == Wants::Pmix)
        .or_else(|| apps.first())
        .expect("a job has at least one program");
    let variable = inherited.iter().find(|(name, _)| name == LIBPMIX_VARIABLE);
    let variable = variable
        .map(|(_, value)| Path::new(value))
        .filter(|p| !p.as_os_str().is_empty());
    let loader = Loader::new(&wanted.env, Path::new("/"), System::default());
    let libpmix = libpmix::choose(
        spec.interface.libpmix.as_deref(),
        Some(&wanted.finding),
        variable,
        &loader,
    );
    parts::find(spec, libpmix)
}
