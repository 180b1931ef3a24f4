/* Collectives of small messages, one after the other: with more ranks than cores the time is that of the waits. */
#include <mpi.h>

enum { ROUNDS = 200, COUNT = 64 };

int main(int argc, char **argv)
{
    double own[COUNT] = {0}, sum[COUNT];

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Bcast(own, COUNT, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        MPI_Allreduce(own, sum, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return MPI_Finalize() != MPI_SUCCESS;
}
