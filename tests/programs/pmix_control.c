/*
 * pmix_control MODE
 *
 * What a rank may do with others of its job through PMIx, with 4 ranks. Rank 0 acts; those that come
 * to the end print
 *     pmix_control rank=R mode=MODE status=NUMBER
 * with what rank 0's call returned, or 0.
 *
 *   abort       ranks 1 and 3 are aborted with code 7; the others go on
 *   terminate   they are asked to end
 *   kill        they are killed, and do not hear SIGTERM
 *   stubborn    they are asked to end, and do not hear SIGTERM
 *   signal      they get SIGUSR1, and no other rank
 *   pause       rank 3 is stopped, which rank 2 on the same host sees, and continued
 *   all         everybody is asked to end
 *   kill_all    everybody is killed
 *   refused     what is not supported, and processes that do not exist
 *   session     as all, but by ending the session
 *   family HOW  rank 0 spawns two processes, of which the first signals, terminates, kills or aborts
 *               its whole job, without naming anybody; nothing happens to the parents. With HOW
 *               `session` it signals all jobs of the session, and that is the parents' too
 */
#include "client.h"
#include <pmix.h>
#include <signal.h>

static const pmix_rank_t others[] = {0, 2};

static pmix_status_t control(const char *key, const void *value, pmix_data_type_t type,
                             const pmix_rank_t *ranks, size_t count)
{
    pmix_proc_t targets[4];
    pmix_info_t directive, *results = NULL;
    size_t nresults = 0;
    name_all(targets, ranks, count);
    PMIX_INFO_LOAD(&directive, key, value, type);
    PMIX_INFO_REQUIRED(&directive);
    if (strncmp(key, "pmix.ssn.", strlen("pmix.ssn.")) == 0)
        return control_session(&directive);
    return PMIx_Job_control(count == 0 ? NULL : targets, count, &directive, 1, &results, &nresults);
}

static void publish(const char *key, const char *text)
{
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, key, text, PMIX_STRING);
    must(PMIx_Publish(&info, 1), "PMIx_Publish");
}

static void await(const char *key, char *text, size_t room)
{
    pmix_pdata_t found;
    must(look_up_one(&found, key, 120), key);
    snprintf(text, room, "%s", found.value.data.string);
}

/* Ranks 1 and 3 wait to be ended; the others go on afterwards. */
static pmix_status_t end_some(const char *mode)
{
    const pmix_rank_t victims[] = {1, 3};
    const bool yes = true;
    pmix_status_t status = PMIX_SUCCESS;
    if (strcmp(mode, "kill") == 0 || strcmp(mode, "stubborn") == 0)
        signal(SIGTERM, SIG_IGN);
    barrier();
    if (me.rank % 2 == 1)
        wait_for_the_end();
    if (me.rank == 0) {
        if (strcmp(mode, "abort") == 0) {
            pmix_proc_t procs[2];
            status = PMIx_Abort(7, "two of us", procs, name_all(procs, victims, 2));
        } else {
            const char *what = strcmp(mode, "kill") == 0 ? PMIX_JOB_CTRL_KILL : PMIX_JOB_CTRL_TERMINATE;
            status = control(what, &yes, PMIX_BOOL, victims, 2);
        }
    }
    barrier_of(others, 2);
    return status;
}

static pmix_status_t end_all(const char *key)
{
    const bool yes = true;
    barrier();
    if (me.rank == 0)
        must(control(key, &yes, PMIX_BOOL, NULL, 0), key);
    wait_for_the_end();
}

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
    (void)number;
    signals++;
}

static pmix_status_t send_signal(void)
{
    const pmix_rank_t targets[] = {1, 3};
    int number = SIGUSR1;
    pmix_status_t status = PMIX_SUCCESS;
    signal(SIGUSR1, on_signal);
    barrier();
    if (me.rank == 0)
        status = control(PMIX_JOB_CTRL_SIGNAL, &number, PMIX_INT, targets, 2);
    while (me.rank % 2 == 1 && signals == 0)
        usleep(1000);
    barrier();
    if (signals != (sig_atomic_t)(me.rank % 2))
        fail(1, "pmix_control rank=%u: %d signals", me.rank, (int)signals);
    return status;
}

static char state_of(const char *pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        fail(1, "pmix_control rank=%u: no %s", me.rank, path);
    fclose(file);
    return strrchr(text, ')')[2];
}

static pmix_status_t stop_one(void)
{
    const pmix_rank_t target[] = {3};
    const bool yes = true;
    char text[32];
    pmix_status_t status = PMIX_SUCCESS;
    if (me.rank == 3) {
        snprintf(text, sizeof text, "%d", (int)getpid());
        publish("pid", text);
    }
    barrier();
    if (me.rank == 0) {
        must(control(PMIX_JOB_CTRL_PAUSE, &yes, PMIX_BOOL, target, 1), "pausing");
        await("stopped", text, sizeof text);
        status = control(PMIX_JOB_CTRL_RESUME, &yes, PMIX_BOOL, target, 1);
    }
    if (me.rank == 2) {
        await("pid", text, sizeof text);
        while (state_of(text) != 'T')
            usleep(1000);
        publish("stopped", "yes");
    }
    barrier();
    return status;
}

