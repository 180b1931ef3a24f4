/*
 * pmix_debugger FILE
 * pmix_debugger launch [KEY[=VALUE]]... -- LAUNCHER [ARGUMENT]...
 *
 * A PMIx tool as debuggers are: it attaches to the server of the file, or starts a launcher that it directs
 * with these infos and attaches to that one's server. It says
 *     pmix_debugger attached nspace=NSPACE
 * and does what its standard input says, a line at a time, until that ends:
 *
 *   spawn [KEY[=VALUE]]... -- [INFO]... COUNT PROGRAM [ARGUMENT]...
 *       spawns a job, or several programs of one with ` ++ ` between them, with these infos; what the job
 *       prints comes out here, unless KEY is `quiet`. A PROGRAM `sh:` is a shell whose script is the rest. Says
 *           pmix_debugger spawned=NSPACE, or  pmix_debugger refused status=S
 *   release NSPACE [RANK]     lets processes go on that wait in PMIx
 *   table NSPACE              pmix_debugger local=NSPACE.RANK pid=PID  for each process of the job on this node
 *   ask KEY                   pmix_debugger KEY=VALUE, a string
 *   pull NSPACE [RANK [KEY=VALUE]...], stop
 *                             asks for output of a job, says  pmix_debugger got rank=R channel=C text=TEXT  for each
 *                             piece; wants no more of it
 *   count NSPACE RANK         asks for a process's output; says  pmix_debugger counted rank=R bytes=N  at its end
 *   push NSPACE RANK TEXT     has a line of input for a rank; says  pmix_debugger pushed status=S
 *   end NSPACE RANK           that was all of it
 *   control NSPACE RANK KEY [NUMBER]
 *                             a directive of PMIx_Job_control, true or with that number; says
 *                             pmix_debugger control=KEY status=S
 *   abort NSPACE RANK         PMIx_Abort of these; says  pmix_debugger abort status=S
 *   go                        lets the launcher launch
 *   hang                      does not return from the callback of the next output
 *
 * It says what it hears:
 *     pmix_debugger ended=NSPACE status=S code=C proc=NSPACE.RANK
 *     pmix_debugger ready=NSPACE at=BREAKPOINT proc=NSPACE.RANK
 *     pmix_debugger launched=NSPACE, waits          of the launcher
 *     pmix_debugger lost                            its server is gone
 */
#include "client.h"
#include <pmix.h>
#include <pmix_tool.h>
#include <signal.h>

enum { MOST = 32 };

/* ---- events ---- */

static const pmix_info_t *find(const pmix_info_t info[], size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&info[i], key))
            return &info[i];
    return NULL;
}

static void about(char *text, size_t room, const pmix_info_t info[], size_t count)
{
    const pmix_info_t *proc = find(info, count, PMIX_EVENT_AFFECTED_PROC);
    if (proc == NULL || proc->value.type != PMIX_PROC)
        snprintf(text, room, "none");
    else
        snprintf(text, room, "%s.%d", proc->value.data.proc->nspace, (int)proc->value.data.proc->rank);
}

static void on_end(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t count,
                   pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)code, (void)others, (void)nothers;
    char proc[PMIX_MAX_NSLEN + 16];
    const pmix_info_t *status = find(info, count, PMIX_JOB_TERM_STATUS);
    const pmix_info_t *exit_code = find(info, count, PMIX_EXIT_CODE);
    about(proc, sizeof proc, info, count);
    report("pmix_debugger ended=%s status=%d code=%d proc=%s", source->nspace,
           status == NULL ? 1 : status->value.data.status,
           exit_code == NULL ? -1 : exit_code->value.data.integer, proc);
    handled(done, data);
}

