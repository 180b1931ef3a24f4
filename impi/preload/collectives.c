/*
 * Collectives of communicators with members in several clients.
 *
 * Those of MPI 1.1 have the messages of the tables in impi/core/src/collective, as other processes of the world do. In Barrier,
 * Bcast and Reduce the launch's MPI does the work inside a client. In the others, in all that return a request and in those of
 * intercommunicators, each process exchanges with each that it has data for.
 *
 * Rule: ranks are those of the processes that data comes from and goes to. In an intercommunicator they are those of the remote
 * group, so this process has none, and a root is MPI_ROOT in its own group. Source: MPI 4.1, 6.2.2.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

/* Calls a collective of the members of this client, and waits while operations progress. Always the nonblocking form: it does
 * not match the blocking one, and operations progress in some processes only. Source: MPI 3.0, 5.12. */
#define LOCAL(nonblocking, ...)                                                                                                \
    (__extension__({                                                                                                           \
        MPI_Request local_request;                                                                                             \
        const int local_error = PMPI(nonblocking)(__VA_ARGS__, &local_request);                                                \
        local_error == MPI_SUCCESS ? wait_local(&local_request, MPI_STATUS_IGNORE) : local_error;                              \
    }))

/* ---- Messages ---- */

static int start_message(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int peer, int tag, bool is_send,
                         struct operation **operation)
{
    const struct transfer transfer = {impi_comm, buffer, count, type, peer, tag, is_send, SEND_STANDARD};

    return start_operation(&transfer, COLLECTIVE, NULL, operation);
}

static int exchange_message(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int peer, int tag,
                            bool is_send)
{
    struct operation *operation;
    const int error = start_message(impi_comm, buffer, count, type, peer, tag, is_send, &operation);

    return error == MPI_SUCCESS ? finish_operation(operation, MPI_STATUS_IGNORE) : error;
}

static int send_message(struct impi_comm *impi_comm, const void *buffer, int count, MPI_Datatype type, int to, int tag)
{
    return exchange_message(impi_comm, (void *)(uintptr_t)buffer, count, type, to, tag, true);
}

static int receive_message(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int from, int tag)
{
    return exchange_message(impi_comm, buffer, count, type, from, tag, false);
}

int copy_block(const void *from, int from_count, MPI_Datatype from_type, void *to, int to_count, MPI_Datatype to_type)
{
    return PMPI(Sendrecv)(from, from_count, from_type, 0, 0, to, to_count, to_type, 0, 0, self_comm, MPI_STATUS_IGNORE);
}

/* ---- Blocks ---- */

/* Elements of one process in a buffer. */
struct block {
    int count;
    MPI_Aint displacement; /* bytes */
    MPI_Datatype type;
};

/* Elements of all processes in a buffer. */
struct layout {
    void *buffer;
    const struct block *blocks; /* by rank; NULL where a process does not use them */
};

static void *block_start(const struct layout *layout, int rank)
{
    return (char *)layout->buffer + layout->blocks[rank].displacement;
}

/* Blocks of one size for as many ranks, one behind the other; the caller frees them. */
static struct block *make_equal_blocks(int size, int count, MPI_Datatype type)
{
    struct block *blocks = allocate(sizeof(*blocks) * (size_t)size);
    const MPI_Aint bytes = count * extent_of(type);

    for (int rank = 0; rank < size; rank++) {
        blocks[rank] = (struct block){.count = count, .displacement = rank * bytes, .type = type};
    }
    return blocks;
}

/* ---- Clients ---- */

/* Returns the process of a client: its lowest rank, or the root in the root's client. */
static int representative_of(const struct impi_comm *impi_comm, int client, int root)
{
    return impi_comm->clients[root] == client ? root : impi_comm->masters[client];
}

/* Returns the process of this client. */
static int representative(const struct impi_comm *impi_comm, int root)
{
    return representative_of(impi_comm, impi_comm->clients[impi_comm->rank], root);
}

