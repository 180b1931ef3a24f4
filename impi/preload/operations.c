/*
 * Sends and receives of communicators with members in several clients.
 *
 *   send     ──▶ REMOTE or LOCAL ──▶ DONE
 *   receive  ──▶ REMOTE or LOCAL ──▶ DONE      its source is known, and no earlier receive is pending
 *            ──▶ PENDING ──▶ REMOTE or LOCAL   once a message was found
 *   exchange ──▶ EXCHANGE ──▶ DONE             with the last of its sends and receives
 *
 * Rule: of the receives that match a message, the one that was posted first takes it. Receives behind a pending one are
 * therefore pending too, and a message that was found goes to the first pending receive that matches it. Source: MPI 1.1, 3.5.
 */
#include <sched.h>
#include <stdlib.h>

#include "preload.h"

_Atomic int polled_count;
int active_count;

static struct operation *first_active;

/* Rounds without a pause, and with a short one: other processes of the host may need the processor. */
enum { YIELD_ROUNDS = 100, SHORT_ROUNDS = 1000, SHORT_PAUSE = 50, LONG_PAUSE = 500 };

static uint64_t context_of(const struct impi_comm *impi_comm, enum channel channel)
{
    return impi_comm->context + (channel == COLLECTIVE);
}

static MPI_Comm local_of(const struct impi_comm *impi_comm, enum channel channel)
{
    return channel == COLLECTIVE ? impi_comm->collective : impi_comm->local;
}

static int rank_in_world(const struct impi_comm *impi_comm, int rank)
{
    return rank == MPI_ANY_SOURCE ? WIREUP_IMPI_ANY : impi_comm->world_ranks[rank];
}

static int wire_tag(int tag)
{
    return tag == MPI_ANY_TAG ? WIREUP_IMPI_ANY : tag;
}

static int rank_of_world(const struct impi_comm *impi_comm, int world_rank)
{
    int rank = 0;

    while (rank < impi_comm->size && impi_comm->world_ranks[rank] != world_rank) {
        rank++;
    }
    return rank < impi_comm->size ? rank : MPI_PROC_NULL;
}

static bool is_pending_source(const struct impi_comm *impi_comm, int peer, bool is_local)
{
    return peer == MPI_ANY_SOURCE || (impi_comm->local_ranks[peer] >= 0) == is_local;
}

void write_status(MPI_Status *status, int source, int tag, int bytes, bool is_cancelled)
{
    if (status != MPI_STATUS_IGNORE) {
        status->MPI_SOURCE = source;
        status->MPI_TAG = tag;
        PMPI(Status_set_elements)(status, MPI_BYTE, bytes);
        PMPI(Status_set_cancelled)(status, is_cancelled);
    }
}

/* ---- Life of an operation ---- */

static int query_operation(void *state, MPI_Status *status)
{
    const struct operation *operation = state;

    write_status(status, operation->source, operation->tag, operation->bytes, operation->is_cancelled);
    status->MPI_ERROR = operation->error;
    return operation->error;
}

static int release_nothing(void *state)
{
    (void)state;
    return MPI_SUCCESS;
}

static int cancel_nothing(void *state, int is_complete)
{
    (void)state;
    (void)is_complete;
    return MPI_SUCCESS;
}

void free_operation(struct operation *operation)
{
    if (operation->owns_type) {
        PMPI(Type_free)(&operation->transfer.type);
    }
    if (operation->exchange != NULL) {
        free_exchange(operation->exchange);
    }
    free(operation->packed);
    release_impi_comm(operation->transfer.impi_comm);
    free(operation);
}

static struct operation *create_operation(const struct transfer *transfer)
{
    struct operation *operation = allocate(sizeof(*operation));

    operation->transfer = *transfer;
    operation->transfer.impi_comm->references++;
    operation->request = MPI_REQUEST_NULL;
    operation->local = MPI_REQUEST_NULL;
    operation->started = MPI_REQUEST_NULL;
    operation->source = MPI_ANY_SOURCE;
    operation->tag = MPI_ANY_TAG;
    return operation;
}

/* The program may free the type before the receive is complete. */
static void keep_type(struct operation *operation)
{
    if (!is_named(operation->transfer.type)) {
        PMPI(Type_dup)(operation->transfer.type, &operation->transfer.type);
        operation->owns_type = true;
    }
}

static bool is_polled(enum operation_state state)
{
    return state == OPERATION_PENDING || state == OPERATION_LOCAL || state == OPERATION_EXCHANGE;
}

