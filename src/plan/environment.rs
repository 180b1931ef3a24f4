//! Environment that ranks inherit: the launcher's own, without the variables of an outer launcher. No I/O.
//!
//! A rank that finds another job's identity in its environment joins that job, fails, or runs as an MPI singleton.
//! The variables of all launchers that MPI libraries read are therefore
//! removed, unless the user names a variable; settings of users stay.
//!
//! Rule: MPICH 5 aborts if both `PMIX_NAMESPACE` and `PMI_SIZE` are set; Slurm's PMI library uses another protocol if
//! `PMI_ID` is set; Open MPI 4.1 assumes a launch by jsrun, Flux or Slurm if their variables are
//! set. Source: docs/pmi-operations.md#spawn.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use wireup_core::job::spec::EnvInheritance;

/// Name and value of an environment variable.
pub type Variable = (OsString, OsString);

/// Splits an entry `NAME=value` of an environment; `None` without `=`.
pub(crate) fn split_entry(entry: &[u8]) -> Option<Variable> {
    let at = entry.iter().position(|byte| *byte == b'=')?;
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((text(&entry[..at]), text(&entry[at + 1..])))
}

pub mod env_file;
mod local_variables;

pub use local_variables::{
    is_given_by_node, is_hidden, is_local, is_secret, leave_files, leave_local, secret_value,
};

/// Prefixes of the names of launcher state, except those in [`KEPT`].
///
/// The variables of PBS, LSF, Grid Engine and Cobalt stay: no MPI library reads them in a rank, and scripts use them.
const REMOVED_PREFIXES: &[&str] = &[
    "PMI_",
    "PMI2_",
    "PMIX_",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess_",
    "ORTE_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "I_MPI_INFO_",
    "MV2_COMM_WORLD_",
    "MPISPAWN_",
    "SLURM_",
    "SLURMD_",
    "FLUX_",
    "JSM_",
    "PALS_",
    "ALPS_",
];

/// Variable with the name of the launcher that `wireup run` replaces, then pairs of lines: words of wireup's command line, and
/// the words of the other launcher that were translated to them.
pub const PERSONALITY: &str = "WIREUP_PERSONALITY";

/// Names of launcher state.
const REMOVED: &[&str] = &[
    // Set by wireup; other variables with this prefix are settings of users.
    "WIREUP_ALLOC_ID",
    "WIREUP_APPNUM",
    "WIREUP_HOST",
    "WIREUP_JOB_ID",
    "WIREUP_ADOPTED_NSPACE",
    "WIREUP_KEPT_JOB",
    "WIREUP_LAUNCH_ID",
    "WIREUP_LOCAL_RANK",
    "WIREUP_LOCAL_SIZE",
    "WIREUP_MACHINE",
    "WIREUP_NNODES",
    "WIREUP_NODE",
    "WIREUP_NODELIST",
    "WIREUP_NODE_RANK",
    "WIREUP_NPROCS",
    PERSONALITY,
    "WIREUP_RANK",
    "WIREUP_SIZE",
    "WIREUP_SPAWNED_JOB",
    "WIREUP_TMPDIR",
    "WIREUP_UNIVERSE_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    // Set by mpirun of Open MPI 4 and by MPI_Init itself under it.
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_FILE_LOCATION",
    "OMPI_FIRST_RANKS",
    "OMPI_NUM_APP_CTX",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_mpi_oversubscribe",
    "OMPI_MCA_pmix",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint",
    // Set by Intel's Hydra: the outer job's id and the pinning of its ranks.
    "I_MPI_HYDRA_UUID",
    "I_MPI_PIN_INFO",
    "I_MPI_PIN_MAPPING",
    "I_MPI_INTERNAL_MEM_POLICY",
];

/// Prefixes of users' settings among the removed prefixes: debugging, MCA parameters, directories of a relocated
/// library, and the identity of a batch job.
const KEPT: &[&str] = &[
    "PMI_DEBUG",
    "PMI2_DEBUG",
    "PMIX_MCA_",
    "PMIX_DEBUG",
    "PMIX_PREFIX",
    "PMIX_EXEC_PREFIX",
    "PMIX_LIBDIR",
    "PMIX_PKGLIBDIR",
    "PMIX_DATADIR",
    "PMIX_PKGDATADIR",
    "PMIX_SYSCONFDIR",
    "PRTE_MCA_",
    "PRTE_PREFIX",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "OMPI_MCA_orte_base_help_aggregate",
    // Identity of a Slurm job, for scripts and the names of their files. None of these contains the place of a rank, and no
    // MPI detects a launch by them: Open MPI reads SLURM_JOBID, SLURM_NODELIST and the variables of tasks.
    "SLURM_ARRAY_",
    "SLURM_CLUSTER_NAME",
    "SLURM_CONF",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_QOS",
    "SLURM_JOB_START_TIME",
    "SLURM_RESTART_COUNT",
    "SLURM_SUBMIT_",
];

/// Variable that Hydra 4 sets for its ranks; a user's setting elsewhere.
const HYDRA_HOST: &str = "MPIR_CVAR_CH3_INTERFACE_HOSTNAME";
/// Variable that every rank of Hydra has.
const HYDRA_MARK: &str = "HYDI_CONTROL_FD";

/// Request to set a variable of the ranks (`-x`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvForward {
    /// Inherit this variable, even if it is launcher state.
    Inherit(OsString),
    /// Inherit all variables with this prefix, even those of launcher state.
    InheritAll(OsString),
    /// Set this variable to a value of the user.
    Set(OsString, OsString),
}

