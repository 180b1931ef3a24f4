/*
 * mpi_steady
 *
 * The MPI twin of pmi_steady: a reduction in each round, in place of barriers and gets. Ranks that wait leave the
 * processor to others. Prints for each round
 *     mpi_steady rank=R round=N
 */
#define _GNU_SOURCE
#include "steady.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    int rank, size;

    alarm(LAST_RESORT_SECONDS);
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "mpi_steady: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 1, last = 0; !last; round++) {
        int mine[2] = {rank + round, rank == 0 && input_ended()}, sums[2], done = 0;
        MPI_Request request;
        MPI_Iallreduce(mine, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            usleep(1000);
        if (sums[0] != size * round + size * (size - 1) / 2)
            fail(1, "mpi_steady rank=%d: the sum of round %d is %d", rank, round, sums[0]);
        last = sums[1];
        report("mpi_steady rank=%d round=%d", rank, round);
    }
    MPI_Finalize();
    return 0;
}
