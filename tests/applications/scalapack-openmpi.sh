# ScaLAPACK: its test of the Cholesky factorization; Fortran.
about='ScaLAPACK, Open MPI|dense linear algebra|Fortran'
mpi=openmpi4
packages=(scalapack-mpi-test)
job=(-n 2 /usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests/xdllt)
prepare() { cp /usr/share/scalapack/LLT.dat .; }
results() { awk '/tests (completed|were skipped)|PASSED|FAILED/ { print $1, $2, $3, $4, $5, $6, $7, $8, $NF }'; }
