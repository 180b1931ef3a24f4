//! Names of the libraries that the build script compiles: one C source, with the `mpi.h` of each binary interface.

/// Library for programs of MPICH's binary interface.
pub const MPICH_LIBRARY: &str = "libwireup_impi_mpich.so";
/// Library for programs of Open MPI's binary interface.
pub const OPEN_MPI_LIBRARY: &str = "libwireup_impi_openmpi.so";
/// Library for programs of the standard binary interface of MPI 5.0.
pub const STANDARD_LIBRARY: &str = "libwireup_impi_abi.so";
