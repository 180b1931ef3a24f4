/* What the tests feed in: one info of every type; and stand-ins for the functions of
 * libpmix that the shim calls, so that sanitizers see nothing but our code. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

pmix_proc_t proc_of(const char *nspace, pmix_rank_t rank)
{
    pmix_proc_t proc;
    memset(&proc, 0, sizeof(proc));
    strncpy(proc.nspace, nspace, PMIX_MAX_NSLEN);
    proc.rank = rank;
    return proc;
}

static pmix_info_t infos[48];
static size_t used;

static pmix_value_t *add(const char *key, pmix_data_type_t type)
{
    CHECK(used < sizeof(infos) / sizeof(infos[0]));
    pmix_info_t *info = &infos[used++];
    memset(info, 0, sizeof(*info));
    strncpy(info->key, key, PMIX_MAX_KEYLEN);
    info->value.type = type;
    return &info->value;
}

static void add_array(const char *key, pmix_data_type_t type, void *items, size_t count)
{
    static pmix_data_array_t arrays[8];
    static size_t arrays_used;
    pmix_data_array_t *array = &arrays[arrays_used++];
    *array = (pmix_data_array_t){.type = type, .size = count, .array = items};
    add(key, PMIX_DATA_ARRAY)->data.darray = array;
}

pmix_info_t *all_kinds(size_t *count)
{
    static pmix_proc_t proc;
    static pmix_proc_info_t proc_info;
    static pmix_device_distance_t distance;
    static pmix_info_t inner[2];
    static uint32_t numbers[] = {1, 2, 0xfffffffe};
    static char *texts[] = {"one", ""};
    static pmix_proc_t procs[2];
    if (used > 0) {
        *count = used;
        return infos;
    }
    proc = proc_of("job-1", 3);
    procs[0] = proc;
    procs[1] = proc_of("", PMIX_RANK_WILDCARD);
    add("undef", PMIX_UNDEF);
    add("bool", PMIX_BOOL)->data.flag = true;
    infos[used - 1].flags = PMIX_INFO_REQD;
    add("byte", PMIX_BYTE)->data.byte = 0xfe;
    add("string", PMIX_STRING)->data.string = "caf\xc3\xa9 \xff";
    add("size", PMIX_SIZE)->data.size = 0x123456789abcdef0;
    add("pid", PMIX_PID)->data.pid = 4711;
    add("int", PMIX_INT)->data.integer = -5;
    add("int8", PMIX_INT8)->data.int8 = -8;
    add("int16", PMIX_INT16)->data.int16 = -16000;
    add("int32", PMIX_INT32)->data.int32 = -32000000;
    add("int64", PMIX_INT64)->data.int64 = INT64_MIN;
    add("uint", PMIX_UINT)->data.uint = 4000000000;
    add("uint8", PMIX_UINT8)->data.uint8 = 200;
    add("uint16", PMIX_UINT16)->data.uint16 = 60000;
    add("uint32", PMIX_UINT32)->data.uint32 = 0xdeadbeef;
    add("uint64", PMIX_UINT64)->data.uint64 = UINT64_MAX;
    add("float", PMIX_FLOAT)->data.fval = 1.5f;
    add("double", PMIX_DOUBLE)->data.dval = -0.1;
    add("timeval", PMIX_TIMEVAL)->data.tv = (struct timeval){.tv_sec = -1, .tv_usec = 999999};
    add("time", PMIX_TIME)->data.time = 1700000000;
    add("status", PMIX_STATUS)->data.status = PMIX_ERR_NOT_FOUND;
    add("proc", PMIX_PROC)->data.proc = &proc;
    add("rank", PMIX_PROC_RANK)->data.rank = PMIX_RANK_UNDEF;
    add("bytes", PMIX_BYTE_OBJECT)->data.bo = (pmix_byte_object_t){.bytes = "a\0b", .size = 3};
    add("envar", PMIX_ENVAR)->data.envar =
        (pmix_envar_t){.envar = "PATH", .value = "/bin", .separator = ':'};
    add("range", PMIX_DATA_RANGE)->data.range = PMIX_RANGE_SESSION;
    add("persistence", PMIX_PERSIST)->data.persist = PMIX_PERSIST_APP;
    add("scope", PMIX_SCOPE)->data.scope = PMIX_GLOBAL;
    add("state", PMIX_PROC_STATE)->data.state = PMIX_PROC_STATE_RUNNING;
    proc_info = (pmix_proc_info_t){.proc = proc, .hostname = "alpha", .executable_name = NULL,
                                   .pid = 12, .exit_code = -1, .state = PMIX_PROC_STATE_ERROR};
    add("proc_info", PMIX_PROC_INFO)->data.pinfo = &proc_info;
    distance = (pmix_device_distance_t){.uuid = "gpu://alpha::0000:17:00.0", .osname = NULL,
                                        .type = PMIX_DEVTYPE_GPU, .mindist = 100, .maxdist = 65535};
    add("distance", PMIX_DEVICE_DIST)->data.devdist = &distance;
    add("regex", PMIX_REGEX)->data.bo = (pmix_byte_object_t){.bytes = "blob:\0x", .size = 7};
    strncpy(inner[0].key, "inner", PMIX_MAX_KEYLEN);
    inner[0].value.type = PMIX_UINT16;
    inner[0].value.data.uint16 = 7;
    strncpy(inner[1].key, "flag", PMIX_MAX_KEYLEN);
    inner[1].value.type = PMIX_BOOL;
    add_array("infos", PMIX_INFO, inner, 2);
    add_array("numbers", PMIX_UINT32, numbers, 3);
    add_array("texts", PMIX_STRING, texts, 2);
    add_array("procs", PMIX_PROC, procs, 2);
    *count = used;
    return infos;
}

pmix_notification_fn_t alert_handler, loss_handler;

pmix_status_t PMIx_Register_event_handler(pmix_status_t codes[], size_t ncodes, pmix_info_t info[],
                                          size_t ninfo, pmix_notification_fn_t handler,
                                          pmix_hdlr_reg_cbfunc_t done, void *data)
{
    (void)info;
    (void)data;
    CHECK(ninfo == 0 && done == NULL);
    if (ncodes == 1) {
        CHECK(codes[0] == PMIX_ERR_LOST_CONNECTION);
        loss_handler = handler;
        return 8;
    }
    CHECK(ncodes == 2 && codes[0] == PMIX_MONITOR_HEARTBEAT_ALERT && codes[1] == PMIX_MONITOR_FILE_ALERT);
    alert_handler = handler;
    return 7;
}

/* Of a server whose launcher a tool has started. */
pmix_status_t PMIx_Get(const pmix_proc_t *proc, const char key[], const pmix_info_t info[], size_t ninfo,
                       pmix_value_t **value)
{
    static pmix_proc_t own = {"tool:1", 0}, tool = {"tool", 0};
    static pmix_info_t directive = {.key = PMIX_DEBUG_STOP_IN_INIT, .value = {.type = PMIX_BOOL, .data = {true}}};
    static pmix_data_array_t directives = {PMIX_INFO, 1, &directive};
    static pmix_value_t answer;
    *value = &answer;
    if (strcmp(key, PMIX_PROCID) == 0) {
        CHECK(proc == NULL);
        answer.type = PMIX_PROC;
        answer.data.proc = &own;
        return PMIX_SUCCESS;
    }
    CHECK(strcmp(proc->nspace, own.nspace) == 0 && proc->rank == PMIX_RANK_WILDCARD);
    if (strcmp(key, PMIX_PARENT_ID) == 0) {
        answer.type = PMIX_PROC;
        answer.data.proc = &tool;
        return PMIX_SUCCESS;
    }
    CHECK(strcmp(key, PMIX_LAUNCH_DIRECTIVES) == 0 && ninfo == 1 && info->value.data.flag);
    answer.type = PMIX_DATA_ARRAY;
    answer.data.darray = &directives;
    return PMIX_SUCCESS;
}

