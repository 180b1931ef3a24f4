# Meep: light in a bent waveguide; C++, from Python.
about='Meep|electromagnetism|C++, Python'
mpi=openmpi4
packages=(python3-meep-openmpi python3-mpi4py python3-matplotlib)
job=(-n 2 "$python" "$inputs/meep_bend.py")
results() { grep '^result'; }
tolerance=1e-6
