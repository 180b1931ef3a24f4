/*
 * pmix_spawn MODE [ARGUMENT]...
 *
 * Spawns through PMIx itself. Children are this program too, in the mode `child`. Ranks that were not
 * spawned end with
 *     pmix_spawn rank=R size=N mode=MODE status=CODE value=TEXT us=MICROSECONDS
 * where CODE is what PMIx_Spawn came to, TEXT depends on the mode ("-"), and the time is that of the
 * call, where the mode says so.
 *
 *   family [TIMES]     rank 0 spawns two programs, of 2 ranks and of 1, TIMES over; reads of the new
 *                      job what it may know, connects with it, reads what its ranks have put and lets
 *                      them read what it has, disconnects, and hears of its end. TEXT: the children's
 *                      hosts. The time is the median of the spawns.
 *   hosts WORD...      the same for each WORD, a list of hosts to be added (PMIX_ADD_HOST) and used; what is a
 *                      path is waited for. TEXT: for each list the children's hosts, or why there are
 *                      none, with semicolons between them.
 *   nb [COUNT]         every rank spawns COUNT jobs at once, with PMIx_Spawn_nb. TEXT: their number
 *   with [KEY=VALUE]   rank 0 spawns two children with infos: `job.KEY` for the job, else for the
 *                      program; a `!` in front makes it required. A value is a truth value or a number
 *                      if it looks like one. They say where they are and end.
 *   run PROGRAM [KEY=VALUE]...
 *                      rank 0 spawns two of PROGRAM with infos as above, without waiting for anything of
 *                      them. The time is that of the call.
 *
 * Children of `family`, `nb` and `with` say, after they have found their parent by PMIX_PARENT_ID,
 *     pmix_spawned rank=R size=N app=A offset=O global=G host=H dir=D word=W set=RANKS
 * with PMIX_NPROC_OFFSET and PMIX_GLOBAL_RANK, the variable SPAWN_WORD, and the members of the process set
 * that SPAWN_SET names.
 */
#define _GNU_SOURCE
#include "client.h"
#include "samples.h"
#include <pmix.h>

/* How long to wait for what was put by others, and for the end of a job, in seconds. */
enum { PATIENCE = 60 };

static unsigned size;
static char *program;

static pmix_value_t *get(const char *nspace, pmix_rank_t rank, const char *key)
{
    pmix_proc_t proc;
    pmix_info_t timeout;
    pmix_value_t *value = NULL;
    int seconds = PATIENCE;

    PMIX_LOAD_PROCID(&proc, nspace, rank);
    PMIX_INFO_LOAD(&timeout, PMIX_TIMEOUT, &seconds, PMIX_INT);
    must(PMIx_Get(&proc, key, &timeout, 1, &value), key);
    return value;
}

/* A number of 32 bits, or a rank. */
static unsigned get_number(const char *nspace, pmix_rank_t rank, const char *key)
{
    pmix_value_t *value = get(nspace, rank, key);
    bool is_rank = value->type == PMIX_PROC_RANK;
    hold(is_rank || value->type == PMIX_UINT32, "a number of 32 bits");
    unsigned number = is_rank ? value->data.rank : value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return number;
}

