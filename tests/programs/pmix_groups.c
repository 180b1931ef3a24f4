/*
 * pmix_groups MODE
 *
 * Makes and ends groups through PMIx itself, with 4 ranks. Every mode checks what it sees; each rank
 * that comes to the end prints
 *     pmix_groups rank=R mode=MODE contexts=ID,ID,... status=NUMBER
 * with the context ids of its groups, or "-", and how the last construct ended.
 *
 *   all       everybody, three times under one name, with a context id; and once as "all ranks"
 *   subsets   six overlapping groups at once, each made and ended by a thread of its own
 *   data      what a member tells the others while a group is made reaches them (server 5 or later)
 *   added     ranks 0 and 2 make a group and add the others, each that of its node; both, if there is one node
 *   ended     rank 3 leaves in order while ranks 0 and 1 wait for it
 *   killed    rank 3 is killed meanwhile
 *   timeout   rank 3 comes too late; then everybody tries again
 *   invite    rank 0 invites the others, who join
 *   psets     what the server says about process sets; prints them as sets="NAME:RANKS ..."
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

static char contexts[512] = "-";
static pmix_status_t last = PMIX_SUCCESS;

enum { MEMBERS_MAX = 8, NO_CONTEXT = 0, CONTEXT = 1 };

struct group {
    const char *name;
    size_t count;
    pmix_rank_t ranks[MEMBERS_MAX];
    size_t context;
    bool is_member;
    pthread_t thread;
};

static bool is_member(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++)
        if (group->ranks[i] == me.rank || group->ranks[i] == PMIX_RANK_WILDCARD)
            return true;
    return false;
}

/* Makes the group and takes its context id; seconds 0: no limit. */
static pmix_status_t construct(struct group *group, bool context, unsigned seconds)
{
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_info_t infos[2], *results = NULL;
    size_t ninfo = 0, count = 0;
    name_all(procs, group->ranks, group->count);
    if (context)
        PMIX_INFO_LOAD(&infos[ninfo++], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    if (seconds > 0)
        PMIX_INFO_LOAD(&infos[ninfo++], PMIX_TIMEOUT, &seconds, PMIX_UINT32);
    last = PMIx_Group_construct(group->name, procs, group->count, infos, ninfo, &results, &count);
    group->context = 0;
    for (size_t i = 0; last == PMIX_SUCCESS && i < count; i++)
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID) && context)
            group->context = results[i].value.data.size;
    if (results != NULL)
        PMIX_INFO_FREE(results, count);
    return last;
}

static void note_context(size_t context)
{
    pthread_mutex_lock(&lock);
    size_t used = contexts[0] == '-' ? 0 : strlen(contexts);
    snprintf(contexts + used, sizeof contexts - used, "%s%zu", used == 0 ? "" : ",", context);
    pthread_mutex_unlock(&lock);
}

static void end(const struct group *group)
{
    must(PMIx_Group_destruct(group->name, NULL, 0), "PMIx_Group_destruct");
}

static void all(void)
{
    struct group everybody = {.name = "everybody", .count = 4, .ranks = {0, 1, 2, 3}};
    struct group whole = {.name = "whole", .count = 1, .ranks = {PMIX_RANK_WILDCARD}};
    for (int round = 0; round < 3; round++) {
        must(construct(&everybody, CONTEXT, 0), "PMIx_Group_construct");
        hold(everybody.context != 0 && everybody.context != SIZE_MAX, "there is a context id");
        note_context(everybody.context);
        end(&everybody);
    }
    must(construct(&whole, CONTEXT, 0), "PMIx_Group_construct of all ranks");
    note_context(whole.context);
    end(&whole);
    must(construct(&everybody, NO_CONTEXT, 0), "PMIx_Group_construct without id");
    end(&everybody);
}

/* libpmix 5 passes on what the first caller of a node says: there all say the same. */
static void added(void)
{
    pmix_proc_t procs[2];
    pmix_info_t infos[2], *results = NULL;
    pmix_data_array_t others;
    pmix_value_t *value = NULL;
    size_t count = 0;
    const pmix_rank_t callers[] = {0, 2};
    bool listed = false;
    if (me.rank % 2 == 0) {
        PMIX_LOAD_PROCID(&procs[0], me.nspace, PMIX_RANK_WILDCARD);
        must(PMIx_Get(&procs[0], PMIX_LOCAL_SIZE, NULL, 0, &value), "ranks of this node");
        const bool alone = value->data.uint32 == 4;
        PMIX_VALUE_RELEASE(value);
        name_all(procs, callers, 2);
        PMIX_DATA_ARRAY_CONSTRUCT(&others, alone ? 2 : 1, PMIX_PROC);
        pmix_proc_t *more = others.array;
        PMIX_LOAD_PROCID(&more[0], me.nspace, me.rank == 0 || alone ? 1 : 3);
        if (alone)
            PMIX_LOAD_PROCID(&more[1], me.nspace, 3);
        PMIX_INFO_LOAD(&infos[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
        PMIX_INFO_LOAD(&infos[1], PMIX_GROUP_ADD_MEMBERS, &others, PMIX_DATA_ARRAY);
        PMIX_DATA_ARRAY_DESTRUCT(&others);
        last = PMIx_Group_construct("grown", procs, 2, infos, 2, &results, &count);
        expect(libpmix() < 6 ? PMIX_SUCCESS : PMIX_ERR_NOT_SUPPORTED, last, "PMIx_Group_construct");
        for (size_t i = 0; i < count; i++) {
            if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID))
                note_context(results[i].value.data.size);
            if (!PMIX_CHECK_KEY(&results[i], PMIX_GROUP_MEMBERSHIP))
                continue;
            const pmix_data_array_t *array = results[i].value.data.darray;
            const pmix_proc_t *members = array->array;
            unsigned seen = 0;
            for (size_t m = 0; m < array->size; m++)
                seen |= 1u << members[m].rank;
            listed = array->size == 4 && seen == 15;
        }
        hold(libpmix() != 5 || listed, "all four are members");
        if (results != NULL)
            PMIX_INFO_FREE(results, count);
    }
    barrier();
}

