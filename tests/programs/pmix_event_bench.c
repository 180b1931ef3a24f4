/*
 * pmix_event_bench [ROUNDS]
 *
 * Rank 0 notifies its job of an event, the last rank hears of it and answers with another, again and
 * again; rank 0 prints
 *     pmix_event_bench rank=0 size=N rounds=R notify_p50=US ... half_p50=US ...
 * with the call alone, and half of the whole way: from the call at one rank to the handler of
 * another. The first tenth of the rounds is not counted.
 */
#include "samples.h"
#include <pmix.h>
#include <pthread.h>

/* What they say to each other; no library makes such events itself. */
enum { THERE = PMIX_EXTERNAL_ERR_BASE - 10, BACK = PMIX_EXTERNAL_ERR_BASE - 11 };

static pmix_proc_t me;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t heard;
/* Positive until there is an answer. */
static pmix_status_t registered = 1;

static void expect(pmix_status_t status, const char *what)
{
    if (status != PMIX_SUCCESS && status != PMIX_OPERATION_SUCCEEDED)
        fail(1, "pmix_event_bench rank=%u: %s: %s", me.rank, what, PMIx_Error_string(status));
}

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                     size_t ninfo, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t next, void *data)
{
    (void)id, (void)status, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults;
    pthread_mutex_lock(&lock);
    heard++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    if (next != NULL)
        next(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static void on_registered(pmix_status_t status, size_t id, void *data)
{
    (void)id, (void)data;
    pthread_mutex_lock(&lock);
    registered = status;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

static void listen_for(pmix_status_t code)
{
    PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, on_registered, NULL);
    pthread_mutex_lock(&lock);
    while (registered == 1)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    expect(registered, "PMIx_Register_event_handler");
}

static void hear(size_t number)
{
    pthread_mutex_lock(&lock);
    while (heard < number)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void tell(pmix_status_t code)
{
    expect(PMIx_Notify_event(code, &me, PMIX_RANGE_NAMESPACE, NULL, 0, NULL, NULL), "PMIx_Notify_event");
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? (size_t)number_argument(argv[1]) : 1000, every = rounds + rounds / 10;
    struct samples notify, half;
    char text[2][256];
    pmix_proc_t all;
    pmix_value_t *value = NULL;

    expect(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    expect(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value), "the job's size");
    const pmix_rank_t last = value->data.uint32 - 1;
    if (last == 0)
        fail(2, "pmix_event_bench: give it two ranks");
    if (me.rank == 0 || me.rank == last)
        listen_for(me.rank == 0 ? BACK : THERE);
    expect(PMIx_Fence(&all, 1, NULL, 0), "PMIx_Fence");
    if (me.rank == 0) {
        samples_begin(&notify, rounds);
        samples_begin(&half, rounds);
    }
    for (size_t round = 0; round < every; round++) {
        if (me.rank == 0) {
            double begin = now_us();
            tell(THERE);
            double told = now_us();
            hear(round + 1);
            double took = now_us() - begin;
            if (round < rounds / 10)
                continue;
            samples_add(&notify, told - begin);
            samples_add(&half, took / 2);
        } else if (me.rank == last) {
            hear(round + 1);
            tell(BACK);
        }
    }
    if (me.rank == 0)
        report("pmix_event_bench rank=0 size=%u rounds=%zu %s %s", last + 1, rounds,
               samples_end(&notify, "notify", text[0], sizeof text[0]),
               samples_end(&half, "half", text[1], sizeof text[1]));
    expect(PMIx_Fence(&all, 1, NULL, 0), "PMIx_Fence");
    PMIx_Finalize(NULL, 0);
    return 0;
}
