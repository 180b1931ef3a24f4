/*
 * impi_unchanged [refused|abort|lost|fatal]: uses point-to-point messages, collectives, communicators, groups and topologies of
 * MPI 1.1 over MPI_COMM_WORLD, nonblocking collectives and duplicates, and checks each result. It knows nothing of IMPI.
 *     impi_unchanged rank=R size=N
 * refused creates a window on MPI_COMM_WORLD; abort ends the last rank by MPI_Abort, and lost by a signal, while the others
 * wait for it. fatal leaves errors out, for an MPI in which they always are.
 */
#include "common.h"
#include <mpi.h>
#include <signal.h>
#include <stddef.h>

enum { LONG_MESSAGE = 300000, MESSAGES = 200 };

static int rank, size, to, from;
static MPI_Status statuses[MESSAGES];

#define ENSURE(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail(1, "rank %d, line %d: %s", rank, __LINE__, #condition);                           \
    } while (0)

static int count_of(const MPI_Status *status, MPI_Datatype type)
{
    int count = -1;
    MPI_Get_count(status, type, &count);
    return count;
}

static void modes(MPI_Comm comm)
{
    int out = rank * 10, in = -1;
    MPI_Request requests[2];
    MPI_Status status;
    char buffer[1000 + MPI_BSEND_OVERHEAD];
    void *detached;
    int bytes;

    MPI_Irecv(&in, 1, MPI_INT, from, 1, comm, &requests[0]);
    MPI_Send(&out, 1, MPI_INT, to, 1, comm);
    MPI_Wait(&requests[0], &status);
    ENSURE(in == from * 10 && status.MPI_SOURCE == from && status.MPI_TAG == 1 && count_of(&status, MPI_INT) == 1);
    ENSURE(requests[0] == MPI_REQUEST_NULL);
    MPI_Irecv(&in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &requests[0]);
    MPI_Issend(&out, 1, MPI_INT, to, 2, comm, &requests[1]);
    MPI_Waitall(2, requests, statuses);
    ENSURE(in == from * 10);
    MPI_Irecv(&in, 1, MPI_INT, from, 3, comm, &requests[0]);
    MPI_Barrier(comm);
    MPI_Rsend(&out, 1, MPI_INT, to, 3, comm);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    MPI_Buffer_attach(buffer, sizeof buffer);
    MPI_Bsend(&out, 1, MPI_INT, to, 4, comm);
    MPI_Recv(&in, 1, MPI_INT, from, 4, comm, &status);
    MPI_Ibsend(&out, 1, MPI_INT, to, 5, comm, &requests[0]);
    MPI_Recv(&in, 1, MPI_INT, from, MPI_ANY_TAG, comm, &status);
    ENSURE(in == from * 10 && status.MPI_TAG == 5);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    MPI_Buffer_detach(&detached, &bytes);
    MPI_Sendrecv_replace(&out, 1, MPI_INT, to, 6, from, 6, comm, &status);
    ENSURE(out == from * 10 && status.MPI_SOURCE == from);
    MPI_Sendrecv(&rank, 1, MPI_INT, to, 7, &in, 1, MPI_INT, MPI_ANY_SOURCE, 7, comm, &status);
    ENSURE(in == from && status.MPI_SOURCE == from);
    MPI_Send(&out, 1, MPI_INT, MPI_PROC_NULL, 1, comm);
    MPI_Recv(&in, 1, MPI_INT, MPI_PROC_NULL, 1, comm, &status);
    ENSURE(status.MPI_SOURCE == MPI_PROC_NULL && count_of(&status, MPI_INT) == 0);
}

/* Long messages arrive in order, also those that wait for a receive of any source. */
static void order(MPI_Comm comm)
{
    MPI_Request sends[MESSAGES], receives[MESSAGES];
    int out[MESSAGES], in[MESSAGES];
    double *large = calloc(LONG_MESSAGE, sizeof *large);
    MPI_Request request;
    MPI_Status status;

    for (int i = 0; i < MESSAGES; i++) {
        in[i] = -1;
        MPI_Irecv(&in[i], 1, MPI_INT, i % 3 == 0 ? MPI_ANY_SOURCE : from, i % 5 == 0 ? MPI_ANY_TAG : 10, comm, &receives[i]);
    }
    for (int i = 0; i < MESSAGES; i++) {
        out[i] = i;
        MPI_Isend(&out[i], 1, MPI_INT, to, 10, comm, &sends[i]);
    }
    for (int done = 0, some, indices[MESSAGES]; done < MESSAGES; done += some) {
        MPI_Waitsome(MESSAGES, receives, &some, indices, statuses);
        ENSURE(some > 0);
    }
    for (int i = 0; i < MESSAGES; i++)
        ENSURE(in[i] == i);
    for (int done = 0, index; done < MESSAGES; done++)
        MPI_Waitany(MESSAGES, sends, &index, &status);
    for (int i = 0; i < LONG_MESSAGE; i++)
        large[i] = rank + i * 0.5;
    MPI_Isend(large, LONG_MESSAGE, MPI_DOUBLE, to, 11, comm, &request);
    double *other = calloc(LONG_MESSAGE, sizeof *other);
    MPI_Recv(other, LONG_MESSAGE, MPI_DOUBLE, MPI_ANY_SOURCE, 11, comm, &status);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    ENSURE(count_of(&status, MPI_DOUBLE) == LONG_MESSAGE && status.MPI_SOURCE == from);
    for (int i = 0; i < LONG_MESSAGE; i++)
        ENSURE(other[i] == from + i * 0.5);
    free(large);
    free(other);
}

