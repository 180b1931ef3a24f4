/* The program that `wireup impi check-client` runs in the processes of the client under test; it plays the others.
   Any MPI-1 and C of 1989.

   check [NO-SSEND] [NO-PROBE] [NO-GATHER]: leaves out synchronous sends; probe and cancel; gather, its kin and scan. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the same in both byte orders, so a client that does not send external32 can go on. */
#define SAME(value) ((value) * 0x01000001)
/* The integers of a process in gather and its kin. */
#define OF(process) SAME((process) % 100 + 1)
/* Their number where it differs between processes; of each third process none. */
#define PART(process, count) ((process) % 3 * (count))

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void fill(int *values, int count, int value)
{
    while (count-- > 0)
        *values++ = value;
}

static void check_all(const int *values, int count, int value, const char *what)
{
    while (count-- > 0)
        check(*values++ == value, what);
}

static void probe(int to, int from)
{
    char data[5] = "five", got[5];
    int value, flag;
    MPI_Status status;
    MPI_Request request;

    MPI_Isend(data, 5, MPI_BYTE, to, 14, MPI_COMM_WORLD, &request);
    MPI_Probe(from, 14, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &value);
    check(value == 5 && status.MPI_SOURCE == from && status.MPI_TAG == 14, "probe");
    MPI_Iprobe(from, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
    check(flag && status.MPI_TAG == 14, "iprobe");
    MPI_Recv(got, 5, MPI_BYTE, from, 14, MPI_COMM_WORLD, &status);
    check(strcmp(got, "five") == 0, "a message after probe");
    MPI_Iprobe(from, 14, MPI_COMM_WORLD, &flag, &status);
    check(!flag, "iprobe without a message");
    MPI_Wait(&request, &status);
}

/* A send may be cancelled or not: the receiver learns which. */
static void cancel(int to, int from)
{
    char data = 0, got = 0;
    int flag;
    MPI_Status status;
    MPI_Request request;

    MPI_Isend(&data, 1, MPI_BYTE, to, 15, MPI_COMM_WORLD, &request);
    /* Otherwise the message could still be in this process, and nothing would be on the wire. */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    data = (char)(flag != 0);
    MPI_Send(&data, 1, MPI_BYTE, to, 16, MPI_COMM_WORLD);
    MPI_Recv(&got, 1, MPI_BYTE, from, 16, MPI_COMM_WORLD, &status);
    MPI_Iprobe(from, 15, MPI_COMM_WORLD, &flag, &status);
    check(!flag == (got == 1), "cancel of a send");
    if (flag)
        MPI_Recv(&got, 1, MPI_BYTE, from, 15, MPI_COMM_WORLD, &status);
    MPI_Irecv(&got, 1, MPI_BYTE, from, 15, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    check(flag, "cancel of a receive");
}

/* Each process has as many integers as its rank plus `first` gives, and its block follows those before it. */
static void make_blocks(int size, int first, int count, int *counts, int *starts)
{
    int i, next = 0;

    for (i = 0; i < size; i++) {
        counts[i] = PART(first + i, count);
        starts[i] = next;
        next += counts[i];
    }
}

/* The forms of gather and its kin with blocks of different lengths. */
static void gatherv_and_kin(int rank, int size)
{
    static const int counts[] = {1, 300};
    int *all = malloc(600 * sizeof(int) * size), *out = malloc(600 * sizeof(int) * size);
    int *each = malloc(sizeof(int) * size), *starts = malloc(sizeof(int) * size);
    int own[600], i, j, n, root;

    for (i = 0; i < 2; i++) {
        n = PART(rank, counts[i]);
        make_blocks(size, 0, counts[i], each, starts);
        for (root = 0; root < size; root += size - 1) {
            fill(own, n, OF(rank));
            MPI_Gatherv(own, n, MPI_INT, all, each, starts, MPI_INT, root, MPI_COMM_WORLD);
            for (j = 0; rank == root && j < size; j++)
                check_all(all + starts[j], each[j], OF(j), "gatherv");
        }
    }
    for (i = 0; i < 2; i++) {
        n = PART(rank, counts[i]);
        make_blocks(size, 0, counts[i], each, starts);
        for (root = 0; root < size; root += size - 1) {
            for (j = 0; j < size; j++)
                fill(out + starts[j], each[j], OF(j));
            MPI_Scatterv(out, each, starts, MPI_INT, own, n, MPI_INT, root, MPI_COMM_WORLD);
            check_all(own, n, OF(rank), "scatterv");
        }
    }
    for (i = 0; i < 2; i++) {
        n = PART(rank, counts[i]);
        make_blocks(size, 0, counts[i], each, starts);
        fill(own, n, OF(rank));
        MPI_Allgatherv(own, n, MPI_INT, all, each, starts, MPI_INT, MPI_COMM_WORLD);
        for (j = 0; j < size; j++)
            check_all(all + starts[j], each[j], OF(j), "allgatherv");
    }
    for (i = 0; i < 2; i++) {
        make_blocks(size, rank, counts[i], each, starts);
        for (j = 0; j < size; j++)
            fill(out + starts[j], each[j], OF(2 * rank + j));
        MPI_Alltoallv(out, each, starts, MPI_INT, all, each, starts, MPI_INT, MPI_COMM_WORLD);
        for (j = 0; j < size; j++)
            check_all(all + starts[j], each[j], OF(2 * j + rank), "alltoallv");
    }
    free(all);
    free(out);
    free(each);
    free(starts);
}

/* Gather and its kin, with one integer of each process, and with more bytes than the crossover point. */
static void gather_and_kin(int rank, int size)
{
    static const int counts[] = {1, 300};
    int *all = malloc(300 * sizeof(int) * size), *out = malloc(300 * sizeof(int) * size);
    int own[300], i, j, n, root;

    for (i = 0; i < 2; i++) {
        n = counts[i];
        for (root = 0; root < size; root += size - 1) {
            fill(own, n, OF(rank));
            MPI_Gather(own, n, MPI_INT, all, n, MPI_INT, root, MPI_COMM_WORLD);
            for (j = 0; rank == root && j < size; j++)
                check_all(all + j * n, n, OF(j), "gather");
        }
    }
    for (i = 0; i < 2; i++) {
        n = counts[i];
        for (root = 0; root < size; root += size - 1) {
            for (j = 0; j < size; j++)
                fill(out + j * n, n, OF(root + j));
            MPI_Scatter(out, n, MPI_INT, own, n, MPI_INT, root, MPI_COMM_WORLD);
            check_all(own, n, OF(root + rank), "scatter");
        }
    }
    for (i = 0; i < 2; i++) {
        n = counts[i];
        fill(own, n, OF(rank));
        MPI_Allgather(own, n, MPI_INT, all, n, MPI_INT, MPI_COMM_WORLD);
        for (j = 0; j < size; j++)
            check_all(all + j * n, n, OF(j), "allgather");
    }
    for (i = 0; i < 2; i++) {
        n = counts[i];
        for (j = 0; j < size; j++)
            fill(out + j * n, n, OF(2 * rank + j));
        MPI_Alltoall(out, n, MPI_INT, all, n, MPI_INT, MPI_COMM_WORLD);
        for (j = 0; j < size; j++)
            check_all(all + j * n, n, OF(2 * j + rank), "alltoall");
    }
    gatherv_and_kin(rank, size);
    for (i = 0; i < 2; i++) {
        n = counts[i];
        fill(own, n, SAME(1));
        MPI_Scan(own, out, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        check_all(out, n, SAME(rank + 1), "scan");
    }
    free(all);
    free(out);
}

int main(int argc, char **argv)
{
    static const int lengths[] = {0, 1, 1000, 65536, 65537, 200000, 1 << 20};
    int rank, size, to, from, value, sum, i, ssend = 1, probes = 1, gathers = 1;
    char *data = malloc(1 << 20), *got = malloc(1 << 20);
    MPI_Status status;
    MPI_Request request;

    MPI_Init(&argc, &argv);
    for (i = 1; i < argc; i++) {
        ssend &= strcmp(argv[i], "NO-SSEND") != 0;
        probes &= strcmp(argv[i], "NO-PROBE") != 0;
        gathers &= strcmp(argv[i], "NO-GATHER") != 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    /* Half the world away. */
    to = (rank + size / 2) % size;
    from = (rank + size - size / 2) % size;

    /* An integer whose bytes show their order. What arrives is not looked at: it may have another's order. */
    value = 0x11223344;
    MPI_Send(&value, 1, MPI_INT, to, 11, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_INT, from, 11, MPI_COMM_WORLD, &status);

    /* Messages of no byte, short ones, and long ones. */
    for (i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        memset(data, rank + i, lengths[i]);
        MPI_Isend(data, lengths[i], MPI_BYTE, to, 12, MPI_COMM_WORLD, &request);
        MPI_Recv(got, 1 << 20, MPI_BYTE, from, 12, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &value);
        check(value == lengths[i] && (value == 0 || (got[0] == (char)(from + i) && got[value - 1] == got[0])), "lengths");
        MPI_Wait(&request, &status);
    }

    /* More than fit into the window. */
    for (i = 0; i < 45; i++) {
        value = SAME(i);
        MPI_Send(&value, 1, MPI_INT, to, 13, MPI_COMM_WORLD);
    }
    for (i = 0; i < 45; i++) {
        MPI_Recv(&value, 1, MPI_INT, from, 13, MPI_COMM_WORLD, &status);
        check(value == SAME(i), "order");
    }

    /* The tag reads the same in both byte orders, too: by its source LAM/MPI looks for the sender with the tag as it was on
       the wire. With MPI_Irecv and MPI_Ssend its processes did not end. */
    if (ssend) {
        MPI_Issend(data, 1, MPI_BYTE, to, 0, MPI_COMM_WORLD, &request);
        MPI_Recv(got, 1, MPI_BYTE, from, 0, MPI_COMM_WORLD, &status);
        MPI_Wait(&request, &status);
    }
    if (probes) {
        probe(to, from);
        cancel(to, from);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    for (i = 0; i < size; i += size - 1) {
        value = SAME(rank + 1);
        MPI_Bcast(&value, 1, MPI_INT, i, MPI_COMM_WORLD);
        check(value == SAME(i + 1), "bcast");
    }
    value = SAME(1);
    MPI_Reduce(&value, &sum, 1, MPI_INT, MPI_SUM, size - 1, MPI_COMM_WORLD);
    check(rank != size - 1 || sum == SAME(size), "reduce");
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check(sum == SAME(size), "allreduce");
    if (gathers)
        gather_and_kin(rank, size);
    MPI_Finalize();
    printf("process %d of %d has passed\n", rank, size);
    return 0;
}
