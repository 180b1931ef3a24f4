/*
 * Intercommunicators with members in several clients. Peers are ranks of the remote group; the handle is a communicator of the
 * launch's MPI with the members of both groups in this client, in the order of the world.
 */
#include <stdlib.h>

#include "preload.h"

/* Exchanges numbers with all peers; `others` gets theirs in the order of ranks. */
static int exchange_with_peers(struct impi_comm *impi_comm, const void *own, void *others, int count, MPI_Datatype type)
{
    struct exchange *exchange = create_exchange(impi_comm, COLLECTIVE, TAG_GROUP);
    int size;

    PMPI(Type_size)(type, &size);
    for (int peer = 0; peer < impi_comm->size; peer++) {
        add_message(exchange, (char *)others + (size_t)(peer * count * size), count, type, peer, false);
        add_message(exchange, own, count, type, peer, true);
    }
    return end_exchange(exchange, NULL);
}

/* Exchanges a number with all peers; it becomes the greatest of theirs. */
static int exchange_greatest(struct impi_comm *impi_comm, uint64_t *value)
{
    uint64_t *others = allocate(sizeof(*others) * (size_t)impi_comm->size);
    const int error = exchange_with_peers(impi_comm, value, others, 1, MPI_UINT64_T);

    *value = 0;
    for (int peer = 0; peer < impi_comm->size; peer++) {
        *value = others[peer] > *value ? others[peer] : *value;
    }
    free(others);
    return error;
}

int agree_with_peers(struct impi_comm *impi_comm, uint64_t *context)
{
    uint64_t remote = last_context;
    int error = exchange_greatest(impi_comm, &remote);
    uint64_t own = remote;

    /* Each peer returns the greatest of this group. */
    error = error == MPI_SUCCESS ? exchange_greatest(impi_comm, &own) : error;
    *context = ((own > remote ? own : remote) + 2) / 2 * 2;
    last_context = *context + 1;
    return error;
}

int *sort_members(int own_size, const int *own, int remote_size, const int *remote)
{
    int *all = allocate(sizeof(int) * ((size_t)own_size + (size_t)remote_size));

    for (int i = 0; i < own_size + remote_size; i++) {
        const int member = i < own_size ? own[i] : remote[i - own_size];
        int at = i;
        for (; at > 0 && all[at - 1] > member; at--) {
            all[at] = all[at - 1];
        }
        all[at] = member;
    }
    return all;
}

/* The leaders exchange the groups, and give them to the members. */
static int exchange_groups(MPI_Comm comm, int leader, bool is_leader, MPI_Comm peers, int remote_leader, int tag,
                           struct two_groups *groups)
{
    uint64_t own[2], remote[2] = {0, 0};
    MPI_Group group;

    MPI_Comm_group(comm, &group);
    int error = copy_members(group, &groups->own_size, &groups->own);
    MPI_Group_free(&group);
    if (error == MPI_SUCCESS) {
        error = MPI_Allreduce(&last_context, &own[1], 1, MPI_UINT64_T, MPI_MAX, comm);
    }
    own[0] = (uint64_t)groups->own_size;
    if (error == MPI_SUCCESS && is_leader) {
        error = MPI_Sendrecv(own, 2, MPI_UINT64_T, remote_leader, tag, remote, 2, MPI_UINT64_T, remote_leader, tag, peers,
                             MPI_STATUS_IGNORE);
    }
    error = error == MPI_SUCCESS ? MPI_Bcast(remote, 2, MPI_UINT64_T, leader, comm) : error;
    groups->remote_size = (int)remote[0];
    groups->remote = allocate(sizeof(int) * (size_t)remote[0]);
    groups->context = ((own[1] > remote[1] ? own[1] : remote[1]) + 2) / 2 * 2;
    if (error == MPI_SUCCESS && is_leader) {
        error = MPI_Sendrecv(groups->own, groups->own_size, MPI_INT, remote_leader, tag, groups->remote,
                             groups->remote_size, MPI_INT, remote_leader, tag, peers, MPI_STATUS_IGNORE);
    }
    return error == MPI_SUCCESS ? MPI_Bcast(groups->remote, groups->remote_size, MPI_INT, leader, comm) : error;
}

