/*
 * A small PMIx client. Usage: pmix_client MODE [BYTES]
 *
 *   exchange  put BYTES bytes, fence with data, get everyone's
 *   direct    put BYTES bytes, fence without data, get everyone's
 *   abort     rank 1 calls PMIx_Abort with status 7, the others wait in a fence
 *   log       write "hello from RANK" to the job's stderr
 *   query     ask for "wireup.test.answer", expect the string "42"
 *   event     rank 0 raises an event; everyone waits for it
 *   events N  say hello as "log" does, and leave when N events have come, even if the server is gone
 *   job KEY VALUE...
 *             each key of the job has this string
 *   linger    init, fence, then wait to be ended
 *   leave     rank 1 leaves after PMIx_Finalize; once it is gone, the others fence with it
 *   local     put for this node and for all, fence with data: what is for a node is found there alone
 *   late      as direct, with no fence between: the owner may publish late
 *   other NSPACE SIZE
 *             fence, and find out how many ranks that job has
 *   spawn COUNT
 *             rank 0 spawns COUNT ranks of mode "child"; all connect with them, get their bytes,
 *             disconnect
 *   child PARENT PARENTS
 *             the other side of it
 *   output    rank 0 asks for the others' output: "one" and "two" of rank 1 on stdout, then nothing,
 *             then "last" on stderr; then it asks for no more, and pushes "a", NUL, "b" and an end to
 *             rank 1
 *
 * Exit code 0 if everything was as expected; otherwise one line on stderr says what was not.
 */
#include "client.h"
#include <pmix.h>
#include <pmix_tool.h>
#include <signal.h>

static pmix_value_t *get(pmix_rank_t rank, const char *key)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    must(PMIx_Get(&proc, key, NULL, 0, &value), key);
    return value;
}

static char filling(pmix_rank_t rank)
{
    return (char)('a' + rank % 26);
}

static void put(size_t size)
{
    pmix_value_t value;
    pmix_byte_object_t blob = {malloc(size), size};
    memset(blob.bytes, filling(me.rank), size);
    PMIX_VALUE_LOAD(&value, &blob, PMIX_BYTE_OBJECT);
    must(PMIx_Put(PMIX_GLOBAL, "wireup.test.blob", &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");
    PMIX_VALUE_DESTRUCT(&value);
    free(blob.bytes);
}

static void get_all(uint32_t size, size_t bytes)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        pmix_value_t *value = get(rank, "wireup.test.blob");
        hold(value->type == PMIX_BYTE_OBJECT && value->data.bo.size == bytes, "size of the blob");
        for (size_t i = 0; i < bytes; i++) {
            hold(value->data.bo.bytes[i] == filling(rank), "content of the blob");
        }
        PMIX_VALUE_RELEASE(value);
    }
}

static void local(uint32_t size, size_t bytes)
{
    pmix_value_t value, *own = get(me.rank, PMIX_HOSTNAME);
    PMIX_VALUE_LOAD(&value, &me.rank, PMIX_UINT32);
    must(PMIx_Put(PMIX_LOCAL, "wireup.test.local", &value), "PMIx_Put for this node");
    put(bytes);
    fence(true);
    get_all(size, bytes);
    for (uint32_t rank = 0; rank < size; rank++) {
        pmix_proc_t proc;
        pmix_value_t *node = get(rank, PMIX_HOSTNAME), *found = NULL;
        PMIX_LOAD_PROCID(&proc, me.nspace, rank);
        const pmix_status_t status = PMIx_Get(&proc, "wireup.test.local", NULL, 0, &found);
        if (strcmp(node->data.string, own->data.string) == 0) {
            must(status, "what a rank of this node put for it");
            hold(found->data.uint32 == rank, "its value");
            PMIX_VALUE_RELEASE(found);
        } else {
            hold(status == PMIX_ERR_NOT_FOUND, "what is for another node is not found");
        }
        PMIX_VALUE_RELEASE(node);
    }
    PMIX_VALUE_RELEASE(own);
    fence(false);
}