/* The last two have the same members. */
static struct group subsets[] = {
    {.name = "even", .count = 2, .ranks = {0, 2}},
    {.name = "outer", .count = 2, .ranks = {3, 0}},
    {.name = "low", .count = 3, .ranks = {0, 1, 2}},
    {.name = "local", .count = 2, .ranks = {0, 1}},
    {.name = "left", .count = 4, .ranks = {0, 1, 2, 3}},
    {.name = "right", .count = 4, .ranks = {3, 1, 2, 0}},
};
enum { SUBSETS = sizeof subsets / sizeof subsets[0] };

static void *make_and_end(void *argument)
{
    struct group *group = argument;
    pmix_status_t status = construct(group, CONTEXT, 0);
    if (status != PMIX_SUCCESS)
        wrong(group->name, status);
    hold(group->context != 0 && group->context != SIZE_MAX, "there is a context id");
    end(group);
    return NULL;
}

static void subsets_at_once(void)
{
    /* Every rank in an order of its own. */
    for (int i = 0; i < SUBSETS; i++) {
        struct group *group = &subsets[(i * 5 + (int)me.rank) % SUBSETS];
        group->is_member = is_member(group);
        if (group->is_member && pthread_create(&group->thread, NULL, make_and_end, group) != 0)
            fail(1, "pmix_groups rank=%u: cannot start a thread", me.rank);
    }
    for (int i = 0; i < SUBSETS; i++) {
        if (subsets[i].is_member)
            pthread_join(subsets[i].thread, NULL);
        note_context(subsets[i].is_member ? subsets[i].context : 0);
    }
}

/* Every member sends a number along, which the others get by the group's context id. */
static void data(void)
{
    pmix_proc_t procs[4];
    pmix_info_t infos[2], mine, qualifiers[1], *results = NULL;
    pmix_data_array_t array = {.type = PMIX_INFO, .size = 1, .array = &mine};
    size_t count = 0, context = 0, number = 100 + me.rank;
    name_all(procs, NULL, 4);
    PMIX_INFO_LOAD(&mine, "org.example.number", &number, PMIX_SIZE);
    PMIX_INFO_LOAD(&infos[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    PMIX_INFO_LOAD(&infos[1], PMIX_GROUP_INFO, &array, PMIX_DATA_ARRAY);
    must(PMIx_Group_construct("data", procs, 4, infos, 2, &results, &count), "construct");
    for (size_t i = 0; i < count; i++) {
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_CONTEXT_ID))
            context = results[i].value.data.size;
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_MEMBERSHIP))
            hold(results[i].value.data.darray->size == 4, "there are four members");
    }
    note_context(context);
    PMIX_INFO_LOAD(&qualifiers[0], PMIX_GROUP_CONTEXT_ID, &context, PMIX_SIZE);
    PMIX_INFO_SET_QUALIFIER(&qualifiers[0]);
    for (pmix_rank_t rank = 0; rank < 4; rank++) {
        pmix_value_t *value = NULL;
        must(PMIx_Get(&procs[rank], "org.example.number", qualifiers, 1, &value), "PMIx_Get");
        hold(value->type == PMIX_SIZE && value->data.size == 100 + rank, "the number is the member's");
    }
    must(PMIx_Group_destruct("data", NULL, 0), "PMIx_Group_destruct");
}

/* A member never calls: its node has no other, so nothing of this is decided by one server alone. */
static void without_one(void (*leave)(void))
{
    struct group group = {.name = "incomplete", .count = 3, .ranks = {0, 1, 3}};
    barrier();
    if (me.rank == 3)
        leave();
    if (me.rank != 2)
        hold(construct(&group, CONTEXT, 0) != PMIX_SUCCESS, "the group is not made");
}

static void leave_in_order(void)
{
    /* The others are to be waiting; if they are not, they fail when they come. */
    usleep(200000);
    PMIx_Finalize(NULL, 0);
    _exit(0);
}

static void be_killed(void)
{
    usleep(200000);
    raise(SIGKILL);
}

