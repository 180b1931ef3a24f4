/*
 * pmix_events MODE [FILE]
 *
 * Raises and hears PMIx events, with 4 ranks. Ranks that come to the end print
 *     pmix_events rank=R mode=MODE got=TEXT
 * with how often they heard what: NAME:COUNT,...
 *
 *   ranges   rank 0 raises one event in each range; CUSTOM is for ranks 1 and 2
 *   killed   rank 3 is killed, and the others hear of it
 *   left     rank 3 exits with code 0 and has not finalized
 *   spawned  rank 0 spawns FILE, and all hear of its end: prints JOB_TERM_STATUS as status=NUMBER
 *            and what the server answers when asked for it as asked=NUMBER
 *   outlive  rank 0 spawns this program in mode heir, which all leave behind
 *   heir     waits for the end of the job it was spawned by, and prints what spawned prints
 *   lost     no rank ends until notified that a node is down: prints its processes as lost=RANK,...
 *   offline  no rank ends until notified that a node has left the launch
 *   beat     rank 3 wants its heartbeats watched, beats twice, and stops to
 *   file     rank 3 wants FILE.RANK watched, lets it grow twice, and stops to
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

static char more[512], heard_of[PMIX_MAX_NSLEN + 1];

/* ---- what is heard ---- */

enum { KINDS_MAX = 12 };

struct kind {
    const char *name;
    pmix_status_t code;
    int count;
};

static struct kind kinds[KINDS_MAX];
static size_t kinds_used;
static pmix_rank_t expected_source;

/* The end of what handles an event. */
static void heard(pmix_status_t code, pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < kinds_used; i++)
        if (kinds[i].code == code)
            kinds[i].count++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    handled(done, done_data);
}

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                     size_t count, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)results, (void)nresults;
    if (source->rank != expected_source || strcmp(source->nspace, me.nspace) != 0)
        fail(1, "pmix_events rank=%u: event %d came from %s:%u", me.rank, status, source->nspace,
             source->rank);
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&infos[i], PMIX_EVENT_AFFECTED_PROC)
            && infos[i].value.data.proc->rank != expected_source)
            fail(1, "pmix_events rank=%u: event %d is about rank %u", me.rank, status,
                 infos[i].value.data.proc->rank);
    heard(status, done, done_data);
}

static void hear_by(pmix_notification_fn_t handler, const char *name, pmix_status_t code)
{
    kinds[kinds_used++] = (struct kind){.name = name, .code = code};
    pmix_status_t id = PMIx_Register_event_handler(&code, 1, NULL, 0, handler, NULL, NULL);
    if (id < 0)
        wrong(name, id);
}

static void hear(const char *name, pmix_status_t code)
{
    hear_by(on_event, name, code);
}

static void await(pmix_status_t code)
{
    for (size_t i = 0; i < kinds_used; i++)
        WAIT_UNTIL(kinds[i].code != code || kinds[i].count > 0);
}

/* ---- modes ---- */

static void on_raised(pmix_status_t status, void *data)
{
    (void)status, (void)data;
}

/* Does not wait in the range RM, where a server of libpmix 6.1 never answers. */
static void raise_in(pmix_data_range_t range, pmix_status_t code)
{
    pmix_info_t info;
    pmix_proc_t some[2];
    pmix_data_array_t array = {.type = PMIX_PROC, .size = 2, .array = some};
    name_all(some, (pmix_rank_t[]){1, 2}, 2);
    PMIX_INFO_LOAD(&info, PMIX_EVENT_CUSTOM_RANGE, &array, PMIX_DATA_ARRAY);
    must(PMIx_Notify_event(code, &me, range, &info, range == PMIX_RANGE_CUSTOM,
                           range == PMIX_RANGE_RM ? on_raised : NULL, NULL),
         "PMIx_Notify_event");
}

static void ranges(void)
{
    static const struct {
        const char *name;
        pmix_data_range_t range;
    } all[] = {{"rm", PMIX_RANGE_RM},           {"local", PMIX_RANGE_LOCAL},
               {"custom", PMIX_RANGE_CUSTOM},   {"namespace", PMIX_RANGE_NAMESPACE},
               {"session", PMIX_RANGE_SESSION}, {"global", PMIX_RANGE_GLOBAL}};
    const size_t count = sizeof all / sizeof all[0];
    const pmix_status_t base = PMIX_EXTERNAL_ERR_BASE - 10;
    for (size_t i = 0; i < count; i++)
        hear(all[i].name, base - (pmix_status_t)i);
    expected_source = 0;
    hear("end", base - 100);
    barrier();
    if (me.rank == 0) {
        for (size_t i = 0; i < count; i++)
            raise_in(all[i].range, base - (pmix_status_t)i);
        raise_in(PMIX_RANGE_NAMESPACE, base - 100);
    }
    /* An echo would come before the end of a fence that comes after it. */
    if (me.rank != 0)
        await(base - 100);
    barrier();
    barrier();
}

