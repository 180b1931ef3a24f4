/*
 * libwireup_impi: a process of any MPI, or of none, takes part in an IMPI job.
 *
 * Ranks are those of the world that all clients form: wireup_impi_rank() is this process's. Every function that returns
 * an int returns 0 or the requested number, or -1 and leaves the reason in wireup_impi_error().
 *
 * Ownership:
 * - The world is the library's: it is made by wireup_impi_open() and freed by wireup_impi_close(), with its threads and
 *   all requests, also when that fails. No function may be called with it during or after wireup_impi_close().
 * - Buffers are the caller's, and none is kept after a call: a send has copied its data when it returns, also
 *   wireup_impi_isend(), and a receive writes only in wireup_impi_recv() or wireup_impi_wait(). The buffers of one call may
 *   not overlap. One without elements may be NULL, as may those that a process that is not the root does not use.
 * - A request ends with one wireup_impi_wait(), also where that fails: a message that is longer than its receiver's
 *   buffer is lost. Only if the job is broken, requests go on until wireup_impi_close().
 * - The text of wireup_impi_error() is the library's. It is the calling thread's, and valid until that thread's next call
 *   that fails.
 *
 * All functions may be called by several threads at once; collectives by one at a time. A child of fork() must not use the
 * world of its parent.
 */
#ifndef WIREUP_IMPI_H
#define WIREUP_IMPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wireup_impi wireup_impi;

/* A request, which ends with wireup_impi_wait. 0 is no request. */
typedef uint64_t wireup_impi_request;

enum wireup_impi_type {
    WIREUP_IMPI_BYTE, WIREUP_IMPI_INT8, WIREUP_IMPI_UINT8, WIREUP_IMPI_INT16, WIREUP_IMPI_UINT16, WIREUP_IMPI_INT32,
    WIREUP_IMPI_UINT32, WIREUP_IMPI_INT64, WIREUP_IMPI_UINT64, WIREUP_IMPI_FLOAT, WIREUP_IMPI_DOUBLE
};

enum wireup_impi_op {
    WIREUP_IMPI_SUM, WIREUP_IMPI_PROD, WIREUP_IMPI_MIN, WIREUP_IMPI_MAX, WIREUP_IMPI_BAND, WIREUP_IMPI_BOR,
    WIREUP_IMPI_BXOR, WIREUP_IMPI_LAND, WIREUP_IMPI_LOR
};

#define WIREUP_IMPI_ANY (-1)

struct wireup_impi_status {
    int source;
    int tag;
    uint64_t bytes;
    int cancelled;
};

/* Joins by the environment that the agent has made; NULL if that fails. */
wireup_impi *wireup_impi_open(void);
/* Waits for all processes in a barrier, then leaves. Frees `world`, also when it fails. */
int wireup_impi_close(wireup_impi *world);
const char *wireup_impi_error(void);

int wireup_impi_rank(const wireup_impi *world);
int wireup_impi_size(const wireup_impi *world);
int wireup_impi_clients(const wireup_impi *world);
/* Returns the client of a rank, or -1. */
int wireup_impi_client_of(const wireup_impi *world, int rank);

/* Sends or receives. Counts are of elements of `type`. */
int wireup_impi_send(wireup_impi *world, const void *data, size_t count, int type, int to, int tag);
int wireup_impi_ssend(wireup_impi *world, const void *data, size_t count, int type, int to, int tag);
int wireup_impi_recv(wireup_impi *world, void *data, size_t count, int type, int source, int tag,
                     struct wireup_impi_status *status);
/* Starts a send or receive; returns 0 if that fails. */
wireup_impi_request wireup_impi_isend(wireup_impi *world, const void *data, size_t count, int type, int to, int tag);
wireup_impi_request wireup_impi_issend(wireup_impi *world, const void *data, size_t count, int type, int to, int tag);
wireup_impi_request wireup_impi_irecv(wireup_impi *world, size_t count, int type, int source, int tag);
/* Waits; the message of a receive goes to `data`, which has room for `bytes`. `status` may be NULL. */
int wireup_impi_wait(wireup_impi *world, wireup_impi_request request, void *data, size_t bytes,
                     struct wireup_impi_status *status);
/* Returns 1 if the request has ended, 0 if not; wireup_impi_wait() is needed in either case. */
int wireup_impi_test(wireup_impi *world, wireup_impi_request request);
/* Cancels a request. wireup_impi_wait() is still needed: its status shows whether the request was cancelled. */
int wireup_impi_cancel(wireup_impi *world, wireup_impi_request request);
int wireup_impi_probe(wireup_impi *world, int source, int tag, struct wireup_impi_status *status);
/* Returns 1 if there is a message, 0 if not. */
int wireup_impi_iprobe(wireup_impi *world, int source, int tag, struct wireup_impi_status *status);

/* Prints lines at the print server of the job (`wireup impi server --print-server`), with the client and this process's rank; the
 * agent prints them if the launch uses none. The end of a text that is longer than a packet is lost. */
int wireup_impi_print(wireup_impi *world, const char *text);

/*
 * Messages of a library that has communicators and data types: bytes as they are on the wire, in any context. Context 0 is
 * that of the functions above, and context 1 that of the collectives below.
 */
