/*
 * pmix_tool HOW WHICH [MODE [ARGUMENT...]]
 *
 * A PMIx tool. It attaches to the server whose launcher has the pid WHICH (HOW is "pid"), that of the job WHICH
 * ("nspace"), at the address WHICH ("uri"), of the file WHICH ("file"), or the only one there is ("session",
 * whatever WHICH is; "system-first", after it has looked for a system server), and says
 *     pmix_tool attached nspace=NSPACE rank=R server=NSPACE.RANK
 * "given" is "file" with the name WHICH of the tool and the file in the environment as TOOL_FILE.
 * An attempt that fails is printed as
 *     pmix_tool refused status=S
 * with exit code 3. Then it does this and leaves:
 *
 *   attach   nothing else
 *   look     for each job  pmix_tool job=NSPACE size=N status=S, and for each of its processes
 *            pmix_tool proc=NSPACE.RANK host=HOST program=PROGRAM pid=PID state=STATE
 *   stay     waits until standard input ends
 *   die      ends without a word to the server
 *   again    leaves, attaches once more and says so
 *   output N gets what ranks of the job TOOL_JOB print; says for each of N ranks and each stream once
 *            pmix_tool output rank=R channel=C text=TEXT
 *   release  waits until all ranks of the job in the environment as TOOL_JOB wait for a debugger, says
 *            pmix_tool ready=NSPACE at=BREAKPOINT, waits until standard input ends, and releases them
 */
#include "client.h"
#include <pmix.h>
#include <pmix_tool.h>

static const char *how, *which;

/* ---- attaching ---- */

static pmix_status_t attach(void)
{
    pmix_info_t info[3];
    size_t count = 1;
    if (strcmp(how, "pid") == 0) {
        const pid_t pid = (pid_t)atoi(which);
        PMIX_INFO_LOAD(&info[0], PMIX_SERVER_PIDINFO, &pid, PMIX_PID);
    } else if (strcmp(how, "nspace") == 0) {
        PMIX_INFO_LOAD(&info[0], PMIX_SERVER_NSPACE, which, PMIX_STRING);
    } else if (strcmp(how, "uri") == 0) {
        PMIX_INFO_LOAD(&info[0], PMIX_SERVER_URI, which, PMIX_STRING);
    } else if (strcmp(how, "file") == 0) {
        PMIX_INFO_LOAD(&info[0], PMIX_TOOL_ATTACHMENT_FILE, which, PMIX_STRING);
    } else if (strcmp(how, "given") == 0) {
        const pmix_rank_t rank = 0;
        const char *file = getenv("TOOL_FILE");
        PMIX_INFO_LOAD(&info[0], PMIX_TOOL_ATTACHMENT_FILE, file == NULL ? "" : file, PMIX_STRING);
        PMIX_INFO_LOAD(&info[1], PMIX_TOOL_NSPACE, which, PMIX_STRING);
        PMIX_INFO_LOAD(&info[2], PMIX_TOOL_RANK, &rank, PMIX_PROC_RANK);
        count = 3;
    } else if (strcmp(how, "system-first") == 0) {
        PMIX_INFO_LOAD(&info[0], PMIX_CONNECT_SYSTEM_FIRST, NULL, PMIX_BOOL);
    } else if (strcmp(how, "session") == 0) {
        count = 0;
    } else {
        fail(2, "pmix_tool: %s is no way to attach", how);
    }
    return PMIx_tool_init(&me, count == 0 ? NULL : info, count);
}

static void show(void)
{
    pmix_proc_t mine;
    pmix_value_t *nspace = NULL, *rank = NULL;
    PMIX_LOAD_PROCID(&mine, me.nspace, me.rank);
    pmix_status_t rc = PMIx_Get(&mine, PMIX_SERVER_NSPACE, NULL, 0, &nspace);
    if (rc == PMIX_SUCCESS)
        rc = PMIx_Get(&mine, PMIX_SERVER_RANK, NULL, 0, &rank);
    report("pmix_tool attached nspace=%s rank=%u server=%s.%d", me.nspace, me.rank,
           rc == PMIX_SUCCESS ? nspace->data.string : "?", rc == PMIX_SUCCESS ? (int)rank->data.rank : -1);
}

static void begin(void)
{
    const pmix_status_t rc = attach();
    if (rc != PMIX_SUCCESS) {
        report("pmix_tool refused status=%d", rc);
        exit(3);
    }
    show();
}

/* ---- looking ---- */

static pmix_info_t *results;
static size_t nresults;

/* The answer to one key, about one job if it is named. */
static const pmix_value_t *ask(const char *key, const char *nspace)
{
    pmix_query_t query;
    pmix_status_t rc;
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_ARGV_APPEND(rc, query.keys, key);
    must(rc, key);
    if (nspace != NULL) {
        PMIX_QUERY_QUALIFIERS_CREATE(&query, 1);
        PMIX_INFO_LOAD(&query.qualifiers[0], PMIX_NSPACE, nspace, PMIX_STRING);
    }
    must(PMIx_Query_info(&query, 1, &results, &nresults), key);
    for (size_t i = 0; i < nresults; i++)
        if (PMIX_CHECK_KEY(&results[i], key))
            return &results[i].value;
    end_with("no answer", key);
}

