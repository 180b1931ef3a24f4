/*
 * pmix_members MODE
 *
 * Groups whose members come, go and die, with 4 ranks. Ranks that come to the end print
 *     pmix_members rank=R mode=MODE heard=TEXT
 * with the events they heard of: NAME@RANK,... or "-"; RANK is who it is about.
 *
 *   nonblocking  four groups are made and ended at once without a thread more
 *   optional     rank 3 is killed; ranks 0 and 1 make a group with it in which it may be missing
 *   tolerant     the same with PMIX_GROUP_FT_COLLECTIVE
 *   gone         rank 3 is killed when it has called to make such a group of all, and rank 2 calls after that
 *   missing      rank 3 is killed before it calls to make a group of all: as heard=failed
 *   notify       rank 3 is killed in a group whose members want to hear of that
 *   ended        rank 3 is killed when such a group, of one node if they are on one, has ended, while
 *                another goes on
 *   invited      rank 0 invites ranks 1 and 3, and rank 3 is killed instead of joining; from libpmix 7 on
 *                that ends the invitation for those who have joined and who has invited: failed
 *   declined     rank 0 invites the others, of whom rank 2 declines: failed there too
 *   leader       rank 0 invites the others and is killed when all have joined; rank 1 leads then, and
 *                is killed
 *   local        each rank makes a group of the ranks of its node among all
 *   again        groups of one name and other members, one after the other
 *   leave        what PMIx_Group_leave says: as heard=NUMBER
 *   left         rank 3 leaves a group, which the others end without it, and which is then made and ended
 *                again by all
 *   wait         all ranks but the last, of any number, say "pmix_members waits" and wait for that one
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

enum { MEMBERS_MAX = 8 };

/* ---- events ---- */

static char heard[512] = "-";

static const char *name_of(pmix_status_t code)
{
    switch (code) {
    case PMIX_GROUP_MEMBER_FAILED:
        return "member";
    case PMIX_GROUP_LEADER_FAILED:
        return "leader";
    case PMIX_GROUP_LEADER_SELECTED:
        return "selected";
    case PMIX_GROUP_LEFT:
        return "left";
    case PMIX_GROUP_INVITE_FAILED:
        return "invite";
    case PMIX_GROUP_INVITE_DECLINED:
        return "declined";
    case PMIX_GROUP_INVITE_ACCEPTED:
        return "accepted";
    case PMIX_GROUP_CONSTRUCT_COMPLETE:
        return "complete";
    default:
        return "other";
    }
}

static void note(const char *name, pmix_rank_t rank)
{
    pthread_mutex_lock(&lock);
    size_t used = heard[0] == '-' ? 0 : strlen(heard);
    snprintf(heard + used, sizeof heard - used, "%s%s@%u", used == 0 ? "" : ",", name, rank);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void await(const char *text)
{
    WAIT_UNTIL(strstr(heard, text) != NULL);
}

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                     size_t count, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)results, (void)nresults;
    const bool loss = status == PMIX_GROUP_MEMBER_FAILED || status == PMIX_GROUP_LEADER_FAILED
                      || status == PMIX_GROUP_INVITE_FAILED;
    pmix_rank_t about = source->rank;
    const char *group = "";
    for (size_t i = 0; i < count; i++) {
        if (PMIX_CHECK_KEY(&infos[i], PMIX_GROUP_ID))
            group = infos[i].value.data.string;
        if (loss && PMIX_CHECK_KEY(&infos[i], PMIX_EVENT_AFFECTED_PROC))
            about = infos[i].value.data.proc->rank;
    }
    if (loss)
        hold(strcmp(group, "group") == 0, "the event names the group");
    note(name_of(status), about);
    if (done != NULL)
        done(PMIX_EVENT_NO_ACTION_TAKEN, NULL, 0, NULL, NULL, done_data);
}

static void listen_with(pmix_status_t code, pmix_notification_fn_t handler, pmix_info_t *infos, size_t count)
{
    const pmix_status_t id = PMIx_Register_event_handler(&code, 1, infos, count, handler, NULL, NULL);
    if (id < 0)
        wrong("PMIx_Register_event_handler", id);
}

static void listen_to(pmix_status_t code)
{
    listen_with(code, on_event, NULL, 0);
}