static void activate(struct operation *operation, enum operation_state state, MPI_Request *request)
{
    struct operation **end = &first_active;

    operation->state = state;
    while (*end != NULL) {
        end = &(*end)->next_active;
    }
    *end = operation;
    active_count++;
    polled_count += is_polled(state);
    if (request != NULL) {
        PMPI(Grequest_start)(query_operation, release_nothing, cancel_nothing, operation, request);
        operation->request = *request;
        operation->kind = REQUEST_OPERATION;
        add_request(operation);
    }
}

static void change_state(struct operation *operation, enum operation_state state)
{
    polled_count -= is_polled(operation->state);
    polled_count += is_polled(state);
    operation->state = state;
}

static void free_detached(struct operation *operation)
{
    if (operation->request != MPI_REQUEST_NULL) {
        PMPI(Request_free)(&operation->request);
    }
    free_operation(operation);
}

static void complete(struct operation *operation)
{
    change_state(operation, OPERATION_DONE);
    if (operation->request != MPI_REQUEST_NULL) {
        PMPI(Grequest_complete)(operation->request);
    }
    if (operation->is_detached) {
        free_detached(operation);
    }
}

/* ---- Pending receives ---- */

static bool matches(const struct operation *operation, int source, int tag)
{
    const struct transfer *transfer = &operation->transfer;

    return (transfer->peer == MPI_ANY_SOURCE || transfer->peer == source)
           && (transfer->tag == MPI_ANY_TAG || transfer->tag == tag);
}

static struct operation *find_pending(const struct impi_comm *impi_comm, int source, int tag)
{
    struct operation *operation = impi_comm->first_pending;

    while (operation != NULL && !matches(operation, source, tag)) {
        operation = operation->next_pending;
    }
    return operation;
}

static void add_pending(struct operation *operation)
{
    struct impi_comm *impi_comm = operation->transfer.impi_comm;

    if (impi_comm->last_pending == NULL) {
        impi_comm->first_pending = operation;
    } else {
        impi_comm->last_pending->next_pending = operation;
    }
    impi_comm->last_pending = operation;
}

static void remove_pending(struct operation *operation)
{
    struct impi_comm *impi_comm = operation->transfer.impi_comm;
    struct operation *previous = NULL;

    for (struct operation *at = impi_comm->first_pending; at != operation; at = at->next_pending) {
        previous = at;
    }
    if (previous == NULL) {
        impi_comm->first_pending = operation->next_pending;
    } else {
        previous->next_pending = operation->next_pending;
    }
    if (impi_comm->last_pending == operation) {
        impi_comm->last_pending = previous;
    }
    operation->next_pending = NULL;
}

static void receive_local(struct operation *operation, MPI_Message *message)
{
    const struct transfer *transfer = &operation->transfer;

    PMPI(Imrecv)(transfer->buffer, transfer->count, transfer->type, message, &operation->local);
}

static void prepare_remote(struct operation *operation)
{
    if (has_gaps(operation->transfer.type)) {
        operation->packed = allocate(operation->limit);
    }
}

static void receive_remote(struct operation *operation, int world_rank, int tag, enum channel channel)
{
    prepare_remote(operation);
    operation->remote = wireup_impi_irecv_bytes(impi_world, operation->limit, world_rank, tag,
                                                context_of(operation->transfer.impi_comm, channel));
    if (operation->remote == 0) {
        fail_job("MPI_Recv");
    }
}

/* Looks for a message in this client; takes it if `message` is not NULL. */
static bool probe_local(struct impi_comm *impi_comm, int peer, int tag, MPI_Message *message, struct wireup_impi_status *found)
{
    MPI_Status status;
    int is_found = 0;
    int bytes = 0;
    const int source = peer == MPI_ANY_SOURCE ? MPI_ANY_SOURCE : impi_comm->local_ranks[peer];

    if (message == NULL) {
        PMPI(Iprobe)(source, tag, impi_comm->local, &is_found, &status);
    } else {
        PMPI(Improbe)(source, tag, impi_comm->local, &is_found, message, &status);
    }
    if (is_found) {
        PMPI(Get_count)(&status, MPI_BYTE, &bytes);
        *found = (struct wireup_impi_status){.source = impi_comm->ranks[status.MPI_SOURCE], .tag = status.MPI_TAG,
                                             .bytes = (uint64_t)bytes};
    }
    return is_found;
}

