/*
 * Collectives of communicators with members in several clients.
 *
 * Barrier, Bcast and Reduce have the messages of the specification: inside a client the launch's MPI does the work, and one
 * process of each client exchanges with those of the others, linearly or along a binomial tree. Source: IMPI 4.10, and LAM/MPI
 * 7.1.4 as impi/core/src/collective has it. In the others each process exchanges with each that it has data for.
 */
#include <limits.h>
#include <stdlib.h>

#include "preload.h"

/* Calls a collective of the members of this client; while operations progress, as its nonblocking form. */
#define LOCAL(blocking, nonblocking, ...)                                                                                      \
    (__extension__({                                                                                                           \
        MPI_Request local_request;                                                                                             \
        int local_error;                                                                                                       \
        if (polled_count == 0) {                                                                                               \
            local_error = PMPI(blocking)(__VA_ARGS__);                                                                         \
        } else {                                                                                                               \
            local_error = PMPI(nonblocking)(__VA_ARGS__, &local_request);                                                      \
            local_error = local_error == MPI_SUCCESS ? wait_local(&local_request, MPI_STATUS_IGNORE) : local_error;            \
        }                                                                                                                      \
        local_error;                                                                                                           \
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

/* Copies elements within this process. */
static int copy_block(const void *from, int from_count, MPI_Datatype from_type, void *to, int to_count,
                      MPI_Datatype to_type)
{
    return PMPI(Sendrecv)(from, from_count, from_type, 0, 0, to, to_count, to_type, 0, 0, self_comm, MPI_STATUS_IGNORE);
}

static void *block_start(const struct layout *layout, int rank)
{
    MPI_Aint lower, extent;

    PMPI(Type_get_extent)(layout->type, &lower, &extent);
    return (char *)layout->buffer + layout->blocks[rank].displacement * extent;
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
    int error = LOCAL(Barrier, Ibarrier, impi_comm->local);

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
    return error == MPI_SUCCESS ? LOCAL(Barrier, Ibarrier, impi_comm->local) : error;
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
    return error == MPI_SUCCESS ? LOCAL(Bcast, Ibcast, buffer, count, type, local_root, impi_comm->local) : error;
}

/* ---- Reductions ---- */

/* Memory for elements of a reduction. */
struct scratch {
    void *memory;
    void *elements;
};

static struct scratch make_scratch(int count, MPI_Datatype type)
{
    MPI_Aint lower, extent, true_lower, true_extent;

    PMPI(Type_get_extent)(type, &lower, &extent);
    PMPI(Type_get_true_extent)(type, &true_lower, &true_extent);
    void *memory = allocate((size_t)(count == 0 ? 0 : (count - 1) * extent + true_extent));
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
        return LOCAL(Reduce, Ireduce, own, NULL, count, type, op, local_root, impi_comm->local);
    }
    struct scratch scratch = make_scratch(is_root ? 0 : count, type);
    void *partial = is_root ? result : scratch.elements;
    int error = LOCAL(Reduce, Ireduce, own, partial, count, type, op, local_root, impi_comm->local);
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

/* ---- Blocks ---- */

/* Blocks of one size, one behind the other; the caller frees them. */
static struct block *make_equal_blocks(const struct impi_comm *impi_comm, int count)
{
    struct block *blocks = allocate(sizeof(*blocks) * (size_t)impi_comm->size);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        blocks[rank] = (struct block){.count = count, .displacement = (MPI_Aint)rank * count};
    }
    return blocks;
}

static int gather(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all, int root)
{
    int error = MPI_SUCCESS;

    if (impi_comm->rank != root) {
        return send_message(impi_comm, own, count, type, root, TAG_GATHER);
    }
    struct operation **operations = allocate(sizeof(*operations) * (size_t)impi_comm->size);
    for (int rank = 0; error == MPI_SUCCESS && rank < impi_comm->size; rank++) {
        const int wanted = all->blocks[rank].count;
        if (rank != root) {
            error = start_message(impi_comm, block_start(all, rank), wanted, all->type, rank, TAG_GATHER, false,
                                  &operations[rank]);
        } else if (own != MPI_IN_PLACE) {
            error = copy_block(own, count, type, block_start(all, rank), wanted, all->type);
        }
    }
    for (int rank = 0; rank < impi_comm->size; rank++) {
        const int ended = operations[rank] == NULL ? MPI_SUCCESS : finish_operation(operations[rank], MPI_STATUS_IGNORE);
        error = error == MPI_SUCCESS ? ended : error;
    }
    free(operations);
    return error;
}

static int scatter(struct impi_comm *impi_comm, const struct layout *all, void *own, int count, MPI_Datatype type, int root)
{
    int error = MPI_SUCCESS;

    if (impi_comm->rank != root) {
        return receive_message(impi_comm, own, count, type, root, TAG_SCATTER);
    }
    struct operation **operations = allocate(sizeof(*operations) * (size_t)impi_comm->size);
    for (int rank = 0; error == MPI_SUCCESS && rank < impi_comm->size; rank++) {
        const int given = all->blocks[rank].count;
        if (rank != root) {
            error = start_message(impi_comm, block_start(all, rank), given, all->type, rank, TAG_SCATTER, true,
                                  &operations[rank]);
        } else if (own != MPI_IN_PLACE) {
            error = copy_block(block_start(all, rank), given, all->type, own, count, type);
        }
    }
    for (int rank = 0; rank < impi_comm->size; rank++) {
        const int ended = operations[rank] == NULL ? MPI_SUCCESS : finish_operation(operations[rank], MPI_STATUS_IGNORE);
        error = error == MPI_SUCCESS ? ended : error;
    }
    free(operations);
    return error;
}

int exchange_numbers(struct impi_comm *impi_comm, const int *own, int count, int *all)
{
    struct block *blocks = make_equal_blocks(impi_comm, count);
    const struct layout layout = {.buffer = all, .blocks = blocks, .type = MPI_INT};
    const int error = gather(impi_comm, own, count, MPI_INT, &layout, 0);

    free(blocks);
    return error == MPI_SUCCESS ? impi_comm_bcast(impi_comm, all, impi_comm->size * count, MPI_INT, 0) : error;
}

/* Each block crosses to another client once. */
static int allgather(struct impi_comm *impi_comm, const void *own, int count, MPI_Datatype type, const struct layout *all)
{
    const int rank = impi_comm->rank;
    int error = MPI_SUCCESS;

    if (own != MPI_IN_PLACE) {
        error = copy_block(own, count, type, block_start(all, rank), all->blocks[rank].count, all->type);
    }
    for (int root = 0; error == MPI_SUCCESS && root < impi_comm->size; root++) {
        error = impi_comm_bcast(impi_comm, block_start(all, root), all->blocks[root].count, all->type, root);
    }
    return error;
}

static int alltoall(struct impi_comm *impi_comm, const struct layout *out, const struct layout *in)
{
    const int size = impi_comm->size;
    struct operation **operations = allocate(sizeof(*operations) * 2 * (size_t)size);
    int error = MPI_SUCCESS;

    for (int rank = 0; error == MPI_SUCCESS && rank < size; rank++) {
        if (rank == impi_comm->rank) {
            error = copy_block(block_start(out, rank), out->blocks[rank].count, out->type, block_start(in, rank),
                               in->blocks[rank].count, in->type);
            continue;
        }
        error = start_message(impi_comm, block_start(in, rank), in->blocks[rank].count, in->type, rank, TAG_ALLTOALL, false,
                              &operations[rank]);
        if (error == MPI_SUCCESS) {
            error = start_message(impi_comm, block_start(out, rank), out->blocks[rank].count, out->type, rank, TAG_ALLTOALL,
                                  true, &operations[size + rank]);
        }
    }
    for (int i = 0; i < 2 * size; i++) {
        const int ended = operations[i] == NULL ? MPI_SUCCESS : finish_operation(operations[i], MPI_STATUS_IGNORE);
        error = error == MPI_SUCCESS ? ended : error;
    }
    free(operations);
    return error;
}

/* Exchanges the blocks of one buffer, which each process sends and replaces. */
static int alltoall_in_place(struct impi_comm *impi_comm, const struct layout *all)
{
    MPI_Aint lower, extent, true_lower, true_extent;
    MPI_Aint end = 0;

    PMPI(Type_get_extent)(all->type, &lower, &extent);
    PMPI(Type_get_true_extent)(all->type, &true_lower, &true_extent);
    for (int rank = 0; rank < impi_comm->size; rank++) {
        const struct block *block = &all->blocks[rank];
        const MPI_Aint last = block->displacement + block->count - 1;
        if (block->count > 0 && last * extent + true_extent > end) {
            end = last * extent + true_extent;
        }
    }
    char *copy = allocate((size_t)end);
    memcpy(copy, (char *)all->buffer + true_lower, (size_t)end);
    const struct layout out = {.buffer = copy - true_lower, .blocks = all->blocks, .type = all->type};
    const int error = alltoall(impi_comm, &out, all);
    free(copy);
    return error;
}

static int reduce_scatter(struct impi_comm *impi_comm, const void *own, void *result, const struct block *blocks,
                          MPI_Datatype type, MPI_Op op)
{
    const struct block *last = &blocks[impi_comm->size - 1];
    const int total = (int)last->displacement + last->count;
    struct scratch sum = make_scratch(impi_comm->rank == 0 ? total : 0, type);
    int error = reduce(impi_comm, own == MPI_IN_PLACE ? result : own, sum.elements, total, type, op, 0);

    if (error == MPI_SUCCESS) {
        const struct layout all = {.buffer = sum.elements, .blocks = (struct block *)(uintptr_t)blocks, .type = type};
        error = scatter(impi_comm, &all, result, blocks[impi_comm->rank].count, type, 0);
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

/* Returns a communicator with several clients whose collectives are supported, or NULL. */
static struct impi_comm *find_members(MPI_Comm comm, const char *function, int *refused)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    *refused = impi_comm != NULL && impi_comm->own != NULL ? refuse_inter(comm, function) : MPI_SUCCESS;
    return impi_comm;
}

static bool is_rank(const struct impi_comm *impi_comm, int rank)
{
    return rank >= 0 && rank < impi_comm->size;
}

int MPI_Barrier(MPI_Comm comm)
{
    int refused;
    struct impi_comm *impi_comm = find_members(comm, __func__, &refused);

    if (impi_comm == NULL) {
        return PMPI(Barrier)(comm);
    }
    return refused == MPI_SUCCESS ? ended(impi_comm, impi_comm_barrier(impi_comm)) : refused;
}

#define COUNT int
#define DISPLACEMENT int
#define NAME(name) MPI_##name
#define CALL(name) PMPI(name)
#define MAKE_BLOCKS make_blocks
#include "collectives.inc"

#if MPI_VERSION >= 4
#undef COUNT
#undef DISPLACEMENT
#undef NAME
#undef CALL
#undef MAKE_BLOCKS
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define NAME(name) MPI_##name##_c
#define CALL(name) PMPI(name##_c)
#define MAKE_BLOCKS make_large_blocks
#include "collectives.inc"
#endif