/* Rank 0 takes messages of all others, of both sides, by probes and by receives. */
static void wildcards(MPI_Comm comm)
{
    MPI_Message message;
    MPI_Status status;
    int *seen = calloc((size_t)size, sizeof *seen), value, flag = 0;

    for (int round = 0; round < 3; round++) {
        if (rank != 0) {
            MPI_Send(&rank, 1, MPI_INT, 0, 20 + round, comm);
            continue;
        }
        for (int i = 1; i < size; i++) {
            if (round == 0) {
                MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 20, comm, &status);
            } else if (round == 1) {
                MPI_Probe(MPI_ANY_SOURCE, 21, comm, &status);
                ENSURE(count_of(&status, MPI_INT) == 1);
                MPI_Recv(&value, 1, MPI_INT, status.MPI_SOURCE, 21, comm, MPI_STATUS_IGNORE);
            } else {
                MPI_Mprobe(MPI_ANY_SOURCE, 22, comm, &message, &status);
                MPI_Mrecv(&value, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
            }
            ENSURE(value == status.MPI_SOURCE && value > 0 && value < size);
            seen[value]++;
        }
    }
    for (int i = 1; rank == 0 && i < size; i++)
        ENSURE(seen[i] == 3);
    MPI_Barrier(comm);
    MPI_Iprobe(MPI_ANY_SOURCE, 22, comm, &flag, &status);
    ENSURE(!flag);
    free(seen);
}

static void requests(MPI_Comm comm)
{
    MPI_Request request[2];
    MPI_Status status;
    int out = 0, in = -1, flag = 0;

    MPI_Send_init(&out, 1, MPI_INT, to, 30, comm, &request[0]);
    MPI_Recv_init(&in, 1, MPI_INT, from, 30, comm, &request[1]);
    for (int i = 0; i < 5; i++) {
        out = rank + i;
        MPI_Startall(2, request);
        MPI_Waitall(2, request, statuses);
        ENSURE(in == from + i && request[0] != MPI_REQUEST_NULL);
    }
    MPI_Request_free(&request[0]);
    MPI_Request_free(&request[1]);
    ENSURE(request[0] == MPI_REQUEST_NULL);
    MPI_Irecv(&in, 1, MPI_INT, MPI_ANY_SOURCE, 31, comm, &request[0]);
    MPI_Test(&request[0], &flag, &status);
    ENSURE(!flag);
    MPI_Cancel(&request[0]);
    MPI_Wait(&request[0], &status);
    MPI_Test_cancelled(&status, &flag);
    ENSURE(flag);
    MPI_Irecv(&in, 1, MPI_INT, from, 32, comm, &request[1]);
    MPI_Isend(&out, 1, MPI_INT, to, 32, comm, &request[0]);
    MPI_Request_free(&request[0]);
    for (flag = 0; !flag;)
        MPI_Testall(1, &request[1], &flag, &status);
    ENSURE(in == from + 4 && status.MPI_SOURCE == from);
}

