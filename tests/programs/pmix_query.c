/*
 * pmix_query MODE
 *
 * Asks the PMIx server about the launch, with 4 ranks; every rank asks. Each rank that comes to the
 * end prints
 *     pmix_query rank=R mode=MODE pid=PID ...
 *
 *   tables    all=TABLE local=TABLE other=TABLE, of all processes, of those on the own node, and of
 *             those on the node of the last rank; a table is RANK/HOST/PROGRAM/PID/CODE/STATE,...
 *   ended     rank 2 is killed and rank 3 leaves in order with code 0; the others wait until the
 *             table has both, and print it as all=TABLE
 *   family    rank 0 spawns three children, asks about both jobs, lets the children end and asks again:
 *             spaces=NUMBER of jobs all=TABLE of the children status=CODE of their end ended=TABLE.
 *             Children print `pmix_query_child rank=R host=H pid=PID`; one ends in order, one with code 3,
 *             and one is killed
 *   uri       own=URI last=URI env=URI of the PMIx servers of the own node and that of the last rank,
 *             and what the environment has
 *   wait      rank 0 asks until the table has a process with the state of a lost node, and prints
 *             it as all=TABLE
 *   general   checks namespaces, their infos, the job's status, sizes and what can be asked
 *   errors    checks what becomes of questions that have no answer
 *   memory    servers=N clients=N, how many nodes told what their server and clients use; checks
 *             that it is plausible
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

static char hosts[4096];

/* ---- one question ---- */

static pmix_query_t query;
static pmix_info_t *results;
static size_t nresults;

static void begin(void)
{
    if (results != NULL)
        PMIX_INFO_FREE(results, nresults);
    results = NULL;
    nresults = 0;
    PMIX_QUERY_DESTRUCT(&query);
    PMIX_QUERY_CONSTRUCT(&query);
    PMIX_INFO_CREATE(query.qualifiers, 8);
}

static void key(const char *name)
{
    pmix_status_t rc;
    PMIX_ARGV_APPEND(rc, query.keys, name);
    must(rc, name);
}

static void qualify(const char *name, const void *value, pmix_data_type_t type)
{
    PMIX_INFO_LOAD(&query.qualifiers[query.nqual], name, value, type);
    query.nqual++;
}

/* An array that is passed without its length needs an end mark, from 6.0 on. */
static pmix_status_t ask(void)
{
    if (query.nqual == 0) {
        PMIX_INFO_FREE(query.qualifiers, 8);
        query.qualifiers = NULL;
    }
    return PMIx_Query_info(&query, 1, &results, &nresults);
}

static const pmix_value_t *result(const char *name)
{
    for (size_t i = 0; i < nresults; i++)
        if (PMIX_CHECK_KEY(&results[i], name))
            return &results[i].value;
    return NULL;
}

/* The value under a key that alone was asked for. */
static const pmix_value_t *the(const char *name, pmix_data_type_t type)
{
    const pmix_value_t *value = result(name);
    hold(value != NULL && value->type == type, name);
    return value;
}

static const pmix_info_t *member(const pmix_value_t *array, const char *name)
{
    hold(array->type == PMIX_DATA_ARRAY && array->data.darray->type == PMIX_INFO, name);
    const pmix_info_t *infos = array->data.darray->array;
    for (size_t i = 0; i < array->data.darray->size; i++)
        if (PMIX_CHECK_KEY(&infos[i], name))
            return &infos[i];
    return NULL;
}

/* ---- tables ---- */

