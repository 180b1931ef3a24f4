# ScaLAPACK: its test of the Cholesky factorization; Fortran.
about='ScaLAPACK|dense linear algebra|Fortran'
mpi=mpich4
packages=(scalapack-mpi-test)
job=(-n 2 /usr/lib/x86_64-linux-gnu/scalapack/mpich-tests/xdllt)
prepare() { cp /usr/share/scalapack/LLT.dat .; }
results() { awk '/tests (completed|were skipped)|PASSED|FAILED/ { print $1, $2, $3, $4, $5, $6, $7, $8, $NF }'; }