static void types(MPI_Comm comm)
{
    struct record {
        char letter;
        double number;
        int pair[2];
    } out = {'a' + rank, rank * 1.5, {rank, -rank}}, in = {0};
    const int lengths[] = {1, 1, 2};
    const MPI_Aint places[] = {offsetof(struct record, letter), offsetof(struct record, number), offsetof(struct record, pair)};
    MPI_Datatype parts[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, record, column;
    int matrix[4][5], line[4], position = 0, bytes;
    long number = (1L << 40) + rank, got = 0;
    struct { double value; int index; } place = {rank, rank}, best;
    char packed[100];
    MPI_Status status;

    MPI_Type_create_struct(3, lengths, places, parts, &record);
    MPI_Type_commit(&record);
    MPI_Sendrecv(&out, 1, record, to, 40, &in, 1, record, from, 40, comm, &status);
    ENSURE(in.letter == 'a' + from && in.number == from * 1.5 && in.pair[0] == from && in.pair[1] == -from);
    ENSURE(count_of(&status, record) == 1);
    MPI_Type_vector(4, 1, 5, MPI_INT, &column);
    MPI_Type_commit(&column);
    for (int i = 0; i < 20; i++)
        matrix[i / 5][i % 5] = rank * 100 + i;
    MPI_Sendrecv(&matrix[0][2], 1, column, to, 41, line, 4, MPI_INT, from, 41, comm, &status);
    for (int i = 0; i < 4; i++)
        ENSURE(line[i] == from * 100 + i * 5 + 2);
    MPI_Sendrecv(line, 4, MPI_INT, from, 42, &matrix[0][0], 1, column, to, 42, comm, &status);
    ENSURE(matrix[3][0] == rank * 100 + 17 && matrix[3][1] == rank * 100 + 16);
    MPI_Sendrecv(&number, 1, MPI_LONG, to, 43, &got, 1, MPI_LONG, from, 43, comm, &status);
    ENSURE(got == (1L << 40) + from);
    MPI_Allreduce(&place, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
    ENSURE(best.value == size - 1 && best.index == size - 1);
    MPI_Pack(&number, 1, MPI_LONG, packed, sizeof packed, &position, comm);
    MPI_Pack(line, 4, MPI_INT, packed, sizeof packed, &position, comm);
    MPI_Pack_size(4, MPI_INT, comm, &bytes);
    ENSURE(bytes >= 16 && position >= 24);
    MPI_Sendrecv_replace(packed, sizeof packed, MPI_PACKED, to, 44, from, 44, comm, &status);
    position = 0;
    MPI_Unpack(packed, sizeof packed, &position, &got, 1, MPI_LONG, comm);
    MPI_Unpack(packed, sizeof packed, &position, line, 4, MPI_INT, comm);
    ENSURE(got == (1L << 40) + from && line[0] == (from + size - 1) % size * 100 + 2);
    MPI_Type_free(&record);
    MPI_Type_free(&column);
}

/* Composition of x -> a * x + b: associative, not commutative. */
static void compose(void *first, void *second, int *count, MPI_Datatype *type)
{
    const int *one = first;
    int *other = second;
    (void)type;
    for (int i = 0; i < *count; i += 2) {
        other[i + 1] += other[i] * one[i + 1];
        other[i] *= one[i];
    }
}

static void collectives(MPI_Comm comm)
{
    int *all = calloc((size_t)(4 * size), sizeof *all), *out = calloc((size_t)(4 * size), sizeof *out);
    int *counts = calloc((size_t)size, sizeof *counts), *places = calloc((size_t)size, sizeof *places);
    int map[2] = {2, rank + 1}, whole[2] = {0}, expected[2] = {1, 0}, before[2], sum = 0;
    MPI_Op op;

    MPI_Op_create(compose, 0, &op);
    for (int root = 0; root < size; root++) {
        int value = rank == root ? root + 7 : -1;
        MPI_Bcast(&value, 1, MPI_INT, root, comm);
        ENSURE(value == root + 7);
        MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, root, comm);
        ENSURE(rank != root || sum == size * (size - 1) / 2);
        MPI_Gather(&rank, 1, MPI_INT, all, 1, MPI_INT, root, comm);
        for (int i = 0; rank == root && i < size; i++)
            ENSURE(all[i] == i);
        MPI_Scatter(all, 1, MPI_INT, &value, 1, MPI_INT, root, comm);
        ENSURE(value == rank);
    }
    for (int i = 0, place = 0; i < size; i++) {
        counts[i] = i % 3;
        places[i] = place;
        place += counts[i] + 1;
    }
    for (int i = 0; i < 3; i++)
        out[i] = rank * 10 + i;
    memset(all, -1, sizeof *all * (size_t)(4 * size));
    MPI_Allgatherv(out, counts[rank], MPI_INT, all, counts, places, MPI_INT, comm);
    for (int i = 0; i < size; i++)
        for (int j = 0; j <= counts[i]; j++)
            ENSURE(all[places[i] + j] == (j < counts[i] ? i * 10 + j : -1));
    MPI_Gatherv(out, counts[rank], MPI_INT, all, counts, places, MPI_INT, size - 1, comm);
    MPI_Scatterv(all, counts, places, MPI_INT, out, counts[rank], MPI_INT, size - 1, comm);
    for (int j = 0; j < counts[rank]; j++)
        ENSURE(out[j] == rank * 10 + j);
    for (int i = 0; i < size; i++)
        out[i] = rank * 100 + i;
    MPI_Alltoall(out, 1, MPI_INT, all, 1, MPI_INT, comm);
    for (int i = 0; i < size; i++)
        ENSURE(all[i] == i * 100 + rank);
    for (int i = 0; i < size; i++) {
        counts[i] = 1;
        places[i] = size - 1 - i;
    }
    MPI_Alltoallv(out, counts, places, MPI_INT, all, counts, places, MPI_INT, comm);
    for (int i = 0; i < size; i++)
        ENSURE(all[places[i]] == i * 100 + places[rank]);
    MPI_Allreduce(map, whole, 2, MPI_INT, op, comm);
    for (int i = 0; i < size; i++) {
        int next[2] = {2, i + 1};
        int count = 2;
        compose(expected, next, &count, NULL);
        memcpy(expected, next, sizeof next);
        if (i == rank)
            memcpy(before, expected, sizeof before);
    }
    MPI_Scan(map, all, 2, MPI_INT, op, comm);
    ENSURE(memcmp(all, before, sizeof before) == 0);
    ENSURE(memcmp(whole, expected, sizeof whole) == 0);
    MPI_Exscan(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    ENSURE(rank == 0 || sum == rank * (rank - 1) / 2);
    MPI_Reduce_scatter(out, &sum, counts, MPI_INT, MPI_SUM, comm);
    ENSURE(sum == 100 * size * (size - 1) / 2 + size * rank);
    sum = rank;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_MAX, comm);
    ENSURE(sum == size - 1);
    MPI_Op_free(&op);
    free(all);
    free(out);
    free(counts);
    free(places);
}

/* Collectives that are started in one order and end in any, with messages between. */
static void nonblocking(MPI_Comm comm)
{
    enum { STARTED = 12 };
    int *gathered = calloc((size_t)size, sizeof *gathered), *scattered = calloc((size_t)size, sizeof *scattered);
    int *out = calloc((size_t)size, sizeof *out), *in = calloc((size_t)size, sizeof *in), *both = calloc((size_t)size, sizeof *both);
    int *counts = calloc((size_t)size, sizeof *counts), *places = calloc((size_t)size, sizeof *places);
    MPI_Datatype *types = calloc((size_t)size, sizeof *types);
    int *typed = calloc((size_t)size, sizeof *typed);
    int root = size - 1, value = rank == root ? 42 : 0, part = -1, sum = 0, all = rank, before = -1, upto = -1, share = -1;
    int map[2] = {2, rank + 1}, whole[2] = {0}, expected[2] = {2, size}, token = -1, flag = 0, count = 2;
    MPI_Request requests[STARTED], barrier;
    MPI_Op op;

    MPI_Op_create(compose, 0, &op);
    for (int i = 0; i < size; i++) {
        scattered[i] = i * 3;
        out[i] = both[i] = rank * 100 + i;
        counts[i] = 1;
        places[i] = i * (int)sizeof(int);
        types[i] = MPI_INT;
    }
    for (int i = size - 2; i >= 0; i--) {
        int next[2] = {2, i + 1};
        compose(next, expected, &count, NULL);
    }
    MPI_Ibcast(&value, 1, MPI_INT, root, comm, &requests[0]);
    MPI_Igather(&rank, 1, MPI_INT, gathered, 1, MPI_INT, root, comm, &requests[1]);
    MPI_Iscatter(scattered, 1, MPI_INT, &part, 1, MPI_INT, root, comm, &requests[2]);
    MPI_Ireduce(&rank, &sum, 1, MPI_INT, MPI_SUM, root, comm, &requests[3]);
    MPI_Iallreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MAX, comm, &requests[4]);
    MPI_Iallreduce(map, whole, 2, MPI_INT, op, comm, &requests[5]);
    MPI_Op_free(&op);
    ENSURE(op == MPI_OP_NULL);
    MPI_Iexscan(&rank, &before, 1, MPI_INT, MPI_SUM, comm, &requests[6]);
    MPI_Iscan(&rank, &upto, 1, MPI_INT, MPI_SUM, comm, &requests[7]);
    MPI_Ialltoall(out, 1, MPI_INT, in, 1, MPI_INT, comm, &requests[8]);
    MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_INT, both, 1, MPI_INT, comm, &requests[9]);
    MPI_Ireduce_scatter_block(out, &share, 1, MPI_INT, MPI_SUM, comm, &requests[10]);
    MPI_Ialltoallw(out, counts, places, types, typed, counts, places, types, comm, &requests[11]);
    MPI_Bcast(&root, 1, MPI_INT, 0, comm);
    MPI_Sendrecv(&rank, 1, MPI_INT, to, 8, &token, 1, MPI_INT, from, 8, comm, MPI_STATUS_IGNORE);
    ENSURE(token == from);
    for (int done = 0, some, indices[STARTED]; done < STARTED - 2; done += some)
        MPI_Waitsome(STARTED - 2, requests, &some, indices, statuses);
    MPI_Waitall(2, &requests[STARTED - 2], statuses);
    ENSURE(value == 42 && part == rank * 3 && all == size - 1 && upto == rank * (rank + 1) / 2);
    ENSURE(memcmp(whole, expected, sizeof whole) == 0);
    ENSURE(rank == 0 || before == rank * (rank - 1) / 2);
    ENSURE(rank != root || sum == size * (size - 1) / 2);
    ENSURE(share == 100 * size * (size - 1) / 2 + size * rank);
    for (int i = 0; i < size; i++)
        ENSURE(in[i] == i * 100 + rank && both[i] == in[i] && typed[i] == in[i] && (rank != root || gathered[i] == i));
    /* A process that is in the barrier still receives. */
    MPI_Request receive;
    MPI_Irecv(&token, 1, MPI_INT, from, 9, comm, &receive);
    MPI_Ibarrier(comm, &barrier);
    if (rank != 0)
        MPI_Ssend(&rank, 1, MPI_INT, to, 9, comm);
    else
        MPI_Send(&rank, 1, MPI_INT, to, 9, comm);
    while (!flag)
        MPI_Test(&barrier, &flag, MPI_STATUS_IGNORE);
    MPI_Wait(&receive, MPI_STATUS_IGNORE);
    ENSURE(token == from);
    free(gathered);
    free(scattered);
    free(out);
    free(in);
    free(both);
    free(counts);
    free(places);
    free(types);
    free(typed);
}