/* Waits until a table has what is wanted; gives its text. */
static void table_of(const char *nspace, const char *name, const char *host, char *text, size_t size)
{
    const bool yes = true;
    begin();
    key(name);
    qualify(PMIX_NSPACE, nspace, PMIX_STRING);
    qualify(PMIX_QUERY_REFRESH_CACHE, &yes, PMIX_BOOL);
    if (host != NULL)
        qualify(PMIX_HOSTNAME, host, PMIX_STRING);
    must(ask(), name);
    const pmix_data_array_t *array = the(name, PMIX_DATA_ARRAY)->data.darray;
    hold(array->type == PMIX_PROC_INFO, "a table is of processes");
    const pmix_proc_info_t *rows = array->array;
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < array->size && used < size; i++) {
        const pmix_proc_info_t *row = &rows[i];
        const char *program = row->executable_name == NULL ? "" : row->executable_name;
        const char *slash = strrchr(program, '/');
        hold(PMIX_CHECK_NSPACE(row->proc.nspace, nspace), "a table is of one job");
        used += (size_t)snprintf(text + used, size - used, "%s%u/%s/%s/%d/%d/%d", i == 0 ? "" : ",",
                                 row->proc.rank, row->hostname == NULL ? "" : row->hostname,
                                 slash == NULL ? program : slash + 1, (int)row->pid, row->exit_code,
                                 row->state);
    }
}

static void table(const char *name, const char *host, char *text, size_t size)
{
    table_of(me.nspace, name, host, text, size);
}

/* The host of a rank, as job data has it. */
static const char *host_of(pmix_rank_t rank)
{
    pmix_proc_t proc;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    must(PMIx_Get(&proc, PMIX_HOSTNAME, NULL, 0, &value), "PMIx_Get of a host");
    snprintf(hosts, sizeof hosts, "%s", value->data.string);
    PMIX_VALUE_RELEASE(value);
    return hosts;
}

static void tables(void)
{
    static char all[8192], local[8192], other[8192];
    barrier();
    table(PMIX_QUERY_PROC_TABLE, NULL, all, sizeof all);
    table(PMIX_QUERY_LOCAL_PROC_TABLE, NULL, local, sizeof local);
    table(PMIX_QUERY_LOCAL_PROC_TABLE, host_of(3), other, sizeof other);
    barrier();
    char line[4000];
    snprintf(line, sizeof line, "all=%.1200s local=%.1200s other=%.1200s", all, local, other);
    report("pmix_query rank=%u mode=tables pid=%d %s", me.rank, (int)getpid(), line);
}

/* Asks until the table has this. */
static void table_with(const char *one, const char *two, char *text, size_t size)
{
    for (int i = 0; i < 6000; i++) {
        table(PMIX_QUERY_PROC_TABLE, NULL, text, size);
        if (strstr(text, one) != NULL && strstr(text, two) != NULL)
            return;
        usleep(10000);
    }
    fail(1, "pmix_query rank=%u: no %s and %s in %s", me.rank, one, two, text);
}

static void ended(void)
{
    static char all[8192];
    barrier();
    if (me.rank == 2)
        raise(SIGKILL);
    if (me.rank == 3) {
        PMIx_Finalize(NULL, 0);
        _exit(0);
    }
    /* No libpmix packs the exit code of a pmix_proc_info_t: it is 0 here whatever the server said. */
    table_with("/0/54", "/0/20", all, sizeof all);
    barrier_of(NULL, 2); /* those who are left */
    report("pmix_query rank=%u mode=ended pid=%d all=%.3000s", me.rank, (int)getpid(), all);
}

static void lost(void)
{
    static char all[8192];
    signal(SIGTERM, SIG_IGN);
    barrier();
    report("pmix_query rank=%u mode=ready pid=%d", me.rank, (int)getpid());
    if (me.rank != 0)
        wait_for_the_end();
    table_with("/0/56", "/0/6", all, sizeof all);
    report("pmix_query rank=0 mode=wait pid=%d all=%.3000s", (int)getpid(), all);
    _exit(0);
}

/* ---- a job and its children ---- */

static char *program;

static void connect_with(const char *children, const char *parents)
{
    pmix_proc_t all[2];
    PMIX_LOAD_PROCID(&all[0], parents, 0);
    PMIX_LOAD_PROCID(&all[1], children, PMIX_RANK_WILDCARD);
    must(PMIx_Connect(all, 2, NULL, 0), "PMIx_Connect");
}