/// Text that is not an [`EnvForward`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ForwardError {
    /// The name is empty.
    #[error("{0:?} has no variable name; use NAME, NAME=VALUE or 'PREFIX*'")]
    NoName(OsString),
    /// The text contains a NUL byte. The message omits the value, which may be a secret.
    #[error("the variable {0:?} contains a NUL byte, which an environment cannot hold; remove it")]
    Nul(OsString),
}

impl EnvForward {
    /// Reads `NAME`, `NAME=VALUE` or `PREFIX*`.
    ///
    /// # Errors
    /// [`ForwardError`] for an empty name or a NUL byte.
    pub fn parse(text: &OsStr) -> Result<Self, ForwardError> {
        let bytes = text.as_bytes();
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        if bytes.contains(&0) {
            let name = bytes.split(|byte| *byte == b'=').next();
            return Err(ForwardError::Nul(owned(name.unwrap_or_default())));
        }
        let forward = match bytes.iter().position(|byte| *byte == b'=') {
            Some(0) => return Err(ForwardError::NoName(text.into())),
            Some(at) => Self::Set(owned(&bytes[..at]), owned(&bytes[at + 1..])),
            None => match bytes {
                [] | [b'*'] => return Err(ForwardError::NoName(text.into())),
                [prefix @ .., b'*'] => Self::InheritAll(owned(prefix)),
                name => Self::Inherit(owned(name)),
            },
        };
        Ok(forward)
    }
}

/// Environment that ranks inherit, and the requested variables that do not exist.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InheritedEnv {
    /// Variables, each name once: in the launcher's order, then the user's.
    pub variables: Vec<(OsString, OsString)>,
    /// Names and prefixes of [`EnvForward`]s that the launcher's environment lacks; the user is warned.
    pub unset: Vec<OsString>,
    /// Names and prefixes of [`EnvInheritance`] that the launcher's environment lacks; the user is warned.
    pub not_there: Vec<OsString>,
}

/// Makes the ranks' base environment from selected variables of the launcher and those that the
/// user sets. The last of several requests for one name counts.
pub fn base(
    inherited: &[(OsString, OsString)],
    selected: &EnvInheritance,
    forwards: &[EnvForward],
) -> InheritedEnv {
    let mut names = HashSet::with_capacity(inherited.len());
    // Programs read the first of two variables with one name.
    let inherited: Vec<_> = inherited
        .iter()
        .filter(|(name, _)| names.insert(name.as_os_str()))
        .collect();
    let under_hydra = names.contains(OsStr::new(HYDRA_MARK));
    let is_selected = |name: &OsStr| match selected {
        EnvInheritance::All => !(is_launcher_state(name) || under_hydra && name == HYDRA_HOST),
        EnvInheritance::None => false,
        EnvInheritance::Only(list) => list.iter().any(|pattern| is_meant(pattern, name)),
    };
    let stays = |name: &OsStr| {
        is_selected(name)
            || forwards.iter().any(|forward| match forward {
                EnvForward::Inherit(variable) => name == variable,
                EnvForward::InheritAll(prefix) => starts_with(name, prefix.as_bytes()),
                EnvForward::Set(..) => false,
            })
    };
    let mut result = InheritedEnv::default();
    if let EnvInheritance::Only(list) = selected {
        let absent =
            |pattern: &&OsString| !inherited.iter().any(|(name, _)| is_meant(pattern, name));
        result.not_there = list.iter().filter(absent).cloned().collect();
    }
    for (name, value) in &inherited {
        if stays(name) {
            result.variables.push((name.clone(), value.clone()));
        }
    }
    for forward in forwards {
        match forward {
            EnvForward::Inherit(name) => match inherited.iter().find(|(known, _)| known == name) {
                Some((_, value)) => set(&mut result.variables, name, value),
                None => result.unset.push(name.clone()),
            },
            EnvForward::InheritAll(prefix) => {
                let mut any = false;
                for (name, value) in &inherited {
                    if starts_with(name, prefix.as_bytes()) {
                        set(&mut result.variables, name, value);
                        any = true;
                    }
                }
                if !any {
                    result.unset.push(prefix.clone());
                }
            }
            EnvForward::Set(name, value) => set(&mut result.variables, name, value),
        }
    }
    result
}

/// Whether `pattern`, a name or `PREFIX*`, matches this name.
fn is_meant(pattern: &OsStr, name: &OsStr) -> bool {
    match pattern.as_bytes() {
        [prefix @ .., b'*'] => starts_with(name, prefix),
        exact => name.as_bytes() == exact,
    }
}

/// Whether a variable contains the identity of a rank, or the address of its launcher.
pub fn is_launcher_state(name: &OsStr) -> bool {
    let listed = |list: &[&str]| list.iter().any(|start| starts_with(name, start.as_bytes()));
    REMOVED.iter().any(|removed| name == *removed) || listed(REMOVED_PREFIXES) && !listed(KEPT)
}

fn starts_with(name: &OsStr, prefix: &[u8]) -> bool {
    name.as_bytes().starts_with(prefix)
}

fn set(variables: &mut Vec<(OsString, OsString)>, name: &OsStr, value: &OsStr) {
    match variables.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => *old = value.into(),
        None => variables.push((name.into(), value.into())),
    }
}

#[cfg(test)]
mod tests;
