# h5py: all ranks write one HDF5 file together and read each other's part, from Python.
about='h5py|parallel files|Python'
mpi=openmpi4
packages=(python3-h5py-mpi)
job=(-n 2 "$python" "$inputs/h5py_ranks.py")
results() { cat; }
