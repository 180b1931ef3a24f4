/*
 * Communicators with members in several clients: their members, and the functions that make, compare and describe them.
 *
 * Rule: the context of a communicator is even, above all that its makers have used, and the next one is that of its collectives.
 * Source: IMPI 4.2. MPI_Comm_idup may be called for several communicators in any order, so its members cannot agree: one member
 * chooses a context that no other process chooses.
 */
#include <stdlib.h>

#include "preload.h"

struct impi_comm *impi_comm_buckets[1 << IMPI_COMM_BITS];
uint64_t last_context = 1;

/* Changes the first communicator of a bucket, with the lock. */
static void set_first(struct impi_comm **bucket, struct impi_comm *first)
{
    __atomic_store_n(bucket, first, __ATOMIC_RELEASE);
}

struct impi_comm *search_impi_comm(MPI_Comm comm)
{
    lock();
    struct impi_comm *impi_comm = *impi_comm_bucket(comm);
    while (impi_comm != NULL && impi_comm->local != comm) {
        impi_comm = impi_comm->next;
    }
    unlock();
    return impi_comm;
}

/* Numbers the clients by their lowest ranks. */
static void number_clients(struct impi_comm *impi_comm)
{
    int *numbers = allocate(sizeof(int) * (size_t)wireup_impi_clients(impi_world));

    for (int rank = 0; rank < impi_comm->size; rank++) {
        const int client = wireup_impi_client_of(impi_world, impi_comm->world_ranks[rank]);
        if (numbers[client] == 0) {
            impi_comm->masters[impi_comm->master_count++] = rank;
            numbers[client] = impi_comm->master_count;
        }
        impi_comm->clients[rank] = numbers[client] - 1;
    }
    free(numbers);
}

/* Puts the ranks of each client one behind the other. */
static void order_ranks(struct impi_comm *impi_comm)
{
    int next = 0;

    for (int client = 0; client < impi_comm->master_count; client++) {
        for (int rank = 0; rank < impi_comm->size; rank++) {
            if (impi_comm->clients[rank] == client) {
                impi_comm->positions[rank] = next;
                impi_comm->order[next++] = rank;
                impi_comm->client_sizes[client]++;
            }
        }
    }
}

/* Relates the ranks to those of the handle, whose members are these of this client in their order. */
static void number_local(struct impi_comm *impi_comm, int count, const int *world_ranks)
{
    const int own_rank = wireup_impi_rank(impi_world);
    const int own = wireup_impi_client_of(impi_world, own_rank);

    for (int rank = 0; rank < impi_comm->size; rank++) {
        impi_comm->local_ranks[rank] = -1;
        if (impi_comm->world_ranks[rank] == own_rank) {
            impi_comm->rank = rank;
        }
    }
    for (int i = 0; i < count; i++) {
        if (wireup_impi_client_of(impi_world, world_ranks[i]) != own) {
            continue;
        }
        for (int rank = 0; rank < impi_comm->size; rank++) {
            if (impi_comm->world_ranks[rank] == world_ranks[i]) {
                impi_comm->local_ranks[rank] = impi_comm->local_size;
                impi_comm->ranks[impi_comm->local_size] = rank;
            }
        }
        impi_comm->local_size++;
    }
}

static void free_impi_comm(struct impi_comm *impi_comm)
{
    if (impi_comm->own != NULL) {
        free_impi_comm(impi_comm->own);
    }
    free_topology(impi_comm);
    free(impi_comm->world_ranks);
    free(impi_comm->local_ranks);
    free(impi_comm->ranks);
    free(impi_comm->clients);
    free(impi_comm->masters);
    free(impi_comm->client_sizes);
    free(impi_comm->order);
    free(impi_comm->positions);
    free(impi_comm);
}

/* Makes the tables of a communicator with these members, which it takes over. */
static struct impi_comm *make_impi_comm(MPI_Comm local, int size, int *world_ranks, uint64_t context, int local_room)
{
    const size_t bytes = sizeof(int) * (size_t)size;
    struct impi_comm *impi_comm = allocate(sizeof(*impi_comm));

