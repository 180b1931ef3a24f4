/* The IMPI job of the process: MPI_Init joins it, MPI_Finalize leaves it; errors. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "preload.h"

wireup_impi *impi_world;
MPI_Comm self_comm;

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void lock(void)
{
    pthread_mutex_lock(&mutex);
}

void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void fail_job(const char *function)
{
    fprintf(stderr, "wireup: impi: %s: %s\n", function, wireup_impi_error());
    PMPI(Abort)(MPI_COMM_WORLD, 1);
    _Exit(1);
}

void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes == 0 ? 1 : bytes);

    if (memory == NULL) {
        fprintf(stderr, "wireup: impi: no memory for %zu bytes\n", bytes);
        PMPI(Abort)(MPI_COMM_WORLD, 1);
        _Exit(1);
    }
    return memory;
}

int *copy_numbers(const int *numbers, int count)
{
    int *copy = allocate(sizeof(int) * (size_t)count);

    for (int i = 0; i < count; i++) {
        copy[i] = numbers[i];
    }
    return copy;
}

int raise_error(MPI_Comm local, int code)
{
    PMPI(Comm_call_errhandler)(local, code);
    return code;
}

int refuse(MPI_Comm local, const char *function)
{
    fprintf(stderr, "wireup: impi: %s does not support a communicator of several clients\n", function);
    return raise_error(local, MPI_ERR_UNSUPPORTED_OPERATION);
}

/* Joins the IMPI job, if the launch is in one. Spawned processes have a world of their own. */
static void join(void)
{
    int rank, size;

    if (getenv("WIREUP_IMPI_AGENT") == NULL || getenv("WIREUP_SPAWNED_JOB") != NULL) {
        return;
    }
    impi_world = wireup_impi_open();
    if (impi_world == NULL) {
        fail_job("MPI_Init");
    }
    PMPI(Comm_dup)(MPI_COMM_SELF, &self_comm);
    PMPI(Comm_rank)(MPI_COMM_WORLD, &rank);
    PMPI(Comm_size)(MPI_COMM_WORLD, &size);
    const int world_size = wireup_impi_size(impi_world);
    const int first = wireup_impi_rank(impi_world) - rank;
    const int client = wireup_impi_client_of(impi_world, first + rank);
    int members = 0;
    int *world_ranks = allocate(sizeof(int) * (size_t)world_size);
    for (int other = 0; other < world_size; other++) {
        world_ranks[other] = other;
        members += wireup_impi_client_of(impi_world, other) == client;
    }
    if (first < 0 || members != size || wireup_impi_client_of(impi_world, first) != client) {
        fprintf(stderr, "wireup: impi: MPI_COMM_WORLD of this client has %d processes, and the IMPI job %d; start one "
                        "program for each client\n", size, members);
        PMPI(Abort)(MPI_COMM_WORLD, 1);
    }
    add_impi_comm(MPI_COMM_WORLD, world_size, world_ranks, 0);
}

int MPI_Init(int *argc, char ***argv)
{
    const int code = PMPI(Init)(argc, argv);

    if (code == MPI_SUCCESS) {
        join();
    }
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const int code = PMPI(Init_thread)(argc, argv, required, provided);

    if (code == MPI_SUCCESS) {
        join();
    }
    return code;
}

int MPI_Abort(MPI_Comm comm, int code)
{
    char line[64];

    if (impi_world != NULL) {
        snprintf(line, sizeof(line), "called MPI_Abort with code %d", code);
        /* The program ends in any case. */
        wireup_impi_print(impi_world, line);
    }
    return PMPI(Abort)(comm, code);
}

int MPI_Finalize(void)
{
    struct impi_comm *impi_comm = impi_world == NULL ? NULL : find_impi_comm(MPI_COMM_WORLD);

    if (impi_comm != NULL) {
        /* The launch's MPI may have to progress for other processes until all have come. */
        impi_comm_barrier(impi_comm);
        for (unsigned round = 0; active_count > 0; round++) {
            lock();
            advance_operations();
            unlock();
            pause_progress(round);
        }
    }
    if (impi_world != NULL) {
        wireup_impi *world = impi_world;
        if (wireup_impi_leave(world) != 0) {
            fail_job("MPI_Finalize");
        }
        impi_world = NULL;
        PMPI(Comm_free)(&self_comm);
    }
    return PMPI(Finalize)();
}