int impi_comm_barrier(struct impi_comm *impi_comm)
{
    const struct table table = {.collective = WIREUP_IMPI_BARRIER, .skips_client = true};
    const struct step_blocks nothing = {.type = MPI_BYTE};
    int error = LOCAL(Ibarrier, impi_comm->local);

    error = error == MPI_SUCCESS ? execute_steps(impi_comm, &table, &nothing) : error;
    return error == MPI_SUCCESS ? LOCAL(Ibarrier, impi_comm->local) : error;
}

int impi_comm_bcast(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int root)
{
    const struct table table = {.collective = WIREUP_IMPI_BCAST, .root = root, .skips_client = true};
    char *start = buffer;
    const struct step_blocks blocks = {.starts = &start, .count = count, .type = type};
    const int local_root = impi_comm->local_ranks[representative(impi_comm, root)];
    const int error = execute_steps(impi_comm, &table, &blocks);

    return error == MPI_SUCCESS ? LOCAL(Ibcast, buffer, count, type, local_root, impi_comm->local) : error;
}

/* ---- Reductions ---- */

static int reduce_commutative(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type,
                              MPI_Op op, int root)
{
    const struct table table = {.collective = WIREUP_IMPI_REDUCE, .root = root, .skips_client = true};
    const int local_root = impi_comm->local_ranks[representative(impi_comm, root)];
    const bool is_root = impi_comm->rank == root;

    if (impi_comm->rank != representative(impi_comm, root)) {
        return LOCAL(Ireduce, own, NULL, count, type, op, local_root, impi_comm->local);
    }
    struct scratch scratch = make_scratch(is_root ? 0 : count, type);
    char *partial = is_root ? result : scratch.elements;
    const struct step_blocks blocks = {.starts = &partial, .count = count, .type = type, .op = op};
    int error = LOCAL(Ireduce, own, partial, count, type, op, local_root, impi_comm->local);
    error = error == MPI_SUCCESS ? execute_steps(impi_comm, &table, &blocks) : error;
    free(scratch.memory);
    return error;
}

/* Combines the values of all processes in the order of ranks. */
static int reduce_ordered(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op,
                          int root)
{
    if (impi_comm->rank != root) {
        return send_message(impi_comm, own, count, type, root, TAG_REDUCE);
    }
    struct scratch sum = make_scratch(count, type);
    struct scratch other = make_scratch(count, type);
    const void *value = own == MPI_IN_PLACE ? result : own;
    int error = MPI_SUCCESS;
    for (int rank = impi_comm->size - 1; error == MPI_SUCCESS && rank >= 0; rank--) {
        const bool is_last = rank == impi_comm->size - 1;
        void *next = is_last ? sum.elements : other.elements;
        error = rank == root ? copy_block(value, count, type, next, count, type)
                             : receive_message(impi_comm, next, count, type, rank, TAG_REDUCE);
        if (error == MPI_SUCCESS && !is_last) {
            error = PMPI(Reduce_local)(next, sum.elements, count, type, op);
        }
    }
    error = error == MPI_SUCCESS ? copy_block(sum.elements, count, type, result, count, type) : error;
    free(sum.memory);
    free(other.memory);
    return error;
}

static int reduce(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op, int root)
{
    int is_commutative = 0;

    PMPI(Op_commutative)(op, &is_commutative);
    return is_commutative ? reduce_commutative(impi_comm, own, result, count, type, op, root)
                          : reduce_ordered(impi_comm, own, result, count, type, op, root);
}

static int allreduce(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op)
{
    const void *value = own == MPI_IN_PLACE && impi_comm->rank != 0 ? result : own;
    const int error = reduce(impi_comm, value, result, count, type, op, 0);

    return error == MPI_SUCCESS ? impi_comm_bcast(impi_comm, result, count, type, 0) : error;
}

