/*
 * The module that libpmix calls. Every function runs on libpmix's progress thread and does the
 * same: copy the arguments into a frame, send it, return at once.
 *
 * PMIX_SUCCESS promises one callback; PMIX_OPERATION_SUCCEEDED and errors promise none.
 */
#include <stddef.h>
#include <string.h>

#include "shim.h"

/* What a notice means to libpmix: done, unless the agent is gone. */
static pmix_status_t notice(struct out *o, uint16_t op)
{
    const pmix_status_t rc = link_notice(o, op);
    return rc == PMIX_SUCCESS ? PMIX_OPERATION_SUCCEEDED : rc;
}

static pmix_status_t client_connected2(const pmix_proc_t *proc, void *server_object,
                                       pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t cbfunc,
                                       void *cbdata)
{
    (void)server_object;
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_infos(&o, info, ninfo);
    return notice(&o, WIREUP_OP_CLIENT_CONNECTED);
}

/* Synchronous: the agent must find it in the socket when it sees the client's exit. */
static pmix_status_t client_finalized(const pmix_proc_t *proc, void *server_object,
                                      pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)server_object;
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    return notice(&o, WIREUP_OP_CLIENT_FINALIZED);
}

static pmix_status_t register_events(pmix_status_t *codes, size_t ncodes, const pmix_info_t info[],
                                     size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_codes(&o, codes, ncodes);
    put_infos(&o, info, ninfo);
    return notice(&o, WIREUP_OP_REGISTER_EVENTS);
}

static pmix_status_t deregister_events(pmix_status_t *codes, size_t ncodes, pmix_op_cbfunc_t cbfunc,
                                       void *cbdata)
{
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_codes(&o, codes, ncodes);
    return notice(&o, WIREUP_OP_DEREGISTER_EVENTS);
}

void notice_of_spawn(const char *nspace, size_t len)
{
    struct out o;
    out_init(&o);
    put_text_upto(&o, nspace, len);
    /* Without a launcher there is no receiver. */
    (void)link_notice(&o, WIREUP_OP_SPAWNED);
}

/* Never PMIX_SUCCESS with a later callback: libpmix 4.2.2 freezes on events of its own. */
static pmix_status_t notify_event(pmix_status_t code, const pmix_proc_t *source,
                                  pmix_data_range_t range, pmix_info_t info[], size_t ninfo,
                                  pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_u32(&o, (uint32_t)code);
    put_proc(&o, source);
    put_u8(&o, range);
    put_infos(&o, info, ninfo);
    return notice(&o, WIREUP_OP_NOTIFY_EVENT);
}

static pmix_status_t abort_(const pmix_proc_t *proc, void *server_object, int status,
                            const char msg[], pmix_proc_t procs[], size_t nprocs,
                            pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    (void)server_object;
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_u32(&o, (uint32_t)status);
    put_text(&o, msg);
    put_procs(&o, procs, nprocs);
    return link_request(&o, WIREUP_OP_ABORT, &completion);
}

