/*
 * Groups with members in several clients; members are ranks in the world. A handle is a group of the launch's MPI that has no other
 * use, so that Fortran libraries can convert it.
 */
#include <stdlib.h>

#include "preload.h"

struct impi_comm_group {
    MPI_Group handle;
    int size;
    int *members;
    struct impi_comm_group *next;
};

static struct impi_comm_group *first_group; /* all, owned */

/* Returns where the list has a group: NULL is there for one of this client. With the lock. */
static struct impi_comm_group **find_link(MPI_Group group)
{
    struct impi_comm_group **link = &first_group;

    while (*link != NULL && (*link)->handle != group) {
        link = &(*link)->next;
    }
    return link;
}

static const struct impi_comm_group *find_group(MPI_Group group)
{
    lock();
    const struct impi_comm_group *found = *find_link(group);
    unlock();
    return found;
}

static bool has_member(int size, const int *members, int member)
{
    for (int i = 0; i < size; i++) {
        if (members[i] == member) {
            return true;
        }
    }
    return false;
}

int compare_members(int first_size, const int *first, int second_size, const int *second)
{
    if (first_size != second_size) {
        return MPI_UNEQUAL;
    }
    if (memcmp(first, second, sizeof(int) * (size_t)first_size) == 0) {
        return MPI_IDENT;
    }
    for (int i = 0; i < first_size; i++) {
        if (!has_member(second_size, second, first[i])) {
            return MPI_UNEQUAL;
        }
    }
    return MPI_SIMILAR;
}

/* Returns the world's processes of this client, as the launch's MPI has them. */
static MPI_Group get_local_world(void)
{
    MPI_Group group;

    PMPI(Comm_group)(MPI_COMM_WORLD, &group);
    return group;
}

MPI_Group make_group(int size, int *members)
{
    const int any = 0;
    MPI_Group handle;
    MPI_Group local_world = get_local_world();

    /* The program frees the empty group too, of which some MPIs count the users. */
    PMPI(Group_incl)(local_world, size == 0 ? 0 : 1, &any, &handle);
    PMPI(Group_free)(&local_world);
    if (size == 0) {
        free(members);
        return handle;
    }
    struct impi_comm_group *group = allocate(sizeof(*group));
    lock();
    *group = (struct impi_comm_group){.handle = handle, .size = size, .members = members, .next = first_group};
    first_group = group;
    unlock();
    return handle;
}

int copy_members(MPI_Group group, int *size, int **members)
{
    const struct impi_comm_group *found = find_group(group);
    const struct impi_comm *world = find_impi_comm(MPI_COMM_WORLD);
    int error = MPI_SUCCESS;

    *members = NULL;
    *size = 0;
    if (found == NULL) {
        error = PMPI(Group_size)(group, size);
    } else {
        *size = found->size;
    }
    if (error != MPI_SUCCESS) {
        return error;
    }
    *members = allocate(sizeof(int) * (size_t)*size);
    if (found != NULL) {
        memcpy(*members, found->members, sizeof(int) * (size_t)*size);
        return MPI_SUCCESS;
    }
    int *ranks = allocate(sizeof(int) * (size_t)*size);
    for (int i = 0; i < *size; i++) {
        ranks[i] = i;
    }
    MPI_Group local_world = get_local_world();
    error = *size == 0 ? MPI_SUCCESS : PMPI(Group_translate_ranks)(group, *size, ranks, local_world, *members);
    PMPI(Group_free)(&local_world);
    for (int i = 0; i < *size && error == MPI_SUCCESS; i++) {
        /* Processes that were spawned are not in the world. */
        error = (*members)[i] == MPI_UNDEFINED ? MPI_ERR_GROUP : MPI_SUCCESS;
        (*members)[i] = error == MPI_SUCCESS ? world->ranks[(*members)[i]] : 0;
    }
    free(ranks);
    return error;
}

bool is_impi_comm_group(MPI_Group group)
{
    return find_group(group) != NULL;
}

int copy_local_members(int size, const int *members, MPI_Group *local)
{
    const struct impi_comm *world = find_impi_comm(MPI_COMM_WORLD);
    int *ranks = allocate(sizeof(int) * (size_t)size);
    int count = 0;

    for (int i = 0; i < size; i++) {
        if (world->local_ranks[members[i]] >= 0) {
            ranks[count++] = world->local_ranks[members[i]];
        }
    }
    MPI_Group local_world = get_local_world();
    const int error = PMPI(Group_incl)(local_world, count, ranks, local);
    PMPI(Group_free)(&local_world);
    free(ranks);
    return error;
}

