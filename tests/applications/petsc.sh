# PETSc: the Poisson equation by conjugate gradients, from Python.
about='PETSc|partial differential equations|Python'
mpi=openmpi4
packages=(python3-petsc4py)
# Where Debian keeps the module.
export PYTHONPATH=/usr/lib/petscdir/petsc3.18/x86_64-linux-gnu-real/lib/python3/dist-packages
job=(-n 2 "$python" "$inputs/petsc.py")
results() { cat; }