    *impi_comm = (struct impi_comm){.local = local, .context = context, .size = size, .world_ranks = world_ranks, .references = 1};
    impi_comm->local_ranks = allocate(bytes);
    impi_comm->ranks = allocate(sizeof(int) * (size_t)local_room);
    impi_comm->clients = allocate(bytes);
    impi_comm->masters = allocate(bytes);
    impi_comm->client_sizes = allocate(bytes);
    impi_comm->order = allocate(bytes);
    impi_comm->positions = allocate(bytes);
    number_clients(impi_comm);
    order_ranks(impi_comm);
    return impi_comm;
}

/* `collective` is MPI_COMM_NULL if this has to make it, for which the members of this client wait. */
static void register_impi_comm(struct impi_comm *impi_comm, MPI_Comm collective)
{
    impi_comm->collective = collective;
    if (collective == MPI_COMM_NULL) {
        /* Unlike MPI_Comm_dup, this copies no attributes. */
        PMPI(Comm_split)(impi_comm->local, 0, 0, &impi_comm->collective);
    }
    PMPI(Comm_set_errhandler)(impi_comm->collective, MPI_ERRORS_RETURN);
    if (impi_comm->own != NULL) {
        impi_comm->own->collective = impi_comm->collective;
    }
    lock();
    struct impi_comm **bucket = impi_comm_bucket(impi_comm->local);
    impi_comm->next = *bucket;
    set_first(bucket, impi_comm);
    unlock();
}

static struct impi_comm *add_intra(MPI_Comm local, MPI_Comm collective, int size, int *world_ranks, uint64_t context)
{
    struct impi_comm *impi_comm = make_impi_comm(local, size, world_ranks, context, size);

    if (impi_comm->master_count < 2) {
        free_impi_comm(impi_comm);
        return NULL;
    }
    number_local(impi_comm, size, world_ranks);
    register_impi_comm(impi_comm, collective);
    return impi_comm;
}

struct impi_comm *add_impi_comm(MPI_Comm local, int size, int *world_ranks, uint64_t context)
{
    return add_intra(local, MPI_COMM_NULL, size, world_ranks, context);
}

void add_inter(MPI_Comm local, MPI_Comm collective, const struct two_groups *groups)
{
    const int count = groups->own_size + groups->remote_size;
    struct impi_comm *impi_comm = make_impi_comm(local, groups->remote_size, groups->remote, groups->context, count);
    int *all = sort_members(groups->own_size, groups->own, groups->remote_size, groups->remote);

    impi_comm->rank = -1;
    impi_comm->own = make_impi_comm(local, groups->own_size, groups->own, groups->context, count);
    number_local(impi_comm, count, all);
    number_local(impi_comm->own, count, all);
    free(all);
    register_impi_comm(impi_comm, collective);
}

void release_impi_comm(struct impi_comm *impi_comm)
{
    impi_comm->references--;
    if (impi_comm->references == 0) {
        PMPI(Comm_free)(&impi_comm->collective);
        free_impi_comm(impi_comm);
    }
}

/* Returns an unused context, on which all members agree. */
static int agree_on_context(struct impi_comm *impi_comm, uint64_t *context)
{
    const int own[2] = {(int)(last_context >> 32), (int)(uint32_t)last_context};
    int *all = allocate(sizeof(own) * (size_t)impi_comm->size);
    const int error = exchange_numbers(impi_comm, own, 2, all);
    uint64_t last = last_context;

    for (int rank = 0; rank < impi_comm->size; rank++) {
        const uint64_t other = (uint64_t)(uint32_t)all[2 * rank] << 32 | (uint32_t)all[2 * rank + 1];
        last = other > last ? other : last;
    }
    free(all);
    *context = (last + 2) / 2 * 2;
    last_context = *context + 1;
    return error;
}

/* Exchanges a context with a process of the world. */
static int exchange_context(struct impi_comm *impi_comm, int world_rank, int tag, uint64_t *context, bool is_send)
{
    struct operation *operation;
    struct transfer transfer = {.impi_comm = impi_comm, .buffer = context, .count = 1, .type = MPI_UINT64_T, .is_send = is_send};

    transfer.tag = TAG_GROUP + tag % GROUP_TAGS;
    while (impi_comm->world_ranks[transfer.peer] != world_rank) {
        transfer.peer++;
    }
    const int error = start_operation(&transfer, COLLECTIVE, NULL, &operation);
    return error == MPI_SUCCESS ? finish_operation(operation, MPI_STATUS_IGNORE) : error;
}

