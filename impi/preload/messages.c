/* Point-to-point functions of MPI. */
#include <limits.h>
#include <stdlib.h>

#include "preload.h"

/* Whether a message between clients may have as many elements. */
static bool is_countable(int64_t count)
{
    return count <= INT_MAX;
}

/* Whether a message is certainly left to the launch's MPI, which may wait. */
static inline bool is_direct(MPI_Comm comm)
{
    return __atomic_load_n(impi_comm_bucket(comm), __ATOMIC_RELAXED) == NULL && polled_count == 0;
}

static bool is_local_peer(const struct impi_comm *impi_comm, int peer)
{
    return peer >= 0 && peer < impi_comm->size && impi_comm->local_ranks[peer] >= 0;
}

static int send_local(const struct transfer *transfer)
{
    const int peer = transfer->impi_comm->local_ranks[transfer->peer];
    const MPI_Comm local = transfer->impi_comm->local;

    switch (transfer->mode) {
    case SEND_BUFFERED:
        return PMPI(Bsend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local);
    case SEND_SYNCHRONOUS:
        return PMPI(Ssend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local);
    case SEND_READY:
        return PMPI(Rsend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local);
    case SEND_STANDARD: break;
    }
    return PMPI(Send)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local);
}

/* Starts a buffered send to another client, whose data was copied: it completes by itself. */
static int send_copied(const struct transfer *transfer)
{
    struct operation *operation;
    const int error = start_operation(transfer, POINT_TO_POINT, NULL, &operation);

    if (error == MPI_SUCCESS) {
        lock();
        detach_operation(operation);
        unlock();
    }
    return error;
}

static int send_impi_comm(struct impi_comm *impi_comm, const void *buffer, int count, MPI_Datatype type, int to, int tag,
                       enum send_mode mode)
{
    const struct transfer transfer = {impi_comm, (void *)(uintptr_t)buffer, count, type, to, tag, true, mode};
    const bool is_local = is_local_peer(impi_comm, to);
    struct operation *operation;

    if (to == MPI_PROC_NULL) {
        return MPI_SUCCESS;
    }
    if (is_local && polled_count == 0) {
        return send_local(&transfer);
    }
    if (!is_local && mode == SEND_BUFFERED) {
        return send_copied(&transfer);
    }
    const int error = start_operation(&transfer, POINT_TO_POINT, NULL, &operation);
    return error == MPI_SUCCESS ? finish_operation(operation, MPI_STATUS_IGNORE) : error;
}

static int isend_impi_comm(struct impi_comm *impi_comm, const void *buffer, int count, MPI_Datatype type, int to, int tag,
                        enum send_mode mode, MPI_Request *request)
{
    const struct transfer transfer = {impi_comm, (void *)(uintptr_t)buffer, count, type, to, tag, true, mode};

    if (mode == SEND_BUFFERED && to != MPI_PROC_NULL && !is_local_peer(impi_comm, to)) {
        const int error = send_copied(&transfer);
        const struct transfer nothing = {.impi_comm = impi_comm, .peer = MPI_PROC_NULL, .is_send = true};
        return error == MPI_SUCCESS ? start_request(&nothing, request) : error;
    }
    return start_request(&transfer, request);
}

static int receive_impi_comm(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int from, int tag,
                          MPI_Status *status)
{
    const struct transfer transfer = {impi_comm, buffer, count, type, from, tag, false, SEND_STANDARD};
    struct operation *operation;

    if (from == MPI_PROC_NULL) {
        return PMPI(Recv)(buffer, count, type, from, tag, impi_comm->local, status);
    }
    if (is_local_peer(impi_comm, from) && polled_count == 0) {
        const int error = PMPI(Recv)(buffer, count, type, impi_comm->local_ranks[from], tag, impi_comm->local, status);
        if (status != MPI_STATUS_IGNORE) {
            status->MPI_SOURCE = from;
        }
        return error;
    }
    const int error = start_operation(&transfer, POINT_TO_POINT, NULL, &operation);
    return error == MPI_SUCCESS ? finish_operation(operation, status) : error;
}

static int exchange_impi_comm(const struct transfer *send, const struct transfer *receive, MPI_Status *status)
{
    MPI_Request in, out;
    int error = start_request(receive, &in);

    if (error != MPI_SUCCESS) {
        return raise_error(receive->impi_comm->local, error);
    }
    error = start_request(send, &out);
    if (error != MPI_SUCCESS) {
        MPI_Cancel(&in);
        MPI_Request_free(&in);
        return raise_error(send->impi_comm->local, error);
    }
    error = MPI_Wait(&out, MPI_STATUS_IGNORE);
    const int received = MPI_Wait(&in, status);
    return error == MPI_SUCCESS ? received : error;
}