/* ---- groups ---- */

static pmix_status_t construct(const char *name, const pmix_rank_t *ranks, size_t count,
                               const char *directive, size_t *members)
{
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_info_t infos[2], *results = NULL;
    size_t ninfo = 0, nresults = 0;
    name_all(procs, ranks, count);
    PMIX_INFO_LOAD(&infos[ninfo++], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    if (directive != NULL)
        PMIX_INFO_LOAD(&infos[ninfo++], directive, NULL, PMIX_BOOL);
    pmix_status_t status = PMIx_Group_construct(name, procs, count, infos, ninfo, &results, &nresults);
    /* Only libpmix 5 tells clients who the members are. */
    for (size_t i = 0; members != NULL && i < nresults; i++)
        if (PMIX_CHECK_KEY(&results[i], PMIX_GROUP_MEMBERSHIP))
            *members = results[i].value.data.darray->size;
    return status;
}

static void end(const char *name)
{
    must(PMIx_Group_destruct(name, NULL, 0), "PMIx_Group_destruct");
}

static unsigned outstanding;

static void end_one(pmix_status_t status, const char *what)
{
    must(status, what);
    CHANGE(outstanding--);
}

static void on_made(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                    pmix_release_cbfunc_t release, void *release_data)
{
    size_t context = 0;
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&infos[i], PMIX_GROUP_CONTEXT_ID))
            context = infos[i].value.data.size;
    hold(context != 0 && context != SIZE_MAX, "there is a context id");
    *(size_t *)data = context;
    if (release != NULL)
        release(release_data);
    end_one(status, "PMIx_Group_construct_nb");
}

static void on_ended(pmix_status_t status, void *data)
{
    (void)data;
    end_one(status, "PMIx_Group_destruct_nb");
}

static void nonblocking(void)
{
    static const struct {
        const char *name;
        size_t count;
        pmix_rank_t ranks[4];
    } groups[] = {{"all", 4, {0, 1, 2, 3}}, {"same", 4, {3, 2, 1, 0}}, {"even", 2, {0, 2}}, {"outer", 2, {0, 3}}};
    enum { GROUPS = sizeof groups / sizeof groups[0] };
    bool mine[GROUPS];
    size_t contexts[GROUPS] = {0};
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    for (size_t i = 0; i < GROUPS; i++) {
        /* Every rank in an order of its own. */
        const size_t k = (i + me.rank) % GROUPS;
        pmix_proc_t procs[MEMBERS_MAX];
        name_all(procs, groups[k].ranks, groups[k].count);
        mine[k] = false;
        for (size_t j = 0; j < groups[k].count; j++)
            mine[k] = mine[k] || groups[k].ranks[j] == me.rank;
        if (!mine[k])
            continue;
        CHANGE(outstanding++);
        must(PMIx_Group_construct_nb(groups[k].name, procs, groups[k].count, &info, 1, on_made, &contexts[k]),
             "PMIx_Group_construct_nb");
    }
    WAIT_UNTIL(outstanding == 0);
    for (size_t k = 0; k < GROUPS; k++)
        for (size_t other = 0; mine[k] && other < k; other++)
            hold(contexts[k] != contexts[other], "context ids differ");
    for (size_t k = 0; k < GROUPS; k++) {
        if (!mine[k])
            continue;
        CHANGE(outstanding++);
        must(PMIx_Group_destruct_nb(groups[k].name, NULL, 0, on_ended, NULL), "PMIx_Group_destruct_nb");
    }
    WAIT_UNTIL(outstanding == 0);
}

static void without(const char *directive)
{
    static const pmix_rank_t ranks[] = {0, 1, 3}, rest[] = {0, 1};
    size_t members = 2;
    barrier();
    if (me.rank == 3) {
        /* The others are to be waiting; if they are not, it is left out all the same. */
        usleep(200000);
        raise(SIGKILL);
    }
    if (me.rank == 2)
        return;
    must(construct("group", ranks, 3, directive, &members), directive);
    hold(members == 2, "the dead is no member");
    must(construct("rest", rest, 2, NULL, NULL), "a construct without the dead");
    end("rest");
}

static void optional(void)
{
    without(PMIX_GROUP_OPTIONAL);
}