/* ---- Size, rank, comparison ---- */

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Comm_size)(comm, size);
    }
    *size = impi_comm->own == NULL ? impi_comm->size : impi_comm->own->size;
    return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Comm_rank)(comm, rank);
    }
    *rank = impi_comm->own == NULL ? impi_comm->rank : impi_comm->own->rank;
    return MPI_SUCCESS;
}

int MPI_Comm_compare(MPI_Comm first, MPI_Comm second, int *result)
{
    const struct impi_comm *one = find_impi_comm(first);
    const struct impi_comm *other = find_impi_comm(second);

    if (one == NULL && other == NULL) {
        return PMPI(Comm_compare)(first, second, result);
    }
    if (one == other) {
        *result = MPI_IDENT;
    } else if (one == NULL || other == NULL || (one->own == NULL) != (other->own == NULL)) {
        *result = MPI_UNEQUAL;
    } else {
        *result = compare_members(one->size, one->world_ranks, other->size, other->world_ranks);
        if (one->own != NULL && *result != MPI_UNEQUAL) {
            const struct impi_comm *first_own = one->own;
            const struct impi_comm *second_own = other->own;
            const int own = compare_members(first_own->size, first_own->world_ranks, second_own->size,
                                            second_own->world_ranks);
            *result = own == MPI_IDENT ? *result : own;
        }
        *result = *result == MPI_IDENT ? MPI_CONGRUENT : *result;
    }
    return MPI_SUCCESS;
}

int MPI_Comm_group(MPI_Comm comm, MPI_Group *group)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Comm_group)(comm, group);
    }
    const struct impi_comm *own = impi_comm->own;
    const int size = own == NULL ? impi_comm->size : own->size;
    *group = make_group(size, copy_numbers(own == NULL ? impi_comm->world_ranks : own->world_ranks, size));
    return MPI_SUCCESS;
}

/* ---- New communicators ---- */

/* Adds the duplicate of a communicator. `collective` is as for `register_impi_comm`. */
static void copy_impi_comm(const struct impi_comm *impi_comm, MPI_Comm duplicate, MPI_Comm collective, uint64_t context)
{
    const struct impi_comm *own = impi_comm->own;
    int *members = copy_numbers(impi_comm->world_ranks, impi_comm->size);

    if (own == NULL) {
        copy_topology(impi_comm, add_intra(duplicate, collective, impi_comm->size, members, context));
        return;
    }
    const struct two_groups groups = {own->size, copy_numbers(own->world_ranks, own->size), impi_comm->size, members, context};
    add_inter(duplicate, collective, &groups);
}

/* Adds a duplicate on whose context the members agree; `code` is the result of making it in this client. */
static int add_duplicate(struct impi_comm *impi_comm, int code, MPI_Comm duplicate)
{
    uint64_t context;
    int error = code;

    if (error == MPI_SUCCESS) {
        error = impi_comm->own == NULL ? agree_on_context(impi_comm, &context) : agree_with_peers(impi_comm, &context);
    }
    if (error != MPI_SUCCESS) {
        return raise_error(impi_comm->local, error);
    }
    copy_impi_comm(impi_comm, duplicate, MPI_COMM_NULL, context);
    return MPI_SUCCESS;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *duplicate)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    const int code = PMPI(Comm_dup)(comm, duplicate);

    return impi_comm == NULL ? code : add_duplicate(impi_comm, code, *duplicate);
}

int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *duplicate)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    const int code = PMPI(Comm_dup_with_info)(comm, info, duplicate);

    return impi_comm == NULL ? code : add_duplicate(impi_comm, code, *duplicate);
}

