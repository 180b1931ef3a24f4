/*
 * In front of a libpmix, what 6.1 does otherwise and a host must get along with:
 *
 * - It calls session_control, which is in another place of the module than before. No client of the
 *   libpmix behind us asks for that, so directives for sessions are taken out of those for jobs.
 * - PMIx_Notify_event returns before it has read whose event it is.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Places in the module of 6.1, as its pmix_server.h has them. */
enum { JOB_CONTROL = 19, CLIENT_CONNECTED2 = 27, SESSION_CONTROL = 30, SLOTS = 32 };

typedef void any_fn(void);
typedef int init_fn(any_fn **module, void *infos, size_t count);
typedef int job_control_fn(const void *proc, const void *targets, size_t ntargets, const char *directives,
                           size_t count, any_fn *done, void *data);
typedef int session_control_fn(const void *proc, uint32_t session, const char *directives, size_t count,
                               any_fn *done, void *data);
typedef int notify_fn(int code, const void *source, uint8_t range, const void *infos, size_t count,
                      any_fn *done, void *data);

const char *PMIx_Get_version(void);
init_fn PMIx_server_init;
notify_fn PMIx_Notify_event;

const char *PMIx_Get_version(void)
{
    return "OpenPMIx 6.1.0 (another one behind it)";
}

static job_control_fn *job_control;
static session_control_fn *session_control;

/* A directive starts with its key. */
static int control(const void *proc, const void *targets, size_t ntargets, const char *directives,
                   size_t count, any_fn *done, void *data)
{
    if (count > 0 && strncmp(directives, "pmix.ssn", strlen("pmix.ssn")) == 0) {
        return session_control(proc, UINT32_MAX, directives, count, done, data);
    }
    return job_control(proc, targets, ntargets, directives, count, done, data);
}

int PMIx_server_init(any_fn **module, void *infos, size_t count)
{
    for (int i = CLIENT_CONNECTED2 + 1; i < SLOTS; i++) {
        if ((module[i] != NULL) != (i == SESSION_CONTROL)) {
            abort();
        }
    }
    job_control = (job_control_fn *)module[JOB_CONTROL];
    session_control = (session_control_fn *)module[SESSION_CONTROL];
    module[JOB_CONTROL] = (any_fn *)control;
    init_fn *init = (init_fn *)dlsym(RTLD_NEXT, "PMIx_server_init");
    return init(module, infos, count);
}

struct event {
    int code;
    const void *source;
    uint8_t range;
    const void *infos;
    size_t count;
    any_fn *done;
    void *data;
    unsigned turn;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t next = PTHREAD_COND_INITIALIZER;
static unsigned begun, ended;

/* One after the other, a while after the caller has gone on. */
static void *notify(void *data)
{
    struct event *event = data;
    usleep(20 * 1000);
    pthread_mutex_lock(&lock);
    while (event->turn != ended) {
        pthread_cond_wait(&next, &lock);
    }
    notify_fn *now = (notify_fn *)dlsym(RTLD_NEXT, "PMIx_Notify_event");
    now(event->code, event->source, event->range, event->infos, event->count, event->done, event->data);
    ended++;
    pthread_cond_broadcast(&next);
    pthread_mutex_unlock(&lock);
    free(event);
    return NULL;
}

int PMIx_Notify_event(int code, const void *source, uint8_t range, const void *infos, size_t count,
                      any_fn *done, void *data)
{
    pthread_t thread;
    struct event *event = malloc(sizeof(*event));
    if (event == NULL) {
        abort();
    }
    *event = (struct event){code, source, range, infos, count, done, data, begun++};
    if (pthread_create(&thread, NULL, notify, event) != 0) {
        abort();
    }
    pthread_detach(thread);
    return 0;
}
