# ipyparallel: it starts two engines, which are the ranks of a job, with the launcher; Python.
about='ipyparallel|interactive computing|Python'
mpi=openmpi4
packages=(python3-ipyparallel python3-mpi4py)
export IPYTHONDIR=$work/ipython
job=()
through=("$python" "$inputs/engines.py")
results() { grep '^result'; }
