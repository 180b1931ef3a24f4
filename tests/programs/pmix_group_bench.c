/*
 * pmix_group_bench [ROUNDS]
 *
 * All ranks make and end a group with a context id, again and again; rank 0 prints
 *     pmix_group_bench rank=0 size=N rounds=R construct_p50=US ... destruct_p50=US ... pair_p50=US ...
 * The first tenth of the rounds is not counted.
 */
#include "client.h"
#include "samples.h"
#include <pmix.h>

int main(int argc, char **argv)
{
    size_t rounds = argc > 1 ? (size_t)number_argument(argv[1]) : 1000, size;
    struct samples construct, destruct, pair;
    char text[3][256];
    pmix_proc_t *procs;

    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    size = size_of(me.nspace);
    procs = calloc(size, sizeof *procs);
    name_all(procs, NULL, size);
    samples_begin(&construct, rounds);
    samples_begin(&destruct, rounds);
    samples_begin(&pair, rounds);
    barrier();
    for (size_t round = 0; round < rounds + rounds / 10; round++) {
        pmix_info_t info, *results = NULL;
        size_t count = 0;
        PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
        double begin = now_us();
        must(PMIx_Group_construct("bench", procs, size, &info, 1, &results, &count), "construct");
        double made = now_us();
        must(PMIx_Group_destruct("bench", NULL, 0), "destruct");
        double ended = now_us();
        PMIX_INFO_FREE(results, count);
        if (round < rounds / 10)
            continue;
        samples_add(&construct, made - begin);
        samples_add(&destruct, ended - made);
        samples_add(&pair, ended - begin);
    }
    if (me.rank == 0)
        report("pmix_group_bench rank=0 size=%zu rounds=%zu %s %s %s", size, rounds,
               samples_end(&construct, "construct", text[0], sizeof text[0]),
               samples_end(&destruct, "destruct", text[1], sizeof text[1]),
               samples_end(&pair, "pair", text[2], sizeof text[2]));
    PMIx_Finalize(NULL, 0);
    return 0;
}