/* Looks for a message of another client. Its source is a rank of the communicator. */
static bool probe_remote(struct impi_comm *impi_comm, int peer, int tag, struct wireup_impi_status *found)
{
    const int is_found = wireup_impi_iprobe_bytes(impi_world, rank_in_world(impi_comm, peer), wire_tag(tag),
                                                  context_of(impi_comm, POINT_TO_POINT), found);

    if (is_found < 0) {
        fail_job("MPI_Probe");
    }
    if (is_found > 0) {
        found->source = rank_of_world(impi_comm, found->source);
    }
    return is_found > 0;
}

/* Gives messages to pending receives until there is none for them. */
static void match_pending(struct impi_comm *impi_comm)
{
    struct operation *operation = impi_comm->first_pending;

    while (operation != NULL) {
        const struct transfer *transfer = &operation->transfer;
        struct operation *taker = NULL;
        struct wireup_impi_status found;
        MPI_Message message = MPI_MESSAGE_NULL;
        if (is_pending_source(impi_comm, transfer->peer, true)
            && probe_local(impi_comm, transfer->peer, transfer->tag, &message, &found)) {
            taker = find_pending(impi_comm, found.source, found.tag);
            remove_pending(taker);
            receive_local(taker, &message);
            change_state(taker, OPERATION_LOCAL);
        } else if (is_pending_source(impi_comm, transfer->peer, false)
                   && probe_remote(impi_comm, transfer->peer, transfer->tag, &found)) {
            taker = find_pending(impi_comm, found.source, found.tag);
            remove_pending(taker);
            receive_remote(taker, impi_comm->world_ranks[found.source], found.tag, POINT_TO_POINT);
            change_state(taker, OPERATION_REMOTE);
        }
        /* The list has changed, or the next one has a chance. */
        operation = taker != NULL ? impi_comm->first_pending : operation->next_pending;
    }
}

/* ---- Progress ---- */

static bool advance_remote(struct operation *operation)
{
    const struct transfer *transfer = &operation->transfer;
    void *data = operation->packed != NULL ? operation->packed : transfer->buffer;
    struct wireup_impi_status status;
    const int taken = wireup_impi_take(impi_world, operation->remote, transfer->is_send ? NULL : data,
                                       operation->limit, &status);

    if (taken < 0) {
        fail_job(transfer->is_send ? "MPI_Send" : "MPI_Recv");
    }
    if (taken == 0) {
        return false;
    }
    operation->is_cancelled = status.cancelled;
    if (!transfer->is_send && !operation->is_cancelled) {
        operation->source = rank_of_world(transfer->impi_comm, status.source);
        operation->tag = status.tag;
        operation->error = status.bytes > operation->limit ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
        operation->bytes = (int)(status.bytes > operation->limit ? operation->limit : status.bytes);
        unpack_message(data, operation->bytes, transfer->buffer, transfer->count, transfer->type);
    }
    return true;
}

static bool advance_local(struct operation *operation)
{
    const struct impi_comm *impi_comm = operation->transfer.impi_comm;
    MPI_Status status;
    int is_complete = 0;
    int is_cancelled = 0;

    const int error = PMPI(Test)(&operation->local, &is_complete, &status);
    if (error == MPI_SUCCESS && !is_complete) {
        return false;
    }
    operation->error = error;
    PMPI(Test_cancelled)(&status, &is_cancelled);
    operation->is_cancelled = is_cancelled;
    if (!operation->transfer.is_send && !is_cancelled) {
        PMPI(Get_count)(&status, MPI_BYTE, &operation->bytes);
        operation->tag = status.MPI_TAG;
        operation->source = impi_comm->ranks[status.MPI_SOURCE];
    }
    return true;
}

static bool advance_exchange(struct operation *operation)
{
    if (!is_exchange_complete(operation->exchange)) {
        return false;
    }
    settle_exchange(operation->exchange, operation);
    return true;
}

static bool advance(struct operation *operation)
{
    switch (operation->state) {
    case OPERATION_EXCHANGE: return advance_exchange(operation);
    case OPERATION_REMOTE: return advance_remote(operation);
    case OPERATION_LOCAL: return advance_local(operation);
    case OPERATION_PENDING: return operation->is_cancelled;
    case OPERATION_DONE: break;
    }
    return true;
}

void advance_operations(void)
{
    struct operation **link = &first_active;

    for (struct operation *at = first_active; at != NULL; at = at->next_active) {
        if (at->transfer.impi_comm->first_pending == at) {
            match_pending(at->transfer.impi_comm);
        }
    }
    while (*link != NULL) {
        struct operation *operation = *link;
        if (advance(operation)) {
            *link = operation->next_active;
            active_count--;
            complete(operation);
        } else {
            link = &operation->next_active;
        }
    }
}