static void on_ready(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t count,
                     pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)code, (void)others, (void)nothers, (void)source;
    char proc[PMIX_MAX_NSLEN + 16];
    const pmix_info_t *at = find(info, count, PMIX_BREAKPOINT);
    const pmix_info_t *job = find(info, count, PMIX_NSPACE);
    about(proc, sizeof proc, info, count);
    report("pmix_debugger ready=%s at=%s proc=%s", job == NULL ? "?" : job->value.data.string,
           at == NULL ? "?" : at->value.data.string, proc);
    handled(done, data);
}

static void on_launch(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t count,
                      pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)others, (void)nothers, (void)source;
    const pmix_info_t *job = find(info, count, PMIX_NSPACE);
    if (code == PMIX_LAUNCHER_READY)
        report("pmix_debugger waits");
    else
        report("pmix_debugger launched=%s", job == NULL ? "?" : job->value.data.string);
    handled(done, data);
}

static void on_loss(size_t id, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[], size_t count,
                    pmix_info_t *others, size_t nothers, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void)id, (void)code, (void)others, (void)nothers, (void)source, (void)info, (void)count;
    report("pmix_debugger lost");
    handled(done, data);
}

/* ---- spawns ---- */

static pmix_proc_t targets[MOST];
static size_t ntargets;

/* KEY, KEY=TEXT, KEY=#NUMBER (16 bits), KEY=%NUMBER (32 bits), KEY=NSPACE:RANK for a process (-2: all). */
static void load(pmix_info_t *info, char *word)
{
    char *value = strchr(word, '=');
    if (value == NULL) {
        PMIX_INFO_LOAD(info, word, NULL, PMIX_BOOL);
        return;
    }
    *value++ = '\0';
    char *colon = strrchr(value, ':');
    if (*value == '#') {
        const uint16_t number = (uint16_t)atoi(value + 1);
        PMIX_INFO_LOAD(info, word, &number, PMIX_UINT16);
    } else if (*value == '%') {
        const uint32_t number = (uint32_t)atoi(value + 1);
        PMIX_INFO_LOAD(info, word, &number, PMIX_UINT32);
    } else if (*value == '@') {
        const pmix_rank_t rank = (pmix_rank_t)atoi(value + 1);
        PMIX_INFO_LOAD(info, word, &rank, PMIX_PROC_RANK);
    } else if (strncmp(word, "pmix.dbg.tgt", 12) == 0 && colon != NULL) {
        *colon = '\0';
        pmix_proc_t *proc = &targets[ntargets++ % MOST];
        PMIX_LOAD_PROCID(proc, value, (pmix_rank_t)atoi(colon + 1));
        PMIX_INFO_LOAD(info, word, proc, PMIX_PROC);
    } else {
        PMIX_INFO_LOAD(info, word, value, PMIX_STRING);
    }
}

static void spawn(char *rest)
{
    pmix_info_t infos[MOST], own[4][8];
    pmix_app_t apps[4];
    char *argv[4][MOST], cwd[4096];
    size_t ninfos = 0, napps = 0;
    bool quiet = false;
    char *word;
    while ((word = strsep(&rest, " ")) != NULL && strcmp(word, "--") != 0) {
        if (strcmp(word, "quiet") == 0)
            quiet = true;
        else if (*word != '\0')
            load(&infos[ninfos++], word);
    }
    if (!quiet) {
        PMIX_INFO_LOAD(&infos[ninfos], PMIX_FWD_STDOUT, NULL, PMIX_BOOL);
        ninfos++;
        PMIX_INFO_LOAD(&infos[ninfos], PMIX_FWD_STDERR, NULL, PMIX_BOOL);
        ninfos++;
    }
    hold(getcwd(cwd, sizeof cwd) != NULL, "a working directory");
    while (rest != NULL && napps < 4) {
        pmix_app_t *app = &apps[napps];
        size_t argc = 0, ninfo = 0;
        PMIX_APP_CONSTRUCT(app);
        while ((word = strsep(&rest, " ")) != NULL && strchr("-0123456789", *word) == NULL)
            load(&own[napps][ninfo++], word);
        hold(word != NULL, "a number of processes");
        app->maxprocs = atoi(word);
        while ((word = strsep(&rest, " ")) != NULL && strcmp(word, "++") != 0 && argc < MOST - 3) {
            if (strcmp(word, "sh:") == 0) {
                argv[napps][argc++] = "sh";
                argv[napps][argc++] = "-c";
                argv[napps][argc++] = rest;
                rest = NULL;
            } else {
                argv[napps][argc++] = word;
            }
        }
        argv[napps][argc] = NULL;
        app->cmd = argv[napps][0];
        app->argv = argv[napps];
        app->cwd = cwd;
        app->info = ninfo == 0 ? NULL : own[napps];
        app->ninfo = ninfo;
        napps++;
    }
    pmix_nspace_t nspace;
    const pmix_status_t rc = PMIx_Spawn(infos, ninfos, apps, napps, nspace);
    if (rc == PMIX_SUCCESS)
        report("pmix_debugger spawned=%s", nspace);
    else
        report("pmix_debugger refused status=%d", rc);
}

