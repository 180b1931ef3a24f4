/*
 * Splits the world by node, and lets the ranks of a node read each other's memory.
 *     split_shared rank=R size=N local_rank=L local_size=M leader=W
 * where W is the world rank of the node's first rank. With the argument `hold` it waits then,
 * memory still shared, until it is killed.
 */
#include "common.h"
#include <mpi.h>

enum { SLOTS = 1024 };

int main(int argc, char **argv)
{
    int rank, size, local_rank, local_size, leader;
    int *mine;
    MPI_Comm node;
    MPI_Win window;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "split_shared: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_size(node, &local_size);
    leader = rank;
    MPI_Bcast(&leader, 1, MPI_INT, 0, node);

    MPI_Win_allocate_shared(SLOTS * sizeof *mine, sizeof *mine, MPI_INFO_NULL, node, &mine, &window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < SLOTS; i++)
        mine[i] = rank * SLOTS + i;
    MPI_Win_fence(0, window);
    for (int peer = 0; peer < local_size; peer++) {
        MPI_Aint bytes;
        int unit, *theirs, world;
        MPI_Group here, everyone;
        MPI_Comm_group(node, &here);
        MPI_Comm_group(MPI_COMM_WORLD, &everyone);
        MPI_Group_translate_ranks(here, 1, &peer, everyone, &world);
        MPI_Group_free(&here);
        MPI_Group_free(&everyone);
        MPI_Win_shared_query(window, peer, &bytes, &unit, &theirs);
        for (int i = 0; i < SLOTS; i++)
            if (theirs[i] != world * SLOTS + i)
                fail(1, "split_shared rank=%d: slot %d of rank %d holds %d", rank, i, world, theirs[i]);
    }
    MPI_Win_fence(0, window);
    report("split_shared rank=%d size=%d local_rank=%d local_size=%d leader=%d", rank, size,
           local_rank, local_size, leader);
    if (argc > 1 && strcmp(argv[1], "hold") == 0)
        wait_for_the_end();
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}