void pause_progress(unsigned round)
{
    int is_found;

    /* The launch's MPI progresses in its functions only. */
    PMPI(Iprobe)(MPI_ANY_SOURCE, MPI_ANY_TAG, self_comm, &is_found, MPI_STATUS_IGNORE);
    if (round < YIELD_ROUNDS) {
        sched_yield();
    } else {
        wireup_impi_pause(impi_world, round < SHORT_ROUNDS ? SHORT_PAUSE : LONG_PAUSE);
    }
}

/* ---- Start and end ---- */

static int check_transfer(const struct transfer *transfer)
{
    const bool is_any = !transfer->is_send && transfer->peer == MPI_ANY_SOURCE;

    if (transfer->count < 0 || wire_bytes(transfer->count, transfer->type) < 0) {
        return MPI_ERR_COUNT;
    }
    if (!is_any && (transfer->peer < 0 || transfer->peer >= transfer->impi_comm->size)) {
        return MPI_ERR_RANK;
    }
    if (transfer->tag < 0 && (transfer->is_send || transfer->tag != MPI_ANY_TAG)) {
        return MPI_ERR_TAG;
    }
    return MPI_SUCCESS;
}

static int start_local(struct operation *operation, enum channel channel)
{
    const struct transfer *transfer = &operation->transfer;
    const MPI_Comm local = local_of(transfer->impi_comm, channel);
    const int peer = transfer->impi_comm->local_ranks[transfer->peer];

    if (!transfer->is_send) {
        return PMPI(Irecv)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local,
                           &operation->local);
    }
    switch (transfer->mode) {
    case SEND_BUFFERED:
        return PMPI(Ibsend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local,
                            &operation->local);
    case SEND_SYNCHRONOUS:
        return PMPI(Issend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local,
                            &operation->local);
    case SEND_READY:
    case SEND_STANDARD: break;
    }
    return PMPI(Isend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local, &operation->local);
}

static void send_remote(struct operation *operation, enum channel channel)
{
    const struct transfer *transfer = &operation->transfer;
    const int bytes = wire_bytes(transfer->count, transfer->type);
    void *packed = pack_message(transfer->buffer, transfer->count, transfer->type, bytes);

    operation->remote = wireup_impi_isend_bytes(impi_world, packed, (size_t)bytes,
                                                transfer->impi_comm->world_ranks[transfer->peer], transfer->tag,
                                                context_of(transfer->impi_comm, channel),
                                                transfer->mode == SEND_SYNCHRONOUS);
    free(packed);
    if (operation->remote == 0) {
        fail_job("MPI_Send");
    }
}

int start_operation(const struct transfer *transfer, enum channel channel, MPI_Request *request,
                    struct operation **operation)
{
    struct impi_comm *impi_comm = transfer->impi_comm;
    int error = check_transfer(transfer);

    if (error != MPI_SUCCESS) {
        return error;
    }
    lock();
    struct operation *started = create_operation(transfer);
    enum operation_state state = OPERATION_REMOTE;
    if (!transfer->is_send) {
        started->limit = (size_t)wire_bytes(transfer->count, transfer->type);
        keep_type(started);
    }
    const bool is_any = transfer->peer == MPI_ANY_SOURCE;
    if (!transfer->is_send && channel == POINT_TO_POINT && (is_any || impi_comm->first_pending != NULL)) {
        state = OPERATION_PENDING;
        add_pending(started);
    } else if (impi_comm->local_ranks[transfer->peer] >= 0) {
        state = OPERATION_LOCAL;
        error = start_local(started, channel);
    } else if (transfer->is_send) {
        send_remote(started, channel);
    } else {
        receive_remote(started, rank_in_world(impi_comm, transfer->peer), wire_tag(transfer->tag), channel);
    }
    if (error != MPI_SUCCESS) {
        free_operation(started);
    } else {
        activate(started, state, request);
        *operation = started;
    }
    unlock();
    return error;
}

struct operation *watch_request(struct impi_comm *impi_comm, MPI_Request local)
{
    const struct transfer transfer = {.impi_comm = impi_comm, .peer = MPI_PROC_NULL, .is_send = true};

    lock();
    struct operation *operation = create_operation(&transfer);
    operation->local = local;
    activate(operation, OPERATION_LOCAL, NULL);
    unlock();
    return operation;
}

struct operation *start_exchange(struct exchange *exchange, struct impi_comm *impi_comm, MPI_Request *request)
{
    const struct transfer transfer = {.impi_comm = impi_comm, .peer = MPI_PROC_NULL};

    lock();
    struct operation *operation = create_operation(&transfer);
    operation->exchange = exchange;
    activate(operation, OPERATION_EXCHANGE, request);
    unlock();
    return operation;
}