int *choose_members(const int *choices, int size, const int *world_ranks, int color, int *count)
{
    int *members = allocate(sizeof(int) * (size_t)size);

    *count = 0;
    for (int rank = 0; rank < size; rank++) {
        int at = *count;
        if (choices[2 * rank] != color) {
            continue;
        }
        for (; at > 0 && choices[2 * members[at - 1] + 1] > choices[2 * rank + 1]; at--) {
            members[at] = members[at - 1];
        }
        members[at] = rank;
        *count += 1;
    }
    for (int i = 0; i < *count; i++) {
        members[i] = world_ranks[members[i]];
    }
    return members;
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *part)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    uint64_t context;

    if (impi_comm != NULL && impi_comm->own != NULL) {
        return split_inter(impi_comm, color, key, part);
    }
    int error = PMPI(Comm_split)(comm, color, key, part);
    if (impi_comm == NULL || error != MPI_SUCCESS) {
        return error;
    }
    const int own[2] = {color == MPI_UNDEFINED ? -1 : color, key};
    int *all = allocate(sizeof(own) * (size_t)impi_comm->size);
    error = exchange_numbers(impi_comm, own, 2, all);
    error = error == MPI_SUCCESS ? agree_on_context(impi_comm, &context) : error;
    if (error == MPI_SUCCESS && own[0] >= 0) {
        int count;
        int *members = choose_members(all, impi_comm->size, impi_comm->world_ranks, own[0], &count);
        add_impi_comm(*part, count, members, context);
    }
    free(all);
    return error == MPI_SUCCESS ? error : raise_error(comm, error);
}

int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *part)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        MPI_Group local = MPI_GROUP_NULL;
        int error = copy_to_local_group(group, &local);
        if (error == MPI_SUCCESS) {
            error = PMPI(Comm_create)(comm, local, part);
            PMPI(Group_free)(&local);
        }
        return error == MPI_SUCCESS ? error : raise_error(comm, error);
    }
    int size;
    int *members;
    uint64_t context;
    int error = copy_members(group, &size, &members);
    int position = 0;
    while (position < size && members[position] != wireup_impi_rank(impi_world)) {
        position++;
    }
    const bool is_member = error == MPI_SUCCESS && position < size;
    if (error == MPI_SUCCESS && impi_comm->own != NULL) {
        free(members);
        return split_inter(impi_comm, is_member ? 0 : MPI_UNDEFINED, position, part);
    }
    if (error == MPI_SUCCESS) {
        error = PMPI(Comm_split)(comm, is_member ? members[0] : MPI_UNDEFINED, position, part);
        error = error == MPI_SUCCESS ? agree_on_context(impi_comm, &context) : error;
    }
    if (error == MPI_SUCCESS && is_member) {
        add_impi_comm(*part, size, members, context);
    } else {
        free(members);
    }
    return error == MPI_SUCCESS ? error : raise_error(comm, error);
}

/* Returns an unused context, on which the members of a group agree: the first one collects. */
static int agree_in_group(struct impi_comm *impi_comm, int size, const int *members, int tag, uint64_t *context)
{
    int error = MPI_SUCCESS;

    *context = (last_context + 2) / 2 * 2;
    for (int i = 1; error == MPI_SUCCESS && i < size; i++) {
        uint64_t other;
        if (members[0] == impi_comm->world_ranks[impi_comm->rank]) {
            error = exchange_context(impi_comm, members[i], tag, &other, false);
            *context = other > *context ? other : *context;
        } else if (members[i] == impi_comm->world_ranks[impi_comm->rank]) {
            error = exchange_context(impi_comm, members[0], tag, context, true);
            error = error == MPI_SUCCESS ? exchange_context(impi_comm, members[0], tag, context, false) : error;
        }
    }
    for (int i = 1; error == MPI_SUCCESS && i < size && members[0] == impi_comm->world_ranks[impi_comm->rank]; i++) {
        error = exchange_context(impi_comm, members[i], tag, context, true);
    }
    last_context = *context + 1;
    return error;
}

/* Makes a communicator of a group of this client. MPICH 4 reads the group that belongs to `comm` without a check: it has
 * none before the first MPI_Comm_group, and `local` may come from another communicator. */
static int create_group_here(MPI_Comm comm, MPI_Group local, int tag, MPI_Comm *part)
{
    MPI_Group group;
    int error = PMPI(Comm_group)(comm, &group);

    if (error == MPI_SUCCESS) {
        PMPI(Group_free)(&group);
        error = PMPI(Comm_create_group)(comm, local, tag, part);
    }
    return error;
}