/* Combines the values of all processes up to this one, itself included or not, along one chain. */
static int scan_chain(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op,
                      bool is_inclusive)
{
    struct scratch before = make_scratch(count, type);
    struct scratch sum = make_scratch(count, type);
    int error = copy_block(own == MPI_IN_PLACE ? result : own, count, type, sum.elements, count, type);

    if (error == MPI_SUCCESS && impi_comm->rank > 0) {
        error = receive_message(impi_comm, before.elements, count, type, impi_comm->rank - 1, TAG_SCAN);
        error = error == MPI_SUCCESS ? PMPI(Reduce_local)(before.elements, sum.elements, count, type, op) : error;
    }
    if (error == MPI_SUCCESS && impi_comm->rank < impi_comm->size - 1) {
        error = send_message(impi_comm, sum.elements, count, type, impi_comm->rank + 1, TAG_SCAN);
    }
    if (error == MPI_SUCCESS && (is_inclusive || impi_comm->rank > 0)) {
        error = copy_block(is_inclusive ? sum.elements : before.elements, count, type, result, count, type);
    }
    free(before.memory);
    free(sum.memory);
    return error;
}

/* ---- Exchanges ---- */

/* Whether a collective has the messages of the specification. */
static bool has_tree(const struct impi_comm *impi_comm, const MPI_Request *request)
{
    return request == NULL && impi_comm->own == NULL;
}

static bool is_root(const struct impi_comm *impi_comm, int root)
{
    return root == (impi_comm->own == NULL ? impi_comm->rank : MPI_ROOT);
}

static bool is_valid_root(const struct impi_comm *impi_comm, int root)
{
    const bool is_own = impi_comm->own != NULL && (root == MPI_ROOT || root == MPI_PROC_NULL);

    return is_own || (root >= 0 && root < impi_comm->size);
}

/* Returns the size of the group of this process. */
static int own_size(const struct impi_comm *impi_comm)
{
    return impi_comm->own == NULL ? impi_comm->size : impi_comm->own->size;
}

static struct exchange *create_collective(struct impi_comm *impi_comm, int tag, const MPI_Request *request)
{
    return create_exchange(impi_comm, COLLECTIVE, request == NULL ? tag : TAG_NONBLOCKING);
}

/* Whether a collective with these bytes of each process has its form for few bytes. */
static bool is_short(const struct impi_comm *impi_comm, const MPI_Request *request, int bytes)
{
    return has_tree(impi_comm, request) && bytes >= 0 && bytes < wireup_impi_crossover(impi_world);
}

static int gather(struct impi_comm *impi_comm, int tag, const void *own, int count, MPI_Datatype type, const struct layout *all,
                  int root, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, tag, request);

    if (!is_root(impi_comm, root)) {
        add_message(exchange, own, count, type, root, true);
    }
    for (int rank = 0; is_root(impi_comm, root) && rank < impi_comm->size; rank++) {
        const struct block *block = &all->blocks[rank];
        if (rank != root) {
            add_message(exchange, block_start(all, rank), block->count, block->type, rank, false);
        } else if (own != MPI_IN_PLACE) {
            add_error(exchange, copy_block(own, count, type, block_start(all, rank), block->count, block->type));
        }
    }
    return end_exchange(exchange, request);
}

static int scatter(struct impi_comm *impi_comm, int tag, const struct layout *all, void *own, int count, MPI_Datatype type,
                   int root, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, tag, request);

    if (!is_root(impi_comm, root)) {
        add_message(exchange, own, count, type, root, false);
    }
    for (int rank = 0; is_root(impi_comm, root) && rank < impi_comm->size; rank++) {
        const struct block *block = &all->blocks[rank];
        if (rank != root) {
            add_message(exchange, block_start(all, rank), block->count, block->type, rank, true);
        } else if (own != MPI_IN_PLACE) {
            add_error(exchange, copy_block(block_start(all, rank), block->count, block->type, own, count, type));
        }
    }
    return end_exchange(exchange, request);
}

