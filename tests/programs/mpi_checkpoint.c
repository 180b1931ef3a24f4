/*
 * mpi_checkpoint STARTED END
 *
 * A reduction in each round, until the file END exists. Rank 0 creates the file STARTED after the first rounds. Ranks that wait
 * leave the processor to others. Prints at the end
 *     mpi_checkpoint rank=R size=N
 */
#include "common.h"
#include <fcntl.h>
#include <mpi.h>

enum { FIRST_ROUNDS = 3, ROUND_US = 20000 };

int main(int argc, char **argv)
{
    int rank, size;

    alarm(LAST_RESORT_SECONDS);
    if (argc != 3 || MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "mpi_checkpoint: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 1, last = 0; !last; round++) {
        int mine[2] = {rank + round, rank == 0 && access(argv[2], F_OK) == 0}, sums[2], done = 0;
        MPI_Request request;
        MPI_Iallreduce(mine, sums, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            usleep(1000);
        if (sums[0] != size * round + size * (size - 1) / 2)
            fail(1, "mpi_checkpoint rank=%d: the sum of round %d is %d", rank, round, sums[0]);
        last = sums[1];
        if (rank == 0 && round == FIRST_ROUNDS)
            close(open(argv[1], O_CREAT | O_WRONLY, 0666));
        usleep(ROUND_US);
    }
    MPI_Finalize();
    report("mpi_checkpoint rank=%d size=%d", rank, size);
    return 0;
}
