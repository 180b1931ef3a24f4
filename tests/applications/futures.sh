# mpi4py.futures: a pool of two workers that the first rank spawns; Python.
about='mpi4py.futures|task pool, spawned|Python'
mpi=openmpi4
packages=(python3-mpi4py)
job=(-n 1 "$python" "$inputs/pool.py")
results() { cat; }
two_nodes=(none)
