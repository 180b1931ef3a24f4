/*
 * libwireup_impi_mpich, libwireup_impi_openmpi and libwireup_impi_abi: an MPI program that was not changed runs in an IMPI
 * job. Each is this source with the mpi.h of one binary interface.
 *
 * The library is loaded in front of the launch's MPI. It defines the functions MPI_*, which the program calls, by their names
 * PMPI_* too, which Fortran libraries call. It calls PMPI_* of the launch's MPI. MPI_COMM_WORLD is the world of all clients. What stays in a client goes to its MPI; what
 * crosses clients goes through libwireup_impi.
 *
 *   impi_comm communicator   has members in several clients. Its handle is a communicator of the launch's MPI with the members of
 *                         this client, so attributes, names and error handlers are those of the handle.
 *   operation             a send or receive of a communicator with several clients. Its request is a generalized request of the launch's MPI,
 *                         so the functions of that MPI complete requests of both kinds together.
 *   pending receive       a receive whose source may be in this client or in another. It is posted on neither side; the
 *                         library looks for messages on both.
 *
 * Ownership:
 * - A impi_comm communicator is freed with its last reference: one is the program's handle, the others are operations.
 * - An operation belongs to the function that waits for it, or to its request, or (if the program has freed that) to itself.
 * - The group `own` of an intercommunicator belongs to it. Operations of that group are parts of an exchange of the
 *   intercommunicator, which has a reference.
 * - Buffers are the program's. Sends copy at once; receives write when they complete.
 *
 * Locking: one mutex guards all tables and operations. It is held while messages are looked for and completed, and never while
 * a function waits. It is recursive, since a reduction that completes may call an operator of the program.
 */
#ifndef WIREUP_IMPI_PRELOAD_H
#define WIREUP_IMPI_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mpi_functions.h"
#include "wireup-impi.h"

/* Tags of the collectives between clients. Source: LAM/MPI 7.1.4. */
enum collective_tag {
    TAG_BCAST = 120, TAG_GATHER = 130, TAG_GATHERV = 140, TAG_SCATTER = 150, TAG_SCATTERV = 160, TAG_ALLTOALL = 170,
    TAG_ALLTOALLV = 180, TAG_REDUCE = 190, TAG_SCAN = 200, TAG_NONBLOCKING = 210, TAG_GROUP = 1024, GROUP_TAGS = 16384
};

/* Messages of the program and those of collectives have contexts of their own. */
enum channel { POINT_TO_POINT, COLLECTIVE };

/* Cartesian topology. */
struct cartesian {
    int dimensions;
    int *sizes;
    int *periods;
};

/* Graph topology: the neighbors of a node end before its index into the edges. */
struct graph {
    int nodes;
    int *index;
    int *edges;
};

struct operation;
struct exchange;

struct impi_comm {
    MPI_Comm local;      /* the program's handle: the members of this client */
    MPI_Comm collective; /* the same members, for messages of collectives */
    uint64_t context;    /* of POINT_TO_POINT; COLLECTIVE has the next one */
    int size;
    int rank;            /* -1 in an intercommunicator */
    int local_size;
    int *world_ranks;    /* by rank */
    int *local_ranks;    /* by rank: rank in `local`, -1 for a member of another client */
    int *ranks;          /* by rank in `local` */
    int *clients;        /* by rank: index into `masters` */
    int *masters;        /* lowest rank of each client, ascending */
    int master_count;
    int *client_sizes;   /* by index into `masters` */
    int *order;          /* ranks, client after client */
    int *positions;      /* by rank: index into `order` */
    struct impi_comm *own; /* the group of this process in an intercommunicator, whose other fields have the remote group; NULL
                              in others. It has the same handles and context, and no handle of its own */
    struct operation *first_pending; /* in the order of posting */
    struct operation *last_pending;
    struct cartesian *cartesian;     /* NULL without this topology */
    struct graph *graph;             /* NULL without this topology */
    int references;
    struct impi_comm *next;
};

enum operation_state {
    OPERATION_REMOTE,  /* request of libwireup_impi */
    OPERATION_PENDING, /* receive without a message, of any source */
    OPERATION_LOCAL,   /* request of the launch's MPI */
    OPERATION_EXCHANGE, /* ends with the operations of its exchange */
    OPERATION_DONE
};

