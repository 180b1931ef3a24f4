# Quantum ESPRESSO: the energy of a silicon crystal; Fortran.
about='Quantum ESPRESSO|solid-state physics|Fortran'
mpi=openmpi4
packages=(quantum-espresso quantum-espresso-data)
job=(-n 2 pw.x -in "$inputs/espresso.in")
results() { grep -E '^!|Fermi|convergence has been'; }
tolerance=1e-7