/* A message may be sent by one function and received by another, which headers of MPI 3.1 lack. */
static void combined(MPI_Comm comm)
{
    int in = -1, other = rank;
    MPI_Status status;

#if MPI_VERSION >= 4
    MPI_Request request[2];
    MPI_Isendrecv(&rank, 1, MPI_INT, to, 70, &in, 1, MPI_INT, MPI_ANY_SOURCE, 70, comm, &request[0]);
    MPI_Isendrecv_replace(&other, 1, MPI_INT, to, 71, from, 71, comm, &request[1]);
    MPI_Wait(&request[0], &status);
    MPI_Wait(&request[1], MPI_STATUS_IGNORE);
#else
    MPI_Sendrecv(&rank, 1, MPI_INT, to, 70, &in, 1, MPI_INT, MPI_ANY_SOURCE, 70, comm, &status);
    MPI_Sendrecv_replace(&other, 1, MPI_INT, to, 71, from, 71, comm, MPI_STATUS_IGNORE);
#endif
    ENSURE(in == from && status.MPI_SOURCE == from && status.MPI_TAG == 70 && count_of(&status, MPI_INT) == 1);
    ENSURE(other == from);
}

static int copies;

static int copy_attribute(MPI_Comm comm, int key, void *extra, void *value, void *copy, int *flag)
{
    (void)comm;
    (void)key;
    (void)extra;
    copies++;
    *(void **)copy = value;
    *flag = 1;
    return MPI_SUCCESS;
}

