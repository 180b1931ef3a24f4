/*
 * Requests of the program: MPI_Wait, MPI_Test and their kin over requests of both kinds.
 *
 * A receive in this client of a communicator with several clients is a request of the launch's MPI, whose status has another rank. A persistent
 * request is a placeholder: each start makes a request that takes its place while functions wait.
 */
#include <stdlib.h>

#include "preload.h"

enum { BUCKETS = 1024 };

static struct operation *buckets[BUCKETS];
static _Atomic int known_count;

static struct operation **bucket_of(MPI_Request request)
{
    return &buckets[((uintptr_t)request / 8 ^ (uintptr_t)request) % BUCKETS];
}

struct operation *find_request(MPI_Request request)
{
    if (known_count == 0 || request == MPI_REQUEST_NULL) {
        return NULL;
    }
    struct operation *operation = *bucket_of(request);
    while (operation != NULL && operation->request != request) {
        operation = operation->next_request;
    }
    return operation;
}

void add_request(struct operation *operation)
{
    struct operation **bucket = bucket_of(operation->request);

    operation->next_request = *bucket;
    *bucket = operation;
    known_count++;
}

void remove_request(struct operation *operation)
{
    struct operation **link = bucket_of(operation->request);

    while (*link != operation) {
        link = &(*link)->next_request;
    }
    *link = operation->next_request;
    known_count--;
}

/* ---- Start ---- */

static struct operation *add_kind(const struct transfer *transfer, enum request_kind kind, MPI_Request request)
{
    struct operation *operation = allocate(sizeof(*operation));

    operation->state = OPERATION_DONE;
    operation->kind = kind;
    operation->transfer = *transfer;
    operation->transfer.impi_comm->references++;
    operation->request = request;
    operation->started = MPI_REQUEST_NULL;
    add_request(operation);
    return operation;
}

static int start_send(const struct transfer *transfer, MPI_Request *request)
{
    struct operation *operation;

    if (transfer->peer >= 0 && transfer->peer < transfer->impi_comm->size
        && transfer->impi_comm->local_ranks[transfer->peer] >= 0) {
        const int peer = transfer->impi_comm->local_ranks[transfer->peer];
        const MPI_Comm local = transfer->impi_comm->local;
        switch (transfer->mode) {
        case SEND_BUFFERED:
            return PMPI(Ibsend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local, request);
        case SEND_SYNCHRONOUS:
            return PMPI(Issend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local, request);
        case SEND_READY:
            return PMPI(Irsend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local, request);
        case SEND_STANDARD: break;
        }
        return PMPI(Isend)(transfer->buffer, transfer->count, transfer->type, peer, transfer->tag, local, request);
    }
    return start_operation(transfer, POINT_TO_POINT, request, &operation);
}

int start_request(const struct transfer *transfer, MPI_Request *request)
{
    struct impi_comm *impi_comm = transfer->impi_comm;
    struct operation *operation;

    if (transfer->peer == MPI_PROC_NULL) {
        return PMPI(Irecv)(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, impi_comm->local, request);
    }
    if (transfer->is_send) {
        return start_send(transfer, request);
    }
    lock();
    const bool is_local = transfer->peer >= 0 && transfer->peer < impi_comm->size && impi_comm->local_ranks[transfer->peer] >= 0
                          && impi_comm->first_pending == NULL;
    int error = MPI_SUCCESS;
    if (is_local) {
        error = PMPI(Irecv)(transfer->buffer, transfer->count, transfer->type, impi_comm->local_ranks[transfer->peer],
                            transfer->tag, impi_comm->local, request);
        if (error == MPI_SUCCESS) {
            add_kind(transfer, REQUEST_LOCAL, *request);
        }
    }
    unlock();
    return is_local ? error : start_operation(transfer, POINT_TO_POINT, request, &operation);
}

int create_persistent(const struct transfer *transfer, MPI_Request *request)
{
    const int error = PMPI(Send_init)(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, self_comm, request);

    if (error == MPI_SUCCESS) {
        lock();
        struct operation *operation = add_kind(transfer, REQUEST_PERSISTENT, *request);
        if (!is_named(transfer->type)) {
            PMPI(Type_dup)(transfer->type, &operation->transfer.type);
            operation->owns_type = true;
        }
        unlock();
    }
    return error;
}

int MPI_Start(MPI_Request *request)
{
    struct operation *operation = NULL;

    if (known_count > 0) {
        lock();
        operation = find_request(*request);
        unlock();
    }
    if (operation == NULL || operation->kind != REQUEST_PERSISTENT) {
        return PMPI(Start)(request);
    }
    const int error = start_request(&operation->transfer, &operation->started);
    return error == MPI_SUCCESS ? error : raise_error(operation->transfer.impi_comm->local, error);
}

