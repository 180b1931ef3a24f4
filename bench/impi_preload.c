/*
 * impi_preload ROUNDS: the cost of the IMPI library for unchanged programs on a communicator inside a client.
 *
 * Ranks 0 and 1 are the client that is measured; the others wait in a barrier of MPI_COMM_WORLD. Blocks of calls of MPI_*, which
 * pass through the library, and of PMPI_*, which do not, alternate, so that whatever disturbs one disturbs the other. Rank 0
 * prints a line for each function and size, with the lower quartiles of the blocks' times for one call in nanoseconds:
 *     FUNCTION BYTES PMPI MPI
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_BYTES = 1 << 20, SMALL_CALLS = 200, MOST_ROUNDS = 10000 };

struct functions {
    int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm);
    int (*receive)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
    int (*allreduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
};

typedef void benchmark(const struct functions *functions, int count, MPI_Comm comm);

static double out[MOST_BYTES / sizeof(double)], in[MOST_BYTES / sizeof(double)];

static void ping_pong(const struct functions *functions, int count, MPI_Comm comm)
{
    int rank;

    PMPI_Comm_rank(comm, &rank);
    if (rank == 0)
        functions->send(out, count, MPI_DOUBLE, 1, 0, comm);
    functions->receive(in, count, MPI_DOUBLE, 1 - rank, 0, comm, MPI_STATUS_IGNORE);
    if (rank == 1)
        functions->send(out, count, MPI_DOUBLE, 0, 0, comm);
}

static void allreduce(const struct functions *functions, int count, MPI_Comm comm)
{
    functions->allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, comm);
}

/* Returns the nanoseconds of one call. */
static double measure(benchmark *call, const struct functions *functions, int count, MPI_Comm comm)
{
    const int calls = count > 1000 ? SMALL_CALLS / 20 : SMALL_CALLS;

    PMPI_Barrier(comm);
    const double start = PMPI_Wtime();
    for (int i = 0; i < calls; i++)
        call(functions, count, comm);
    return (PMPI_Wtime() - start) / calls * 1e9;
}

static int compare(const void *first, const void *second)
{
    const double one = *(const double *)first, other = *(const double *)second;

    return (one > other) - (one < other);
}

static double lower_quartile(double *times, int rounds)
{
    qsort(times, (size_t)rounds, sizeof *times, compare);
    return times[rounds / 4];
}

static void compare_functions(const char *name, benchmark *call, int bytes, int rounds, MPI_Comm comm)
{
    static const struct functions through = {MPI_Send, MPI_Recv, MPI_Allreduce};
    static const struct functions direct = {PMPI_Send, PMPI_Recv, PMPI_Allreduce};
    static double times[2][MOST_ROUNDS];
    const int count = bytes / (int)sizeof(double);
    int rank;

    for (int round = -2; round < rounds; round++) {
        for (int turn = 0; turn < 2; turn++) {
            const int which = (turn + round) & 1;
            const double took = measure(call, which ? &through : &direct, count, comm);
            if (round >= 0)
                times[which][round] = took;
        }
    }
    PMPI_Comm_rank(comm, &rank);
    if (rank == 0) {
        printf("%s %d %.2f %.2f\n", name, bytes, lower_quartile(times[0], rounds), lower_quartile(times[1], rounds));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static const int sizes[] = {8, 1024, 65536, MOST_BYTES};
    const int rounds = argc > 1 ? atoi(argv[1]) : 200;
    int rank;
    MPI_Comm comm;

    if (rounds < 1 || rounds > MOST_ROUNDS || MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &comm);
    for (size_t i = 0; comm != MPI_COMM_NULL && i < sizeof sizes / sizeof *sizes; i++) {
        compare_functions("PingPong", ping_pong, sizes[i], rounds, comm);
        compare_functions("Allreduce", allreduce, sizes[i], rounds, comm);
    }
    if (comm != MPI_COMM_NULL)
        MPI_Comm_free(&comm);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Finalize() != MPI_SUCCESS;
}
