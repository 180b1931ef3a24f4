"""The same sum as allreduce.py, over a communicator that an MPI session makes. Prints one line."""

import mpi4py

mpi4py.rc.initialize = False

from mpi4py import MPI  # noqa: E402

session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
world = MPI.Intracomm.Create_from_group(group, "wireup")
total = world.allreduce(world.rank + 1)
print(f"mpi4py rank={world.rank} size={world.size} sum={total}", flush=True)
world.Free()
group.Free()
session.Finalize()
