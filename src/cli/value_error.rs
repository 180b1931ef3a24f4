//! Advice for a value that its option does not accept.

use wireup_core::duration::DurationError;
use wireup_core::job::name_store_kind::InvalidNameStore;
use wireup_core::job::rank_set::RankSetError;
use wireup_core::name_server::MEET_MAX;

/// A value that its option does not take.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("give a number from 1 to {}", u32::MAX)]
    Count,
    #[error("give none, all or the number of a rank")]
    Stdin,
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("give a duration from 0.1 s to 24 h, such as 2, 0.5 or 1m")]
    Interval,
    #[error("give exec or init, and after a colon the ranks if not all: exec:0,3-5")]
    DebugStop,
    #[error(transparent)]
    Ranks(#[from] RankSetError),
    #[error("a name has 1 to {MEET_MAX} bytes")]
    Meet,
    #[error(transparent)]
    NameStore(#[from] InvalidNameStore),
    #[error(
        "write --pmi {0} for the interface that srun's --mpi chooses; this option chooses an MPI, such as mpich5"
    )]
    InterfaceOfSrun(String),
    #[error("give the path of a file, also after host= and shim=: FILE,host=FILE,shim=FILE")]
    PmixFile,
    #[error("give kinds with commas between them, such as mpi,system,cuda:device")]
    MemoryKinds,
    #[error("give a signal as `kill -l` lists them, such as TERM, INT or 9")]
    Signal,
    #[error("give fd: and the number of a descriptor, at least 3")]
    Descriptor,
    #[error("give the name of a file, fd:N or -")]
    NoTarget,
    #[error("the ranks use the descriptors 0 to 2; give another one, or - for standard output")]
    TakenDescriptor,
    #[error("give the number of a descriptor after fd:, or write ./fd:… for a file")]
    NoDescriptor,
}
