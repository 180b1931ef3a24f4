/*
 * What the test programs that use PMIx itself share: who this process is, checks of what PMIx says, ranks
 * and fences of its own job, what is heard from libpmix's thread, and what is looked up and spawned.
 */
#ifndef WIREUP_TEST_CLIENT_H
#define WIREUP_TEST_CLIENT_H

#include "common.h"
#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>

/* In <errno.h>, but only where _GNU_SOURCE is defined before the first header. */
extern char *program_invocation_short_name;

/* Filled by PMIx_Init. */
static pmix_proc_t me;

/* Set by programs that run as several jobs at once: their failures name the job too. */
static bool names_job;

/* ---- checks ---- */

__attribute__((noreturn)) static inline void end_with(const char *what, const char *why)
{
    fail(1, "%s %s%srank=%u: %s: %s", program_invocation_short_name, names_job ? me.nspace : "",
         names_job ? " " : "", me.rank, what, why);
}

__attribute__((noreturn)) static inline void wrong(const char *what, pmix_status_t status)
{
    char text[128];
    snprintf(text, sizeof text, "%s (%d)", PMIx_Error_string(status), status);
    end_with(what, text);
}

static inline void expect(pmix_status_t wanted, pmix_status_t status, const char *what)
{
    if (status != wanted)
        wrong(what, status);
}

/* Calls that do not wait may also say that all is done already, and from 6.1 on some that do. */
static inline void must(pmix_status_t status, const char *what)
{
    if (status != PMIX_OPERATION_SUCCEEDED)
        expect(PMIX_SUCCESS, status, what);
}

static inline void hold(bool good, const char *what)
{
    if (!good)
        end_with("not so", what);
}

/* The major version of the libpmix that is loaded. */
static inline int libpmix(void)
{
    int major = 0;
    hold(sscanf(PMIx_Get_version(), "OpenPMIx %d.", &major) == 1, PMIx_Get_version());
    return major;
}

/* From version 5 on there is a function for sessions, with directives of its own. */
#define END_SESSION "pmix.ssn.terminate"
#define SIGNAL_SESSION "pmix.ssn.sig"
#define PREEMPT_SESSION "pmix.ssn.preempt"

typedef pmix_status_t session_fn(uint32_t session, const pmix_info_t directives[], size_t count,
                                 pmix_info_cbfunc_t done, void *data);

/* What it says to one about the own session; PMIX_ERR_NOT_FOUND where it is not there. */
static inline pmix_status_t control_session(const pmix_info_t *directive)
{
    session_fn *control = (session_fn *)dlsym(RTLD_DEFAULT, "PMIx_Session_control");
    return control == NULL ? PMIX_ERR_NOT_FOUND : control(UINT32_MAX, directive, 1, NULL, NULL);
}

/* ---- the own job ---- */

/* Loads these ranks, or the first ones if there is no list; gives their number. */
static inline size_t name_all(pmix_proc_t *procs, const pmix_rank_t *ranks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        PMIX_LOAD_PROCID(&procs[i], me.nspace, ranks == NULL ? (pmix_rank_t)i : ranks[i]);
    return count;
}

static inline void barrier_of(const pmix_rank_t *ranks, size_t count)
{
    pmix_proc_t procs[count];
    must(PMIx_Fence(procs, name_all(procs, ranks, count), NULL, 0), "PMIx_Fence");
}

static inline void barrier(void)
{
    const pmix_rank_t all = PMIX_RANK_WILDCARD;
    barrier_of(&all, 1);
}

/* A barrier that says whether it brings all ranks what all have put. */
static inline void fence(bool with_data)
{
    pmix_proc_t all;
    pmix_info_t info;
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &with_data, PMIX_BOOL);
    must(PMIx_Fence(&all, 1, &info, 1), "PMIx_Fence");
}

