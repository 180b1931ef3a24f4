/*
 * Events that the server itself receives, and the tool that directs the launch: they go to the agent as notices.
 * Without a launcher a notice has no receiver, which is no error here.
 */
#include <stdlib.h>

#include "shim.h"

/* Reports an alert. libpmix also passes alerts from other nodes; the agent recognises them by their source. */
static void alert(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[],
                  size_t ninfo, pmix_info_t *results, size_t nresults,
                  pmix_event_notification_cbfunc_fn_t done, void *cbdata)
{
    (void)id;
    (void)results;
    (void)nresults;
    struct out o;
    out_init(&o);
    put_u32(&o, (uint32_t)code);
    put_proc(&o, source);
    put_u8(&o, PMIX_RANGE_NAMESPACE);
    put_infos(&o, info, ninfo);
    (void)link_notice(&o, WIREUP_OP_NOTIFY_EVENT);
    if (done != NULL) {
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, cbdata);
    }
}

/* Reports lost connections. Losses within a second are one event: the source is the first, the others are infos. */
static void connections_lost(size_t id, pmix_status_t code, const pmix_proc_t *source,
                             pmix_info_t info[], size_t ninfo, pmix_info_t *results, size_t nresults,
                             pmix_event_notification_cbfunc_fn_t done, void *cbdata)
{
    (void)id;
    (void)code;
    (void)results;
    (void)nresults;
    struct out o;
    out_init(&o);
    put_proc(&o, source);
    put_infos(&o, info, ninfo);
    (void)link_notice(&o, WIREUP_OP_CONNECTIONS_LOST);
    if (done != NULL) {
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, cbdata);
    }
}

pmix_status_t wireup_watch_alerts(void)
{
    pmix_status_t alerts[] = {PMIX_MONITOR_HEARTBEAT_ALERT, PMIX_MONITOR_FILE_ALERT};
    pmix_status_t losses[] = {PMIX_ERR_LOST_CONNECTION};
    pmix_status_t id = PMIx_Register_event_handler(alerts, 2, NULL, 0, alert, NULL, NULL);
    if (id >= 0) {
        id = PMIx_Register_event_handler(losses, 1, NULL, 0, connections_lost, NULL, NULL);
    }
    return id < 0 ? id : PMIX_SUCCESS;
}

pmix_status_t wireup_follow_tool(void)
{
    if (getenv(PMIX_LAUNCHER_RNDZ_URI) == NULL) {
        return PMIX_SUCCESS;
    }
    /* The values are kept: how one is freed differs between versions. */
    pmix_value_t *value = NULL;
    pmix_status_t rc = PMIx_Get(NULL, PMIX_PROCID, NULL, 0, &value);
    if (rc != PMIX_SUCCESS) {
        return rc;
    }
    pmix_proc_t own = *value->data.proc;
    own.rank = PMIX_RANK_WILDCARD;
    rc = PMIx_Get(&own, PMIX_PARENT_ID, NULL, 0, &value);
    if (rc != PMIX_SUCCESS) {
        return rc;
    }
    const pmix_proc_t tool = *value->data.proc;
    const pmix_info_t optional = {.key = PMIX_OPTIONAL, .value = {.type = PMIX_BOOL, .data = {.flag = true}}};
    pmix_info_t directives = {.key = PMIX_LAUNCH_DIRECTIVES};
    if (PMIx_Get(&own, PMIX_LAUNCH_DIRECTIVES, &optional, 1, &value) == PMIX_SUCCESS) {
        directives.value = *value;
    }
    struct out o;
    out_init(&o);
    put_u32(&o, (uint32_t)PMIX_DEBUGGER_RELEASE);
    put_proc(&o, &tool);
    put_u8(&o, PMIX_RANGE_CUSTOM);
    put_infos(&o, &directives, 1);
    return link_notice(&o, WIREUP_OP_NOTIFY_EVENT);
}
