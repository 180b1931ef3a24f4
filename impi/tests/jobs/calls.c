/* What a process of a job does with every function of wireup-impi.h, and what each gives.

   calls external32|native   all of them; integers cross in external32, or as the machine has them
   calls lost                process 1 is killed, and the others get errors */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wireup-impi.h"

enum { MIB = 1 << 20, TYPES = WIREUP_IMPI_DOUBLE + 1, OPS = WIREUP_IMPI_LOR + 1 };

static wireup_impi *world;
static int rank, size, to, from;
static struct wireup_impi_status status;

#define ENSURE(holds)                                                                                              \
    do {                                                                                                           \
        if (!(holds)) {                                                                                            \
            fprintf(stderr, "process %d, line %d: %s (%s)\n", rank, __LINE__, #holds, wireup_impi_error());        \
            _exit(1);                                                                                              \
        }                                                                                                          \
    } while (0)

/* A call that has failed for this reason. */
#define REFUSED(call, words) ENSURE((call) == -1 && strstr(wireup_impi_error(), words) != NULL)
#define NOT_STARTED(call, words) ENSURE((call) == 0 && strstr(wireup_impi_error(), words) != NULL)

static size_t width(int type)
{
    static const size_t widths[TYPES] = {1, 1, 1, 2, 2, 4, 4, 8, 8, sizeof(float), sizeof(double)};
    return widths[type];
}

static void put(int type, void *data, size_t at, int64_t value)
{
    switch (type) {
    case WIREUP_IMPI_INT8: ((int8_t *)data)[at] = (int8_t)value; break;
    case WIREUP_IMPI_INT16: ((int16_t *)data)[at] = (int16_t)value; break;
    case WIREUP_IMPI_UINT16: ((uint16_t *)data)[at] = (uint16_t)value; break;
    case WIREUP_IMPI_INT32: ((int32_t *)data)[at] = (int32_t)value; break;
    case WIREUP_IMPI_UINT32: ((uint32_t *)data)[at] = (uint32_t)value; break;
    case WIREUP_IMPI_INT64: ((int64_t *)data)[at] = value; break;
    case WIREUP_IMPI_UINT64: ((uint64_t *)data)[at] = (uint64_t)value; break;
    case WIREUP_IMPI_FLOAT: ((float *)data)[at] = (float)value; break;
    case WIREUP_IMPI_DOUBLE: ((double *)data)[at] = (double)value; break;
    default: ((uint8_t *)data)[at] = (uint8_t)value;
    }
}

static wireup_impi_request isend(const void *data, size_t count, int type, int tag)
{
    wireup_impi_request request = wireup_impi_isend(world, data, count, type, to, tag);
    ENSURE(request != 0);
    return request;
}

static void finish(wireup_impi_request request)
{
    ENSURE(wireup_impi_wait(world, request, NULL, 0, NULL) == 0);
}

static void joining(void)
{
    char agent[256], *known = getenv("WIREUP_IMPI_AGENT");

    ENSURE(known != NULL && strlen(known) < sizeof agent);
    strcpy(agent, known);
    unsetenv("WIREUP_IMPI_AGENT");
    ENSURE(wireup_impi_open() == NULL && strstr(wireup_impi_error(), "WIREUP_IMPI_AGENT is not set") != NULL);
    setenv("WIREUP_IMPI_AGENT", agent, 1);
    world = wireup_impi_open();
    ENSURE(world != NULL);
    rank = wireup_impi_rank(world);
    size = wireup_impi_size(world);
    to = (rank + 1) % size;
    from = (rank + size - 1) % size;
    ENSURE(size == atoi(getenv("IMPI_WORLD_SIZE")));
    ENSURE(wireup_impi_clients(world) == atoi(getenv("IMPI_CLIENT_SIZE")));
    ENSURE(wireup_impi_client_of(world, rank) == atoi(getenv("IMPI_CLIENT_COLOR")));
    REFUSED(wireup_impi_client_of(world, size), "invalid rank");
}

static void without_a_world(void)
{
    const size_t none = 0;
    int value = 0;

    REFUSED(wireup_impi_rank(NULL), "the world is NULL");
    REFUSED(wireup_impi_size(NULL), "the world is NULL");
    REFUSED(wireup_impi_clients(NULL), "the world is NULL");
    REFUSED(wireup_impi_client_of(NULL, 0), "the world is NULL");
    REFUSED(wireup_impi_send(NULL, &value, 1, WIREUP_IMPI_INT32, 0, 0), "the world is NULL");
    REFUSED(wireup_impi_ssend(NULL, &value, 1, WIREUP_IMPI_INT32, 0, 0), "the world is NULL");
    REFUSED(wireup_impi_recv(NULL, &value, 1, WIREUP_IMPI_INT32, 0, 0, NULL), "the world is NULL");
    NOT_STARTED(wireup_impi_isend(NULL, &value, 1, WIREUP_IMPI_INT32, 0, 0), "the world is NULL");
    NOT_STARTED(wireup_impi_issend(NULL, &value, 1, WIREUP_IMPI_INT32, 0, 0), "the world is NULL");
    NOT_STARTED(wireup_impi_irecv(NULL, 1, WIREUP_IMPI_INT32, 0, 0), "the world is NULL");
    REFUSED(wireup_impi_wait(NULL, 1, NULL, 0, NULL), "the world is NULL");
    REFUSED(wireup_impi_test(NULL, 1), "the world is NULL");
    REFUSED(wireup_impi_cancel(NULL, 1), "the world is NULL");
    REFUSED(wireup_impi_probe(NULL, 0, 0, NULL), "the world is NULL");
    REFUSED(wireup_impi_iprobe(NULL, 0, 0, NULL), "the world is NULL");
    REFUSED(wireup_impi_barrier(NULL), "the world is NULL");
    REFUSED(wireup_impi_bcast(NULL, &value, 1, WIREUP_IMPI_INT32, 0), "the world is NULL");
    REFUSED(wireup_impi_reduce(NULL, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM, 0), "the world is NULL");
    REFUSED(wireup_impi_allreduce(NULL, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM), "the world is NULL");
    REFUSED(wireup_impi_scan(NULL, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM), "the world is NULL");
    REFUSED(wireup_impi_gather(NULL, &value, 1, WIREUP_IMPI_INT32, &value, 0), "the world is NULL");
    REFUSED(wireup_impi_scatter(NULL, &value, 1, WIREUP_IMPI_INT32, &value, 0), "the world is NULL");
    REFUSED(wireup_impi_allgather(NULL, &value, 1, WIREUP_IMPI_INT32, &value), "the world is NULL");
    REFUSED(wireup_impi_alltoall(NULL, &value, 1, WIREUP_IMPI_INT32, &value), "the world is NULL");
    REFUSED(wireup_impi_gatherv(NULL, &value, 1, WIREUP_IMPI_INT32, &value, &none, 0), "the world is NULL");
    REFUSED(wireup_impi_scatterv(NULL, &value, &none, 1, WIREUP_IMPI_INT32, &value, 0), "the world is NULL");
    REFUSED(wireup_impi_allgatherv(NULL, &value, 1, WIREUP_IMPI_INT32, &value, &none), "the world is NULL");
    REFUSED(wireup_impi_alltoallv(NULL, &value, &none, WIREUP_IMPI_INT32, &value, &none), "the world is NULL");
    REFUSED(wireup_impi_steps(NULL, NULL, 0, WIREUP_IMPI_BARRIER, 0, 0, 0, NULL, 0), "the world is NULL");
    REFUSED(wireup_impi_crossover(NULL), "the world is NULL");
    REFUSED(wireup_impi_print(NULL, "line"), "the world is NULL");
    REFUSED(wireup_impi_leave(NULL), "the world is NULL");
    REFUSED(wireup_impi_close(NULL), "the world is NULL");
}

/* None of these sends anything, so they need no other process. */
static void wrong_arguments(void)
{
    size_t *counts = calloc((size_t)size, sizeof *counts);
    int value = 0;
    float real = 0;

    for (int type = -1; type <= TYPES; type += TYPES + 1) {
        REFUSED(wireup_impi_send(world, &value, 1, type, to, 0), "unknown");
        NOT_STARTED(wireup_impi_irecv(world, 1, type, from, 0), "unknown");
        REFUSED(wireup_impi_bcast(world, &value, 1, type, 0), "unknown");
    }
    REFUSED(wireup_impi_allreduce(world, &value, 1, WIREUP_IMPI_INT32, OPS), "unknown operation 9");
    REFUSED(wireup_impi_scan(world, &value, 1, WIREUP_IMPI_INT32, -1), "unknown operation -1");
    REFUSED(wireup_impi_allreduce(world, &real, 1, WIREUP_IMPI_FLOAT, WIREUP_IMPI_BXOR), "not defined");
    REFUSED(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, size, 0), "invalid process");
    REFUSED(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, -1, 0), "invalid rank -1");
    REFUSED(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, to, -1), "tag -1");
    REFUSED(wireup_impi_recv(world, &value, 1, WIREUP_IMPI_INT32, size, 0, NULL), "invalid process");
    REFUSED(wireup_impi_recv(world, &value, 1, WIREUP_IMPI_INT32, from, -7, NULL), "tag -7");
    REFUSED(wireup_impi_bcast(world, &value, 1, WIREUP_IMPI_INT32, size), "invalid process");
    REFUSED(wireup_impi_reduce(world, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_SUM, size), "invalid process");
    REFUSED(wireup_impi_send(world, NULL, 1, WIREUP_IMPI_INT32, to, 0), "null pointer");
    REFUSED(wireup_impi_print(world, NULL), "null pointer");
    REFUSED(wireup_impi_recv(world, NULL, 1, WIREUP_IMPI_INT32, from, 0, NULL), "null pointer");
    REFUSED(wireup_impi_gather(world, NULL, 1, WIREUP_IMPI_INT32, &value, rank ? 0 : 1), "null pointer");
    REFUSED(wireup_impi_gather(world, &value, 1, WIREUP_IMPI_INT32, NULL, rank), "null pointer");
    REFUSED(wireup_impi_alltoall(world, NULL, 1, WIREUP_IMPI_INT32, NULL), "null pointer");
    REFUSED(wireup_impi_gatherv(world, &value, 1, WIREUP_IMPI_INT32, &value, NULL, rank), "null pointer");
    REFUSED(wireup_impi_alltoallv(world, &value, NULL, WIREUP_IMPI_INT32, &value, NULL), "null pointer");
    REFUSED(wireup_impi_allgatherv(world, &value, 1, WIREUP_IMPI_INT32, NULL, counts), "invalid lengths");
    counts[0] = SIZE_MAX;
    REFUSED(wireup_impi_scatterv(world, &value, counts, 1, WIREUP_IMPI_INT32, &value, rank), "the number of bytes is too large");
    free(counts);
    REFUSED(wireup_impi_send(world, &value, SIZE_MAX, WIREUP_IMPI_INT32, to, 0), "the number of bytes is too large");
    REFUSED(wireup_impi_send(world, &value, SIZE_MAX, WIREUP_IMPI_BYTE, to, 0), "the number of bytes is too large");
    REFUSED(wireup_impi_allgather(world, &value, SIZE_MAX / 4, WIREUP_IMPI_INT32, &value), "the number of bytes is too large");
    REFUSED(wireup_impi_wait(world, 999999, NULL, 0, NULL), "unknown request 999999");
    REFUSED(wireup_impi_test(world, 999999), "unknown request 999999");
    REFUSED(wireup_impi_cancel(world, 999999), "unknown request 999999");
}

