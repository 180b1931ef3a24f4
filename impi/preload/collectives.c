/*
 * Collectives of communicators with members in several clients.
 *
 * Barrier, Bcast and Reduce have the messages of the specification: inside a client the launch's MPI does the work, and one
 * process of each client exchanges with those of the others, linearly or along a binomial tree. Source: IMPI 4.10, and LAM/MPI
 * 7.1.4 as impi/core/src/collective has it. In the others, in all that return a request and in those of intercommunicators, each
 * process exchanges with each that it has data for.
 *
 * Rule: ranks are those of the processes that data comes from and goes to. In an intercommunicator they are those of the remote
 * group, so this process has none, and a root is MPI_ROOT in its own group. Source: MPI 4.1, 6.2.2.
 */
#include <limits.h>
#include <stdlib.h>

#include "preload.h"

/* Calls a collective of the members of this client, and waits while operations progress. Always the nonblocking form: it does
 * not match the blocking one, and operations progress in some processes only. Source: MPI 3.0, 5.12. */
#define LOCAL(nonblocking, ...)                                                                                                \
    (__extension__({                                                                                                           \
        MPI_Request local_request;                                                                                             \
        const int local_error = PMPI(nonblocking)(__VA_ARGS__, &local_request);                                                \
        local_error == MPI_SUCCESS ? wait_local(&local_request, MPI_STATUS_IGNORE) : local_error;                              \
    }))

/* Clients from which a tree has more levels than one. */
enum { DEFAULT_MAX_LINEAR = 4, MAX_CLIENTS = 32 };

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