int exchange_numbers(struct impi_comm *impi_comm, const int *own, int count, int *all)
{
    struct block *blocks = make_equal_blocks(impi_comm->size, count, MPI_INT);
    const struct layout layout = {.buffer = all, .blocks = blocks};
    const int error = gather(impi_comm, TAG_GATHER, own, count, MPI_INT, &layout, 0, NULL);

    free(blocks);
    return error == MPI_SUCCESS ? impi_comm_bcast(impi_comm, all, impi_comm->size * count, MPI_INT, 0) : error;
}

/* As `impi_comm_bcast`, without a tree. */
static int exchange_bcast(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int root, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_BCAST, request);

    if (!is_root(impi_comm, root)) {
        add_message(exchange, buffer, count, type, root, false);
    }
    for (int rank = 0; is_root(impi_comm, root) && rank < impi_comm->size; rank++) {
        if (rank != root) {
            add_message(exchange, buffer, count, type, rank, true);
        }
    }
    return end_exchange(exchange, request);
}

/* Sends the same elements to all, and receives those of each. */
static int send_to_all(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all,
                       MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_GATHER, request);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        const struct block *block = &all->blocks[rank];
        if (rank != impi_comm->rank) {
            add_message(exchange, block_start(all, rank), block->count, block->type, rank, false);
            add_message(exchange, own, count, type, rank, true);
        }
    }
    return end_exchange(exchange, request);
}

static int exchange_nothing(struct impi_comm *impi_comm, MPI_Request *request)
{
    struct block *blocks = make_equal_blocks(impi_comm->size, 0, MPI_BYTE);
    const struct layout nothing = {.blocks = blocks};
    const int error = send_to_all(impi_comm, NULL, 0, MPI_BYTE, &nothing, request);

    free(blocks);
    return error;
}

/* Gathers packed blocks for all. */
static int allgather_packed(struct impi_comm *impi_comm, const struct layout *all, enum wireup_impi_collective collective)
{
    const size_t size = (size_t)impi_comm->size;
    int *counts = allocate(sizeof(int) * size);
    char **starts = allocate(sizeof(char *) * size);
    int64_t total = 0;
    int longest = 0;
    int error = MPI_SUCCESS;

    for (int position = 0; position < impi_comm->size; position++) {
        const struct block *block = &all->blocks[impi_comm->order[position]];
        counts[position] = wire_bytes(block->count, block->type);
        error = counts[position] < 0 ? MPI_ERR_COUNT : error;
        longest = counts[position] > longest ? counts[position] : longest;
        total += counts[position];
    }
    char *memory = allocate(error == MPI_SUCCESS ? (size_t)total : 0);
    char *next = memory;
    for (int position = 0; error == MPI_SUCCESS && position < impi_comm->size; position++) {
        const int rank = impi_comm->order[position];
        const struct block *block = &all->blocks[rank];
        starts[position] = next;
        next += counts[position];
        if (rank == impi_comm->rank) {
            void *packed = pack_message(block_start(all, rank), block->count, block->type, counts[position]);
            memcpy(starts[position], packed, (size_t)counts[position]);
            free(packed);
        }
    }
    if (error == MPI_SUCCESS) {
        const struct table table = {.collective = collective, .is_long = longest >= wireup_impi_crossover(impi_world)};
        const struct step_blocks blocks = {.starts = starts, .counts = counts, .type = MPI_BYTE};
        error = execute_steps(impi_comm, &table, &blocks);
    }
    for (int position = 0; error == MPI_SUCCESS && position < impi_comm->size; position++) {
        const int rank = impi_comm->order[position];
        const struct block *block = &all->blocks[rank];
        if (rank != impi_comm->rank) {
            unpack_message(starts[position], counts[position], block_start(all, rank), block->count, block->type);
        }
    }
    free(memory);
    free(starts);
    free(counts);
    return error;
}