enum request_kind {
    REQUEST_OPERATION,  /* generalized request */
    REQUEST_LOCAL,      /* request of the launch's MPI for a receive whose status is translated */
    REQUEST_PERSISTENT
};

enum send_mode { SEND_STANDARD, SEND_BUFFERED, SEND_SYNCHRONOUS, SEND_READY };

/* Arguments of a send or receive. */
struct transfer {
    struct impi_comm *impi_comm;
    void *buffer; /* of a send: not written */
    int count;
    MPI_Datatype type;
    int peer; /* rank; MPI_ANY_SOURCE or MPI_PROC_NULL too */
    int tag;
    bool is_send;
    enum send_mode mode;
};

struct operation {
    enum operation_state state;
    enum request_kind kind;
    struct transfer transfer;
    MPI_Request request;        /* of the program; MPI_REQUEST_NULL for a blocking call */
    MPI_Request local;          /* request of OPERATION_LOCAL */
    wireup_impi_request remote; /* request of OPERATION_REMOTE */
    MPI_Request started;        /* REQUEST_PERSISTENT: the active request */
    size_t limit;               /* bytes of a receive */
    struct exchange *exchange;  /* of OPERATION_EXCHANGE; owned */
    void *packed;               /* message of a receive into a buffer with gaps; owned */
    bool owns_type;             /* the type is a duplicate */
    bool is_detached;           /* the program has freed the request */
    bool is_cancelled;
    int source;
    int tag;
    int bytes;
    int error;
    struct operation *next_active;
    struct operation *next_pending;
    struct operation *next_request;
};

/* Message that MPI_Mprobe or MPI_Improbe has found. */
struct found_message {
    MPI_Message local;          /* MPI_MESSAGE_NULL for one of another client */
    wireup_impi_request remote;
    struct impi_comm *impi_comm;
    int source;
    int tag;
    int bytes;
};

/* ---- world.c ---- */
extern wireup_impi *impi_world; /* NULL outside an IMPI job, and after MPI_Finalize */
extern MPI_Comm self_comm; /* this process alone, for messages of the library */
void lock(void);
void unlock(void);
_Noreturn void fail_job(const char *function); /* reports the error of libwireup_impi, and aborts the launch */
void *allocate(size_t bytes);                  /* zeroed; aborts the launch without memory */
int *copy_numbers(const int *numbers, int count); /* the caller frees the copy */
int raise_error(MPI_Comm local, int code);     /* calls the error handler of a communicator; returns the code */
/* Reports that a function does not support a communicator, and calls the error handler. */
int refuse(MPI_Comm local, const char *function);

/* ---- handles.c: handles that the launch's MPI does not have ---- */
intptr_t add_handle(void *object);
void *handle_object(intptr_t handle); /* NULL for a handle of the launch's MPI */
void remove_handle(intptr_t handle);

/* ---- communicators.c ---- */
enum { IMPI_COMM_BITS = 10 };
extern struct impi_comm *impi_comm_buckets[1 << IMPI_COMM_BITS];
struct impi_comm *search_impi_comm(MPI_Comm comm);

/* Handles differ in a few bits anywhere; the multiplier (2^64 divided by the golden ratio) spreads them. */
static inline struct impi_comm **impi_comm_bucket(MPI_Comm comm)
{
    return &impi_comm_buckets[(uint64_t)(uintptr_t)comm * UINT64_C(0x9E3779B97F4A7C15) >> (64 - IMPI_COMM_BITS)];
}

/* NULL for a communicator of one client: without a call or a lock, which would cost more than the rest, unless another is in
 * its bucket. */
static inline struct impi_comm *find_impi_comm(MPI_Comm comm)
{
    return __atomic_load_n(impi_comm_bucket(comm), __ATOMIC_ACQUIRE) == NULL ? NULL : search_impi_comm(comm);
}