static MPI_Aint extent_of(MPI_Datatype type)
{
    MPI_Aint lower, extent;

    PMPI(Type_get_extent)(type, &lower, &extent);
    return extent;
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

/* The process of this client, and those of the clients above and below it. */
struct tree {
    int representative; /* rank of this client's process */
    int parent;         /* MPI_PROC_NULL at the root */
    int children[MAX_CLIENTS];
    int child_count;
};

static int max_linear(void)
{
    const char *text = getenv("IMPI_COLL_MAXLINEAR");

    return text == NULL ? DEFAULT_MAX_LINEAR : atoi(text);
}

/* Returns the process of a client: its lowest rank, or the root in the root's client. */
static int representative_of(const struct impi_comm *impi_comm, int client, int root)
{
    return impi_comm->clients[root] == client ? root : impi_comm->masters[client];
}

static struct tree make_tree(const struct impi_comm *impi_comm, int root)
{
    const int count = impi_comm->master_count;
    const int first = impi_comm->clients[root];
    const int client = impi_comm->clients[impi_comm->rank];
    const int number = (client - first + count) % count;
    const bool is_linear = count <= max_linear();
    struct tree tree = {.representative = representative_of(impi_comm, client, root), .parent = MPI_PROC_NULL};
    int step = 1;

    /* The highest bit of the number leads to the parent; higher ones to children. */
    while (step <= number) {
        step *= 2;
    }
    if (number > 0) {
        const int parent = is_linear ? 0 : number & ~(step / 2);
        tree.parent = representative_of(impi_comm, (parent + first) % count, root);
    }
    for (int other = number + 1; other < count && other < MAX_CLIENTS; other++) {
        bool is_child = is_linear ? number == 0 : false;
        for (int bit = step; !is_linear && bit < count; bit *= 2) {
            is_child = is_child || other == (number | bit);
        }
        if (is_child) {
            tree.children[tree.child_count++] = representative_of(impi_comm, (other + first) % count, root);
        }
    }
    return tree;
}

int impi_comm_barrier(struct impi_comm *impi_comm)
{
    const struct tree tree = make_tree(impi_comm, 0);
    int error = LOCAL(Ibarrier, impi_comm->local);

    if (impi_comm->rank == tree.representative) {
        for (int i = 0; error == MPI_SUCCESS && i < tree.child_count; i++) {
            error = receive_message(impi_comm, NULL, 0, MPI_BYTE, tree.children[i], TAG_BARRIER);
        }
        if (error == MPI_SUCCESS && tree.parent != MPI_PROC_NULL) {
            error = send_message(impi_comm, NULL, 0, MPI_BYTE, tree.parent, TAG_BARRIER);
            error = error == MPI_SUCCESS ? receive_message(impi_comm, NULL, 0, MPI_BYTE, tree.parent, TAG_BARRIER) : error;
        }
        for (int i = 0; error == MPI_SUCCESS && i < tree.child_count; i++) {
            error = send_message(impi_comm, NULL, 0, MPI_BYTE, tree.children[i], TAG_BARRIER);
        }
    }
    return error == MPI_SUCCESS ? LOCAL(Ibarrier, impi_comm->local) : error;
}

int impi_comm_bcast(struct impi_comm *impi_comm, void *buffer, int count, MPI_Datatype type, int root)
{
    const struct tree tree = make_tree(impi_comm, root);
    const int local_root = impi_comm->local_ranks[tree.representative];
    int error = MPI_SUCCESS;

    if (impi_comm->rank == tree.representative) {
        if (tree.parent != MPI_PROC_NULL) {
            error = receive_message(impi_comm, buffer, count, type, tree.parent, TAG_BCAST);
        }
        for (int i = 0; error == MPI_SUCCESS && i < tree.child_count; i++) {
            error = send_message(impi_comm, buffer, count, type, tree.children[i], TAG_BCAST);
        }
    }
    return error == MPI_SUCCESS ? LOCAL(Ibcast, buffer, count, type, local_root, impi_comm->local) : error;
}

/* ---- Reductions ---- */

/* Memory for elements. */
struct scratch {
    void *memory;
    void *elements;
};

static struct scratch make_scratch(int64_t count, MPI_Datatype type)
{
    MPI_Aint true_lower, true_extent;

    PMPI(Type_get_true_extent)(type, &true_lower, &true_extent);
    void *memory = allocate((size_t)(count == 0 ? 0 : (count - 1) * extent_of(type) + true_extent));
    return (struct scratch){.memory = memory, .elements = (char *)memory - true_lower};
}

/* Combines the partial results of the clients at the root. */
static int reduce_clients(struct impi_comm *impi_comm, const struct tree *tree, void *partial, int count, MPI_Datatype type,
                          MPI_Op op)
{
    struct scratch other = make_scratch(count, type);
    int error = MPI_SUCCESS;

    for (int i = 0; error == MPI_SUCCESS && i < tree->child_count; i++) {
        error = receive_message(impi_comm, other.elements, count, type, tree->children[i], TAG_REDUCE);
        error = error == MPI_SUCCESS ? PMPI(Reduce_local)(other.elements, partial, count, type, op) : error;
    }
    if (error == MPI_SUCCESS && tree->parent != MPI_PROC_NULL) {
        error = send_message(impi_comm, partial, count, type, tree->parent, TAG_REDUCE);
    }
    free(other.memory);
    return error;
}

static int reduce_commutative(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type,
                              MPI_Op op, int root)
{
    const struct tree tree = make_tree(impi_comm, root);
    const int local_root = impi_comm->local_ranks[tree.representative];
    const bool is_root = impi_comm->rank == root;

    if (impi_comm->rank != tree.representative) {
        return LOCAL(Ireduce, own, NULL, count, type, op, local_root, impi_comm->local);
    }
    struct scratch scratch = make_scratch(is_root ? 0 : count, type);
    void *partial = is_root ? result : scratch.elements;
    int error = LOCAL(Ireduce, own, partial, count, type, op, local_root, impi_comm->local);
    error = error == MPI_SUCCESS ? reduce_clients(impi_comm, &tree, partial, count, type, op) : error;
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

/* Combines the values of all processes up to this one, itself included or not. */
static int scan(struct impi_comm *impi_comm, const void *own, void *result, int count, MPI_Datatype type, MPI_Op op,
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

static int gather(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all, int root,
                  MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_GATHER, request);

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

static int scatter(struct impi_comm *impi_comm, const struct layout *all, void *own, int count, MPI_Datatype type, int root,
                   MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_SCATTER, request);

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
    const int error = gather(impi_comm, own, count, MPI_INT, &layout, 0, NULL);

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

/* Each block crosses to another client once, if there is a tree. */
static int allgather(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all,
                     MPI_Request *request)
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
    for (int root = 0; error == MPI_SUCCESS && root < impi_comm->size; root++) {
        const struct block *block = &all->blocks[root];
        error = impi_comm_bcast(impi_comm, block_start(all, root), block->count, block->type, root);
    }
    return error;
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
static int alltoall(struct impi_comm *impi_comm, const struct layout *out, const struct layout *in, MPI_Request *request)
{
    struct exchange *exchange = create_collective(impi_comm, TAG_ALLTOALL, request);
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
        error = scatter(impi_comm, &all, result, blocks[impi_comm->rank].count, type, 0, NULL);
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
