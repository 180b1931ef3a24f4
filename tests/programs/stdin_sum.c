/*
 * Reads stdin to its end, in pieces of odd size, and prints
 *     stdin_sum rank=R bytes=N fnv1a=HEX
 * (64-bit FNV-1a). With a number as argument it stops after that many bytes, leaving the rest.
 */
#include "common.h"
#include <inttypes.h>

int main(int argc, char **argv)
{
    unsigned char piece[4093];
    uint64_t sum = UINT64_C(0xcbf29ce484222325), bytes = 0, limit = UINT64_MAX;

    if (argc > 1)
        limit = (uint64_t)number_argument(argv[1]);
    while (bytes < limit) {
        size_t want = limit - bytes < sizeof piece ? (size_t)(limit - bytes) : sizeof piece;
        ssize_t got = read(STDIN_FILENO, piece, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail(1, "stdin_sum rank=%d: %s", rank_from_environment(), strerror(errno));
        if (got == 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            sum = (sum ^ piece[i]) * UINT64_C(0x100000001b3);
        bytes += (uint64_t)got;
    }
    report("stdin_sum rank=%d bytes=%" PRIu64 " fnv1a=%016" PRIx64, rank_from_environment(), bytes,
           sum);
    return 0;
}
