/* Collectives of LAM/MPI, one for each argument: NAME:ROOT:COUNT. In C of 1989. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Not commutative: the second operand. */
static void second(void *in, void *out, int *count, MPI_Datatype *type)
{
    (void)in, (void)out, (void)count, (void)type;
}

int main(int argc, char **argv)
{
    int rank, size, at, i, *data, *got;
    MPI_Op in_order;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Op_create(second, 0, &in_order);
    for (at = 1; at < argc; at++) {
        char *root = strchr(argv[at], ':'), *count = strrchr(argv[at], ':');
        const int to = atoi(root + 1), many = atoi(count + 1), length = root - argv[at];

        data = calloc(many + size, sizeof *data);
        got = calloc(many + size, sizeof *got);
        for (i = 0; i < many; i++)
            data[i] = rank;
        if (strncmp(argv[at], "barrier", length) == 0) {
            MPI_Barrier(MPI_COMM_WORLD);
        } else if (strncmp(argv[at], "bcast", length) == 0) {
            MPI_Bcast(data, many, MPI_INT, to, MPI_COMM_WORLD);
            check(data[0] == to && data[many - 1] == to, "bcast");
        } else if (strncmp(argv[at], "reduce", length) == 0) {
            MPI_Reduce(data, got, many, MPI_INT, MPI_SUM, to, MPI_COMM_WORLD);
        } else if (strncmp(argv[at], "ordered", length) == 0) {
            MPI_Reduce(data, got, many, MPI_INT, in_order, to, MPI_COMM_WORLD);
            check(rank != to || got[0] == size - 1, "ordered");
        } else {
            MPI_Allreduce(data, got, many, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        }
        free(data);
        free(got);
    }
    MPI_Finalize();
    printf("%d of %d is done\n", rank, size);
    return 0;
}