static void communicators(void)
{
    MPI_Comm copy, half, reversed, made;
    MPI_Group world, odd, rest;
    int result, key, flag, value = 0, own, members, ranges[1][3] = {{1, size - 1, 2}};
    int *limit;
    void *attribute;

    MPI_Comm_create_keyval(copy_attribute, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_WORLD, key, &value);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_get_attr(copy, key, &attribute, &flag);
    ENSURE(copies == 1 && flag && attribute == &value);
    MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
    MPI_Comm_get_attr(copy, MPI_TAG_UB, &limit, &flag);
    ENSURE(flag && *limit >= 32767);
    MPI_Comm_compare(copy, MPI_COMM_WORLD, &result);
    ENSURE(result == MPI_CONGRUENT);
    /* Messages of one communicator are not those of another. */
    MPI_Request request;
    int out = 1, in = 0, other = 0;
    MPI_Irecv(&in, 1, MPI_INT, MPI_ANY_SOURCE, 50, copy, &request);
    MPI_Sendrecv(&rank, 1, MPI_INT, to, 50, &other, 1, MPI_INT, from, 50, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(&out, 1, MPI_INT, to, 50, copy);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    ENSURE(in == 1 && other == from);
    MPI_Comm_free(&copy);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    MPI_Comm_rank(half, &own);
    MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_MAX, half);
    ENSURE(own == rank / 2 && value == (size - 1) - (size - 1 - rank) % 2);
    MPI_Comm_free(&half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    MPI_Comm_rank(reversed, &own);
    MPI_Comm_compare(reversed, MPI_COMM_WORLD, &result);
    ENSURE(own == size - 1 - rank && result == (size > 1 ? MPI_SIMILAR : MPI_CONGRUENT));
    value = own == 0 ? rank : -1;
    MPI_Bcast(&value, 1, MPI_INT, 0, reversed);
    ENSURE(value == size - 1);
    MPI_Comm_free(&reversed);
    MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &half);
    ENSURE((half == MPI_COMM_NULL) == (rank == 0));
    if (half != MPI_COMM_NULL)
        MPI_Comm_free(&half);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_range_incl(world, size > 1, ranges, &odd);
    MPI_Group_difference(world, odd, &rest);
    MPI_Group_size(odd, &members);
    ENSURE(members == size / 2);
    MPI_Group_size(rest, &members);
    ENSURE(members == size - size / 2);
    MPI_Group_rank(rest, &own);
    ENSURE(own == (rank % 2 == 0 ? rank / 2 : MPI_UNDEFINED));
    MPI_Group_translate_ranks(rest, 1, (int[]){members - 1}, world, &own);
    ENSURE(own == 2 * (members - 1));
    MPI_Comm_create(MPI_COMM_WORLD, rest, &made);
    ENSURE((made != MPI_COMM_NULL) == (rank % 2 == 0));
    if (made != MPI_COMM_NULL) {
        MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, made);
        ENSURE(value == members * (members - 1));
        MPI_Comm_free(&made);
    }
    MPI_Group_free(&world);
    MPI_Group_free(&odd);
    MPI_Group_free(&rest);
    MPI_Comm_free_keyval(&key);
}

/* The members of a group make a communicator from one whose group the program has never asked for. */
static void communicators_of_groups(void)
{
    MPI_Comm copy, made;
    MPI_Group world, group;
    int value = -1, ranges[1][3] = {{size - 1, 0, -1}};

    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    /* All but the last one, so that each client has several members. */
    if (size > 1)
        ranges[0][0]--;
    MPI_Group_range_incl(world, 1, ranges, &group);
    if (rank <= ranges[0][0]) {
        MPI_Comm_create_group(copy, group, 80, &made);
        MPI_Comm_rank(made, &value);
        ENSURE(value == ranges[0][0] - rank);
        MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_MAX, made);
        ENSURE(value == ranges[0][0]);
        MPI_Comm_free(&made);
    }
    MPI_Group_free(&world);
    MPI_Group_free(&group);
    MPI_Comm_free(&copy);
}

