/*
 * The module that libpmix calls. Every function runs on libpmix's progress thread and does the
 * same: copy the arguments into a frame, send it, return at once.
 *
 * PMIX_SUCCESS promises one callback; PMIX_OPERATION_SUCCEEDED and errors promise none.
 *
 * UPCALLS has a row for each upcall of this shape. Below it are those that need more than a row.
 */
#include <stddef.h>
#include <string.h>

#include "shim.h"

/* ---- The kinds of arguments ---- */

/*
 * PARAMETER_KIND declares the parameters of an argument of this kind, and PUT_KIND appends them to
 * the frame. N tells apart arguments of one upcall. VARIABLE kinds lack the const of libpmix's
 * type; nothing is changed.
 */
#define PARAMETER_PROC(n) const pmix_proc_t *proc##n,
#define PUT_PROC(n) put_proc(&o, proc##n);

#define PARAMETER_VARIABLE_PROC(n) pmix_proc_t *proc##n,
#define PUT_VARIABLE_PROC(n) put_proc(&o, proc##n);

#define PARAMETER_PROCS(n) const pmix_proc_t procs##n[], size_t nprocs##n,
#define PUT_PROCS(n) put_procs(&o, procs##n, nprocs##n);

#define PARAMETER_VARIABLE_PROCS(n) pmix_proc_t procs##n[], size_t nprocs##n,
#define PUT_VARIABLE_PROCS(n) put_procs(&o, procs##n, nprocs##n);

#define PARAMETER_INFOS(n) const pmix_info_t infos##n[], size_t ninfos##n,
#define PUT_INFOS(n) put_infos(&o, infos##n, ninfos##n);

#define PARAMETER_VARIABLE_INFOS(n) pmix_info_t infos##n[], size_t ninfos##n,
#define PUT_VARIABLE_INFOS(n) put_infos(&o, infos##n, ninfos##n);

#define PARAMETER_CODES(n) pmix_status_t *codes##n, size_t ncodes##n,
#define PUT_CODES(n) put_codes(&o, codes##n, ncodes##n);

#define PARAMETER_QUERIES(n) pmix_query_t *queries##n, size_t nqueries##n,
#define PUT_QUERIES(n) put_queries(&o, queries##n, nqueries##n);

#define PARAMETER_APPS(n) const pmix_app_t apps##n[], size_t napps##n,
#define PUT_APPS(n) put_apps(&o, apps##n, napps##n);

#define PARAMETER_TEXT(n) const char text##n[],
#define PUT_TEXT(n) put_text(&o, text##n);

#define PARAMETER_TEXTS(n) char **texts##n,
#define PUT_TEXTS(n) put_texts(&o, texts##n);

#define PARAMETER_BYTES(n) const pmix_byte_object_t *bytes##n,
#define PUT_BYTES(n) put_byte_object(&o, bytes##n);

