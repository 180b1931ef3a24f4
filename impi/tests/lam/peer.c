/* What ring.c does, by libwireup_impi.

   peer PLAIN|SWAPPED: as there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wireup-impi.h"

enum { MIB = 1 << 20 };

static wireup_impi *world;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, wireup_impi_error());
        exit(1);
    }
}

static void send(const void *data, size_t count, int type, int to, int tag)
{
    check(wireup_impi_send(world, data, count, type, to, tag) == 0, "send");
}

static void receive(void *data, size_t count, int type, int from, int tag)
{
    struct wireup_impi_status status;

    check(wireup_impi_recv(world, data, count, type, from, tag, &status) == 0, "receive");
    check(status.source == from && status.tag == tag, "status");
}

int main(int argc, char **argv)
{
    const int reduces = argc > 1 && strcmp(argv[1], "SWAPPED") != 0;
    char *data = malloc(MIB), *got = malloc(MIB);
    int32_t value = 1;

    world = wireup_impi_open();
    check(world != NULL, "open");
    const int rank = wireup_impi_rank(world), size = wireup_impi_size(world), other = (rank + size / 2) % size;
    if (rank == 0)
        send(&value, 1, WIREUP_IMPI_INT32, 1, 5);
    receive(&value, 1, WIREUP_IMPI_INT32, (rank + size - 1) % size, 5);
    check(value == (rank == 0 ? size : rank), "ring");
    value++;
    if (rank != 0)
        send(&value, 1, WIREUP_IMPI_INT32, (rank + 1) % size, 5);

    memset(data, rank, MIB);
    if (rank < size / 2) {
        send(data, MIB, WIREUP_IMPI_BYTE, other, 6);
        receive(got, MIB, WIREUP_IMPI_BYTE, other, 7);
    } else {
        receive(got, MIB, WIREUP_IMPI_BYTE, other, 6);
        send(data, MIB, WIREUP_IMPI_BYTE, other, 7);
    }
    check(got[0] == other && got[MIB - 1] == other, "1 MiB");
    free(data);
    free(got);

    check(wireup_impi_barrier(world) == 0, "barrier");
    value = rank;
    check(wireup_impi_bcast(world, &value, 1, WIREUP_IMPI_INT32, size - 1) == 0 && value == size - 1, "bcast");
    if (reduces) {
        value = rank + 1;
        check(wireup_impi_reduce(world, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM, size - 1) == 0, "reduce");
        check(rank != size - 1 || value == size * (size + 1) / 2, "sum at the root");
        value = rank + 1;
        check(wireup_impi_allreduce(world, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM) == 0, "allreduce");
        check(value == size * (size + 1) / 2, "sum");
    }
    check(wireup_impi_close(world) == 0, "close");
    return 0;
}