static void look(void)
{
    const pmix_value_t *names = ask(PMIX_QUERY_NAMESPACES, NULL);
    hold(names->type == PMIX_STRING, "names of jobs");
    char *list = strdup(names->data.string), *rest = NULL;
    for (char *job = strtok_r(list, ",", &rest); job != NULL; job = strtok_r(NULL, ",", &rest)) {
        const pmix_status_t status = ask(PMIX_QUERY_JOB_STATUS, job)->data.status;
        report("pmix_tool job=%s size=%u status=%d", job, size_of(job), status);
        const pmix_value_t *table = ask(PMIX_QUERY_PROC_TABLE, job);
        hold(table->type == PMIX_DATA_ARRAY && table->data.darray->type == PMIX_PROC_INFO, "a table");
        const pmix_proc_info_t *rows = table->data.darray->array;
        for (size_t i = 0; i < table->data.darray->size; i++)
            report("pmix_tool proc=%s.%u host=%s program=%s pid=%d state=%d", rows[i].proc.nspace,
                   rows[i].proc.rank, rows[i].hostname, rows[i].executable_name, (int)rows[i].pid,
                   rows[i].state);
    }
    free(list);
}

/* ---- the rest ---- */

static void nothing(void)
{
}

static void stay(void)
{
    while (getchar() != EOF) {
    }
}

static void die(void)
{
    _exit(0);
}

static void again(void)
{
    must(PMIx_tool_finalize(), "PMIx_tool_finalize");
    begin();
}

/* ---- ranks that wait ---- */

static char ready[600];

static void on_ready(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[],
                     size_t ninfo, pmix_info_t *others, size_t nothers,
                     pmix_event_notification_cbfunc_fn_t done, void *data)
{
    const char *at = "?", *job = source->nspace;
    (void)id;
    (void)code;
    (void)others;
    (void)nothers;
    for (size_t i = 0; i < ninfo; i++)
        if (PMIX_CHECK_KEY(&info[i], PMIX_BREAKPOINT) && info[i].value.type == PMIX_STRING)
            at = info[i].value.data.string;
        else if (PMIX_CHECK_KEY(&info[i], PMIX_NSPACE) && info[i].value.type == PMIX_STRING)
            job = info[i].value.data.string;
    char text[sizeof ready];
    snprintf(text, sizeof text, "ready=%s at=%s", job, at);
    CHANGE(memcpy(ready, text, sizeof ready));
    handled(done, data);
}

static void release(void)
{
    const char *job = getenv("TOOL_JOB");
    hold(job != NULL, "TOOL_JOB");
    listen_for(PMIX_READY_FOR_DEBUG, on_ready);
    WAIT_UNTIL(ready[0] != '\0');
    report("pmix_tool %s", ready);
    stay();
    pmix_proc_t all;
    pmix_info_t info[2];
    PMIX_LOAD_PROCID(&all, job, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&info[0], PMIX_EVENT_CUSTOM_RANGE, &all, PMIX_PROC);
    PMIX_INFO_LOAD(&info[1], PMIX_EVENT_NON_DEFAULT, NULL, PMIX_BOOL);
    must(await_answer(PMIx_Notify_event(PMIX_DEBUGGER_RELEASE, &me, PMIX_RANGE_CUSTOM, info, 2, on_answer,
                                        NULL)),
         "PMIx_Notify_event");
}

/* ---- output ---- */

enum { RANKS = 64 };

static int expected = 4;
static char printed[RANKS][2][64];
static int streams;

static void on_output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *bytes,
                      pmix_info_t info[], size_t ninfo)
{
    (void)id;
    (void)info;
    (void)ninfo;
    if (source->rank >= RANKS || bytes->size == 0)
        return;
    char *text = printed[source->rank][channel == PMIX_FWD_STDERR_CHANNEL];
    const size_t size = strcspn(bytes->bytes, "\n");
    CHANGE(if (text[0] == '\0') {
        snprintf(text, sizeof printed[0][0], "%.*s", (int)(size < bytes->size ? size : bytes->size),
                 bytes->bytes);
        streams++;
    });
}

static void output(void)
{
    const char *job = getenv("TOOL_JOB");
    hold(job != NULL, "TOOL_JOB");
    pmix_proc_t all;
    PMIX_LOAD_PROCID(&all, job, PMIX_RANK_WILDCARD);
    const pmix_status_t id = PMIx_IOF_pull(&all, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL,
                                           on_output, NULL, NULL);
    if (id < 0)
        must(id, "PMIx_IOF_pull");
    WAIT_UNTIL(streams >= 2 * expected);
    for (int rank = 0; rank < expected; rank++)
        for (int stream = 0; stream < 2; stream++)
            report("pmix_tool output rank=%d channel=%d text=%s", rank, stream + 1, printed[rank][stream]);
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {{"attach", nothing}, {"look", look}, {"stay", stay},
                                        {"die", die},        {"again", again}, {"release", release}, {"output", output}, {NULL, NULL}};
    const struct mode *mode = find_mode(modes, argc < 4 ? "attach" : argv[3]);
    if (argc < 3 || mode == NULL)
        fail(2, "pmix_tool HOW WHICH [MODE]");
    how = argv[1];
    which = argv[2];
    if (argc > 4)
        expected = atoi(argv[4]);
    begin();
    mode->run();
    PMIx_tool_finalize();
    return 0;
}