/* Adds a communicator with these members, whose ranks in the world it takes over. Returns NULL if they are of one client. */
struct impi_comm *add_impi_comm(MPI_Comm local, int size, int *world_ranks, uint64_t context);
/* Groups of an intercommunicator as ranks in the world; both are owned. */
struct two_groups {
    int own_size;
    int *own;
    int remote_size;
    int *remote;
    uint64_t context;
};
/* Adds an intercommunicator of these groups, which it takes over. `local` has their members in this client by world rank, and
 * `collective` too, unless it is MPI_COMM_NULL and has to be made. */
void add_inter(MPI_Comm local, MPI_Comm collective, const struct two_groups *groups);
void release_impi_comm(struct impi_comm *impi_comm); /* with the lock */
/* Returns those of a group with this color, as ranks in the world by key and then by rank, which the caller frees. `choices` has
 * the color and the key of each. */
int *choose_members(const int *choices, int size, const int *world_ranks, int color, int *count);
extern uint64_t last_context;               /* the greatest that this process has used */

/* ---- intercommunicators.c ---- */
/* MPI_Comm_split of an intercommunicator. */
int split_inter(struct impi_comm *impi_comm, int color, int key, MPI_Comm *part);
/* Returns an unused context, on which the members of both groups agree. */
int agree_with_peers(struct impi_comm *impi_comm, uint64_t *context);
/* Puts members of two groups in the order of the world; the caller frees them. */
int *sort_members(int own_size, const int *own, int remote_size, const int *remote);

/* ---- topologies.c ---- */
void copy_topology(const struct impi_comm *from, struct impi_comm *to);
void free_topology(struct impi_comm *impi_comm);

/* ---- groups.c ---- */
/* Makes a group of these members, ranks in the world, which it takes over. */
MPI_Group make_group(int size, int *members);
/* Copies the members of a group of either kind; the caller frees them, also after an error. */
int copy_members(MPI_Group group, int *size, int **members);
/* Copies a group of either kind whose members are of this client. */
int copy_to_local_group(MPI_Group group, MPI_Group *local);
/* Makes a group of those members that are in this client. */
int copy_local_members(int size, const int *members, MPI_Group *local);
bool is_impi_comm_group(MPI_Group group);
int compare_members(int first_size, const int *first, int second_size, const int *second);

/* ---- layouts.c ---- */
/* Returns the bytes of elements on the wire, or -1 if a message cannot have as many. */
int wire_bytes(int count, MPI_Datatype type);
/* Returns a message, which the caller frees. */
void *pack_message(const void *buffer, int count, MPI_Datatype type, int bytes);
void unpack_message(void *packed, int bytes, void *buffer, int count, MPI_Datatype type);
void convert_elements(MPI_Datatype type, void *data, size_t bytes);
bool has_gaps(MPI_Datatype type);
bool is_named(MPI_Datatype type);

/* ---- operations.c ---- */
/* Operations that progress only in `advance_operations`: while there are any, no function may wait in the launch's MPI. */
extern _Atomic int polled_count;
extern int active_count; /* operations that are not complete */
void advance_operations(void); /* with the lock */
/* Starts a send or receive on a channel. With `request` the operation belongs to that, otherwise to the caller. */
int start_operation(const struct transfer *transfer, enum channel channel, MPI_Request *request,
                    struct operation **operation);
void wait_operation(struct operation *operation);
/* Waits, writes the status and frees the operation; returns its error. */
int finish_operation(struct operation *operation, MPI_Status *status);
void free_operation(struct operation *operation); /* with the lock */
void cancel_operation(struct operation *operation); /* with the lock */
void detach_operation(struct operation *operation); /* with the lock */
/* Looks for a message, once or until there is one. With `message` the message is taken, and received by `receive_found`. */
bool find_message(struct impi_comm *impi_comm, int source, int tag, bool waits, struct found_message **message,
                  MPI_Status *status);
/* Starts to receive a message that was found, which is freed. */
int receive_found(struct found_message *message, const struct transfer *transfer, MPI_Request *request,
                  struct operation **operation);
void write_status(MPI_Status *status, int source, int tag, int bytes, bool is_cancelled);
/* Waits a moment while nothing progresses; `round` counts the calls. */
void pause_progress(unsigned round);

