/*
 * The other program of a job with `allreduce`: takes part in its sums in another way, in place, and says
 * which program of the job it is.
 *     partner rank=R size=N app=A sum=S
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    enum { LONGEST = 65536 };
    static long sums[LONGEST];
    int rank, size, known = 0, *app = NULL;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "partner: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int length = 1; length <= LONGEST; length *= 16) {
        for (int i = 0; i < length; i++)
            sums[i] = rank + 1L + i;
        MPI_Allreduce(MPI_IN_PLACE, sums, length, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &known);
    if (!known)
        fail(1, "partner rank=%d: no MPI_APPNUM", rank);
    report("partner rank=%d size=%d app=%d sum=%ld", rank, size, *app, sums[0]);
    MPI_Finalize();
    return 0;
}
