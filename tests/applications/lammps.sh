# LAMMPS: a Lennard-Jones liquid; C++.
about='LAMMPS|molecular dynamics|C++'
mpi=openmpi4
packages=(lammps)
job=(-n 2 lmp -in "$inputs/lammps.in" -log none)
results() { awk '/^ *Step/ { on = 1; next } /^Loop/ { on = 0 } on'; }
