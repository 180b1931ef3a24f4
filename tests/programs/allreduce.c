/*
 * Sums over all ranks, several times and sizes, and checks every element.
 *     allreduce rank=R size=N sum=S
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    enum { LONGEST = 65536 };
    static long mine[LONGEST], total[LONGEST];
    int rank, size;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "allreduce: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int length = 1; length <= LONGEST; length *= 16) {
        for (int i = 0; i < length; i++)
            mine[i] = rank + 1L + i;
        MPI_Allreduce(mine, total, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < length; i++)
            if (total[i] != size * (size + 1L) / 2 + (long)size * i)
                fail(1, "allreduce rank=%d: element %d of %d is %ld", rank, i, length, total[i]);
    }
    report("allreduce rank=%d size=%d sum=%ld", rank, size, total[0]);
    MPI_Finalize();
    return 0;
}
