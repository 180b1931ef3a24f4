"""Spawns itself, by mpi4py, and adds up with the children. Everybody prints one line."""

import sys

from mpi4py import MPI

CHILDREN = 3

parent = MPI.Comm.Get_parent()
world = MPI.COMM_WORLD
child = parent != MPI.COMM_NULL
other = parent if child else world.Spawn(sys.executable, [__file__, "an argument"], maxprocs=CHILDREN)
merged = other.Merge(high=child)
total = merged.allreduce(merged.rank + 1)
words = "|".join(sys.argv[1:])
who = "child" if child else "parent"
line = f'{who} rank={world.rank} size={world.size} sum={total} words="{words}"'
# In one piece: lines of several ranks must not mix.
sys.stdout.write(line + "\n")
sys.stdout.flush()
merged.Free()
other.Disconnect()