/* Whether a group or the communicator of the leaders has members in several clients; all members find the same. */
static int find_span(MPI_Comm comm, int leader, bool is_leader, MPI_Comm peers, int remote_leader, int tag, int *is_impi_comm)
{
    int error = MPI_SUCCESS;
    int remote = 0;

    *is_impi_comm = find_impi_comm(comm) != NULL || (is_leader && find_impi_comm(peers) != NULL);
    if (is_leader) {
        error = MPI_Sendrecv(is_impi_comm, 1, MPI_INT, remote_leader, tag, &remote, 1, MPI_INT, remote_leader, tag, peers,
                             MPI_STATUS_IGNORE);
    }
    *is_impi_comm |= remote;
    return error == MPI_SUCCESS ? MPI_Bcast(is_impi_comm, 1, MPI_INT, leader, comm) : error;
}

int MPI_Intercomm_create(MPI_Comm comm, int leader, MPI_Comm peers, int remote_leader, int tag, MPI_Comm *created)
{
    struct two_groups groups = {0};
    int rank = 0;
    int is_impi_comm;
    MPI_Group local;

    if (impi_world == NULL || find_impi_comm(MPI_COMM_WORLD) == NULL) {
        return PMPI(Intercomm_create)(comm, leader, peers, remote_leader, tag, created);
    }
    MPI_Comm_rank(comm, &rank);
    const bool is_leader = rank == leader;
    int error = find_span(comm, leader, is_leader, peers, remote_leader, tag, &is_impi_comm);
    if (error != MPI_SUCCESS || !is_impi_comm) {
        return error != MPI_SUCCESS ? error : PMPI(Intercomm_create)(comm, leader, peers, remote_leader, tag, created);
    }
    error = exchange_groups(comm, leader, is_leader, peers, remote_leader, tag, &groups);
    int *all = sort_members(groups.own_size, groups.own, groups.remote_size, groups.remote);
    if (error == MPI_SUCCESS) {
        error = copy_local_members(groups.own_size + groups.remote_size, all, &local);
    }
    if (error == MPI_SUCCESS) {
        error = PMPI(Comm_create_group)(MPI_COMM_WORLD, local, tag, created);
        PMPI(Group_free)(&local);
    }
    free(all);
    if (error != MPI_SUCCESS) {
        free(groups.own);
        free(groups.remote);
        return error;
    }
    last_context = groups.context + 1;
    add_inter(*created, MPI_COMM_NULL, &groups);
    return MPI_SUCCESS;
}

__attribute__((visibility("default"))) int MPI_Intercomm_create_from_groups(MPI_Group own, int leader, MPI_Group remote,
                                                                            int remote_leader, const char *tag,
                                                                            MPI_Info info, MPI_Errhandler handler,
                                                                            MPI_Comm *created);
int PMPI_Intercomm_create_from_groups(MPI_Group own, int leader, MPI_Group remote, int remote_leader, const char *tag,
                                      MPI_Info info, MPI_Errhandler handler, MPI_Comm *created);

int MPI_Intercomm_create_from_groups(MPI_Group own, int leader, MPI_Group remote, int remote_leader, const char *tag,
                                     MPI_Info info, MPI_Errhandler handler, MPI_Comm *created)
{
    if (is_impi_comm_group(own) || is_impi_comm_group(remote)) {
        return refuse(MPI_COMM_WORLD, "MPI_Intercomm_create_from_groups");
    }
    return PMPI(Intercomm_create_from_groups)(own, leader, remote, remote_leader, tag, info, handler, created);
}