int MPI_Startall(int count, MPI_Request requests[])
{
    int error = MPI_SUCCESS;

    for (int i = 0; i < count && error == MPI_SUCCESS; i++) {
        error = MPI_Start(&requests[i]);
    }
    return error;
}

/* ---- Completion ---- */

/* Requests that a function completes together. */
struct selection {
    int count;
    MPI_Request *requests;    /* the program's */
    MPI_Request *active;      /* those that the launch's MPI completes in their place; owned */
    struct operation **known; /* operations of `requests`; owned */
    struct operation **inner; /* operations of `active`; owned */
    MPI_Request request_room;
    struct operation *known_room;
    struct operation *inner_room;
};

/* Whether the launch's MPI alone cannot complete the requests. If so, `release` follows. */
static bool select_requests(struct selection *selection, int count, MPI_Request *requests)
{
    bool is_any = false;

    if (known_count == 0 && polled_count == 0) {
        return false;
    }
    lock();
    for (int i = 0; i < count && !is_any; i++) {
        is_any = find_request(requests[i]) != NULL;
    }
    if (!is_any && polled_count == 0) {
        unlock();
        return false;
    }
    *selection = (struct selection){.count = count, .requests = requests};
    if (count <= 1) {
        selection->active = &selection->request_room;
        selection->known = &selection->known_room;
        selection->inner = &selection->inner_room;
    } else {
        selection->active = allocate(sizeof(MPI_Request) * (size_t)count);
        selection->known = allocate(sizeof(struct operation *) * (size_t)count);
        selection->inner = allocate(sizeof(struct operation *) * (size_t)count);
    }
    for (int i = 0; i < count; i++) {
        struct operation *operation = find_request(requests[i]);
        const bool is_persistent = operation != NULL && operation->kind == REQUEST_PERSISTENT;
        selection->known[i] = operation;
        selection->active[i] = is_persistent ? operation->started : requests[i];
        selection->inner[i] = is_persistent ? find_request(operation->started) : operation;
    }
    unlock();
    return true;
}

/* Lets the program's requests follow those that have completed. */
static void settle_requests(struct selection *selection)
{
    lock();
    for (int i = 0; i < selection->count; i++) {
        struct operation *operation = selection->known[i];
        struct operation *inner = selection->inner[i];
        if (operation != NULL && operation->kind == REQUEST_PERSISTENT) {
            operation->started = selection->active[i];
        } else {
            selection->requests[i] = selection->active[i];
        }
        if (selection->active[i] == MPI_REQUEST_NULL && inner != NULL) {
            remove_request(inner);
            free_operation(inner);
        }
    }
    unlock();
}

static void release(struct selection *selection)
{
    if (selection->count > 1) {
        free(selection->active);
        free(selection->known);
        free(selection->inner);
    }
}

/* Gives a status the rank of the communicator, before the requests are settled. */
static void translate_status(const struct selection *selection, int index, MPI_Status *status)
{
    const struct operation *inner = selection->inner[index];

    if (inner != NULL && inner->kind == REQUEST_LOCAL) {
        status->MPI_SOURCE = inner->transfer.peer;
    }
}

static void advance_round(unsigned round)
{
    if (round > 0) {
        pause_progress(round);
    }
    lock();
    advance_operations();
    unlock();
}

/* Tests once, or until the requests are complete. */
static int complete_one(struct selection *selection, bool waits, int *is_complete, MPI_Status *status)
{
    int error = MPI_SUCCESS;

    *is_complete = 0;
    for (unsigned round = 0; error == MPI_SUCCESS && !*is_complete && (waits || round == 0); round++) {
        advance_round(round);
        error = PMPI(Test)(selection->active, is_complete, status);
    }
    if (*is_complete && status != MPI_STATUS_IGNORE) {
        translate_status(selection, 0, status);
    }
    settle_requests(selection);
    release(selection);
    return error;
}

static int complete_all(struct selection *selection, bool waits, int *is_complete, MPI_Status *statuses)
{
    int error = MPI_SUCCESS;

    *is_complete = 0;
    for (unsigned round = 0; error == MPI_SUCCESS && !*is_complete && (waits || round == 0); round++) {
        advance_round(round);
        error = PMPI(Testall)(selection->count, selection->active, is_complete, statuses);
    }
    for (int i = 0; statuses != MPI_STATUSES_IGNORE && i < selection->count; i++) {
        if (selection->active[i] == MPI_REQUEST_NULL) {
            translate_status(selection, i, &statuses[i]);
        }
    }
    settle_requests(selection);
    release(selection);
    return error;
}

