/*
 * impi_world [NO-REDUCE]: forms one world with the processes of other launches, over the libwireup_impi that
 * WIREUP_IMPI_LIBRARY names, and uses its own MPI inside: the same steps as impi/tests/lam/ring.c, which LAM/MPI's
 * processes do.
 *     impi_world rank=R size=N inside=I sum=S color=C host=H
 * R is the rank in the world of N, I the sum of such ranks in the own MPI's world, S the sum of rank + 1 over all (-1
 * with NO-REDUCE), C and H what the environment says of client and host. With IMPI_WORLD_AWAIT, each process says
 *     impi_world open
 * and the first goes on when the file of that name is there.
 */
#include "../../impi/capi/wireup-impi.h"
#include "common.h"
#include <dlfcn.h>
#include <mpi.h>

enum { LENGTH = 1 << 20 };

#define FUNCTIONS(each)                                                                            \
    each(open) each(close) each(error) each(rank) each(size) each(send) each(recv) each(barrier)   \
        each(bcast) each(reduce) each(allreduce)
#define DECLARE(name) static __typeof__(wireup_impi_##name) *impi_##name;
FUNCTIONS(DECLARE)

static wireup_impi *world;

static void load(void)
{
    const char *path = getenv("WIREUP_IMPI_LIBRARY");
    void *library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail(2, "impi_world: no library: %s", path == NULL ? "WIREUP_IMPI_LIBRARY is not set" : dlerror());
#define LOAD(name) impi_##name = (__typeof__(impi_##name))dlsym(library, "wireup_impi_" #name);
    FUNCTIONS(LOAD)
#define CHECK(name) && impi_##name != NULL
    if (!(1 FUNCTIONS(CHECK)))
        fail(2, "impi_world: %s lacks a function", path);
}

static void must(int result, const char *what)
{
    if (result != 0)
        fail(1, "impi_world: %s: %s", what, impi_error());
}

static void hold(int holds, const char *what)
{
    if (!holds)
        fail(1, "impi_world rank=%d: %s is wrong", impi_rank(world), what);
}

static void send_int(int value, int to)
{
    must(impi_send(world, &value, 1, WIREUP_IMPI_INT32, to, 5), "send");
}

static int receive_int(int from)
{
    int value = -1;
    must(impi_recv(world, &value, 1, WIREUP_IMPI_INT32, from, 5, NULL), "recv");
    return value;
}

/* 1 MiB to the process half the world away, and from it. */
static void exchange(int rank, int size)
{
    int other = (rank + size / 2) % size, first = rank < size / 2;
    char *out = malloc(LENGTH), *in = malloc(LENGTH);
    if (out == NULL || in == NULL)
        fail(1, "impi_world: out of memory");
    memset(out, rank, LENGTH);
    if (first)
        must(impi_send(world, out, LENGTH, WIREUP_IMPI_BYTE, other, 6), "send of 1 MiB");
    must(impi_recv(world, in, LENGTH, WIREUP_IMPI_BYTE, other, first ? 7 : 6, NULL), "recv of 1 MiB");
    if (!first)
        must(impi_send(world, out, LENGTH, WIREUP_IMPI_BYTE, other, 7), "send of 1 MiB");
    memset(out, other, LENGTH);
    hold(memcmp(in, out, LENGTH) == 0, "1 MiB");
    free(in);
    free(out);
}

static int number(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? -1 : atoi(text);
}

int main(int argc, char **argv)
{
    int inside = 0, sum = -1;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        fail(1, "impi_world: MPI_Init failed");
    load();
    world = impi_open();
    if (world == NULL)
        fail(1, "impi_world: %s", impi_error());
    int rank = impi_rank(world), size = impi_size(world);
    hold(number("IMPI_WORLD_RANK") == rank && number("IMPI_WORLD_SIZE") == size, "environment");
    MPI_Allreduce(&rank, &inside, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);

    const char *file = getenv("IMPI_WORLD_AWAIT");
    if (file != NULL)
        report("impi_world open");
    while (file != NULL && rank == 0 && access(file, F_OK) != 0)
        usleep(10000);

    /* Around the ring; every process adds 1. */
    if (rank == 0)
        send_int(1, 1);
    int value = receive_int((rank + size - 1) % size);
    hold(value == (rank == 0 ? size : rank), "ring");
    if (rank != 0)
        send_int(value + 1, (rank + 1) % size);
    exchange(rank, size);

    must(impi_barrier(world), "barrier");
    value = rank;
    must(impi_bcast(world, &value, 1, WIREUP_IMPI_INT32, size - 1), "bcast");
    hold(value == size - 1, "bcast");
    if (argc < 2) {
        value = rank + 1;
        must(impi_reduce(world, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM, size - 1), "reduce");
        hold(rank != size - 1 || value == size * (size + 1) / 2, "reduce");
        sum = rank + 1;
        must(impi_allreduce(world, &sum, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM), "allreduce");
    }
    must(impi_close(world), "close");
    report("impi_world rank=%d size=%d inside=%d sum=%d color=%d host=%d", rank, size, inside, sum,
           number("IMPI_CLIENT_COLOR"), number("IMPI_HOST_COLOR"));
    MPI_Finalize();
    return 0;
}