/* Messages of each type: as they are, as they cross, and as another machine may have sent them. */
static void types(int external32)
{
    const uint16_t one = 1;
    const int little = *(const uint8_t *)&one;

    for (int type = 0; type < TYPES; type++) {
        unsigned char own[3 * 8], wire[3 * 8], got[3 * 8];
        const size_t each = width(type), length = 3 * each;
        for (size_t at = 0; at < length; at++)
            own[at] = (unsigned char)(at + 1);
        for (size_t at = 0; at < length; at++)
            wire[at] = own[external32 && little ? at / each * each + each - 1 - at % each : at];

        wireup_impi_request typed = isend(own, 3, type, 20);
        ENSURE(wireup_impi_recv(world, got, 3, type, from, 20, &status) == 0);
        ENSURE(memcmp(got, own, length) == 0 && status.bytes == length && status.source == from && status.tag == 20);
        finish(typed);
        typed = isend(own, 3, type, 21);
        ENSURE(wireup_impi_recv(world, got, length, WIREUP_IMPI_BYTE, from, 21, &status) == 0);
        ENSURE(memcmp(got, wire, length) == 0);
        finish(typed);
        wireup_impi_request bytes = isend(wire, length, WIREUP_IMPI_BYTE, 22);
        ENSURE(wireup_impi_recv(world, got, 3, type, from, 22, NULL) == 0);
        ENSURE(memcmp(got, own, length) == 0);
        finish(bytes);
    }
}