/* libpmix's own thread, as far as the shim can tell. */
pthread_t libpmix_thread;

struct errand {
    pmix_op_cbfunc_t done;
    void *data;
};

static void *call_back(void *data)
{
    const struct errand *errand = data;
    libpmix_thread = pthread_self();
    errand->done(PMIX_SUCCESS, errand->data);
    return NULL;
}

void PMIx_server_deregister_client(const pmix_proc_t *proc, pmix_op_cbfunc_t done, void *data)
{
    CHECK(strcmp(proc->nspace, "wireup-answered") == 0 && proc->rank == 0);
    struct errand errand = {done, data};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_back, &errand) == 0);
    pthread_join(thread, NULL);
}

pmix_status_t PMIx_generate_regex(const char *input, char **regex)
{
    *regex = NULL;
    if (strstr(input, "bad") != NULL) {
        return PMIX_ERR_BAD_PARAM;
    }
    return asprintf(regex, "N[%s]", input) < 0 ? PMIX_ERR_NOMEM : PMIX_SUCCESS;
}

pmix_status_t PMIx_generate_ppn(const char *input, char **ppn)
{
    return asprintf(ppn, "P[%s]", input) < 0 ? PMIX_ERR_NOMEM : PMIX_SUCCESS;
}

pmix_status_t PMIx_Value_load(pmix_value_t *value, const void *data, pmix_data_type_t type)
{
    CHECK(type == PMIX_REGEX);
    value->type = type;
    value->data.bo.bytes = strdup(data);
    value->data.bo.size = strlen(data) + 1;
    return PMIX_SUCCESS;
}
