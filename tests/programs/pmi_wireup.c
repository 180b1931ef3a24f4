/*
 * pmi_wireup [-q|-w] [GETS [BYTES]]
 *
 * The least a PMI-1 program does to meet its peers: init, one put of BYTES (default 200), a barrier,
 * GETS gets (default 32) of the ranks after it, finalize. Every value is checked. Prints, unless -q,
 *     pmi_wireup rank=R size=N gets=G kvsname=K
 * and with -w waits before finalize until it is killed.
 */
#define _GNU_SOURCE
#include "pmi.h"

int main(int argc, char **argv)
{
    char value[1024], expected[1024];
    int quiet = argc > 1 && strcmp(argv[1], "-q") == 0;
    int waits = argc > 1 && strcmp(argv[1], "-w") == 0, at = 1 + (quiet || waits);
    int gets = argc > at ? (int)number_argument(argv[at]) : 32;
    size_t bytes = argc > at + 1 ? (size_t)number_argument(argv[at + 1]) : 200;

    if (bytes < 16 || bytes >= sizeof value)
        fail(2, "pmi_wireup: value length out of range");
    join(bytes);
    fill_card(rank, value, bytes);
    ask("put_result", "cmd=put kvsname=%s key=card-%d value=%s\n", kvsname, rank, value);
    ask("barrier_out", "cmd=barrier_in\n");
    for (int i = 1; i <= gets; i++) {
        int peer = (rank + i) % size;
        ask("get_result", "cmd=get kvsname=%s key=card-%d\n", kvsname, peer);
        fill_card(peer, expected, bytes);
        if (strcmp(field("value"), expected) != 0)
            fail(1, "pmi_wireup rank=%d: wrong value for rank %d", rank, peer);
    }
    if (!quiet)
        report("pmi_wireup rank=%d size=%d gets=%d kvsname=%s", rank, size, gets, kvsname);
    if (waits)
        wait_for_the_end();
    ask("finalize_ack", "cmd=finalize\n");
    return 0;
}
