/*
 * hang_recv RANK
 *
 * Never ends by itself: rank RANK sleeps in elsewhere(), all others are in an MPI_Recv of what it does not send.
 * Each says first
 *     hang_recv rank=R
 */
#include "common.h"
#include <mpi.h>

__attribute__((noinline)) static void elsewhere(void)
{
    for (;;)
        sleep(1000);
}

int main(int argc, char **argv)
{
    int rank, odd, value = 0;

    if (argc != 2)
        fail(2, "usage: hang_recv RANK");
    odd = atoi(argv[1]);
    alarm(LAST_RESORT_SECONDS);
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "hang_recv: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    report("hang_recv rank=%d", rank);
    if (rank == odd)
        elsewhere();
    MPI_Recv(&value, 1, MPI_INT, odd, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return value;
}
