//! Search in the constants of a static program. It names no libraries, but a client of PMI or
//! PMIx that is linked into it contains the name of the variable by which it finds its server.

use std::path::Path;

use super::detected::{DetectedInterface, DetectionReason, DetectionResult, StaticClients};
use crate::inspect::elf::{self, ElfError};

/// Common beginning of the variables' names, so that one search finds both.
const START: &[u8] = b"PMI";
/// Rest of `PMI_FD`, which every client of PMI-1 or PMI-2 contains.
const PMI: &[u8] = b"_FD";
/// Rest of `PMIX_NAMESPACE`, which every client of PMIx contains.
const PMIX: &[u8] = b"X_NAMESPACE";

/// Inspects a static program.
pub(super) fn inspect_static(path: &Path) -> DetectionResult {
    let clients = clients(path).ok();
    let wants = match clients {
        Some(StaticClients {
            pmi: false,
            pmix: false,
        }) => DetectedInterface::Plain,
        Some(StaticClients { pmix: false, .. }) => DetectedInterface::Pmi,
        Some(StaticClients { pmi: false, .. }) => DetectedInterface::Pmix,
        // MPICH 5 contains both variables, and so does Open MPI.
        Some(_) | None => DetectedInterface::Unknown,
    };
    DetectionResult::new(wants, path, DetectionReason::Static(clients))
}

fn clients(path: &Path) -> Result<StaticClients, ElfError> {
    let mut found = StaticClients::default();
    elf::find_in_constants(path, START, PMIX.len(), |rest| {
        found.pmi |= rest.starts_with(PMI);
        found.pmix |= rest.starts_with(PMIX);
        (found.pmi && found.pmix).then_some(())
    })?;
    Ok(found)
}