static void tolerant(void)
{
    without(PMIX_GROUP_FT_COLLECTIVE);
}

static void gone(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3}, rest[] = {0, 1, 2};
    size_t members = 3, context;
    pmix_proc_t procs[MEMBERS_MAX];
    listen_to(PMIX_ERR_PROC_ABORTED);
    barrier();
    if (me.rank == 3) {
        pmix_info_t infos[2];
        PMIX_INFO_LOAD(&infos[0], PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
        PMIX_INFO_LOAD(&infos[1], PMIX_GROUP_FT_COLLECTIVE, NULL, PMIX_BOOL);
        must(PMIx_Group_construct_nb("group", procs, name_all(procs, ranks, 4), infos, 2, on_made, &context),
             "PMIx_Group_construct_nb");
        /* Its server has the call when it answers a later one. */
        pmix_value_t *value = NULL;
        PMIx_Get(&me, "org.example.nothing", NULL, 0, &value);
        raise(SIGKILL);
    }
    if (me.rank == 2)
        await("other@3");
    must(construct("group", ranks, 4, PMIX_GROUP_FT_COLLECTIVE, &members), "construct");
    hold(members == 3, "the dead is no member");
    must(construct("rest", rest, 3, NULL, NULL), "a construct without the dead");
    end("rest");
}

static void on_failed(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                      pmix_release_cbfunc_t release, void *release_data)
{
    (void)infos, (void)count, (void)data;
    hold(status != PMIX_SUCCESS, "the group is not made");
    if (release != NULL)
        release(release_data);
    CHANGE(outstanding--);
}

static void missing(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3};
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    if (me.rank != 3) {
        CHANGE(outstanding++);
        must(PMIx_Group_construct_nb("group", procs, name_all(procs, ranks, 4), &info, 1, on_failed, NULL),
             "PMIx_Group_construct_nb");
    }
    /* A server has the calls of its ranks before their fence. A rank that calls after the death waits for ever. */
    barrier();
    if (me.rank == 3)
        raise(SIGKILL);
    WAIT_UNTIL(outstanding == 0);
    note("failed", me.rank);
}

static void notify(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 3};
    listen_to(PMIX_GROUP_MEMBER_FAILED);
    barrier();
    if (me.rank != 2)
        must(construct("group", ranks, 3, PMIX_GROUP_NOTIFY_TERMINATION, NULL), "construct");
    if (me.rank == 3)
        raise(SIGKILL);
    if (me.rank == 2)
        return;
    await("member@3");
    /* libpmix does not tell its host that all have called who are left of a node. */
    pmix_value_t *value = NULL;
    pmix_proc_t job;
    PMIX_LOAD_PROCID(&job, me.nspace, PMIX_RANK_WILDCARD);
    must(PMIx_Get(&job, PMIX_LOCAL_SIZE, NULL, 0, &value), "the number of local ranks");
    if (value->data.uint32 < 4)
        end("group");
}

/* Without a context id, so that libpmix makes and ends groups of one node by itself. */
static pmix_status_t construct_plain(const char *name)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3};
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    name_all(procs, ranks, 4);
    PMIX_INFO_LOAD(&info, PMIX_GROUP_NOTIFY_TERMINATION, NULL, PMIX_BOOL);
    return PMIx_Group_construct(name, procs, 4, &info, 1, &results, &count);
}

static void ended(void)
{
    listen_to(PMIX_GROUP_MEMBER_FAILED);
    barrier();
    /* Its event would come before that of the other, and be of another name than on_event wants. */
    must(construct_plain("ended"), "PMIx_Group_construct");
    end("ended");
    must(construct_plain("group"), "PMIx_Group_construct");
    barrier();
    if (me.rank == 3)
        raise(SIGKILL);
    await("member@3");
}

/* ---- invitations ---- */

static pmix_group_opt_t answer = PMIX_GROUP_ACCEPT;

static void on_joined(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                      pmix_release_cbfunc_t release, void *release_data)
{
    (void)infos, (void)count, (void)data;
    if (release != NULL)
        release(release_data);
    if (status != PMIX_GROUP_CONSTRUCT_ABORT)
        must(status, "PMIx_Group_join_nb");
    note(status == PMIX_GROUP_CONSTRUCT_ABORT ? "failed" : "joined", me.rank);
}

