/*
 * Collectives by the tables that libwireup_impi executes too (impi/core/src/collective), so that its processes and those of
 * unchanged programs can be in one world.
 *
 * Rule: sends do not wait, and a process that combines values has first completed its sends, which use the same memory.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

/* Numbers of a step before those of its blocks. */
enum { STEP_KIND, STEP_PROCESS, STEP_TAG, STEP_CHANNEL, STEP_BLOCKS, STEP_HEAD };

/* Sends that are not complete. */
struct sends {
    struct operation **operations;
    void **messages; /* owned; NULL for one that is sent from its blocks */
    int count;
};

MPI_Aint extent_of(MPI_Datatype type)
{
    MPI_Aint lower, extent;

    PMPI(Type_get_extent)(type, &lower, &extent);
    return extent;
}

struct scratch make_scratch(int64_t count, MPI_Datatype type)
{
    MPI_Aint true_lower, true_extent;

    PMPI(Type_get_true_extent)(type, &true_lower, &true_extent);
    void *memory = allocate((size_t)(count == 0 ? 0 : (count - 1) * extent_of(type) + true_extent));
    return (struct scratch){.memory = memory, .elements = (char *)memory - true_lower};
}

static int count_of(const struct step_blocks *blocks, int number)
{
    return blocks->counts == NULL ? blocks->count : blocks->counts[number];
}

/* Returns the elements of a message, or -1 if it cannot have as many. */
static int count_message(const struct step_blocks *blocks, const int *numbers, int block_count)
{
    int64_t sum = 0;

    for (int i = 0; i < block_count; i++) {
        sum += count_of(blocks, numbers[i]);
    }
    return sum <= INT_MAX ? (int)sum : -1;
}

/* Whether the blocks of a message follow one another in memory. */
static bool is_contiguous(const struct step_blocks *blocks, const int *numbers, int block_count)
{
    for (int i = 0; i < block_count; i++) {
        char *start = blocks->starts[numbers[i]];
        if (start == NULL || (i > 0 && start != blocks->starts[numbers[i - 1]] + count_of(blocks, numbers[i - 1]))) {
            return false;
        }
    }
    return true;
}

static int finish_sends(struct sends *sends, int error)
{
    for (int i = 0; i < sends->count; i++) {
        const int send_error = finish_operation(sends->operations[i], MPI_STATUS_IGNORE);
        error = error == MPI_SUCCESS ? send_error : error;
        free(sends->messages[i]);
    }
    sends->count = 0;
    return error;
}

static int start_message(struct impi_comm *impi_comm, const int *step, void *buffer, int count, MPI_Datatype type,
                         struct operation **operation)
{
    const enum channel channel = step[STEP_CHANNEL] == WIREUP_IMPI_POINT_TO_POINT ? POINT_TO_POINT : COLLECTIVE;
    const struct transfer transfer = {.impi_comm = impi_comm, .buffer = buffer, .count = count, .type = type,
                                      .peer = impi_comm->order[step[STEP_PROCESS]], .tag = step[STEP_TAG],
                                      .is_send = step[STEP_KIND] == WIREUP_IMPI_SEND, .mode = SEND_STANDARD};

    return start_operation(&transfer, channel, NULL, operation);
}

static int start_send(struct impi_comm *impi_comm, const int *step, const struct step_blocks *blocks, struct sends *sends)
{
    const int *numbers = step + STEP_HEAD;
    const int block_count = step[STEP_BLOCKS];
    const int count = count_message(blocks, numbers, block_count);
    const bool is_direct = is_contiguous(blocks, numbers, block_count);
    char *message = NULL;

    if (count < 0) {
        return MPI_ERR_COUNT;
    }
    if (!is_direct) {
        char *next = message = allocate((size_t)count);
        for (int i = 0; i < block_count; i++) {
            memcpy(next, blocks->starts[numbers[i]], (size_t)count_of(blocks, numbers[i]));
            next += count_of(blocks, numbers[i]);
        }
    }
    void *buffer = block_count == 0 ? NULL : is_direct ? blocks->starts[numbers[0]] : message;
    const int error = start_message(impi_comm, step, buffer, count, blocks->type, &sends->operations[sends->count]);
    if (error == MPI_SUCCESS) {
        sends->messages[sends->count++] = message;
    } else {
        free(message);
    }
    return error;
}

