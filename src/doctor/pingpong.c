/* Two ranks send messages to and fro; rank 0 prints half of the time of a small one and the rate of large ones. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN = 1, OVER = 2, LARGE = 1 << 20 };

/* Seconds that a message of this size takes one way, over at most that many rounds in that time. */
static double one_way(int rank, char *buffer, int size, int rounds, double seconds)
{
    int done = 0;
    double begun = MPI_Wtime();
    if (rank == 0) {
        while (done < rounds && (done == 0 || MPI_Wtime() - begun < seconds)) {
            MPI_Send(buffer, size, MPI_CHAR, 1, AGAIN, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_CHAR, 1, AGAIN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            done++;
        }
        double took = MPI_Wtime() - begun;
        MPI_Send(buffer, 0, MPI_CHAR, 1, OVER, MPI_COMM_WORLD);
        return took / done / 2;
    }
    for (;;) {
        MPI_Status status;
        MPI_Recv(buffer, size, MPI_CHAR, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        if (status.MPI_TAG == OVER)
            return 0;
        MPI_Send(buffer, size, MPI_CHAR, 0, AGAIN, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    int rank, size, length;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) {
        fprintf(stderr, "%d ranks instead of 2: each runs alone\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    char *buffer = calloc(LARGE, 1);
    if (!buffer)
        MPI_Abort(MPI_COMM_WORLD, 1);
    one_way(rank, buffer, 8, 100, 0.2);
    double small = one_way(rank, buffer, 8, 1000, 0.5);
    one_way(rank, buffer, LARGE, 2, 0.2);
    double large = one_way(rank, buffer, LARGE, 100, 0.5);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = '\0';
    if (rank == 0)
        printf("pingpong latency_us=%.2f bandwidth_mb_s=%.0f mpi=%s\n", small * 1e6, LARGE / large / 1e6, version);
    free(buffer);
    MPI_Finalize();
    return 0;
}
