/*
 * pmix_store_bench [ROUNDS]
 *
 * Rank 0 publishes a value for which the last rank waits, and waits for the one that this publishes
 * then; each is read once and gone, as MPI's libraries do it when jobs meet. Rank 0 prints
 *     pmix_store_bench rank=0 size=N rounds=R publish_p50=US ... trip_p50=US ... half_p50=US ...
 * with a publish alone, the whole way, and half of it: one value published, waited for and read. The
 * first tenth of the rounds is not counted.
 */
#include "client.h"
#include "samples.h"
#include <pmix.h>

static void publish(const char *name, size_t round)
{
    char key[64];
    pmix_info_t infos[2];
    pmix_persistence_t once = PMIX_PERSIST_FIRST_READ;
    snprintf(key, sizeof key, "bench.%s.%zu", name, round);
    PMIX_INFO_LOAD(&infos[0], key, &round, PMIX_SIZE);
    PMIX_INFO_LOAD(&infos[1], PMIX_PERSISTENCE, &once, PMIX_PERSIST);
    must(PMIx_Publish(infos, 2), "PMIx_Publish");
}

static void look_up(const char *name, size_t round)
{
    char key[64];
    pmix_pdata_t found;
    snprintf(key, sizeof key, "bench.%s.%zu", name, round);
    must(look_up_one(&found, key, 120), "PMIx_Lookup");
    if (found.value.type != PMIX_SIZE || found.value.data.size != round)
        fail(1, "pmix_store_bench rank=%u: round %zu brought something else", me.rank, round);
}

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? (size_t)number_argument(argv[1]) : 1000;
    const size_t all_rounds = rounds + rounds / 10;
    struct samples put, trip, half;
    char text[3][256];

    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const pmix_rank_t last = size_of(me.nspace) - 1;
    if (last == 0)
        fail(2, "pmix_store_bench: give it two ranks");
    barrier();
    if (me.rank == 0) {
        samples_begin(&put, rounds);
        samples_begin(&trip, rounds);
        samples_begin(&half, rounds);
        for (size_t round = 0; round < all_rounds; round++) {
            double begin = now_us();
            publish("there", round);
            double published = now_us();
            look_up("back", round);
            double took = now_us() - begin;
            if (round < rounds / 10)
                continue;
            samples_add(&put, published - begin);
            samples_add(&trip, took);
            samples_add(&half, took / 2);
        }
        report("pmix_store_bench rank=0 size=%u rounds=%zu %s %s %s", last + 1, rounds,
               samples_end(&put, "publish", text[0], sizeof text[0]),
               samples_end(&trip, "trip", text[1], sizeof text[1]),
               samples_end(&half, "half", text[2], sizeof text[2]));
    } else if (me.rank == last) {
        for (size_t round = 0; round < all_rounds; round++) {
            look_up("there", round);
            publish("back", round);
        }
    }
    barrier();
    PMIx_Finalize(NULL, 0);
    return 0;
}
