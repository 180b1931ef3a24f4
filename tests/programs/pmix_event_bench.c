/*
 * pmix_event_bench [ROUNDS]
 *
 * Rank 0 notifies its job of an event, the last rank hears of it and answers with another, again and
 * again; rank 0 prints
 *     pmix_event_bench rank=0 size=N rounds=R notify_p50=US ... half_p50=US ...
 * with the call alone, and half of the whole way: from the call at one rank to the handler of
 * another. The first tenth of the rounds is not counted.
 */
#include "client.h"
#include "samples.h"
#include <pmix.h>

/* What they say to each other; no library makes such events itself. */
enum { THERE = PMIX_EXTERNAL_ERR_BASE - 10, BACK = PMIX_EXTERNAL_ERR_BASE - 11 };

static size_t heard;

static void on_event(size_t id, pmix_status_t status, const pmix_proc_t *source, pmix_info_t info[],
                     size_t ninfo, pmix_info_t *results, size_t nresults,
                     pmix_event_notification_cbfunc_fn_t next, void *data)
{
    (void)id, (void)status, (void)source, (void)info, (void)ninfo, (void)results, (void)nresults;
    CHANGE(heard++);
    handled(next, data);
}

static void tell(pmix_status_t code)
{
    must(PMIx_Notify_event(code, &me, PMIX_RANGE_NAMESPACE, NULL, 0, NULL, NULL), "PMIx_Notify_event");
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? (size_t)number_argument(argv[1]) : 1000, every = rounds + rounds / 10;
    struct samples notify, half;
    char text[2][256];

    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const pmix_rank_t last = size_of(me.nspace) - 1;
    if (last == 0)
        fail(2, "pmix_event_bench: give it two ranks");
    if (me.rank == 0 || me.rank == last)
        listen_for(me.rank == 0 ? BACK : THERE, on_event);
    barrier();
    if (me.rank == 0) {
        samples_begin(&notify, rounds);
        samples_begin(&half, rounds);
    }
    for (size_t round = 0; round < every; round++) {
        if (me.rank == 0) {
            double begin = now_us();
            tell(THERE);
            double told = now_us();
            WAIT_UNTIL(heard > round);
            double took = now_us() - begin;
            if (round < rounds / 10)
                continue;
            samples_add(&notify, told - begin);
            samples_add(&half, took / 2);
        } else if (me.rank == last) {
            WAIT_UNTIL(heard > round);
            tell(BACK);
        }
    }
    if (me.rank == 0)
        report("pmix_event_bench rank=0 size=%u rounds=%zu %s %s", last + 1, rounds,
               samples_end(&notify, "notify", text[0], sizeof text[0]),
               samples_end(&half, "half", text[1], sizeof text[1]));
    barrier();
    PMIx_Finalize(NULL, 0);
    return 0;
}
