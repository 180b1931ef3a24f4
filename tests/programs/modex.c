/*
 * Every rank exchanges a word with every other, after a barrier: a library that connects lazily
 * asks for its peers' addresses only now.
 *     modex rank=R size=N peers=P
 */
#include "common.h"
#include <mpi.h>

int main(int argc, char **argv)
{
    int rank, size, peers = 0;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "modex: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int distance = 1; distance < size; distance++) {
        int to = (rank + distance) % size, from = (rank + size - distance) % size;
        int out = rank * size + to, in = -1;
        MPI_Sendrecv(&out, 1, MPI_INT, to, distance, &in, 1, MPI_INT, from, distance, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        if (in != from * size + rank)
            fail(1, "modex rank=%d: got %d from rank %d", rank, in, from);
        peers++;
    }
    report("modex rank=%d size=%d peers=%d", rank, size, peers);
    MPI_Finalize();
    return 0;
}