/* ---- launchers ---- */

static pmix_proc_t launcher;

/* The first infos are those of the tool itself. */
static void launch(char **argv)
{
    pmix_info_t info[3], infos[MOST];
    pmix_app_t app;
    pmix_value_t *value;
    char **variables = NULL, uri[512], cwd[4096];
    size_t count = 0;
    pmix_status_t rc;
    const int seconds = 20;
    PMIX_INFO_LOAD(&info[0], PMIX_TOOL_DO_NOT_CONNECT, NULL, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_LAUNCHER, NULL, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[2], PMIX_IOF_LOCAL_OUTPUT, NULL, PMIX_BOOL);
    must(PMIx_tool_init(&me, info, 3), "PMIx_tool_init");
    must(PMIx_Get(&me, PMIX_MYSERVER_URI, NULL, 0, &value), PMIX_MYSERVER_URI);
    snprintf(uri, sizeof uri, "%s=%s", PMIX_LAUNCHER_RNDZ_URI, value->data.string);
    for (; strcmp(*argv, "--") != 0; argv++)
        load(&infos[count++], *argv);
    pmix_data_array_t directives = {.type = PMIX_INFO, .size = count, .array = infos};
    PMIX_INFO_LOAD(&info[0], PMIX_LAUNCH_DIRECTIVES, &directives, PMIX_DATA_ARRAY);
    PMIX_APP_CONSTRUCT(&app);
    PMIX_ARGV_APPEND(rc, variables, uri);
    must(rc, uri);
    hold(getcwd(cwd, sizeof cwd) != NULL, "a working directory");
    /* libpmix frees the name of a program that it finds elsewhere. */
    app.cmd = strdup(argv[1]);
    while (*++argv != NULL) {
        PMIX_ARGV_APPEND(rc, app.argv, *argv);
        must(rc, *argv);
    }
    app.env = variables;
    app.cwd = cwd;
    app.maxprocs = 1;
    must(PMIx_Spawn(info, 1, &app, 1, launcher.nspace), "PMIx_Spawn");
    PMIX_INFO_LOAD(&info[0], PMIX_WAIT_FOR_CONNECTION, NULL, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    must(PMIx_tool_set_server(&launcher, info, 2), "PMIx_tool_set_server");
}

/* ---- the rest ---- */

static pmix_proc_t named(char **rest, bool with_rank)
{
    pmix_proc_t proc;
    const char *nspace = strsep(rest, " ");
    const char *rank = with_rank ? strsep(rest, " ") : NULL;
    hold(nspace != NULL, "the name of a job");
    PMIX_LOAD_PROCID(&proc, nspace, rank == NULL ? PMIX_RANK_WILDCARD : (pmix_rank_t)atoi(rank));
    return proc;
}

static void release(pmix_proc_t which)
{
    pmix_info_t info[2];
    PMIX_INFO_LOAD(&info[0], PMIX_EVENT_CUSTOM_RANGE, &which, PMIX_PROC);
    PMIX_INFO_LOAD(&info[1], PMIX_EVENT_NON_DEFAULT, NULL, PMIX_BOOL);
    must(await_answer(PMIx_Notify_event(PMIX_DEBUGGER_RELEASE, &me, PMIX_RANGE_CUSTOM, info, 2, on_answer,
                                        NULL)),
         "PMIx_Notify_event");
}

static const pmix_value_t *ask(const char *key, const char *nspace)
{
    static pmix_info_t *results;
    size_t nresults;
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
    hold(nresults == 1, key);
    return &results[0].value;
}

static void table(char *rest)
{
    const pmix_value_t *rows = ask(PMIX_QUERY_LOCAL_PROC_TABLE, named(&rest, false).nspace);
    hold(rows->type == PMIX_DATA_ARRAY && rows->data.darray->type == PMIX_PROC_INFO, "a table");
    const pmix_proc_info_t *row = rows->data.darray->array;
    for (size_t i = 0; i < rows->data.darray->size; i++)
        report("pmix_debugger local=%s.%u pid=%d", row[i].proc.nspace, row[i].proc.rank, (int)row[i].pid);
}

static size_t subscription;
static volatile bool hangs;

static void on_output(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *bytes,
                      pmix_info_t info[], size_t ninfo)
{
    (void)id, (void)info, (void)ninfo;
    if (hangs)
        wait_for_the_end();
    const size_t size = bytes->size > 0 && bytes->bytes[bytes->size - 1] == '\n' ? bytes->size - 1 : bytes->size;
    report("pmix_debugger got rank=%u channel=%d text=%.*s", source->rank, (int)channel, (int)size,
           bytes->size == 0 ? "" : bytes->bytes);
}

static size_t counted;

static void on_counted(size_t id, pmix_iof_channel_t channel, pmix_proc_t *source, pmix_byte_object_t *bytes,
                       pmix_info_t info[], size_t ninfo)
{
    (void)id, (void)channel, (void)info, (void)ninfo;
    counted += bytes->size;
    if (bytes->size == 0)
        report("pmix_debugger counted rank=%u bytes=%zu", source->rank, counted);
}

static void count(char *rest)
{
    const pmix_proc_t whose = named(&rest, true);
    const pmix_status_t id =
        PMIx_IOF_pull(&whose, 1, NULL, 0, PMIX_FWD_STDOUT_CHANNEL, on_counted, NULL, NULL);
    must(id < 0 ? id : PMIX_SUCCESS, "PMIx_IOF_pull");
    report("pmix_debugger counts");
}

static void pull(char *rest)
{
    const pmix_proc_t whose = named(&rest, true);
    pmix_info_t infos[4];
    size_t ninfos = 0;
    char *word;
    while (ninfos < 4 && (word = strsep(&rest, " ")) != NULL)
        load(&infos[ninfos++], word);
    const pmix_status_t id =
        PMIx_IOF_pull(&whose, 1, ninfos == 0 ? NULL : infos, ninfos,
                      PMIX_FWD_STDOUT_CHANNEL | PMIX_FWD_STDERR_CHANNEL, on_output, NULL, NULL);
    must(id < 0 ? id : PMIX_SUCCESS, "PMIx_IOF_pull");
    subscription = (size_t)id;
    report("pmix_debugger pulls");
}

static void push(char *rest, bool end)
{
    const pmix_proc_t whose = named(&rest, true);
    char line[512];
    pmix_byte_object_t bytes = {NULL, 0};
    if (!end) {
        bytes.size = (size_t)snprintf(line, sizeof line, "%s\n", rest);
        bytes.bytes = line;
    }
    const pmix_status_t rc = PMIx_IOF_push(&whose, 1, &bytes, NULL, 0, on_answer, NULL);
    report("pmix_debugger pushed status=%d", await_answer(rc));
}

static void control(char *rest)
{
    pmix_proc_t whom = named(&rest, true);
    const char *key = strsep(&rest, " ");
    const bool yes = true;
    pmix_info_t directive, *results = NULL;
    size_t nresults = 0;
    hold(key != NULL, "a directive");
    if (rest == NULL) {
        PMIX_INFO_LOAD(&directive, key, &yes, PMIX_BOOL);
    } else {
        const int number = atoi(rest);
        PMIX_INFO_LOAD(&directive, key, &number, PMIX_INT);
    }
    PMIX_INFO_REQUIRED(&directive);
    const pmix_status_t rc = PMIx_Job_control(&whom, 1, &directive, 1, &results, &nresults);
    report("pmix_debugger control=%s status=%d", key, rc);
}

static void abort_some(char *rest)
{
    pmix_proc_t whom = named(&rest, true);
    report("pmix_debugger abort status=%d", PMIx_Abort(7, "by a tool", &whom, 1));
}

static void stop(void)
{
    const pmix_status_t rc = PMIx_IOF_deregister(subscription, NULL, 0, on_answer, NULL);
    must(rc, "PMIx_IOF_deregister");
    /* libpmix's server up to 5.0.11 answers with a status that it never set. */
    (void)await_answer(rc);
    report("pmix_debugger stopped");
}

static void obey(char *line)
{
    char *rest = line;
    const char *word = strsep(&rest, " ");
    if (strcmp(word, "spawn") == 0)
        spawn(rest);
    else if (strcmp(word, "release") == 0)
        release(named(&rest, true));
    else if (strcmp(word, "go") == 0)
        release(launcher);
    else if (strcmp(word, "table") == 0)
        table(rest);
    else if (strcmp(word, "ask") == 0)
        report("pmix_debugger %s=%s", rest, ask(rest, NULL)->data.string);
    else if (strcmp(word, "pull") == 0)
        pull(rest);
    else if (strcmp(word, "control") == 0)
        control(rest);
    else if (strcmp(word, "abort") == 0)
        abort_some(rest);
    else if (strcmp(word, "count") == 0)
        count(rest);
    else if (strcmp(word, "stop") == 0)
        stop();
    else if (strcmp(word, "push") == 0 || strcmp(word, "end") == 0)
        push(rest, strcmp(word, "end") == 0);
    else if (strcmp(word, "hang") == 0)
        hangs = true;
    else
        fail(2, "pmix_debugger: %s is no order", word);
}

int main(int argc, char **argv)
{
    pmix_info_t info[2];
    char line[4096];
    if (argc < 2)
        fail(2, "pmix_debugger FILE, or launch ... -- LAUNCHER ...");
    if (strcmp(argv[1], "launch") == 0) {
        launch(argv + 2);
    } else {
        PMIX_INFO_LOAD(&info[0], PMIX_TOOL_ATTACHMENT_FILE, argv[1], PMIX_STRING);
        /* What is forwarded to it comes out here. */
        PMIX_INFO_LOAD(&info[1], PMIX_IOF_LOCAL_OUTPUT, NULL, PMIX_BOOL);
        must(PMIx_tool_init(&me, info, 2), "PMIx_tool_init");
        pmix_value_t *value;
        must(PMIx_Get(&me, PMIX_SERVER_NSPACE, NULL, 0, &value), PMIX_SERVER_NSPACE);
        PMIX_LOAD_PROCID(&launcher, value->data.string, 0);
    }
    listen_for(PMIX_ERR_LOST_CONNECTION, on_loss);
    listen_for(PMIX_LAUNCHER_READY, on_launch);
    listen_for(PMIX_LAUNCH_COMPLETE, on_launch);
    listen_for(PMIX_EVENT_JOB_END, on_end);
    listen_for(PMIX_READY_FOR_DEBUG, on_ready);
    report("pmix_debugger attached nspace=%s", me.nspace);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        obey(line);
    }
    PMIx_tool_finalize();
    return 0;
}