static void on_invited(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                       size_t count, pmix_info_t *results, size_t nresults,
                       pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)status, (void)infos, (void)count, (void)results, (void)nresults;
    if (me.rank != source->rank)
        must(PMIx_Group_join_nb("group", source, answer, NULL, 0, on_joined, NULL), "PMIx_Group_join_nb");
    handled(done, done_data);
}

static void be_invited(void)
{
    listen_with(PMIX_GROUP_INVITED, on_invited, NULL, 0);
}

/* libpmix takes what the callback would release for its own, so it is left alone. */
static void on_complete(pmix_status_t status, pmix_info_t *infos, size_t count, void *data,
                        pmix_release_cbfunc_t release, void *release_data)
{
    (void)infos, (void)count, (void)data, (void)release, (void)release_data;
    if (status != PMIX_GROUP_CONSTRUCT_ABORT)
        must(status, "PMIx_Group_invite_nb");
    note(status == PMIX_GROUP_CONSTRUCT_ABORT ? "failed" : "made", me.rank);
}

static void invited(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 3};
    pmix_proc_t procs[MEMBERS_MAX];
    listen_to(PMIX_GROUP_INVITE_FAILED);
    if (me.rank == 1)
        be_invited();
    barrier();
    if (me.rank == 0) {
        must(PMIx_Group_invite_nb("group", procs, name_all(procs, ranks, 3), NULL, 0, on_complete, NULL),
             "PMIx_Group_invite_nb");
        barrier();
        await("invite@3");
        if (libpmix() >= 7)
            await("failed@0");
        return;
    }
    barrier();
    if (me.rank == 3)
        raise(SIGKILL);
    if (me.rank == 1)
        await(libpmix() >= 7 ? "failed@1" : "joined@1");
}

static void declined(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3};
    pmix_proc_t procs[MEMBERS_MAX];
    answer = me.rank == 2 ? PMIX_GROUP_DECLINE : PMIX_GROUP_ACCEPT;
    if (me.rank == 0) {
        /* PMIx_Group_invite has a handler that lets no later one hear of the answers. */
        pmix_info_t first;
        PMIX_INFO_LOAD(&first, PMIX_EVENT_HDLR_FIRST_IN_CATEGORY, NULL, PMIX_BOOL);
        listen_with(PMIX_GROUP_INVITE_DECLINED, on_event, &first, 1);
    } else {
        be_invited();
    }
    barrier();
    if (me.rank == 0) {
        must(PMIx_Group_invite_nb("group", procs, name_all(procs, ranks, 4), NULL, 0, on_complete, NULL),
             "PMIx_Group_invite_nb");
        await("declined@2");
        if (libpmix() >= 7)
            await("failed@0");
    }
    barrier();
}

static void leader(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3};
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_info_t *results = NULL, infos[2];
    size_t count = 0;
    listen_to(PMIX_GROUP_LEADER_FAILED);
    listen_to(PMIX_GROUP_LEADER_SELECTED);
    listen_to(PMIX_GROUP_CONSTRUCT_COMPLETE);
    if (me.rank != 0)
        be_invited();
    barrier();
    if (me.rank == 0) {
        must(PMIx_Group_invite("group", procs, name_all(procs, ranks, 4), NULL, 0, &results, &count),
             "PMIx_Group_invite");
        raise(SIGKILL);
    }
    await("complete@0");
    await("leader@0");
    if (me.rank == 1) {
        pmix_data_array_t array = {.type = PMIX_PROC, .size = 2, .array = procs};
        name_all(procs, ranks + 2, 2);
        PMIX_INFO_LOAD(&infos[0], PMIX_EVENT_CUSTOM_RANGE, &array, PMIX_DATA_ARRAY);
        PMIX_INFO_LOAD(&infos[1], PMIX_GROUP_ID, "group", PMIX_STRING);
        must(PMIx_Notify_event(PMIX_GROUP_LEADER_SELECTED, &me, PMIX_RANGE_CUSTOM, infos, 2, NULL, NULL),
             "PMIx_Notify_event");
        /* Not before its server has handed that on: an answer to a later request says so. */
        pmix_value_t *value = NULL;
        PMIx_Get(&me, "org.example.nothing", NULL, 0, &value);
        raise(SIGKILL);
    }
    await("selected@1");
    await("leader@1");
}

