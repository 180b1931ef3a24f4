//! Resources that a launch creates before it parses its command line.

use crate::backend::guard::Guard;
use crate::plan::job_names::JobNames;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::Nspace;
use wireup_sys::descriptors;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::signals::{ignore_file_size_signal, ignored_at_start};

/// Resources created before the command line is parsed. Dropping them leaves nothing behind.
#[derive(Debug)]
pub struct EarlyResources {
    /// State that this process inherited; its low descriptors are reserved.
    surroundings: InheritedState,
    /// Nspace of the job that may follow.
    pub(super) nspace: Nspace,
    guard: Option<Guard>,
}

impl EarlyResources {
    /// Creates the resources. Must be called while the process has a single thread. With `guarded` it
    /// forks the guard, which is cheapest while the process is small: pages that are not in memory yet
    /// need not be copied on write later, and parsing the command line uses more of them than anything
    /// else before the start of the ranks. Without a `name` the job gets a new one.
    ///
    /// # Errors
    /// [`CommandError`] if the system lacks resources for a launch.
    pub fn new(guarded: bool, name: Option<Nspace>) -> Result<Self, CommandError> {
        ignore_file_size_signal();
        let ignored = ignored_at_start();
        descriptors::reserve_low()
            .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
        let surroundings = InheritedState::take(ignored);
        let nspace = name.map_or_else(|| JobNames::default().fresh(), Ok)?;
        let guard = guarded.then(|| guard_of(&nspace)).transpose()?;
        Ok(Self {
            surroundings,
            nspace,
            guard,
        })
    }

    /// Returns the resources for a launch that needs no guard; a guard that was started is dismissed.
    pub(super) fn unguarded(self) -> (InheritedState, Nspace) {
        (self.surroundings.clone(), self.nspace.clone())
    }

    /// Returns the resources for a launch that needs a guard.
    ///
    /// # Errors
    /// [`CommandError`] if the guard was not started yet and cannot be.
    pub(super) fn guarded(mut self) -> Result<(InheritedState, Nspace, Guard), CommandError> {
        let guard = match self.guard.take() {
            Some(guard) => guard,
            None => guard_of(&self.nspace)?,
        };
        let (surroundings, nspace) = self.unguarded();
        Ok((surroundings, nspace, guard))
    }
}

impl Drop for EarlyResources {
    fn drop(&mut self) {
        drop(self.guard.take().map(Guard::dismiss));
    }
}

fn guard_of(nspace: &Nspace) -> Result<Guard, CommandError> {
    Guard::start(nspace, None).map_err(|error| {
        CommandError::system(
            "cannot start the guard process, allow more processes and descriptors (ulimit -u, -Hn)",
            error,
        )
    })
}
