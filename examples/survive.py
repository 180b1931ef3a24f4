"""Survives the loss of ranks with Open MPI 5 and mpi4py.

    OMPI_MCA_mpi_ft_enable=1 wireup run --on-failure continue -n 4 python3 survive.py 2
    OMPI_MCA_mpi_ft_enable=1 wireup run --on-failure continue --hosts n1:2,n2:2,n3:2 python3 survive.py

Rank 2 kills itself in the middle of the work; without a number the work goes on until a rank or a host is lost by
another hand. The others get an error of a communication, agree on who is left (revoke, shrink), and go on
with a smaller communicator.
"""

import os
import signal
import sys
from array import array

from mpi4py import MPI

ROUNDS = 20


def reduce(comm, number, op=MPI.SUM):
    """The numbers of all as one. mpi4py's `allreduce` of objects would use a communicator of its own, which Revoke
    does not end: a rank could wait there for one that has left."""
    result = array("q", [0])
    comm.Allreduce(array("q", [number]), result, op=op)
    return result[0]


def survive(comm):
    """The communicator of those that are left."""
    comm.Revoke()
    rest = comm.Shrink()
    rest.Set_errhandler(MPI.ERRORS_RETURN)
    return rest


def main():
    victim = int(sys.argv[1]) if len(sys.argv) > 1 else None
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    rank, size = comm.Get_rank(), comm.Get_size()
    done = 0
    while done < ROUNDS or (victim is None and comm.Get_size() == size):
        if rank == victim and done == ROUNDS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            reduce(comm, rank)
            done += 1
            if victim is None and done == 1:
                print(f"survive rank={rank} works", flush=True)
        except MPI.Exception:
            comm = survive(comm)
            # Some had finished the round that failed for others: all go on from the earliest.
            done = reduce(comm, done, MPI.MIN)
    total = reduce(comm, rank)
    print(f"survive rank={rank} new_size={comm.Get_size()} sum={total}", flush=True)


main()