/* Runs until its parent has asked. */
static void child(void)
{
    pmix_value_t *value = NULL;
    must(PMIx_Get(&me, PMIX_PARENT_ID, NULL, 0, &value), "the parent");
    report("pmix_query_child rank=%u host=%s pid=%d", me.rank, host_of(me.rank), (int)getpid());
    connect_with(me.nspace, value->data.proc->nspace);
    if (me.rank == 2)
        raise(SIGKILL);
    PMIx_Finalize(NULL, 0);
    _exit(me.rank == 1 ? 3 : 0);
}

static pmix_status_t status_of(const char *nspace)
{
    begin();
    key(PMIX_QUERY_JOB_STATUS);
    qualify(PMIX_NSPACE, nspace, PMIX_STRING);
    must(ask(), "a job's status");
    return the(PMIX_QUERY_JOB_STATUS, PMIX_STATUS)->data.status;
}

static void family(void)
{
    static char all[8192], last[8192], nspace[PMIX_MAX_NSLEN + 1];
    if (me.rank != 0)
        return;
    char *words[] = {program, "child", NULL};
    must(spawn_program(words, 3, NULL, 0, nspace), "PMIx_Spawn");
    begin();
    key(PMIX_QUERY_NAMESPACES);
    must(ask(), "namespaces");
    const char *names = the(PMIX_QUERY_NAMESPACES, PMIX_STRING)->data.string;
    hold(strstr(names, me.nspace) != NULL && strstr(names, nspace) != NULL, "both jobs are listed");
    begin();
    key(PMIX_QUERY_NAMESPACE_INFO);
    must(ask(), "namespace infos");
    const size_t spaces = the(PMIX_QUERY_NAMESPACE_INFO, PMIX_DATA_ARRAY)->data.darray->size;
    expect(PMIX_SUCCESS, status_of(nspace), "the children run");
    table_of(nspace, PMIX_QUERY_PROC_TABLE, NULL, all, sizeof all);
    connect_with(nspace, me.nspace);
    pmix_status_t status = PMIX_SUCCESS;
    for (int i = 0; i < 6000 && status == PMIX_SUCCESS; i++) {
        usleep(10000);
        status = status_of(nspace);
    }
    table_of(nspace, PMIX_QUERY_PROC_TABLE, NULL, last, sizeof last);
    report("pmix_query rank=0 mode=family pid=%d spaces=%zu all=%.1500s status=%d ended=%.1500s",
           (int)getpid(), spaces, all, status, last);
}

/* The URI of a node's PMIx server; of the own one, if none is named. */
static void uri_of(const char *host, char *text, size_t size)
{
    begin();
    key(PMIX_SERVER_URI);
    if (host != NULL)
        qualify(PMIX_HOSTNAME, host, PMIX_STRING);
    must(ask(), "a server's URI");
    snprintf(text, size, "%s", the(PMIX_SERVER_URI, PMIX_STRING)->data.string);
}

static void uri(void)
{
    static char own[512], last[512];
    const char *env = getenv("PMIX_SERVER_URI4");
    uri_of(NULL, own, sizeof own);
    uri_of(host_of(3), last, sizeof last);
    barrier();
    report("pmix_query rank=%u mode=uri pid=%d own=%s last=%s env=%s", me.rank, (int)getpid(), own, last,
           env == NULL ? "" : env);
}

/* ---- what needs no other node ---- */