static void messages(void)
{
    char *data = malloc(MIB), *got = malloc(MIB), small[8] = "message";
    wireup_impi_request request, receive;

    /* None at all, and a long one that is there before it is wanted. */
    ENSURE(wireup_impi_iprobe(world, WIREUP_IMPI_ANY, 39, &status) == 0);
    request = isend(NULL, 0, WIREUP_IMPI_DOUBLE, 30);
    ENSURE(wireup_impi_recv(world, NULL, 0, WIREUP_IMPI_DOUBLE, WIREUP_IMPI_ANY, 30, &status) == 0);
    ENSURE(status.bytes == 0 && status.source == from && !status.cancelled);
    finish(request);
    memset(data, rank + 1, MIB);
    request = isend(data, MIB, WIREUP_IMPI_BYTE, 31);
    memset(data, 0, MIB);
    ENSURE(wireup_impi_probe(world, from, WIREUP_IMPI_ANY, &status) == 0);
    ENSURE(status.bytes == MIB && status.tag == 31);
    ENSURE(wireup_impi_iprobe(world, from, 31, NULL) == 1);
    ENSURE(wireup_impi_recv(world, got, MIB, WIREUP_IMPI_BYTE, from, 31, &status) == 0);
    ENSURE(got[0] == (char)(from + 1) && got[MIB - 1] == got[0]);
    finish(request);
    free(data);
    free(got);

    /* Synchronous ones; process 0 is even. */
    receive = wireup_impi_irecv(world, sizeof small, WIREUP_IMPI_BYTE, from, 32);
    ENSURE(receive != 0);
    ENSURE(wireup_impi_ssend(world, "ssend", 6, WIREUP_IMPI_BYTE, to, 32) == 0);
    ENSURE(wireup_impi_wait(world, receive, small, sizeof small, &status) == 0);
    ENSURE(status.bytes == 6 && strcmp(small, "ssend") == 0);
    request = wireup_impi_issend(world, "issend", 7, WIREUP_IMPI_BYTE, to, 33);
    ENSURE(request != 0);
    ENSURE(wireup_impi_test(world, request) == 0 || wireup_impi_test(world, request) == 1);
    ENSURE(wireup_impi_recv(world, small, sizeof small, WIREUP_IMPI_BYTE, from, 33, NULL) == 0);
    ENSURE(strcmp(small, "issend") == 0);
    while (wireup_impi_test(world, request) == 0)
        usleep(1000);
    finish(request);
    REFUSED(wireup_impi_wait(world, request, NULL, 0, NULL), "unknown request");

    /* Longer than the receiver takes: by its call, and by its buffer. Both are gone then. */
    request = isend("message", 8, WIREUP_IMPI_BYTE, 34);
    REFUSED(wireup_impi_recv(world, small, 1, WIREUP_IMPI_INT32, from, 34, &status), "has 8 bytes, but the receiver accepts 4");
    finish(request);
    request = isend("message", 8, WIREUP_IMPI_BYTE, 34);
    receive = wireup_impi_irecv(world, 8, WIREUP_IMPI_BYTE, from, 34);
    REFUSED(wireup_impi_wait(world, receive, small, 7, NULL), "has 8 bytes, but the receiver accepts 7");
    finish(request);
    ENSURE(wireup_impi_iprobe(world, from, 34, NULL) == 0);

    /* Taken back: what nobody receives. */
    receive = wireup_impi_irecv(world, 1, WIREUP_IMPI_BYTE, WIREUP_IMPI_ANY, 35);
    ENSURE(wireup_impi_test(world, receive) == 0);
    ENSURE(wireup_impi_cancel(world, receive) == 0);
    ENSURE(wireup_impi_wait(world, receive, NULL, 0, &status) == 0 && status.cancelled);
    request = wireup_impi_issend(world, "x", 1, WIREUP_IMPI_BYTE, to, 36);
    ENSURE(wireup_impi_cancel(world, request) == 0);
    ENSURE(wireup_impi_wait(world, request, NULL, 0, &status) == 0 && status.cancelled);
    ENSURE(wireup_impi_barrier(world) == 0);
    ENSURE(wireup_impi_iprobe(world, from, 36, NULL) == 0);
}