/* Sends and receives as one request, which frees `memory`. */
static int iexchange_impi_comm(const struct transfer *send, const struct transfer *receive, void *memory, MPI_Request *request)
{
    struct exchange *exchange = create_exchange(send->impi_comm, POINT_TO_POINT, send->tag);

    keep_memory(exchange, memory);
    add_transfer(exchange, receive);
    add_transfer(exchange, send);
    return end_exchange(exchange, request);
}

/* Copies elements with their gaps; the caller frees `memory`. */
static void *copy_elements(const void *buffer, int count, MPI_Datatype type, void **memory)
{
    MPI_Aint lower, extent, true_lower, true_extent;

    PMPI(Type_get_extent)(type, &lower, &extent);
    PMPI(Type_get_true_extent)(type, &true_lower, &true_extent);
    const MPI_Aint span = count == 0 ? 0 : (count - 1) * extent + true_extent;
    *memory = allocate((size_t)span);
    if (span > 0) {
        memcpy(*memory, (const char *)buffer + true_lower, (size_t)span);
    }
    return (char *)*memory - true_lower;
}

/* Returns a message of a communicator with several clients, whose handle becomes MPI_MESSAGE_NULL; NULL for others. */
static struct found_message *take_found(MPI_Message *message)
{
    lock();
    struct found_message *found = handle_object((intptr_t)*message);
    if (found != NULL) {
        remove_handle((intptr_t)*message);
        *message = MPI_MESSAGE_NULL;
    }
    unlock();
    return found;
}

#if MPI_VERSION < 4
/* Functions that headers of MPI 3.1 lack and the launch's MPI may have. */
#pragma GCC visibility push(default)
int MPI_Isendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                  MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Request *request);
int PMPI_Isendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                   MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Request *request);
int MPI_Isendrecv_replace(void *buffer, int count, MPI_Datatype type, int to, int out_tag, int from, int in_tag,
                          MPI_Comm comm, MPI_Request *request);
int PMPI_Isendrecv_replace(void *buffer, int count, MPI_Datatype type, int to, int out_tag, int from, int in_tag,
                           MPI_Comm comm, MPI_Request *request);
#pragma GCC visibility pop
#endif

#define COUNT int
#define NAME(name) MPI_##name
#define CALL(name) PMPI(name)
#define DO(name) do_##name
#define DIRECT(name) direct_##name
#include "messages.inc"

#if MPI_VERSION >= 4
#undef COUNT
#undef NAME
#undef CALL
#undef DO
#undef DIRECT
#define COUNT MPI_Count
#define NAME(name) MPI_##name##_c
#define CALL(name) PMPI(name##_c)
#define DO(name) do_large_##name
#define DIRECT(name) direct_large_##name
#include "messages.inc"
#endif

/* ---- Probe ---- */

static bool is_source(const struct impi_comm *impi_comm, int source)
{
    return source == MPI_ANY_SOURCE || (source >= 0 && source < impi_comm->size);
}

int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status *status)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL || source == MPI_PROC_NULL) {
        return PMPI(Probe)(source, tag, comm, status);
    }
    if (!is_source(impi_comm, source)) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    find_message(impi_comm, source, tag, true, NULL, status);
    return MPI_SUCCESS;
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL || source == MPI_PROC_NULL) {
        return PMPI(Iprobe)(source, tag, comm, flag, status);
    }
    if (!is_source(impi_comm, source)) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    *flag = find_message(impi_comm, source, tag, false, NULL, status);
    return MPI_SUCCESS;
}

static void give_message(struct found_message *found, MPI_Message *message)
{
    lock();
    *message = (MPI_Message)add_handle(found);
    unlock();
}

int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    struct found_message *found;

    if (impi_comm == NULL || source == MPI_PROC_NULL) {
        return PMPI(Mprobe)(source, tag, comm, message, status);
    }
    if (!is_source(impi_comm, source)) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    find_message(impi_comm, source, tag, true, &found, status);
    give_message(found, message);
    return MPI_SUCCESS;
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    struct found_message *found;

    if (impi_comm == NULL || source == MPI_PROC_NULL) {
        return PMPI(Improbe)(source, tag, comm, flag, message, status);
    }
    if (!is_source(impi_comm, source)) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    *flag = find_message(impi_comm, source, tag, false, &found, status);
    if (*flag) {
        give_message(found, message);
    } else {
        *message = MPI_MESSAGE_NULL;
    }
    return MPI_SUCCESS;
}
