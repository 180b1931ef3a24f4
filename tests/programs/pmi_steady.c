/*
 * pmi_steady
 *
 * Ranks that keep meeting, with PMI-1, until the standard input of rank 0 ends: in each round every rank
 * puts a value, meets the others and gets what its neighbour and rank 0 have put. Prints for each round
 *     pmi_steady rank=R round=N
 * and leaves the job in order. `steady.h` has what it shares with its PMIx twin.
 */
#define _GNU_SOURCE
#include "pmi.h"
#include "steady.h"

static void expect_card(int round, int owner, const char *wanted)
{
    ask("get_result", "cmd=get kvsname=%s key=round-%d-%d\n", kvsname, round, owner);
    const char *value = field("value");
    if (strcmp(value, wanted) != 0)
        WRONG("rank %d put %s in round %d", owner, value, round);
}

int main(void)
{
    join(STEADY_BYTES);
    for (int round = 1, last = 0; !last; round++) {
        char mine[STEADY_BYTES], other[STEADY_BYTES];
        steady_card(mine, rank, round, rank == 0 && input_ended());
        ask("put_result", "cmd=put kvsname=%s key=round-%d-%d value=%s\n", kvsname, round, rank, mine);
        ask("barrier_out", "cmd=barrier_in\n");
        ask("get_result", "cmd=get kvsname=%s key=round-%d-0\n", kvsname, round);
        last = steady_ends(field("value"));
        const int neighbour = (rank + 1) % size;
        steady_card(other, neighbour, round, neighbour == 0 && last);
        expect_card(round, neighbour, other);
        report("pmi_steady rank=%d round=%d", rank, round);
    }
    ask("finalize_ack", "cmd=finalize\n");
    return 0;
}
