"""Each rank writes a part of one dataset and reads its neighbour's; rank 0 prints the sums."""

import h5py
import numpy
from mpi4py import MPI

LENGTH = 1 << 20

world = MPI.COMM_WORLD
part = numpy.arange(LENGTH, dtype="f8") * (world.rank + 1)
with h5py.File("shared.h5", "w", driver="mpio", comm=world) as file:
    data = file.create_dataset("data", (world.size, LENGTH), dtype="f8")
    with data.collective:
        data[world.rank] = part
with h5py.File("shared.h5", "r", driver="mpio", comm=world) as file:
    neighbour = (world.rank + 1) % world.size
    sums = world.gather(file["data"][neighbour].sum())
if world.rank == 0:
    print("sums", *sums, flush=True)
