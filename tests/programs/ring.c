/*
 * Passes messages of 1 MiB around the ring until each has come home, checking every byte.
 *     ring rank=R size=N bytes=B
 */
#include "common.h"
#include <mpi.h>

enum { LENGTH = 1 << 20 };

static unsigned char byte_of(int origin, int index)
{
    return (unsigned char)((origin + 1) * 131 + index * 7 + (index >> 8) * 13);
}

int main(int argc, char **argv)
{
    int rank, size;
    long moved = 0;
    unsigned char *out = malloc(LENGTH), *in = malloc(LENGTH);

    if (out == NULL || in == NULL)
        fail(1, "ring: out of memory");
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "ring: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    for (int i = 0; i < LENGTH; i++)
        out[i] = byte_of(rank, i);
    for (int hop = 1; hop <= size; hop++) {
        int origin = (rank + size - hop % size) % size;
        memset(in, 0xa5, LENGTH);
        MPI_Sendrecv(out, LENGTH, MPI_BYTE, right, hop, in, LENGTH, MPI_BYTE, left, hop,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < LENGTH; i++)
            if (in[i] != byte_of(origin, i))
                fail(1, "ring rank=%d: hop %d: byte %d of rank %d's message differs", rank, hop, i,
                     origin);
        unsigned char *swap = out;
        out = in;
        in = swap;
        moved += LENGTH;
    }
    report("ring rank=%d size=%d bytes=%ld", rank, size, moved);
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