/* No process waits for another to begin, and processes begin duplicates of two communicators in different orders. */
static void duplicates(void)
{
    MPI_Comm reversed, duplicated[2];
    MPI_Request requests[2];
    int token = rank, value, other = -1;

    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    const MPI_Comm sources[2] = {MPI_COMM_WORLD, reversed};
    if (rank > 0)
        MPI_Recv(&token, 1, MPI_INT, rank - 1, 51, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < 2; i++)
        MPI_Comm_idup(sources[(rank + i) % 2], &duplicated[(rank + i) % 2], &requests[(rank + i) % 2]);
    if (rank < size - 1)
        MPI_Send(&token, 1, MPI_INT, rank + 1, 51, MPI_COMM_WORLD);
    ENSURE(token == 0);
    MPI_Waitall(2, requests, statuses);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_compare(duplicated[i], sources[i], &value);
        ENSURE(value == MPI_CONGRUENT);
        MPI_Comm_rank(duplicated[i], &value);
        ENSURE(value == (i == 0 ? rank : size - 1 - rank));
        MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, duplicated[i]);
        ENSURE(value == size * (size - 1) / 2);
    }
    /* Messages of one duplicate are not those of the other. */
    MPI_Irecv(&other, 1, MPI_INT, size - 1 - from, 52, duplicated[1], &requests[0]);
    MPI_Sendrecv(&rank, 1, MPI_INT, to, 52, &value, 1, MPI_INT, from, 52, duplicated[0], MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(&size, 1, MPI_INT, size - 1 - to, 52, duplicated[1]);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    ENSURE(value == from && other == size);
    MPI_Comm_free(&duplicated[0]);
    MPI_Comm_free(&duplicated[1]);
    MPI_Comm_free(&reversed);
}