int MPI_Intercomm_merge(MPI_Comm comm, int high, MPI_Comm *merged)
{
    struct impi_comm *impi_comm = find_impi_comm(comm);
    uint64_t remote_high = high != 0;
    uint64_t context;

    if (impi_comm == NULL || impi_comm->own == NULL) {
        return PMPI(Intercomm_merge)(comm, high, merged);
    }
    const struct impi_comm *own = impi_comm->own;
    int error = exchange_greatest(impi_comm, &remote_high);
    error = error == MPI_SUCCESS ? agree_with_peers(impi_comm, &context) : error;
    if (error != MPI_SUCCESS) {
        return raise_error(comm, error);
    }
    const bool is_equal = (high != 0) == (remote_high != 0);
    const bool is_first = is_equal ? own->world_ranks[0] < impi_comm->world_ranks[0] : high == 0;
    int *members = allocate(sizeof(int) * ((size_t)own->size + (size_t)impi_comm->size));
    memcpy(members + (is_first ? 0 : impi_comm->size), own->world_ranks, sizeof(int) * (size_t)own->size);
    memcpy(members + (is_first ? own->size : 0), impi_comm->world_ranks, sizeof(int) * (size_t)impi_comm->size);
    error = PMPI(Comm_split)(impi_comm->local, 0, own->rank + (is_first ? 0 : impi_comm->size), merged);
    if (error == MPI_SUCCESS) {
        add_impi_comm(*merged, own->size + impi_comm->size, members, context);
    } else {
        free(members);
    }
    return error;
}

/* Gathers the color and the key of the members of both groups. */
static int exchange_choices(struct impi_comm *impi_comm, int color, int key, int *own, int *remote)
{
    const int choice[2] = {color, key};
    int error = exchange_with_peers(impi_comm, choice, remote, 2, MPI_INT);
    struct exchange *exchange = create_exchange(impi_comm, COLLECTIVE, TAG_GROUP);

    /* The first member of the other group returns what this one has sent. */
    add_message(exchange, own, 2 * impi_comm->own->size, MPI_INT, 0, false);
    for (int peer = 0; impi_comm->own->rank == 0 && peer < impi_comm->size; peer++) {
        add_message(exchange, remote, 2 * impi_comm->size, MPI_INT, peer, true);
    }
    const int returned = end_exchange(exchange, NULL);
    return error == MPI_SUCCESS ? returned : error;
}

int split_inter(struct impi_comm *impi_comm, int color, int key, MPI_Comm *part)
{
    const struct impi_comm *own = impi_comm->own;
    const int chosen = color == MPI_UNDEFINED ? -1 : color;
    int *own_choices = allocate(2 * sizeof(int) * (size_t)own->size);
    int *remote_choices = allocate(2 * sizeof(int) * (size_t)impi_comm->size);
    struct two_groups groups = {0};
    int error = exchange_choices(impi_comm, chosen, key, own_choices, remote_choices);

    groups.own = choose_members(own_choices, own->size, own->world_ranks, chosen, &groups.own_size);
    groups.remote = choose_members(remote_choices, impi_comm->size, impi_comm->world_ranks, chosen, &groups.remote_size);
    free(own_choices);
    free(remote_choices);
    error = error == MPI_SUCCESS ? agree_with_peers(impi_comm, &groups.context) : error;
    const bool is_member = chosen >= 0 && groups.remote_size > 0;
    if (error == MPI_SUCCESS) {
        error = PMPI(Comm_split)(impi_comm->local, is_member ? color : MPI_UNDEFINED, 0, part);
    }
    if (error == MPI_SUCCESS && is_member) {
        add_inter(*part, MPI_COMM_NULL, &groups);
        return MPI_SUCCESS;
    }
    free(groups.own);
    free(groups.remote);
    return error == MPI_SUCCESS ? error : raise_error(impi_comm->local, error);
}

int MPI_Comm_test_inter(MPI_Comm comm, int *flag)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Comm_test_inter)(comm, flag);
    }
    *flag = impi_comm->own != NULL;
    return MPI_SUCCESS;
}

int MPI_Comm_remote_size(MPI_Comm comm, int *size)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL || impi_comm->own == NULL) {
        return impi_comm == NULL ? PMPI(Comm_remote_size)(comm, size) : raise_error(comm, MPI_ERR_COMM);
    }
    *size = impi_comm->size;
    return MPI_SUCCESS;
}

int MPI_Comm_remote_group(MPI_Comm comm, MPI_Group *group)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL || impi_comm->own == NULL) {
        return impi_comm == NULL ? PMPI(Comm_remote_group)(comm, group) : raise_error(comm, MPI_ERR_COMM);
    }
    int *members = allocate(sizeof(int) * (size_t)impi_comm->size);
    memcpy(members, impi_comm->world_ranks, sizeof(int) * (size_t)impi_comm->size);
    *group = make_group(impi_comm->size, members);
    return MPI_SUCCESS;
}
