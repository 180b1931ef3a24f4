/*
 * pmix_stop
 *
 * A rank that debuggers stop. Says
 *     pmix_stop rank=R begun
 * when it has left PMIx_Init. Ranks that are to wait at a place of the program's own (PMIX_DEBUG_STOP_IN_APP)
 * do so then, and say
 *     pmix_stop rank=R released
 * All meet before they leave.
 */
#include "client.h"
#include <pmix.h>

static bool released;

static void on_release(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t ninfo,
                       pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)code, (void)source, (void)info, (void)ninfo, (void)others, (void)nothers;
    CHANGE(released = true);
    handled(done, data);
}

static bool stops(const pmix_value_t *value)
{
    if (value->type == PMIX_PROC_RANK)
        return value->data.rank == PMIX_RANK_WILDCARD || value->data.rank == me.rank;
    hold(value->type == PMIX_DATA_ARRAY && value->data.darray->type == PMIX_PROC, "a rank or processes");
    const pmix_proc_t *procs = value->data.darray->array;
    for (size_t i = 0; i < value->data.darray->size; i++)
        if (procs[i].rank == me.rank)
            return true;
    return false;
}

int main(void)
{
    pmix_proc_t all;
    pmix_info_t info[3];
    pmix_value_t *value = NULL;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    report("pmix_stop rank=%u begun", me.rank);
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&info[0], PMIX_OPTIONAL, NULL, PMIX_BOOL);
    if (PMIx_Get(&all, PMIX_DEBUG_STOP_IN_APP, info, 1, &value) == PMIX_SUCCESS && stops(value)) {
        listen_for(PMIX_DEBUGGER_RELEASE, on_release);
        PMIX_INFO_LOAD(&info[0], PMIX_EVENT_NON_DEFAULT, NULL, PMIX_BOOL);
        PMIX_INFO_LOAD(&info[1], PMIX_BREAKPOINT, "in-app", PMIX_STRING);
        PMIX_INFO_LOAD(&info[2], PMIX_EVENT_DO_NOT_CACHE, NULL, PMIX_BOOL);
        must(await_answer(PMIx_Notify_event(PMIX_READY_FOR_DEBUG, &me, PMIX_RANGE_RM, info, 3, on_answer, NULL)),
             "PMIx_Notify_event");
        WAIT_UNTIL(released);
        report("pmix_stop rank=%u released", me.rank);
    }
    barrier();
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