/* The part of `MPI_Comm_create_group` for a group with members in several clients. */
static int create_in_group(struct impi_comm *impi_comm, MPI_Group group, int tag, MPI_Comm *part)
{
    int size;
    int *members;
    MPI_Group local = MPI_GROUP_EMPTY;
    MPI_Comm collective = MPI_COMM_NULL;
    uint64_t context;
    int error = copy_members(group, &size, &members);

    if (error == MPI_SUCCESS) {
        error = copy_local_members(size, members, &local);
    }
    if (error == MPI_SUCCESS) {
        error = create_group_here(impi_comm->local, local, tag, part);
        if (error == MPI_SUCCESS && *part != MPI_COMM_NULL) {
            /* While members have begun MPI_Comm_idup, Open MPI's MPI_Comm_split waits for all of them. */
            error = create_group_here(impi_comm->local, local, tag, &collective);
        }
        PMPI(Group_free)(&local);
    }
    if (error != MPI_SUCCESS || *part == MPI_COMM_NULL) {
        free(members);
        return error;
    }
    error = agree_in_group(impi_comm, size, members, tag, &context);
    if (error == MPI_SUCCESS && add_intra(*part, collective, size, members, context) == NULL) {
        PMPI(Comm_free)(&collective);
    }
    return error;
}

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *part)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    MPI_Group local;
    int error;

    if (impi_comm != NULL) {
        error = create_in_group(impi_comm, group, tag, part);
        return error == MPI_SUCCESS ? error : raise_error(comm, error);
    }
    error = copy_to_local_group(group, &local);
    if (error == MPI_SUCCESS) {
        error = create_group_here(comm, local, tag, part);
        PMPI(Group_free)(&local);
    }
    return error == MPI_SUCCESS ? error : raise_error(comm, error);
}

__attribute__((visibility("default"))) int MPI_Comm_create_from_group(MPI_Group group, const char *tag, MPI_Info info,
                                                                      MPI_Errhandler handler, MPI_Comm *comm);
int PMPI_Comm_create_from_group(MPI_Group group, const char *tag, MPI_Info info, MPI_Errhandler handler, MPI_Comm *comm);

int MPI_Comm_create_from_group(MPI_Group group, const char *tag, MPI_Info info, MPI_Errhandler handler, MPI_Comm *comm)
{
    MPI_Group local;

    if (!is_impi_comm_group(group)) {
        return PMPI(Comm_create_from_group)(group, tag, info, handler, comm);
    }
    if (copy_to_local_group(group, &local) != MPI_SUCCESS) {
        return refuse(MPI_COMM_WORLD, "MPI_Comm_create_from_group");
    }
    const int error = PMPI(Comm_create_from_group)(local, tag, info, handler, comm);
    PMPI(Group_free)(&local);
    return error;
}

/* ---- Duplicates that are made while the program goes on ---- */

/* Duplicate of a communicator that is not complete. */
struct duplication {
    struct impi_comm *impi_comm; /* the operation has a reference */
    MPI_Comm *duplicate;         /* of the program, which gets the handle at the end */
    MPI_Comm local;
    MPI_Comm collective;
    uint64_t context;
};

/* Returns a context that no other process returns, above all on which members agree. */
static uint64_t make_unique_context(void)
{
    static uint64_t count;

    lock();
    const uint64_t own = count++;
    unlock();
    return UINT64_C(1) << 62 | (uint64_t)wireup_impi_rank(impi_world) << 33 | own << 1;
}

/* The first member of the group that begins with the lower rank of the world chooses the context, and sends it to all others. */
static void add_unique_context(struct exchange *exchange, struct impi_comm *impi_comm, uint64_t *context)
{
    struct impi_comm *own = impi_comm->own == NULL ? impi_comm : impi_comm->own;
    struct impi_comm *const groups[] = {own, impi_comm};
    const int group_count = impi_comm->own == NULL ? 1 : 2;
    struct transfer transfer = {.buffer = context, .count = 1, .type = MPI_UINT64_T, .tag = TAG_NONBLOCKING};

    transfer.impi_comm = own->world_ranks[0] <= impi_comm->world_ranks[0] ? own : impi_comm;
    if (transfer.impi_comm->rank != 0) {
        add_transfer(exchange, &transfer);
        return;
    }
    *context = make_unique_context();
    transfer.is_send = true;
    for (int i = 0; i < group_count; i++) {
        transfer.impi_comm = groups[i];
        for (transfer.peer = 0; transfer.peer < groups[i]->size; transfer.peer++) {
            if (transfer.peer != groups[i]->rank) {
                add_transfer(exchange, &transfer);
            }
        }
    }
}