static int allgather(struct impi_comm *impi_comm, enum wireup_impi_collective collective, const void *own, int count,
                     MPI_Datatype type, const struct layout *all, MPI_Request *request)
{
    const int rank = impi_comm->rank;
    int error = MPI_SUCCESS;

    if (impi_comm->own != NULL) {
        return send_to_all(impi_comm, own, count, type, all, request);
    }
    const struct block *place = &all->blocks[rank];

    if (own != MPI_IN_PLACE) {
        error = copy_block(own, count, type, block_start(all, rank), place->count, place->type);
    }
    if (error == MPI_SUCCESS && !has_tree(impi_comm, request)) {
        return send_to_all(impi_comm, block_start(all, rank), place->count, place->type, all, request);
    }
    return error == MPI_SUCCESS ? allgather_packed(impi_comm, all, collective) : error;
}

static void add_blocks(struct exchange *exchange, const struct impi_comm *impi_comm, const struct layout *out,
                       const struct layout *in)
{
    for (int rank = 0; rank < impi_comm->size; rank++) {
        const struct block *given = &out->blocks[rank];
        const struct block *taken = &in->blocks[rank];
        if (rank == impi_comm->rank) {
            add_error(exchange, copy_block(block_start(out, rank), given->count, given->type, block_start(in, rank),
                                           taken->count, taken->type));
            continue;
        }
        add_message(exchange, block_start(in, rank), taken->count, taken->type, rank, false);
        add_message(exchange, block_start(out, rank), given->count, given->type, rank, true);
    }
}

/* Copies the blocks of a buffer; the caller frees `memory`, and the blocks of the copy. */
static struct layout copy_layout(const struct impi_comm *impi_comm, const struct layout *all, void **memory)
{
    struct block *blocks = allocate(sizeof(*blocks) * (size_t)impi_comm->size);
    MPI_Aint bytes = 0;

    for (int rank = 0; rank < impi_comm->size; rank++) {
        const struct block *block = &all->blocks[rank];
        MPI_Aint true_lower, true_extent;
        PMPI(Type_get_true_extent)(block->type, &true_lower, &true_extent);
        blocks[rank] = (struct block){.count = block->count, .displacement = bytes - true_lower, .type = block->type};
        bytes += block->count == 0 ? 0 : (block->count - 1) * extent_of(block->type) + true_extent;
    }
    *memory = allocate((size_t)bytes);
    const struct layout copy = {.buffer = *memory, .blocks = blocks};
    for (int rank = 0; rank < impi_comm->size; rank++) {
        const struct block *block = &blocks[rank];
        copy_block(block_start(all, rank), block->count, block->type, block_start(&copy, rank), block->count, block->type);
    }
    return copy;
}

/* Without `out` each process sends the blocks of `in`, and replaces them. */
static int alltoall(struct impi_comm *impi_comm, int tag, const struct layout *out, const struct layout *in, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, tag, request);
    void *memory;

    if (out != NULL) {
        add_blocks(exchange, impi_comm, out, in);
    } else {
        const struct layout copy = copy_layout(impi_comm, in, &memory);
        keep_memory(exchange, memory);
        add_blocks(exchange, impi_comm, &copy, in);
        free((void *)(uintptr_t)copy.blocks);
    }
    return end_exchange(exchange, request);
}

/* ---- Forms for few bytes ---- */

/* Makes packed blocks of as many bytes each, none of which is there yet. */
static struct step_blocks make_packed_blocks(int64_t block_count, int bytes)
{
    return (struct step_blocks){.starts = allocate(sizeof(char *) * (size_t)block_count), .count = bytes, .type = MPI_BYTE};
}

static void free_packed_blocks(struct step_blocks *blocks, int64_t block_count)
{
    for (int64_t i = 0; i < block_count; i++) {
        free(blocks->starts[i]);
    }
    free(blocks->starts);
}

static void *pack_block(const struct layout *layout, int rank, int bytes)
{
    return pack_message(block_start(layout, rank), layout->blocks[rank].count, layout->blocks[rank].type, bytes);
}

static void unpack_block(void *packed, int bytes, const struct layout *layout, int rank)
{
    unpack_message(packed, bytes, block_start(layout, rank), layout->blocks[rank].count, layout->blocks[rank].type);
}

