/*
 * pmix_daemon
 *
 * A daemon of a debugger. It is started with PMIX_DEBUGGER_DAEMONS, and says
 *     pmix_daemon rank=R node=N lrank=L target=NSPACE.RANK local=NUMBER
 * with the number of processes of the target on its node; waits until the target's job has ended, and says
 *     pmix_daemon rank=R over
 */
#include "client.h"
#include <pmix.h>
#include <pmix_tool.h>

static char target[PMIX_MAX_NSLEN + 1];
static bool over;

static void on_end(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                   pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)code, (void)info, (void)ninfo, (void)others, (void)nothers;
    if (strcmp(source->nspace, target) == 0)
        CHANGE(over = true);
    handled(done, data);
}

int main(void)
{
    pmix_proc_t all;
    pmix_value_t *value = NULL, *local = NULL;
    pmix_query_t query;
    pmix_info_t *results = NULL;
    pmix_status_t rc;
    size_t nresults;
    must(PMIx_tool_init(&me, NULL, 0), "PMIx_tool_init");
    listen_for(PMIX_EVENT_JOB_END, on_end);
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    must(PMIx_Get(&all, PMIX_DEBUG_TARGET, NULL, 0, &value), "the target");
    hold(value->type == PMIX_PROC, "a process");
    must(PMIx_Get(&me, PMIX_LOCAL_RANK, NULL, 0, &local), "the local rank");
    snprintf(target, sizeof target, "%s", value->data.proc->nspace);
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(rc, query.keys, PMIX_QUERY_LOCAL_PROC_TABLE);
    must(rc, "a key");
    PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
    PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, target, PMIX_STRING);
    must(PMIx_Query_info(&query, 1, &results, &nresults), "PMIx_Query_info");
    hold(nresults == 1 && results[0].value.type == PMIX_DATA_ARRAY, "a table");
    const char *node = getenv("WIREUP_NODE");
    report("pmix_daemon rank=%u node=%s lrank=%d target=%s.%d local=%zu", me.rank, node == NULL ? "?" : node,
           (int)local->data.uint16, target, (int)value->data.proc->rank, results[0].value.data.darray->size);
    WAIT_UNTIL(over);
    report("pmix_daemon rank=%u over", me.rank);
    PMIx_tool_finalize();
    return 0;
}