/* Bytes that the shim owns from the call on, also when it refuses. */
#define PARAMETER_OWNED_BYTES(n) char *bytes##n, size_t nbytes##n,
#define PUT_OWNED_BYTES(n)                                    \
    put_bytes(&o, bytes##n, bytes##n == NULL ? 0 : nbytes##n); \
    free(bytes##n);

#define PARAMETER_STATUS(n) pmix_status_t status##n,
#define PUT_STATUS(n) put_u32(&o, (uint32_t)status##n);

#define PARAMETER_U8(n) uint8_t number##n,
#define PUT_U8(n) put_u8(&o, number##n);

#define PARAMETER_U16(n) uint16_t number##n,
#define PUT_U16(n) put_u16(&o, number##n);

#define PARAMETER_U32(n) uint32_t number##n,
#define PUT_U32(n) put_u32(&o, number##n);

/* The server's pointer for a client, which wireup does not set. */
#define PARAMETER_SERVER_OBJECT(n) void *server_object##n,
#define PUT_SERVER_OBJECT(n) (void)server_object##n;

/* Expands FORM_KIND(1) FORM_KIND(2) ... for up to five kinds. */
#define EACH(form, ...) \
    EACH_SELECT(__VA_ARGS__, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, )(form, __VA_ARGS__)
#define EACH_SELECT(a, b, c, d, e, each, ...) each
#define EACH_1(form, a) form##a(1)
#define EACH_2(form, a, b) form##a(1) form##b(2)
#define EACH_3(form, a, b, c) form##a(1) form##b(2) form##c(3)
#define EACH_4(form, a, b, c, d) form##a(1) form##b(2) form##c(3) form##d(4)
#define EACH_5(form, a, b, c, d, e) form##a(1) form##b(2) form##c(3) form##d(4) form##e(5)

/* ---- The forms of upcalls ---- */

/* COMPLETION_ANSWER is the completion of a request with this answer, and CALLBACK_ANSWER its type. */
#define CALLBACK_OP pmix_op_cbfunc_t
#define COMPLETION_OP {COMPLETE_OP, {.op = cbfunc}, cbdata}
#define CALLBACK_MODEX pmix_modex_cbfunc_t
#define COMPLETION_MODEX {COMPLETE_MODEX, {.modex = cbfunc}, cbdata}
#define CALLBACK_INFO pmix_info_cbfunc_t
#define COMPLETION_INFO {COMPLETE_INFO, {.info = cbfunc}, cbdata}
#define CALLBACK_LOOKUP pmix_lookup_cbfunc_t
#define COMPLETION_LOOKUP {COMPLETE_LOOKUP, {.lookup = cbfunc}, cbdata}
#define CALLBACK_SPAWN pmix_spawn_cbfunc_t
#define COMPLETION_SPAWN {COMPLETE_SPAWN, {.spawn = cbfunc}, cbdata}
#define CALLBACK_TOOL pmix_tool_connection_cbfunc_t
#define COMPLETION_TOOL {COMPLETE_TOOL, {.tool = cbfunc}, cbdata}

/* An upcall that waits for the agent's answer. */
#define REQUEST(name, message, answer, ...)                                                      \
    static pmix_status_t upcall_##name(EACH(PARAMETER_, __VA_ARGS__) CALLBACK_##answer cbfunc,   \
                                       void *cbdata)                                             \
    {                                                                                            \
        const struct completion completion = COMPLETION_##answer;                                \
        struct out o;                                                                            \
        out_init(&o);                                                                            \
        EACH(PUT_, __VA_ARGS__)                                                                  \
        return link_request(&o, WIREUP_OP_##message, &completion);                               \
    }

/* A request that cannot be refused on return; a callback from inside the upcall would deadlock in libpmix. */
#define REQUEST_WITHOUT_STATUS(name, message, answer, ...)                                       \
    static void upcall_##name(EACH(PARAMETER_, __VA_ARGS__) CALLBACK_##answer cbfunc, void *cbdata) \
    {                                                                                            \
        const struct completion completion = COMPLETION_##answer;                                \
        struct out o;                                                                            \
        out_init(&o);                                                                            \
        EACH(PUT_, __VA_ARGS__)                                                                  \
        const pmix_status_t rc = link_request(&o, WIREUP_OP_##message, &completion);             \
        if (rc != PMIX_SUCCESS) {                                                                \
            link_refuse_later(&completion, rc);                                                  \
        }                                                                                        \
    }

/* An upcall without an answer: complete as soon as it is sent. */
#define NOTICE(name, message, answer, ...)                                                       \
    static pmix_status_t upcall_##name(EACH(PARAMETER_, __VA_ARGS__) CALLBACK_##answer cbfunc,   \
                                       void *cbdata)                                             \
    {                                                                                            \
        (void)cbfunc;                                                                            \
        (void)cbdata;                                                                            \
        struct out o;                                                                            \
        out_init(&o);                                                                            \
        EACH(PUT_, __VA_ARGS__)                                                                  \
        return notice(&o, WIREUP_OP_##message);                                                  \
    }

/* ---- The upcalls ---- */

/*
 * Each row: the callback's name in pmix_server_module_t, the message, the type of the answer's
 * callback, and the arguments in the order of both.
 *
 * client_finalized: the agent must find the notice in the socket when it sees the client's exit.
 * notify_event: never PMIX_SUCCESS with a later callback: libpmix 4.2.2 freezes on events of its
 * own.
 * iof_pull: never PMIX_SUCCESS: libpmix 4.2.2 to 5.0.11 frees what the callback would need as soon
 * as we return. libpmix does not name the client, and for an end (PMIX_IOF_STOP) not even the
 * subscription.
 * tool_connected: the agent judged the other end when it connected, before libpmix read its claims.
 */
#define UPCALLS(REQUEST, REQUEST_WITHOUT_STATUS, NOTICE)                                         \
    NOTICE(client_connected2, CLIENT_CONNECTED, OP, PROC, SERVER_OBJECT, VARIABLE_INFOS)         \
    NOTICE(client_finalized, CLIENT_FINALIZED, OP, PROC, SERVER_OBJECT)                          \
    NOTICE(register_events, REGISTER_EVENTS, OP, CODES, INFOS)                                   \
    NOTICE(deregister_events, DEREGISTER_EVENTS, OP, CODES)                                      \
    NOTICE(notify_event, NOTIFY_EVENT, OP, STATUS, PROC, U8, VARIABLE_INFOS)                     \
    NOTICE(iof_pull, IOF_PULL, OP, PROCS, INFOS, U16)                                            \
    REQUEST(abort, ABORT, OP, PROC, SERVER_OBJECT, STATUS, TEXT, VARIABLE_PROCS)                 \
    REQUEST(fence_nb, FENCE, MODEX, PROCS, INFOS, OWNED_BYTES)                                   \
    REQUEST(direct_modex, DIRECT_MODEX, MODEX, PROC, INFOS)                                      \
    REQUEST(publish, PUBLISH, OP, PROC, INFOS)                                                   \
    REQUEST(lookup, LOOKUP, LOOKUP, PROC, TEXTS, INFOS)                                          \
    REQUEST(unpublish, UNPUBLISH, OP, PROC, TEXTS, INFOS)                                        \
    REQUEST(spawn, SPAWN, SPAWN, PROC, INFOS, APPS)                                              \
    REQUEST(connect, CONNECT, OP, PROCS, INFOS)                                                  \
    REQUEST(disconnect, DISCONNECT, OP, PROCS, INFOS)                                            \
    REQUEST(query, QUERY, INFO, VARIABLE_PROC, QUERIES)                                          \
    REQUEST(allocate, ALLOCATE, INFO, PROC, U8, INFOS)                                           \
    REQUEST(push_stdin, PUSH_STDIN, OP, PROC, PROCS, INFOS, BYTES)                               \
    REQUEST_WITHOUT_STATUS(log, LOG, OP, PROC, INFOS, INFOS)                                     \
    REQUEST_WITHOUT_STATUS(tool_connected, TOOL_CONNECTED, TOOL, VARIABLE_INFOS)

/* Sends a notice; libpmix needs no callback, unless the agent is gone. */
static pmix_status_t notice(struct out *o, uint16_t op)
{
    const pmix_status_t rc = link_notice(o, op);
    return rc == PMIX_SUCCESS ? PMIX_OPERATION_SUCCEEDED : rc;
}

UPCALLS(REQUEST, REQUEST_WITHOUT_STATUS, NOTICE)

/* Session control has a named type from 5.0 on, and clients can call it from 6.0 on. */
REQUEST(session_control, SESSION_CONTROL, INFO, PROC, U32, INFOS)

REQUEST(forward_job_control, JOB_CONTROL, INFO, PROC, PROCS, INFOS)

/*
 * Handles only the directives that are left for wireup: libpmix itself removes the files that a client
 * registers for removal after its end, and does not call then.
 */
static pmix_status_t upcall_job_control(const pmix_proc_t *requestor, const pmix_proc_t targets[],
                                        size_t ntargets, const pmix_info_t directives[],
                                        size_t ndirs, pmix_info_cbfunc_t cbfunc, void *cbdata)
{
    if (!keep_files(directives, ndirs)) {
        return PMIX_ERR_NOMEM;
    }
    return upcall_forward_job_control(requestor, targets, ntargets, directives, ndirs, cbfunc,
                                      cbdata);
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
static pmix_status_t upcall_group(pmix_group_operation_t op, char *id, const pmix_proc_t procs[],
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

void notice_of_spawn(const char *nspace, size_t len)
{
    struct out o;
    out_init(&o);
    put_text_upto(&o, nspace, len);
    /* Without a launcher there is no receiver. */
    (void)link_notice(&o, WIREUP_OP_SPAWNED);
}

/* ---- The module ---- */

#define SLOT(name, ...) .name = upcall_##name,

/*
 * libpmix copies as many bytes as its own version of the struct has, which may be more than we
 * were compiled with; and from 6.1 on slots after client_connected2 moved. So: zeroes behind, and
 * the slots after client_connected2 are filled in by the version.
 */
static union {
    pmix_server_module_t module;
    unsigned char room[2048];
} module = {
    .module =
        {
            UPCALLS(SLOT, SLOT, SLOT)
            .job_control = upcall_job_control,
            .get_credential = credential_get,
            .validate_credential = credential_validate,
            .group = upcall_group,
        },
};

_Static_assert(sizeof(pmix_server_module_t) + 4 * sizeof(void (*)(void)) < sizeof(module.room),
               "room for later versions");

pmix_server_module_t *wireup_module(uint32_t major, uint32_t minor)
{
    pmix_status_t (*const control)(const pmix_proc_t *, uint32_t, const pmix_info_t[], size_t,
                                   pmix_info_cbfunc_t, void *) = upcall_session_control;
    unsigned char *const behind =
        module.room + offsetof(pmix_server_module_t, client_connected2) + sizeof(control);
    /* From 6.1 on tool_connected2 and log2 come before these slots. */
    const size_t slot = major == 6 && minor == 0 ? 0 : 2;
    memset(behind, 0, (size_t)(module.room + sizeof(module.room) - behind));
    /* The positions in unknown versions are not known. */
    if (major == 6 || major == 7) {
        memcpy(behind + slot * sizeof(control), &control, sizeof(control));
    }
    return &module.module;
}