static int gather_short(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all,
                        int root, int bytes)
{
    const struct table table = {.collective = WIREUP_IMPI_GATHER, .root = root};
    struct step_blocks blocks = make_packed_blocks(impi_comm->size, bytes);
    const bool is_at_root = impi_comm->rank == root;

    if (!is_at_root) {
        blocks.starts[impi_comm->positions[impi_comm->rank]] = pack_message(own, count, type, bytes);
    }
    int error = execute_steps(impi_comm, &table, &blocks);
    if (error == MPI_SUCCESS && is_at_root && own != MPI_IN_PLACE) {
        error = copy_block(own, count, type, block_start(all, root), all->blocks[root].count, all->blocks[root].type);
    }
    for (int rank = 0; error == MPI_SUCCESS && is_at_root && rank < impi_comm->size; rank++) {
        if (rank != root) {
            unpack_block(blocks.starts[impi_comm->positions[rank]], bytes, all, rank);
        }
    }
    free_packed_blocks(&blocks, impi_comm->size);
    return error;
}

static int scatter_short(struct impi_comm *impi_comm, const struct layout *all, void *own, int count, MPI_Datatype type, int root,
                         int bytes)
{
    const struct table table = {.collective = WIREUP_IMPI_SCATTER, .root = root};
    struct step_blocks blocks = make_packed_blocks(impi_comm->size, bytes);
    const bool is_at_root = impi_comm->rank == root;

    for (int rank = 0; is_at_root && rank < impi_comm->size; rank++) {
        if (rank != root) {
            blocks.starts[impi_comm->positions[rank]] = pack_block(all, rank, bytes);
        }
    }
    int error = execute_steps(impi_comm, &table, &blocks);
    if (error == MPI_SUCCESS && !is_at_root) {
        unpack_message(blocks.starts[impi_comm->positions[impi_comm->rank]], bytes, own, count, type);
    } else if (error == MPI_SUCCESS && own != MPI_IN_PLACE) {
        error = copy_block(block_start(all, root), all->blocks[root].count, all->blocks[root].type, own, count, type);
    }
    free_packed_blocks(&blocks, impi_comm->size);
    return error;
}

static int alltoall_short(struct impi_comm *impi_comm, const struct layout *out, const struct layout *in, int bytes)
{
    const struct table table = {.collective = WIREUP_IMPI_ALLTOALL};
    const int64_t size = impi_comm->size;
    const int own = impi_comm->positions[impi_comm->rank];
    struct step_blocks blocks = make_packed_blocks(size * size, bytes);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        blocks.starts[own * size + impi_comm->positions[rank]] = pack_block(out == NULL ? in : out, rank, bytes);
    }
    const int error = execute_steps(impi_comm, &table, &blocks);
    for (int rank = 0; error == MPI_SUCCESS && rank < impi_comm->size; rank++) {
        unpack_block(blocks.starts[impi_comm->positions[rank] * size + own], bytes, in, rank);
    }
    free_packed_blocks(&blocks, size * size);
    return error;
}

/* Whether the ranks of each client follow one another. */
static bool is_ordered(const struct impi_comm *impi_comm)
{
    for (int rank = 0; rank < impi_comm->size; rank++) {
        if (impi_comm->order[rank] != rank) {
            return false;
        }
    }
    return true;
}

static int scan_short(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op)
{
    const struct table table = {.collective = WIREUP_IMPI_SCAN};
    struct scratch sum = make_scratch(count, type);
    struct scratch before = make_scratch(count, type);
    char *starts[] = {sum.elements, before.elements};
    const struct step_blocks blocks = {.starts = starts, .count = count, .type = type, .op = op};
    int error = copy_block(own == MPI_IN_PLACE ? result : own, count, type, sum.elements, count, type);

    error = error == MPI_SUCCESS ? execute_steps(impi_comm, &table, &blocks) : error;
    error = error == MPI_SUCCESS ? copy_block(sum.elements, count, type, result, count, type) : error;
    free(sum.memory);
    free(before.memory);
    return error;
}