/* A process to itself, from two threads at once. */
/* Bytes of libraries with communicators: messages of other contexts and other calls are not theirs. */
static void contexts(int external32)
{
    enum { FIRST = 1000, SECOND = 1002 };
    uint8_t in[4] = {0}, number[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    wireup_impi_request sends[3], receive;

    sends[0] = wireup_impi_isend_bytes(world, "one", 4, to, 60, FIRST, 0);
    sends[1] = wireup_impi_isend_bytes(world, "two", 4, to, 60, SECOND, 1);
    sends[2] = isend("\0", 1, WIREUP_IMPI_INT8, 60);
    while (wireup_impi_iprobe_bytes(world, WIREUP_IMPI_ANY, WIREUP_IMPI_ANY, SECOND, &status) == 0)
        ENSURE(wireup_impi_pause(world, 100) == 0);
    ENSURE(status.source == from && status.tag == 60 && status.bytes == 4);
    receive = wireup_impi_irecv_bytes(world, sizeof in, from, 60, SECOND);
    ENSURE(receive != 0);
    while (wireup_impi_take(world, receive, in, sizeof in, &status) == 0)
        ENSURE(wireup_impi_pause(world, 100) == 0);
    ENSURE(memcmp(in, "two", 4) == 0 && status.bytes == 4 && !status.cancelled);
    ENSURE(wireup_impi_iprobe_bytes(world, from, 60, SECOND, &status) == 0);
    receive = wireup_impi_irecv_bytes(world, 2, WIREUP_IMPI_ANY, 60, FIRST);
    while (wireup_impi_take(world, receive, in, 2, &status) == 0)
        ENSURE(wireup_impi_pause(world, 100) == 0);
    /* The end of a longer message is lost. */
    ENSURE(memcmp(in, "ono", 3) == 0 && status.bytes == 4);
    ENSURE(wireup_impi_recv(world, in, 1, WIREUP_IMPI_INT8, from, 60, &status) == 0 && in[0] == 0);
    for (int i = 0; i < 3; i++)
        finish(sends[i]);
    ENSURE(wireup_impi_convert(world, number, sizeof number, 4) == 0);
    ENSURE(number[0] == (external32 ? 4 : 1) && number[7] == (external32 ? 5 : 8));
    ENSURE(wireup_impi_convert(world, number, sizeof number, 4) == 0);
    for (int i = 0; i < 8; i++)
        ENSURE(number[i] == i + 1);
    NOT_STARTED(wireup_impi_isend_bytes(world, in, 1, size, 60, FIRST, 0), "invalid process");
    NOT_STARTED(wireup_impi_irecv_bytes(world, 1, size, 60, FIRST), "invalid process");
}

/* Steps of a library with communicators: of one process in each of two clients. */
static void steps(void)
{
    static const int sizes[] = {1, 1}, broadcast[] = {WIREUP_IMPI_SEND, 0, 120, WIREUP_IMPI_COLLECTIVE, 1, 0};
    int words[6] = {0};

    ENSURE(wireup_impi_crossover(world) == atoi(getenv("IMPI_COLL_XSIZE")));
    ENSURE(wireup_impi_steps(world, sizes, 2, WIREUP_IMPI_BCAST, 1, 0, 1, NULL, 0) == 6);
    ENSURE(wireup_impi_steps(world, sizes, 2, WIREUP_IMPI_BCAST, 1, 0, 1, words, 6) == 6);
    ENSURE(memcmp(words, broadcast, sizeof words) == 0);
    REFUSED(wireup_impi_steps(world, sizes, 2, WIREUP_IMPI_BCAST, 2, 0, 0, words, 6), "the communicator has 2 processes");
    REFUSED(wireup_impi_steps(world, sizes, 2, WIREUP_IMPI_ALLTOALL + 1, 0, 0, 0, words, 6), "unknown collective 9");
    REFUSED(wireup_impi_steps(world, sizes, -1, WIREUP_IMPI_BCAST, 0, 0, 0, words, 6), "negative number of clients");
}

static void *to_itself(void *of)
{
    const int tag = *(int *)of;

    for (int at = 0; at < 50; at++) {
        int got = 0, value = tag * 1000 + at;
        ENSURE(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, rank, tag) == 0);
        ENSURE(wireup_impi_recv(world, &got, 1, WIREUP_IMPI_INT32, rank, tag, NULL) == 0);
        ENSURE(got == value);
        /* The text is this thread's. */
        REFUSED(wireup_impi_client_of(world, -tag), tag == 40 ? "-40" : "-41");
    }
    return NULL;
}