/* ---- others ---- */

static void local(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 2, 3};
    size_t members = 0;
    char text[16];
    must(construct("group", ranks, 4, PMIX_GROUP_LOCAL_ONLY, &members), "a local construct");
    end("group");
    snprintf(text, sizeof text, "%zu", members);
    note(text, me.rank);
    barrier();
}

static void again(void)
{
    static const pmix_rank_t pairs[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            if (pairs[i][0] == me.rank || pairs[i][1] == me.rank) {
                must(construct("group", pairs[i], 2, NULL, NULL), "construct");
                end("group");
            }
            /* libpmix knows a group under way on a node by its name alone. */
            barrier();
        }
}

static void leave(void)
{
    char text[16];
    barrier();
    snprintf(text, sizeof text, "%d", PMIx_Group_leave("group", NULL, 0));
    note(text, me.rank);
    barrier();
}

/* What PMIx_Group_leave does from version 7 on; earlier ones refuse it. */
static void raise_left(const pmix_rank_t *rest, size_t count)
{
    pmix_proc_t procs[MEMBERS_MAX];
    pmix_data_array_t array = {.type = PMIX_PROC, .size = count, .array = procs};
    pmix_info_t infos[3];
    name_all(procs, rest, count);
    PMIX_INFO_LOAD(&infos[0], PMIX_EVENT_CUSTOM_RANGE, &array, PMIX_DATA_ARRAY);
    PMIX_INFO_LOAD(&infos[1], PMIX_EVENT_AFFECTED_PROC, &me, PMIX_PROC);
    PMIX_INFO_LOAD(&infos[2], PMIX_GROUP_ID, "group", PMIX_STRING);
    must(PMIx_Notify_event(PMIX_GROUP_LEFT, &me, PMIX_RANGE_CUSTOM, infos, 3, NULL, NULL),
         "PMIx_Notify_event");
}

static void left(void)
{
    static const pmix_rank_t ranks[] = {0, 1, 3}, rest[] = {0, 1};
    if (me.rank != 3)
        listen_to(PMIX_GROUP_LEFT);
    barrier();
    if (me.rank != 2)
        must(construct("group", ranks, 3, NULL, NULL), "construct");
    if (me.rank == 3) {
        if (libpmix() >= 7)
            must(PMIx_Group_leave("group", NULL, 0), "PMIx_Group_leave");
        else
            raise_left(rest, sizeof rest / sizeof rest[0]);
    } else if (me.rank != 2) {
        await("left@3");
        end("group");
    }
    barrier();
    if (me.rank != 2) {
        must(construct("group", ranks, 3, NULL, NULL), "the second construct");
        end("group");
    }
    barrier();
}

static void wait_for_one(void)
{
    pmix_proc_t *procs;
    pmix_info_t info, *results = NULL;
    size_t count = 0;
    const pmix_rank_t size = size_of(me.nspace);
    barrier();
    if (me.rank == size - 1)
        wait_for_the_end();
    procs = calloc(size, sizeof *procs);
    name_all(procs, NULL, size);
    PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
    report("pmix_members waits");
    hold(PMIx_Group_construct("group", procs, size, &info, 1, &results, &count) != PMIX_SUCCESS,
         "the group is not made");
    free(procs);
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {
        {"nonblocking", nonblocking}, {"optional", optional}, {"tolerant", tolerant}, {"gone", gone},
        {"missing", missing}, {"notify", notify}, {"ended", ended},
        {"invited", invited}, {"declined", declined}, {"leader", leader}, {"local", local},
        {"again", again}, {"leave", leave}, {"left", left}, {"wait", wait_for_one}, {NULL, NULL}};
    const struct mode *mode = find_mode(modes, argc == 2 ? argv[1] : "");
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (mode == NULL)
        fail(2, "pmix_members MODE");
    mode->run();
    report("pmix_members rank=%u mode=%s heard=%s", me.rank, mode->name, heard);
    PMIx_Finalize(NULL, 0);
    return 0;
}