static int receive(struct impi_comm *impi_comm, const int *step, void *buffer, int count, MPI_Datatype type)
{
    struct operation *operation;
    const int error = start_message(impi_comm, step, buffer, count, type, &operation);

    return error == MPI_SUCCESS ? finish_operation(operation, MPI_STATUS_IGNORE) : error;
}

static int receive_blocks(struct impi_comm *impi_comm, const int *step, const struct step_blocks *blocks)
{
    const int *numbers = step + STEP_HEAD;
    const int block_count = step[STEP_BLOCKS];
    const int count = count_message(blocks, numbers, block_count);

    if (count < 0) {
        return MPI_ERR_COUNT;
    }
    if (is_contiguous(blocks, numbers, block_count)) {
        return receive(impi_comm, step, block_count == 0 ? NULL : blocks->starts[numbers[0]], count, blocks->type);
    }
    char *message = allocate((size_t)count);
    const int error = receive(impi_comm, step, message, count, blocks->type);
    const char *next = message;
    for (int i = 0; i < block_count; i++) {
        char **start = &blocks->starts[numbers[i]];
        const size_t bytes = (size_t)count_of(blocks, numbers[i]);
        if (*start == NULL) {
            *start = allocate(bytes);
        }
        memcpy(*start, next, bytes);
        next += bytes;
    }
    free(message);
    return error;
}

static int receive_and_combine(struct impi_comm *impi_comm, const int *step, const struct step_blocks *blocks)
{
    const int number = step[STEP_HEAD];
    struct scratch other = make_scratch(count_of(blocks, number), blocks->type);
    int error = receive(impi_comm, step, other.elements, count_of(blocks, number), blocks->type);

    if (error == MPI_SUCCESS) {
        error = PMPI(Reduce_local)(other.elements, blocks->starts[number], count_of(blocks, number), blocks->type, blocks->op);
    }
    free(other.memory);
    return error;
}

static int execute_step(struct impi_comm *impi_comm, const int *step, const struct step_blocks *blocks, struct sends *sends)
{
    const int *numbers = step + STEP_HEAD;
    int error = MPI_SUCCESS;

    switch (step[STEP_KIND]) {
    case WIREUP_IMPI_SEND: return start_send(impi_comm, step, blocks, sends);
    case WIREUP_IMPI_RECEIVE: return receive_blocks(impi_comm, step, blocks);
    case WIREUP_IMPI_RECEIVE_BEFORE:
        error = finish_sends(sends, MPI_SUCCESS);
        return error == MPI_SUCCESS ? receive_and_combine(impi_comm, step, blocks) : error;
    case WIREUP_IMPI_COMBINE:
        error = finish_sends(sends, MPI_SUCCESS);
        return error == MPI_SUCCESS ? PMPI(Reduce_local)(blocks->starts[numbers[0]], blocks->starts[numbers[1]],
                                                         count_of(blocks, numbers[0]), blocks->type, blocks->op)
                                    : error;
    default: return MPI_ERR_INTERN;
    }
}

int execute_steps(struct impi_comm *impi_comm, const struct table *table, const struct step_blocks *blocks)
{
    const int root = impi_comm->positions[table->root];
    const int process = impi_comm->positions[impi_comm->rank];
    int few[256];
    int *steps = few;
    int error = MPI_SUCCESS;

    const int length = wireup_impi_steps(impi_world, impi_comm->client_sizes, impi_comm->master_count, table->collective, root,
                                         table->is_long, process, few, sizeof(few) / sizeof(few[0]));
    if (length < 0) {
        fail_job("collective");
    }
    if (length > (int)(sizeof(few) / sizeof(few[0]))) {
        steps = allocate(sizeof(int) * (size_t)length);
        wireup_impi_steps(impi_world, impi_comm->client_sizes, impi_comm->master_count, table->collective, root, table->is_long,
                          process, steps, (size_t)length);
    }
    const size_t most = (size_t)length / STEP_HEAD + 1;
    struct sends sends = {.operations = allocate(sizeof(struct operation *) * most), .messages = allocate(sizeof(void *) * most)};
    for (const int *step = steps; error == MPI_SUCCESS && step < steps + length; step += STEP_HEAD + step[STEP_BLOCKS]) {
        if (!table->skips_client || step[STEP_CHANNEL] != WIREUP_IMPI_INSIDE_CLIENT) {
            error = execute_step(impi_comm, step, blocks, &sends);
        }
    }
    error = finish_sends(&sends, error);
    free(sends.operations);
    free(sends.messages);
    if (steps != few) {
        free(steps);
    }
    return error;
}
