/*
 * Joins the job, says so, and leaves it in order at the end of its standard input:
 *     patient rank=R size=N
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    char ignored[4096];
    int rank, size;

    alarm(LAST_RESORT_SECONDS);
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "patient: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    report("patient rank=%d size=%d", rank, size);
    while (read(STDIN_FILENO, ignored, sizeof ignored) > 0)
        ;
    MPI_Finalize();
    return 0;
}
