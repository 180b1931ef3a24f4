# NWChem with MPICH. docs/mpis.md: with windows that MPI allocates its energies are wrong.
export ARMCI_USE_WIN_ALLOCATE=0
about='NWChem, MPICH|quantum chemistry|Fortran'
mpi=mpich4
packages=(nwchem-mpich)
job=(-n 2 nwchem.mpich "$inputs/nwchem.nw")
results() { grep -E 'Total (SCF|DFT) energy|Nuclear repulsion'; }
