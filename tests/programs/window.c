/*
 * One-sided communication between all ranks: fences with puts and gets, locks, and additions that
 * meet at rank 0. Checks every value.
 *     window rank=R size=N sum=S
 */
#include "common.h"
#include <mpi.h>

enum { ROUNDS = 20 };

/* Rank 0's first element counts; the others hold what neighbours put there. */
enum { COUNTER, FROM_LEFT, ELEMENTS };

static long *memory;
static MPI_Win window;
static int rank, size;

static void fenced(int round)
{
    long mine = 1000L * round + rank, got = -1;
    int left = (rank + size - 1) % size, right = (rank + 1) % size;

    MPI_Win_fence(0, window);
    MPI_Put(&mine, 1, MPI_LONG, right, FROM_LEFT, 1, MPI_LONG, window);
    MPI_Win_fence(0, window);
    if (memory[FROM_LEFT] != 1000L * round + left)
        fail(1, "window rank=%d round=%d: %ld put", rank, round, memory[FROM_LEFT]);
    MPI_Win_fence(0, window);
    MPI_Get(&got, 1, MPI_LONG, left, FROM_LEFT, 1, MPI_LONG, window);
    MPI_Win_fence(0, window);
    if (got != 1000L * round + (left + size - 1) % size)
        fail(1, "window rank=%d round=%d: got %ld", rank, round, got);
}

static void locked(void)
{
    long one = 1;

    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Accumulate(&one, 1, MPI_LONG, 0, COUNTER, 1, MPI_LONG, MPI_SUM, window);
    MPI_Win_unlock(0, window);
}

int main(int argc, char **argv)
{
    long sum = 0;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "window: MPI_Init failed");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Win_allocate(ELEMENTS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memory[COUNTER] = 0;
    for (int round = 0; round < ROUNDS; round++)
        fenced(round);
    for (int round = 0; round < ROUNDS; round++)
        locked();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&sum, 1, MPI_LONG, 0, COUNTER, 1, MPI_LONG, window);
    MPI_Win_unlock(0, window);
    if (sum != (long)ROUNDS * size)
        fail(1, "window rank=%d: the sum is %ld", rank, sum);
    report("window rank=%d size=%d sum=%ld", rank, size, sum);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