static int complete_any(struct selection *selection, bool waits, int *index, int *is_complete, MPI_Status *status)
{
    int error = MPI_SUCCESS;

    *is_complete = 0;
    for (unsigned round = 0; error == MPI_SUCCESS && !*is_complete && (waits || round == 0); round++) {
        advance_round(round);
        error = PMPI(Testany)(selection->count, selection->active, index, is_complete, status);
    }
    if (*is_complete && *index != MPI_UNDEFINED && status != MPI_STATUS_IGNORE) {
        translate_status(selection, *index, status);
    }
    settle_requests(selection);
    release(selection);
    return error;
}

static int complete_some(struct selection *selection, bool waits, int *done_count, int indices[], MPI_Status statuses[])
{
    int error = MPI_SUCCESS;

    *done_count = 0;
    for (unsigned round = 0; error == MPI_SUCCESS && *done_count == 0 && (waits || round == 0); round++) {
        advance_round(round);
        error = PMPI(Testsome)(selection->count, selection->active, done_count, indices, statuses);
    }
    for (int i = 0; statuses != MPI_STATUSES_IGNORE && *done_count != MPI_UNDEFINED && i < *done_count; i++) {
        translate_status(selection, indices[i], &statuses[i]);
    }
    settle_requests(selection);
    release(selection);
    return error;
}

int wait_local(MPI_Request *request, MPI_Status *status)
{
    int error = MPI_SUCCESS;
    int is_complete = 0;

    if (polled_count == 0) {
        return PMPI(Wait)(request, status);
    }
    for (unsigned round = 0; error == MPI_SUCCESS && !is_complete; round++) {
        advance_round(round);
        error = PMPI(Test)(request, &is_complete, status);
    }
    return error;
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    struct selection selection;
    int is_complete;

    if (!select_requests(&selection, 1, request)) {
        return PMPI(Wait)(request, status);
    }
    return complete_one(&selection, true, &is_complete, status);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    struct selection selection;

    if (!select_requests(&selection, 1, request)) {
        return PMPI(Test)(request, flag, status);
    }
    return complete_one(&selection, false, flag, status);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    struct selection selection;
    int is_complete;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Waitall)(count, requests, statuses);
    }
    return complete_all(&selection, true, &is_complete, statuses);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    struct selection selection;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Testall)(count, requests, flag, statuses);
    }
    return complete_all(&selection, false, flag, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    struct selection selection;
    int is_complete;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Waitany)(count, requests, index, status);
    }
    return complete_any(&selection, true, index, &is_complete, status);
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    struct selection selection;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Testany)(count, requests, index, flag, status);
    }
    return complete_any(&selection, false, index, flag, status);
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done_count, int indices[], MPI_Status statuses[])
{
    struct selection selection;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Waitsome)(count, requests, done_count, indices, statuses);
    }
    return complete_some(&selection, true, done_count, indices, statuses);
}

int MPI_Testsome(int count, MPI_Request requests[], int *done_count, int indices[], MPI_Status statuses[])
{
    struct selection selection;

    if (!select_requests(&selection, count, requests)) {
        return PMPI(Testsome)(count, requests, done_count, indices, statuses);
    }
    return complete_some(&selection, false, done_count, indices, statuses);
}

/* ---- Other functions of requests ---- */

int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    struct selection selection;

    if (!select_requests(&selection, 1, &request)) {
        return PMPI(Request_get_status)(request, flag, status);
    }
    advance_round(0);
    *flag = 0;
    const int error = PMPI(Request_get_status)(selection.active[0], flag, status);
    if (*flag && status != MPI_STATUS_IGNORE) {
        translate_status(&selection, 0, status);
    }
    return error;
}

int MPI_Request_free(MPI_Request *request)
{
    lock();
    struct operation *operation = find_request(*request);
    if (operation == NULL) {
        unlock();
        return PMPI(Request_free)(request);
    }
    if (operation->kind == REQUEST_OPERATION) {
        detach_operation(operation);
        *request = MPI_REQUEST_NULL;
        unlock();
        return MPI_SUCCESS;
    }
    MPI_Request started = operation->started;
    remove_request(operation);
    free_operation(operation);
    unlock();
    if (started != MPI_REQUEST_NULL) {
        MPI_Request_free(&started);
    }
    return PMPI(Request_free)(request);
}

int MPI_Cancel(MPI_Request *request)
{
    lock();
    struct operation *operation = find_request(*request);
    if (operation != NULL && operation->kind == REQUEST_PERSISTENT) {
        MPI_Request started = operation->started;
        unlock();
        return started == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Cancel(&started);
    }
    if (operation != NULL && operation->kind == REQUEST_OPERATION) {
        cancel_operation(operation);
        unlock();
        return MPI_SUCCESS;
    }
    unlock();
    return PMPI(Cancel)(request);
}