int copy_to_local_group(MPI_Group group, MPI_Group *local)
{
    const struct impi_comm_group *found = find_group(group);
    int size = 0;

    if (found == NULL) {
        return PMPI(Group_union)(group, MPI_GROUP_EMPTY, local);
    }
    const int error = copy_local_members(found->size, found->members, local);
    if (error != MPI_SUCCESS) {
        return error;
    }
    PMPI(Group_size)(*local, &size);
    if (size != found->size) {
        PMPI(Group_free)(local);
        return MPI_ERR_GROUP;
    }
    return MPI_SUCCESS;
}

/* ---- Functions of MPI ---- */

static int fail(int error)
{
    return raise_error(MPI_COMM_WORLD, error);
}

int MPI_Group_size(MPI_Group group, int *size)
{
    const struct impi_comm_group *found = find_group(group);

    if (found == NULL) {
        return PMPI(Group_size)(group, size);
    }
    *size = found->size;
    return MPI_SUCCESS;
}

int MPI_Group_rank(MPI_Group group, int *rank)
{
    const struct impi_comm_group *found = find_group(group);

    if (found == NULL) {
        return PMPI(Group_rank)(group, rank);
    }
    *rank = MPI_UNDEFINED;
    for (int i = 0; i < found->size; i++) {
        if (found->members[i] == wireup_impi_rank(impi_world)) {
            *rank = i;
        }
    }
    return MPI_SUCCESS;
}

int MPI_Group_free(MPI_Group *group)
{
    lock();
    struct impi_comm_group **link = find_link(*group);
    struct impi_comm_group *found = *link;
    if (found != NULL) {
        *link = found->next;
        free(found->members);
        free(found);
    }
    unlock();
    return PMPI(Group_free)(group);
}

/* Members of two groups, one of which at least is of several clients. */
struct group_pair {
    int size[2];
    int *members[2];
};

static int copy_pair(MPI_Group first, MPI_Group second, struct group_pair *pair)
{
    int error = copy_members(first, &pair->size[0], &pair->members[0]);
    const int other = copy_members(second, &pair->size[1], &pair->members[1]);

    error = error == MPI_SUCCESS ? other : error;
    if (error != MPI_SUCCESS) {
        free(pair->members[0]);
        free(pair->members[1]);
        return fail(error);
    }
    return MPI_SUCCESS;
}

static void free_pair(struct group_pair *pair)
{
    free(pair->members[0]);
    free(pair->members[1]);
}

int MPI_Group_translate_ranks(MPI_Group first, int count, const int ranks[], MPI_Group second, int translated[])
{
    struct group_pair pair;

    if (find_group(first) == NULL && find_group(second) == NULL) {
        return PMPI(Group_translate_ranks)(first, count, ranks, second, translated);
    }
    int error = copy_pair(first, second, &pair);
    if (error != MPI_SUCCESS) {
        return error;
    }
    for (int i = 0; i < count; i++) {
        translated[i] = ranks[i] == MPI_PROC_NULL ? MPI_PROC_NULL : MPI_UNDEFINED;
        if (ranks[i] != MPI_PROC_NULL && (ranks[i] < 0 || ranks[i] >= pair.size[0])) {
            error = MPI_ERR_RANK;
            break;
        }
        for (int other = 0; ranks[i] != MPI_PROC_NULL && other < pair.size[1]; other++) {
            if (pair.members[1][other] == pair.members[0][ranks[i]]) {
                translated[i] = other;
            }
        }
    }
    free_pair(&pair);
    return error == MPI_SUCCESS ? error : fail(error);
}

int MPI_Group_compare(MPI_Group first, MPI_Group second, int *result)
{
    struct group_pair pair;

    if (find_group(first) == NULL && find_group(second) == NULL) {
        return PMPI(Group_compare)(first, second, result);
    }
    const int error = copy_pair(first, second, &pair);
    if (error == MPI_SUCCESS) {
        *result = compare_members(pair.size[0], pair.members[0], pair.size[1], pair.members[1]);
        free_pair(&pair);
    }
    return error;
}

enum set_operation { SET_UNION, SET_INTERSECTION, SET_DIFFERENCE };

