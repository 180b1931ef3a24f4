"""Starts engines of ipyparallel with the launcher that the arguments name, and lets them meet in MPI."""

import sys

import ipyparallel
from ipyparallel.cluster.launcher import MPIEngineSetLauncher


class Launcher(MPIEngineSetLauncher):
    mpi_cmd = sys.argv[1:]


def share():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.size, world.allreduce(world.rank + 1)


cluster = ipyparallel.Cluster(n=2, engine_launcher_class=Launcher, controller_ip="127.0.0.1")
with cluster as client:
    shares = client[:].apply_sync(share)
print("result", sorted(shares), flush=True)
