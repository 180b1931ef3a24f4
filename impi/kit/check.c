/* The program that `wireup impi check-client` runs in the processes of the client under test; it plays the others.
   Any MPI-1 and C of 1989.

   check [NO-SSEND]: leaves synchronous sends out. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the same in both byte orders, so a client that does not send external32 can go on. */
#define SAME(value) ((value) * 0x01000001)

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv)
{
    static const int lengths[] = {0, 1, 1000, 65536, 65537, 200000, 1 << 20};
    int rank, size, to, from, value, sum, i;
    char *data = malloc(1 << 20), *got = malloc(1 << 20);
    MPI_Status status;
    MPI_Request request;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* Half the world away. */
    to = (rank + size / 2) % size;
    from = (rank + size - size / 2) % size;

    /* An integer whose bytes show their order. What arrives is not looked at: it may have another's order. */
    value = 0x11223344;
    MPI_Send(&value, 1, MPI_INT, to, 11, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_INT, from, 11, MPI_COMM_WORLD, &status);

    /* Messages of no byte, short ones, and long ones. */
    for (i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        memset(data, rank + i, lengths[i]);
        MPI_Isend(data, lengths[i], MPI_BYTE, to, 12, MPI_COMM_WORLD, &request);
        MPI_Recv(got, 1 << 20, MPI_BYTE, from, 12, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &value);
        check(value == lengths[i] && (value == 0 || (got[0] == (char)(from + i) && got[value - 1] == got[0])), "lengths");
        MPI_Wait(&request, &status);
    }

    /* More than fit into the window. */
    for (i = 0; i < 45; i++) {
        value = SAME(i);
        MPI_Send(&value, 1, MPI_INT, to, 13, MPI_COMM_WORLD);
    }
    for (i = 0; i < 45; i++) {
        MPI_Recv(&value, 1, MPI_INT, from, 13, MPI_COMM_WORLD, &status);
        check(value == SAME(i), "order");
    }

    /* The tag reads the same in both byte orders, too: by its source LAM/MPI looks for the sender with the tag as it was on
       the wire. With MPI_Irecv and MPI_Ssend its processes did not end. */
    if (argc < 2 || strcmp(argv[1], "NO-SSEND") != 0) {
        MPI_Issend(data, 1, MPI_BYTE, to, 0, MPI_COMM_WORLD, &request);
        MPI_Recv(got, 1, MPI_BYTE, from, 0, MPI_COMM_WORLD, &status);
        MPI_Wait(&request, &status);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    for (i = 0; i < size; i += size - 1) {
        value = SAME(rank + 1);
        MPI_Bcast(&value, 1, MPI_INT, i, MPI_COMM_WORLD);
        check(value == SAME(i + 1), "bcast");
    }
    value = SAME(1);
    MPI_Reduce(&value, &sum, 1, MPI_INT, MPI_SUM, size - 1, MPI_COMM_WORLD);
    check(rank != size - 1 || sum == SAME(size), "reduce");
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check(sum == SAME(size), "allreduce");
    MPI_Finalize();
    printf("process %d of %d has passed\n", rank, size);
    return 0;
}
