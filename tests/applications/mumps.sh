# MUMPS: solves the linear system that its package brings, read from standard input; Fortran.
about='MUMPS|sparse direct solver|Fortran'
mpi=openmpi4
packages=(mumps-test)
job=(-n 2 /usr/lib/mumps/dsimpletest)
input=/usr/lib/mumps/input_simpletest_real
results() { awk '/Solution is/ { on = 1; $1 = $2 = "" } on'; }