static void get_text(const char *nspace, pmix_rank_t rank, const char *key, char *text, size_t room)
{
    pmix_value_t *value = get(nspace, rank, key);
    hold(value->type == PMIX_STRING, "a text");
    snprintf(text, room, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
}

/* Where a process is, or "?": not every host reports other jobs. */
static void host_of(const char *nspace, pmix_rank_t rank, char *text, size_t room)
{
    pmix_proc_t proc;
    pmix_value_t *value;

    snprintf(text, room, "?");
    PMIX_LOAD_PROCID(&proc, nspace, rank);
    if (PMIx_Get(&proc, PMIX_HOSTNAME, NULL, 0, &value) != PMIX_SUCCESS)
        return;
    hold(value->type == PMIX_STRING, "a host's name");
    snprintf(text, room, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
}

/* The program of a process of another job, if it is known: a client of libpmix 4.2 asks for what is
   known of all ranks of a job when it asks about one of them, and where none of them runs finds nothing. */
static void check_appnum(const char *nspace, pmix_rank_t rank, unsigned expected)
{
    pmix_proc_t proc;
    pmix_value_t *value;

    PMIX_LOAD_PROCID(&proc, nspace, rank);
    if (PMIx_Get(&proc, PMIX_APPNUM, NULL, 0, &value) != PMIX_SUCCESS)
        return;
    hold(value->type == PMIX_UINT32 && value->data.uint32 == expected, "a child's program");
    PMIX_VALUE_RELEASE(value);
}

/* Puts a text that is of this process alone. */
static void put_card(void)
{
    char text[PMIX_MAX_NSLEN + 32];
    pmix_value_t value;
    snprintf(text, sizeof text, "%s/%u", me.nspace, me.rank);
    PMIX_VALUE_LOAD(&value, text, PMIX_STRING);
    must(PMIx_Put(PMIX_GLOBAL, "card", &value), "PMIx_Put");
    must(PMIx_Commit(), "PMIx_Commit");
    PMIX_VALUE_DESTRUCT(&value);
}

static void check_card(const char *nspace, pmix_rank_t rank)
{
    char text[PMIX_MAX_NSLEN + 32], expected[PMIX_MAX_NSLEN + 32];
    snprintf(expected, sizeof expected, "%s/%u", nspace, rank);
    get_text(nspace, rank, "card", text, sizeof text);
    hold(strcmp(text, expected) == 0, "what a process of the other job has put");
}

/* ---- what is spawned ---- */

/* A program of `count` ranks; its words tell it who spawns it, and what it is to do. */
static void load_app(pmix_app_t *app, const char *cmd, int count, const char *how)
{
    const char *words[] = {cmd, "child", how, me.nspace};
    char **argv = calloc(6, sizeof *argv);

    hold(argv != NULL, "memory");
    for (int i = 0; i < 4; i++)
        argv[i] = strdup(words[i]);
    if (asprintf(&argv[4], "%u", me.rank) < 0)
        fail(1, "pmix_spawn: memory");
    PMIX_APP_CONSTRUCT(app);
    app->cmd = strdup(cmd);
    app->argv = argv;
    app->maxprocs = count;
}

/* `KEY=VALUE` as an info. */
static void load_info(pmix_info_t *info, const char *word)
{
    char key[PMIX_MAX_KEYLEN + 1], *end;
    bool required = word[0] == '!';
    const char *equals = strchr(word += required, '=');
    int number;

    if (equals == NULL || (size_t)(equals - word) >= sizeof key)
        fail(2, "pmix_spawn: KEY=VALUE, not %s", word);
    snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
    const char *value = equals + 1;
    bool truth = strcmp(value, "true") == 0;
    number = (int)strtol(value, &end, 10);
    if (truth || strcmp(value, "false") == 0)
        PMIX_INFO_LOAD(info, key, &truth, PMIX_BOOL);
    else if (end != value && *end == '\0')
        PMIX_INFO_LOAD(info, key, &number, PMIX_INT);
    else
        PMIX_INFO_LOAD(info, key, value, PMIX_STRING);
    if (required)
        PMIX_INFO_REQUIRED(info);
}

/* ---- the end of a job ---- */

static char ended[PMIX_MAX_NSLEN + 1];
static int answers;
static pmix_status_t worst;

static void on_end(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                   size_t ninfo, pmix_info_t *results, size_t nresults,
                   pmix_event_notification_cbfunc_fn_t next, void *data)
{
    (void)id, (void)status, (void)source, (void)results, (void)nresults;
    for (size_t i = 0; i < ninfo; i++)
        if (PMIX_CHECK_KEY(&info[i], PMIX_EVENT_AFFECTED_PROC))
            CHANGE(snprintf(ended, sizeof ended, "%s", info[i].value.data.proc->nspace));
    handled(next, data);
}

/* ---- modes ---- */

static void connect_with(const char *nspace, bool still)
{
    pmix_proc_t procs[2];
    /* The same order on both sides. */
    bool first = strcmp(me.nspace, nspace) < 0;
    PMIX_LOAD_PROCID(&procs[0], first ? me.nspace : nspace, PMIX_RANK_WILDCARD);
    PMIX_LOAD_PROCID(&procs[1], first ? nspace : me.nspace, PMIX_RANK_WILDCARD);
    if (still)
        must(PMIx_Connect(procs, 2, NULL, 0), "PMIx_Connect");
    else
        must(PMIx_Disconnect(procs, 2, NULL, 0), "PMIx_Disconnect");
}

static int ascending(const void *a, const void *b)
{
    long left = *(const long *)a, right = *(const long *)b;
    return (left > right) - (left < right);
}

/* All ranks learn the name of what rank 0 has spawned. */
static void share(char nspace[PMIX_MAX_NSLEN + 1], int round)
{
    char key[32];
    pmix_value_t value;

    snprintf(key, sizeof key, "child-%d", round);
    if (me.rank == 0) {
        PMIX_VALUE_LOAD(&value, nspace, PMIX_STRING);
        must(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
        must(PMIx_Commit(), "PMIx_Commit");
        PMIX_VALUE_DESTRUCT(&value);
    }
    fence(true);
    get_text(me.nspace, 0, key, nspace, PMIX_MAX_NSLEN + 1);
}

/* Rank 0 spawns two programs, on hosts that are to be added if there are some. */
static pmix_status_t spawn_family(const char *added, char nspace[PMIX_MAX_NSLEN + 1])
{
    pmix_app_t apps[2];
    pmix_info_t infos[2];
    bool yes = true;

    load_app(&apps[0], program, 2, "family");
    load_app(&apps[1], program, 1, "family");
    PMIX_INFO_LOAD(&infos[0], PMIX_NOTIFY_COMPLETION, &yes, PMIX_BOOL);
    if (added != NULL) {
        PMIX_INFO_LOAD(&infos[1], PMIX_ADD_HOST, added, PMIX_STRING);
        for (int i = 0; i < 2; i++) {
            PMIX_INFO_CREATE(apps[i].info, 1);
            PMIX_INFO_LOAD(&apps[i].info[0], PMIX_HOST, added, PMIX_STRING);
            apps[i].ninfo = 1;
        }
    }
    return PMIx_Spawn(infos, added == NULL ? 1 : 2, apps, 2, nspace);
}

/* All ranks read what the ranks of the new job may know, and let them read what they have. */
static void meet_family(const char *nspace, char *text, size_t room)
{
    char hosts[3][128];

    hold(get_number(nspace, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE) == 3, "the size of the new job");
    connect_with(nspace, true);
    for (pmix_rank_t rank = 0; rank < 3; rank++) {
        check_card(nspace, rank);
        host_of(nspace, rank, hosts[rank], sizeof *hosts);
        check_appnum(nspace, rank, rank < 2 ? 0 : 1);
    }
    snprintf(text, room, "%s,%s,%s", hosts[0], hosts[1], hosts[2]);
    connect_with(nspace, false);
    if (me.rank == 0)
        WAIT_UNTIL(strcmp(ended, nspace) == 0);
}

static void hosts(char **words, char *text, size_t room)
{
    size_t used = 0;

    text[0] = '\0';
    listen_for(PMIX_EVENT_JOB_END, on_end);
    put_card();
    for (int round = 0; words[round] != NULL; round++) {
        char nspace[PMIX_MAX_NSLEN + 1] = "";
        if (words[round][0] == '/') {
            while (me.rank == 0 && access(words[round], F_OK) != 0)
                usleep(10000);
            continue;
        }
        if (me.rank == 0) {
            pmix_status_t status = spawn_family(words[round], nspace);
            if (status != PMIX_SUCCESS)
                snprintf(nspace, sizeof nspace, "!%d", status);
        }
        share(nspace, round);
        used += (size_t)snprintf(text + used, room - used, "%s", used == 0 ? "" : ";");
        if (nspace[0] == '!')
            snprintf(text + used, room - used, "%s", nspace + 1);
        else
            meet_family(nspace, text + used, room - used);
        used += strlen(text + used);
    }
}

static long family(int times, char *text, size_t room)
{
    char nspace[PMIX_MAX_NSLEN + 1] = "";
    long *took = calloc((size_t)times, sizeof *took);

    hold(took != NULL, "memory");
    listen_for(PMIX_EVENT_JOB_END, on_end);
    put_card();
    for (int round = 0; round < times; round++) {
        if (me.rank == 0) {
            double before = now_us();
            must(spawn_family(NULL, nspace), "PMIx_Spawn");
            took[round] = (long)(now_us() - before);
            hold(nspace[0] != '\0' && strcmp(nspace, me.nspace) != 0, "another name for another job");
        }
        share(nspace, round);
        meet_family(nspace, text, room);
    }
    qsort(took, (size_t)times, sizeof *took, ascending);
    long median = took[times / 2];
    free(took);
    return median;
}

static void on_spawned(pmix_status_t status, char nspace[], void *data)
{
    pthread_mutex_lock(&lock);
    if (status == PMIX_SUCCESS)
        snprintf(data, PMIX_MAX_NSLEN + 1, "%s", nspace);
    else
        worst = status;
    answers++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void nb(int count)
{
    pmix_app_t *apps = calloc((size_t)count, sizeof *apps);
    char(*names)[PMIX_MAX_NSLEN + 1] = calloc((size_t)count, sizeof *names);

    hold(apps != NULL && names != NULL, "memory");
    for (int i = 0; i < count; i++) {
        load_app(&apps[i], program, 1, "nb");
        must(PMIx_Spawn_nb(NULL, 0, &apps[i], 1, on_spawned, names[i]), "PMIx_Spawn_nb");
    }
    WAIT_UNTIL(answers >= count);
    must(worst, "the answer of PMIx_Spawn_nb");
    hold(answers == count, "one answer for each");
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            hold(strcmp(names[i], names[j]) != 0, "every job has a name of its own");
    free(names);
    free(apps);
}

static pmix_status_t with(char *cmd, char *mode, int count, char **words)
{
    pmix_info_t *job = calloc((size_t)count + 1, sizeof *job);
    pmix_app_t app;
    size_t of_job = 1;
    bool no = false;
    char nspace[PMIX_MAX_NSLEN + 1] = "";

    load_app(&app, cmd, 2, mode);
    PMIX_INFO_CREATE(app.info, (size_t)count + 1);
    hold(job != NULL && app.info != NULL, "memory");
    /* The client of 5.0 drops a program's infos, with an error, where the job has none. */
    PMIX_INFO_LOAD(&job[0], PMIX_NOTIFY_COMPLETION, &no, PMIX_BOOL);
    for (int i = 0; i < count; i++) {
        bool required = words[i][0] == '!';
        if (strncmp(words[i] + required, "job.", 4) != 0) {
            load_info(&app.info[app.ninfo++], words[i]);
            continue;
        }
        load_info(&job[of_job], words[i] + required + 4);
        if (required)
            PMIX_INFO_REQUIRED(&job[of_job]);
        of_job++;
    }
    if (app.ninfo == 0) {
        PMIX_INFO_FREE(app.info, (size_t)count + 1);
        app.info = NULL;
    }
    pmix_status_t status = PMIx_Spawn(job, of_job, &app, 1, nspace);
    free(job);
    return status;
}

/* The ranks of a process set, which are all of this job; "-" for none. */
static void members_of(const char *set, char *text, size_t room)
{
    pmix_query_t query;
    pmix_info_t qualifier, *results;
    char key[] = PMIX_QUERY_PSET_MEMBERSHIP, *keys[] = {key, NULL};
    size_t count = 0, used = 0;

    snprintf(text, room, "-");
    PMIX_QUERY_CONSTRUCT(&query);
    query.keys = keys;
    PMIX_INFO_LOAD(&qualifier, PMIX_PSET_NAME, set, PMIX_STRING);
    query.qualifiers = &qualifier;
    query.nqual = 1;
    if (set[0] == '\0' || PMIx_Query_info(&query, 1, &results, &count) != PMIX_SUCCESS)
        return;
    hold(count == 1 && results[0].value.type == PMIX_DATA_ARRAY, "a set has members");
    const pmix_data_array_t *array = results[0].value.data.darray;
    const pmix_proc_t *members = array->array;
    for (size_t i = 0; i < array->size; i++) {
        hold(strcmp(members[i].nspace, me.nspace) == 0, "a set's members are of this job");
        used += (size_t)snprintf(text + used, room - used, "%s%u", i == 0 ? "" : ",", members[i].rank);
    }
    PMIX_INFO_FREE(results, count);
    PMIX_INFO_DESTRUCT(&qualifier);
}

/* argv: pmix_spawn child HOW NSPACE RANK */
static void be_a_child(char **argv)
{
    char host[256] = "?", dir[1024] = "?", set[64];
    pmix_value_t *parent = get(me.nspace, me.rank, PMIX_PARENT_ID);

    hold(parent->type == PMIX_PROC && strcmp(parent->data.proc->nspace, argv[3]) == 0 &&
             parent->data.proc->rank == (pmix_rank_t)number_argument(argv[4]),
         "PMIX_PARENT_ID is who called PMIx_Spawn");
    PMIX_VALUE_RELEASE(parent);
    unsigned app = get_number(me.nspace, me.rank, PMIX_APPNUM);
    unsigned offset = get_number(me.nspace, PMIX_RANK_WILDCARD, PMIX_NPROC_OFFSET);
    unsigned global = get_number(me.nspace, me.rank, PMIX_GLOBAL_RANK);
    gethostname(host, sizeof host - 1);
    if (getcwd(dir, sizeof dir) == NULL)
        fail(1, "pmix_spawn: getcwd: %s", strerror(errno));
    const char *word = getenv("SPAWN_WORD"), *name = getenv("SPAWN_SET");
    members_of(name == NULL ? "" : name, set, sizeof set);
    report("pmix_spawned rank=%u size=%u app=%u offset=%u global=%u host=%s dir=%s word=%s set=%s", me.rank,
           size, app, offset, global, host, dir, word == NULL ? "-" : word, set);
    if (strcmp(argv[2], "family") != 0)
        return;
    put_card();
    unsigned parents = get_number(argv[3], PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    connect_with(argv[3], true);
    for (unsigned rank = 0; rank < parents; rank++)
        check_card(argv[3], rank);
    connect_with(argv[3], false);
}

int main(int argc, char **argv)
{
    char text[512] = "-";
    pmix_status_t status = PMIX_SUCCESS;
    long took = 0;

    if (argc < 2)
        fail(2, "usage: pmix_spawn MODE [ARGUMENT]...");
    const char *mode = argv[1];
    program = argv[0];
    names_job = true;
    alarm(LAST_RESORT_SECONDS);
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    size = get_number(me.nspace, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE);
    if (strcmp(mode, "child") == 0 && argc == 5) {
        be_a_child(argv);
        must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
        return 0;
    }
    if (strcmp(mode, "family") == 0) {
        took = family(argc > 2 ? (int)number_argument(argv[2]) : 1, text, sizeof text);
    } else if (strcmp(mode, "hosts") == 0) {
        hosts(argv + 2, text, sizeof text);
    } else if (strcmp(mode, "nb") == 0) {
        nb(argc > 2 ? (int)number_argument(argv[2]) : 3);
        snprintf(text, sizeof text, "%d", answers);
    } else if (strcmp(mode, "with") == 0) {
        status = me.rank == 0 ? with(program, argv[1], argc - 2, argv + 2) : PMIX_SUCCESS;
    } else if (strcmp(mode, "run") == 0 && argc >= 3) {
        double before = now_us();
        status = me.rank == 0 ? with(argv[2], argv[1], argc - 3, argv + 3) : PMIX_SUCCESS;
        took = (long)(now_us() - before);
    } else {
        fail(2, "pmix_spawn: what is \"%s\"?", mode);
    }
    /* Only the rank that asked knows when all others may end. */
    barrier();
    report("pmix_spawn rank=%u size=%u mode=%s status=%d value=%s us=%ld", me.rank, size, mode,
           status, text, took);
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