static void without_one(bool killed)
{
    const pmix_status_t code = killed ? PMIX_ERR_PROC_ABORTED : PMIX_ERR_PROC_TERM_WO_SYNC;
    expected_source = 3;
    hear("aborted", PMIX_ERR_PROC_ABORTED);
    hear("left", PMIX_ERR_PROC_TERM_WO_SYNC);
    barrier();
    if (me.rank == 3 && killed)
        raise(SIGKILL);
    if (me.rank == 3)
        _exit(0);
    await(code);
}

/* Told of a job's end or a node's loss, which has another source. */
static void on_news(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                    size_t count, pmix_info_t *results, size_t nresults,
                    pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id, (void)results, (void)nresults;
    size_t used = 0;
    PMIX_LOAD_NSPACE(heard_of, source->nspace);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (PMIX_CHECK_KEY(&infos[i], PMIX_JOB_TERM_STATUS))
            snprintf(more, sizeof more, " status=%d own=%d", infos[i].value.data.status,
                     strcmp(source->nspace, me.nspace) == 0);
        if (!PMIX_CHECK_KEY(&infos[i], PMIX_EVENT_AFFECTED_PROCS))
            continue;
        const pmix_proc_t *procs = infos[i].value.data.darray->array;
        for (size_t k = 0; k < infos[i].value.data.darray->size; k++)
            used += (size_t)snprintf(more + used, sizeof more - used, "%s%u", k == 0 ? " lost=" : ",",
                                     procs[k].rank);
    }
    pthread_mutex_unlock(&lock);
    heard(status, done, done_data);
}

static void hear_news(const char *name, pmix_status_t code)
{
    hear_by(on_news, name, code);
}

static void spawned(char *program)
{
    char nspace[PMIX_MAX_NSLEN + 1], *words[] = {program, NULL};
    hear_news("started", PMIX_EVENT_JOB_START);
    hear_news("ended", PMIX_EVENT_JOB_END);
    barrier();
    if (me.rank == 0)
        must(spawn_program(words, 2, NULL, 0, nspace), "PMIx_Spawn");
    await(PMIX_EVENT_JOB_START);
    await(PMIX_EVENT_JOB_END);

    pmix_query_t query;
    pmix_info_t *results = NULL;
    size_t nresults = 0;
    pmix_status_t rc;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(rc, query.keys, PMIX_QUERY_JOB_STATUS);
    must(rc, "keys");
    PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, heard_of, PMIX_STRING);
    must(PMIx_Query_info(&query, 1, &results, &nresults), "PMIx_Query_info");
    if (nresults != 1 || results[0].value.type != PMIX_STATUS)
        fail(1, "pmix_events rank=%u: no status among %zu answers", me.rank, nresults);
    const size_t used = strlen(more);
    snprintf(more + used, sizeof more - used, " asked=%d", results[0].value.data.status);
    PMIX_INFO_FREE(results, nresults);
    PMIX_QUERY_DESTRUCT(&query);
    barrier();
}

static void outlive(char *program)
{
    if (me.rank == 0) {
        char nspace[PMIX_MAX_NSLEN + 1], *words[] = {program, "heir", NULL};
        const bool yes = true;
        pmix_info_t infos[1];
        pmix_pdata_t pdata;
        PMIX_INFO_LOAD(&infos[0], "pmix.spchildsep", &yes, PMIX_BOOL); /* PMIX_SPAWN_CHILD_SEP of 5.0 */
        must(spawn_program(words, 2, infos, 1, nspace), "PMIx_Spawn");
        PMIX_PDATA_CONSTRUCT(&pdata);
        PMIX_LOAD_KEY(pdata.key, "heirs are ready");
        PMIX_INFO_LOAD(&infos[0], PMIX_WAIT, &yes, PMIX_BOOL);
        must(PMIx_Lookup(&pdata, 1, infos, 1), "PMIx_Lookup");
        PMIX_PDATA_DESTRUCT(&pdata);
    }
    barrier();
}

static void heir(void)
{
    hear_news("ended", PMIX_EVENT_JOB_END);
    barrier();
    if (me.rank == 0) {
        const bool yes = true;
        pmix_info_t info;
        PMIX_INFO_LOAD(&info, "heirs are ready", &yes, PMIX_BOOL);
        must(PMIx_Publish(&info, 1), "PMIx_Publish");
    }
    await(PMIX_EVENT_JOB_END);
    pmix_value_t *parent = NULL;
    must(PMIx_Get(&me, PMIX_PARENT_ID, NULL, 0, &parent), "PMIX_PARENT_ID");
    if (strcmp(parent->data.proc->nspace, heard_of) != 0)
        fail(1, "pmix_events rank=%u: job %s ended, and not %s", me.rank, heard_of,
             parent->data.proc->nspace);
    PMIX_VALUE_RELEASE(parent);
    barrier();
}