/* Starts an operation that ends with a request of the launch's MPI; it belongs to the caller. */
struct operation *watch_request(struct impi_comm *impi_comm, MPI_Request local);
/* Starts an operation that ends with an exchange, which it takes over. Without a request it belongs to the caller. */
struct operation *start_exchange(struct exchange *exchange, struct impi_comm *impi_comm, MPI_Request *request);

/* ---- exchanges.c ---- */
/* Values of several processes, one behind the other, and what becomes of them. */
struct reduction {
    char *values;
    int value_count;
    MPI_Aint stride; /* bytes from one value to the next */
    int count;       /* elements of a value */
    MPI_Datatype type;
    MPI_Op op;
    void *result;
};

/* Makes an exchange for at most one message to each member and one from each, and two requests of the launch's MPI;
 * `end_exchange` follows. */
struct exchange *create_exchange(struct impi_comm *impi_comm, enum channel channel, int tag);
/* Starts a message. After an error, nothing more is started. */
void add_message(struct exchange *exchange, const void *buffer, int count, MPI_Datatype type, int peer, bool is_send);
/* The same; nothing is started for MPI_PROC_NULL. */
void add_transfer(struct exchange *exchange, const struct transfer *transfer);
/* Adds a request of the launch's MPI, which is taken over. */
void add_local(struct exchange *exchange, MPI_Request local);
void add_error(struct exchange *exchange, int error);
/* Frees memory of messages or values after the exchange; once for each. */
void keep_memory(struct exchange *exchange, void *memory);
/* Combines values when all messages are complete. */
void add_reduction(struct exchange *exchange, const struct reduction *reduction);
/* Calls a function with the memory when all messages are complete; it returns an error. */
void call_at_end(struct exchange *exchange, int (*function)(void *memory));
/* Waits and returns the error, or lets `request` end with the exchange, which is taken over. */
int end_exchange(struct exchange *exchange, MPI_Request *request);
bool is_exchange_complete(const struct exchange *exchange); /* with the lock */
/* Gives an operation the results of an exchange that is complete. */
void settle_exchange(const struct exchange *exchange, struct operation *operation); /* with the lock */
void free_exchange(struct exchange *exchange);                                      /* with the lock */

/* ---- requests.c ---- */
struct operation *find_request(MPI_Request request); /* with the lock */
void add_request(struct operation *operation);       /* with the lock */
void remove_request(struct operation *operation);    /* with the lock */
/* Waits for a request of the launch's MPI while operations progress. */
int wait_local(MPI_Request *request, MPI_Status *status);
/* Starts a send or receive of the program; peers in this client are left to the launch's MPI. */
int start_request(const struct transfer *transfer, MPI_Request *request);
int create_persistent(const struct transfer *transfer, MPI_Request *request);

/* ---- collective_steps.c ---- */
/* Memory for elements. */
struct scratch {
    void *memory;
    void *elements;
};

struct scratch make_scratch(int64_t count, MPI_Datatype type); /* the caller frees the memory */
MPI_Aint extent_of(MPI_Datatype type);

/* Data of a collective in the blocks of wireup_impi_steps. */
struct step_blocks {
    char **starts;      /* NULL for a block that this process does not have yet; it is then owned */
    const int *counts;  /* elements of each block; NULL if all have `count` */
    int count;
    MPI_Datatype type;  /* MPI_BYTE if a message may have several blocks */
    MPI_Op op;          /* of Reduce and Scan */
};

/* A collective of a communicator with several clients. */
struct table {
    enum wireup_impi_collective collective;
    int root;
    bool is_long;
    bool skips_client; /* leaves messages inside a client out */
};

/* Executes the steps of this process. */
int execute_steps(struct impi_comm *impi_comm, const struct table *table, const struct step_blocks *blocks);

/* ---- collectives.c ---- */
int impi_comm_barrier(struct impi_comm *impi_comm);
int impi_comm_bcast(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int root);
/* Gives numbers of each member to all, in the order of ranks. */
int exchange_numbers(struct impi_comm *impi_comm, const int *own, int count, int *all);

/* Copies elements within this process. */
int copy_block(const void *from, int from_count, MPI_Datatype from_type, void *to, int to_count, MPI_Datatype to_type);

#endif
