//! The environment that ranks inherit: the launcher's own, without what an outer launcher left in
//! it. No I/O.
//!
//! A rank that finds another job's identity in its environment joins that job, fails, or takes
//! itself for a single process. So the state of every launcher that MPI libraries look for is
//! removed, unless the user asks for a variable; the settings of users stay.
//!
//! Rule: MPICH 5 aborts on `PMIX_NAMESPACE` beside `PMI_SIZE`; Slurm's PMI library changes its
//! dialect on `PMI_ID`; Open MPI 4.1 takes the marks of jsrun, Flux or Slurm for a launch by
//! them. Source: docs/pmi-operations.md#spawn.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use wireup_core::job::spec::EnvInheritance;

/// A variable of an environment.
pub type Variable = (OsString, OsString);

pub mod env_file;
mod local_variables;

pub use local_variables::{
    is_given_by_node, is_hidden, is_local, is_secret, leave_files, leave_local, secret_value,
};

/// Names that start so are launcher state, unless [`KEPT`] has them.
///
/// Batch systems of which no MPI library reads anything in a rank (PBS, LSF, Grid Engine, Cobalt)
/// are left alone: scripts use their variables.
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

/// Has the name of the launcher whose place `wireup run` takes, and behind it pairs of lines: words of ours, and what was
/// written for them.
pub const PERSONALITY: &str = "WIREUP_PERSONALITY";

/// Names that are launcher state.
const REMOVED: &[&str] = &[
    // Our own; the others that start so are settings.
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

/// Users' settings among the removed prefixes: debugging, MCA parameters, where a relocated library finds its
/// parts, and what identifies a batch job.
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
    // What a job of Slurm's is, for scripts and for the names of their files: none says where a rank is, and no MPI takes
    // them for a launch. Open MPI looks at SLURM_JOBID, SLURM_NODELIST and those of tasks.
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

/// Hydra 4 sets this for its ranks; it is a user's setting anywhere else.
const HYDRA_HOST: &str = "MPIR_CVAR_CH3_INTERFACE_HOSTNAME";
/// Present in every rank of a Hydra.
const HYDRA_MARK: &str = "HYDI_CONTROL_FD";

/// One request to give ranks a variable (`-x`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvForward {
    /// The inherited value of a name, also when it would be removed.
    Inherit(OsString),
    /// The inherited values of all names that start so.
    InheritAll(OsString),
    /// A value of the user's.
    Set(OsString, OsString),
}

/// A text that is no [`EnvForward`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ForwardError {
    /// The name is empty.
    #[error("{0:?} has no variable name; use NAME, NAME=VALUE or 'PREFIX*'")]
    NoName(OsString),
    /// An environment cannot hold NUL bytes. The value may be a secret, and is not shown.
    #[error("the variable {0:?} contains a NUL byte")]
    Nul(OsString),
}

impl EnvForward {
    /// Reads `NAME`, `NAME=VALUE` or `PREFIX*`.
    ///
    /// # Errors
    /// [`ForwardError`] when there is no name or a NUL byte.
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

/// What ranks inherit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InheritedEnv {
    /// Names, each once, and values: in the launcher's order, then the user's.
    pub variables: Vec<(OsString, OsString)>,
    /// Names and prefixes asked for that the launcher does not have: worth a warning.
    pub unset: Vec<OsString>,
    /// The same of those selected.
    pub not_there: Vec<OsString>,
}

/// Makes the ranks' base environment from selected variables of the launcher and those that the
/// user sets. Of several requests for one name the last one wins.
pub fn base(
    inherited: &[(OsString, OsString)],
    selected: &EnvInheritance,
    forwards: &[EnvForward],
) -> InheritedEnv {
    let mut seen = HashSet::with_capacity(inherited.len());
    // Programs see the first of two equal names.
    let inherited: Vec<_> = inherited
        .iter()
        .filter(|(name, _)| seen.insert(name.as_os_str()))
        .collect();
    let under_hydra = seen.contains(OsStr::new(HYDRA_MARK));
    let is_selected = |name: &OsStr| match selected {
        EnvInheritance::All => !(is_launcher_state(name) || under_hydra && name == HYDRA_HOST),
        EnvInheritance::None => false,
        EnvInheritance::Only(list) => list.iter().any(|wanted| is_meant(wanted, name)),
    };
    let stays = |name: &OsStr| {
        is_selected(name)
            || forwards.iter().any(|forward| match forward {
                EnvForward::Inherit(wanted) => name == wanted,
                EnvForward::InheritAll(prefix) => starts_with(name, prefix.as_bytes()),
                EnvForward::Set(..) => false,
            })
    };
    let mut result = InheritedEnv::default();
    if let EnvInheritance::Only(list) = selected {
        let absent = |wanted: &&OsString| !inherited.iter().any(|(name, _)| is_meant(wanted, name));
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

/// Whether `wanted`, a name or `PREFIX*`, means this name.
fn is_meant(wanted: &OsStr, name: &OsStr) -> bool {
    match wanted.as_bytes() {
        [prefix @ .., b'*'] => starts_with(name, prefix),
        exact => name.as_bytes() == exact,
    }
}

/// True for a variable by which a launcher gives a rank its identity or the launcher's address.
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