/* What the launcher told about the job must agree with itself. */
static void check_job(uint32_t size)
{
    pmix_value_t *peers = get(PMIX_RANK_WILDCARD, PMIX_LOCAL_PEERS);
    pmix_value_t *local = get(PMIX_RANK_WILDCARD, PMIX_LOCAL_SIZE);
    uint32_t commas = 0;
    for (const char *c = peers->data.string; *c != '\0'; c++) {
        commas += *c == ',';
    }
    hold(local->data.uint32 == commas + 1, "local size and local peers");
    PMIX_VALUE_RELEASE(peers);
    PMIX_VALUE_RELEASE(local);
    /* A large job of one program is described by maps, which do not have its number. */
    const int listed = size <= 8192;
    uint32_t appnum = 0;
    for (uint32_t rank = 0; rank < size; rank += listed ? 1 : size - 1) {
        pmix_value_t *host = get(rank, PMIX_HOSTNAME);
        hold(host->type == PMIX_STRING && host->data.string[0] != '\0', "host name");
        PMIX_VALUE_RELEASE(host);
        if (listed) {
            pmix_value_t *app = get(rank, PMIX_APPNUM);
            hold(app->data.uint32 >= appnum, "appnum in rank order");
            appnum = app->data.uint32;
            PMIX_VALUE_RELEASE(app);
        }
    }
    pmix_value_t *lrank = get(me.rank, PMIX_LOCAL_RANK);
    hold(lrank->type == PMIX_UINT16 && lrank->data.uint16 <= commas, "local rank");
    PMIX_VALUE_RELEASE(lrank);
}

static void log_hello(void)
{
    char text[64];
    snprintf(text, sizeof(text), "hello from %u\n", me.rank);
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, PMIX_LOG_STDERR, text, PMIX_STRING);
    must(PMIx_Log(&info, 1, NULL, 0), "PMIx_Log");
    PMIX_INFO_DESTRUCT(&info);
}

static void query(void)
{
    pmix_query_t query;
    pmix_info_t *results = NULL;
    size_t count = 0;
    char *keys[] = {"wireup.test.answer", NULL};
    memset(&query, 0, sizeof(query));
    query.keys = keys;
    must(PMIx_Query_info(&query, 1, &results, &count), "PMIx_Query_info");
    hold(count == 1, "one result");
    const pmix_value_t *value = &results[0].value;
    /* Some versions wrap the results of one query. */
    if (value->type == PMIX_DATA_ARRAY) {
        value = &((pmix_info_t *)value->data.darray->array)[0].value;
    }
    hold(value->type == PMIX_STRING && strcmp(value->data.string, "42") == 0, "the answer");
    PMIX_INFO_FREE(results, count);
}

static int events;

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                     size_t ninfo, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)status, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults;
    CHANGE(events++);
    handled(done, data);
}

static void event(void)
{
    pmix_status_t code = -3333;
    listen_for(code, on_event);
    fence(false);
    if (me.rank == 0) {
        must(PMIx_Notify_event(code, &me, PMIX_RANGE_SESSION, NULL, 0, NULL, NULL),
                   "PMIx_Notify_event");
    }
    WAIT_UNTIL(events > 0);
    fence(false);
}

static void many_events(size_t count)
{
    listen_for(-3333, on_event);
    log_hello();
    WAIT_UNTIL((size_t)events >= count);
    _exit(0);
}

/* Returns when the process of rank 1 is gone, on the same machine. */
static void await_end_of_one(void)
{
    pmix_value_t *pid = get(1, "wireup.test.pid");
    hold(pid->type == PMIX_PID && pid->data.pid > 1, "a process id");
    while (kill(pid->data.pid, 0) == 0 || errno != ESRCH) {
        usleep(1000);
    }
    PMIX_VALUE_RELEASE(pid);
}

