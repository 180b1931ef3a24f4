//! What to write instead of a value that its option does not take.

use wireup_core::duration::DurationError;
use wireup_core::name_server::MEET_MAX;

/// A value that its option does not take.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("give a number from 1 to {}", u32::MAX)]
    Count,
    #[error("give none, all or the number of a rank")]
    Stdin,
    #[error("give an octal number from 0 to 777")]
    Umask,
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("give a duration from 0.1 s to 24 h, such as 2, 0.5 or 1m")]
    Interval,
    #[error("a name has 1 to {MEET_MAX} bytes")]
    Meet,
    #[error("give kinds with commas between them, such as mpi,system,cuda:device")]
    MemoryKinds,
    #[error("give a signal as `kill -l` lists them, such as TERM, INT or 9")]
    Signal,
    #[error("give names with commas between them")]
    NoNames,
    #[error("give NODE*RANKS with commas between them, nodes counted from 0")]
    Runs,
    #[error("give fd: and the number of a descriptor, at least 3")]
    Descriptor,
    #[error("give the name of a file, fd:N or -")]
    NoTarget,
    #[error("the ranks use the descriptors 0 to 2; give another one, or - for standard output")]
    TakenDescriptor,
    #[error(
        "give slot, node, hwthread, core, l2, l3, numa, package, or ppr:N: and one of these for N ranks on each"
    )]
    Mapping,
    #[error("give none, hwthread, core, l2, l3, numa, package, or cpu-list: and a list of CPUs")]
    BindTo,
    #[error(
        "give the CPUs of each rank with commas between them, such as 0,1 or 0-3,4-7 or 0+2,1+3"
    )]
    CpuList,
    #[error("give the number of a descriptor after fd:, or write ./fd:… for a file")]
    NoDescriptor,
}