/* How many ranks a job has, this one or another. */
static inline uint32_t size_of(const char *nspace)
{
    pmix_proc_t all;
    pmix_value_t *value = NULL;
    PMIX_LOAD_PROCID(&all, nspace, PMIX_RANK_WILDCARD);
    must(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value), "the job's size");
    const uint32_t size = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    return size;
}

/* ---- callbacks, which libpmix's thread calls ---- */

__attribute__((unused)) static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((unused)) static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Changes a value that another thread may wait for. */
#define CHANGE(statements)                                                                                   \
    do {                                                                                                     \
        pthread_mutex_lock(&lock);                                                                           \
        statements;                                                                                          \
        pthread_cond_broadcast(&changed);                                                                    \
        pthread_mutex_unlock(&lock);                                                                         \
    } while (0)

/* Waits until what callbacks have changed makes this true. */
#define WAIT_UNTIL(condition)                                                                                \
    do {                                                                                                     \
        pthread_mutex_lock(&lock);                                                                           \
        while (!(condition))                                                                                 \
            pthread_cond_wait(&changed, &lock);                                                              \
        pthread_mutex_unlock(&lock);                                                                         \
    } while (0)

static struct {
    unsigned asked, answered;
    pmix_status_t last;
} calls;

/* For calls that are answered with a status: what they call back. */
static inline void on_answer(pmix_status_t status, void *data)
{
    (void)data;
    CHANGE(calls.last = status; calls.answered++);
}

/* What such a call comes to, from what it returned. */
static inline pmix_status_t await_answer(pmix_status_t returned)
{
    if (returned != PMIX_SUCCESS)
        return returned;
    calls.asked++;
    WAIT_UNTIL(calls.answered >= calls.asked);
    return calls.last;
}

static inline void on_registered(pmix_status_t status, size_t id, void *data)
{
    (void)id;
    CHANGE(*(pmix_status_t *)data = status);
}

/* Has events of this code handled; they are when this returns. */
static inline void listen_for(pmix_status_t code, pmix_notification_fn_t handler)
{
    pmix_status_t registered = 1; /* positive until there is an answer */
    PMIx_Register_event_handler(&code, 1, NULL, 0, handler, on_registered, &registered);
    WAIT_UNTIL(registered != 1);
    must(registered, "PMIx_Register_event_handler");
}

/* The end of a handler: no other needs to hear of the event. */
static inline void handled(pmix_event_notification_cbfunc_fn_t done, void *data)
{
    if (done != NULL)
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

/* ---- what is published and spawned ---- */

/* Looks up one key. Waits up to `seconds` for it: 0, without limit; negative, not at all. */
static inline pmix_status_t look_up_one(pmix_pdata_t *found, const char *key, int seconds)
{
    int all = 0;
    pmix_info_t infos[2];
    PMIX_PDATA_CONSTRUCT(found);
    snprintf(found->key, sizeof found->key, "%s", key);
    PMIX_INFO_LOAD(&infos[0], PMIX_WAIT, &all, PMIX_INT);
    PMIX_INFO_LOAD(&infos[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    return PMIx_Lookup(found, 1, infos, seconds < 0 ? 0 : 2);
}

/* Spawns `count` processes of the program that is the first of the words, of which NULL is the last. */
static inline pmix_status_t spawn_program(char **words, int count, pmix_info_t *infos, size_t ninfo,
                                          char *nspace)
{
    pmix_app_t app;
    PMIX_APP_CONSTRUCT(&app);
    app.cmd = words[0];
    app.argv = words;
    app.maxprocs = count;
    /* libpmix 5.0 takes no list without infos. */
    return PMIx_Spawn(ninfo == 0 ? NULL : infos, ninfo, &app, 1, nspace);
}

/* ---- modes ---- */

struct mode {
    const char *name;
    void (*run)(void);
};

/* The mode of this name, of a list that ends with one without a name; NULL if there is none. */
static inline const struct mode *find_mode(const struct mode *modes, const char *name)
{
    for (; modes->name != NULL; modes++)
        if (strcmp(modes->name, name) == 0)
            return modes;
    return NULL;
}

#endif