static int end_duplication(void *memory)
{
    const struct duplication *duplication = memory;

    copy_impi_comm(duplication->impi_comm, duplication->local, duplication->collective, duplication->context);
    *duplication->duplicate = duplication->local;
    return MPI_SUCCESS;
}

__attribute__((visibility("default"))) int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *duplicate,
                                                                   MPI_Request *request);
int PMPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *duplicate, MPI_Request *request);

/* `info` is NULL for MPI_Comm_idup. */
static int idup_impi_comm(struct impi_comm *impi_comm, const MPI_Info *info, MPI_Comm *duplicate, MPI_Request *request)
{
    struct exchange *exchange = create_exchange(impi_comm, COLLECTIVE, TAG_NONBLOCKING);
    struct duplication *duplication = allocate(sizeof(*duplication));
    const MPI_Comm comm = impi_comm->local;
    MPI_Request local;
    int error;

    *duplication = (struct duplication){.impi_comm = impi_comm, .duplicate = duplicate};
    keep_memory(exchange, duplication);
    call_at_end(exchange, end_duplication);
    error = info == NULL ? PMPI(Comm_idup)(comm, &duplication->local, &local)
                         : PMPI(Comm_idup_with_info)(comm, *info, &duplication->local, &local);
    if (error == MPI_SUCCESS) {
        add_local(exchange, local);
        error = PMPI(Comm_idup)(impi_comm->collective, &duplication->collective, &local);
    }
    if (error == MPI_SUCCESS) {
        add_local(exchange, local);
    }
    add_error(exchange, error);
    add_unique_context(exchange, impi_comm, &duplication->context);
    return end_exchange(exchange, request);
}

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *duplicate, MPI_Request *request)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    return impi_comm == NULL ? PMPI(Comm_idup)(comm, duplicate, request)
                             : idup_impi_comm(impi_comm, NULL, duplicate, request);
}

int MPI_Comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *duplicate, MPI_Request *request)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);

    return impi_comm == NULL ? PMPI(Comm_idup_with_info)(comm, info, duplicate, request)
                             : idup_impi_comm(impi_comm, &info, duplicate, request);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    struct impi_comm *impi_comm = find_impi_comm(*comm);

    if (impi_comm != NULL && *comm != MPI_COMM_WORLD) {
        /* Receives that look for messages of this client need the handle. */
        for (unsigned round = 0; impi_comm->first_pending != NULL; round++) {
            pause_progress(round);
            lock();
            advance_operations();
            unlock();
        }
        lock();
        struct impi_comm **link = impi_comm_bucket(*comm);
        while (*link != impi_comm) {
            link = &(*link)->next;
        }
        set_first(link, impi_comm->next);
        release_impi_comm(impi_comm);
        unlock();
    }
    return PMPI(Comm_free)(comm);
}

/* ---- Attributes ---- */

/* The greatest tag that all MPIs have: processes of one communicator must find the same limit. MPICH 4.0 has this one. */
enum { COMMON_TAG_LIMIT = (1 << 28) - 1 };

/* Whether the attribute is the greatest tag between clients, which `limit` gets. Keys of the specification, IMPI_CLIENT_SIZE and
 * others, are not defined, or numbers that Open MPI also gives to keys of programs. */
static bool is_tag_limit(MPI_Comm comm, int key, int **limit)
{
    static int tag_limit;
    const char *text = getenv("IMPI_TAG_UB");
    int *local = NULL;
    int is_set = 0;

    if (key != MPI_TAG_UB || text == NULL || find_impi_comm(comm) == NULL) {
        return false;
    }
    PMPI(Comm_get_attr)(comm, key, &local, &is_set);
    tag_limit = atoi(text) < COMMON_TAG_LIMIT ? atoi(text) : COMMON_TAG_LIMIT;
    if (is_set && *local < tag_limit) {
        tag_limit = *local;
    }
    *limit = &tag_limit;
    return true;
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *flag)
{
    int *limit;

    if (!is_tag_limit(comm, key, &limit)) {
        return PMPI(Comm_get_attr)(comm, key, value, flag);
    }
    memcpy(value, &limit, sizeof(limit));
    *flag = 1;
    return MPI_SUCCESS;
}

#ifndef WIREUP_STANDARD_ABI
int MPI_Attr_get(MPI_Comm comm, int key, void *value, int *flag)
{
    return MPI_Comm_get_attr(comm, key, value, flag);
}
#endif