static int scan(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op)
{
    return is_short(impi_comm, NULL, wire_bytes(count, type)) && is_ordered(impi_comm)
               ? scan_short(impi_comm, own, result, count, type, op)
               : scan_chain(impi_comm, own, result, count, type, op, true);
}

/* ---- Reductions of values that are all here ---- */

/* Makes room for values of `value_count` processes, with that of this one in place. */
static struct reduction add_values(struct exchange *exchange, const struct impi_comm *impi_comm, const void *own, void *result,
                                   int value_count, int count, MPI_Datatype type, MPI_Op op)
{
    const struct scratch scratch = make_scratch((int64_t)value_count * count, type);
    const struct reduction reduction = {.values = scratch.elements, .value_count = value_count,
                                        .stride = count * extent_of(type), .count = count, .type = type, .op = op,
                                        .result = result};

    keep_memory(exchange, scratch.memory);
    if (impi_comm->own == NULL && impi_comm->rank < value_count) {
        add_error(exchange, copy_block(own, count, type, reduction.values + impi_comm->rank * reduction.stride, count, type));
    }
    if (value_count > 0) {
        add_reduction(exchange, &reduction);
    }
    return reduction;
}

/* Sends a value to the ranks from `first` on that are before `end`, and combines those of the first `value_count` ranks. */
static int exchange_reduce(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op, int first,
                   int end, int value_count, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_REDUCE, request);
    const void *value = own == MPI_IN_PLACE ? result : own;
    const struct reduction reduction = add_values(exchange, impi_comm, value, result, value_count, count, type, op);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        if (rank != impi_comm->rank && rank < value_count) {
            add_message(exchange, reduction.values + rank * reduction.stride, count, type, rank, false);
        }
        if (rank != impi_comm->rank && rank >= first && rank < end) {
            add_message(exchange, value, count, type, rank, true);
        }
    }
    return end_exchange(exchange, request);
}

/* Each process combines the values of its block. */
static int exchange_reduce_scatter(struct impi_comm *impi_comm, const void *own, void *result, const struct block *blocks, MPI_Op op,
                           MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_REDUCE, request);
    const struct layout values = {.buffer = own == MPI_IN_PLACE ? result : (void *)(uintptr_t)own, .blocks = blocks};
    const struct block *block = &blocks[impi_comm->rank];
    const struct reduction reduction = add_values(exchange, impi_comm, block_start(&values, impi_comm->rank), result,
                                                  impi_comm->size, block->count, block->type, op);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        if (rank != impi_comm->rank) {
            add_message(exchange, reduction.values + rank * reduction.stride, block->count, block->type, rank, false);
            add_message(exchange, block_start(&values, rank), blocks[rank].count, block->type, rank, true);
        }
    }
    return end_exchange(exchange, request);
}

/* Each process combines the values of its block from the other group, whose members do not know the blocks of this one: they
 * send all. */
static int exchange_reduce_scatter_inter(struct impi_comm *impi_comm, const void *own, void *result, const struct block *blocks,
                                         int total, MPI_Op op, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_REDUCE, request);
    const struct block *block = &blocks[impi_comm->own->rank];
    const struct scratch scratch = make_scratch((int64_t)impi_comm->size * total, block->type);
    char *values = scratch.elements;
    const struct reduction reduction = {.values = values + block->displacement, .value_count = impi_comm->size,
                                        .stride = total * extent_of(block->type), .count = block->count,
                                        .type = block->type, .op = op, .result = result};

    keep_memory(exchange, scratch.memory);
    add_reduction(exchange, &reduction);
    for (int rank = 0; rank < impi_comm->size; rank++) {
        add_message(exchange, values + rank * reduction.stride, total, block->type, rank, false);
        add_message(exchange, own, total, block->type, rank, true);
    }
    return end_exchange(exchange, request);
}

