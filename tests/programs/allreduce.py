"""The sum of all ranks' numbers plus one, by mpi4py. Prints one line."""

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
library = MPI.Get_library_version().splitlines()[0]
print(f'mpi4py rank={world.rank} size={world.size} sum={total} library="{library}"', flush=True)