void wait_operation(struct operation *operation)
{
    bool is_done = false;

    for (unsigned round = 0; !is_done; round++) {
        if (round > 0) {
            pause_progress(round);
        }
        lock();
        advance_operations();
        is_done = operation->state == OPERATION_DONE;
        unlock();
    }
}

int finish_operation(struct operation *operation, MPI_Status *status)
{
    wait_operation(operation);
    const int error = operation->error;
    write_status(status, operation->source, operation->tag, operation->bytes, operation->is_cancelled);
    lock();
    free_operation(operation);
    unlock();
    return error;
}

void cancel_operation(struct operation *operation)
{
    switch (operation->state) {
    case OPERATION_REMOTE: wireup_impi_cancel(impi_world, operation->remote); break;
    case OPERATION_LOCAL: PMPI(Cancel)(&operation->local); break;
    case OPERATION_PENDING:
        remove_pending(operation);
        operation->is_cancelled = true;
        break;
    case OPERATION_EXCHANGE:
    case OPERATION_DONE: break;
    }
}

void detach_operation(struct operation *operation)
{
    if (operation->request != MPI_REQUEST_NULL) {
        remove_request(operation);
    }
    if (operation->state == OPERATION_DONE) {
        free_detached(operation);
    } else {
        operation->is_detached = true;
    }
}

/* ---- Messages that are looked for ---- */

/* Looks once. A message for a pending receive goes to that. */
static bool find_once(struct impi_comm *impi_comm, int source, int tag, struct found_message *message, bool takes)
{
    struct wireup_impi_status found;

    for (;;) {
        MPI_Message local = MPI_MESSAGE_NULL;
        bool is_local = false;
        advance_operations();
        if (is_pending_source(impi_comm, source, true)) {
            is_local = probe_local(impi_comm, source, tag, takes ? &local : NULL, &found);
        }
        if (!is_local
            && !(is_pending_source(impi_comm, source, false) && probe_remote(impi_comm, source, tag, &found))) {
            return false;
        }
        struct operation *pending = find_pending(impi_comm, found.source, found.tag);
        if (pending == NULL) {
            *message = (struct found_message){.local = local, .impi_comm = impi_comm, .source = found.source, .tag = found.tag,
                                              .bytes = (int)found.bytes};
            return true;
        }
        if (is_local && takes) {
            remove_pending(pending);
            receive_local(pending, &local);
            change_state(pending, OPERATION_LOCAL);
        }
    }
}

bool find_message(struct impi_comm *impi_comm, int source, int tag, bool waits, struct found_message **message,
                  MPI_Status *status)
{
    struct found_message found;
    bool is_found = false;

    for (unsigned round = 0; !is_found; round++) {
        if (round > 0) {
            pause_progress(round);
        }
        lock();
        is_found = find_once(impi_comm, source, tag, &found, message != NULL);
        if (is_found && message != NULL) {
            *message = allocate(sizeof(**message));
            **message = found;
            impi_comm->references++;
            if (found.local == MPI_MESSAGE_NULL) {
                (*message)->remote = wireup_impi_irecv_bytes(impi_world, (size_t)found.bytes,
                                                             impi_comm->world_ranks[found.source], found.tag,
                                                             context_of(impi_comm, POINT_TO_POINT));
                if ((*message)->remote == 0) {
                    fail_job("MPI_Mprobe");
                }
            }
        }
        unlock();
        if (!waits) {
            break;
        }
    }
    if (is_found) {
        write_status(status, found.source, found.tag, found.bytes, false);
    } else {
        /* A program that looks again and again lets others progress. */
        pause_progress(0);
    }
    return is_found;
}

int receive_found(struct found_message *message, const struct transfer *transfer, MPI_Request *request,
                  struct operation **operation)
{
    if (transfer->count < 0 || wire_bytes(transfer->count, transfer->type) < 0) {
        return MPI_ERR_COUNT;
    }
    lock();
    struct operation *started = create_operation(transfer);
    started->limit = (size_t)wire_bytes(transfer->count, transfer->type);
    keep_type(started);
    enum operation_state state = OPERATION_LOCAL;
    if (message->local != MPI_MESSAGE_NULL) {
        receive_local(started, &message->local);
    } else {
        state = OPERATION_REMOTE;
        prepare_remote(started);
        started->remote = message->remote;
    }
    activate(started, state, request);
    release_impi_comm(message->impi_comm);
    free(message);
    *operation = started;
    unlock();
    return MPI_SUCCESS;
}