/* Each process has an edge to the next one, and the first one to itself besides. */
static void graph(void)
{
    MPI_Comm circle, copy;
    int *index = calloc((size_t)size, sizeof *index), *edges = calloc((size_t)size + 1, sizeof *edges);
    int *indices = calloc((size_t)size, sizeof *index), *ends = calloc((size_t)size + 1, sizeof *edges);
    int value, nodes, neighbors[2] = {-1, -1};

    for (int i = 0; i < size; i++) {
        index[i] = i + 2;
        edges[i + 1] = (i + 1) % size;
    }
    MPI_Graph_create(MPI_COMM_WORLD, size, index, edges, 1, &circle);
    MPI_Comm_dup(circle, &copy);
    MPI_Comm_free(&circle);
    MPI_Topo_test(copy, &value);
    ENSURE(value == MPI_GRAPH);
    MPI_Graphdims_get(copy, &nodes, &value);
    ENSURE(nodes == size && value == size + 1);
    MPI_Graph_get(copy, size, size + 1, indices, ends);
    for (int i = 0; i < size; i++)
        ENSURE(indices[i] == index[i] && ends[i + 1] == edges[i + 1]);
    MPI_Graph_neighbors_count(copy, rank, &value);
    MPI_Graph_neighbors(copy, rank, 2, neighbors);
    ENSURE(value == 1 + (rank == 0) && neighbors[rank == 0] == to && (rank != 0 || neighbors[0] == 0));
    MPI_Comm_free(&copy);
    MPI_Graph_create(MPI_COMM_WORLD, size - 1, index, (int[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0, &circle);
    ENSURE((circle == MPI_COMM_NULL) == (rank == size - 1));
    if (circle != MPI_COMM_NULL) {
        MPI_Topo_test(circle, &value);
        ENSURE(value == MPI_GRAPH);
        MPI_Comm_free(&circle);
    }
    MPI_Graph_map(MPI_COMM_WORLD, size - 1, index, edges, &value);
    ENSURE(value == (rank < size - 1 ? rank : MPI_UNDEFINED));
    free(index);
    free(edges);
    free(indices);
    free(ends);
}

static void topology(void)
{
    MPI_Comm grid, row;
    int sizes[2] = {size / 2, 2}, periods[2] = {1, 0}, coordinates[2], source, destination, value, in = -1;

    if (size < 4)
        return;
    MPI_Cart_create(MPI_COMM_WORLD, 2, sizes, periods, 0, &grid);
    ENSURE((grid == MPI_COMM_NULL) == (rank >= size / 2 * 2));
    if (grid == MPI_COMM_NULL)
        return;
    MPI_Topo_test(grid, &value);
    ENSURE(value == MPI_CART);
    MPI_Cart_coords(grid, rank, 2, coordinates);
    ENSURE(coordinates[0] == rank / 2 && coordinates[1] == rank % 2);
    MPI_Cart_shift(grid, 0, 1, &source, &destination);
    ENSURE(destination == (rank + 2) % (size / 2 * 2));
    MPI_Sendrecv(&rank, 1, MPI_INT, destination, 60, &in, 1, MPI_INT, source, 60, grid, MPI_STATUS_IGNORE);
    ENSURE(in == source);
    MPI_Cart_shift(grid, 1, 1, &source, &destination);
    ENSURE(source == (rank % 2 == 0 ? MPI_PROC_NULL : rank - 1));
    MPI_Cart_sub(grid, (int[]){1, 0}, &row);
    MPI_Comm_size(row, &value);
    ENSURE(value == size / 2);
    MPI_Cartdim_get(row, &value);
    ENSURE(value == 1);
    MPI_Comm_free(&row);
    MPI_Comm_free(&grid);
}

/* Waits for a collective that a function has started, or has ended if it does not return a request. */
#define BOTH(name, nonblocking, ...)                                                               \
    do {                                                                                           \
        if (is_blocking) {                                                                         \
            MPI_##name(__VA_ARGS__);                                                               \
        } else {                                                                                   \
            MPI_Request started;                                                                   \
            MPI_##nonblocking(__VA_ARGS__, &started);                                              \
            MPI_Wait(&started, MPI_STATUS_IGNORE);                                                 \
        }                                                                                          \
    } while (0)

/* Each collective of two groups; `first` is the rank in the world of the first member of the other one, and `step` the distance
 * of the others. */
static void inter_collectives(MPI_Comm comm, int side, int others, int first, int step, int is_blocking)
{
    int own, members, value, sum = 0, place = 0, expected = 0;
    int *in = calloc((size_t)(2 * size), sizeof *in), *out = calloc((size_t)(2 * size), sizeof *out);
    int *counts = calloc((size_t)size, sizeof *counts), *places = calloc((size_t)size, sizeof *places);
    int *ones = calloc((size_t)size, sizeof *ones), *bytes = calloc((size_t)size, sizeof *bytes);
    MPI_Datatype *integers = calloc((size_t)size, sizeof *integers);

    MPI_Comm_rank(comm, &own);
    MPI_Comm_size(comm, &members);
    for (int i = 0; i < others; i++) {
        counts[i] = 1 + i % 2;
        places[i] = place;
        place += counts[i];
        ones[i] = 1;
        bytes[i] = i * (int)sizeof(int);
        integers[i] = MPI_INT;
        expected += first + i * step;
    }
    BOTH(Barrier, Ibarrier, comm);
    /* The last member of each group is the root in turn. */
    for (int turn = 0; turn < 2; turn++) {
        const int is_own = turn == side, is_root = is_own && own == members - 1;
        const int root = is_root ? MPI_ROOT : is_own ? MPI_PROC_NULL : others - 1;
        const int root_rank = first + (others - 1) * step;
        const int own_counts = 1 + own % 2;
        value = is_root ? rank : -1;
        BOTH(Bcast, Ibcast, &value, 1, MPI_INT, root, comm);
        ENSURE(value == (is_own ? is_root ? rank : -1 : root_rank));
        BOTH(Reduce, Ireduce, &rank, &sum, 1, MPI_INT, MPI_SUM, root, comm);
        ENSURE(!is_root || sum == expected);
        BOTH(Gather, Igather, &rank, 1, MPI_INT, in, 1, MPI_INT, root, comm);
        for (int i = 0; is_root && i < others; i++)
            ENSURE(in[i] == first + i * step);
        BOTH(Scatter, Iscatter, in, 1, MPI_INT, &value, 1, MPI_INT, root, comm);
        ENSURE(is_own || value == rank);
        out[0] = out[1] = rank;
        BOTH(Gatherv, Igatherv, out, own_counts, MPI_INT, in, counts, places, MPI_INT, root, comm);
        for (int i = 0; is_root && i < others; i++)
            ENSURE(in[places[i]] == first + i * step && in[places[i] + counts[i] - 1] == first + i * step);
        out[0] = out[1] = -1;
        BOTH(Scatterv, Iscatterv, in, counts, places, MPI_INT, out, own_counts, MPI_INT, root, comm);
        ENSURE(is_own || (out[0] == rank && out[own_counts - 1] == rank));
    }
    BOTH(Allreduce, Iallreduce, &rank, &sum, 1, MPI_INT, MPI_SUM, comm);
    ENSURE(sum == expected);
    BOTH(Allgather, Iallgather, &rank, 1, MPI_INT, in, 1, MPI_INT, comm);
    for (int i = 0; i < others; i++)
        ENSURE(in[i] == first + i * step);
    out[0] = out[1] = rank;
    BOTH(Allgatherv, Iallgatherv, out, 1 + own % 2, MPI_INT, in, counts, places, MPI_INT, comm);
    ENSURE(in[places[others - 1]] == first + (others - 1) * step);
    for (int i = 0; i < others; i++)
        out[i] = rank * 100 + i;
    BOTH(Alltoall, Ialltoall, out, 1, MPI_INT, in, 1, MPI_INT, comm);
    for (int i = 0; i < others; i++)
        ENSURE(in[i] == (first + i * step) * 100 + own);
    for (int i = 0; i < others; i++)
        places[i] = others - 1 - i;
    BOTH(Alltoallv, Ialltoallv, out, ones, places, MPI_INT, in, ones, places, MPI_INT, comm);
    for (int i = 0; i < others; i++)
        ENSURE(in[places[i]] == (first + i * step) * 100 + members - 1 - own);
    BOTH(Alltoallw, Ialltoallw, out, ones, bytes, integers, in, ones, bytes, integers, comm);
    for (int i = 0; i < others; i++)
        ENSURE(in[i] == (first + i * step) * 100 + own);
    /* The elements are as many in both groups; each member has those of the other group's block. */
    for (int i = 0; i < 2 * size; i++)
        out[i] = rank * 1000 + i;
    sum = -1;
    if (members == others) {
        BOTH(Reduce_scatter_block, Ireduce_scatter_block, out, &sum, 1, MPI_INT, MPI_SUM, comm);
        ENSURE(sum == 1000 * expected + others * own);
    }
    /* The first member has what is left of `size` elements. */
    for (int i = 0; i < members; i++)
        counts[i] = i == 0 ? size - members + 1 : 1;
    BOTH(Reduce_scatter, Ireduce_scatter, out, in, counts, MPI_INT, MPI_SUM, comm);
    for (int i = 0; i < counts[own]; i++)
        ENSURE(in[i] == 1000 * expected + others * (own == 0 ? i : size - members + own));
    free(in);
    free(out);
    free(counts);
    free(places);
    free(ones);
    free(bytes);
    free(integers);
}

/* Two groups, by halves of the world or by turns, exchange messages, call collectives and become one. */
static void intercommunicators(int by_turns)
{
    const int side = by_turns ? rank % 2 : rank >= size / 2;
    const int leader = side ? 0 : by_turns ? 1 : size / 2;
    MPI_Comm half, inter, copy, part, whole;
    MPI_Group group;
    MPI_Request request;
    MPI_Status status;
    int own, members, others, value = 0, in = -1;

    if (size < 2)
        return;
    MPI_Comm_split(MPI_COMM_WORLD, side, 0, &half);
    MPI_Comm_rank(half, &own);
    MPI_Comm_size(half, &members);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, leader, 90, &inter);
    MPI_Comm_test_inter(inter, &value);
    MPI_Comm_remote_size(inter, &others);
    ENSURE(value && others == size - members);
    MPI_Comm_size(inter, &value);
    ENSURE(value == members);
    MPI_Comm_remote_group(inter, &group);
    MPI_Group_size(group, &value);
    ENSURE(value == others);
    MPI_Group_free(&group);
    MPI_Comm_dup(inter, &copy);
    MPI_Comm_compare(inter, copy, &value);
    ENSURE(value == MPI_CONGRUENT);
    if (own < members && own < others) {
        MPI_Isend(&rank, 1, MPI_INT, own, 91, copy, &request);
        MPI_Recv(&in, 1, MPI_INT, MPI_ANY_SOURCE, 91, copy, &status);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        ENSURE(status.MPI_SOURCE == own && in == (by_turns ? 2 * own + !side : own + (side ? 0 : size / 2)));
    }
    /* Those with odd ranks and those with even ones, in the reverse order. */
    const int same = (members + 1 - own % 2) / 2, opposite = (others + 1 - own % 2) / 2;
    MPI_Comm_split(inter, own % 2, -own, &part);
    ENSURE((part == MPI_COMM_NULL) == (opposite == 0));
    if (part != MPI_COMM_NULL) {
        MPI_Comm_rank(part, &value);
        ENSURE(value == same - 1 - own / 2);
        MPI_Comm_remote_size(part, &value);
        ENSURE(value == opposite);
        MPI_Comm_free(&part);
    }
    const int first = by_turns ? !side : side ? 0 : size / 2;
    inter_collectives(copy, side, others, first, by_turns ? 2 : 1, 1);
    inter_collectives(copy, side, others, first, by_turns ? 2 : 1, 0);
    MPI_Comm_free(&copy);
    MPI_Comm_idup(inter, &copy, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    inter_collectives(copy, side, others, first, by_turns ? 2 : 1, 1);
    MPI_Intercomm_merge(copy, side, &whole);
    MPI_Comm_rank(whole, &value);
    ENSURE(value == own + (side ? others : 0));
    MPI_Allreduce(&rank, &value, 1, MPI_INT, MPI_SUM, whole);
    ENSURE(value == size * (size - 1) / 2);
    MPI_Comm_free(&whole);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

static void errors(void)
{
    int value = 0, class = 0;
    int many[10] = {0}, few[5];

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int code = MPI_Send(&value, 1, MPI_INT, size, 70, MPI_COMM_WORLD);
    MPI_Error_class(code, &class);
    ENSURE(class == MPI_ERR_RANK);
    MPI_Request request;
    MPI_Isend(many, 10, MPI_INT, to, 71, MPI_COMM_WORLD, &request);
    code = MPI_Recv(few, 5, MPI_INT, from, 71, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Error_class(code, &class);
    ENSURE(class == MPI_ERR_TRUNCATE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* Ends the last rank while the others wait for it. */
static void end_last(int is_lost)
{
    int value = 0;

    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1 && is_lost)
        kill(getpid(), SIGKILL);
    if (rank == size - 1)
        MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Recv(&value, 1, MPI_INT, size - 1, 80, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int provided;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    to = (rank + 1) % size;
    from = (rank + size - 1) % size;
    if (strcmp(mode, "refused") == 0) {
        MPI_Win window;
        MPI_Win_create(NULL, 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    } else if (strcmp(mode, "abort") == 0 || strcmp(mode, "lost") == 0) {
        end_last(strcmp(mode, "lost") == 0);
    }
    modes(MPI_COMM_WORLD);
    order(MPI_COMM_WORLD);
    wildcards(MPI_COMM_WORLD);
    requests(MPI_COMM_WORLD);
    types(MPI_COMM_WORLD);
    collectives(MPI_COMM_WORLD);
    nonblocking(MPI_COMM_WORLD);
    combined(MPI_COMM_WORLD);
    communicators();
    communicators_of_groups();
    duplicates();
    topology();
    graph();
    intercommunicators(0);
    intercommunicators(1);
    if (strcmp(mode, "fatal") != 0)
        errors();
    report("impi_unchanged rank=%d size=%d", rank, size);
    MPI_Finalize();
    return 0;
}
