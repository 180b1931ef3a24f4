/*
 * abort RANK CODE: that rank calls MPI_Abort with that code while the others sit in a barrier.
 *     abort rank=R size=N
 * is printed by every rank before. A rank that comes past the barrier exits with 1.
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    int rank, size;

    if (argc != 3)
        fail(2, "usage: abort RANK CODE");
    int who = (int)number_argument(argv[1]), code = (int)number_argument(argv[2]);
    alarm(LAST_RESORT_SECONDS);
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "abort: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    report("abort rank=%d size=%d", rank, size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == who) {
        MPI_Abort(MPI_COMM_WORLD, code);
        /* MPICH returns when its launcher has not ended it yet. */
        wait_for_the_end();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    fail(1, "abort rank=%d: alive after rank %d aborted", rank, who);
}