static void timeout(void)
{
    struct group group = {.name = "late", .count = 3, .ranks = {0, 1, 3}};
    /* libpmix 5 takes the limit of a group of one node for itself only when all have connected. */
    barrier();
    if (me.rank < 2)
        expect(PMIX_ERR_TIMEOUT, construct(&group, NO_CONTEXT, 1), "PMIx_Group_construct with a limit");
    barrier();
    /* The one that comes late learns that it was too late. */
    if (me.rank == 3)
        expect(PMIX_ERR_TIMEOUT, construct(&group, NO_CONTEXT, 60), "a late PMIx_Group_construct");
    barrier();
    group.name = "again";
    if (me.rank != 2) {
        must(construct(&group, CONTEXT, 60), "PMIx_Group_construct after a failed one");
        note_context(group.context);
        end(&group);
    }
}

static bool has_joined;

static void on_joined(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                      pmix_release_cbfunc_t release, void *release_data)
{
    (void)infos, (void)count, (void)data;
    if (release != NULL)
        release(release_data);
    must(status, "joining");
    CHANGE(has_joined = true);
}

static void on_invited(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                       size_t count, pmix_info_t *results, size_t nresults,
                       pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)status, (void)infos, (void)count, (void)results, (void)nresults;
    must(PMIx_Group_join_nb("party", source, PMIX_GROUP_ACCEPT, NULL, 0, on_joined, NULL),
         "PMIx_Group_join_nb");
    handled(done, done_data);
}

static void invite(void)
{
    pmix_status_t code = PMIX_GROUP_INVITED;
    pmix_proc_t procs[4];
    pmix_info_t *results = NULL;
    size_t count = 0;
    name_all(procs, NULL, 4);
    if (me.rank != 0)
        PMIx_Register_event_handler(&code, 1, NULL, 0, on_invited, NULL, NULL);
    barrier();
    if (me.rank == 0)
        must(PMIx_Group_invite("party", procs, 4, NULL, 0, &results, &count), "invite");
    else
        WAIT_UNTIL(has_joined);
    barrier();
}

/* Asks one key; true if there is an answer of this type. */
static bool ask(const char *key, const char *set, pmix_data_type_t type, pmix_value_t *value)
{
    pmix_query_t query;
    pmix_info_t *results = NULL;
    size_t count = 0;
    char *keys[] = {(char *)key, NULL};
    pmix_info_t qualifier;
    PMIX_QUERY_CONSTRUCT(&query);
    query.keys = keys;
    if (set != NULL) {
        PMIX_INFO_LOAD(&qualifier, PMIX_PSET_NAME, set, PMIX_STRING);
        query.qualifiers = &qualifier;
        query.nqual = 1;
    }
    if (PMIx_Query_info(&query, 1, &results, &count) != PMIX_SUCCESS)
        return false;
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&results[i], key)) {
            *value = results[i].value;
            return value->type == type;
        }
    return false;
}

static void psets(void)
{
    char text[1024] = "", *names, *name, *state = NULL;
    pmix_value_t value;
    size_t sets;
    hold(ask(PMIX_QUERY_NUM_PSETS, NULL, PMIX_SIZE, &value), "there is a number of sets");
    sets = value.data.size;
    hold(ask(PMIX_QUERY_PSET_NAMES, NULL, PMIX_STRING, &value), "the sets have names");
    names = strdup(value.data.string);
    for (name = strtok_r(names, ",", &state); name != NULL; name = strtok_r(NULL, ",", &state), sets--) {
        hold(ask(PMIX_QUERY_PSET_MEMBERSHIP, name, PMIX_DATA_ARRAY, &value), "a set has members");
        const pmix_proc_t *members = value.data.darray->array;
        size_t used = strlen(text);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:", used == 0 ? "" : " ", name);
        for (size_t i = 0; i < value.data.darray->size; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%u", i == 0 ? "" : ",",
                                     members[i].rank);
    }
    hold(sets == 0, "there are as many names as sets");
    hold(!ask(PMIX_QUERY_PSET_MEMBERSHIP, "no such set", PMIX_DATA_ARRAY, &value), "others have none");
    report("pmix_groups rank=%u sets=\"%s\"", me.rank, text);
}

int main(int argc, char **argv)
{
    const char *mode = argc == 2 ? argv[1] : "";
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (strcmp(mode, "all") == 0)
        all();
    else if (strcmp(mode, "subsets") == 0)
        subsets_at_once();
    else if (strcmp(mode, "data") == 0)
        data();
    else if (strcmp(mode, "added") == 0)
        added();
    else if (strcmp(mode, "ended") == 0)
        without_one(leave_in_order);
    else if (strcmp(mode, "killed") == 0)
        without_one(be_killed);
    else if (strcmp(mode, "timeout") == 0)
        timeout();
    else if (strcmp(mode, "invite") == 0)
        invite();
    else if (strcmp(mode, "psets") == 0)
        psets();
    else
        fail(2, "pmix_groups MODE");
    report("pmix_groups rank=%u mode=%s contexts=%s status=%d", me.rank, mode, contexts, last);
    PMIx_Finalize(NULL, 0);
    return 0;
}