static void threads(void)
{
    pthread_t running[2];
    int tags[2] = {40, 41};

    for (int at = 0; at < 2; at++)
        ENSURE(pthread_create(&running[at], NULL, to_itself, &tags[at]) == 0);
    for (int at = 0; at < 2; at++)
        ENSURE(pthread_join(running[at], NULL) == 0);
}

static int64_t value_of(int process, size_t at)
{
    return (process * 3 + (int64_t)at) % 5 + (at % 7 != 0);
}

static int64_t apply(int op, int64_t a, int64_t b)
{
    switch (op) {
    case WIREUP_IMPI_SUM: return a + b;
    case WIREUP_IMPI_PROD: return a * b;
    case WIREUP_IMPI_MIN: return a < b ? a : b;
    case WIREUP_IMPI_MAX: return a > b ? a : b;
    case WIREUP_IMPI_BAND: return a & b;
    case WIREUP_IMPI_BOR: return a | b;
    case WIREUP_IMPI_BXOR: return a ^ b;
    case WIREUP_IMPI_LAND: return a && b;
    default: return a || b;
    }
}

static void fill(int type, void *data, size_t count, int process)
{
    for (size_t at = 0; at < count; at++)
        put(type, data, at, value_of(process, at));
}

/* What all processes before `end` make of their values. */
static void combined(int type, int op, void *data, size_t count, int end)
{
    for (size_t at = 0; at < count; at++) {
        int64_t value = value_of(0, at);
        for (int process = 1; process < end; process++)
            value = apply(op, value, value_of(process, at));
        put(type, data, at, value);
    }
}

