# Dask: scheduler, two workers and client as four programs of one job, which use no MPI; Python.
about='Dask|task graphs|Python'
mpi=openmpi4
packages=(python3-distributed python3-dask python3-numpy)
worker=(dask-worker --scheduler-file cluster.json --no-nanny --nthreads 1 --no-dashboard)
job=(-n 1 dask-scheduler --scheduler-file cluster.json --no-dashboard : -n 2 "${worker[@]}"
    : -n 1 "$python" "$inputs/dask_client.py")
prepare() { rm -f cluster.json; }
results() { grep '^result'; }