/* All blocks are of one type, one behind the other, and have `total` elements. */
static int reduce_scatter(struct impi_comm *impi_comm, const void *own, void *result, const struct block *blocks, int total,
                          MPI_Op op, MPI_Request *request)
{
    const MPI_Datatype type = blocks[0].type;

    if (impi_comm->own != NULL) {
        return exchange_reduce_scatter_inter(impi_comm, own, result, blocks, total, op, request);
    }
    if (request != NULL) {
        return exchange_reduce_scatter(impi_comm, own, result, blocks, op, request);
    }
    struct scratch sum = make_scratch(impi_comm->rank == 0 ? total : 0, type);
    int error = reduce(impi_comm, own == MPI_IN_PLACE ? result : own, sum.elements, total, type, op, 0);

    if (error == MPI_SUCCESS) {
        const struct layout all = {.buffer = sum.elements, .blocks = blocks};
        error = scatter(impi_comm, TAG_SCATTERV, &all, result, blocks[impi_comm->rank].count, type, 0, NULL);
    }
    free(sum.memory);
    return error;
}

/* ---- Functions of MPI ---- */

static bool is_countable(int64_t count)
{
    return count <= INT_MAX;
}

/* The result of a collective of a function of MPI. */
static int ended(const struct impi_comm *impi_comm, int error)
{
    return error == MPI_SUCCESS ? error : raise_error(impi_comm->local, error);
}

/* Leaves a communicator of one client to the launch's MPI, by this call, and declares `impi_comm` for others. */
#define FIND_MEMBERS(call)                                                                                                     \
    struct impi_comm *impi_comm = find_impi_comm(comm);                                                                        \
    if (impi_comm == NULL) {                                                                                                   \
        return call;                                                                                                           \
    }

int MPI_Barrier(MPI_Comm comm)
{
    FIND_MEMBERS(PMPI(Barrier)(comm));
    return ended(impi_comm, has_tree(impi_comm, NULL) ? impi_comm_barrier(impi_comm) : exchange_nothing(impi_comm, NULL));
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request)
{
    FIND_MEMBERS(PMPI(Ibarrier)(comm, request));
    return ended(impi_comm, exchange_nothing(impi_comm, request));
}

#define UNPACK(...) __VA_ARGS__

/* Defines MPI_name, which waits, and MPI_nonblocking, which returns a request. The block that follows is the collective of a
 * communicator with several clients: it waits if `request` is NULL, and returns the error. */
#define COLLECTIVE_OF_CLIENTS(name, nonblocking, parameters, arguments)                                                        \
    static int DO(name)(struct impi_comm *impi_comm, MPI_Request *request, UNPACK parameters);                                 \
    int NAME(name)(UNPACK parameters, MPI_Comm comm)                                                                           \
    {                                                                                                                          \
        FIND_MEMBERS(CALL(name)(UNPACK arguments, comm));                                                                      \
        return ended(impi_comm, DO(name)(impi_comm, NULL, UNPACK arguments));                                                  \
    }                                                                                                                          \
    int NAME(nonblocking)(UNPACK parameters, MPI_Comm comm, MPI_Request *request)                                              \
    {                                                                                                                          \
        FIND_MEMBERS(CALL(nonblocking)(UNPACK arguments, comm, request));                                                      \
        return ended(impi_comm, DO(name)(impi_comm, request, UNPACK arguments));                                               \
    }                                                                                                                          \
    static int DO(name)(struct impi_comm *impi_comm, MPI_Request *request, UNPACK parameters)

#define COUNT int
#define DISPLACEMENT int
#define NAME(name) MPI_##name
#define CALL(name) PMPI(name)
#define DO(name) do_##name
#include "collectives.inc"

#if MPI_VERSION >= 4
#undef COUNT
#undef DISPLACEMENT
#undef NAME
#undef CALL
#undef DO
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define NAME(name) MPI_##name##_c
#define CALL(name) PMPI(name##_c)
#define DO(name) do_large_##name
#include "collectives.inc"
#endif