/* The members of the first group that the operation keeps, in their order, and for a union those of the second one besides. */
static int combine_groups(MPI_Group first, MPI_Group second, enum set_operation operation, MPI_Group *result)
{
    struct group_pair pair;
    const int error = copy_pair(first, second, &pair);

    if (error != MPI_SUCCESS) {
        return error;
    }
    int *members = allocate(sizeof(int) * ((size_t)pair.size[0] + (size_t)pair.size[1]));
    int size = 0;
    for (int i = 0; i < pair.size[0]; i++) {
        const bool is_common = has_member(pair.size[1], pair.members[1], pair.members[0][i]);
        if (operation == SET_UNION || is_common == (operation == SET_INTERSECTION)) {
            members[size++] = pair.members[0][i];
        }
    }
    for (int i = 0; operation == SET_UNION && i < pair.size[1]; i++) {
        if (!has_member(pair.size[0], pair.members[0], pair.members[1][i])) {
            members[size++] = pair.members[1][i];
        }
    }
    free_pair(&pair);
    *result = make_group(size, members);
    return MPI_SUCCESS;
}

int MPI_Group_union(MPI_Group first, MPI_Group second, MPI_Group *result)
{
    if (find_group(first) == NULL && find_group(second) == NULL) {
        return PMPI(Group_union)(first, second, result);
    }
    return combine_groups(first, second, SET_UNION, result);
}

int MPI_Group_intersection(MPI_Group first, MPI_Group second, MPI_Group *result)
{
    if (find_group(first) == NULL && find_group(second) == NULL) {
        return PMPI(Group_intersection)(first, second, result);
    }
    return combine_groups(first, second, SET_INTERSECTION, result);
}

int MPI_Group_difference(MPI_Group first, MPI_Group second, MPI_Group *result)
{
    if (find_group(first) == NULL && find_group(second) == NULL) {
        return PMPI(Group_difference)(first, second, result);
    }
    return combine_groups(first, second, SET_DIFFERENCE, result);
}

static bool are_ranks(const struct impi_comm_group *group, int count, const int ranks[])
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= group->size || has_member(i, ranks, ranks[i])) {
            return false;
        }
    }
    return true;
}

/* The members with these ranks in their order, or all others. */
static int select_members(const struct impi_comm_group *group, int count, const int ranks[], bool includes, MPI_Group *result)
{
    if (count < 0 || !are_ranks(group, count, ranks)) {
        return fail(MPI_ERR_RANK);
    }
    int *members = allocate(sizeof(int) * (size_t)group->size);
    int size = 0;
    for (int i = 0; includes && i < count; i++) {
        members[size++] = group->members[ranks[i]];
    }
    for (int rank = 0; !includes && rank < group->size; rank++) {
        if (!has_member(count, ranks, rank)) {
            members[size++] = group->members[rank];
        }
    }
    *result = make_group(size, members);
    return MPI_SUCCESS;
}

int MPI_Group_incl(MPI_Group group, int count, const int ranks[], MPI_Group *result)
{
    const struct impi_comm_group *found = find_group(group);

    return found == NULL ? PMPI(Group_incl)(group, count, ranks, result)
                         : select_members(found, count, ranks, true, result);
}

int MPI_Group_excl(MPI_Group group, int count, const int ranks[], MPI_Group *result)
{
    const struct impi_comm_group *found = find_group(group);

    return found == NULL ? PMPI(Group_excl)(group, count, ranks, result)
                         : select_members(found, count, ranks, false, result);
}

static int select_ranges(const struct impi_comm_group *group, int count, int ranges[][3], bool includes, MPI_Group *result)
{
    int *ranks = allocate(sizeof(int) * (size_t)group->size);
    int size = 0;

    for (int i = 0; i < count; i++) {
        const int step = ranges[i][2];
        for (int rank = ranges[i][0]; step > 0 ? rank <= ranges[i][1] : rank >= ranges[i][1]; rank += step) {
            if (step == 0 || size == group->size) {
                free(ranks);
                return fail(step == 0 ? MPI_ERR_ARG : MPI_ERR_RANK);
            }
            ranks[size++] = rank;
        }
    }
    const int error = select_members(group, size, ranks, includes, result);
    free(ranks);
    return error;
}

int MPI_Group_range_incl(MPI_Group group, int count, int ranges[][3], MPI_Group *result)
{
    const struct impi_comm_group *found = find_group(group);

    return found == NULL ? PMPI(Group_range_incl)(group, count, ranges, result)
                         : select_ranges(found, count, ranges, true, result);
}

int MPI_Group_range_excl(MPI_Group group, int count, int ranges[][3], MPI_Group *result)
{
    const struct impi_comm_group *found = find_group(group);

    return found == NULL ? PMPI(Group_range_excl)(group, count, ranges, result)
                         : select_ranges(found, count, ranges, false, result);
}