static void reductions(size_t count)
{
    for (int type = 0; type < TYPES; type++) {
        const size_t length = count * width(type);
        char *data = malloc(length), *wanted = malloc(length);
        const int last = type < WIREUP_IMPI_FLOAT ? WIREUP_IMPI_LOR : WIREUP_IMPI_MAX;
        for (int op = 0; op <= last; op++) {
            fill(type, data, count, rank);
            combined(type, op, wanted, count, size);
            ENSURE(wireup_impi_allreduce(world, data, count, type, op) == 0);
            ENSURE(memcmp(data, wanted, length) == 0);
            fill(type, data, count, rank);
            ENSURE(wireup_impi_reduce(world, data, count, type, op, size - 1) == 0);
            ENSURE(rank != size - 1 || memcmp(data, wanted, length) == 0);
            fill(type, data, count, rank);
            combined(type, op, wanted, count, rank + 1);
            ENSURE(wireup_impi_scan(world, data, count, type, op) == 0);
            ENSURE(memcmp(data, wanted, length) == 0);
        }
        free(data);
        free(wanted);
    }
}

static void exchanges(int type, size_t count)
{
    const size_t length = count * width(type);
    char *own = malloc(length), *all = malloc(size * length), *wanted = malloc(size * length);

    for (int root = 0; root < size; root += size - 1) {
        fill(type, own, count, rank);
        ENSURE(wireup_impi_bcast(world, own, count, type, root) == 0);
        fill(type, wanted, count, root);
        ENSURE(memcmp(own, wanted, length) == 0);

        fill(type, own, count, rank);
        for (int process = 0; process < size; process++)
            fill(type, wanted + process * length, count, process);
        ENSURE(wireup_impi_gather(world, own, count, type, rank == root ? all : NULL, root) == 0);
        ENSURE(rank != root || memcmp(all, wanted, size * length) == 0);
        memset(own, 0, length);
        ENSURE(wireup_impi_scatter(world, rank == root ? wanted : NULL, count, type, own, root) == 0);
        ENSURE(memcmp(own, wanted + rank * length, length) == 0);
    }
    ENSURE(wireup_impi_allgather(world, own, count, type, all) == 0);
    ENSURE(memcmp(all, wanted, size * length) == 0);
    for (int process = 0; process < size; process++) {
        fill(type, all + process * length, count, rank * size + process);
        fill(type, wanted + process * length, count, process * size + rank);
    }
    char *out = malloc(size * length);
    memcpy(out, all, size * length);
    ENSURE(wireup_impi_alltoall(world, out, count, type, all) == 0);
    ENSURE(memcmp(all, wanted, size * length) == 0);
    free(out);
    free(own);
    free(all);
    free(wanted);
}

