/*
 * split_parts
 *
 * Splits MPI_COMM_WORLD by the parts of the host that ranks share, as far as its Open MPI knows them. Prints
 *     split_parts rank=R hwthread=N core=N l3=N numa=N package=N node=N
 * with the number of ranks in each; an MPI other than Open MPI knows only nodes.
 */
#include "common.h"
#include <mpi.h>

static int shared(int type)
{
    MPI_Comm part;
    int size = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, type, 0, MPI_INFO_NULL, &part);
    if (part != MPI_COMM_NULL) {
        MPI_Comm_size(part, &size);
        MPI_Comm_free(&part);
    }
    return size;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#ifdef OPEN_MPI
    const int hwthread = shared(OMPI_COMM_TYPE_HWTHREAD), core = shared(OMPI_COMM_TYPE_CORE),
              l3 = shared(OMPI_COMM_TYPE_L3CACHE), numa = shared(OMPI_COMM_TYPE_NUMA),
              package = shared(OMPI_COMM_TYPE_SOCKET);
    report("split_parts rank=%d hwthread=%d core=%d l3=%d numa=%d package=%d node=%d", rank, hwthread, core, l3, numa,
           package, shared(MPI_COMM_TYPE_SHARED));
#else
    report("split_parts rank=%d node=%d", rank, shared(MPI_COMM_TYPE_SHARED));
#endif
    MPI_Finalize();
    return 0;
}