static void general(void)
{
    begin();
    key(PMIX_QUERY_NAMESPACES);
    must(ask(), "namespaces");
    hold(strcmp(the(PMIX_QUERY_NAMESPACES, PMIX_STRING)->data.string, me.nspace) == 0,
         "the only namespace is ours");

    begin();
    key(PMIX_QUERY_NAMESPACE_INFO);
    must(ask(), "namespace infos");
    const pmix_value_t *jobs = the(PMIX_QUERY_NAMESPACE_INFO, PMIX_DATA_ARRAY);
    hold(jobs->data.darray->size == 1, "one job");
    const pmix_info_t *job = member(jobs, PMIX_JOB_INFO_ARRAY);
    hold(job != NULL, "a job's infos");
    const pmix_info_t *name = member(&job->value, PMIX_NSPACE);
    hold(name != NULL && strcmp(name->value.data.string, me.nspace) == 0, "its name");
    const pmix_info_t *command = member(&job->value, PMIX_CMD_LINE);
    hold(command != NULL && strstr(command->value.data.string, "pmix_query general") != NULL,
         "its command line");
    const pmix_info_t *size = member(&job->value, PMIX_JOB_SIZE);
    hold(size != NULL && size->value.data.uint32 == 4, "its size");
    const pmix_info_t *infos = job->value.data.darray->array;
    pmix_rank_t next = 0;
    for (size_t i = 0; i < job->value.data.darray->size; i++) {
        if (!PMIX_CHECK_KEY(&infos[i], PMIX_PROC_INFO_ARRAY))
            continue;
        const pmix_info_t *rank = member(&infos[i].value, PMIX_RANK);
        const pmix_info_t *host = member(&infos[i].value, PMIX_HOSTNAME);
        hold(rank != NULL && rank->value.data.rank == next, "its ranks, ascending");
        hold(host != NULL && strcmp(host->value.data.string, host_of(next)) == 0, "their hosts");
        next++;
    }
    hold(next == 4, "all ranks");

    begin();
    key(PMIX_QUERY_JOB_STATUS);
    qualify(PMIX_NSPACE, me.nspace, PMIX_STRING);
    must(ask(), "the job's status");
    hold(the(PMIX_QUERY_JOB_STATUS, PMIX_STATUS)->data.status == PMIX_SUCCESS, "the job runs");

    begin();
    key(PMIX_JOB_SIZE);
    key(PMIX_QUERY_SUPPORTED_KEYS);
    key(PMIX_QUERY_DEBUG_SUPPORT);
    must(ask(), "several keys");
    hold(the(PMIX_JOB_SIZE, PMIX_UINT32)->data.uint32 == 4, "the job's size");
    hold(strstr(the(PMIX_QUERY_SUPPORTED_KEYS, PMIX_STRING)->data.string, PMIX_QUERY_PROC_TABLE) != NULL,
         "tables can be asked for");
    hold(result(PMIX_QUERY_DEBUG_SUPPORT) != NULL, "what debuggers may ask for");

    begin();
    key(PMIX_QUERY_SPAWN_SUPPORT);
    must(ask(), "what spawns can do");
    hold(strstr(the(PMIX_QUERY_SPAWN_SUPPORT, PMIX_STRING)->data.string, PMIX_HOST) != NULL,
         "spawns go to hosts that are named");

    begin();
    const bool yes = true;
    key(PMIX_QUERY_PROC_TABLE);
    qualify(PMIX_QUERY_SUPPORTED_QUALIFIERS, &yes, PMIX_BOOL);
    must(ask(), "qualifiers");
    /* From version 7 on the answer is the table. */
    if (libpmix() < 7)
        hold(strstr(the(PMIX_QUERY_PROC_TABLE, PMIX_STRING)->data.string, PMIX_NSPACE) != NULL,
             "a table's job can be named");
    report("pmix_query rank=%u mode=general pid=%d", me.rank, (int)getpid());
}