wireup_impi_request wireup_impi_isend_bytes(wireup_impi *world, const void *data, size_t bytes, int to, int tag,
                                            uint64_t context, int synchronous);
wireup_impi_request wireup_impi_irecv_bytes(wireup_impi *world, size_t bytes, int source, int tag, uint64_t context);
/* Returns 1 if there is a message, 0 if not. */
int wireup_impi_iprobe_bytes(wireup_impi *world, int source, int tag, uint64_t context,
                             struct wireup_impi_status *status);
/* Ends a request that has completed: returns 1, or 0 if the request goes on. `data` has room for `bytes`; the status has the
 * length of the message, of which a longer one loses its end. */
int wireup_impi_take(wireup_impi *world, wireup_impi_request request, void *data, size_t bytes,
                     struct wireup_impi_status *status);
/* Converts elements of `size` bytes each from the machine's byte order to that of messages, or back. */
int wireup_impi_convert(wireup_impi *world, void *data, size_t bytes, size_t size);
/* Waits until a packet arrives or a send progresses, at most so long. */
int wireup_impi_pause(wireup_impi *world, unsigned microseconds);

/*
 * Collectives of such a library, as other processes of the world execute them.
 *
 * wireup_impi_steps() writes what one process does, as numbers, and returns how many there are, of which `room` are written. The
 * communicator has `clients[i]` processes of its client i; processes count from 0, client after client. Each step is
 *     kind, process, tag, channel, number of blocks, blocks ...
 * A message has its blocks one behind the other. WIREUP_IMPI_RECEIVE_BEFORE makes a block the combination of the message and the
 * block; WIREUP_IMPI_COPY replaces the second block by the first, and WIREUP_IMPI_COMBINE by the combination of both.
 * Sends do not wait. A barrier has no blocks. Bcast, Reduce and Scan have 2, of which the first is the value. Otherwise block p
 * is that of process p; in Alltoall, of n processes, block s * n + d goes from s to d. Reduce is that of a commutative operation.
 * `is_long`: a process has data of wireup_impi_crossover() bytes or more.
 */
enum wireup_impi_collective {
    WIREUP_IMPI_BARRIER, WIREUP_IMPI_BCAST, WIREUP_IMPI_REDUCE, WIREUP_IMPI_SCAN, WIREUP_IMPI_GATHER, WIREUP_IMPI_SCATTER,
    WIREUP_IMPI_ALLGATHER, WIREUP_IMPI_ALLGATHERV, WIREUP_IMPI_ALLTOALL
};
enum wireup_impi_step {
    WIREUP_IMPI_SEND, WIREUP_IMPI_RECEIVE, WIREUP_IMPI_RECEIVE_BEFORE, WIREUP_IMPI_COPY, WIREUP_IMPI_COMBINE
};
enum wireup_impi_channel { WIREUP_IMPI_POINT_TO_POINT, WIREUP_IMPI_COLLECTIVE, WIREUP_IMPI_INSIDE_CLIENT };
int wireup_impi_steps(const wireup_impi *world, const int *clients, int client_count, int collective, int root, int is_long,
                      int process, int *steps, size_t room);
int wireup_impi_crossover(const wireup_impi *world);
/* As wireup_impi_close(), without its barrier: the caller has executed one of the world. */
int wireup_impi_leave(wireup_impi *world);

/* Executes a collective of all processes; `data` is replaced by the result. */
int wireup_impi_barrier(wireup_impi *world);
int wireup_impi_bcast(wireup_impi *world, void *data, size_t count, int type, int root);
int wireup_impi_reduce(wireup_impi *world, void *data, size_t count, int type, int op, int root);
int wireup_impi_allreduce(wireup_impi *world, void *data, size_t count, int type, int op);
int wireup_impi_scan(wireup_impi *world, void *data, size_t count, int type, int op);
/* Gathers or distributes. `count` is that of one process; `all` has size * count elements, and only the root uses
 * it in the first two. */
int wireup_impi_gather(wireup_impi *world, const void *own, size_t count, int type, void *all, int root);
int wireup_impi_scatter(wireup_impi *world, const void *all, size_t count, int type, void *own, int root);
int wireup_impi_allgather(wireup_impi *world, const void *own, size_t count, int type, void *all);
int wireup_impi_alltoall(wireup_impi *world, const void *out, size_t count, int type, void *all);
/* Does the same with blocks of different lengths. `counts` has the elements of each process, whose blocks follow one another in
 * the order of ranks; `count` is that of this process. Only the root uses `all` and `counts` in the first two. */
int wireup_impi_gatherv(wireup_impi *world, const void *own, size_t count, int type, void *all, const size_t *counts, int root);
int wireup_impi_scatterv(wireup_impi *world, const void *all, const size_t *counts, size_t count, int type, void *own, int root);
int wireup_impi_allgatherv(wireup_impi *world, const void *own, size_t count, int type, void *all, const size_t *counts);
int wireup_impi_alltoallv(wireup_impi *world, const void *out, const size_t *out_counts, int type, void *all,
                          const size_t *all_counts);

#ifdef __cplusplus
}
#endif

#endif