static pmix_status_t refused(void)
{
    const pmix_rank_t nobody[] = {17};
    const bool yes = true;
    int number = 99;
    pmix_proc_t stranger;
    pmix_info_t directive, *results = NULL;
    size_t nresults = 0;
    if (me.rank == 0) {
        expect(PMIX_ERR_NOT_FOUND, control(PMIX_JOB_CTRL_KILL, &yes, PMIX_BOOL, nobody, 1), "rank 17");
        expect(PMIX_ERR_BAD_PARAM, control(PMIX_JOB_CTRL_SIGNAL, &number, PMIX_INT, NULL, 0),
               "signal 99");
        expect(PMIX_ERR_NOT_SUPPORTED, control(PMIX_JOB_CTRL_CHECKPOINT, "x", PMIX_STRING, NULL, 0),
               "a checkpoint");
        PMIX_LOAD_PROCID(&stranger, "somebody-else", PMIX_RANK_WILDCARD);
        PMIX_INFO_LOAD(&directive, PMIX_JOB_CTRL_KILL, &yes, PMIX_BOOL);
        expect(PMIX_ERR_NOT_FOUND, PMIx_Job_control(&stranger, 1, &directive, 1, &results, &nresults),
               "another job");
        /* Before version 7 libpmix does not hand the refusal on; that we are here afterwards shows it. */
        expect(libpmix() < 7 ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND, PMIx_Abort(3, "", &stranger, 1),
               "aborting another job");
    }
    barrier();
    return PMIX_SUCCESS;
}

/* A spawned process: it is ended or signalled by the first of its job. */
static void be_child(const char *how)
{
    const bool yes = true;
    int number = SIGUSR1;
    char key[16], pid[16];
    signal(SIGUSR1, on_signal);
    snprintf(key, sizeof key, "child%u", me.rank);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    publish(key, pid);
    barrier();
    if (me.rank == 0) {
        if (strcmp(how, "abort") == 0)
            PMIx_Abort(5, "all of us", NULL, 0);
        else if (strcmp(how, "signal") == 0)
            control(PMIX_JOB_CTRL_SIGNAL, &number, PMIX_INT, NULL, 0);
        else if (strcmp(how, "session") == 0)
            control(SIGNAL_SESSION, &number, PMIX_INT, NULL, 0);
        else
            control(strcmp(how, "kill") == 0 ? PMIX_JOB_CTRL_KILL : PMIX_JOB_CTRL_TERMINATE, &yes,
                    PMIX_BOOL, NULL, 0);
    }
    while (signals == 0)
        usleep(1000);
}

static void spawn_children(char *program, char *how)
{
    char nspace[PMIX_MAX_NSLEN + 1], text[32], key[16];
    char *child[] = {program, "child", how, NULL};
    must(spawn_program(child, 2, NULL, 0, nspace), "PMIx_Spawn");
    for (int rank = 0; rank < 2; rank++) {
        snprintf(key, sizeof key, "child%d", rank);
        await(key, text, sizeof text);
        while (kill(atoi(text), 0) == 0)
            usleep(1000);
    }
}

static pmix_status_t family(char *program, char *how)
{
    signal(SIGUSR1, on_signal);
    barrier();
    if (me.rank == 0)
        spawn_children(program, how);
    while (strcmp(how, "session") == 0 && signals == 0)
        usleep(1000);
    barrier();
    if (signals != (strcmp(how, "session") == 0))
        fail(1, "pmix_control rank=%u: a signal that was not for us", me.rank);
    return PMIX_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *mode = argc >= 2 ? argv[1] : "";
    pmix_status_t status;
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    if (strcmp(mode, "abort") == 0 || strcmp(mode, "terminate") == 0 || strcmp(mode, "kill") == 0
        || strcmp(mode, "stubborn") == 0)
        status = end_some(mode);
    else if (strcmp(mode, "signal") == 0)
        status = send_signal();
    else if (strcmp(mode, "pause") == 0)
        status = stop_one();
    else if (strcmp(mode, "all") == 0)
        status = end_all(PMIX_JOB_CTRL_TERMINATE);
    else if (strcmp(mode, "kill_all") == 0)
        status = end_all(PMIX_JOB_CTRL_KILL);
    else if (strcmp(mode, "session") == 0) {
        const bool yes = true;
        expect(PMIX_ERR_NOT_SUPPORTED, control(PREEMPT_SESSION, &yes, PMIX_BOOL, NULL, 0), "preempting");
        status = end_all(END_SESSION);
    } else if (strcmp(mode, "refused") == 0)
        status = refused();
    else if (strcmp(mode, "family") == 0 && argc == 3)
        status = family(argv[0], argv[2]);
    else if (strcmp(mode, "child") == 0 && argc == 3) {
        be_child(argv[2]);
        PMIx_Finalize(NULL, 0);
        return 0;
    }
    else
        fail(2, "pmix_control MODE");
    report("pmix_control rank=%u mode=%s status=%d", me.rank, mode, status);
    PMIx_Finalize(NULL, 0);
    return 0;
}
