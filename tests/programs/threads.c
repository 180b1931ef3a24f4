/*
 * Several threads of each rank exchange messages with the same thread of the neighbours at once.
 *     threads rank=R size=N threads=T messages=M
 */
#include "common.h"
#include <mpi.h>
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 50, WORDS = 512 };

static int rank, size;

/* Returns NULL, or a text that says what was wrong. */
static void *exchange(void *argument)
{
    int thread = (int)(long)argument, out[WORDS], in[WORDS];
    int right = (rank + 1) % size, left = (rank + size - 1) % size;

    for (int round = 0; round < ROUNDS; round++) {
        MPI_Request receive, send;
        for (int i = 0; i < WORDS; i++)
            out[i] = rank * 1000003 + thread * 10007 + round * 101 + i;
        MPI_Irecv(in, WORDS, MPI_INT, left, thread, MPI_COMM_WORLD, &receive);
        MPI_Isend(out, WORDS, MPI_INT, right, thread, MPI_COMM_WORLD, &send);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        for (int i = 0; i < WORDS; i++)
            if (in[i] != left * 1000003 + thread * 10007 + round * 101 + i)
                return "a message held the wrong words";
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int provided;

    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        fail(1, "threads: MPI_Init_thread failed");
    if (provided < MPI_THREAD_MULTIPLE)
        fail(1, "threads: MPI_THREAD_MULTIPLE is not provided (level %d)", provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, exchange, (void *)i) != 0)
            fail(1, "threads rank=%d: cannot start a thread", rank);
    for (int i = 0; i < THREADS; i++) {
        void *problem;
        pthread_join(threads[i], &problem);
        if (problem != NULL)
            fail(1, "threads rank=%d thread %d: %s", rank, i, (const char *)problem);
    }
    report("threads rank=%d size=%d threads=%d messages=%d", rank, size, THREADS, THREADS * ROUNDS);
    MPI_Finalize();
    return 0;
}