static void node_down(void)
{
    signal(SIGTERM, SIG_IGN);
    hear_news("down", PMIX_EVENT_NODE_DOWN);
    barrier();
    report("pmix_events rank=%u mode=ready", me.rank);
    await(PMIX_EVENT_NODE_DOWN);
}

static void node_offline(void)
{
    hear_news("offline", PMIX_EVENT_NODE_OFFLINE);
    barrier();
    report("pmix_events rank=%u mode=ready", me.rank);
    await(PMIX_EVENT_NODE_OFFLINE);
    barrier();
}

static void watch(const char *kind, const void *what, pmix_data_type_t type, pmix_status_t alert,
                  pmix_info_t *directives, size_t count)
{
    pmix_info_t monitor, *results = NULL;
    size_t nresults = 0;
    PMIX_INFO_LOAD(&monitor, kind, what, type);
    must(PMIx_Process_monitor(&monitor, alert, directives, count, &results, &nresults), kind);
}

static void beat(void)
{
    const uint32_t seconds = 1, drops = 0;
    pmix_info_t directives[2];
    expected_source = 3;
    hear("alert", PMIX_MONITOR_HEARTBEAT_ALERT);
    barrier();
    if (me.rank == 3) {
        PMIX_INFO_LOAD(&directives[0], PMIX_MONITOR_HEARTBEAT_TIME, &seconds, PMIX_UINT32);
        PMIX_INFO_LOAD(&directives[1], PMIX_MONITOR_HEARTBEAT_DROPS, &drops, PMIX_UINT32);
        watch(PMIX_MONITOR_HEARTBEAT, NULL, PMIX_POINTER, PMIX_MONITOR_HEARTBEAT_ALERT, directives, 2);
        for (int i = 0; i < 2; i++) {
            PMIx_Heartbeat();
            usleep(500000);
        }
    }
    /* libpmix does not tell the one that is watched. */
    if (me.rank != 3)
        await(PMIX_MONITOR_HEARTBEAT_ALERT);
    barrier();
}

static void watch_file(const char *stem)
{
    const uint32_t seconds = 1, drops = 1;
    const bool yes = true;
    char path[512];
    pmix_info_t directives[3];
    expected_source = 3;
    hear("alert", PMIX_MONITOR_FILE_ALERT);
    barrier();
    if (me.rank == 3) {
        snprintf(path, sizeof path, "%s.%u", stem, me.rank);
        FILE *file = fopen(path, "w");
        if (file == NULL)
            fail(1, "pmix_events: cannot write %s", path);
        PMIX_INFO_LOAD(&directives[0], PMIX_MONITOR_FILE_SIZE, &yes, PMIX_BOOL);
        PMIX_INFO_LOAD(&directives[1], PMIX_MONITOR_FILE_CHECK_TIME, &seconds, PMIX_UINT32);
        PMIX_INFO_LOAD(&directives[2], PMIX_MONITOR_FILE_DROPS, &drops, PMIX_UINT32);
        watch(PMIX_MONITOR_FILE, path, PMIX_STRING, PMIX_MONITOR_FILE_ALERT, directives, 3);
        for (int i = 0; i < 2; i++) {
            fputs("grows\n", file);
            fflush(file);
            usleep(500000);
        }
    }
    if (me.rank != 3)
        await(PMIX_MONITOR_FILE_ALERT);
    barrier();
}

int main(int argc, char **argv)
{
    const char *mode = argc >= 2 ? argv[1] : "";
    char text[512] = "";
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (strcmp(mode, "ranges") == 0)
        ranges();
    else if (strcmp(mode, "killed") == 0 || strcmp(mode, "left") == 0)
        without_one(strcmp(mode, "killed") == 0);
    else if (strcmp(mode, "spawned") == 0 && argc == 3)
        spawned(argv[2]);
    else if (strcmp(mode, "outlive") == 0)
        outlive(argv[0]);
    else if (strcmp(mode, "heir") == 0)
        heir();
    else if (strcmp(mode, "lost") == 0)
        node_down();
    else if (strcmp(mode, "offline") == 0)
        node_offline();
    else if (strcmp(mode, "beat") == 0)
        beat();
    else if (strcmp(mode, "file") == 0 && argc == 3)
        watch_file(argv[2]);
    else
        fail(2, "pmix_events MODE [FILE]");
    pthread_mutex_lock(&lock);
    for (size_t i = 0, used = 0; i < kinds_used; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s:%d", i == 0 ? "" : ",",
                                 kinds[i].name, kinds[i].count);
    pthread_mutex_unlock(&lock);
    report("pmix_events rank=%u mode=%s got=%s%s", me.rank, mode, text, more);
    if (strcmp(mode, "lost") == 0)
        _exit(0);
    PMIx_Finalize(NULL, 0);
    return 0;
}
