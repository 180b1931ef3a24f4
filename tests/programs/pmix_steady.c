/*
 * pmix_steady
 *
 * The PMIx twin of pmi_steady: fences with data and gets in place of barriers and gets. Prints for each round
 *     pmix_steady rank=R round=N
 */
#define _GNU_SOURCE
#include "client.h"
#include "steady.h"
#include <pmix.h>

/* Copies what a rank has put in a round. */
static void card_of(char *card, int round, pmix_rank_t owner)
{
    char key[PMIX_MAX_KEYLEN + 1];
    pmix_value_t *got;
    pmix_proc_t peer;
    PMIX_LOAD_PROCID(&peer, me.nspace, owner);
    snprintf(key, sizeof key, "round-%d", round);
    must(PMIx_Get(&peer, key, NULL, 0, &got), "PMIx_Get");
    hold(got->type == PMIX_STRING, "the value is text");
    snprintf(card, STEADY_BYTES, "%s", got->data.string);
    PMIX_VALUE_RELEASE(got);
}

int main(void)
{
    must(PMIx_Init(&me, NULL, 0), "PMIx_Init");
    const uint32_t size = size_of(me.nspace);
    for (int round = 1, last = 0; !last; round++) {
        char key[PMIX_MAX_KEYLEN + 1], card[STEADY_BYTES], wanted[STEADY_BYTES];
        pmix_value_t value = {.type = PMIX_STRING, .data.string = card};
        steady_card(card, (int)me.rank, round, me.rank == 0 && input_ended());
        snprintf(key, sizeof key, "round-%d", round);
        must(PMIx_Put(PMIX_GLOBAL, key, &value), "PMIx_Put");
        must(PMIx_Commit(), "PMIx_Commit");
        fence(true);
        card_of(card, round, 0);
        last = steady_ends(card);
        const pmix_rank_t neighbour = (me.rank + 1) % size;
        card_of(card, round, neighbour);
        steady_card(wanted, (int)neighbour, round, neighbour == 0 && last);
        hold(strcmp(card, wanted) == 0, card);
        report("pmix_steady rank=%u round=%d", me.rank, round);
    }
    must(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
    return 0;
}
