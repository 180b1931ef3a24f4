/*
 * pmix_event_bench [ROUNDS]
 *
 * Rank 0 raises an event for the last rank alone, whose answer is another one; rank 0 prints
 *     pmix_event_bench rank=0 size=N rounds=R trip_p50=US ... delivery_p50=US ...
 * with the whole way, and with half of it: one delivery. The first tenth of the rounds is not counted.
 */
#include "samples.h"
#include <pmix.h>
#include <pthread.h>

static pmix_proc_t me;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t heard;

static void expect(pmix_status_t status, const char *what)
{
    if (status != PMIX_SUCCESS)
        fail(1, "pmix_event_bench rank=%u: %s: %s", me.rank, what, PMIx_Error_string(status));
}

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t infos[],
                     size_t count, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t done, void *done_data)
{
    (void)id;
    (void)status;
    (void)source;
    (void)infos;
    (void)count;
    (void)results;
    (void)nresults;
    pthread_mutex_lock(&lock);
    heard++;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    if (done != NULL)
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, done_data);
}

static void await(size_t wanted)
{
    pthread_mutex_lock(&lock);
    while (heard < wanted)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void tell(pmix_rank_t rank, pmix_status_t code)
{
    pmix_proc_t whom;
    pmix_info_t info;
    PMIX_LOAD_PROCID(&whom, me.nspace, rank);
    PMIX_INFO_LOAD(&info, PMIX_EVENT_CUSTOM_RANGE, &whom, PMIX_PROC);
    expect(PMIx_Notify_event(code, &me, PMIX_RANGE_CUSTOM, &info, 1, NULL, NULL), "PMIx_Notify_event");
    PMIX_INFO_DESTRUCT(&info);
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? (size_t)number_argument(argv[1]) : 1000;
    const size_t all_rounds = rounds + rounds / 10;
    const pmix_status_t ping = PMIX_EXTERNAL_ERR_BASE - 20, pong = PMIX_EXTERNAL_ERR_BASE - 21;
    struct samples trip, delivery;
    char text[2][256];
    pmix_proc_t all;
    pmix_value_t *value = NULL;

    expect(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
    expect(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value), "the job's size");
    const pmix_rank_t last = value->data.uint32 - 1;
    if (last == 0)
        fail(2, "pmix_event_bench: give it two ranks");
    pmix_status_t code = me.rank == 0 ? pong : ping;
    if (me.rank == 0 || me.rank == last)
        PMIx_Register_event_handler(&code, 1, NULL, 0, on_event, NULL, NULL);
    expect(PMIx_Fence(&all, 1, NULL, 0), "PMIx_Fence");
    if (me.rank == 0) {
        samples_begin(&trip, rounds);
        samples_begin(&delivery, rounds);
        for (size_t round = 0; round < all_rounds; round++) {
            double begin = now_us();
            tell(last, ping);
            await(round + 1);
            double took = now_us() - begin;
            if (round < rounds / 10)
                continue;
            samples_add(&trip, took);
            samples_add(&delivery, took / 2);
        }
        report("pmix_event_bench rank=0 size=%u rounds=%zu %s %s", last + 1, rounds,
               samples_end(&trip, "trip", text[0], sizeof text[0]),
               samples_end(&delivery, "delivery", text[1], sizeof text[1]));
    } else if (me.rank == last) {
        for (size_t round = 0; round < all_rounds; round++) {
            await(round + 1);
            tell(0, pong);
        }
    }
    expect(PMIx_Fence(&all, 1, NULL, 0), "PMIx_Fence");
    PMIx_Finalize(NULL, 0);
    return 0;
}
