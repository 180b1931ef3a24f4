/* Two MPI jobs of different MPIs in one world: each reduces with its own MPI, and then all with each other. impi.py is
   the same in Python; docs/impi.md says how this is compiled.

     export IMPI_AUTH_KEY=5678
     exec {output}< <(wireup impi -server 2); read -r server <&$output
     wireup run --impi $server,client=0 -n 2 ./impi &      compiled with MPICH
     wireup run --impi $server,client=1 -n 2 ./impi        compiled with Open MPI
*/
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wireup-impi.h"

static void ensure(int holds)
{
    if (!holds) {
        fprintf(stderr, "impi: %s\n", wireup_impi_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

int main(int argc, char **argv)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    struct wireup_impi_status status;
    int64_t inside, lowest, next, total, got, *firsts;
    int length;

    MPI_Init(&argc, &argv);
    wireup_impi *world = wireup_impi_open();
    ensure(world != NULL);
    int64_t rank = wireup_impi_rank(world), size = wireup_impi_size(world);
    MPI_Allreduce(&rank, &inside, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&rank, &lowest, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);

    /* Exchange: the first process of each launch with the first of the next. */
    firsts = calloc(size, sizeof *firsts);
    ensure(wireup_impi_allgather(world, &lowest, 1, WIREUP_IMPI_INT64, firsts) == 0);
    next = firsts[0];
    for (int64_t at = size - 1; at >= 0 && firsts[at] > lowest; at--)
        next = firsts[at];
    free(firsts);
    if (rank == lowest) {
        ensure(wireup_impi_send(world, &inside, 1, WIREUP_IMPI_INT64, (int)next, 1) == 0);
        ensure(wireup_impi_recv(world, &got, 1, WIREUP_IMPI_INT64, WIREUP_IMPI_ANY, 1, &status) == 0);
        MPI_Get_library_version(version, &length);
        printf("%s: inside %lld, from process %d: %lld\n", strtok(version, " \t\n"), (long long)inside, status.source,
               (long long)got);
    }

    /* Reduction over all. */
    total = rank;
    ensure(wireup_impi_allreduce(world, &total, 1, WIREUP_IMPI_INT64, WIREUP_IMPI_SUM) == 0);
    if (rank == lowest)
        printf("process %lld of %lld: sum %lld\n", (long long)rank, (long long)size, (long long)total);
    ensure(wireup_impi_close(world) == 0);
    MPI_Finalize();
    return 0;
}
