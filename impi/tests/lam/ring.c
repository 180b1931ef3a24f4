/* What a job of LAM/MPI does with the other clients; impi/tests/lam/main.rs has their half. In C of 1989.

   ring [SWAPPED]: turns the bytes of integers around, as external32 wants them and LAM does not do. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int swapped;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int swap(int value)
{
    unsigned v = value;
    return swapped ? (int)(v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24) : value;
}

int main(int argc, char **argv)
{
    int rank, size, value, sum, other, length = 1 << 20;
    char *data = malloc(length);
    MPI_Status status;

    MPI_Init(&argc, &argv);
    swapped = argc > 1 && strcmp(argv[1], "SWAPPED") == 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    /* Around the ring; every process adds 1. */
    value = swap(1);
    if (rank == 0)
        MPI_Send(&value, 1, MPI_INT, 1, 5, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_INT, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &status);
    check(swap(value) == (rank == 0 ? size : rank), "ring");
    value = swap(swap(value) + 1);
    if (rank != 0)
        MPI_Send(&value, 1, MPI_INT, (rank + 1) % size, 5, MPI_COMM_WORLD);

    /* 1 MiB to the process half the world away, and back. */
    other = (rank + size / 2) % size;
    memset(data, rank, length);
    if (rank < size / 2) {
        MPI_Send(data, length, MPI_BYTE, other, 6, MPI_COMM_WORLD);
        MPI_Recv(data, length, MPI_BYTE, other, 7, MPI_COMM_WORLD, &status);
    } else {
        char *got = malloc(length);
        MPI_Recv(got, length, MPI_BYTE, other, 6, MPI_COMM_WORLD, &status);
        MPI_Send(data, length, MPI_BYTE, other, 7, MPI_COMM_WORLD);
        memcpy(data, got, length);
    }
    check(data[0] == other && data[length - 1] == other, "1 MiB");

    MPI_Barrier(MPI_COMM_WORLD);
    value = swap(rank);
    MPI_Bcast(&value, 1, MPI_INT, size - 1, MPI_COMM_WORLD);
    check(swap(value) == size - 1, "bcast");
    if (!swapped) {
        value = rank + 1;
        MPI_Reduce(&value, &sum, 1, MPI_INT, MPI_SUM, size - 1, MPI_COMM_WORLD);
        check(rank != size - 1 || sum == size * (size + 1) / 2, "reduce");
        MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        check(sum == size * (size + 1) / 2, "allreduce");
    }
    MPI_Finalize();
    printf("%d of %d is done\n", rank, size);
    return 0;
}