/* Elements of a process where their number differs: none of each third one. */
static size_t part(int process, size_t count)
{
    return (size_t)(process % 3) * count;
}

/* Fills the blocks of all processes; block `p` has as many elements as `first + p` gives, with the values of `factor * p + own`. */
static void fill_parts(int type, void *data, size_t count, int first, int factor, int own)
{
    size_t next = 0;

    for (int process = 0; process < size; process++) {
        fill(type, (char *)data + next * width(type), part(first + process, count), factor * process + own);
        next += part(first + process, count);
    }
}

static void exchanges_of_different_lengths(int type, size_t count)
{
    const size_t most = 2 * size * count * width(type), own_count = part(rank, count);
    char *own = calloc(1, most), *all = calloc(1, most), *wanted = calloc(1, most);
    size_t *counts = calloc((size_t)size, sizeof *counts), sum = 0;

    for (int process = 0; process < size; process++)
        sum += counts[process] = part(process, count);
    fill_parts(type, wanted, count, 0, 1, 0);
    for (int root = 0; root < size; root += size - 1) {
        fill(type, own, own_count, rank);
        ENSURE(wireup_impi_gatherv(world, own, own_count, type, rank == root ? all : NULL, rank == root ? counts : NULL, root) == 0);
        ENSURE(rank != root || memcmp(all, wanted, sum * width(type)) == 0);
        memset(own, 0, most);
        ENSURE(wireup_impi_scatterv(world, rank == root ? wanted : NULL, rank == root ? counts : NULL, own_count, type, own, root)
               == 0);
        fill(type, all, own_count, rank);
        ENSURE(memcmp(own, all, own_count * width(type)) == 0);
    }
    ENSURE(wireup_impi_allgatherv(world, own, own_count, type, all, counts) == 0);
    ENSURE(memcmp(all, wanted, sum * width(type)) == 0);

    sum = 0;
    for (int process = 0; process < size; process++)
        sum += counts[process] = part(rank + process, count);
    fill_parts(type, own, count, rank, 1, rank * size);
    fill_parts(type, wanted, count, rank, size, rank);
    ENSURE(wireup_impi_alltoallv(world, own, counts, type, all, counts) == 0);
    ENSURE(memcmp(all, wanted, sum * width(type)) == 0);
    free(own);
    free(all);
    free(wanted);
    free(counts);
}

/* The world is freed all the same. */
static void lost(void)
{
    int value = 0;

    ENSURE(wireup_impi_irecv(world, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_ANY, 49) != 0);
    if (rank == 1) {
        for (int process = 1; process < size; process++)
            ENSURE(wireup_impi_recv(world, &value, 1, WIREUP_IMPI_INT32, WIREUP_IMPI_ANY, 50, NULL) == 0);
        kill(getpid(), SIGKILL);
    }
    ENSURE(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, 1, 50) == 0);
    REFUSED(wireup_impi_recv(world, &value, 1, WIREUP_IMPI_INT32, 1, 50, NULL), "the job has failed");
    REFUSED(wireup_impi_send(world, &value, 1, WIREUP_IMPI_INT32, to, 50), "the job has failed");
    REFUSED(wireup_impi_barrier(world), "the job has failed");
    REFUSED(wireup_impi_close(world), "the job has failed");
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";

    joining();
    if (strcmp(mode, "lost") == 0) {
        lost();
        return 0;
    }
    without_a_world();
    wrong_arguments();
    types(strcmp(mode, "external32") == 0);
    messages();
    contexts(strcmp(mode, "external32") == 0);
    steps();
    threads();
    for (size_t count = 1; count <= 400; count += 399) {
        reductions(count);
        exchanges(WIREUP_IMPI_INT16, count);
        exchanges(WIREUP_IMPI_DOUBLE, count);
        exchanges_of_different_lengths(WIREUP_IMPI_INT16, count);
        exchanges_of_different_lengths(WIREUP_IMPI_DOUBLE, count);
    }
    ENSURE(wireup_impi_barrier(world) == 0);
    ENSURE((strcmp(mode, "native") == 0 ? wireup_impi_close(world) : wireup_impi_leave(world)) == 0);
    printf("done\n");
    return 0;
}