static void leave(void)
{
    pmix_value_t value;
    pid_t pid = getpid();
    PMIX_VALUE_LOAD(&value, &pid, PMIX_PID);
    must(PMIx_Put(PMIX_GLOBAL, "wireup.test.pid", &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");
    fence(true);
    if (me.rank != 1) {
        await_end_of_one();
        fence(false);
    }
}

static void other(const char *nspace, uint32_t size)
{
    fence(true);
    hold(size_of(nspace) == size, "size of the other job");
    fence(false);
}

/* Meets all of another job, gets their bytes, and parts from them. */
static void meet(const char *nspace, uint32_t size, size_t bytes)
{
    pmix_proc_t procs[2];
    PMIX_LOAD_PROCID(&procs[0], me.nspace, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&procs[1], nspace, PMIX_RANK_WILDCARD);
    must(PMIx_Connect(procs, 2, NULL, 0), "PMIx_Connect");
    hold(size_of(nspace) == size, "size of the other job");
    for (uint32_t rank = 0; rank < size; rank++) {
        pmix_proc_t proc;
        pmix_value_t *value = NULL;
        PMIX_LOAD_PROCID(&proc, nspace, rank);
        must(PMIx_Get(&proc, "wireup.test.blob", NULL, 0, &value), "the other job's blob");
        hold(value->type == PMIX_BYTE_OBJECT && value->data.bo.size == bytes, "size of the blob");
        hold(value->data.bo.bytes[0] == filling(rank), "content of the blob");
        PMIX_VALUE_RELEASE(value);
    }
    must(PMIx_Disconnect(procs, 2, NULL, 0), "PMIx_Disconnect");
}

static void spawn(const char *program, uint32_t size, uint32_t count, size_t bytes)
{
    pmix_value_t value;
    char child[PMIX_MAX_NSLEN + 1] = "";
    put(bytes);
    if (me.rank == 0) {
        char parents[16];
        snprintf(parents, sizeof(parents), "%u", size);
        char *argv[] = {(char *)program, "child", me.nspace, parents, NULL};
        char *env[] = {"WIREUP_TEST=a=b", NULL};
        pmix_app_t app;
        pmix_info_t info;
        bool yes = true;
        memset(&app, 0, sizeof(app));
        app.cmd = (char *)program;
        app.argv = argv;
        app.env = env;
        app.cwd = "/";
        app.maxprocs = (int)count;
        /* So that libpmix notes whom it shall forward to. */
        PMIX_INFO_LOAD(&info, PMIX_FWD_STDOUT, &yes, PMIX_BOOL);
        must(PMIx_Spawn(&info, 1, &app, 1, child), "PMIx_Spawn");
        PMIX_VALUE_LOAD(&value, child, PMIX_STRING);
        must(PMIx_Put(PMIX_GLOBAL, "wireup.test.child", &value), "PMIx_Put");
        must(PMIx_Commit(), "PMIx_Commit");
        PMIX_VALUE_DESTRUCT(&value);
    }
    fence(true);
    pmix_value_t *named = get(0, "wireup.test.child");
    hold(named->type == PMIX_STRING && named->data.string[0] != '\0', "name of the new job");
    meet(named->data.string, count, bytes);
    PMIX_VALUE_RELEASE(named);
}

static char printed[2][64];
static size_t lengths[2], ends;

static void on_output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source,
                      pmix_byte_object_t *bytes, pmix_info_t info[], size_t ninfo)
{
    (void)id, (void)info, (void)ninfo;
    const int which = channel == PMIX_FWD_STDERR_CHANNEL;
    hold(which || channel == PMIX_FWD_STDOUT_CHANNEL, "one channel");
    hold(source->rank == 1 && strcmp(source->nspace, me.nspace) == 0, "output of rank 1");
    pthread_mutex_lock(&lock);
    hold(lengths[which] + bytes->size < sizeof(printed[which]), "little output");
    if (bytes->size > 0) {
        memcpy(printed[which] + lengths[which], bytes->bytes, bytes->size);
    }
    lengths[which] += bytes->size;
    ends += bytes->size == 0;
    events += which;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

/* Without callbacks libpmix 4.2.2 and 5.0.11 free twice what they waited with. */
static pmix_status_t push(const pmix_proc_t *target, pmix_byte_object_t *bytes)
{
    return await_answer(PMIx_IOF_push(target, 1, bytes, NULL, 0, on_answer, NULL));
}

static void output(void)
{
    if (me.rank == 0) {
        pmix_proc_t target;
        PMIX_LOAD_PROCID(&target, me.nspace, PMIX_RANK_WILDCARD);
        const pmix_status_t id =
            PMIx_IOF_pull(&target, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL,
                          on_output, NULL, NULL);
        must(id < 0 ? id : PMIX_SUCCESS, "PMIx_IOF_pull");
        WAIT_UNTIL(events > 0);
        hold(strcmp(printed[0], "onetwo") == 0 && strcmp(printed[1], "last") == 0, "the output");
        hold(ends == 1, "one end");
        const pmix_status_t rc = PMIx_IOF_deregister((size_t)id, NULL, 0, on_answer, NULL);
        must(rc, "PMIx_IOF_deregister");
        /* libpmix's server up to 5.0.11 answers with a status that it never set. */
        (void)await_answer(rc);
        target.rank = 1;
        pmix_byte_object_t input = {"a\0b", 3};
        must(push(&target, &input), "PMIx_IOF_push");
        pmix_byte_object_t end = {NULL, 0};
        hold(push(&target, &end) == PMIX_ERR_NOT_SUPPORTED, "a refusal comes back");
    }
    fence(false);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const uint32_t size = size_of(me.nspace);
    check_job(size);
    if (strcmp(mode, "exchange") == 0) {
        put(bytes);
        fence(true);
        get_all(size, bytes);
    } else if (strcmp(mode, "direct") == 0) {
        put(bytes);
        fence(false);
        get_all(size, bytes);
    } else if (strcmp(mode, "local") == 0) {
        local(size, bytes);
    } else if (strcmp(mode, "late") == 0) {
        put(bytes);
        get_all(size, bytes);
        fence(false);
    } else if (strcmp(mode, "abort") == 0) {
        if (me.rank == 1) {
            PMIx_Abort(7, "told to", NULL, 0);
            _exit(7);
        }
        fence(false);
    } else if (strcmp(mode, "log") == 0) {
        log_hello();
    } else if (strcmp(mode, "query") == 0) {
        query();
    } else if (strcmp(mode, "event") == 0) {
        event();
    } else if (strcmp(mode, "events") == 0) {
        many_events(bytes);
    } else if (strcmp(mode, "leave") == 0) {
        leave();
    } else if (strcmp(mode, "other") == 0 && argc == 4) {
        other(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    } else if (strcmp(mode, "job") == 0) {
        for (int i = 2; i + 1 < argc; i += 2) {
            pmix_value_t *value = get(PMIX_RANK_WILDCARD, argv[i]);
            hold(value->type == PMIX_STRING && strcmp(value->data.string, argv[i + 1]) == 0, argv[i]);
            PMIX_VALUE_RELEASE(value);
        }
    } else if (strcmp(mode, "spawn") == 0) {
        spawn(argv[0], size, (uint32_t)bytes, 1000);
    } else if (strcmp(mode, "output") == 0) {
        output();
    } else if (strcmp(mode, "child") == 0 && argc == 4) {
        put(1000);
        meet(argv[2], (uint32_t)strtoul(argv[3], NULL, 10), 1000);
    } else if (strcmp(mode, "linger") == 0) {
        fence(false);
        for (;;) {
            pause();
        }
    } else {
        hold(false, "a known mode");
    }
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