/* The blob is ours from here on, also when we refuse. */
static pmix_status_t fence_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                              size_t ninfo, char *data, size_t ndata, pmix_modex_cbfunc_t cbfunc,
                              void *cbdata)
{
    struct completion completion = {COMPLETE_MODEX, {.modex = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_procs(&o, procs, nprocs);
    put_infos(&o, info, ninfo);
    put_bytes(&o, data, data == NULL ? 0 : ndata);
    free(data);
    return link_request(&o, WIREUP_OP_FENCE, &completion);
}

static pmix_status_t direct_modex(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo,
                                  pmix_modex_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_MODEX, {.modex = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_infos(&o, info, ninfo);
    return link_request(&o, WIREUP_OP_DIRECT_MODEX, &completion);
}

static pmix_status_t publish(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo,
                             pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_infos(&o, info, ninfo);
    return link_request(&o, WIREUP_OP_PUBLISH, &completion);
}

static pmix_status_t lookup(const pmix_proc_t *proc, char **keys, const pmix_info_t info[],
                            size_t ninfo, pmix_lookup_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_LOOKUP, {.lookup = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_texts(&o, keys);
    put_infos(&o, info, ninfo);
    return link_request(&o, WIREUP_OP_LOOKUP, &completion);
}

static pmix_status_t unpublish(const pmix_proc_t *proc, char **keys, const pmix_info_t info[],
                               size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_texts(&o, keys);
    put_infos(&o, info, ninfo);
    return link_request(&o, WIREUP_OP_UNPUBLISH, &completion);
}

static pmix_status_t spawn(const pmix_proc_t *proc, const pmix_info_t infos[], size_t ninfo,
                           const pmix_app_t apps[], size_t napps, pmix_spawn_cbfunc_t cbfunc,
                           void *cbdata)
{
    struct completion completion = {COMPLETE_SPAWN, {.spawn = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proc);
    put_infos(&o, infos, ninfo);
    put_apps(&o, apps, napps);
    return link_request(&o, WIREUP_OP_SPAWN, &completion);
}

static pmix_status_t meet(uint16_t op, const pmix_proc_t procs[], size_t nprocs,
                          const pmix_info_t infos[], size_t ninfo, pmix_op_cbfunc_t cbfunc,
                          void *cbdata)
{
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_procs(&o, procs, nprocs);
    put_infos(&o, infos, ninfo);
    return link_request(&o, op, &completion);
}

static pmix_status_t connect_(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t infos[],
                              size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    return meet(WIREUP_OP_CONNECT, procs, nprocs, infos, ninfo, cbfunc, cbdata);
}

static pmix_status_t disconnect(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t infos[],
                                size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    return meet(WIREUP_OP_DISCONNECT, procs, nprocs, infos, ninfo, cbfunc, cbdata);
}

static pmix_status_t query(pmix_proc_t *proct, pmix_query_t *queries, size_t nqueries,
                           pmix_info_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_INFO, {.info = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, proct);
    put_queries(&o, queries, nqueries);
    return link_request(&o, WIREUP_OP_QUERY, &completion);
}

/* Cannot refuse, and a callback from here deadlocks in libpmix. */
static void log_(const pmix_proc_t *client, const pmix_info_t data[], size_t ndata,
                 const pmix_info_t directives[], size_t ndirs, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, client);
    put_infos(&o, data, ndata);
    put_infos(&o, directives, ndirs);
    const pmix_status_t rc = link_request(&o, WIREUP_OP_LOG, &completion);
    if (rc != PMIX_SUCCESS) {
        link_refuse_later(&completion, rc);
    }
}

static pmix_status_t allocate(const pmix_proc_t *client, pmix_alloc_directive_t directive,
                              const pmix_info_t data[], size_t ndata, pmix_info_cbfunc_t cbfunc,
                              void *cbdata)
{
    struct completion completion = {COMPLETE_INFO, {.info = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, client);
    put_u8(&o, directive);
    put_infos(&o, data, ndata);
    return link_request(&o, WIREUP_OP_ALLOCATE, &completion);
}

/*
 * Only the directives that are left for wireup: libpmix itself removes the files that a client
 * registers for removal after its end, and does not call then.
 */
static pmix_status_t job_control(const pmix_proc_t *requestor, const pmix_proc_t targets[],
                                 size_t ntargets, const pmix_info_t directives[], size_t ndirs,
                                 pmix_info_cbfunc_t cbfunc, void *cbdata)
{
    if (!keep_files(directives, ndirs)) {
        return PMIX_ERR_NOMEM;
    }
    struct completion completion = {COMPLETE_INFO, {.info = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, requestor);
    put_procs(&o, targets, ntargets);
    put_infos(&o, directives, ndirs);
    return link_request(&o, WIREUP_OP_JOB_CONTROL, &completion);
}

/* Its type has a name from 5.0 on, and clients reach it from 6.0 on. */
static pmix_status_t session_control(const pmix_proc_t *requestor, uint32_t session,
                                     const pmix_info_t directives[], size_t ndirs,
                                     pmix_info_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_INFO, {.info = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, requestor);
    put_u32(&o, session);
    put_infos(&o, directives, ndirs);
    return link_request(&o, WIREUP_OP_SESSION_CONTROL, &completion);
}

/*
 * Never PMIX_SUCCESS: libpmix 4.2.2 to 5.0.11 frees what the callback would need as soon as we
 * return. libpmix does not name the client, and for an end (PMIX_IOF_STOP) not even the
 * subscription.
 */
static pmix_status_t iof_pull(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t infos[],
                              size_t ninfo, pmix_iof_channel_t channels, pmix_op_cbfunc_t cbfunc,
                              void *cbdata)
{
    (void)cbfunc;
    (void)cbdata;
    struct out o;
    out_init(&o);
    put_procs(&o, procs, nprocs);
    put_infos(&o, infos, ninfo);
    put_u16(&o, channels);
    return notice(&o, WIREUP_OP_IOF_PULL);
}

static pmix_status_t push_stdin(const pmix_proc_t *source, const pmix_proc_t targets[],
                                size_t ntargets, const pmix_info_t infos[], size_t ninfo,
                                const pmix_byte_object_t *bo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
    struct completion completion = {COMPLETE_OP, {.op = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_proc(&o, source);
    put_procs(&o, targets, ntargets);
    put_infos(&o, infos, ninfo);
    put_bytes(&o, bo == NULL ? NULL : bo->bytes, bo == NULL || bo->bytes == NULL ? 0 : bo->size);
    return link_request(&o, WIREUP_OP_PUSH_STDIN, &completion);
}

/* Cannot refuse. Who the other end is was judged when it connected, before libpmix read its claims. */
static void tool_connected(pmix_info_t info[], size_t ninfo, pmix_tool_connection_cbfunc_t cbfunc,
                           void *cbdata)
{
    struct completion completion = {COMPLETE_TOOL, {.tool = cbfunc}, cbdata};
    struct out o;
    out_init(&o);
    put_infos(&o, info, ninfo);
    const pmix_status_t rc = link_request(&o, WIREUP_OP_TOOL_CONNECTED, &completion);
    if (rc != PMIX_SUCCESS) {
        link_refuse_later(&completion, rc);
    }
}

static bool is_local_only(const pmix_info_t infos[], size_t count)
{
    for (size_t i = 0; infos != NULL && i < count; i++) {
        if (strncmp(infos[i].key, PMIX_GROUP_LOCAL_ONLY, PMIX_MAX_KEYLEN) == 0) {
            const pmix_value_t *value = &infos[i].value;
            return value->type == PMIX_UNDEF || (value->type == PMIX_BOOL && value->data.flag);
        }
    }
    return false;
}

/*
 * Never PMIX_SUCCESS for a local destruct: libpmix 4.2.9 and 5.0 up to 5.0.11 at least would call a
 * second time with the same tracker, and free it at the first callback. No other process waits for
 * it.
 */
static pmix_status_t group(pmix_group_operation_t op, char *id, const pmix_proc_t procs[],
                           size_t nprocs, const pmix_info_t infos[], size_t ninfo,
                           pmix_info_cbfunc_t cbfunc, void *cbdata)
{
    if (op != PMIX_GROUP_CONSTRUCT && op != PMIX_GROUP_DESTRUCT) {
        return PMIX_ERR_NOT_SUPPORTED;
    }
    struct out o;
    out_init(&o);
    if (op == PMIX_GROUP_DESTRUCT && is_local_only(infos, ninfo)) {
        put_text(&o, id);
        put_procs(&o, procs, nprocs);
        return notice(&o, WIREUP_OP_GROUP_ENDED);
    }
    struct completion completion = {COMPLETE_GROUP, {.info = cbfunc}, cbdata};
    put_u8(&o, op == PMIX_GROUP_CONSTRUCT ? WIREUP_GROUP_CONSTRUCT : WIREUP_GROUP_DESTRUCT);
    put_text(&o, id);
    put_procs(&o, procs, nprocs);
    put_infos(&o, infos, ninfo);
    return link_request(&o, WIREUP_OP_GROUP, &completion);
}

/*
 * libpmix copies as many bytes as its own version of the struct has, which may be more than we
 * were compiled with; and from 6.1 on slots after client_connected2 moved. So: zeroes behind, and
 * what comes after client_connected2 is filled in by the version.
 */
static union {
    pmix_server_module_t module;
    unsigned char room[2048];
} module = {
    .module =
        {
            .abort = abort_,
            .fence_nb = fence_nb,
            .direct_modex = direct_modex,
            .publish = publish,
            .lookup = lookup,
            .unpublish = unpublish,
            .spawn = spawn,
            .connect = connect_,
            .disconnect = disconnect,
            .register_events = register_events,
            .deregister_events = deregister_events,
            .notify_event = notify_event,
            .query = query,
            .tool_connected = tool_connected,
            .log = log_,
            .allocate = allocate,
            .job_control = job_control,
            .iof_pull = iof_pull,
            .push_stdin = push_stdin,
            .get_credential = credential_get,
            .validate_credential = credential_validate,
            .group = group,
            .client_finalized = client_finalized,
            .client_connected2 = client_connected2,
        },
};

_Static_assert(sizeof(pmix_server_module_t) + 4 * sizeof(void (*)(void)) < sizeof(module.room),
               "room for later versions");

pmix_server_module_t *wireup_module(uint32_t major, uint32_t minor)
{
    pmix_status_t (*const control)(const pmix_proc_t *, uint32_t, const pmix_info_t[], size_t,
                                   pmix_info_cbfunc_t, void *) = session_control;
    unsigned char *const behind =
        module.room + offsetof(pmix_server_module_t, client_connected2) + sizeof(control);
    /* From 6.1 on tool_connected2 and log2 are in between. */
    const size_t slot = major == 6 && minor == 0 ? 0 : 2;
    memset(behind, 0, (size_t)(module.room + sizeof(module.room) - behind));
    /* For unknown versions the positions are not known. */
    if (major == 6 || major == 7) {
        memcpy(behind + slot * sizeof(control), &control, sizeof(control));
    }
    return &module.module;
}