static void errors(void)
{
    const bool yes = true;
    begin();
    key("x.y.z");
    expect(PMIX_ERR_NOT_SUPPORTED, ask(), "an unknown key");

    /* Clients of 4.2 drop what comes with any status but success. */
    begin();
    key(PMIX_QUERY_NAMESPACES);
    key("x.y.z");
    expect(PMIX_ERR_PARTIAL_SUCCESS, ask(), "an unknown key among known ones");
    if (strstr(PMIx_Get_version(), "OpenPMIx 4.") == NULL)
        hold(strcmp(the(PMIX_QUERY_NAMESPACES, PMIX_STRING)->data.string, me.nspace) == 0,
             "the known one is answered");

    begin();
    key(PMIX_QUERY_PROC_TABLE);
    qualify(PMIX_NSPACE, "nobodys-job", PMIX_STRING);
    expect(PMIX_ERR_NOT_FOUND, ask(), "the processes of no job");

    begin();
    key(PMIX_QUERY_PROC_TABLE);
    qualify(PMIX_HOSTNAME, "nobodys-host", PMIX_STRING);
    expect(PMIX_ERR_NOT_FOUND, ask(), "the processes of no host");

    begin();
    key(PMIX_QUERY_PROC_TABLE);
    qualify("x.y.z", &yes, PMIX_BOOL);
    must(ask(), "an unknown qualifier");

    begin();
    key(PMIX_QUERY_PROC_TABLE);
    qualify("x.y.z", &yes, PMIX_BOOL);
    PMIX_INFO_REQUIRED(&query.qualifiers[0]);
    expect(PMIX_ERR_NOT_SUPPORTED, ask(), "an unknown qualifier that must be honoured");
    barrier();
    report("pmix_query rank=%u mode=errors pid=%d", me.rank, (int)getpid());
}

/* ---- memory ---- */

/* Megabytes that a process of this kind may use. */
static bool plausible(const pmix_info_t *info)
{
    return info != NULL && info->value.type == PMIX_FLOAT && info->value.data.fval > 0.1
           && info->value.data.fval < 2000;
}

static void memory(void)
{
    const bool yes = true;
    int servers = 0, clients = 0;
    barrier();
    begin();
    key(PMIX_QUERY_MEMORY_USAGE);
    qualify(PMIX_QUERY_LOCAL_ONLY, &yes, PMIX_BOOL);
    qualify(PMIX_QUERY_REPORT_AVG, &yes, PMIX_BOOL);
    must(ask(), "memory of this node");
    const pmix_value_t *here = the(PMIX_QUERY_MEMORY_USAGE, PMIX_DATA_ARRAY);
    hold(plausible(member(here, PMIX_DAEMON_MEMORY)), "the server's memory");
    hold(plausible(member(here, PMIX_CLIENT_AVG_MEMORY)), "the clients' memory");

    begin();
    key(PMIX_QUERY_MEMORY_USAGE);
    qualify(PMIX_NSPACE, me.nspace, PMIX_STRING);
    qualify(PMIX_QUERY_REPORT_MINMAX, &yes, PMIX_BOOL);
    must(ask(), "memory of all nodes");
    const pmix_data_array_t *nodes = the(PMIX_QUERY_MEMORY_USAGE, PMIX_DATA_ARRAY)->data.darray;
    const pmix_info_t *infos = nodes->array;
    for (size_t i = 0; i < nodes->size; i++) {
        const pmix_info_t *smallest = member(&infos[i].value, PMIX_MIN_VALUE);
        const pmix_info_t *largest = member(&infos[i].value, PMIX_MAX_VALUE);
        const pmix_info_t *average = member(&infos[i].value, PMIX_CLIENT_AVG_MEMORY);
        hold(member(&infos[i].value, PMIX_HOSTNAME) != NULL, "a node's name");
        servers += plausible(member(&infos[i].value, PMIX_DAEMON_MEMORY));
        clients += plausible(smallest) && plausible(largest) && plausible(average)
                   && smallest->value.data.fval <= average->value.data.fval
                   && average->value.data.fval <= largest->value.data.fval;
    }
    barrier();
    report("pmix_query rank=%u mode=memory pid=%d servers=%d clients=%d", me.rank, (int)getpid(),
           servers, clients);
}

int main(int argc, char **argv)
{
    static const struct mode modes[] = {
        {"tables", tables}, {"ended", ended}, {"wait", lost}, {"general", general}, {"errors", errors},
        {"memory", memory}, {"family", family}, {"child", child}, {"uri", uri}, {NULL, NULL}};
    const struct mode *mode = find_mode(modes, argc == 2 ? argv[1] : "");
    if (mode == NULL)
        fail(2, "pmix_query MODE");
    program = argv[0];
    PMIX_QUERY_CONSTRUCT(&query);
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    mode->run();
    begin();
    PMIx_Finalize(NULL, 0);
    return 0;
}
