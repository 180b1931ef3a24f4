/*
 * Messages that a process starts together, with one end: those of a nonblocking collective, of a blocking one in which each
 * process sends to each that needs its data, and of MPI_Isendrecv.
 *
 *   create_exchange ──▶ add_message ... ──▶ end_exchange ──▶ waits, or an operation in the state OPERATION_EXCHANGE
 *
 * Rule: the messages of a collective need no tag of their own. Members call collectives of a communicator in one order, and
 * messages of one sender with one tag arrive in order. Source: MPI 4.1, 3.5 and 6.12.
 */
#include <stdlib.h>

#include "preload.h"

struct exchange {
    struct impi_comm *impi_comm;
    enum channel channel;
    int tag;
    struct operation **operations; /* owned */
    int count;
    void *memory;                  /* of values or of messages that are sent; owned */
    struct reduction reduction;
    bool owns_type;                /* the type of the reduction is a duplicate */
    int (*at_end)(void *memory);   /* NULL for most */
    int error;                     /* of the first message that failed */
};

/* Operations of the program that it has freed while a reduction may use them; owned, with the lock. */
static struct {
    int reduction_count; /* exchanges with a reduction */
    MPI_Op *operations;
    int count;
} freed;

struct exchange *create_exchange(struct impi_comm *impi_comm, enum channel channel, int tag)
{
    struct exchange *exchange = allocate(sizeof(*exchange));

    *exchange = (struct exchange){.impi_comm = impi_comm, .channel = channel, .tag = tag};
    const size_t members = (size_t)impi_comm->size + (impi_comm->own == NULL ? 0 : (size_t)impi_comm->own->size);
    exchange->operations = allocate(sizeof(struct operation *) * 2 * (members + 1));
    return exchange;
}

void add_transfer(struct exchange *exchange, const struct transfer *transfer)
{
    if (exchange->error == MPI_SUCCESS && transfer->peer != MPI_PROC_NULL) {
        exchange->error = start_operation(transfer, exchange->channel, NULL, &exchange->operations[exchange->count]);
        exchange->count += exchange->error == MPI_SUCCESS;
    }
}

void add_message(struct exchange *exchange, const void *buffer, int count, MPI_Datatype type, int peer, bool is_send)
{
    const struct transfer transfer = {exchange->impi_comm, (void *)(uintptr_t)buffer, count, type, peer, exchange->tag, is_send,
                                      SEND_STANDARD};

    add_transfer(exchange, &transfer);
}

void add_local(struct exchange *exchange, MPI_Request local)
{
    exchange->operations[exchange->count++] = watch_request(exchange->impi_comm, local);
}

void call_at_end(struct exchange *exchange, int (*function)(void *memory))
{
    exchange->at_end = function;
}

void add_error(struct exchange *exchange, int error)
{
    exchange->error = exchange->error == MPI_SUCCESS ? error : exchange->error;
}

void keep_memory(struct exchange *exchange, void *memory)
{
    exchange->memory = memory;
}

void add_reduction(struct exchange *exchange, const struct reduction *reduction)
{
    exchange->reduction = *reduction;
    lock();
    freed.reduction_count++;
    unlock();
    if (!is_named(reduction->type)) {
        PMPI(Type_dup)(reduction->type, &exchange->reduction.type);
        exchange->owns_type = true;
    }
}

/* Combines the values from the last one on, which becomes the result. */
static int reduce_values(const struct reduction *reduction)
{
    char *last = reduction->values + (reduction->value_count - 1) * reduction->stride;
    int error = MPI_SUCCESS;

    for (int i = reduction->value_count - 2; error == MPI_SUCCESS && i >= 0; i--) {
        error = PMPI(Reduce_local)(reduction->values + i * reduction->stride, last, reduction->count, reduction->type,
                                   reduction->op);
    }
    return error == MPI_SUCCESS
               ? copy_block(last, reduction->count, reduction->type, reduction->result, reduction->count, reduction->type)
               : error;
}

bool is_exchange_complete(const struct exchange *exchange)
{
    for (int i = 0; i < exchange->count; i++) {
        if (exchange->operations[i]->state != OPERATION_DONE) {
            return false;
        }
    }
    return true;
}

void settle_exchange(const struct exchange *exchange, struct operation *operation)
{
    int error = exchange->error;

    operation->source = MPI_PROC_NULL;
    for (int i = 0; i < exchange->count; i++) {
        const struct operation *part = exchange->operations[i];
        error = error == MPI_SUCCESS ? part->error : error;
        if (!part->transfer.is_send) {
            operation->source = part->source;
            operation->tag = part->tag;
            operation->bytes = part->bytes;
        }
    }
    if (error == MPI_SUCCESS && exchange->reduction.value_count > 0) {
        error = reduce_values(&exchange->reduction);
    }
    if (error == MPI_SUCCESS && exchange->at_end != NULL) {
        error = exchange->at_end(exchange->memory);
    }
    operation->error = error;
}

static void end_reduction(void)
{
    freed.reduction_count--;
    if (freed.reduction_count > 0) {
        return;
    }
    for (int i = 0; i < freed.count; i++) {
        PMPI(Op_free)(&freed.operations[i]);
    }
    free(freed.operations);
    freed.operations = NULL;
    freed.count = 0;
}

int MPI_Op_free(MPI_Op *operation)
{
    int error = MPI_SUCCESS;

    lock();
    if (freed.reduction_count == 0) {
        error = PMPI(Op_free)(operation);
    } else {
        MPI_Op *operations = allocate(sizeof(MPI_Op) * ((size_t)freed.count + 1));
        for (int i = 0; i < freed.count; i++) {
            operations[i] = freed.operations[i];
        }
        operations[freed.count++] = *operation;
        free(freed.operations);
        freed.operations = operations;
        *operation = MPI_OP_NULL;
    }
    unlock();
    return error;
}

void free_exchange(struct exchange *exchange)
{
    for (int i = 0; i < exchange->count; i++) {
        free_operation(exchange->operations[i]);
    }
    if (exchange->owns_type) {
        PMPI(Type_free)(&exchange->reduction.type);
    }
    if (exchange->reduction.value_count > 0) {
        end_reduction();
    }
    free(exchange->operations);
    free(exchange->memory);
    free(exchange);
}

int end_exchange(struct exchange *exchange, MPI_Request *request)
{
    struct operation *operation = start_exchange(exchange, exchange->impi_comm, request);

    return request == NULL ? finish_operation(operation, MPI_STATUS_IGNORE) : MPI_SUCCESS;
}
