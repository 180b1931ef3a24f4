"""Survives the loss of a rank with Open MPI 5 and mpi4py.

    OMPI_MCA_mpi_ft_enable=1 wireup run --on-failure continue -n 4 python3 survive.py 2

Rank 2 kills itself in the middle of the work. The others hear of it as an error of a communication, agree on
who is left (revoke, shrink), and go on with a smaller communicator.
"""

import os
import signal
import sys

from mpi4py import MPI

ROUNDS = 20


def survive(comm):
    """The communicator of those that are left."""
    comm.Revoke()
    rest = comm.Shrink()
    rest.Set_errhandler(MPI.ERRORS_RETURN)
    return rest


def main():
    victim = int(sys.argv[1])
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    rank = comm.Get_rank()
    done = 0
    while done < ROUNDS:
        if rank == victim and done == ROUNDS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.allreduce(rank)
            done += 1
        except MPI.Exception:
            comm = survive(comm)
            # Some had finished the round that failed for others: all go on from the earliest.
            done = comm.allreduce(done, op=MPI.MIN)
    print(f"survive rank={rank} size={comm.Get_size()}", flush=True)


main()
